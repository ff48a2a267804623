"""Residency: where each tensor waits while nothing uses it, and which are recomputed instead.

Decides stash, recomputation, phases, streaming memory and sharding over replicas before lowering,
since an operator on a replica's part of a weight is planned differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ipu_exec.capture import overlap
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.compiler.placement.locations import Places, by_weight, locate
from ipu_exec.compiler.placement.phases import Moves, Traffic, moves
from ipu_exec.compiler.placement.place import Placement
from ipu_exec.compiler.placement.recompute import (
    Recomputation,
    after_last_checkpoint,
    asked_for,
    made_by,
    never_recomputed,
    run_again,
)
from ipu_exec.graph import Graph, OpNode
from ipuscope.profiler.enums import Direction, Role

_STASHED = (Role.ACTIVATION, Role.INPUT, Role.GRADIENT)


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """The operators that update a weight (a storage; -1: none) on a stage, and their tensors."""

    weight: int
    ops: tuple[OpNode, ...]
    states: tuple[int, ...]  # storages of its optimiser state
    read_away: tuple[int, ...]  # storages that they read and that come to the chip for it
    moved: tuple[int, ...]  # all that comes before the update and goes after it
    in_parts: bool  # each replica updates its part
    whole: frozenset[int]  # of ``ops``: ids of those that run on whole tensors all the same
    ahead: bool = False  # some of a weight's operators, which run before the updates of all weights

    @property
    def moves_states_only(self) -> bool:
        """Whether optimiser state is all that is loaded and stored."""
        return set(self.moved) <= set(self.states)


@dataclass(frozen=True, slots=True)
class Residency:
    """The pass's result. Its lists of operators contain no views."""

    ops: Mapping[tuple[str, int], Sequence[OpNode]]  # by direction and stage
    stashed: Mapping[int, Sequence[int]]  # stage -> storages
    again: Mapping[int, Sequence[OpNode]]  # stage -> forward ones that run before its backward
    stays: Mapping[int, frozenset[int]]  # stage -> storages that recomputation leaves alone
    updates: Mapping[int, tuple[WeightUpdate, ...]]  # by stage
    places: Places
    traffic: Mapping[tuple[str, int], Traffic]  # of phases, by direction and stage
    moving: Mapping[int, bool]  # storages that phases move, and whether after every one
    away: frozenset[int]  # storages that are loaded before a use and stored after a change
    turning: frozenset[int]  # phased: stages whose backward follows their forward at once
    parted_weights: frozenset[int]  # of which each replica has a part
    across: bool  # what is overlapped is so from one device iteration into the next

    def not_always_whole(self) -> dict[int, bool]:
        """Storages that are at times off the chip or sharded, and if loaded for each part."""
        return {**self.moving, **dict.fromkeys(self.places.remote | self.parted_weights, True)}

    def recomputed(self, graph: Graph) -> dict[int, set[int]]:
        """The storages that each stage recomputes before its backward."""
        return {
            stage: {s for op in ops for s in made_by(graph, op)}
            for stage, ops in self.again.items()
        }


def decide(graph: Graph, placement: Placement, options: CompileOptions) -> Residency:
    """Run the pass. Warns where a location in the options is not possible."""
    stages = range(len(placement.stages))
    ops: dict[tuple[str, int], list[OpNode]] = {}
    for op, stage in zip(graph.ops, placement.op_stage, strict=True):
        if not graph.only_aliases(op):
            ops.setdefault((op.direction, stage), []).append(op)
    kinds = kinds_of_stages(placement, options)
    stays = stays_by_stage(graph, placement, kinds)
    stashed: dict[int, list[int]] = {}
    again: dict[int, list[OpNode]] = {}
    for stage in stages:
        stashed[stage], again[stage] = _stash(
            graph, placement, ops, stage, kinds[stage], stays[stage]
        )
    phased = moves(graph, placement, ops, again, options) if placement.phases else Moves({}, {})
    places = locate(graph, placement, ops, again, options)
    away = places.remote | phased.moving.keys()
    states, shared = _states(graph, placement), _shared_between_weights(graph)
    updates = {
        stage: _updates(
            graph,
            ops.get((Direction.UPDATE, stage), []),
            states.get(stage, {}),
            places,
            away,
            shared,
        )
        for stage in stages
    }
    return Residency(
        ops,
        stashed,
        again,
        stays,
        updates,
        places,
        phased.traffic,
        phased.moving,
        away,
        _turning(placement, options),
        frozenset(s for s in places.split if graph.storages[s].role == Role.WEIGHT),
        overlap.across(graph, options.iterations),
    )


def _turning(placement: Placement, options: CompileOptions) -> frozenset[int]:
    phases = placement.phases
    if not phases or options.strategy.separate_backward_phase:
        return frozenset()
    return frozenset(stage for stage, phase in enumerate(phases) if phase == phases[-1])


def _waits(placement: Placement, stage: int) -> bool:
    """Whether other micro-batches come between a stage's forward and its backward."""
    last = stage == len(placement.stages) - 1
    return placement.pipelined and (bool(placement.phases) or not last)


def kinds_of_stages(placement: Placement, options: CompileOptions) -> list[Recomputation]:
    """The kind of recomputation of each stage: its own setting, or that of all stages.

    A stage that recomputes where others do not does so as in a pipeline.
    """
    usual = asked_for(options.recomputation, placement.pipelined)
    alone = Recomputation.PIPELINE if placement.pipelined else Recomputation.RECOMPUTE_ALL
    kinds = []
    for stage in placement.stages:
        recompute = options.strategy.recomputes(stage.blocks)
        own = (usual or alone) if recompute else Recomputation.NONE
        kinds.append(usual if recompute is None else own)
    return kinds


