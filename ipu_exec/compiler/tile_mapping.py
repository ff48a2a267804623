"""On which tiles every storage lies, stage by stage, and how many bytes of it each tile has.

A plan says where its operands and results lie; whoever comes first decides. What nobody decides
lies linearly, a copy on another stage as its original, accumulators and optimiser state as their
weight.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ipu_exec.compiler.bodies import Use
from ipu_exec.compiler.locations import Places, Shard
from ipu_exec.compiler.placement import Placement
from ipu_exec.graph import Graph, OpNode
from ipu_exec.lowering.layouts import linear
from ipu_exec.lowering.plan import ITEM_BYTES, Layout, Plan
from ipu_exec.machine import Machine
from profiler.enums import Role


class TileMapping:
    """Filled while operators are lowered."""

    def __init__(
        self, graph: Graph, placement: Placement, machines: list[Machine], replicas: int
    ) -> None:
        self.graph, self.placement, self.machines, self.replicas = (
            graph,
            placement,
            machines,
            replicas,
        )
        self.machine = machines[0]  # all IPUs have as many tiles that compute and as many for I/O
        self.layouts: dict[tuple[int, int], Layout] = {}  # (storage, stage)
        self.parts: dict[
            tuple[int, int], Layout
        ] = {}  # (weight, stage): a replica's part, always there
        self.moving: dict[
            int, bool
        ] = {}  # what phases move, and whether it comes anew for each part of a step
        self.places = Places()
        self.makers: dict[int, int] = {}  # storage -> op that makes it first
        for op in graph.ops:
            for output in op.outputs:
                if output is not None:
                    self.makers.setdefault(graph.values[output].storage, op.id)
        self._source: dict[tuple[int, int], int] = {}  # (storage, stage) -> stage it comes from
        for transfer in placement.transfers:
            step = 1 if transfer.target > transfer.source else -1
            for stage in range(transfer.source + step, transfer.target + step, step):
                self._source[transfer.storage, stage] = transfer.source

    def storage(self, value: int) -> int:
        """The storage that a value is a view of."""
        return self.graph.values[value].storage

    def layout(self, storage_id: int, stage: int) -> Layout | None:
        """Where a storage lies on a stage; None for a weight that waits for its first use."""
        known = self.layouts.get((storage_id, stage))
        if known is not None:
            return known
        storage = self.graph.storages[storage_id]
        source = self._source.get((storage_id, stage))
        if source is not None and (storage_id, source) in self.layouts:
            self.layouts[storage_id, stage] = self.layouts[storage_id, source]
        elif storage.parameter >= 0:
            owner = self.graph.storages[storage.parameter]
            like = self.layouts.get((storage.parameter, stage))
            if like is not None and owner.elements == storage.elements:
                per_element = like.bytes // ITEM_BYTES[owner.dtype]
                self.layouts[storage_id, stage] = Layout(
                    like.key, per_element * ITEM_BYTES[storage.dtype]
                )
            else:
                self.layouts[storage_id, stage] = self.linear(storage_id)
        elif storage.role not in (Role.WEIGHT, Role.BUFFER):
            self.layouts[storage_id, stage] = self.linear(storage_id)
        return self.layouts.get((storage_id, stage))

    def linear(self, storage_id: int) -> Layout:
        """Where it lies if nobody asks for anything else."""
        storage = self.graph.storages[storage_id]
        return linear(storage.elements, ITEM_BYTES[storage.dtype], self.machine.tiles).layout(
            storage.dtype
        )

    def settle(self, op: OpNode, plan: Plan, stage: int) -> None:
        """Operands and results lie where the plan has them, unless somebody decided before."""
        operands = [self.storage(v) for v in op.inputs]
        for index, layout in plan.input_layouts:
            self.layouts.setdefault((operands[index], stage), layout)
        self._settle_linear(operands, stage)
        for output, planned in zip(op.outputs, plan.output_layouts, strict=False):
            if output is not None and planned is not None:
                self.layouts.setdefault((self.storage(output), stage), planned)
        self._settle_linear([self.storage(v) for v in op.outputs if v is not None], stage)

    def _settle_linear(self, storages: Iterable[int], stage: int) -> None:
        for storage in storages:
            if (storage, stage) not in self.layouts:
                self.layouts[storage, stage] = self.linear(storage)

    def bytes(self, storages: Iterable[int], stage: int) -> np.ndarray:
        """Of storages together, on each tile of the IPU; nothing where nobody placed one."""
        total = np.zeros(self.machine.target.tiles, np.int64)
        for storage in storages:
            layout = self.layout(storage, stage)
            if layout is not None:
                total = total + self.machine.whole(layout.bytes)
        return total

    # -- tensors that are not whole on the chip ---

    def shard(self, weight: int, stage: int) -> Shard:
        """How a weight is cut for replicas that keep, or update, a part of it each."""
        whole = self.layout(weight, stage) or self.linear(weight)
        self.layouts.setdefault((weight, stage), whole)
        return Shard.of(self.graph.storages[weight], whole, self.replicas)

    def part(self, weight: int, stage: int) -> Layout:
        """What this replica keeps of a weight that is kept in parts."""
        return self.shard(weight, stage).layout(self.graph.storages[weight].dtype)

    def use_of_part(self, shard: Shard, storage_id: int, first: int, last: int) -> Use:
        """This replica's part of something that has the size of a weight, from step to step."""
        storage = self.graph.storages[storage_id]
        nbytes = self.machine.whole(shard.layout(storage.dtype).bytes)
        return Use(f"{storage.name}/part", Role.TEMPORARY, nbytes, first, last)

    def is_parted_weight(self, storage: int) -> bool:
        """Whether it is a weight of which each replica keeps a part."""
        return storage in self.places.split and self.graph.storages[storage].role == Role.WEIGHT

    def stored(self, storage: int, stage: int) -> np.ndarray:
        """Bytes on each tile of what this replica keeps of a storage."""
        if self.is_parted_weight(storage):
            return self.machine.whole(self.part(storage, stage).bytes)
        return self.machine.whole((self.layout(storage, stage) or self.linear(storage)).bytes)

    def away(self) -> set[int]:
        """Storages that come before they are used and go after they were changed."""
        return self.places.remote | self.moving.keys()

    def not_always_whole(self) -> dict[int, bool]:
        """Storages that are not whole on the chip all the time, and whether they come anew for each
        part of a step.
        """
        parted = {s for s in self.places.split if self.is_parted_weight(s)}
        return {**self.moving, **dict.fromkeys(self.places.remote | parted, True)}

    def reduced_late(self, gradient: int) -> bool:
        """Whether it is reduced weight by weight in the update: an accumulator that only then is on
        the chip.
        """
        waits = gradient in self.places.remote and not self.placement.phases
        return (
            waits
            and self.graph.storages[gradient].role == Role.ACCUMULATOR
            and gradient not in self.places.split
        )
