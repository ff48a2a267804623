"""The rows of a profile: one dataclass per table of ``profile.pop``.

These dataclasses *are* the schema. `ipuscope.profiler.file.schema` makes a SQL table from each
(``table`` names it, every field is a column), the writer stores instances, the reader returns them
as pandas frames, and ``docs/pop-format.md`` is checked against them. A field typed ``Vector`` is a
numpy array in memory and a reference into the ``vectors`` table on disk, where equal content is
stored once. A field's type also bounds its values: every reader refuses anything else.

Units: cycles are tile clock cycles, bytes are bytes, times on the host are microseconds since the
epoch. Vectors "over tiles" have one int64 entry per tile of one IPU.
"""

# no annotations of __future__: a field's type is read at run time (`schema.columns`)
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from ipuscope.profiler.enums import BodyTask, Direction, PipelinePhase, Purpose, Role
from ipuscope.profiler.file.bounds import (
    MOST_BYTES,
    MOST_CYCLES,
    MOST_FLOPS,
    MOST_IPUS,
    MOST_MICRO_BATCHES,
    MOST_ON_A_TILE,
    MOST_ROWS,
    MOST_TENSORS,
    MOST_TILES,
    Key,
    OfReplica,
    OneOf,
    RowOf,
    Sides,
    Within,
)

Vector = np.ndarray


def _word(some: Iterable[str], *more: str) -> OneOf:
    return OneOf((*map(str, some), *more))


# Program types, spelled as libpva spells them (docs/libpva.md#programs).
ON_TILE_EXECUTE = "OnTileExecute"
DO_EXCHANGE = "DoExchange"
GLOBAL_EXCHANGE = "GlobalExchange"
STREAM_COPY_BEGIN = "StreamCopyBegin"
STREAM_COPY_MID = "StreamCopyMid"
STREAM_COPY_END = "StreamCopyEnd"
SYNC = "Sync"
REPEAT = "Repeat"
SEQUENCE = "Sequence"
STEP_TYPES = (
    ON_TILE_EXECUTE,
    DO_EXCHANGE,
    GLOBAL_EXCHANGE,
    STREAM_COPY_BEGIN,
    STREAM_COPY_MID,
    STREAM_COPY_END,
    SYNC,
)
PROGRAM_TYPES = (*STEP_TYPES, REPEAT, SEQUENCE)

# What a slice of time on an IPU is spent on; the order is the legend's.
KINDS = ("compute", "exchange", "sync", "external sync", "global exchange", "host I/O", "idle")
TASK = "task"  # of a body whose steps say the kinds
# of I/O tiles at the same time as the others: a kind of its own, none of those above
BESIDE = "overlapped host I/O"
# what steps and tasks of streaming memory, which are host I/O or lie beside others, are called
STREAMING, STREAMING_BESIDE = "streaming memory", "overlapped streaming memory"
BESIDES = (BESIDE, STREAMING_BESIDE)

PHASES = tuple(phase.value for phase in PipelinePhase)

# Storage categories, spelled as libpva spells them (docs/libpva.md#tiles).
CATEGORIES = (
    "variable",
    "constant",
    "vertexCode",
    "vertexInstanceState",
    "vertexFieldData",
    "vectorListDescriptor",
    "copyDescriptor",
    "internalExchangeCode",
    "globalExchangeCode",
    "hostExchangeCode",
    "hostExchangePacketHeader",
    "controlCode",
    "controlId",
    "controlTable",
    "instrumentationResults",
    "message",
    "stack",
)

