"""The rows of a profile: one dataclass per table of ``profile.pop``.

These dataclasses *are* the schema. `ipuscope.profiler.file.schema` makes a SQL table from each
(``table`` names it, every field is a column), the writer stores instances, the reader gives them
back as pandas frames, and ``docs/pop-format.md`` is checked against them. A field typed ``Vector``
is a numpy array in memory and a reference into the ``vectors`` table on disk, where equal content
is stored once.

Units: cycles are tile clock cycles, bytes are bytes, times on the host are microseconds since the
epoch. Vectors "over tiles" have one int64 entry per tile of one IPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ipuscope.profiler.enums import Direction, PipelinePhase, Purpose, Role

Vector = np.ndarray

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
PROGRAM_TYPES = (
    ON_TILE_EXECUTE,
    DO_EXCHANGE,
    GLOBAL_EXCHANGE,
    STREAM_COPY_BEGIN,
    STREAM_COPY_MID,
    STREAM_COPY_END,
    SYNC,
    REPEAT,
    SEQUENCE,
)

# What a slice of time on an IPU is spent on; the order is the legend's.
KINDS = ("compute", "exchange", "sync", "external sync", "global exchange", "host I/O", "idle")
BESIDE = (  # of I/O tiles, beside the others' time: a kind of its own, none of those above
    "overlapped host I/O"
)

DIRECTIONS = tuple(direction.value for direction in Direction)

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

ROLES = tuple(role.value for role in Role)


@dataclass(slots=True)
class Target:
    """The modelled machine. One row."""

    table: ClassVar[str] = "target"

    name: str  # "mk2", "bow", ...
    architecture: str  # "ipu2", ...
    # all IPUs of the run, replicas included; of those that share a stage's tensors one
    num_ipus: int
    num_replicas: int
    ipus_per_replica: int
    tiles_per_ipu: int
    bytes_per_tile: int
    region0_bytes: int  # not interleaved; code can only be here
    clock_hz: float
    workers_per_tile: int


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

    id: int
    ipu: int
    forward_cycles: int
    backward_cycles: int  # recompute included
    recompute_cycles: int
    update_cycles: int
    stash_depth: int  # micro-batches kept between forward and backward; 0 for the last stage
    stash_bytes: int  # of all of them, all tiles
    weight_bytes: int  # without copies of weights that others have
    copy_bytes: int  # to the next stage, a micro-batch, forward


@dataclass(slots=True)
class Block:
    """A Block of the user's model, in the order it was first met."""

    table: ClassVar[str] = "blocks"

    id: int
    name: str
    stage: int
    ipu: int
    forward_cycles: int
    backward_cycles: int
    update_cycles: int
    weight_bytes: int  # without copies of weights that others have
    input_bytes: int  # from the host, a micro-batch, of what this Block is the first to read
    copy_bytes: int  # a micro-batch, forward, over a cut behind this Block
    copy_back_bytes: int  # the same, backward


@dataclass(slots=True)
class Op:
    """One ATen operator that was captured."""

    table: ClassVar[str] = "ops"

    id: int
    name: str  # module path and what it does: "layer.3/attention/matmul"
    aten: str  # "aten.addmm.default"
    direction: str  # of ipuscope.profiler.enums.Direction
    block: int  # -1: none
    stage: int
    ipu: int
    module: str  # "layer.3.attention"
    file: str  # the user's line; "" where unknown
    line: int
    forward_op: int  # the forward operator a backward one belongs to; -1: none
    flops: int
    cycles: int  # one execution, all of its steps
    estimated: int  # 1 where a generic fallback stood in for a formula
    plan: str  # how it was split over tiles and what the model asked for, in words; "": neither
    # as PopART names it, each name once: "layer.3/attention/MatMul/1" is the second of its module
    popart_name: str = ""


@dataclass(slots=True)
class Program:
    """A node of the program tree. Leaves are steps; roots have parent -1."""

    table: ClassVar[str] = "program_tree"

    id: int
    parent: int
    position: int  # among its siblings
    type: str  # of PROGRAM_TYPES
    name: str
    repeat: int  # how often the body runs, for Repeat; else 1


