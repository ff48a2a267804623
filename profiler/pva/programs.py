"""Programs, compute sets, vertices, and the visitor (docs/libpva.md#programs)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ipuscope.profiler.file import records
from ipuscope.profiler.pva.enums import ProgramType
from ipuscope.profiler.pva.lists import LazyList, Shown, plain
from ipuscope.profiler.pva.model import Model

if TYPE_CHECKING:
    from ipuscope.profiler.pva.variables import LoweredVariable


@plain
class VertexType(Shown):
    """A type of vertex; ``size``: the bytes of state of an instance."""

    name: str
    size: int


class VertexInstances(Shown):
    """The vertices of one type in a compute set."""

    __slots__ = ("_count", "_ipu", "_model", "type")
    _shown = ("type", "count")

    def __init__(self, model: Model, ipu: int, type: VertexType, count: int) -> None:
        self._model, self._ipu, self._count = model, ipu, count
        self.type = type

    @property
    def count(self) -> int:
        """Number of instances on all tiles."""
        return int(self._model.report.file.vector(self._count).sum())

    @property
    def countByTile(self) -> list[int]:
        """Number of instances on each tile of the device."""
        return self._model.over_device({self._ipu: self._model.report.file.vector(self._count)})


class ComputeSet(Shown):
    """Vertices that run at the same time.

    Two are equal if they are the same compute set of the same profile; programs with the same code
    share theirs, under the name of the first.
    """

    __slots__ = ("_model", "_step", "id")
    _shown = ("id", "name")

    def __init__(self, model: Model, step: int) -> None:
        self.id = int(model.steps["compute_set"][step])
        self._model, self._step = model, model.step_of_compute_set[self.id]

    @property
    def name(self) -> str:
        """The name of the compute set."""
        return self._model.program_names[int(self._model.steps["node"][self._step])]

    @property
    def estimatedCyclesByTile(self) -> list[int]:
        """Cycles on each tile of the device."""
        return self._model.cycles_on_device(self._step)

    @property
    def cyclesByTile(self) -> list[int]:
        """Executed cycles on each tile of the device; the model executes what it estimates."""
        return self.estimatedCyclesByTile

    @property
    def vertices(self) -> list[VertexInstances]:
        """Its vertices, one entry per type."""
        ipu = int(self._model.steps["ipu"][self._step])
        return [
            VertexInstances(self._model, ipu, VertexType(name, state), count)
            for name, state, count in self._model.vertices.get(self.id, [])
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComputeSet) and self._model is other._model and self.id == other.id

    def __hash__(self) -> int:
        return hash((id(self._model), self.id))


class Program(Shown):
    """A node of the program tree; a sync is a plain `Program`.

    Programs are equal, and have the same id, if they are the same node, or steps that run the same
    code: outlined code is in memory once. Each keeps its own name.
    """

    Type: ClassVar[type[ProgramType]] = ProgramType
    __slots__ = ("_at", "_model")
    _shown = ("_id", "type", "name")

    def __init__(self, model: Model, at: int) -> None:
        self._model, self._at = model, at

    @property
    def _id(self) -> int:
        return int(self._model.tree["id"][self._model.code_node[self._at]])

    @property
    def type(self) -> ProgramType:
        """The kind of program."""
        name = str(self._model.tree["type"][self._at])
        return ProgramType.__members__.get(name, ProgramType.Unknown)

    @property
    def name(self) -> str:
        """Module path and action; a sync is "Internal" (one chip's tiles) or "External"."""
        return self._model.program_names[self._at]

    @property
    def repeat(self) -> int:
        """How often the children of a Repeat run; otherwise 1."""
        return int(self._model.tree["repeat"][self._at])

    @property
    def children(self) -> list[Program]:
        """Programs inside it, in order."""
        return [make_program(self._model, at) for at in self._model.children.get(self._at, [])]

    @property
    def vars(self) -> LazyList[LoweredVariable]:
        """Variables that its operator uses and that are live at this program, one per tile."""
        from ipuscope.profiler.pva.variables import lowered

        step = self._step
        return lowered(self._model, [] if step is None else self._model.variables_of_step(step))

    @property
    def controlCodeByTile(self) -> list[int]:
        """Estimated bytes of control code on each tile of the device, including that of children.

        A profile has one total of control code per IPU; a program's share is by number of steps.
        """
        return self._model.over_device(self._model.control_code(self._at))

    def accept(self, visitor: ProgramVisitor) -> None:
        """Call the visitor's method for this type of program. Children are not visited."""
        getattr(visitor, f"visit{self.type.name}", lambda program: None)(self)

    @property
    def _step(self) -> int | None:
        return self._model.step_of_node.get(self._at)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Program)
            and self._model is other._model
            and self._model.code_node[self._at] == self._model.code_node[other._at]
        )

    def __hash__(self) -> int:
        return hash((id(self._model), int(self._model.code_node[self._at])))


