"""The tile mapping of every storage by stage, as `ipu_exec.compiler.lower` decides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ipu_exec.base.once import Once
from ipu_exec.compiler.emission.bodies import Use
from ipu_exec.compiler.emission.host_streams import makers
from ipu_exec.compiler.placement.locations import Shard
from ipu_exec.compiler.placement.place import Placement
from ipu_exec.compiler.placement.residency import Residency
from ipu_exec.graph import Graph
from ipu_exec.lowering.layouts import whole_linear
from ipu_exec.lowering.plan import Layout, Plan
from ipu_exec.machine import Machine
from ipuscope.profiler.enums import Role


@dataclass(frozen=True)
class TileMapping:
    """The result of lowering: the plan of every operator and the layout of every storage.

    ``machines`` has one per IPU; all have equally many compute tiles, and equally many I/O tiles.
    """

    graph: Graph
    placement: Placement
    residency: Residency
    machines: tuple[Machine, ...]
    replicas: int
    plans: Mapping[int, Plan] = field(default_factory=dict)  # by operator, over all tiles
    layouts: Mapping[tuple[int, int], Layout] = field(default_factory=dict)  # (storage, stage)
    once: Once = field(default_factory=Once)

    @property
    def machine(self) -> Machine:
        """Any machine: the facts used here are the same on all."""
        return self.machines[0]

    @cached_property
    def makers(self) -> dict[int, int]:
        """The operator that creates each storage, by storage."""
        return makers(self.graph)

    def storage(self, value: int) -> int:
        """The storage that a value is a view of."""
        return self.graph.values[value].storage

    def layout(self, storage_id: int, stage: int) -> Layout | None:
        """The layout of a storage on a stage; None if nothing there uses it."""
        return self.layouts.get((storage_id, stage))

    def bytes(self, storages: Iterable[int], stage: int) -> np.ndarray:
        """Total bytes of storages on each tile of the IPU; storages without a layout count 0."""
        layouts = (self.layout(storage, stage) for storage in storages)
        return self.whole(*(layout.bytes for layout in layouts if layout is not None))

    def whole(self, *compute: np.ndarray) -> np.ndarray:
        """The sum of vectors over the compute tiles, over all tiles."""
        return self.once(_over_all, self.machine.target.tiles, *compute)

    def linear(self, storage_id: int) -> Layout:
        """A storage's default layout."""
        return linear_layout_of(self.graph, storage_id, self.machine)

    # -- tensors that are not whole on the chip ---

    def shard(self, weight: int, stage: int) -> Shard:
        """A replica's shard of a weight that is stored, or updated, in parts."""
        whole = self.layout(weight, stage) or self.linear(weight)
        return Shard.of(self.graph.storages[weight], whole, self.replicas, self.once)

    def part(self, weight: int, stage: int) -> Layout:
        """This replica's part of a sharded weight."""
        return self.shard(weight, stage).layout(self.graph.storages[weight].dtype)

    def use_of_part(self, shard: Shard, storage_id: int, first: int, last: int) -> Use:
        """The use, from step to step, of this replica's part of a tensor of a weight's size."""
        storage = self.graph.storages[storage_id]
        nbytes = self.whole(shard.layout(storage.dtype).bytes)
        return Use(f"{storage.name}/part", Role.TEMPORARY, nbytes, first, last)

    def stored(self, storage: int, stage: int) -> np.ndarray:
        """Bytes on each tile of the part of a storage that this replica stores."""
        if storage in self.residency.parted_weights:
            return self.whole(self.part(storage, stage).bytes)
        return self.whole((self.layout(storage, stage) or self.linear(storage)).bytes)

    def reduced_late(self, gradient: int) -> bool:
        """Whether a gradient, as an accumulator off the chip, is reduced in its weight's update."""
        places = self.residency.places
        waits = gradient in (self.residency.moving if self.placement.phases else places.remote)
        accumulates = self.graph.storages[gradient].role == Role.ACCUMULATOR
        return waits and accumulates and gradient not in places.split


def linear_layout_of(graph: Graph, storage_id: int, machine: Machine) -> Layout:
    """The layout of a storage spread evenly over the compute tiles."""
    storage = graph.storages[storage_id]
    return whole_linear(storage.elements, storage.dtype, machine.tiles)


def _over_all(tiles: int, *compute: np.ndarray) -> np.ndarray:
    if len(compute) == 1 and len(compute[0]) == tiles:
        return compute[0]
    total = np.zeros(tiles, np.int64)
    for nbytes in compute:
        total[: len(nbytes)] += nbytes
    return total