Cycles = Annotated[int, Within(0, MOST_CYCLES)]
Bytes = Annotated[int, Within(0, MOST_BYTES)]
FewBytes = Annotated[int, Within(0, 1 << 31)]
Flops = Annotated[int, Within(0, MOST_FLOPS)]
MicroBatches = Annotated[int, Within(0, MOST_MICRO_BATCHES)]
Flag = Annotated[int, Within(0, 1)]
Position = Annotated[int, Within(0, MOST_ROWS, summed=False)]
Line = Annotated[int, Within(0, 1 << 31, summed=False)]
Clock = Annotated[int, Within(0, 1 << 60, summed=False)]  # cycles since the first run began
Microseconds = Annotated[int, Within(0, 1 << 53, summed=False)]  # as nanoseconds they fit
Process = Annotated[int, Within(-1, (1 << 63) - 1, summed=False)]  # or a thread of the host
Tensor = Annotated[int, Within(-1, MOST_TENSORS, summed=False)]  # -1: none
Place = Annotated[int, Within(-1, 1 << 16, summed=False)]  # an IPU; -1: the host
Ipu = Annotated[int, OfReplica()]
Id = Annotated[int, Key()]
Counted = Annotated[int, Key(counted=True)]
StageId = Annotated[int, RowOf("stages")]
BlockId = Annotated[int, RowOf("blocks")]
OpId = Annotated[int, RowOf("ops")]
ProgramId = Annotated[int, RowOf("program_tree")]
StepId = Annotated[int, RowOf("program_steps")]
ComputeSetId = Annotated[int, RowOf("compute_set_info")]
Shape = Annotated[str, Sides()]
DirectionWord = Annotated[str, _word(Direction, "")]  # "": none
ProgramWord = Annotated[str, OneOf(PROGRAM_TYPES)]
StepWord = Annotated[str, OneOf(STEP_TYPES)]
PurposeWord = Annotated[str, _word(Purpose)]
CategoryWord = Annotated[str, OneOf(CATEGORIES)]
RoleWord = Annotated[str, _word(Role)]
KindWord = Annotated[str, OneOf((TASK, *KINDS, BESIDE))]
TaskWord = Annotated[str, _word(BodyTask)]
PhaseWord = Annotated[str, OneOf(PHASES)]
CyclesOfTasks = Annotated[Vector, Within(0, MOST_CYCLES)]
OVER_TILES = Within(0, MOST_ON_A_TILE, summed=False)
OverTiles = Annotated[Vector, OVER_TILES]


@dataclass(slots=True)
class Target:
    """The modelled machine. One row."""

    table: ClassVar[str] = "target"

    name: str  # "mk2", "bow", ...
    architecture: str  # "ipu2", ...
    # all IPUs of the run, replicas included; of those that share a stage's tensors one
    num_ipus: Annotated[int, Within(1, MOST_TILES)]
    num_replicas: Annotated[int, Within(1, MOST_TILES)]
    ipus_per_replica: Annotated[int, Within(1, MOST_IPUS)]
    tiles_per_ipu: Annotated[int, Within(1, 1 << 16)]
    bytes_per_tile: Annotated[int, Within(1, 1 << 40)]
    region0_bytes: Bytes  # not interleaved; code can only be here
    clock_hz: Annotated[float, Within(1e6, 1e12)]
    workers_per_tile: Annotated[int, Within(1, 1 << 10)]


@dataclass(slots=True)
class Option:
    """One setting of the run, as the user or a default gave it."""

    table: ClassVar[str] = "options"

    name: str  # dotted: "Training.gradientAccumulation"
    value: str  # JSON


@dataclass(slots=True)
class Stage:
    """One stage of the pipeline (or shard): its IPU and what a micro-batch costs there."""

    table: ClassVar[str] = "stages"

    id: Counted
    ipu: Ipu
    forward_cycles: Cycles
    backward_cycles: Cycles  # recompute included
    recompute_cycles: Cycles
    update_cycles: Cycles
    # kept between forward and backward; 0 for the last stage
    stash_depth: MicroBatches
    stash_bytes: Bytes  # of all of them, all tiles
    weight_bytes: Bytes  # without copies of weights that others have
    copy_bytes: Bytes  # to the next stage, a micro-batch, forward


@dataclass(slots=True)
class Block:
    """A Block of the user's model, in the order of first use."""

    table: ClassVar[str] = "blocks"

    id: Counted
    name: str
    stage: StageId
    ipu: Ipu
    forward_cycles: Cycles
    backward_cycles: Cycles
    update_cycles: Cycles
    weight_bytes: Bytes  # without copies of weights that others have
    input_bytes: Bytes  # from the host, a micro-batch, of what this Block is the first to read
    copy_bytes: Bytes  # a micro-batch, forward, over a cut behind this Block
    copy_back_bytes: Bytes  # the same, backward


