"""The captured step: the computation of a micro-batch and a weight update, before placement.

`ipu_exec.capture.step` creates it, later passes read it. Values are tensors (keyed by identity),
storages are memory: a view or an in-place result is a new value on an old storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ipuscope.profiler.enums import Direction, Role


@dataclass(slots=True)
class Storage:
    """A piece of memory. ``role`` is one of `ipuscope.profiler.enums.Role`."""

    id: int
    elements: int
    dtype: str
    role: Role
    name: str  # "layer.weight", "layer.weight/exp_avg", "layer/addmm:0"
    # the weight's storage, for gradients, accumulators and optimiser state
    parameter: int = -1

    @property
    def owner(self) -> int:
        """The storage of the weight that it belongs to, or itself."""
        return self.parameter if self.parameter >= 0 else self.id


@dataclass(slots=True)
class Value:
    """A strided view of a storage. ``producer``: index into ``Graph.ops``, -1 for a graph input."""

    id: int
    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str
    producer: int = -1


@dataclass(frozen=True, slots=True)
class ValueRef:
    """A placeholder for a tensor among an operator's arguments."""

    id: int


@dataclass(frozen=True, slots=True)
class OperatorAttributes:
    """The attributes that the model sets for one operator."""

    # of a tile's memory while it runs (set_available_memory, MultiConv); 0: the IPU's
    proportion: float = 0.0
    partials: str = ""  # dtype of partial sums (MultiConv); "": as set for all
    dithering: bool | None = None  # MultiConv; None: as set for all
    popart: tuple[tuple[str, str, str], ...] = ()  # (attribute, key, value) of `Attribute`
    serialised: bool = False  # cuts a product's operand (serializedMatMul)

    def __str__(self) -> str:
        """The text for the profile; "" if nothing is set."""
        settings = [
            f"available memory {self.proportion:g}" if self.proportion else "",
            f"{self.partials} partials" if self.partials else "",
            "" if self.dithering is None else f"dithering {'on' if self.dithering else 'off'}",
            *(f"{attribute} {key}: {value}" for attribute, key, value in self.popart),
        ]
        words = ", ".join(part for part in settings if part)
        return f"asked for {words}" if words else ""

    @property
    def outline(self) -> tuple[tuple[str, str, str], ...]:
        """Attributes that prevent operators from sharing their code."""
        popart = self.popart  # of most operators empty
        return popart and tuple(item for item in popart if item[0].endswith("__outline"))


@dataclass(slots=True)
class OpNode:
    """One ATen call.

    ``args``/``kwargs``: with tensors as ValueRef and lists as tuples. ``block``: index into
    ``Graph.blocks``, -1: before the first. ``forward_op``: whose gradient it is, -1: unknown.
    """

    id: int
    aten: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    writes: tuple[int, ...]  # values changed in place
    direction: Direction
    block: int
    module: str
    name: str
    file: str = ""
    line: int = 0
    forward_op: int = -1
    attributes: OperatorAttributes = OperatorAttributes()
    # the user's lines that lead to ``line``, outermost first, a line each; of no key of a cache
    callers: str = field(default="", repr=False, compare=False)


@dataclass(slots=True)
class BlockInfo:
    """A Block as the model opened it; ``user_id``: its name there, "" if that is ``name``.

    A Block that begins on several IPUs is one Block on each: "0", "0@IPU2".
    """

    id: int
    name: str
    ipu_id: int | None
    user_id: str = ""

    def __post_init__(self) -> None:
        self.user_id = self.user_id or self.name


@dataclass(slots=True)
class Graph:
    """One forward (and, in training, backward and optimiser step) of a model."""

    ops: list[OpNode] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)
    storages: dict[int, Storage] = field(default_factory=dict)
    blocks: list[BlockInfo] = field(default_factory=list)
    inputs: tuple[int, ...] = ()  # values streamed from the host, a micro-batch
    outputs: tuple[int, ...] = ()  # values streamed back
    loss: int = -1  # the value that the backward begins at
    # storage -> value of its OverlapMode
    overlapped_inputs: dict[int, str] = field(default_factory=dict)
    overlapped_outputs: dict[int, str] = field(default_factory=dict)
    # storages that recomputationCheckpoint names
    checkpoints: set[int] = field(default_factory=set)
    shares: set[int] = field(default_factory=set)  # weights of which this IPU has its share only
    training: bool = False
    mutates: bool = False  # it changes in place what its backward needs (`ipu_exec.capture.step`)
    # a product or norm has float16 beside float32 (`ipu_exec.capture.rewrites.casts`)
    promotes: bool = False
    names_ipu: bool = False  # its forward says device="ipu" (`ipu_exec.capture.recording.devices`)
    outside: int = -1  # the first forward op after a ``with Block``, in none

    def storage_of(self, value: int) -> Storage:
        """The storage that a value is a view of."""
        return self.storages[self.values[value].storage]

    def results(self, op: OpNode) -> list[int]:
        """The storages of an operator's outputs, without what it only writes to."""
        values, outputs = self.values, op.outputs
        if len(outputs) == 1 and outputs[0] is not None:  # of nearly all
            return [values[outputs[0]].storage]
        return [values[value].storage for value in outputs if value is not None]

    def only_aliases(self, op: OpNode) -> bool:
        """Whether a call is free: every output is in an input's storage and nothing is written.

        That is a view (`ipu_exec.lowering.is_view`), or an operator that returned its argument.
        """
        if op.writes or not op.inputs:
            return False
        return {self.values[v].storage for v in op.inputs}.issuperset(self.results(op))


def weight_of(storage: Storage, of_others: Mapping[int, int]) -> int:
    """The weight of what an update reads; ``of_others``: of what the update made before."""
    own = storage.owner if storage.role == Role.WEIGHT else storage.parameter
    return own if own >= 0 else of_others.get(storage.id, -1)
