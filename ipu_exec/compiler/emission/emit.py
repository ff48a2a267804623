"""Emission: for each IPU the bodies it runs, each a list of bulk-synchronous steps over its tiles.

A body is the unit that the schedule places in time: a stage's forward or backward, the weight
update, streams from and to the host, copies between IPUs, or a sync. The order of an IPU's bodies
gives every step a *position*; liveness is defined over positions
(docs/pipeline-schedules.md#memory-of-a-stage).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod

import numpy as np

from ipu_exec.compiler.emission.bodies import ProgramTree, Use, external_sync, slice_step
from ipu_exec.compiler.emission.body_builder import BodyBuilder, OperatorSteps
from ipu_exec.compiler.emission.collectives import Collectives
from ipu_exec.compiler.emission.transfers import Transfers
from ipu_exec.compiler.emission.update_exchanges import wait_for_senders
from ipu_exec.compiler.emission.weight_update import WeightUpdates
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.compiler.placement.phases import Traffic
from ipu_exec.compiler.placement.reads import read_values
from ipu_exec.compiler.placement.recompute import last_touch, sequence
from ipu_exec.compiler.tile_mapping import TileMapping
from ipu_exec.graph import OpNode
from ipu_exec.lowering.plan import ITEM_BYTES, Layout
from ipuscope.profiler.enums import Direction, Purpose, Role
from ipuscope.profiler.timeline import schedule_types


def emit(mapping: TileMapping, options: CompileOptions) -> ProgramTree:
    """Run the pass: all bodies of one replica."""
    return _Emitter(mapping, options).emit()


class _Emitter:
    def __init__(self, mapping: TileMapping, options: CompileOptions) -> None:
        self.mapping, self.residency = mapping, mapping.residency
        self.graph, self.placement = mapping.graph, mapping.placement
        self.transfers = Transfers(mapping, options)
        self.collectives = Collectives(mapping, options)
        self.operators = OperatorSteps(mapping)
        self.weight_updates = WeightUpdates(
            mapping, self.operators, self.transfers, self.collectives
        )
        self.parallel = options.strategy.parallel_phases
        self.stages = range(len(self.placement.stages))
        self.ipus = range(self.placement.num_ipus)
        # direction and stage -> what was brought to the chip for it
        self.there: dict[tuple[str, int], set[int]] = {}
        self.parts: dict[tuple[int, int], Layout] = {}
        self.loads: dict[tuple[int, int], int] = {}
        self.stores: dict[tuple[int, int], int] = {}

    def emit(self) -> ProgramTree:
        forwards = [self._forward(stage) for stage in self.stages]
        backwards: list[BodyBuilder] = []
        for stage in reversed(self.stages) if self.graph.training else ():
            backwards += self._backward(stage)
        phased = PipelinedPhases(self.mapping, self.transfers) if self.in_phases else None
        if phased is not None:
            phased.hold_for_receivers([*forwards, *backwards])
        updates = [self._update(ipu) for ipu in self.ipus]
        wait_for_senders(updates)
        streams_in, streams_out = self.transfers.streams(forwards)
        copies = [self.transfers.copies(ipu) for ipu in self.ipus]
        reduces = [self.collectives.reduce(ipu) for ipu in self.ipus]
        if phased is not None:
            forwards = list(self._with_ends(phased, forwards))
            backwards = list(self._with_ends(phased, backwards))
        residency, beside = self.residency, self.transfers.over_io_tiles.bodies.values()
        before = [*streams_in, *beside, *forwards, *backwards, *self._syncs()]
        order = [*before, *streams_out, *copies, *reduces, *updates]
        return ProgramTree(
            tuple(body.build() for body in order if body is not None and body.steps),
            self.mapping.layouts,
            residency.stashed,
            residency.recomputed(self.graph),
            self.mapping.plans,
            self.operators.cycles,
            residency.not_always_whole(),
            self.parts,
            residency.turning,
            self.loads,
            self.stores,
            (*self.transfers.buffers, *self.transfers.over_io_tiles.buffers()),
            frozenset(self.transfers.beside),
            residency.across,
        )

    @property
    def in_phases(self) -> bool:
        """Whether each phase is a pipeline."""
        return self.placement.pipelined and bool(self.placement.phases)

    def _with_ends(
        self, phased: PipelinedPhases, bodies: Sequence[BodyBuilder]
    ) -> Iterator[BodyBuilder]:
        """The stages' bodies and the transfers made once for all micro-batches of a phase."""
        for position, body in enumerate(bodies):
            forward = body.task == schedule_types.FORWARD
            direction = Direction.FORWARD if forward else Direction.BACKWARD
            if position == 0 or bodies[position - 1].stage != body.stage:
                enter = phased.enter(direction, body.stage)
                again = () if forward else self.residency.again[body.stage]
                ops = [*again, *self._ops(direction, body.stage)]
                for storage in self._gathered(ops, direction, body.stage):
                    self._bring(storage, body.stage, enter)
                yield enter
            yield body
            if position + 1 == len(bodies) or bodies[position + 1].stage != body.stage:
                yield phased.leave(direction, body.stage)

    def _syncs(self) -> list[BodyBuilder]:
        """Add the syncs with the other IPUs at the end of a pipeline cycle."""
        if self.placement.num_ipus == 1 or (self.placement.phases and not self.in_phases):
            return []
        bodies = []
        for ipu in self.ipus:
            name = f"IPU {ipu} external sync"
            bodies.append(BodyBuilder(name, ipu, -1, schedule_types.SYNC, [external_sync("")]))
        return bodies

    def _body(self, name: str, stage: int, task: int) -> BodyBuilder:
        return BodyBuilder(name, self.placement.ipus[stage], stage, task)

    def _ops(self, direction: str, stage: int) -> Sequence[OpNode]:
        return self.residency.ops.get((direction, stage), ())

    # -- forward, backward, update ---

    def _forward(self, stage: int) -> BodyBuilder:
        """The forward of a stage: tensors are stashed at once, to exist twice only briefly."""
        body = self._body(f"stage {stage} forward", stage, schedule_types.FORWARD)
        traffic = self.residency.traffic.get((Direction.FORWARD, stage))
        if traffic is not None:
            self._phase(Direction.FORWARD, stage, body, traffic)
            return body
        ops, stashed = self._ops(Direction.FORWARD, stage), self.residency.stashed[stage]
        ready: dict[int, list[int]] = {}
        for storage, index in last_touch(self.graph, ops, stashed).items():
            ready.setdefault(index, []).append(storage)
        for index, op in enumerate(ops):
            self._run(op, Direction.FORWARD, stage, body)
            for storage in ready.get(index, ()):
                self._stash(storage, stage, body, Purpose.STASH)
        return body

    def _backward(self, stage: int) -> list[BodyBuilder]:
        """The bodies of a stage's backward, a new one where it turns to recomputation or back.

        A stashed tensor is restored right before its first use (PopART: lowest priority).
        """
        traffic = self.residency.traffic.get((Direction.BACKWARD, stage))
        if traffic is not None and self.in_phases:
            return self._backward_in_phase(stage, traffic)
        if traffic is not None:
            body = self._body(f"stage {stage} backward", stage, schedule_types.BACKWARD)
            self._phase(Direction.BACKWARD, stage, body, traffic)
            return [body]
        away = set(self.residency.stashed[stage])
        bodies: list[BodyBuilder] = []
        for op, is_again in self._backward_order(stage):
            self._turn_to(bodies, stage, is_again)
            for storage in dict.fromkeys(self.mapping.storage(v) for v in read_values(op)):
                if storage in away:
                    self._stash(storage, stage, bodies[-1], Purpose.RESTORE)
                    away.discard(storage)
            self._run(op, Direction.BACKWARD, stage, bodies[-1])
        return bodies

    def _turn_to(self, bodies: list[BodyBuilder], stage: int, is_again: bool) -> None:
        """Begin another body if the last one has another task."""
        task = schedule_types.RECOMPUTE if is_again else schedule_types.BACKWARD
        if bodies and bodies[-1].task == task:
            return
        number = 1 + sum(body.task == task for body in bodies)
        again = f" {number}" if number > 1 else ""
        bodies.append(self._body(f"stage {stage} {schedule_types.TASKS[task]}{again}", stage, task))

    def _backward_in_phase(self, stage: int, traffic: Traffic) -> list[BodyBuilder]:
        """One micro-batch's backward: restored tensors, recomputation, and results for others."""
        bodies: list[BodyBuilder] = []
        order = self._backward_order(stage)
        self._turn_to(bodies, stage, bool(order) and order[0][1])
        name, first = f"stage {stage} backward", bodies[0]
        self.transfers.remote(traffic.load, f"{name}/load", stage, first, Purpose.REMOTE_LOAD)
        self.transfers.receive(traffic.receive, stage, first)
        for op, is_again in order:
            self._turn_to(bodies, stage, is_again)
            self.operators.append(op, bodies[-1])
            self.collectives.share_statistics(op, stage, bodies[-1])
        last = bodies[-1]
        self.transfers.remote(traffic.store, f"{name}/store", stage, last, Purpose.REMOTE_STORE)
        return bodies

    def _backward_order(self, stage: int) -> list[tuple[OpNode, bool]]:
        """Its operators, each with whether it is recomputed."""
        again, stays = self.residency.again[stage], self.residency.stays[stage]
        return list(sequence(self.graph, again, self._ops(Direction.BACKWARD, stage), set(stays)))

    def _update(self, ipu: int) -> BodyBuilder:
        body = BodyBuilder(f"IPU {ipu} weight update", ipu, -1, schedule_types.UPDATE)
        here = self.placement.stages_on(ipu)
        for stage in here:
            self.weight_updates.ahead(stage, body)
        for stage in here:
            self.weight_updates.append(stage, body)
        return body

    def _phase(self, direction: str, stage: int, body: BodyBuilder, traffic: Traffic) -> None:
        """A stage's operators in phased execution, with loads and receives before, stores after."""
        name, ops = f"stage {stage} {direction}", self._ops(direction, stage)
        # accumulators are loaded right before use unless groups of IPUs alternate
        at_use = () if self.parallel else traffic.load
        late = {s for s in at_use if self.graph.storages[s].role == Role.ACCUMULATOR}
        first = [storage for storage in traffic.load if storage not in late]
        self.transfers.remote(first, f"{name}/load", stage, body, Purpose.REMOTE_LOAD)
        self.loads[body.task, stage] = body.cycles
        gathered = () if self.in_phases else self._gathered(ops, direction, stage)
        for storage in gathered:
            self._bring(storage, stage, body)
        self.transfers.receive(traffic.receive, stage, body)
        for op in ops:
            for storage in dict.fromkeys(self.mapping.storage(v) for v in op.inputs):
                if storage in late:
                    late.discard(storage)
                    load = f"{self.graph.storages[storage].name}/load"
                    self.transfers.remote([storage], load, stage, body, Purpose.REMOTE_LOAD)
            self.operators.append(op, body)
            self.collectives.share_statistics(op, stage, body)
        before = body.cycles
        self.transfers.remote(traffic.store, f"{name}/store", stage, body, Purpose.REMOTE_STORE)
        self.stores[body.task, stage] = body.cycles - before

    def _gathered(self, ops: Iterable[OpNode], direction: str, stage: int) -> list[int]:
        """Sharded weights that a phase reads; none if a backward follows its forward directly."""
        if direction == Direction.BACKWARD and stage in self.residency.turning:
            return []
        read = dict.fromkeys(self.mapping.storage(v) for op in ops for v in read_values(op))
        return [s for s in read if s in self.residency.parted_weights]

    # -- one operator ---

    def _run(self, op: OpNode, direction: str, stage: int, body: BodyBuilder) -> None:
        """Run an operator of forward or backward, with its transfers to and from the chip.

        A tensor is loaded before its first use, once for the forward and once for recomputation
        and backward together (PopART's streaming contexts), and stored after its last change.
        """
        begin = len(body.steps)
        there = self.there.setdefault((direction, stage), set())
        for storage in dict.fromkeys(self.mapping.storage(v) for v in read_values(op)):
            if storage not in there:
                self._bring(storage, stage, body)
                there.add(storage)
        if self.residency.places.shared_accumulator(self.graph, op) is None:
            self.operators.append(op, body)
            self.collectives.share_statistics(op, stage, body)
        else:
            self._accumulate(op, stage, body)
        self._store_changed(op, direction, stage, body)
        body.assign(begin, op.id)

    def _bring(self, storage: int, stage: int, body: BodyBuilder) -> None:
        """Bring storages from streaming memory, from the other replicas, or both."""
        name = self.graph.storages[storage].name
        remote = storage in self.residency.places.remote
        if remote:
            self.transfers.remote([storage], f"{name}/load", stage, body, Purpose.REMOTE_LOAD)
        if storage in self.residency.parted_weights:
            if not remote and storage not in self.residency.moving:
                self.parts[storage, stage] = self.mapping.part(storage, stage)
            self.collectives.exchange(Purpose.ALL_GATHER, {storage: stage}, body, f"{name}/")

    def _accumulate(self, op: OpNode, stage: int, body: BodyBuilder) -> None:
        """Reduce-scatter a gradient and add it to an accumulator sharded over replicas."""
        split = self.residency.places.split
        accumulator = self.residency.places.shared_accumulator(self.graph, op)
        assert accumulator is not None
        shard = self.mapping.shard(self.graph.storages[accumulator].parameter, stage)
        shard = shard.of_slice(prod(self.graph.values[op.writes[0]].shape))
        first = len(body.steps)
        gradients = [s for v in op.inputs if (s := self.mapping.storage(v)) not in split]
        for gradient in gradients:
            name = f"{self.graph.storages[gradient].name}/"
            self.collectives.exchange(Purpose.REDUCE_SCATTER, {gradient: stage}, body, name)
        self.operators.append(op, body)
        for gradient in gradients:
            body.hold(self.mapping.use_of_part(shard, gradient, first, body.last))

    def _store_changed(self, op: OpNode, direction: str, stage: int, body: BodyBuilder) -> None:
        """Store tensors to streaming memory after their last change."""
        places = self.residency.places
        changes = places.last_change.get((direction, stage), {})
        changed = {self.mapping.storage(v) for v in (*op.outputs, *op.writes) if v is not None}
        for storage in changed & places.remote:
            self.there[direction, stage].add(storage)
            if changes.get(storage) == op.id:
                name = f"{self.graph.storages[storage].name}/store"
                self.transfers.remote([storage], name, stage, body, Purpose.REMOTE_STORE)

    def _stash(self, storage: int, stage: int, body: BodyBuilder, purpose: Purpose) -> None:
        """Copy a tensor to or from its stash slot: a dynamic update or slice on every tile."""
        stored = self.graph.storages[storage]
        once, nbytes = self.mapping.once, self.mapping.bytes([storage], stage)
        count = once(np.floor_divide, nbytes, ITEM_BYTES[stored.dtype])
        name, maker = f"{stored.name}/{purpose}", self.mapping.makers.get(storage, -1)
        body.steps.append(slice_step(once, name, count, stored.dtype, purpose, storage, maker))
        body.touch([storage])