@dataclass(slots=True)
class Op:
    """One ATen operator that was captured."""

    table: ClassVar[str] = "ops"

    id: Id
    name: str  # module path and what it does: "layer.3/attention/matmul"
    aten: str  # "aten.addmm.default"
    direction: DirectionWord
    block: BlockId  # -1: none
    stage: StageId
    ipu: Ipu
    module: str  # "layer.3.attention"
    file: str  # the user's line; "" where unknown
    line: Line
    forward_op: OpId  # the forward operator a backward one belongs to; -1: none
    flops: Flops
    cycles: Cycles  # one execution, all of its steps
    estimated: Flag  # 1 where a generic fallback stood in for a formula
    plan: str  # how it was split over tiles and what the model asked for, in words; "": neither
    # as PopART names it, each name once: "layer.3/attention/MatMul/1" is the second of its module
    popart_name: str = ""


@dataclass(slots=True)
class Program:
    """A node of the program tree. Leaves are steps; roots have parent -1."""

    table: ClassVar[str] = "program_tree"

    id: Id
    parent: ProgramId
    position: Position  # among its siblings
    type: ProgramWord
    name: str
    repeat: Annotated[int, Within(0, 1 << 40)]  # how often the body runs, for Repeat; else 1


@dataclass(slots=True)
class Step:
    """A program step of one IPU: the unit of liveness and of execution.

    ``position`` counts the steps of that IPU in program order (0 ...); liveness is indexed by it.
    Since format 4 this is a view: ``program_step_rows`` is the table, and a step has the type and
    the name of its program.
    """

    table: ClassVar[str] = "program_steps"
    stored: ClassVar[str] = "program_step_rows"
    of_program: ClassVar[tuple[str, ...]] = ("type", "name")

    id: Id
    ipu: Ipu
    position: Position
    program: Annotated[int, RowOf("program_tree", optional=False)]  # leaf of the program tree
    body: Annotated[int, RowOf("bodies")]  # the Body it belongs to
    op: OpId  # -1: none (syncs, copies between IPUs, streams)
    type: StepWord
    name: str
    # the slowest tile's, latency included; of one turn of a loop (for sums: program_step_cycles)
    cycles: Cycles
    compute_set: ComputeSetId  # -1: not an OnTileExecute
    tile_cycles: OverTiles | None  # over tiles
    bytes_in: OverTiles | None  # over tiles; exchanges only
    bytes_out: OverTiles | None
    purpose: PurposeWord = Purpose.OPERATOR
    tensor: Tensor = -1  # that it moves; -1: none, or several
    code: StepId = -1  # the first step of its IPU that runs the same code, maybe itself; -1: itself


@dataclass(slots=True)
class MovedTensor:
    """A tensor that a step moves over the edge of a chip (since format 3).

    From an IPU of the replica to another, or to itself: between the replicas.
    """

    table: ClassVar[str] = "moved_tensors"

    step: Annotated[int, RowOf("program_steps", optional=False)]
    tensor: Tensor
    name: str
    source: Place  # IPU; -1: the host, or streaming memory
    target: Place  # likewise
    bytes: Bytes


@dataclass(slots=True)
class ComputeSet:
    """A compute set: what the tiles run between two syncs."""

    table: ClassVar[str] = "compute_set_info"

    id: Id
    name: str
    ipu: Ipu
    op: OpId
    flops: Flops


@dataclass(slots=True)
class VertexType:
    """A type of vertex, with its bytes of code and of state per instance."""

    table: ClassVar[str] = "vertex_types"

    id: Id
    name: str
    code_bytes: FewBytes  # on each tile that has one (an estimate)
    state_bytes: FewBytes  # of each instance, without its fields (category vertexFieldData)


@dataclass(slots=True)
class VertexUse:
    """How many vertices of a type a compute set has on each tile."""

    table: ClassVar[str] = "vertices"

    compute_set: Annotated[int, RowOf("compute_set_info", optional=False)]
    vertex_type: Annotated[int, RowOf("vertex_types", optional=False)]
    count: OverTiles  # over tiles


