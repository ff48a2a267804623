"""The program: for each IPU the bodies it runs, each a list of bulk-synchronous steps over its tiles.

A body is what the schedule places in time: forward or backward of a stage, the weight update, streams from and to
the host, copies between IPUs, a sync. Within an IPU the bodies have an order, and with it every step a *position*:
liveness is a matter of positions (facts/pipeline.md, 'Memory of a stage').
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, prod
from typing import Any

import numpy as np

from ipu_exec.enums import OverlapMode
from ipu_exec.errors import LoweringError
from ipu_exec.graph import Graph, OpNode, ValueRef
from ipu_exec.grouping import Groupings
from ipu_exec.locations import Locations, Places, Shard, by_weight, grouping_of, locate
from ipu_exec.lowering import generic, lower
from ipu_exec.lowering.build import messages
from ipu_exec.lowering.layouts import linear
from ipu_exec.lowering.plan import ITEM_BYTES, Compute, Exchange, Layout, Operand, OpSpec, Plan, Vertices
from ipu_exec.machine import (
    EXTERNAL_SYNC_CYCLES,
    HOST_LATENCY_SECONDS,
    STREAM_STEP_CYCLES,
    SYNC_CYCLES,
    TARGETS,
    Machine,
    exchange_tile_cycles,
    link_hops,
    link_latency_cycles,
    link_rate,
    ring_cycles,
)
from ipu_exec.phases import PhaseOptions, Traffic, moves
from ipu_exec.placement import Placement, storage_bytes
from ipu_exec.reads import read_values
from ipu_exec.recompute import (
    Recomputation,
    after_last_checkpoint,
    is_view,
    kept,
    last_touch,
    made_by,
    run_again,
    sequence,
)
from profiler import records, schedules

_PERSISTENT = ("weight", "buffer", "accumulator", "optimiser state")
_STASHED = ("activation", "input", "gradient")
BUFFERS = 2  # of an overlapped stream: one is filled (or emptied) while the other is used
BUFFERS_ACROSS = 3  # PopART keeps one more between device iterations (estimate: its guide says 'more memory')
_KEPT = ("weight", "optimiser state")  # what a weight update changes


@dataclass(slots=True)
class StepDraft:
    """One step of a body. Vectors over tiles are shared with the plan they come from."""

    type: str  # of records.PROGRAM_TYPES
    name: str
    cycles: int
    op: int = -1
    tile_cycles: np.ndarray | None = None
    bytes_in: np.ndarray | None = None
    bytes_out: np.ndarray | None = None
    fragments: np.ndarray | None = None
    vertices: tuple[Vertices, ...] = ()
    flops: int = 0
    plan: Plan | None = None
    part: int = -1  # which step of the plan; equal parts of equal plans share their code


@dataclass(slots=True)
class Use:
    """Something in tile memory while a body runs: from step ``first`` to step ``last`` of it, inclusive."""

    name: str
    role: str
    tile_bytes: np.ndarray
    first: int
    last: int
    op: int = -1
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    interleaved: bool = False
    storage: int = -1


@dataclass(slots=True)
class Body:
    """A piece of program that one IPU runs as a whole. ``task`` is one of `profiler.schedules.TASKS`."""

    name: str
    ipu: int
    stage: int  # -1: none
    task: int
    steps: list[StepDraft] = field(default_factory=list)
    temporaries: list[Use] = field(default_factory=list)
    touched: dict[int, tuple[int, int]] = field(default_factory=dict)  # storage -> first, last step

    @property
    def cycles(self) -> int:
        return sum(step.cycles for step in self.steps)

    def begin_with(self, steps: list[StepDraft]) -> None:
        """Put steps before all others."""
        count = len(steps)
        self.steps[:0] = steps
        self.touched = {storage: (first + count, last + count) for storage, (first, last) in self.touched.items()}
        for use in self.temporaries:
            use.first, use.last = use.first + count, use.last + count

    def touch(self, storage: int, first: int, last: int) -> None:
        old = self.touched.get(storage, (first, last))
        self.touched[storage] = (min(old[0], first), max(old[1], last))


@dataclass(slots=True)
class ProgramTree:
    """All bodies, in program order on each IPU, and where every storage lies on each stage."""

    bodies: list[Body]
    layouts: dict[tuple[int, int], Layout]  # (storage, stage)
    stashed: dict[int, list[int]]  # stage -> storages
    recomputed: dict[int, set[int]]  # stage -> storages made again before its backward
    op_plans: dict[int, Plan]
    op_cycles: dict[int, int]
    moving: dict[int, bool] = field(default_factory=dict)  # what leaves the chip, and if after every phase
    parts: dict[tuple[int, int], Layout] = field(default_factory=dict)  # (weight, stage): a replica's, always there
    turning: frozenset[int] = frozenset()  # phased: stages whose backward follows their forward at once
    loads: dict[tuple[int, int], int] = field(default_factory=dict)  # (task, stage) -> cycles at its body's beginning
    stores: dict[tuple[int, int], int] = field(default_factory=dict)  # ... and at its end
    buffers: list[Use] = field(default_factory=list)  # of streams, always there; ``first`` is the stage
    beside: frozenset[int] = frozenset()  # storages that come or leave over I/O tiles

    def all_of(self, stage: int, *tasks: int) -> list[Body]:
        """Bodies of these tasks of a stage, in the order in which they run."""
        return [body for body in self.bodies if body.stage == stage and body.task in tasks]

    def of(self, task: int, stage: int) -> Body | None:
        """The first."""
        return next(iter(self.all_of(stage, task)), None)

    def cycles(self, task: int, stage: int) -> int:
        return sum(body.cycles for body in self.all_of(stage, task))


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """What of the options changes the program."""

    replicas: int = 1
    stream_out_once: bool = True
    locations: Locations = field(default_factory=Locations)
    recompute: Recomputation = Recomputation.NONE
    estimate: bool = False  # guess an operator that nobody lowered
    phases: PhaseOptions = field(default_factory=PhaseOptions)
    groupings: Groupings = field(default_factory=dict)  # weights that differ between replicas, by name
    host_io: bool = True  # inputs come from the host and outputs go there
    host_latency: float = HOST_LATENCY_SECONDS  # before a transfer's first byte; 0 where the host has it ready
    across: bool = False  # what is overlapped is so from one device iteration into the next


def build(graph: Graph, placement: Placement, machines: list[Machine], options: ProgramOptions) -> ProgramTree:
    """Lower every op where it was placed and gather the bodies. ``machines`` has one per IPU.

    Raises LoweringError with the op's source line where an operator has no lowering.
    """
    return _Builder(graph, placement, machines, options).build()


class _Builder:
    def __init__(self, graph: Graph, placement: Placement, machines: list[Machine], options: ProgramOptions) -> None:
        self.graph, self.placement, self.machines, self.options = graph, placement, machines, options
        self.layouts: dict[tuple[int, int], Layout] = {}
        self.op_plans: dict[int, Plan] = {}
        self.op_cycles: dict[int, int] = {}
        self.stages = range(len(placement.stages))
        self.traffic: dict[tuple[str, int], Traffic] = {}
        self.moving: dict[int, bool] = {}
        self.places = Places()
        self.parts: dict[tuple[int, int], Layout] = {}
        self.there: dict[tuple[str, int], set[int]] = {}  # direction and stage -> what was brought to the chip for it
        self.loads: dict[tuple[int, int], int] = {}
        self.stores: dict[tuple[int, int], int] = {}
        self.kept: set[int] = set()  # storages that are not made again
        self.near_loss: set[int] = set()  # those that the loss reaches without passing one of them
        self.buffers: list[Use] = []
        self.beside: set[int] = set()
        self.wide: dict[int, tuple[Plan, Plan]] = {}  # by id: a plan, and the same with vectors over all tiles
        self.makers: dict[int, int] = {}  # storage -> op that makes it
        for op in graph.ops:
            for output in op.outputs:
                if output is not None:
                    self.makers.setdefault(graph.values[output].storage, op.id)
        self.arrives: dict[tuple[int, int], int] = {}  # (storage, stage) -> stage it comes from
        for transfer in placement.transfers:
            step = 1 if transfer.target > transfer.source else -1
            for stage in range(transfer.source + step, transfer.target + step, step):
                self.arrives[transfer.storage, stage] = transfer.source

    def build(self) -> ProgramTree:
        ops: dict[tuple[str, int], list[OpNode]] = {}
        for op, stage in zip(self.graph.ops, self.placement.op_stage, strict=True):
            if not is_view(self.graph, op):
                ops.setdefault((op.direction, stage), []).append(op)
        if self.placement.phases:
            found = moves(self.graph, self.placement, ops, self.options.phases)
            self.traffic, self.moving = found.traffic, found.moving
        forward = [op for op in self.graph.ops if op.direction == "forward" and not is_view(self.graph, op)]
        self.kept = kept(self.graph, forward, self.options.recompute)
        self.near_loss = after_last_checkpoint(self.graph, forward, self.kept)
        stashed: dict[int, list[int]] = {}
        again: dict[int, list[OpNode]] = {}
        for stage in self.stages:
            stashed[stage], again[stage] = self._kept_and_recomputed(ops, stage)
        self.places = locate(self.graph, self.placement, ops, again, self.options.locations, self.options.groupings)

        forwards, backwards, updates = [], [], []
        for stage in self.stages:
            body = self._body(f"stage {stage} forward", stage, schedules.FORWARD)
            self._compute(ops.get(("forward", stage), []), "forward", stage, body, stashed[stage])
            forwards.append(body)
        for stage in reversed(self.stages):
            if not self.graph.training:
                break
            backwards += self._backward(stage, ops.get(("backward", stage), []), again[stage], stashed[stage])
        for ipu in range(self.placement.num_ipus):
            body = Body(f"IPU {ipu} weight update", ipu, -1, schedules.UPDATE)
            for stage in self.stages:
                if self.placement.ipus[stage] == ipu:
                    self._update(ops.get(("update", stage), []), stage, body)
            if body.steps:
                updates.append(body)
        streams_in, streams_out = self._streams(forwards)
        copies = [self._copies(ipu) for ipu in range(self.placement.num_ipus)]
        reduces = [self._reduce(ipu) for ipu in range(self.placement.num_ipus)]
        syncs = [
            self._one_step(
                f"IPU {ipu} external sync", ipu, schedules.SYNC, records.SYNC, "External", EXTERNAL_SYNC_CYCLES
            )
            for ipu in range(self.placement.num_ipus)
            if self.placement.num_ipus > 1 and not self.placement.phases
        ]
        order = [*streams_in, *forwards, *backwards, *syncs, *streams_out, *copies, *reduces, *updates]
        bodies = [body for body in order if body is not None and body.steps]
        recomputed = {stage: {s for op in mine for s in made_by(self.graph, op)} for stage, mine in again.items()}
        return ProgramTree(bodies, self.layouts, stashed, recomputed, self.op_plans, self.op_cycles,
                           self._moving(), self.parts, self._turning(), self.loads, self.stores, self.buffers,
                           frozenset(self.beside))  # fmt: skip

    # -- operators -----------------------------------------------------------------------------------------

    def _turning(self) -> frozenset[int]:
        phases = self.placement.phases
        return frozenset(
            k for k in self.stages if phases and phases[k] == phases[-1] and not self.options.phases.separate
        )

    def _compute(self, ops: list[OpNode], direction: str, stage: int, body: Body, stashed: Sequence[int] = ()) -> None:
        """The operators of a stage; in phased execution between what it loads and receives, and what it stores.

        A tensor goes into its stash as soon as it is there, so that nothing holds it twice for longer than it must.
        """
        traffic = self.traffic.get((direction, stage))
        if traffic is None:
            ready: dict[int, list[int]] = {}
            for storage, index in last_touch(self.graph, ops, stashed).items():
                ready.setdefault(index, []).append(storage)
            for index, op in enumerate(ops):
                self._run(op, direction, stage, body)
                for storage in ready.get(index, ()):
                    self._stash(storage, stage, body, "stash")
            return
        aside = self._body(body.name, stage, body.task)
        for op in ops:  # first of all, to know where everything lies
            self._append(op, self._plan(op, stage, aside), aside)
        self._remote(traffic.load, f"stage {stage} {direction}/load", stage, body, to_host=False)
        self.loads[body.task, stage] = body.cycles
        for storage in self._gathered(ops, direction, stage):
            self._bring(storage, stage, body)
        self._receive(traffic.receive, stage, body)
        for op in ops:
            self._append(op, self.op_plans[op.id], body)
        before = body.cycles
        self._remote(traffic.store, f"stage {stage} {direction}/store", stage, body, to_host=True)
        self.stores[body.task, stage] = body.cycles - before

    def _gathered(self, ops: list[OpNode], direction: str, stage: int) -> list[int]:
        """Weights that a phase reads and of which replicas keep parts; where the backward turns they are there."""
        if direction == "backward" and stage in self._turning():
            return []
        read = dict.fromkeys(self._storage(v) for op in ops for v in read_values(op))
        return [s for s in read if s in self.places.split and self.graph.storages[s].role == "weight"]

    def _backward(self, stage: int, ops: list[OpNode], again: list[OpNode], stashed: list[int]) -> list[Body]:
        """The backward of a stage, cut where it turns from running forward operators again to its own and back.

        It begins with what runs again, and a stashed tensor comes back right before its first use (PopART gives a
        restore the least priority there is).
        """
        if self.placement.phases:
            body = self._body(f"stage {stage} backward", stage, schedules.BACKWARD)
            self._compute(ops, "backward", stage, body)
            return [body]
        away = set(stashed)
        order = list(sequence(self.graph, again, ops, self._stays(stage)))
        first = next((i for i, (_, is_again) in enumerate(order) if is_again), 0)
        turn = next((i for i, (_, is_again) in enumerate(order[first:], first) if not is_again), first)
        order = [*order[first:turn], *order[:first], *order[turn:]]
        bodies: list[Body] = []
        for op, is_again in order:
            task = schedules.RECOMPUTE if is_again else schedules.BACKWARD
            if not bodies or bodies[-1].task != task:
                number = 1 + sum(body.task == task for body in bodies)
                name = f"stage {stage} {schedules.TASKS[task]}" + (f" {number}" if number > 1 else "")
                bodies.append(self._body(name, stage, task))
            body = bodies[-1]
            back = [s for s in dict.fromkeys(self._storage(v) for v in read_values(op)) if s in away]
            for storage in back:
                self._stash(storage, stage, body, "restore")
            away.difference_update(back)
            self._run(op, "backward", stage, body, self.op_plans[op.id] if is_again else None)
        return bodies

    def _receive(self, storages: list[int], stage: int, body: Body) -> None:
        """What other IPUs made for this phase comes over the links, after a sync with them (JIA, as `_copies`)."""
        if not storages:
            return
        target = self.machines[body.ipu].target
        received = np.zeros(target.tiles, np.int64)
        for storage in storages:
            received += self._bytes(storage, stage, self.machines[body.ipu])
        busiest = int(received.sum()) / target.link_bytes_per_cycle
        slowest_tile = int(received.max()) / target.exchange_bytes_per_cycle
        cycles = ceil(link_latency_cycles(target, 1) + max(busiest, slowest_tile))
        body.steps.append(StepDraft(records.SYNC, f"{body.name}/External", EXTERNAL_SYNC_CYCLES))
        name = f"{body.name}/receive"
        none = np.zeros_like(received)
        body.steps.append(StepDraft(records.GLOBAL_EXCHANGE, name, cycles, bytes_in=received, bytes_out=none))
        for storage in storages:
            body.touch(storage, len(body.steps) - 1, len(body.steps) - 1)

    def _storage(self, value: int) -> int:
        return self.graph.values[value].storage

    def _machine(self, op: OpNode, ipu: int) -> Machine:
        """The IPU as the operator is planned for it: with what the model asks for that one."""
        machine, asked = self.machines[ipu], op.asked
        return replace(
            machine,
            proportion=asked.proportion or machine.proportion,
            partials=asked.partials or machine.partials,
            dithering="conv" in op.aten and (machine.dithering if asked.dithering is None else asked.dithering),
        )

    def _plan(self, op: OpNode, stage: int, body: Body, shard: Shard | None = None) -> Plan:
        """Lower an operator, and say where its operands lie. ``shard``: on a replica's part of the weight."""
        machine = self._machine(op, body.ipu)
        spec = self._spec(op, stage, machine, shard)
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
        operands = [self._storage(v) for v in op.inputs]
        for index, layout in plan.input_layouts:
            self.layouts.setdefault((operands[index], stage), layout)
        for storage in operands:
            if (storage, stage) not in self.layouts:
                self.layouts[storage, stage] = self._default_layout(storage, machine)
        for output, planned in zip(op.outputs, plan.output_layouts, strict=False):
            if output is not None and planned is not None:
                self.layouts.setdefault((self._storage(output), stage), planned)
        for output in op.outputs:
            if output is not None and (self._storage(output), stage) not in self.layouts:
                storage = self._storage(output)
                self.layouts[storage, stage] = self._default_layout(storage, machine)
        return self._widened(plan, machine)

    def _widened(self, plan: Plan, machine: Machine) -> Plan:
        """The plan over all tiles: a lowering knows only those that compute."""
        if not machine.io_tiles:
            return plan
        if id(plan) not in self.wide:
            self.wide[id(plan)] = plan, _widened(plan, machine)
        return self.wide[id(plan)][1]

    def _bytes(self, storage: int, stage: int, machine: Machine) -> np.ndarray:
        """Of a storage on each tile of the IPU; nothing where nobody placed it."""
        layout = self._layout(storage, stage, machine)
        return machine.whole(layout.bytes) if layout is not None else np.zeros(machine.target.tiles, np.int64)

    def _append(self, op: OpNode, plan: Plan, body: Body) -> None:
        machine = self.machines[body.ipu]
        at = []
        begin = len(body.steps)
        for part, step in enumerate(plan.steps):
            drafts = _drafts(step, machine.target.name)
            body.steps += [
                replace(draft, op=op.id, name=_step_name(op.name, draft.name), plan=plan, part=part) for draft in drafts
            ]
            at.append(len(body.steps) - 1)
        self.op_plans[op.id] = plan
        self.op_cycles[op.id] = sum(step.cycles for step in body.steps[begin:])
        if not at:
            return
        first, last = at[0], at[-1]
        for value in read_values(op):
            body.touch(self._storage(value), first, last)
        for output in op.outputs:
            if output is not None:
                body.touch(self._storage(output), last, last)
        for temporary in plan.temporaries:
            body.temporaries.append(
                Use(
                    _step_name(op.name, temporary.name),
                    "temporary",
                    temporary.bytes,
                    at[temporary.first],
                    at[temporary.last],
                    op.id,
                    interleaved=temporary.interleaved,
                )
            )

    def _spec(self, op: OpNode, stage: int, machine: Machine, shard: Shard | None = None) -> OpSpec:
        def concrete(item: Any) -> Any:
            if isinstance(item, ValueRef):
                return self._operand(item.id, stage, machine, shard)
            return tuple(concrete(element) for element in item) if isinstance(item, tuple) else item

        read = {self._storage(v) for v in op.inputs}
        outputs = tuple(
            None if v is None else self._operand(v, stage, machine, shard, placed=self._storage(v) in read)
            for v in op.outputs
        )
        named = tuple((key, concrete(value)) for key, value in op.kwargs)
        return OpSpec(op.aten, tuple(concrete(a) for a in op.args), named, outputs)

    def _operand(
        self, value_id: int, stage: int, machine: Machine, shard: Shard | None = None, placed: bool = True
    ) -> Operand:
        value = self.graph.values[value_id]
        storage = self.graph.storages[value.storage]
        # a plan asks only whether something stays: a layer that is run again in the backward is the same operators
        role = storage.role if storage.role in _PERSISTENT else "activation"
        if shard is not None and prod(value.shape) == self.graph.storages[shard.weight].elements:
            layout = shard.layout(value.dtype) if placed else None
            return Operand((shard.size,), value.dtype, (1,), 0, shard.size, layout, role)
        layout = self._layout(value.storage, stage, machine) if placed else None
        return Operand(value.shape, value.dtype, value.strides, value.offset, storage.elements, layout, role)

    def _layout(self, storage_id: int, stage: int, machine: Machine) -> Layout | None:
        """Where a storage lies on a stage; None for a weight that waits for its first use."""
        known = self.layouts.get((storage_id, stage))
        if known is not None:
            return known
        storage = self.graph.storages[storage_id]
        source = self.arrives.get((storage_id, stage))
        if source is not None and (storage_id, source) in self.layouts:
            self.layouts[storage_id, stage] = self.layouts[storage_id, source]  # a copy keeps its mapping
        elif storage.parameter >= 0:
            owner = self.graph.storages[storage.parameter]
            like = self.layouts.get((storage.parameter, stage))
            if like is not None and owner.elements == storage.elements:
                # Accumulators and optimiser state lie with their weight.
                per_element = like.bytes // ITEM_BYTES[owner.dtype]
                self.layouts[storage_id, stage] = Layout(like.key, per_element * ITEM_BYTES[storage.dtype])
            else:
                self.layouts[storage_id, stage] = self._default_layout(storage_id, machine)
        elif storage.role not in ("weight", "buffer"):
            self.layouts[storage_id, stage] = self._default_layout(storage_id, machine)
        return self.layouts.get((storage_id, stage))

    def _default_layout(self, storage_id: int, machine: Machine) -> Layout:
        storage = self.graph.storages[storage_id]
        return linear(storage.elements, ITEM_BYTES[storage.dtype], machine.tiles).layout(storage.dtype)

    # -- tensors that are not whole on the chip ------------------------------------------------------------

    def _shard(self, weight: int, stage: int) -> Shard:
        machine = self.machines[self.placement.ipus[stage]]
        whole = self._layout(weight, stage, machine) or self._default_layout(weight, machine)
        self.layouts.setdefault((weight, stage), whole)
        return Shard.of(self.graph.storages[weight], whole, self.options.replicas)

    def _part(self, weight: int, stage: int) -> Layout:
        """What this replica keeps of a weight that is kept in parts."""
        return self._shard(weight, stage).layout(self.graph.storages[weight].dtype)

    def _part_of(self, shard: Shard, storage_id: int, first: int, last: int) -> Use:
        """This replica's part of something that has the size of a weight, from step to step."""
        storage = self.graph.storages[storage_id]
        nbytes = self.machines[0].whole(shard.layout(storage.dtype).bytes)  # all IPUs have as many I/O tiles
        return Use(f"{storage.name}/part", "temporary", nbytes, first, last)

    def _stored(self, storage: int, stage: int, machine: Machine) -> Layout:
        """What this replica keeps of a storage."""
        if storage in self.places.split and self.graph.storages[storage].role == "weight":
            return self._part(storage, stage)
        layout = self._layout(storage, stage, machine)
        return layout if layout is not None else self._default_layout(storage, machine)

    def _away(self) -> set[int]:
        """Storages that come before they are used and go after they were changed."""
        return self.places.remote | self.moving.keys()

    def _moving(self) -> dict[int, bool]:
        """Storages that are not whole on the chip all the time, and whether they come anew for each part of a step."""
        parted = {s for s in self.places.split if self.graph.storages[s].role == "weight"}
        return {**self.moving, **dict.fromkeys(self.places.remote | parted, True)}

    def _reduced_late(self, gradient: int) -> bool:
        """Whether it is reduced weight by weight in the update: an accumulator that only then is on the chip."""
        waits = gradient in self.places.remote and not self.placement.phases
        return waits and self.graph.storages[gradient].role == "accumulator" and gradient not in self.places.split

    def _run(self, op: OpNode, direction: str, stage: int, body: Body, plan: Plan | None = None) -> None:
        """An operator of forward or backward, between what it needs brought to the chip and what has to leave it again.

        A tensor comes before its first use, once for the forward and once for recomputation and backward together
        (PopART's streaming contexts), and what was changed leaves after the last change. A gradient that goes into an
        accumulator that replicas share is scattered over them first.
        """
        accumulators = [s for v in op.writes if (s := self._storage(v)) in self.places.split]
        shard = self._shard(self.graph.storages[accumulators[0]].parameter, stage) if accumulators else None
        if shard is not None:
            self.layouts[accumulators[0], stage] = shard.layout(self.graph.storages[accumulators[0]].dtype)
        plan = plan or self._plan(op, stage, body, shard)
        there = self.there.setdefault((direction, stage), set())
        begin = len(body.steps)
        for storage in dict.fromkeys(s for v in read_values(op) if (s := self._storage(v)) not in there):
            self._bring(storage, stage, body)
            there.add(storage)
        first = len(body.steps)
        gradients = [s for v in op.inputs if shard is not None and (s := self._storage(v)) not in self.places.split]
        for gradient in gradients:
            self._collective("reduce-scatter", {gradient: stage}, body, f"{self.graph.storages[gradient].name}/")
        self._append(op, plan, body)
        if shard is not None:
            body.temporaries += [self._part_of(shard, gradient, first, len(body.steps) - 1) for gradient in gradients]
        for storage in {self._storage(v) for v in (*op.outputs, *op.writes) if v is not None} & self.places.remote:
            there.add(storage)
            if op.id == self.places.last_change.get((direction, stage), {}).get(storage):
                self._remote([storage], f"{self.graph.storages[storage].name}/store", stage, body, to_host=True)
        _belong(body.steps[begin:], op)

    def _bring(self, storage: int, stage: int, body: Body) -> None:
        """From streaming memory, from the other replicas, or both."""
        name = self.graph.storages[storage].name
        if storage in self.places.remote:
            self._remote([storage], f"{name}/load", stage, body, to_host=False)
        if storage in self.places.split and self.graph.storages[storage].role == "weight":
            if storage not in self.places.remote and storage not in self.moving:
                self.parts[storage, stage] = self._part(storage, stage)
            self._collective("all-gather", {storage: stage}, body, f"{name}/")

    # -- stash ---------------------------------------------------------------------------------------------

    def _kept_and_recomputed(
        self, ops: dict[tuple[str, int], list[OpNode]], stage: int
    ) -> tuple[list[int], list[OpNode]]:
        """What a stage stashes between forward and backward, and the forward ops it runs again before the backward.

        Without recomputation: whatever the backward reads of the forward. With it: what enters the stage and is kept,
        and the ops that make the rest from those. Where the backward follows at once (the last stage, no pipeline)
        nothing is stashed (facts/pipeline.md, 'Memory of a stage').
        """
        if not self.graph.training or self.placement.phases:
            return [], []
        forward, backward = ops.get(("forward", stage), []), ops.get(("backward", stage), [])
        made_here = {s for op in forward for s in made_by(self.graph, op)}
        stays = made_here if self.options.recompute is Recomputation.NONE else self._stays(stage)
        again, needed = run_again(self.graph, forward, backward, stays)
        if not self._waits(stage):
            return [], again
        order: dict[int, None] = {}
        for op in forward:
            for value in (*op.inputs, *op.outputs):
                if value is not None and self.graph.storages[self._storage(value)].role in _STASHED:
                    order[self._storage(value)] = None
        return [s for s in order if s in needed and (s in stays or s not in made_here)], again

    def _waits(self, stage: int) -> bool:
        """Whether other micro-batches come between a stage's forward and its backward."""
        return self.placement.pipelined and stage != len(self.placement.stages) - 1

    def _stays(self, stage: int) -> set[int]:
        """What recomputation leaves where it is."""
        return self.kept if self._waits(stage) else self.kept | self.near_loss

    def _stash(self, storage: int, stage: int, body: Body, what: str) -> None:
        """Copy a tensor into its slot of the stash, or back out of it: a dynamic update or slice on every tile."""
        item = ITEM_BYTES[self.graph.storages[storage].dtype]
        count = self._bytes(storage, stage, self.machines[body.ipu]) // item
        cycles = dynamic_slice_cycles(count, item)
        vertex = "popops::DynamicUpdateSlice1D" if what == "stash" else "popops::DynamicSlice1D"
        name = self.graph.storages[storage].name
        producer = self.makers.get(storage, -1)
        body.steps.append(
            StepDraft(
                records.ON_TILE_EXECUTE,
                f"{name}/{what}",
                int(cycles.max()),
                producer,
                cycles,
                vertices=(Vertices(f"{vertex}<{_poplar(item)}>", (count > 0).astype(np.int64)),),
            )
        )
        body.touch(storage, len(body.steps) - 1, len(body.steps) - 1)

    # -- weight update -------------------------------------------------------------------------------------

    def _update(self, ops: list[OpNode], stage: int, body: Body) -> None:
        """Optimiser ops of a stage, weight by weight; what is kept in streaming memory comes and goes around them.

        A weight that is updated in parts (replicated tensor sharding): the gradient was scattered over the replicas,
        each updates its part, and tensors that it keeps whole are gathered from all, behind the last update.
        """
        states: dict[int, list[int]] = {}
        for storage in self.graph.storages.values():
            if storage.role == "optimiser state" and self.placement.home.get(storage.id) == stage:
                states.setdefault(storage.parameter, []).append(storage.id)
        machine = self.machines[body.ipu]
        gather: dict[int, Use] = {}
        for weight, mine in by_weight(self.graph, ops).items():
            shard = self._shard(weight, stage) if weight in self.places.updated_in_parts else None
            if shard is not None:
                for state in states.get(weight, []):
                    if state in self.places.split:
                        self.layouts[state, stage] = shard.layout(self.graph.storages[state].dtype)
            used = dict.fromkeys(s for op in mine for v in op.inputs if (s := self._storage(v)) in self._away())
            moved = [*(s for s in states.get(weight, []) if s in self.places.remote and s not in used), *used]
            first = len(body.steps)
            if moved:
                owner = self.graph.storages[moved[0]]
                owner = self.graph.storages[owner.parameter] if owner.parameter >= 0 else owner
                name = f"{owner.name}/{'optimiser state' if set(moved) <= set(states.get(weight, [])) else 'state'}"
                self._remote(moved, f"{name}/load", stage, body, to_host=False)
            for gradient in used:
                if self._reduced_late(gradient):
                    self._collective("all-reduce" if shard is None else "reduce-scatter", {gradient: stage}, body)
            if shard is not None:
                gather |= self._in_parts(shard, mine, stage, body)
            else:
                for op in mine:
                    self._append(op, self._plan(op, stage, body), body)
            if moved:
                self._remote(moved, f"{name}/store", stage, body, to_host=True)
            if not set(moved) & set(states.get(weight, [])):  # state is priced by itself (`profiler.rebalance`)
                _belong(body.steps[first:], mine[0])
            if shard is not None and weight in self.places.split:
                if weight in body.touched:
                    del body.touched[weight]  # the whole of it is on the chip in forward and backward only
                if weight in self._away():
                    body.temporaries.append(self._part_of(shard, weight, first, len(body.steps) - 1))
        self._collective("all-gather", dict.fromkeys(gather, stage), body)
        for part in gather.values():
            part.last = len(body.steps) - 1
            body.temporaries.append(part)
        for of_weight in states.values():
            for state in of_weight:
                self._layout(state, stage, machine)

    def _in_parts(self, shard: Shard, ops: list[OpNode], stage: int, body: Body) -> dict[int, Use]:
        """Run a weight's ops on this replica's part. Gives its parts of what is kept whole and changed, to be gathered.

        Of what it keeps whole it takes its part first: a dynamic slice on every tile, whose slot is the replica's
        number. A number made of all elements (a norm of LAMB) is all-reduced.
        """
        elements = self.graph.storages[shard.weight].elements
        mine = [op for op in ops if not self._clears(op)]
        changed = {self._storage(v) for op in mine for v in op.writes}
        first = len(body.steps)
        gather: dict[int, Use] = {}
        for storage in dict.fromkeys(self._storage(v) for op in mine for v in op.inputs):
            role = self.graph.storages[storage].role
            if self.graph.storages[storage].elements != elements or storage in self.places.split:
                continue
            if role in _KEPT:
                self._slice(shard, storage, body)
                gather[storage] = self._part_of(shard, storage, first, first)
            elif role in ("accumulator", "gradient"):  # its part came of the scatter, mostly that of all gradients
                since = first if self._reduced_late(storage) else 0
                gather[storage] = self._part_of(shard, storage, since, since)
        for op in ops:
            self._append(op, self._plan(op, stage, body, shard if op in mine else None), body)
            made = [v for v in op.outputs if v is not None and prod(self.graph.values[v].shape) != elements]
            _belong(body.steps[first:], op)
            if made and op in mine and any(prod(self.graph.values[v].shape) == elements for v in op.inputs):
                self._collective("all-reduce", {self._storage(v): stage for v in made}, body, f"{op.name}/")
        for storage in [s for s in gather if s not in changed or self.graph.storages[s].role not in _KEPT]:
            part = gather.pop(storage)
            part.last = len(body.steps) - 1
            body.temporaries.append(part)
        return gather

    def _clears(self, op: OpNode) -> bool:
        """Whether an op empties an accumulator that a replica keeps whole: that is no part of the update."""
        written = {self._storage(v) for v in op.writes}
        return op.aten.startswith("aten.zero_") and not written & self.places.split

    def _slice(self, shard: Shard, storage_id: int, body: Body) -> None:
        storage = self.graph.storages[storage_id]
        item = ITEM_BYTES[storage.dtype]
        elements = self.machines[body.ipu].whole(shard.elements)
        cycles = dynamic_slice_cycles(elements, item)
        vertices = Vertices(f"popops::DynamicSlice1D<{_poplar(item)}>", (elements > 0).astype(np.int64))
        name = f"{storage.name}/part"
        body.steps.append(StepDraft(records.ON_TILE_EXECUTE, name, int(cycles.max()), -1, cycles, vertices=(vertices,)))

    def _remote(self, storages: list[int], name: str, stage: int, body: Body, *, to_host: bool) -> None:
        """Move storages between tiles and streaming memory, in one stream copy."""
        if not storages:
            return
        machine = self.machines[body.ipu]
        target = machine.target
        nbytes = np.sum([machine.whole(self._stored(s, stage, machine).bytes) for s in storages], axis=0)
        cycles = ceil(int(nbytes.sum()) / target.streaming_bytes_per_second * target.clock_hz)
        first = len(body.steps)
        body.steps += _stream_steps(name, cycles, nbytes, to_host=to_host)
        for storage in storages:
            body.touch(storage, first, len(body.steps) - 1)

    # -- between IPUs and to the host ------------------------------------------------------------------------

    def _streams(self, forwards: list[Body]) -> tuple[list[Body], list[Body]]:
        """Transfers from and to the host. What is overlapped goes over the I/O tiles, from where or to where an
        exchange brings it in the forward of its stage."""
        if not self.options.host_io:
            return [], []
        no_overlap = OverlapMode.NoOverlap.value
        inputs: dict[tuple[int, bool], list[int]] = {}
        for value in self.graph.inputs:
            storage = self._storage(value)
            if storage in self.placement.home:  # an input that nothing reads is not sent
                beside = self.graph.overlapped_inputs.get(storage, no_overlap) != no_overlap
                inputs.setdefault((self.placement.home[storage], beside), []).append(storage)
        outputs: dict[tuple[int, bool], list[int]] = {}
        for value in self.graph.outputs:
            storage = self._storage(value)
            maker = self.makers.get(storage)
            stage, beside = self.placement.home.get(storage, 0), False
            if maker is not None:
                stage = self.placement.op_stage[maker]
                beside = self.graph.overlapped_outputs.get(storage, no_overlap) != no_overlap
                # what leaves once is not overlapped, nor what the backward makes
                beside = beside and not self.options.stream_out_once and self._made_forward(storage)
            outputs.setdefault((stage, beside), []).append(storage)
        for found, to_host in ((inputs, False), (outputs, True)):
            for (stage, beside), storages in found.items():
                if beside:
                    self.beside.update(storages)
                    self._between_tiles(forwards[stage], storages, to_host)
        return (
            [self._stream(stage, storages, False, beside) for (stage, beside), storages in sorted(inputs.items())],
            [self._stream(stage, storages, True, beside) for (stage, beside), storages in sorted(outputs.items())],
        )

    def _made_forward(self, storage: int) -> bool:
        return self.graph.ops[self.makers[storage]].direction == "forward"

    def _stream(self, stage: int, storages: list[int], to_host: bool, beside: bool) -> Body:
        """facts/machine.md: begin, mid and end; latency, then bytes at the host's rate (JIA, EX)."""
        task = schedules.STREAM_OUT if to_host else schedules.STREAM_IN
        name = f"stage {stage} {'outputs to' if to_host else 'inputs from'} host"
        if beside:
            task, name = schedules.UNLOAD if to_host else schedules.LOAD, f"{name} over I/O tiles"
        body = self._body(name, stage, task)
        machine = self.machines[body.ipu]
        target = machine.target
        total = sum(storage_bytes(self.graph, storage) for storage in storages)
        cycles = ceil((self.options.host_latency + total / target.host_bytes_per_second) * target.clock_hz)
        names = ", ".join(self.graph.storages[s].name for s in storages)
        lies = np.sum([self._bytes(storage, stage, machine) for storage in storages], axis=0)
        if beside:
            body.steps += _stream_steps(names, cycles, machine.on_io_tiles(int(lies.sum())), to_host)
            return body
        # over all tiles a tensor is its own buffer: it comes as it lies, and the operator that reads it rearranges it
        body.steps += _stream_steps(names, cycles, lies, to_host)
        for storage in storages:
            body.touch(storage, 0, len(body.steps) - 1)
        return body

    def _between_tiles(self, body: Body, storages: list[int], to_host: bool) -> None:
        """The exchange between I/O tiles and those that compute, and the buffers on the former. It belongs to the
        operator that first reads what it brings, or that last makes what it takes away, and goes where that goes."""
        machine, stage = self.machines[body.ipu], body.stage
        lies = np.sum([self._bytes(storage, stage, machine) for storage in storages], axis=0)
        lands = machine.on_io_tiles(int(lies.sum()))
        names = ", ".join(self.graph.storages[s].name for s in storages)
        if to_host:
            steps = self._exchanged(f"{names}/to I/O tiles", lands, lies, machine)
            op = max(self.makers[storage] for storage in storages)
            first = len(body.steps)
            body.steps += steps
        else:
            steps = self._exchanged(f"{names}/from I/O tiles", lies, lands, machine)
            readers = (op.id for op in self.graph.ops if {self._storage(v) for v in op.inputs} & set(storages)
                       and op.id in self.op_plans)  # fmt: skip
            op, first = min(readers, default=-1), 0
            body.begin_with(steps)
        for step in steps:
            step.op = op
        copies = BUFFERS_ACROSS if self.options.across else BUFFERS
        self.buffers.append(Use(f"{names}/stream buffer", "stream buffer", copies * lands, stage, stage, op))
        for storage in storages:
            body.touch(storage, first, first + len(steps) - 1)

    def _exchanged(self, name: str, into: np.ndarray, out: np.ndarray, machine: Machine) -> list[StepDraft]:
        step = Exchange(name, into, out, messages(into, out))
        return _drafts(step, machine.target.name)

    def _copies(self, ipu: int) -> Body | None:
        """What an IPU sends and receives at the end of a pipeline cycle, over all cuts and both directions.

        Latency by the farthest, then each neighbour's bytes at the rate of the link to it, one after the other; a tile
        takes 4 bytes a cycle. Every replica begins at a whole board, or all of it is on one.
        """
        if self.placement.num_ipus == 1 or self.placement.phases:  # a phase receives at its beginning
            return None
        target = self.machines[ipu].target
        sent, received = np.zeros(target.tiles, np.int64), np.zeros(target.tiles, np.int64)
        crossing, hops = [], 1
        leaving: Counter[float] = Counter()  # rate of a link -> bytes
        arriving: Counter[float] = Counter()
        for transfer in self.placement.transfers:
            if self.placement.ipus[transfer.source] == self.placement.ipus[transfer.target]:
                continue  # both stages are on one IPU (BERT's tied embedding): it is there already
            step = 1 if transfer.target > transfer.source else -1
            for stage in range(transfer.source, transfer.target, step):
                a, b = self.placement.ipus[stage], self.placement.ipus[stage + step]
                if a == b or ipu not in (a, b):
                    continue
                layout = self._layout(transfer.storage, transfer.source, self.machines[ipu])
                if layout is None:
                    continue
                self.layouts.setdefault((transfer.storage, stage + step), layout)
                crossing.append(transfer.storage)
                hops = max(hops, link_hops(a, b))
                rate, total = link_rate(target, a, b), int(layout.bytes.sum())
                nbytes = self.machines[ipu].whole(layout.bytes)
                if a == ipu:
                    sent += nbytes
                    leaving[rate] += total
                if b == ipu:
                    received += nbytes
                    arriving[rate] += total
        if not crossing:
            return None
        slowest_tile = max(int(sent.max()), int(received.max())) / target.exchange_bytes_per_cycle
        on_links = max(sum(nbytes / rate for rate, nbytes in way.items()) for way in (leaving, arriving))
        cycles = ceil(link_latency_cycles(target, hops) + max(on_links, slowest_tile))
        body = self._one_step(
            f"IPU {ipu} copies between IPUs", ipu, schedules.COPY, records.GLOBAL_EXCHANGE, "GlobalExchange", cycles
        )
        body.steps[0].bytes_in, body.steps[0].bytes_out = received, sent
        for storage in crossing:
            body.touch(storage, 0, 0)
        return body

    def _reduce(self, ipu: int) -> Body | None:
        """What replicas do with gradients before the weight update, all at once: an all-reduce, or a reduce-scatter
        where each replica updates its part of the weight."""
        if self.options.replicas == 1 or not self.graph.training:
            return None
        body = Body("", ipu, -1, schedules.REDUCE)
        by_kind: dict[tuple[str, int], list[int]] = {}
        for storage in self._gradients():
            stage = self.placement.home.get(storage, 0)
            late = storage in self.places.split or self._reduced_late(storage)
            if self.placement.ipus[stage] == ipu and not late:
                parts = self.graph.storages[storage].parameter in self.places.updated_in_parts
                by_kind.setdefault(("reduce-scatter" if parts else "all-reduce", stage), []).append(storage)
        for what in ("all-reduce", "reduce-scatter"):
            where = {s: stage for (kind, stage), mine in by_kind.items() if kind == what for s in mine}
            self._collective(what, where, body)
        for storage, stage in where.items():  # of the scatter, which comes last: parts that wait for the update
            part = self._shard(self.graph.storages[storage].parameter, stage)
            body.temporaries.append(self._part_of(part, storage, len(body.steps) - 1, len(body.steps) - 1))
        body.name = f"IPU {ipu} {' and '.join(sorted({kind for kind, _ in by_kind}))} of gradients"
        return body

    def _collective(self, what: str, where: Mapping[int, int], body: Body, name: str = "") -> None:
        """One step in which the same IPU of all replicas exchange storages (``where`` gives the stages they are of).

        ``what``: "all-reduce", "reduce-scatter" or "all-gather" (GCL's). Replicas lie one after the other, each on a
        power of two of IPUs. In a ring of R each sends and receives (R - 1) / R of the bytes; an all-reduce is a
        scatter and a gather.
        """
        rounds = 2 if what == "all-reduce" else 1
        target = self.machines[body.ipu].target
        apart = 1 << (self.placement.num_ipus - 1).bit_length()
        for (members, stride), mine in self._rings(where).items():
            nbytes = np.zeros(target.tiles, np.int64)
            for storage in mine:
                nbytes = nbytes + self._bytes(storage, where[storage], self.machines[body.ipu])
            if members == 1 or not nbytes.any():
                continue
            cycles = ring_cycles(target, body.ipu, apart * stride, members, int(nbytes.sum()), rounds)
            moved = rounds * nbytes * (members - 1) // members
            step = what.title().replace("-", "") + (
                f" in groups of {members}" if members < self.options.replicas else ""
            )
            body.steps.append(
                StepDraft(records.GLOBAL_EXCHANGE, name + step, cycles, bytes_in=moved, bytes_out=moved.copy())
            )
            for storage in mine:
                body.touch(storage, len(body.steps) - 1, len(body.steps) - 1)

    def _rings(self, where: Mapping[int, int]) -> dict[tuple[int, int], list[int]]:
        """Storages by the replicas that exchange them: how many, and how many replicas from one to the next."""
        found: dict[tuple[int, int], list[int]] = {}
        for storage_id in where:
            grouping = grouping_of(self.graph, storage_id, self.options.groupings)
            ring = (self.options.replicas, 1) if grouping is None else (grouping.members, grouping.stride)
            found.setdefault(ring, []).append(storage_id)
        return found

    def _gradients(self) -> list[int]:
        """Storages the optimiser reads gradients from: the accumulators, or the gradients themselves."""
        storages = self.graph.storages.values()
        accumulators = [s.id for s in storages if s.role == "accumulator"]
        if accumulators:
            return accumulators
        read = {self._storage(v) for op in self.graph.ops if op.direction == "update" for v in op.inputs}
        found = [s.id for s in storages if s.role == "gradient" and s.id in read]
        for storage in found:
            self.placement.home.setdefault(storage, self.placement.op_stage[self.makers[storage]])
        return found

    def _body(self, name: str, stage: int, task: int) -> Body:
        return Body(name, self.placement.ipus[stage], stage, task)

    @staticmethod
    def _one_step(name: str, ipu: int, task: int, kind: str, step: str, cycles: int) -> Body:
        return Body(name, ipu, -1, task, [StepDraft(kind, step, cycles)])