def stays_by_stage(
    graph: Graph, placement: Placement, kinds: Sequence[Recomputation]
) -> dict[int, frozenset[int]]:
    """The storages that each stage does not recompute."""
    forward = [
        op for op in graph.ops if op.direction == Direction.FORWARD and not graph.only_aliases(op)
    ]
    stays = {kind: never_recomputed(graph, forward, kind) for kind in set(kinds)}
    near_loss = {kind: after_last_checkpoint(graph, forward, stays[kind]) for kind in stays}
    return {
        stage: frozenset(stays[kind] if _waits(placement, stage) else stays[kind] | near_loss[kind])
        for stage, kind in enumerate(kinds)
    }


def _stash(
    graph: Graph,
    placement: Placement,
    ops: Mapping[tuple[str, int], list[OpNode]],
    stage: int,
    kind: Recomputation,
    left_alone: frozenset[int],
) -> tuple[list[int], list[OpNode]]:
    """The storages that a stage stashes and the operators that it runs again.

    Without recomputation it stashes whatever the backward reads of the forward. With it, it
    stashes the stage's inputs and checkpoints and runs the rest again. Nothing is stashed if the
    backward follows at once (the last stage, no pipeline;
    docs/pipeline-schedules.md#memory-of-a-stage), nor in phases, which use streaming memory.
    """
    if not graph.training or (placement.phases and not placement.pipelined):
        return [], []
    forward, backward = (
        ops.get((Direction.FORWARD, stage), []),
        ops.get((Direction.BACKWARD, stage), []),
    )
    made_here = {s for op in forward for s in made_by(graph, op)}
    stays = made_here if kind is Recomputation.NONE else left_alone
    again, needed = run_again(graph, forward, backward, set(stays))
    if placement.phases or not _waits(placement, stage):
        return [], again
    candidates = dict.fromkeys(
        graph.values[value].storage
        for op in forward
        for value in (*op.inputs, *op.outputs)
        if value is not None
    )
    stashed = [
        s
        for s in candidates
        if s in needed and (s in stays or s not in made_here) and graph.storages[s].role in _STASHED
    ]
    return stashed, again


def _states(graph: Graph, placement: Placement) -> dict[int, dict[int, list[int]]]:
    """Storages of optimiser state by home stage, then by weight."""
    states: dict[int, dict[int, list[int]]] = {}
    for storage in graph.storages.values():
        if storage.role == Role.OPTIMISER_STATE and storage.id in placement.home:
            of_stage = states.setdefault(placement.home[storage.id], {})
            of_stage.setdefault(storage.parameter, []).append(storage.id)
    return states


def _updates(
    graph: Graph,
    ops: Sequence[OpNode],
    states: Mapping[int, Sequence[int]],
    places: Places,
    away: frozenset[int],
    shared: frozenset[int],
) -> tuple[WeightUpdate, ...]:
    """A stage's updates, weight by weight, without the state of weights that it does not update.

    ``states``: the stage's optimiser state by weight. ``shared``: operators that run before those
    of all weights (`_shared_between_weights`), unless their weight's update loads what they read.
    """
    updates: list[WeightUpdate] = []
    ahead: dict[int, WeightUpdate] = {}  # by the first operator
    for weight, all_of_weight in by_weight(graph, ops).items():
        of_weight = all_of_weight
        of_state = tuple(states.get(weight, ()))
        read = dict.fromkeys(graph.values[v].storage for op in of_weight for v in op.inputs)
        in_parts = weight in places.updated_in_parts
        for op in of_weight:
            if op.id in shared and not away & {graph.values[v].storage for v in op.inputs}:
                ahead[op.id] = WeightUpdate(weight, (op,), (), (), (), in_parts, frozenset(), True)
        of_weight = [op for op in of_weight if op.id not in ahead]
        read_away = tuple(s for s in read if s in away)
        waiting = [s for s in of_state if s in places.remote and s not in read_away]
        whole = frozenset(op.id for op in of_weight if _clears_whole(graph, op, places))
        updates.append(
            WeightUpdate(
                weight,
                tuple(of_weight),
                of_state,
                read_away,
                (*waiting, *read_away),
                in_parts,
                whole,
            )
        )
    first = [ahead[op] for op in sorted(ahead)]
    return (*first, *updates)


def _shared_between_weights(graph: Graph) -> frozenset[int]:
    """The update's operators whose results several weights' updates read: a norm of all gradients.

    The operators that make their operands, the norm of each gradient, are among them.
    """
    update = [op for op in graph.ops if op.direction == Direction.UPDATE]
    owner = {op.id: weight for weight, ops in by_weight(graph, update).items() for op in ops}
    makers: dict[int, list[OpNode]] = {}  # storage -> operators of the update that wrote it so far

    def made_before(op: OpNode) -> list[OpNode]:
        read = (graph.values[value].storage for value in op.inputs)
        return [maker for s in read for maker in makers.get(s, ()) if maker.id < op.id]

    shared: set[int] = set()
    for op in update:
        waiting = [maker for maker in made_before(op) if owner[maker.id] != owner[op.id]]
        while waiting:
            maker = waiting.pop()
            if maker.id not in shared:
                shared.add(maker.id)
                waiting += made_before(maker)
        for storage in made_by(graph, op):
            makers.setdefault(storage, []).append(op)
    return frozenset(shared)


def _clears_whole(graph: Graph, op: OpNode, places: Places) -> bool:
    """Whether an operator clears a whole accumulator, even if the weight is updated in parts."""
    written = {graph.values[v].storage for v in op.writes}
    return op.aten.startswith("aten.zero_") and not written & places.split
