"""The arguments and results of lowering: the interface between operators and the machine model.

``lower(spec, machine) -> Plan`` (see `ipu_exec.lowering`). A lowering is a pure function of an
`OpSpec` and a `Machine`, so equal operators share one plan. All vectors are int64, one entry per
tile of one IPU: bytes, or tile cycles (the six workers' round-robin already counted).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

ITEM_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float64": 4,  # the IPU has no 64-bit arithmetic: PopTorch narrows to 32 bits
    "int64": 4,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a storage on tiles: of equal keys, equal elements are on the same tile."""

    key: Hashable
    bytes: np.ndarray = field(compare=False, repr=False)  # over tiles


@dataclass(unsafe_hash=True, slots=True)  # nobody changes one; to freeze it takes twice the time
class Operand:
    """A tensor as an operator sees it: a strided view of a storage that lies on tiles."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    offset: int = 0
    storage_elements: int = 0
    # None: nobody placed it yet (a weight before its first use, an output), and the lowering
    # chooses, through `Plan.input_layouts` and `Plan.output_layouts`
    layout: Layout | None = None
    role: str = "activation"  # of ipuscope.profiler.file.records.RoleWord
    again: bool = False  # the same tensor as an earlier argument of the call

    @property
    def elements(self) -> int:
        """The number of the operand's elements."""
        return prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return self.elements * self.item_bytes

    def lies_with(self, other: Operand) -> bool:
        """Whether equal indices of both share a tile: an elementwise operator exchanges nothing."""
        return (
            self.layout is not None
            and other.layout is not None
            and self.layout.key == other.layout.key
            and (self.shape, self.strides, self.offset)
            == (other.shape, other.strides, other.offset)
        )


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operator call, hashable: tensor arguments are Operands, all others plain values."""

    name: str  # "aten.addmm.default"
    args: tuple[Any, ...]  # nested tuples for tensor lists
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[Operand | None, ...]  # layout None unless an output shares an input's storage

    @property
    def output(self) -> Operand:
        """The first output, which somebody must use."""
        first = self.outputs[0]
        assert first is not None
        return first

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Tensor arguments in order, lists flattened; ``Plan.input_layouts`` counts by this."""
        return tuple(_operands_in((self.args, self.kwargs)))


def _operands_in(argument: Any) -> Iterator[Operand]:
    if isinstance(argument, Operand):
        yield argument
    elif isinstance(argument, tuple):
        for item in argument:
            yield from _operands_in(item)


@dataclass(frozen=True, slots=True)
class Vertices:
    """``count[tile]`` vertices of one type in a compute set."""

    type: str  # "poplin::ConvPartial1x1Out<float,float>"
    count: np.ndarray


@dataclass(frozen=True, slots=True)
class Compute:
    """A compute set. It lasts as long as its slowest tile."""

    name: str
    cycles: np.ndarray  # over tiles; 0 where nothing runs
    vertices: tuple[Vertices, ...]
    flops: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange between the tiles of one IPU, of `ipu_exec.machine.exchange_cycles` cycles."""

    name: str
    bytes_in: np.ndarray
    bytes_out: np.ndarray
    fragments: np.ndarray  # contiguous pieces received
    shared_bus: bool = False  # both tiles of each pair take the same data: twice the rate


@dataclass(frozen=True, slots=True)
class Collective:
    """An exchange between the IPUs that share a stage's tensors, after a sync of these."""

    name: str
    bytes_in: np.ndarray  # of one IPU over its tiles, like `bytes_out`
    bytes_out: np.ndarray
    cycles: int  # by where the IPUs lie (`ipuscope.profiler.timeline.links`)


Step = Compute | Exchange | Collective


@dataclass(frozen=True, slots=True)
class Temporary:
    """Memory an operator needs while it runs, from step ``first`` to step ``last`` inclusive."""

    name: str
    bytes: np.ndarray
    first: int
    last: int
    interleaved: bool = False  # must lie in region 1
    becomes_result: bool = False  # a result is the same memory, from the last step on


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Plan:
    """The plan of one operator: its steps in order, its temporaries and its results' layouts."""

    steps: tuple[Step, ...]
    temporaries: tuple[Temporary, ...] = ()
    output_layouts: tuple[
        Layout | None, ...
    ] = ()  # None: the output is a view of an input, or there is none
    input_layouts: tuple[
        tuple[int, Layout], ...
    ] = ()  # (operand index, wish) for operands nobody placed
    constants: np.ndarray | None = None  # worklists and such, always live, bytes over tiles
    # (operand index, last step that reads it), of operands not read until the plan's last step
    last_reads: tuple[tuple[int, int], ...] = ()
    note: str = ""  # how it was split, in words
    estimated: bool = False

    @property
    def flops(self) -> int:
        """Floating-point operations of all its steps."""
        return sum(step.flops for step in self.steps if isinstance(step, Compute))

    @property
    def nbytes(self) -> int:
        """Bytes of its vectors over tiles, each once."""
        each: dict[int, np.ndarray] = {}
        with_vectors(self, lambda vector: each.setdefault(id(vector), vector))
        return sum(vector.nbytes for vector in each.values())


def with_vectors(part: Any, of: Callable[[np.ndarray], np.ndarray]) -> Any:
    """A part of a plan, or a plan, with ``of(vector)`` for each vector over tiles in it."""
    if isinstance(part, np.ndarray):
        return of(part)
    if isinstance(part, tuple) and part:
        return tuple([with_vectors(one, of) for one in part])
    if isinstance(part, (Plan, Compute, Exchange, Collective, Vertices, Temporary, Layout)):
        return type(part)(*[with_vectors(getattr(part, one), of) for one in part.__match_args__])
    return part