def _widened(plan: Plan, machine: Machine) -> Plan:
    """With vectors over all tiles; layouts stay as lowerings know them."""
    steps: list[Compute | Exchange] = []
    for step in plan.steps:
        if isinstance(step, Compute):
            vertices = tuple(Vertices(v.type, machine.whole(v.count)) for v in step.vertices)
            steps.append(replace(step, cycles=machine.whole(step.cycles), vertices=vertices))
        else:
            into, out, fragments = map(machine.whole, (step.bytes_in, step.bytes_out, step.fragments))
            steps.append(Exchange(step.name, into, out, fragments, step.shared_bus))
    held = tuple(replace(held, bytes=machine.whole(held.bytes)) for held in plan.temporaries)
    constants = None if plan.constants is None else machine.whole(plan.constants)
    return replace(plan, steps=tuple(steps), temporaries=held, constants=constants)


def _belong(steps: list[StepDraft], op: OpNode) -> None:
    """What moves for an operator is its own: a Block's cycles count it."""
    for step in steps:
        if step.op < 0:
            step.op = op.id


def _step_name(op: str, step: str) -> str:
    """``layer/addmm`` and ``addmm/reduce`` make ``layer/addmm/reduce``."""
    short = op.rpartition("/")[2]
    head, _, rest = step.partition("/")
    if short == head or short.startswith(head + "_"):
        return f"{op}/{rest}" if rest else op
    return f"{op}/{step}"


