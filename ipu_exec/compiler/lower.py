"""Lowering: plans every operator on its stage and so decides the layout of every storage.

Operators are planned in program order; the first plan to set a storage's layout decides it. A
storage that no plan decides is linear, a copy on another stage has its original's layout, and
accumulators and optimiser state have their weight's.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ipu_exec.base.once import Once
from ipu_exec.compiler.emission.bodies import widened
from ipu_exec.compiler.emission.host_streams import inputs_by_stage, outputs_by_stage
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.compiler.placement.locations import Shard
from ipu_exec.compiler.placement.place import Placement
from ipu_exec.compiler.placement.residency import Residency, WeightUpdate
from ipu_exec.compiler.tile_mapping import TileMapping, linear_layout_of
from ipu_exec.errors import LoweringError
from ipu_exec.graph import Graph, OpNode, ValueRef
from ipu_exec.lowering import generic, info, lower
from ipu_exec.lowering.plan import ITEM_BYTES, Layout, Operand, OpSpec, Plan
from ipu_exec.machine import Machine
from ipuscope.profiler.enums import OF_WEIGHTS, Direction, Role


def lower_graph(
    graph: Graph,
    placement: Placement,
    residency: Residency,
    machines: Sequence[Machine],
    options: CompileOptions,
) -> TileMapping:
    """The pass: plan every operator. ``machines`` has one machine per IPU."""
    lowering = _Lowering(graph, placement, residency, machines, options)
    lowering.forward_and_backward()
    lowering.updates()
    lowering.unused()
    return TileMapping(
        graph,
        placement,
        residency,
        tuple(machines),
        options.replicas,
        lowering.plans,
        one_after_another(graph, residency.away, lowering.layouts.of, lowering.once),
        lowering.once,
    )


def _serialised_weights(graph: Graph) -> frozenset[int]:
    """Storages of weights that serialised products cut."""
    cut = {
        graph.values[v].storage for op in graph.ops if op.attributes.serialised for v in op.inputs
    }
    return frozenset(s for s in cut if graph.storages[s].role == Role.WEIGHT)


class _Layouts:
    """The layouts decided so far, by (storage, stage)."""

    def __init__(self, graph: Graph, placement: Placement, machine: Machine, once: Once) -> None:
        self.graph, self.machine, self.once = graph, machine, once
        self.of: dict[tuple[int, int], Layout] = {}
        self._source: dict[tuple[int, int], int] = {}  # (storage, stage) -> stage it comes from
        self._serialised = _serialised_weights(graph)
        for transfer in placement.transfers:
            step = 1 if transfer.target > transfer.source else -1
            for stage in range(transfer.source + step, transfer.target + step, step):
                self._source[transfer.storage, stage] = transfer.source

    def decide(self, storage_id: int, stage: int) -> Layout | None:
        """The layout of a storage on a stage; None for a weight that has not been used yet."""
        key = (storage_id, stage)
        if key not in self.of:
            layout = self._undecided(storage_id, stage)
            if layout is not None:
                self.of[key] = layout
        return self.of.get(key)

    def _undecided(self, storage_id: int, stage: int) -> Layout | None:
        storage = self.graph.storages[storage_id]
        source = self._source.get((storage_id, stage))
        if source is not None and (storage_id, source) in self.of:
            return self.of[storage_id, source]
        if storage.parameter >= 0:
            owner = self.graph.storages[storage.parameter]
            like = self.of.get((storage.parameter, stage))
            if like is not None and owner.elements == storage.elements:
                elements = self.once(np.floor_divide, like.bytes, ITEM_BYTES[owner.dtype])
                item_bytes = ITEM_BYTES[storage.dtype]
                return Layout(like.key, self.once(np.multiply, elements, item_bytes))
            return self._linear(storage_id)
        if storage_id in self._serialised:
            return self._in_slices(storage_id)
        return None if storage.role in (Role.WEIGHT, Role.BUFFER) else self._linear(storage_id)

    def _in_slices(self, storage_id: int) -> Layout:
        """The layout of a weight of a serialised product: every slice lies over all tiles.

        Its products decide it, each for its slice, not the embedding that reads it first
        ([POPART, willow/src/popx/op/tiedgatherx.cpp], TiedGatherOpx: inputCreatorPriority).
        """
        layout = self._linear(storage_id)
        return replace(layout, key=("sliced", 0, layout.key))

    def _linear(self, storage_id: int) -> Layout:
        return linear_layout_of(self.graph, storage_id, self.machine)

    def whole(self, weight: int, stage: int) -> Layout:
        """The whole layout of a weight that is cut into shards."""
        layout = self.decide(weight, stage) or self._linear(weight)
        return self.of.setdefault((weight, stage), layout)

    def settle(self, op: OpNode, plan: Plan, stage: int) -> None:
        """Give operands and results the plan's layouts unless these were decided before."""
        operands = [self.graph.values[v].storage for v in op.inputs]
        for index, layout in plan.input_layouts:
            self.of.setdefault((operands[index], stage), layout)
        self._settle_linear(operands, stage)
        for output, planned in zip(op.outputs, plan.output_layouts, strict=False):
            if output is not None and planned is not None:
                self.of.setdefault((self.graph.values[output].storage, stage), planned)
        self._settle_linear(self.graph.results(op), stage)

    def _settle_linear(self, storages: Iterable[int], stage: int) -> None:
        for storage in storages:
            if (storage, stage) not in self.of:
                self.of[storage, stage] = self._linear(storage)


