"""The program: for each IPU the bodies it runs, each a list of bulk-synchronous steps over its tiles.

A body is what the schedule places in time: forward or backward of a stage, the weight update, streams from and to
the host, copies between IPUs, a sync. Within an IPU the bodies have an order, and with it every step a *position*:
liveness is a matter of positions (facts/pipeline.md, 'Memory of a stage').
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from ipu_exec.enums import OverlapMode
from ipu_exec.errors import LoweringError
from ipu_exec.graph import Graph, OpNode, ValueRef
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
)
from ipu_exec.phases import PhaseOptions, Traffic, moves
from ipu_exec.placement import Placement, storage_bytes
from ipu_exec.reads import read_values
from ipu_exec.recompute import Recomputation, after_last_checkpoint, kept, last_touch, made_by, run_again, sequence
from profiler import records, schedules

_PERSISTENT = ("weight", "buffer", "accumulator", "optimiser state")
_STASHED = ("activation", "input", "gradient")
BUFFERS = 2  # of an overlapped stream: one is filled (or emptied) while the other is used
BUFFERS_ACROSS = 3  # PopART keeps one more between device iterations (estimate: its guide says 'more memory')


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
    moving: dict[int, bool] = field(default_factory=dict)  # phased: what leaves the chip, and if after every phase
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
    offload_optimiser: bool = False
    recompute: Recomputation = Recomputation.NONE
    estimate: bool = False  # guess an operator that nobody lowered
    phases: PhaseOptions = field(default_factory=PhaseOptions)
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
        self.loads: dict[tuple[int, int], int] = {}
        self.stores: dict[tuple[int, int], int] = {}
        self.kept: set[int] = set()  # storages that are not made again
        self.near_loss: set[int] = set()  # those that the loss reaches without passing one of them
        self.buffers: list[Use] = []
        self.beside: set[int] = set()
        self.wide: dict[int, Plan] = {}  # plans by id (they live on), with vectors over all tiles
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
            if not self._is_view(op):
                ops.setdefault((op.direction, stage), []).append(op)
        if self.placement.phases:
            found = moves(self.graph, self.placement, ops, self.options.phases)
            self.traffic, self.moving = found.traffic, found.moving
        forward = [op for op in self.graph.ops if op.direction == "forward" and not self._is_view(op)]
        self.kept = kept(self.graph, forward, self.options.recompute)
        self.near_loss = after_last_checkpoint(self.graph, forward, self.kept)
        stashed: dict[int, list[int]] = {}
        again: dict[int, list[OpNode]] = {}
        for stage in self.stages:
            stashed[stage], again[stage] = self._kept_and_recomputed(ops, stage)

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
                           self.moving, self._turning(), self.loads, self.stores, self.buffers,
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
                self._lower(op, stage, body)
                for storage in ready.get(index, ()):
                    self._stash(storage, stage, body, "stash")
            return
        aside = self._body(body.name, stage, body.task)
        for op in ops:  # first of all, to know where everything lies
            self._lower(op, stage, aside)
        self._remote(traffic.load, f"stage {stage} {direction}/load", stage, body, to_host=False)
        self.loads[body.task, stage] = body.cycles
        self._receive(traffic.receive, stage, body)
        for op in ops:
            self._append(op, self.op_plans[op.id], body, self.machines[body.ipu])
        before = body.cycles
        self._remote(traffic.store, f"stage {stage} {direction}/store", stage, body, to_host=True)
        self.stores[body.task, stage] = body.cycles - before

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
            if is_again:
                self._append(op, self.op_plans[op.id], body, self.machines[body.ipu])
            else:
                self._lower(op, stage, body)
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

    def _is_view(self, op: OpNode) -> bool:
        """A view is free: every output lies in an input's storage and nothing is written."""
        storage = self._storage
        read = {storage(v) for v in op.inputs}
        return not op.writes and bool(read) and all(v is None or storage(v) in read for v in op.outputs)

    def _storage(self, value: int) -> int:
        return self.graph.values[value].storage

    def _lower(self, op: OpNode, stage: int, body: Body) -> None:
        machine = self.machines[body.ipu]
        spec = self._spec(op, stage, machine)
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
        self._append(op, self._widened(plan, machine), body, machine)

    def _widened(self, plan: Plan, machine: Machine) -> Plan:
        """The plan over all tiles: a lowering knows only those that compute."""
        if not machine.io_tiles:
            return plan
        if id(plan) not in self.wide:
            self.wide[id(plan)] = _widened(plan, machine)
        return self.wide[id(plan)]

    def _bytes(self, storage: int, stage: int, machine: Machine) -> np.ndarray:
        """Of a storage on each tile of the IPU; nothing where nobody placed it."""
        layout = self._layout(storage, stage, machine)
        return machine.whole(layout.bytes) if layout is not None else np.zeros(machine.target.tiles, np.int64)

    def _append(self, op: OpNode, plan: Plan, body: Body, machine: Machine) -> None:
        at = []
        before = body.cycles
        for part, step in enumerate(plan.steps):
            drafts = _drafts(step, machine.target.name)
            body.steps += [
                replace(draft, op=op.id, name=_step_name(op.name, draft.name), plan=plan, part=part) for draft in drafts
            ]
            at.append(len(body.steps) - 1)
        self.op_plans[op.id] = plan
        self.op_cycles[op.id] = body.cycles - before
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

    def _spec(self, op: OpNode, stage: int, machine: Machine) -> OpSpec:
        def concrete(item: Any) -> Any:
            if isinstance(item, ValueRef):
                return self._operand(item.id, stage, machine)
            return tuple(concrete(element) for element in item) if isinstance(item, tuple) else item

        read = {self._storage(v) for v in op.inputs}
        outputs = tuple(
            None if v is None else self._operand(v, stage, machine, placed=self._storage(v) in read) for v in op.outputs
        )
        named = tuple((key, concrete(value)) for key, value in op.kwargs)
        return OpSpec(op.aten, tuple(concrete(a) for a in op.args), named, outputs)

    def _operand(self, value_id: int, stage: int, machine: Machine, placed: bool = True) -> Operand:
        value = self.graph.values[value_id]
        storage = self.graph.storages[value.storage]
        layout = self._layout(value.storage, stage, machine) if placed else None
        # a plan asks only whether something stays: a layer that is run again in the backward is the same operators
        role = storage.role if storage.role in _PERSISTENT else "activation"
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
        """Optimiser ops of a stage; state kept in streaming memory comes and goes around its weight's ops."""
        states: dict[int, list[int]] = {}
        for storage in self.graph.storages.values():
            if storage.role == "optimiser state" and self.placement.home.get(storage.id) == stage:
                states.setdefault(storage.parameter, []).append(storage.id)
        by_weight: dict[int, list[OpNode]] = {}
        made: dict[int, int] = {}
        for op in ops:
            owners = (self._owner(self._storage(v), made) for v in op.inputs)
            weight = next((w for w in owners if w >= 0), -1)
            by_weight.setdefault(weight, []).append(op)
            for output in op.outputs:
                if output is not None:
                    made.setdefault(self._storage(output), weight)
        machine = self.machines[body.ipu]
        for weight, mine in by_weight.items():
            moved = list(states.get(weight, [])) if self.options.offload_optimiser else []
            moved += dict.fromkeys(s for op in mine for v in op.inputs if (s := self._storage(v)) in self.moving)
            if moved:
                owner = self.graph.storages[moved[0]]
                owner = self.graph.storages[owner.parameter] if owner.parameter >= 0 else owner
                name = f"{owner.name}/{'state' if self.moving else 'optimiser state'}"
                self._remote(moved, f"{name}/load", stage, body, to_host=False)
            for op in mine:
                self._lower(op, stage, body)
            if moved:
                self._remote(moved, f"{name}/store", stage, body, to_host=True)
        for offloaded in states.values():
            for state in offloaded:
                self._layout(state, stage, machine)

    def _owner(self, storage: int, made: dict[int, int]) -> int:
        item = self.graph.storages[storage]
        if item.role == "weight":
            return storage
        return item.parameter if item.parameter >= 0 else made.get(storage, -1)

    def _remote(self, storages: list[int], name: str, stage: int, body: Body, *, to_host: bool) -> None:
        """Move storages between tiles and streaming memory, in one stream copy."""
        if not storages:
            return
        target = self.machines[body.ipu].target
        nbytes = np.sum([self._bytes(s, stage, self.machines[body.ipu]) for s in storages], axis=0)
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
        """All-reduce of gradients over replicas: a ring moves 2 (R - 1) / R of the bytes through each IPU.

        Replicas lie one after the other, each on a power of two of IPUs: the ring's steps go from an IPU to the same of
        the next replica, and its slowest link sets the pace. From three replicas on half of the data goes round each
        way (GCL's bidirectional ring; two directions carry twice one, JIA); two replicas use both ways as it is.
        """
        replicas = self.options.replicas
        if replicas == 1 or not self.graph.training:
            return None
        target = self.machines[ipu].target
        gradients = [s for s in self._gradients() if self.placement.ipus[self.placement.home.get(s, 0)] == ipu]
        nbytes = np.zeros(target.tiles, np.int64)
        for storage in gradients:
            nbytes = nbytes + self._bytes(storage, self.placement.home.get(storage, 0), self.machines[ipu])
        if not nbytes.any():
            return None
        moved = 2 * (replicas - 1) * int(nbytes.sum()) / replicas
        apart = 1 << (self.placement.num_ipus - 1).bit_length()
        first, last = ipu, ipu + apart * (replicas - 1)
        rate = link_rate(target, first, last)  # one link between boards is enough to slow the ring down
        latency = 2 * (replicas - 1) * link_latency_cycles(target, link_hops(0, apart))
        cycles = ceil(latency + moved / (2 if replicas > 2 else 1) / rate)
        body = self._one_step(
            f"IPU {ipu} all-reduce of gradients", ipu, schedules.REDUCE, records.GLOBAL_EXCHANGE, "AllReduce", cycles
        )
        body.steps[0].bytes_in = body.steps[0].bytes_out = 2 * nbytes * (replicas - 1) // replicas
        for storage in gradients:
            body.touch(storage, 0, 0)
        return body

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