@dataclass(slots=True)
class Variable:
    """Data in the tile memory of one IPU, and when they are live.

    Live at the steps ``start <= position < stop`` of its IPU; an always-live one has 0 and the
    number of steps. Nothing about liveness is stored but this.
    """

    table: ClassVar[str] = "variables"

    id: Id
    name: str
    ipu: Ipu
    category: CategoryWord
    role: RoleWord
    op: OpId  # that makes it; -1: none
    block: BlockId
    stage: StageId
    dtype: str
    shape: Shape  # JSON list; "" where it has none
    bytes: Bytes  # sum over tiles
    tile_bytes: OverTiles  # over tiles
    interleaved: Flag  # 1: must lie in region 1
    always_live: Flag
    start: Position
    stop: Position
    # of the model, that it holds all of or stashes; the same on all IPUs; -1: none
    tensor: Tensor = -1
    # tensor of the weight whose state, accumulator or gradient it is; -1: none
    parameter: Tensor = -1
    step: StepId = -1  # whose code or vertex state it is; -1: none, or many


@dataclass(slots=True)
class Use:
    """An operator reads or writes a variable."""

    table: ClassVar[str] = "op_variables"
    key: ClassVar[str] = "op, variable"

    op: Annotated[int, RowOf("ops", optional=False)]
    variable: Annotated[int, RowOf("variables", optional=False)]


@dataclass(slots=True)
class Body:
    """A piece of program that runs as a unit on one IPU: a stage's forward, a copy, the update ...

    ``starts`` are relative to the body's start; the last step lasts until the end of its task.
    """

    table: ClassVar[str] = "bodies"

    id: Id
    name: str  # "stage 0 forward"
    ipu: Ipu
    stage: StageId  # -1: none
    # "task" (its steps say the kinds), or one of KINDS, or BESIDE, where it is all one thing
    kind: KindWord
    direction: DirectionWord
    cycles: Cycles
    steps: Vector  # step ids as they run: those of a loop several times
    starts: Vector  # cycles
    task: TaskWord


@dataclass(slots=True)
class Trace:
    """The execution of one call: one device iteration as tasks, and how often it recurs.

    The six columns have an entry per task. A task is a Body running on its IPU from start to end
    (cycles, relative to the device iteration). Idle time is stored as tasks too: an IPU has no gaps
    and no overlaps, except for bodies of kind `BESIDE`, which overlap the others one by one.
    """

    table: ClassVar[str] = "traces"

    id: Id
    iterations: Annotated[int, Within(1, MOST_MICRO_BATCHES)]
    iteration_cycles: Cycles
    task_start: CyclesOfTasks
    task_end: CyclesOfTasks
    task_body: Annotated[Vector, RowOf("bodies", optional=False)]
    task_ipu: Annotated[Vector, OfReplica()]
    task_micro_batch: Annotated[Vector, Within(-1, MOST_MICRO_BATCHES)]  # -1: none
    task_pipeline_cycle: Annotated[Vector, Within(-1, MOST_ROWS)]


@dataclass(slots=True)
class PipelineCycle:
    """One pipeline cycle of a device iteration; for sharded execution, one micro-batch."""

    table: ClassVar[str] = "pipeline_cycles"

    trace: Annotated[int, RowOf("traces", optional=False)]
    position: Position
    phase: PhaseWord
    start: Cycles
    end: Cycles
    slowest_ipu: Ipu  # the one the others wait for


@dataclass(slots=True)
class Run:
    """One call of the executor that was profiled."""

    table: ClassVar[str] = "runs"

    id: Id
    name: str
    trace: Annotated[int, RowOf("traces", optional=False)]
    cycle_start: Clock  # on the clock shared by all runs
    host_start_us: Microseconds
    host_end_us: Microseconds


@dataclass(slots=True)
class HostEvent:
    """An activity of the host that the program recorded by ``libpvti`` (since format 3)."""

    table: ClassVar[str] = "host_events"

    id: Id
    parent: Annotated[int, Within(-1, MOST_ROWS)]  # the event that it is in; -1: none
    process: Process
    thread: Process
    channel: str
    label: str
    start_us: Microseconds
    end_us: Microseconds  # as start_us: it took no time