def _drafts(step: Compute | Exchange, target: str) -> list[StepDraft]:
    """The program steps of one step of a plan: an exchange is preceded by a sync of the tiles."""
    if isinstance(step, Compute):
        cycles = int(step.cycles.max(initial=0))
        return [
            StepDraft(
                records.ON_TILE_EXECUTE, step.name, cycles, -1, step.cycles, vertices=step.vertices, flops=step.flops
            )
        ]
    tile_cycles = _exchange_cycles(_Held(step), target)
    return [
        StepDraft(records.SYNC, f"{step.name}/Internal", SYNC_CYCLES),
        StepDraft(
            records.DO_EXCHANGE,
            step.name,
            int(tile_cycles.max(initial=0)),
            -1,
            tile_cycles,
            step.bytes_in,
            step.bytes_out,
            step.fragments,
        ),
    ]


class _Held:
    """An exchange of a cached plan as a dictionary key: plans live on, so identity is enough."""

    def __init__(self, step: Exchange) -> None:
        self.step = step

    def __hash__(self) -> int:
        return id(self.step)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and self.step is other.step


@lru_cache(maxsize=65_536)
def _exchange_cycles(held: _Held, target: str) -> np.ndarray:
    step = held.step
    return exchange_tile_cycles(TARGETS[target], step.bytes_in, step.bytes_out, step.fragments, step.shared_bus)


