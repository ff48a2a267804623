"""The program: for each IPU the bodies it runs, each a list of bulk-synchronous steps over its
tiles.

A body is what the schedule places in time: forward or backward of a stage, the weight update,
streams from and to the host, copies between IPUs, a sync. Within an IPU the bodies have an order,
and with it every step a *position*: liveness is a matter of positions
(docs/pipeline-schedules.md#memory-of-a-stage).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ipu_exec.compiler.bodies import (
    Body,
    ProgramOptions,
    ProgramTree,
    StepDraft,
    Use,
    drafts,
    one_step,
    slice_step,
    step_name,
    widened,
)
from ipu_exec.compiler.collectives import Collectives
from ipu_exec.compiler.locations import Shard, by_weight, locate
from ipu_exec.compiler.phases import Traffic, moves
from ipu_exec.compiler.placement import Placement
from ipu_exec.compiler.reads import read_values
from ipu_exec.compiler.recompute import (
    Recomputation,
    after_last_checkpoint,
    kept,
    last_touch,
    made_by,
    run_again,
    sequence,
)
from ipu_exec.compiler.tile_mapping import TileMapping
from ipu_exec.compiler.transfers import Transfers
from ipu_exec.errors import LoweringError
from ipu_exec.graph import Graph, OpNode, ValueRef
from ipu_exec.lowering import generic, info, lower
from ipu_exec.lowering.plan import ITEM_BYTES, Operand, OpSpec, Plan
from ipu_exec.machine import EXTERNAL_SYNC_CYCLES, Machine
from profiler import records, schedules
from profiler.enums import Direction, Purpose, Role

_PERSISTENT = (Role.WEIGHT, Role.BUFFER, Role.ACCUMULATOR, Role.OPTIMISER_STATE)
_STASHED = (Role.ACTIVATION, Role.INPUT, Role.GRADIENT)
_KEPT = (Role.WEIGHT, Role.OPTIMISER_STATE)  # what a weight update changes


def build(
    graph: Graph, placement: Placement, machines: list[Machine], options: ProgramOptions
) -> ProgramTree:
    """Lower every op where it was placed and gather the bodies. ``machines`` has one per IPU.

    Raises LoweringError with the op's source line where an operator has no lowering.
    """
    return _Builder(graph, placement, machines, options).build()


class _Builder:
    def __init__(
        self, graph: Graph, placement: Placement, machines: list[Machine], options: ProgramOptions
    ) -> None:
        self.graph, self.placement, self.machines, self.options = (
            graph,
            placement,
            machines,
            options,
        )
        self.mapping = TileMapping(graph, placement, machines, options.replicas)
        self.transfers = Transfers(self.mapping, options)
        self.collectives = Collectives(self.mapping, options)
        self.op_plans: dict[int, Plan] = {}
        self.op_cycles: dict[int, int] = {}
        self.stages = range(len(placement.stages))
        self.traffic: dict[tuple[str, int], Traffic] = {}
        self.there: dict[
            tuple[str, int], set[int]
        ] = {}  # direction and stage -> what was brought to the chip for it
        self.loads: dict[tuple[int, int], int] = {}
        self.stores: dict[tuple[int, int], int] = {}
        self.kept: set[int] = set()  # storages that are not made again
        self.near_loss: set[int] = set()  # those that the loss reaches without passing one of them
        self.wide: dict[
            int, tuple[Plan, Plan]
        ] = {}  # by id: a plan, and the same with vectors over all tiles

    def build(self) -> ProgramTree:
        ops: dict[tuple[str, int], list[OpNode]] = {}
        for op, stage in zip(self.graph.ops, self.placement.op_stage, strict=True):
            if not self.graph.only_aliases(op):
                ops.setdefault((op.direction, stage), []).append(op)
        if self.placement.phases:
            found = moves(self.graph, self.placement, ops, self.options.phases)
            self.traffic, self.mapping.moving = found.traffic, found.moving
        forward = [
            op
            for op in self.graph.ops
            if op.direction == Direction.FORWARD and not self.graph.only_aliases(op)
        ]
        self.kept = kept(self.graph, forward, self.options.recompute)
        self.near_loss = after_last_checkpoint(self.graph, forward, self.kept)
        stashed: dict[int, list[int]] = {}
        again: dict[int, list[OpNode]] = {}
        for stage in self.stages:
            stashed[stage], again[stage] = self._kept_and_recomputed(ops, stage)
        self.mapping.places = locate(
            self.graph, self.placement, ops, again, self.options.locations, self.options.groupings
        )

        forwards, backwards, updates = [], [], []
        for stage in self.stages:
            body = self._body(f"stage {stage} forward", stage, schedules.FORWARD)
            self._compute(
                ops.get((Direction.FORWARD, stage), []),
                Direction.FORWARD,
                stage,
                body,
                stashed[stage],
            )
            forwards.append(body)
        for stage in reversed(self.stages):
            if not self.graph.training:
                break
            backwards += self._backward(
                stage, ops.get((Direction.BACKWARD, stage), []), again[stage], stashed[stage]
            )
        for ipu in range(self.placement.num_ipus):
            body = Body(f"IPU {ipu} weight update", ipu, -1, schedules.UPDATE)
            for stage in self.stages:
                if self.placement.ipus[stage] == ipu:
                    self._update(ops.get((Direction.UPDATE, stage), []), stage, body)
            if body.steps:
                updates.append(body)
        streams_in, streams_out = self.transfers.streams(forwards)
        copies = [self.transfers.copies(ipu) for ipu in range(self.placement.num_ipus)]
        reduces = [self.collectives.reduce(ipu) for ipu in range(self.placement.num_ipus)]
        syncs = [
            one_step(
                f"IPU {ipu} external sync",
                ipu,
                schedules.SYNC,
                records.SYNC,
                "External",
                EXTERNAL_SYNC_CYCLES,
                Purpose.EXTERNAL_SYNC,
            )
            for ipu in range(self.placement.num_ipus)
            if self.placement.num_ipus > 1 and not self.placement.phases
        ]
        order = [
            *streams_in,
            *forwards,
            *backwards,
            *syncs,
            *streams_out,
            *copies,
            *reduces,
            *updates,
        ]
        bodies = [body for body in order if body is not None and body.steps]
        recomputed = {
            stage: {s for op in mine for s in made_by(self.graph, op)}
            for stage, mine in again.items()
        }
        return ProgramTree(
            bodies,
            self.mapping.layouts,
            stashed,
            recomputed,
            self.op_plans,
            self.op_cycles,
            moving=self.mapping.not_always_whole(),
            parts=self.mapping.parts,
            turning=self._turning(),
            loads=self.loads,
            stores=self.stores,
            buffers=self.transfers.buffers,
            beside=frozenset(self.transfers.beside),
        )

    # -- operators ---

    def _turning(self) -> frozenset[int]:
        phases = self.placement.phases
        return frozenset(
            k
            for k in self.stages
            if phases and phases[k] == phases[-1] and not self.options.phases.separate
        )

    def _compute(
        self, ops: list[OpNode], direction: str, stage: int, body: Body, stashed: Sequence[int] = ()
    ) -> None:
        """The operators of a stage; in phased execution between what it loads and receives, and
        what it stores.

        A tensor goes into its stash as soon as it is there, so that nothing holds it twice for
        longer than it must.
        """
        traffic = self.traffic.get((direction, stage))
        if traffic is None:
            ready: dict[int, list[int]] = {}
            for storage, index in last_touch(self.graph, ops, stashed).items():
                ready.setdefault(index, []).append(storage)
            for index, op in enumerate(ops):
                self._run(op, direction, stage, body)
                for storage in ready.get(index, ()):
                    self._stash(storage, stage, body, Purpose.STASH)
            return
        aside = self._body(body.name, stage, body.task)
        for op in ops:  # first of all, to know where everything lies
            self._append(op, self._plan(op, stage, aside), aside)
        self.transfers.remote(
            traffic.load, f"stage {stage} {direction}/load", stage, body, Purpose.REMOTE_LOAD
        )
        self.loads[body.task, stage] = body.cycles
        for storage in self._gathered(ops, direction, stage):
            self._bring(storage, stage, body)
        self.transfers.receive(traffic.receive, stage, body)
        for op in ops:
            self._append(op, self.op_plans[op.id], body)
        before = body.cycles
        self.transfers.remote(
            traffic.store, f"stage {stage} {direction}/store", stage, body, Purpose.REMOTE_STORE
        )
        self.stores[body.task, stage] = body.cycles - before

    def _gathered(self, ops: list[OpNode], direction: str, stage: int) -> list[int]:
        """Weights that a phase reads and of which replicas keep parts; where the backward turns
        they are there.
        """
        if direction == Direction.BACKWARD and stage in self._turning():
            return []
        read = dict.fromkeys(self.mapping.storage(v) for op in ops for v in read_values(op))
        return [s for s in read if self.mapping.is_parted_weight(s)]

    def _backward(
        self, stage: int, ops: list[OpNode], again: list[OpNode], stashed: list[int]
    ) -> list[Body]:
        """The backward of a stage, cut where it turns from running forward operators again to its
        own and back.

        It begins with what runs again, and a stashed tensor comes back right before its first use
        (PopART gives a restore the least priority there is).
        """
        if self.placement.phases:
            body = self._body(f"stage {stage} backward", stage, schedules.BACKWARD)
            self._compute(ops, Direction.BACKWARD, stage, body)
            return [body]
        away = set(stashed)
        order = list(sequence(self.graph, again, ops, self._stays(stage)))
        first = next((i for i, (_, is_again) in enumerate(order) if is_again), 0)
        turn = next(
            (i for i, (_, is_again) in enumerate(order[first:], first) if not is_again), first
        )
        order = [*order[first:turn], *order[:first], *order[turn:]]
        bodies: list[Body] = []
        for op, is_again in order:
            task = schedules.RECOMPUTE if is_again else schedules.BACKWARD
            if not bodies or bodies[-1].task != task:
                number = 1 + sum(body.task == task for body in bodies)
                name = f"stage {stage} {schedules.TASKS[task]}" + (
                    f" {number}" if number > 1 else ""
                )
                bodies.append(self._body(name, stage, task))
            body = bodies[-1]
            back = [
                s
                for s in dict.fromkeys(self.mapping.storage(v) for v in read_values(op))
                if s in away
            ]
            for storage in back:
                self._stash(storage, stage, body, Purpose.RESTORE)
            away.difference_update(back)
            self._run(
                op, Direction.BACKWARD, stage, body, self.op_plans[op.id] if is_again else None
            )
        return bodies

    def _machine(self, op: OpNode, ipu: int) -> Machine:
        """The IPU as the operator is planned for it: with what the model asks for that one."""
        machine, asked = self.machines[ipu], op.asked
        return replace(
            machine,
            proportion=asked.proportion or machine.proportion,
            partials=asked.partials or machine.partials,
            dithering=info(op.aten).convolution
            and (machine.dithering if asked.dithering is None else asked.dithering),
        )

    def _plan(self, op: OpNode, stage: int, body: Body, shard: Shard | None = None) -> Plan:
        """Lower an operator, and say where its operands lie. ``shard``: on a replica's part of the
        weight.
        """
        machine = self._machine(op, body.ipu)
        spec = self._spec(op, stage, shard)
        try:
            plan = lower(spec, machine)
        except LoweringError as error:
            where = f"{op.file}:{op.line}" if op.file else ""
            if self.options.estimate:
                plan = generic(spec, machine)  # the profile marks its steps as estimated
            else:
                raise LoweringError(
                    f"{error.message} (in module {op.module or 'the model'!r})", location=where
                ) from None
        self.mapping.settle(op, plan, stage)
        return self._widened(plan, machine)

    def _widened(self, plan: Plan, machine: Machine) -> Plan:
        """The plan over all tiles: a lowering knows only those that compute."""
        if not machine.io_tiles:
            return plan
        if id(plan) not in self.wide:
            self.wide[id(plan)] = plan, widened(plan, machine)
        return self.wide[id(plan)][1]

    def _append(self, op: OpNode, plan: Plan, body: Body) -> None:
        machine = self.machines[body.ipu]
        at = []
        begin = len(body.steps)
        for part, step in enumerate(plan.steps):
            body.steps += [
                replace(draft, op=op.id, name=step_name(op.name, draft.name), plan=plan, part=part)
                for draft in drafts(step, machine.target.name)
            ]
            at.append(len(body.steps) - 1)
        self.op_plans[op.id] = plan
        self.op_cycles[op.id] = sum(step.cycles for step in body.steps[begin:])
        if not at:
            return
        first, last = at[0], at[-1]
        for value in read_values(op):
            body.touch(self.mapping.storage(value), first, last)
        for output in op.outputs:
            if output is not None:
                body.touch(self.mapping.storage(output), last, last)
        for temporary in plan.temporaries:
            body.temporaries.append(
                Use(
                    step_name(op.name, temporary.name),
                    Role.TEMPORARY,
                    temporary.bytes,
                    at[temporary.first],
                    at[temporary.last],
                    op.id,
                    interleaved=temporary.interleaved,
                )
            )

    def _spec(self, op: OpNode, stage: int, shard: Shard | None = None) -> OpSpec:
        def concrete(item: Any) -> Any:
            if isinstance(item, ValueRef):
                return self._operand(item.id, stage, shard)
            return tuple(concrete(element) for element in item) if isinstance(item, tuple) else item

        read = {self.mapping.storage(v) for v in op.inputs}
        outputs = tuple(
            (
                None
                if v is None
                else self._operand(v, stage, shard, placed=self.mapping.storage(v) in read)
            )
            for v in op.outputs
        )
        named = tuple((key, concrete(value)) for key, value in op.kwargs)
        return OpSpec(op.aten, tuple(concrete(a) for a in op.args), named, outputs)

    def _operand(
        self, value_id: int, stage: int, shard: Shard | None = None, placed: bool = True
    ) -> Operand:
        value = self.graph.values[value_id]
        storage = self.graph.storages[value.storage]
        # a plan asks only whether something stays: a layer that is run again in the backward is the
        # same operators
        role = storage.role if storage.role in _PERSISTENT else Role.ACTIVATION
        if shard is not None and prod(value.shape) == self.graph.storages[shard.weight].elements:
            layout = shard.layout(value.dtype) if placed else None
            return Operand((shard.size,), value.dtype, (1,), 0, shard.size, layout, role)
        layout = self.mapping.layout(value.storage, stage) if placed else None
        return Operand(
            value.shape, value.dtype, value.strides, value.offset, storage.elements, layout, role
        )

    def _run(
        self, op: OpNode, direction: str, stage: int, body: Body, plan: Plan | None = None
    ) -> None:
        """An operator of forward or backward, between what it needs brought to the chip and what
        has to leave it again.

        A tensor comes before its first use, once for the forward and once for recomputation and
        backward together (PopART's streaming contexts), and what was changed leaves after the last
        change. A gradient that goes into an accumulator that replicas share is scattered over them
        first.
        """
        accumulators = [
            s for v in op.writes if (s := self.mapping.storage(v)) in self.mapping.places.split
        ]
        shard = (
            self.mapping.shard(self.graph.storages[accumulators[0]].parameter, stage)
            if accumulators
            else None
        )
        if shard is not None:
            self.mapping.layouts[accumulators[0], stage] = shard.layout(
                self.graph.storages[accumulators[0]].dtype
            )
        plan = plan or self._plan(op, stage, body, shard)
        there = self.there.setdefault((direction, stage), set())
        begin = len(body.steps)
        for storage in dict.fromkeys(
            s for v in read_values(op) if (s := self.mapping.storage(v)) not in there
        ):
            self._bring(storage, stage, body)
            there.add(storage)
        first = len(body.steps)
        gradients = [
            s
            for v in op.inputs
            if shard is not None and (s := self.mapping.storage(v)) not in self.mapping.places.split
        ]
        for gradient in gradients:
            self.collectives.exchange(
                Purpose.REDUCE_SCATTER,
                {gradient: stage},
                body,
                f"{self.graph.storages[gradient].name}/",
            )
        self._append(op, plan, body)
        if shard is not None:
            body.temporaries += [
                self.mapping.use_of_part(shard, gradient, first, len(body.steps) - 1)
                for gradient in gradients
            ]
        for storage in {
            self.mapping.storage(v) for v in (*op.outputs, *op.writes) if v is not None
        } & self.mapping.places.remote:
            there.add(storage)
            if op.id == self.mapping.places.last_change.get((direction, stage), {}).get(storage):
                self.transfers.remote(
                    [storage],
                    f"{self.graph.storages[storage].name}/store",
                    stage,
                    body,
                    Purpose.REMOTE_STORE,
                )
        _belong(body.steps[begin:], op)

    def _bring(self, storage: int, stage: int, body: Body) -> None:
        """From streaming memory, from the other replicas, or both."""
        name = self.graph.storages[storage].name
        if storage in self.mapping.places.remote:
            self.transfers.remote([storage], f"{name}/load", stage, body, Purpose.REMOTE_LOAD)
        if self.mapping.is_parted_weight(storage):
            if storage not in self.mapping.places.remote and storage not in self.mapping.moving:
                self.mapping.parts[storage, stage] = self.mapping.part(storage, stage)
            self.collectives.exchange(Purpose.ALL_GATHER, {storage: stage}, body, f"{name}/")

    # -- stash ---

    def _kept_and_recomputed(
        self, ops: dict[tuple[str, int], list[OpNode]], stage: int
    ) -> tuple[list[int], list[OpNode]]:
        """What a stage stashes between forward and backward, and the forward ops it runs again
        before the backward.

        Without recomputation: whatever the backward reads of the forward. With it: what enters the
        stage and is kept, and the ops that make the rest from those. Where the backward follows at
        once (the last stage, no pipeline) nothing is stashed
        (docs/pipeline-schedules.md#memory-of-a-stage).
        """
        if not self.graph.training or self.placement.phases:
            return [], []
        forward, backward = (
            ops.get((Direction.FORWARD, stage), []),
            ops.get((Direction.BACKWARD, stage), []),
        )
        made_here = {s for op in forward for s in made_by(self.graph, op)}
        stays = made_here if self.options.recompute is Recomputation.NONE else self._stays(stage)
        again, needed = run_again(self.graph, forward, backward, stays)
        if not self._waits(stage):
            return [], again
        order: dict[int, None] = {}
        for op in forward:
            for value in (*op.inputs, *op.outputs):
                if (
                    value is not None
                    and self.graph.storages[self.mapping.storage(value)].role in _STASHED
                ):
                    order[self.mapping.storage(value)] = None
        return [s for s in order if s in needed and (s in stays or s not in made_here)], again

    def _waits(self, stage: int) -> bool:
        """Whether other micro-batches come between a stage's forward and its backward."""
        return self.placement.pipelined and stage != len(self.placement.stages) - 1

    def _stays(self, stage: int) -> set[int]:
        """What recomputation leaves where it is."""
        return self.kept if self._waits(stage) else self.kept | self.near_loss

    def _stash(self, storage: int, stage: int, body: Body, purpose: Purpose) -> None:
        """Copy a tensor into its slot of the stash, or back out of it: a dynamic update or slice on
        every tile.
        """
        stored = self.graph.storages[storage]
        count = self.mapping.bytes([storage], stage) // ITEM_BYTES[stored.dtype]
        name, maker = f"{stored.name}/{purpose}", self.mapping.makers.get(storage, -1)
        body.steps.append(slice_step(name, count, stored.dtype, purpose, storage, maker))
        body.touch(storage, len(body.steps) - 1, len(body.steps) - 1)

    # -- weight update ---

    def _update(self, ops: list[OpNode], stage: int, body: Body) -> None:
        """Optimiser ops of a stage, weight by weight; what is kept in streaming memory comes and
        goes around them.

        A weight that is updated in parts (replicated tensor sharding): the gradient was scattered
        over the replicas, each updates its part, and tensors that it keeps whole are gathered from
        all, behind the last update.
        """
        states: dict[int, list[int]] = {}
        for storage in self.graph.storages.values():
            if (
                storage.role == Role.OPTIMISER_STATE
                and self.placement.home.get(storage.id) == stage
            ):
                states.setdefault(storage.parameter, []).append(storage.id)
        gather: dict[int, Use] = {}
        for weight, mine in by_weight(self.graph, ops).items():
            shard = (
                self.mapping.shard(weight, stage)
                if weight in self.mapping.places.updated_in_parts
                else None
            )
            if shard is not None:
                for state in states.get(weight, []):
                    if state in self.mapping.places.split:
                        self.mapping.layouts[state, stage] = shard.layout(
                            self.graph.storages[state].dtype
                        )
            used = dict.fromkeys(
                s
                for op in mine
                for v in op.inputs
                if (s := self.mapping.storage(v)) in self.mapping.away()
            )
            moved = [
                *(
                    s
                    for s in states.get(weight, [])
                    if s in self.mapping.places.remote and s not in used
                ),
                *used,
            ]
            first = len(body.steps)
            if moved:
                owner = self.graph.storages[moved[0]]
                owner = self.graph.storages[owner.parameter] if owner.parameter >= 0 else owner
                only_states = set(moved) <= set(states.get(weight, []))
                name = f"{owner.name}/{'optimiser state' if only_states else 'state'}"
                self.transfers.remote(moved, f"{name}/load", stage, body, Purpose.REMOTE_LOAD)
            for gradient in used:
                if self.mapping.reduced_late(gradient):
                    self.collectives.exchange(
                        Purpose.ALL_REDUCE if shard is None else Purpose.REDUCE_SCATTER,
                        {gradient: stage},
                        body,
                    )
            if shard is not None:
                gather |= self._in_parts(shard, mine, stage, body)
            else:
                for op in mine:
                    self._append(op, self._plan(op, stage, body), body)
            if moved:
                self.transfers.remote(moved, f"{name}/store", stage, body, Purpose.REMOTE_STORE)
            if not set(moved) <= set(
                states.get(weight, [])
            ):  # state alone is priced by itself (`profiler.rebalance`)
                _belong(body.steps[first:], mine[0])
            if shard is not None and weight in self.mapping.places.split:
                if weight in body.touched:
                    del body.touched[
                        weight
                    ]  # the whole of it is on the chip in forward and backward only
                if weight in self.mapping.away():
                    body.temporaries.append(
                        self.mapping.use_of_part(shard, weight, first, len(body.steps) - 1)
                    )
        self.collectives.exchange(Purpose.ALL_GATHER, dict.fromkeys(gather, stage), body)
        for part in gather.values():
            part.last = len(body.steps) - 1
            body.temporaries.append(part)
        for of_weight in states.values():
            for state in of_weight:
                self.mapping.layout(state, stage)

    def _in_parts(self, shard: Shard, ops: list[OpNode], stage: int, body: Body) -> dict[int, Use]:
        """Run a weight's ops on this replica's part. Gives its parts of what is kept whole and
        changed, to be gathered.

        Of what it keeps whole it takes its part first: a dynamic slice on every tile, whose slot is
        the replica's number. A number made of all elements (a norm of LAMB) is all-reduced.
        """
        elements = self.graph.storages[shard.weight].elements
        mine = [op for op in ops if not self._clears(op)]
        changed = {self.mapping.storage(v) for op in mine for v in op.writes}
        first = len(body.steps)
        gather: dict[int, Use] = {}
        for storage in dict.fromkeys(self.mapping.storage(v) for op in mine for v in op.inputs):
            role = self.graph.storages[storage].role
            if (
                self.graph.storages[storage].elements != elements
                or storage in self.mapping.places.split
            ):
                continue
            if role in _KEPT:
                self._slice(shard, storage, body)
                gather[storage] = self.mapping.use_of_part(shard, storage, first, first)
            elif role in (
                Role.ACCUMULATOR,
                Role.GRADIENT,
            ):  # its part came of the scatter, mostly that of all gradients
                since = first if self.mapping.reduced_late(storage) else 0
                gather[storage] = self.mapping.use_of_part(shard, storage, since, since)
        for op in ops:
            self._append(op, self._plan(op, stage, body, shard if op in mine else None), body)
            made = [
                v
                for v in op.outputs
                if v is not None and prod(self.graph.values[v].shape) != elements
            ]
            _belong(body.steps[first:], op)
            if (
                made
                and op in mine
                and any(prod(self.graph.values[v].shape) == elements for v in op.inputs)
            ):
                self.collectives.exchange(
                    Purpose.ALL_REDUCE,
                    {self.mapping.storage(v): stage for v in made},
                    body,
                    f"{op.name}/",
                )
        for storage in [
            s for s in gather if s not in changed or self.graph.storages[s].role not in _KEPT
        ]:
            part = gather.pop(storage)
            part.last = len(body.steps) - 1
            body.temporaries.append(part)
        return gather

    def _clears(self, op: OpNode) -> bool:
        """Whether an op empties an accumulator that a replica keeps whole: that is no part of the
        update.
        """
        written = {self.mapping.storage(v) for v in op.writes}
        return op.aten.startswith("aten.zero_") and not written & self.mapping.places.split

    def _slice(self, shard: Shard, storage_id: int, body: Body) -> None:
        storage = self.graph.storages[storage_id]
        elements = self.machines[body.ipu].whole(shard.elements)
        body.steps.append(
            slice_step(f"{storage.name}/part", elements, storage.dtype, Purpose.SHARD, storage_id)
        )

    def _body(self, name: str, stage: int, task: int) -> Body:
        return Body(name, self.placement.ipus[stage], stage, task)


def _belong(steps: list[StepDraft], op: OpNode) -> None:
    """What moves for an operator is its own: a Block's cycles count it."""
    for step in steps:
        if step.op < 0:
            step.op = op.id