@dataclass(slots=True)
class HostValue:
    """A value on the host at a time, from a graph of ``libpvti`` (since format 3)."""

    table: ClassVar[str] = "host_values"

    id: Id
    process: Process
    graph: str
    series: str
    unit: str
    time_us: Microseconds
    value: Annotated[float, Within(-sys.float_info.max, sys.float_info.max, summed=False)]


# -- the same again for plain SQL: what vectors hold, as rows (see
# `ipuscope.profiler.file.sql_rows`) --


@dataclass(slots=True)
class TileRun:
    """Neighbouring tiles with the same number of bytes of a variable, not 0."""

    table: ClassVar[str] = "tile_runs"
    key: ClassVar[str] = "vector, first_tile"

    vector: int  # variables.tile_bytes
    first_tile: int
    last_tile: int
    bytes: int  # on each of them


@dataclass(slots=True)
class Activity:
    """What the tiles do in program steps with the same three vectors (-1: none)."""

    table: ClassVar[str] = "activities"
    key: ClassVar[str] = "tile_cycles, bytes_in, bytes_out"

    tile_cycles: int
    bytes_in: int
    bytes_out: int
    active_tiles: int
    first_cycles: int  # until the first active tile has finished; -1: as long as the step
    last_cycles: int  # until the last one has
    tile_balance: float  # mean work over most work, all tiles
    active_tile_balance: float  # the same over the active ones
    received: int  # bytes, sum over tiles
    sent: int


@dataclass(slots=True)
class BodyPattern:
    """The steps of a Body: those of its pattern, counted from its first step."""

    table: ClassVar[str] = "body_patterns"
    key: ClassVar[str] = "body"

    body: int
    pattern: int
    first_step: int


@dataclass(slots=True)
class PatternStep:
    """A step of all Bodies with this pattern: those of equal layers, for one."""

    table: ClassVar[str] = "pattern_steps"
    key: ClassVar[str] = "pattern, position"

    pattern: int
    position: int
    offset: int  # of its id, from the Body's first step
    start: int  # cycles, relative to the body's start
    stop: int  # -1: the last one, which lasts until the end of the task


@dataclass(slots=True)
class Task:
    """A Body running in a device iteration of a trace.

    Waiting is time of an external sync, as on the machine: the next one, if the IPU waits for it,
    or one that consists only of waiting.
    """

    table: ClassVar[str] = "tasks"
    key: ClassVar[str] = "trace, position"

    trace: int
    position: int
    first_step: int  # steps of the device iteration before this task's
    steps: int
    body: int
    ipu: int
    micro_batch: int  # -1: none
    pipeline_cycle: int
    start: int  # cycles, relative to the device iteration
    end: int
    waited: int  # cycles of it that the IPU waited for others


@dataclass(slots=True)
class Iteration:
    """A device iteration of a run."""

    table: ClassVar[str] = "iterations"
    key: ClassVar[str] = "run, iteration"

    run: int
    iteration: int
    trace: int
    first_step: int  # executed steps before it, of all runs
    start: int  # on the clock shared by all runs


@dataclass(slots=True)
class TileMemory:
    """What a tile's memory holds at its worst step."""

    table: ClassVar[str] = "tile_memory"
    key: ClassVar[str] = "ipu, tile"

    ipu: int
    tile: int  # of the IPU
    total: int  # its extent, including gaps
    total_excluding_gaps: int  # that it uses: most that is live at one step
    always_live: int
    overflow: int  # of the extent beyond the tile


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one record by column: of a hundred thousand, an object each takes half the time."""

    of: type[Any]
    columns: Mapping[str, Sequence[Any]]


STORED = (
    Target,
    Option,
    Stage,
    Block,
    Op,
    Program,
    Step,
    MovedTensor,
    ComputeSet,
    VertexType,
    VertexUse,
    Variable,
    Use,
    Body,
    Trace,
    PipelineCycle,
    Run,
    HostEvent,
    HostValue,
)
BY_TABLE: dict[str, type[Any]] = {record.table: record for record in STORED}
# derived from the others
PLAIN = (TileRun, Activity, BodyPattern, PatternStep, Task, Iteration, TileMemory)
TABLES = (*STORED, *PLAIN)