def _stream_steps(name: str, cycles: int, nbytes: np.ndarray, to_host: bool) -> list[StepDraft]:
    """Begin, mid and end of a stream copy (facts/cycles.md 10)."""
    none = np.zeros_like(nbytes)
    bytes_in, bytes_out = (none, nbytes) if to_host else (nbytes, none)
    return [
        StepDraft(records.STREAM_COPY_BEGIN, f"{name}/begin", STREAM_STEP_CYCLES),
        StepDraft(records.STREAM_COPY_MID, f"{name}/mid", cycles, bytes_in=bytes_in, bytes_out=bytes_out),
        StepDraft(records.STREAM_COPY_END, f"{name}/end", STREAM_STEP_CYCLES),
    ]


def dynamic_slice_cycles(elements: np.ndarray, item_bytes: int) -> np.ndarray:
    """Cycles a tile to copy ``elements`` into or out of one slot: 25 + 6 (39 + 24 + 2 n / 6 / v) (PL, cycles.md 7)."""
    lanes = max(1, 8 // item_bytes)
    per_worker = -(-elements // 6)
    cycles = 25 + 6 * (39 + 24 + -(-2 * per_worker // lanes))
    return np.where(elements > 0, cycles, 0).astype(np.int64)


def _poplar(item_bytes: int) -> str:
    return {4: "float", 2: "half", 1: "char"}[item_bytes]