def _with_operands(argument: Any, operand: Callable[[int], Operand]) -> Any:
    """An argument with operands in place of values."""
    if isinstance(argument, ValueRef):
        return operand(argument.id)
    if isinstance(argument, tuple):
        return tuple([_with_operands(one, operand) for one in argument])
    return argument


class _Lowering:
    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        residency: Residency,
        machines: Sequence[Machine],
        options: CompileOptions,
    ) -> None:
        self.graph, self.placement, self.residency = graph, placement, residency
        self.machines, self.options = machines, options
        self.stages = range(len(placement.stages))
        self.once = Once()
        self.layouts = _Layouts(graph, placement, machines[0], self.once)
        self.states: dict[int, list[int]] = {}  # of the optimiser, by the stage that is their home
        for state in graph.storages.values():
            if state.role == Role.OPTIMISER_STATE and state.id in placement.home:
                self.states.setdefault(placement.home[state.id], []).append(state.id)
        self.plans: dict[int, Plan] = {}
        # by id: a plan, and the same with vectors over all tiles
        self.wide: dict[int, tuple[Plan, Plan]] = {}
        self.settings: dict[Any, Machine] = {}  # machines with operators' settings

    # -- the order of the program ---

    def forward_and_backward(self) -> None:
        for stage in self.stages:
            for op in self.residency.ops.get((Direction.FORWARD, stage), ()):
                self._lower(op, stage)
        for stage in reversed(self.stages):
            for op in self.residency.ops.get((Direction.BACKWARD, stage), ()):
                self._lower(op, stage, self._shard_of_accumulator(op, stage))

    def updates(self) -> None:
        for ipu in range(self.placement.num_ipus):
            here = self.placement.stages_on(ipu)
            for stage in here:
                self._updates(stage, ahead=True)
            for stage in here:
                self._updates(stage, ahead=False)

    def _updates(self, stage: int, ahead: bool) -> None:
        for update in self.residency.updates[stage]:
            if update.ahead != ahead:
                continue
            shard = self._shard_of_update(update, stage)
            for storage in update.moved:
                self.layouts.decide(storage, stage)
            for op in update.ops:
                self._lower(op, stage, None if op.id in update.whole else shard)
        for state in () if ahead else self.states.get(stage, ()):
            self.layouts.decide(state, stage)

    def unused(self) -> None:
        """Lay out storages that no operator uses: host inputs and outputs, tensors passing by."""
        for by_stage in (inputs_by_stage, outputs_by_stage):
            for (stage, _), storages in by_stage(self.graph, self.placement, self.options).items():
                for storage in storages:
                    self.layouts.decide(storage, stage)
        for transfer in () if self.placement.phases else self.placement.transfers:
            self._pass_through(transfer.storage, transfer.source, transfer.away)

    def _pass_through(self, storage: int, source: int, target: int) -> None:
        """Give a tensor that is copied from IPU to IPU its original's layout on each of them."""
        ipus = self.placement.ipus
        step = 1 if target > source else -1
        for stage in range(source, target, step):
            layout = self.layouts.decide(storage, source)
            if ipus[stage] != ipus[stage + step] and layout is not None:
                self.layouts.of.setdefault((storage, stage + step), layout)

    # -- parts on replicas ---

    def _shard(self, weight: int, stage: int) -> Shard:
        whole = self.layouts.whole(weight, stage)
        return Shard.of(self.graph.storages[weight], whole, self.options.replicas, self.once)

    def _shard_of_accumulator(self, op: OpNode, stage: int) -> Shard | None:
        """The shard of an accumulator that replicas share and to which ``op`` adds a gradient."""
        accumulator = self.residency.places.shared_accumulator(self.graph, op)
        if accumulator is None:
            return None
        storage = self.graph.storages[accumulator]
        shard = self._shard(storage.parameter, stage)
        self.layouts.of[accumulator, stage] = shard.layout(storage.dtype)
        return shard.of_slice(prod(self.graph.values[op.writes[0]].shape))

    def _shard_of_update(self, update: WeightUpdate, stage: int) -> Shard | None:
        if not update.in_parts:
            return None
        shard = self._shard(update.weight, stage)
        for state in update.states:
            if state in self.residency.places.split:
                dtype = self.graph.storages[state].dtype
                self.layouts.of[state, stage] = shard.layout(dtype)
        return shard

    # -- one operator ---

    def _lower(self, op: OpNode, stage: int, shard: Shard | None = None) -> None:
        """Plan an operator, on this replica's ``shard`` if given, and record its layouts."""
        machine = self._machine(op, self.placement.ipus[stage])
        spec = self._spec(op, stage, shard)
        try:
            plan = lower(spec, machine)
        except LoweringError as error:
            where = f"{op.file}:{op.line}" if op.file else ""
            if not self.options.estimate_unknown:
                raise LoweringError(
                    f"{error.message} (in module {op.module or 'the model'!r})", location=where
                ) from None
            plan = generic(spec, machine)  # the profile marks its steps as estimated
        self.layouts.settle(op, plan, stage)
        self.plans[op.id] = self._widened(plan, machine)

    def _machine(self, op: OpNode, ipu: int) -> Machine:
        """The machine for which to plan an operator, with the model's settings for it."""
        machine, attributes = self.machines[ipu], op.attributes
        blocks, proportions = self.graph.blocks, self.options.block_proportions
        own = proportions.get(blocks[op.block].name) if op.block >= 0 else None
        proportion = attributes.proportion or own or machine.proportion
        dithering = machine.dithering if attributes.dithering is None else attributes.dithering
        dithering = info(op.aten).convolution and dithering
        key = ipu, proportion, attributes.partials, dithering
        if key not in self.settings:
            partials = attributes.partials or machine.partials
            self.settings[key] = replace(
                machine, proportion=proportion, partials=partials, dithering=dithering
            )
        return self.settings[key]

    def _widened(self, plan: Plan, machine: Machine) -> Plan:
        """Widen the plan to all tiles: lowerings only know the tiles that compute."""
        if not machine.io_tiles:
            return plan
        if id(plan) not in self.wide:
            self.wide[id(plan)] = plan, widened(plan, machine)
        return self.wide[id(plan)][1]

    def _spec(self, op: OpNode, stage: int, shard: Shard | None) -> OpSpec:
        seen: set[int] = set()

        def operand(value: int) -> Operand:
            one = self._operand(value, stage, shard)
            if value in seen:
                return replace(one, again=True)
            seen.add(value)
            return one

        storages = [None if v is None else self.graph.values[v].storage for v in op.outputs]
        read = {self.graph.values[v].storage for v in op.inputs}
        outputs = tuple(
            None if value is None else self._operand(value, stage, shard, storage in read)
            for value, storage in zip(op.outputs, storages, strict=True)
        )
        named = _with_operands(op.kwargs, operand)
        return OpSpec(op.aten, _with_operands(op.args, operand), named, outputs)

    def _operand(
        self, value_id: int, stage: int, shard: Shard | None, placed: bool = True
    ) -> Operand:
        value = self.graph.values[value_id]
        storage = self.graph.storages[value.storage]
        # a plan asks only if something stays: a layer that the backward runs again is the same
        # operators
        role = storage.role if storage.role in OF_WEIGHTS else Role.ACTIVATION
        if shard is not None and prod(value.shape) == shard.of_elements:
            layout = shard.layout(value.dtype) if placed else None
            return Operand((shard.size,), value.dtype, (1,), 0, shard.size, layout, role)
        layout = self.layouts.decide(value.storage, stage) if placed else None
        return Operand(
            value.shape, value.dtype, value.strides, value.offset, storage.elements, layout, role
        )