# -- The work of a pipelined phase's stages besides that of each micro-batch ---
# Weights and accumulators are loaded from streaming memory before the first micro-batch;
# accumulators are stored after the last. A result stays on its IPU until the next stage fetches it
# at its own micro-batch's beginning: one pipeline cycle later, or more if it skips stages.


_FETCH = 2  # steps in which the next stage fetches: a sync, and the exchange


class PipelinedPhases:
    """Makes the bodies that run once for all micro-batches of a phase."""

    def __init__(self, mapping: TileMapping, transfers: Transfers) -> None:
        self.mapping, self.placement = mapping, mapping.placement
        self.traffic, self.transfers = mapping.residency.traffic, transfers

    def enter(self, direction: str, stage: int) -> BodyBuilder:
        """Load the tensors that the phase needs before its first micro-batch."""
        task = schedule_types.ENTER if direction == Direction.FORWARD else schedule_types.RETURN
        body = self._body(f"stage {stage} enters {direction}", stage, task)
        storages = self.traffic[direction, stage].enter
        self.transfers.remote(storages, f"{body.name}/load", stage, body, Purpose.REMOTE_LOAD)
        return body

    def leave(self, direction: str, stage: int) -> BodyBuilder:
        """Store the tensors that leave after the last micro-batch."""
        body = self._body(f"stage {stage} leaves {direction}", stage, schedule_types.LEAVE)
        storages = self.traffic[direction, stage].leave
        self.transfers.remote(storages, f"{body.name}/store", stage, body, Purpose.REMOTE_STORE)
        return body

    def _body(self, name: str, stage: int, task: int) -> BodyBuilder:
        return BodyBuilder(name, self.placement.ipus[stage], stage, task)

    def hold_for_receivers(self, bodies: Sequence[BodyBuilder]) -> None:
        """Keep the results that other stages of the phase fetch until they do."""
        farthest: dict[tuple[str, int, int], int] = {}  # direction, stage, storage -> stages away
        phases = self.placement.phases
        for (direction, stage), traffic in self.traffic.items():
            for storage in traffic.receive:
                source = self._source(storage)
                fetched = source >= 0 and phases[source] == phases[stage]
                if fetched and storage not in traffic.load:
                    key = (direction, source, storage)
                    farthest[key] = max(farthest.get(key, 0), abs(stage - source))
        of_stage: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for (direction, source, storage), far in farthest.items():
            of_stage.setdefault((direction, source), []).append((storage, far))
        begun: set[tuple[str, int]] = set()
        for body in bodies:
            is_forward = body.task == schedule_types.FORWARD
            micro_batch = Direction.FORWARD if is_forward else Direction.BACKWARD, body.stage
            for storage, far in of_stage.get(micro_batch, ()):
                self._hold(storage, far, body, first=micro_batch not in begun)
            begun.add(micro_batch)

    def _source(self, storage: int) -> int:
        maker = self.mapping.makers.get(storage)
        return -1 if maker is None else self.placement.op_stage[maker]

    def _hold(self, storage: int, far: int, body: BodyBuilder, first: bool) -> None:
        """Hold a result in a micro-batch's ``first`` body until fetched, longer if far away."""
        nbytes = self.mapping.bytes([storage], body.stage)
        name = f"{self.mapping.graph.storages[storage].name}/waits for the next stage"
        if first:
            body.hold(Use(name, Role.TEMPORARY, nbytes, 0, min(_FETCH, len(body.steps)) - 1))
        if far > 1:
            body.hold(Use(name, Role.TEMPORARY, nbytes * np.int64(far - 1), 0, body.last))
