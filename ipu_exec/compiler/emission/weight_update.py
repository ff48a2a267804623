"""The steps of a weight update, weight by weight, with each weight's loads and stores.

For replicated tensor sharding the gradient was scattered over the replicas; each updates its
part, and whole tensors are gathered after the last update.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ipu_exec.compiler.emission.bodies import Use, slice_step
from ipu_exec.compiler.emission.body_builder import BodyBuilder, OperatorSteps
from ipu_exec.compiler.emission.collectives import Collectives
from ipu_exec.compiler.emission.transfers import Transfers
from ipu_exec.compiler.emission.update_exchanges import update_exchanges
from ipu_exec.compiler.placement.locations import Shard
from ipu_exec.compiler.placement.residency import WeightUpdate
from ipu_exec.compiler.tile_mapping import TileMapping
from ipu_exec.graph import OpNode
from ipuscope.profiler.enums import Purpose, Role

_CHANGED = (Role.WEIGHT, Role.OPTIMISER_STATE)  # roles of what a weight update changes
_REDUCED = (Role.ACCUMULATOR, Role.GRADIENT)


class WeightUpdates:
    """Appends the optimiser's operators to bodies."""

    def __init__(
        self,
        mapping: TileMapping,
        operators: OperatorSteps,
        transfers: Transfers,
        collectives: Collectives,
    ) -> None:
        self.mapping, self.graph, self.residency = mapping, mapping.graph, mapping.residency
        self.operators, self.transfers, self.collectives = operators, transfers, collectives
        self.exchanges = update_exchanges(self.graph, mapping.placement)

    def ahead(self, stage: int, body: BodyBuilder) -> None:
        """Append what runs before the updates of all of an IPU's weights."""
        for update in self.residency.updates[stage]:
            if update.ahead:
                self._update(update, stage, body)

    def append(self, stage: int, body: BodyBuilder) -> None:
        """Append a stage's updates, weight by weight."""
        gathered: dict[int, Use] = {}
        for update in self.residency.updates[stage]:
            if not update.ahead:
                gathered |= self._update(update, stage, body)
        self.collectives.exchange(Purpose.ALL_GATHER, dict.fromkeys(gathered, stage), body)
        for part in gathered.values():
            body.hold(replace(part, last=body.last))

    def _update(self, update: WeightUpdate, stage: int, body: BodyBuilder) -> dict[int, Use]:
        """Append one weight's update. Returns the parts to gather, with their uses, by storage."""
        shard = self.mapping.shard(update.weight, stage) if update.in_parts else None
        first = len(body.steps)
        name = self._name(update)
        if update.moved:
            self.transfers.remote(update.moved, f"{name}/load", stage, body, Purpose.REMOTE_LOAD)
        for gradient in update.read_away:
            if self.mapping.reduced_late(gradient):
                purpose = Purpose.ALL_REDUCE if shard is None else Purpose.REDUCE_SCATTER
                self.collectives.exchange(purpose, {gradient: stage}, body)
        gathered: dict[int, Use] = {}
        if shard is not None:
            gathered = self._in_parts(update, shard, stage, body)
        else:
            for op in update.ops:
                self._receive(op, stage, body)
                self.operators.append(op, body)
                self._reduce_over_shards(op, update.weight, body)
                self._send(op, stage, body)
        if update.moved:
            self.transfers.remote(update.moved, f"{name}/store", stage, body, Purpose.REMOTE_STORE)
        # state alone is priced by itself (`ipuscope.planner.rebalance`)
        if update.ahead or not update.moves_states_only:
            body.assign(first, update.ops[0].id)
        if shard is not None and update.weight in self.residency.places.split:
            self._leave_part(shard, body, first)
        return gathered

    def _name(self, update: WeightUpdate) -> str:
        """The name of the tensors moved, for their steps."""
        if not update.moved:
            return ""
        owner = self.graph.storages[update.moved[0]]
        owner = self.graph.storages[owner.parameter] if owner.parameter >= 0 else owner
        return f"{owner.name}/{'optimiser state' if update.moves_states_only else 'state'}"

    def _leave_part(self, shard: Shard, body: BodyBuilder, first: int) -> None:
        """Leave only the part: a sharded weight is whole just in forward and backward."""
        body.touched.pop(shard.weight, None)
        if shard.weight in self.residency.away:
            body.hold(self.mapping.use_of_part(shard, shard.weight, first, body.last))

    def _in_parts(
        self, update: WeightUpdate, shard: Shard, stage: int, body: BodyBuilder
    ) -> dict[int, Use]:
        """Run a weight's operators on this replica's part; returns parts to gather later.

        Those are of whole tensors that changed. The weight's own update holds its gradient's
        part.
        """
        first = len(body.steps)
        partial = [op for op in update.ops if op.id not in update.whole]
        parts = self._take_parts(partial, shard, body)
        for op in update.ops:
            self._receive(op, stage, body)
            self.operators.append(op, body)
            body.assign(first, op.id)
            if op.id not in update.whole:
                self._reduce_numbers(op, shard, stage, body)
            self._reduce_over_shards(op, update.weight, body)
            self._send(op, stage, body)
        if update.ahead:
            return {}
        changed = {self.mapping.storage(v) for op in partial for v in op.writes}
        gathered: dict[int, Use] = {}
        for storage, part in parts.items():
            if storage in changed and self.graph.storages[storage].role in _CHANGED:
                gathered[storage] = part
                continue
            body.hold(replace(part, last=body.last))
        return gathered

    def _receive(self, op: OpNode, stage: int, body: BodyBuilder) -> None:
        """Receive the results of other IPUs' updates that an operator reads."""
        moves = self.exchanges.received.get(op.id, ())
        self.transfers.between_updates(moves, op, stage, body)

    def _send(self, op: OpNode, stage: int, body: BodyBuilder) -> None:
        """Send the results that other IPUs' updates wait for, after their last writer."""
        self.transfers.between_updates(self.exchanges.sent.get(op.id, ()), op, stage, body)

    def _take_parts(self, ops: list[OpNode], shard: Shard, body: BodyBuilder) -> dict[int, Use]:
        """Slice this replica's parts out of whole tensors: dynamic slices at the replica's number.

        A gradient's part comes from a reduce-scatter, usually that of all gradients together.
        """
        first = len(body.steps)
        elements = self.graph.storages[shard.weight].elements
        parts: dict[int, Use] = {}
        for storage_id in dict.fromkeys(self.mapping.storage(v) for op in ops for v in op.inputs):
            storage = self.graph.storages[storage_id]
            if storage.elements != elements or storage_id in self.residency.places.split:
                continue
            if storage.role in _CHANGED:
                count, what = self.mapping.whole(shard.elements), Purpose.SHARD
                name = f"{storage.name}/part"
                step = slice_step(shard.once, name, count, storage.dtype, what, storage_id)
                body.steps.append(step)
                parts[storage_id] = self.mapping.use_of_part(shard, storage_id, first, first)
            elif storage.role in _REDUCED:
                since = first if self.mapping.reduced_late(storage_id) else 0
                parts[storage_id] = self.mapping.use_of_part(shard, storage_id, since, since)
        return parts

    def _reduce_over_shards(self, op: OpNode, weight: int, body: BodyBuilder) -> None:
        """All-reduce a number over all elements of a weight among the IPUs that share it."""
        if weight not in self.graph.shares:
            return
        elements = self.graph.storages[weight].elements

        def size(value: int) -> int:
            return prod(self.graph.values[value].shape)

        if not any(size(value) == elements for value in op.inputs):
            return
        for value in op.outputs:
            if value is not None and size(value) < elements:
                storage = self.mapping.storage(value)
                body.steps += self.transfers.between_shards(storage, op.id, op.name)
                body.touch([storage])

    def _reduce_numbers(self, op: OpNode, shard: Shard, stage: int, body: BodyBuilder) -> None:
        """All-reduce a number computed from all elements (a norm of LAMB) over the replicas."""
        elements = self.graph.storages[shard.weight].elements

        def of_weight(value: int) -> bool:
            return prod(self.graph.values[value].shape) == elements

        numbers = [v for v in op.outputs if v is not None and not of_weight(v)]
        if numbers and any(of_weight(value) for value in op.inputs):
            where = {self.mapping.storage(value): stage for value in numbers}
            self.collectives.exchange(Purpose.ALL_REDUCE, where, body, f"{op.name}/")
