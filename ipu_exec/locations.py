"""Where tensors lie: whole on the chip, in streaming memory, or a part of each on every replica.

What becomes of a tensor is read off PopART's ``streamingmemoryopinserter.cpp``: a location holds for a kind of tensor,
tensors under a number of elements are left alone, activations are never sharded, and nothing is without replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ipu_exec.graph import OpNode, Storage
from ipu_exec.lowering.elementwise import BINARY, COPY, FILL, TERNARY, UNARY
from ipu_exec.lowering.plan import ITEM_BYTES, Layout

_KINDS = {"weight": "weight", "optimiser state": "state", "accumulator": "accumulator", "activation": "activation"}
_ELEMENTWISE = frozenset((*UNARY, *BINARY, *TERNARY, *FILL, *COPY))
_NORMS = frozenset(("linalg_vector_norm", "norm", "sum", "mean"))


@dataclass(frozen=True, slots=True)
class Location:
    """Of one kind of tensor. The least elements are PopART's defaults (``sessionoptions.hpp``)."""

    off_chip: bool = False
    sharded: bool = False
    least_off_chip: int = 2
    least_sharded: int = 8192


@dataclass(frozen=True, slots=True)
class Locations:
    """Of all kinds. ``replicas``: how many share a tensor that is sharded."""

    weight: Location = field(default_factory=Location)
    state: Location = field(default_factory=Location)
    accumulator: Location = field(default_factory=Location)
    activation: Location = field(default_factory=Location)
    replicas: int = 1

    def _of(self, storage: Storage) -> Location | None:
        kind = _KINDS.get(storage.role)
        found: Location | None = getattr(self, kind) if kind else None
        return found

    def off_chip(self, storage: Storage) -> bool:
        """Whether it waits in streaming memory while nothing uses it."""
        location = self._of(storage)
        return location is not None and location.off_chip and storage.elements >= location.least_off_chip

    def sharded(self, storage: Storage) -> bool:
        """Whether each replica keeps its part of it only."""
        location = self._of(storage)
        if location is None or storage.role == "activation" or self.replicas == 1:
            return False
        return location.sharded and storage.elements >= location.least_sharded

    def moves(self, storage: Storage) -> bool:
        """Whether it is not whole on the chip all the time."""
        return self.off_chip(storage) or self.sharded(storage)


@dataclass(frozen=True, slots=True)
class Shard:
    """A replica's part of a weight, and of what has its size: 1/R of the elements of every tile, rounded up.

    So lies what GCL's CollectiveBalancedReorder gives each replica: every tile keeps work, no element leaves its tile.
    """

    weight: int  # storage
    whole: Layout
    elements: np.ndarray  # over tiles
    key: tuple[object, ...]

    @classmethod
    def of(cls, weight: Storage, whole: Layout, replicas: int) -> Shard:
        held = whole.bytes // ITEM_BYTES[weight.dtype]
        return cls(weight.id, whole, -(-held // replicas), ("shard", 0, replicas, whole.key))

    @property
    def size(self) -> int:
        """Elements over all tiles."""
        return int(self.elements.sum())

    def layout(self, dtype: str) -> Layout:
        return Layout(self.key, self.elements * ITEM_BYTES[dtype])


def runs_on_parts(op: OpNode) -> bool:
    """Whether an operator that reads tensors of one size can do so part by part: it is elementwise, or it makes one
    number of all elements, which replicas then reduce."""
    name = op.aten.split(".")[1]
    dimensions = any(isinstance(item, tuple) for item in (*op.args, *dict(op.kwargs).values()))
    return name in _ELEMENTWISE or name.removesuffix("_") in _ELEMENTWISE or (name in _NORMS and not dimensions)