@dataclass(slots=True)
class Step:
    """A program step of one IPU: the unit of liveness and of execution.

    ``position`` counts the steps of that IPU in program order (0 ...); liveness is indexed by it.
    """

    table: ClassVar[str] = "program_steps"

    id: int
    ipu: int
    position: int
    program: int  # leaf of the program tree
    body: int  # the Body it belongs to
    op: int  # -1: none (syncs, copies between IPUs, streams)
    type: str
    name: str
    # the slowest tile's, latency included; of one turn of a loop (for sums: program_step_cycles)
    cycles: int
    compute_set: int  # -1: not an OnTileExecute
    tile_cycles: Vector | None  # over tiles
    bytes_in: Vector | None  # over tiles; exchanges only
    bytes_out: Vector | None
    purpose: str = Purpose.OPERATOR  # of ipuscope.profiler.enums.Purpose
    tensor: int = -1  # that it moves; -1: none, or several
    code: int = -1  # the first step of its IPU that runs the same code, maybe itself; -1: itself


@dataclass(slots=True)
class MovedTensor:
    """A tensor that a step moves over the edge of a chip (since format 3).

    From an IPU of the replica to another, or to itself: between the replicas.
    """

    table: ClassVar[str] = "moved_tensors"

    step: int
    tensor: int
    name: str
    source: int  # IPU; -1: the host, or streaming memory
    target: int  # likewise
    bytes: int


@dataclass(slots=True)
class ComputeSet:
    """A compute set: what the tiles run between two syncs."""

    table: ClassVar[str] = "compute_set_info"

    id: int
    name: str
    ipu: int
    op: int
    flops: int


@dataclass(slots=True)
class VertexType:
    """A type of vertex, with its bytes of code and of state per instance."""

    table: ClassVar[str] = "vertex_types"

    id: int
    name: str
    code_bytes: int  # on each tile that has one (an estimate)
    state_bytes: int  # of each instance, without its fields (category vertexFieldData)


@dataclass(slots=True)
class VertexUse:
    """How many vertices of a type a compute set has on each tile."""

    table: ClassVar[str] = "vertices"

    compute_set: int
    vertex_type: int
    count: Vector  # over tiles


@dataclass(slots=True)
class Variable:
    """Something that lies in tile memory of one IPU, and when.

    Live at the steps ``start <= position < stop`` of its IPU; an always-live one has 0 and the
    number of steps. Nothing about liveness is stored but this.
    """

    table: ClassVar[str] = "variables"

    id: int
    name: str
    ipu: int
    category: str  # of CATEGORIES
    role: str  # of ipuscope.profiler.enums.Role
    op: int  # that makes it; -1: none
    block: int
    stage: int
    dtype: str
    shape: str  # JSON list; "" where it has none
    bytes: int  # sum over tiles
    tile_bytes: Vector  # over tiles
    interleaved: int  # 1: must lie in region 1
    always_live: int
    start: int
    stop: int
    tensor: int = (
        -1
    )  # of the model, that it holds all of or stashes; the same on all IPUs; -1: none
    parameter: int = -1  # tensor of the weight whose state, accumulator or gradient it is; -1: none
    step: int = -1  # whose code or vertex state it is; -1: none, or many


@dataclass(slots=True)
class Use:
    """An operator reads or writes a variable."""

    table: ClassVar[str] = "op_variables"
    key: ClassVar[str] = "op, variable"

    op: int
    variable: int


