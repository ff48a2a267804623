"""On which tiles every storage lies, stage by stage, and how many bytes of it each tile has.

The layouts are what `ipu_exec.compiler.lower` decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ipu_exec.compiler.bodies import Use
from ipu_exec.compiler.host_streams import makers
from ipu_exec.compiler.locations import Shard
from ipu_exec.compiler.placement import Placement
from ipu_exec.compiler.residency import Residency
from ipu_exec.graph import Graph
from ipu_exec.lowering.layouts import linear
from ipu_exec.lowering.plan import ITEM_BYTES, Layout, Plan
from ipu_exec.machine import Machine
from profiler.enums import Role


@dataclass(frozen=True)
class TileMapping:
    """What lowering gives: the plan of every operator, and where everything lies.

    ``machines`` has one per IPU; all have as many tiles that compute, and as many for I/O.
    """

    graph: Graph
    placement: Placement
    residency: Residency
    machines: tuple[Machine, ...]
    replicas: int
    plans: Mapping[int, Plan] = field(default_factory=dict)  # by operator, over all tiles
    layouts: Mapping[tuple[int, int], Layout] = field(default_factory=dict)  # (storage, stage)

    @property
    def machine(self) -> Machine:
        """Any: what is asked here is the same on all."""
        return self.machines[0]

    @cached_property
    def makers(self) -> dict[int, int]:
        """Storage -> operator that makes it first."""
        return makers(self.graph)

    def storage(self, value: int) -> int:
        """The storage that a value is a view of."""
        return self.graph.values[value].storage

    def layout(self, storage_id: int, stage: int) -> Layout | None:
        """Where a storage lies on a stage; None for what nothing there uses."""
        return self.layouts.get((storage_id, stage))

    def bytes(self, storages: Iterable[int], stage: int) -> np.ndarray:
        """Of storages together, on each tile of the IPU; nothing where nobody placed one."""
        total = np.zeros(self.machine.target.tiles, np.int64)
        for storage in storages:
            layout = self.layout(storage, stage)
            if layout is not None:
                total = total + self.machine.whole(layout.bytes)
        return total

    def linear(self, storage_id: int) -> Layout:
        """Where it lies if nobody asks for anything else."""
        return linear_layout_of(self.graph, storage_id, self.machine)

    # -- tensors that are not whole on the chip ---

    def shard(self, weight: int, stage: int) -> Shard:
        """How a weight is cut for replicas that keep, or update, a part of it each."""
        whole = self.layout(weight, stage) or self.linear(weight)
        return Shard.of(self.graph.storages[weight], whole, self.replicas)

    def part(self, weight: int, stage: int) -> Layout:
        """What this replica keeps of a weight that is kept in parts."""
        return self.shard(weight, stage).layout(self.graph.storages[weight].dtype)

    def use_of_part(self, shard: Shard, storage_id: int, first: int, last: int) -> Use:
        """This replica's part of something that has the size of a weight, from step to step."""
        storage = self.graph.storages[storage_id]
        nbytes = self.machine.whole(shard.layout(storage.dtype).bytes)
        return Use(f"{storage.name}/part", Role.TEMPORARY, nbytes, first, last)

    def stored(self, storage: int, stage: int) -> np.ndarray:
        """Bytes on each tile of what this replica keeps of a storage."""
        if storage in self.residency.parted_weights:
            return self.machine.whole(self.part(storage, stage).bytes)
        return self.machine.whole((self.layout(storage, stage) or self.linear(storage)).bytes)

    def reduced_late(self, gradient: int) -> bool:
        """Whether a gradient is reduced weight by weight, during the update.

        So is an accumulator that is on the chip only then.
        """
        places = self.residency.places
        waits = gradient in (self.residency.moving if self.placement.phases else places.remote)
        accumulates = self.graph.storages[gradient].role == Role.ACCUMULATOR
        return waits and accumulates and gradient not in places.split


def linear_layout_of(graph: Graph, storage_id: int, machine: Machine) -> Layout:
    """A storage spread evenly over the tiles that compute."""
    storage = graph.storages[storage_id]
    return linear(storage.elements, ITEM_BYTES[storage.dtype], machine.tiles).layout(storage.dtype)