# -- Where weights begin that no operator lays out: biases, and the parameters of norms ---
# Poplibs maps a tensor linearly from tile 0 on; PopART then turns each so that it begins where
# the last one on its IPU ended ([POPART, willow/src/popx/linearmapper.cpp], LinearMapper), since
# the small parameters of every layer would pile up on the same tiles. Here they go on from one
# IPU to the next: where one begins does not depend on the split, and the profile of a split tells
# the memory of another. No operator's cycles depend on it, and equal layers have equal plans.
# Storages off the chip come to where equal tensors come to, so that their transfers share code.
#

LINEAR = "linear"
Layouts = Mapping[tuple[int, int], Layout]


def one_after_another(graph: Graph, away: Container[int], layouts: Layouts, once: Once) -> Layouts:
    """``layouts``, by (storage, stage), with each linear weight behind the last.

    States stay with their weight, storages off the chip (``away``) as they are.
    """
    at_home = {key: layout for key, layout in layouts.items() if key[0] not in away}
    starts = _starts(graph, at_home)
    moved = dict(layouts)
    for (storage, stage), layout in at_home.items():
        parameter = graph.storages[storage].parameter
        start = starts.get(parameter if parameter >= 0 else storage)
        if start is not None and _is_linear(layout):
            moved[storage, stage] = _from(layout, start, once)
    return moved


def _starts(graph: Graph, layouts: Layouts) -> dict[int, int]:
    """The first tile of each linear weight."""
    starts: dict[int, int] = {}
    following = 0
    for storage, stage in sorted(layouts):
        layout = layouts[storage, stage]
        weight = graph.storages[storage].role in (Role.WEIGHT, Role.BUFFER)
        if weight and _is_linear(layout) and storage not in starts:
            starts[storage] = following
            used = int(np.count_nonzero(layout.bytes))
            following = (following + used) % len(layout.bytes)
    return starts


def _is_linear(layout: Layout) -> bool:
    return isinstance(layout.key, tuple) and layout.key[0] == LINEAR


def _from(layout: Layout, start: int, once: Once) -> Layout:
    """A linear layout from another first tile on; the last part of its key is the first tile."""
    assert isinstance(layout.key, tuple)
    *rest, before = layout.key
    return Layout((*rest, start), once(np.roll, layout.bytes, start - before))