class _StepProgram(Program):
    """A program that is itself a step."""

    @property
    def _own_step(self) -> int:
        return self._model.step_of_node[self._at]

    @property
    def estimatedCyclesByTile(self) -> list[int]:
        """Cycles on each tile of the device."""
        return self._model.cycles_on_device(self._own_step)


class OnTileExecuteProgram(_StepProgram):
    """Runs a compute set."""

    @property
    def computeset(self) -> ComputeSet:
        """The compute set that it runs."""
        return ComputeSet(self._model, self._own_step)

    computeSet = computeset  # the newer spelling


class DoExchangeProgram(_StepProgram):
    """Moves data between the tiles of a chip."""

    @property
    def codeBytesByTile(self) -> list[int]:
        """Bytes of its code on each tile of the device; equal exchanges share code."""
        model, step = self._model, self._own_step
        ipu = int(model.steps["ipu"][step])
        first = model.step_of_node[int(model.code_node[self._at])]
        row = model.code_of_exchange.get(first)
        return model.over_device({} if row is None else {ipu: model.vector_of(row)})


class GlobalExchangeProgram(_StepProgram):
    """Moves data between chips."""


class StreamCopyBeginProgram(_StepProgram):
    """Begins a copy from or to the host."""


class StreamCopyMidProgram(_StepProgram):
    """Copies from or to the host."""


class StreamCopyEndProgram(_StepProgram):
    """Ends a copy from or to the host."""


class SequenceProgram(Program):
    """Runs its children one after the other."""


class RepeatProgram(Program):
    """Runs its children several times."""


_CLASSES: dict[str, type[Program]] = {
    records.ON_TILE_EXECUTE: OnTileExecuteProgram,
    records.DO_EXCHANGE: DoExchangeProgram,
    records.GLOBAL_EXCHANGE: GlobalExchangeProgram,
    records.STREAM_COPY_BEGIN: StreamCopyBeginProgram,
    records.STREAM_COPY_MID: StreamCopyMidProgram,
    records.STREAM_COPY_END: StreamCopyEndProgram,
    records.SEQUENCE: SequenceProgram,
    records.REPEAT: RepeatProgram,
}


def make_program(model: Model, at: int) -> Program:
    """The program at an index of ``model.tree``; a plain `Program` if its step is missing."""
    kind = _CLASSES.get(str(model.tree["type"][at]), Program)
    return (
        Program(model, at)
        if issubclass(kind, _StepProgram) and at not in model.step_of_node
        else kind(model, at)
    )


class ProgramVisitor:
    """Base class of visitors: override methods and pass the visitor to `Program.accept`."""

    def visitUnknown(self, program: Any) -> None:
        """Called for programs of a type that no other method is named after; does nothing here."""

    visitOnTileExecute = visitDoExchange = visitGlobalExchange = visitUnknown
    visitStreamCopyBegin = visitStreamCopyMid = visitStreamCopyEnd = visitUnknown
    visitSync = visitSyncAns = visitSans = visitUnknown
    visitRepeat = visitSequence = visitOnEveryTileSwitch = visitUnknown
    visitCall = visitCopy = visitCopySharedStructure = visitUnknown
    visitExecute = visitUnknown