@dataclass(slots=True)
class Body:
    """A piece of program that runs as one on one IPU.

    Forward of a stage, a copy, the weight update...

    ``starts`` are relative to the body's start; the last step lasts until the end of the task it
    runs in.
    """

    table: ClassVar[str] = "bodies"

    id: int
    name: str  # "stage 0 forward"
    ipu: int
    stage: int  # -1: none
    # "task" (its steps say the kinds), or one of KINDS, or BESIDE, where it is all one thing
    kind: str
    direction: str  # of ipuscope.profiler.enums.Direction, or ""
    cycles: int
    steps: Vector  # step ids as they run: those of a loop several times
    starts: Vector  # cycles
    task: str  # of ipuscope.profiler.enums.BodyTask


@dataclass(slots=True)
class Trace:
    """The execution of one call, stored by repetition.

    One device iteration as tasks, and how often it recurs.

    The six columns have an entry per task. A task is a Body running on its IPU from start to end
    (cycles, relative to the device iteration). Idle time is stored as tasks too: no gaps, no
    overlaps on an IPU, but for bodies of kind `BESIDE`, which lie on top, one after the other.
    """

    table: ClassVar[str] = "traces"

    id: int
    iterations: int
    iteration_cycles: int
    task_start: Vector
    task_end: Vector
    task_body: Vector
    task_ipu: Vector
    task_micro_batch: Vector  # -1: none
    task_pipeline_cycle: Vector


@dataclass(slots=True)
class PipelineCycle:
    """One pipeline cycle of a device iteration; for sharded execution, one micro-batch."""

    table: ClassVar[str] = "pipeline_cycles"

    trace: int
    position: int
    phase: str  # of PHASES
    start: int
    end: int
    slowest_ipu: int  # the one the others wait for


@dataclass(slots=True)
class Run:
    """One call of the executor that was profiled."""

    table: ClassVar[str] = "runs"

    id: int
    name: str
    trace: int
    cycle_start: int  # on the clock shared by all runs
    host_start_us: int
    host_end_us: int


@dataclass(slots=True)
class HostEvent:
    """Something that the host did, as the program said by ``libpvti`` (since format 3)."""

    table: ClassVar[str] = "host_events"

    id: int
    parent: int  # the event that it is in; -1: none
    process: int
    thread: int
    channel: str
    label: str
    start_us: int
    end_us: int  # as start_us: it took no time


@dataclass(slots=True)
class HostValue:
    """A number of the host's at a time, of a graph of ``libpvti`` (since format 3)."""

    table: ClassVar[str] = "host_values"

    id: int
    process: int
    graph: str
    series: str
    unit: str
    time_us: int
    value: float


# -- the same again for plain SQL: what vectors hold, as rows (see
# `ipuscope.profiler.file.sql_rows`) --


@dataclass(slots=True)
class TileRun:
    """Neighbouring tiles that have the same number of bytes of a variable.

    Tiles with none are left out.
    """

    table: ClassVar[str] = "tile_runs"
    key: ClassVar[str] = "vector, first_tile"

    vector: int  # variables.tile_bytes
    first_tile: int
    last_tile: int
    bytes: int  # on each of them


@dataclass(slots=True)
class StepActivity:
    """What the tiles do in a program step."""

    table: ClassVar[str] = "step_activity"
    key: ClassVar[str] = "step"

    step: int
    active_tiles: int
    first_cycles: int  # until the first active tile has finished
    last_cycles: int  # until the last one has
    tile_balance: float  # mean work over most work, all tiles
    active_tile_balance: float  # the same over the active ones
    bytes_in: int  # sum over tiles
    bytes_out: int


@dataclass(slots=True)
class BodyStep:
    """A step of a Body."""

    table: ClassVar[str] = "body_steps"
    key: ClassVar[str] = "body, position"

    body: int
    position: int
    step: int
    start: int  # cycles, relative to the body's start
    stop: int  # -1: the last one, which lasts until the end of the task


@dataclass(slots=True)
class Task:
    """A Body running in a device iteration of a trace.

    Waiting is time of an external sync, as it is on the machine: of the next one, where the IPU
    waits for it, or of one that is nothing else.
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
PLAIN = (TileRun, StepActivity, BodyStep, Task, Iteration, TileMemory)  # derived from the others
TABLES = (*STORED, *PLAIN)
