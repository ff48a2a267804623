"""The location of each tensor: on the chip, in streaming memory, or sharded over the replicas.

Each of R replicas stores 1/R of a sharded tensor (docs/pipeline-schedules.md#sharded-state). A
weight whose value, state or accumulator is sharded is updated in parts: its gradient is
reduce-scattered instead of all-reduced, each replica updates its part, and whole tensors are
gathered. The rules are those of [POPART, willow/src/transforms/streamingmemoryopinserter.cpp]: a
location applies to a kind of tensor, tensors below a number of elements stay where they are, and
activations are never sharded, nor anything without replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod

import numpy as np

from ipu_exec.base.once import Once, total
from ipu_exec.base.replica_groups import Grouping, Groupings
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.compiler.options import CompileOptions, Locations
from ipu_exec.compiler.placement.place import Placement
from ipu_exec.compiler.placement.reads import read_values
from ipu_exec.compiler.placement.recompute import made_by
from ipu_exec.graph import Graph, OpNode, Storage, weight_of
from ipu_exec.lowering import info
from ipu_exec.lowering.layouts import ceil_div
from ipu_exec.lowering.plan import ITEM_BYTES, Layout
from ipuscope.profiler.enums import Direction, Role


@dataclass(frozen=True, slots=True)
class Shard:
    """A replica's part of a weight, or of a tensor of its size.

    1/R of the elements on every tile, rounded up, as in GCL's CollectiveBalancedReorder.
    """

    weight: int  # storage
    whole: Layout
    elements: np.ndarray  # over tiles
    key: tuple[object, ...]
    of_elements: int  # those of the whole tensor
    size: int  # elements over all tiles
    once: Once = field(compare=False, repr=False)

    @classmethod
    def of(cls, weight: Storage, whole: Layout, replicas: int, once: Once) -> Shard:
        """One replica's part of ``weight``, over the tiles of its whole layout."""
        elements = once(np.floor_divide, whole.bytes, ITEM_BYTES[weight.dtype])
        key = ("shard", 0, replicas, whole.key)
        part = once(ceil_div, elements, replicas)
        return cls(weight.id, whole, part, key, weight.elements, once(total, part), once)

    def of_slice(self, elements: int) -> Shard:
        """One replica's part of a slice of so many elements (a serialised product's gradient)."""
        share = ceil_div(self.elements * elements, self.of_elements)
        key = (*self.key, elements) if elements < self.of_elements else self.key
        return replace(self, elements=share, key=key, of_elements=elements, size=total(share))

    def layout(self, dtype: str) -> Layout:
        """The layout of the part, for elements of ``dtype``."""
        return Layout(self.key, self.once(np.multiply, self.elements, ITEM_BYTES[dtype]))


def _runs_on_parts(op: OpNode) -> bool:
    """Whether an operator can run on parts: elementwise, or a reduction of all to one number."""
    operator = info(op.aten)
    dimensions = any(isinstance(item, tuple) for item in (*op.args, *dict(op.kwargs).values()))
    return operator.elementwise or (operator.reduces_parts and not dimensions)


@dataclass(frozen=True, slots=True)
class Places:
    """Storages that are at some time off the chip, or sharded over replicas."""

    remote: frozenset[int] = frozenset()  # wait in streaming memory while no operator uses them
    split: frozenset[int] = frozenset()  # sharded: each replica stores its part
    updated_in_parts: frozenset[int] = frozenset()  # weights: each replica updates its part
    # of ``remote``: the last operator that changes it in a direction of a stage
    last_change: Mapping[tuple[str, int], Mapping[int, int]] = field(default_factory=dict)

    def shared_accumulator(self, graph: Graph, op: OpNode) -> int | None:
        """The sharded accumulator that ``op`` writes, or None."""
        written = (graph.values[value].storage for value in op.writes)
        return next((storage for storage in written if storage in self.split), None)


Ops = Mapping[tuple[str, int], Sequence[OpNode]]  # by direction and stage


def locate(
    graph: Graph,
    placement: Placement,
    ops: Ops,
    again: Mapping[int, Sequence[OpNode]],
    options: CompileOptions,
) -> Places:
    """Decide the location of each tensor, and warn where the options' location is not possible.

    ``again``: the operators that each stage runs again before its backward. Phases move weights,
    accumulators and activations. Tensors that stages share, and a pipeline's stashed activations,
    stay whole on the chip. A stage may set the location of its weights' optimiser state.
    """
    locations, groupings = options.locations, options.groupings
    phased = bool(placement.phases)
    in_pipeline = placement.pipelined and not phased
    if in_pipeline and graph.training and locations.activation.off_chip:
        warn_once(
            "TensorLocations.setActivationLocation: useOnChipStorage(False) is not honoured in a"
            " pipeline: its stash stays on the chip. ShardedExecution and phased execution"
            " honour it"
        )
    shared = {transfer.storage for transfer in placement.transfers}
    waits = set() if phased or placement.pipelined else _read_backward(graph, placement, ops, again)
    remote = _remote(graph, locations, shared, waits, phased)
    remote = _where_stages_say(graph, placement, options, remote)
    of_updates = (mine for (direction, _), mine in ops.items() if direction == Direction.UPDATE)
    updates = by_weight(graph, [*chain.from_iterable(of_updates)])
    split = _split(graph, locations, groupings, updates, shared, phased)
    weights = {graph.storages[storage].owner for storage in split}
    return Places(
        frozenset(remote),
        frozenset(split),
        frozenset(weights & updates.keys()),
        {key: _last_changes(graph, mine, remote) for key, mine in ops.items()},
    )


def _remote(
    graph: Graph, locations: Locations, shared: set[int], waits: set[int], phased: bool
) -> set[int]:
    """The storages in streaming memory; ``shared``: of several stages, ``waits``: for backward."""
    remote, common = set(), []
    for storage in graph.storages.values():
        fixed = storage.id in shared or (phased and storage.role != Role.OPTIMISER_STATE)
        idle = storage.role != Role.ACTIVATION or storage.id in waits
        if locations.off_chip(storage) and not fixed and idle:
            remote.add(storage.id)
            continue
        refused = storage.role == Role.WEIGHT and storage.id in shared and not phased
        if refused and locations.moves(storage):
            common.append(storage.name)
    _warn_of("TensorLocations.setWeightLocation", common, "stages share them")
    return remote


def _where_stages_say(
    graph: Graph, placement: Placement, options: CompileOptions, remote: set[int]
) -> set[int]:
    """``remote``, changed for the optimiser state of stages that set its location."""
    by_stage = [options.strategy.keeps_state_off_chip(stage.blocks) for stage in placement.stages]
    off_chip, on_chip = set(), set()
    for storage in graph.storages.values():
        wanted = by_stage[placement.home[storage.id]] if storage.id in placement.home else None
        if storage.role != Role.OPTIMISER_STATE or wanted is None:
            continue
        if not wanted:
            on_chip.add(storage.id)
        elif storage.elements >= options.locations.state.least_off_chip:
            off_chip.add(storage.id)
    return (remote | off_chip) - on_chip


def _split(
    graph: Graph,
    locations: Locations,
    groupings: Groupings,
    updates: Mapping[int, Sequence[OpNode]],
    shared: set[int],
    phased: bool,
) -> set[int]:
    """The sharded storages: weights, and storages of the size of one."""
    split: set[int] = set()
    refused, apart = [], []
    for storage in graph.storages.values():
        weight = storage.owner
        whole = storage.elements != graph.storages[weight].elements
        if whole or not locations.sharded(storage):
            continue
        if grouping_of(graph, storage.id, groupings) is not None:
            apart.append(storage.name)
        elif not all(_can_part(graph, weight, op) for op in updates.get(weight, ())):
            refused.append(storage.name)
        elif storage.id not in shared and (storage.role != Role.ACCUMULATOR or not phased):
            split.add(storage.id)
    option = "useReplicatedTensorSharding"
    _warn_of(option, apart, "their values differ between replicas (replicaGrouping)")
    _warn_of(option, refused, "their optimiser does more than elementwise operators and norms")
    return split


def _last_changes(graph: Graph, ops: Sequence[OpNode], remote: set[int]) -> dict[int, int]:
    """The last operator that changes each storage in streaming memory, by storage."""
    changes = {storage: op.id for op in ops for storage in made_by(graph, op)}
    return {storage: op for storage, op in changes.items() if storage in remote}


def _warn_of(option: str, names: list[str], why: str) -> None:
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warn_once(
            f"{option} is not honoured for {names[0]!r}{more}, which stay whole on the chip: {why}"
        )


def by_weight(graph: Graph, ops: Sequence[OpNode]) -> dict[int, list[OpNode]]:
    """Optimiser ops by the weight (a storage; -1: none) that they belong to."""
    by_weight: dict[int, list[OpNode]] = {}
    weights: dict[int, int] = {}
    for op in ops:
        owners = (weight_of(graph.storage_of(value), weights) for value in op.inputs)
        weight = next((w for w in owners if w >= 0), -1)
        by_weight.setdefault(weight, []).append(op)
        for storage in graph.results(op):
            weights.setdefault(storage, weight)
    return by_weight


def grouping_of(graph: Graph, storage_id: int, groupings: Groupings) -> Grouping | None:
    """How replicas of a weight, or of a gradient's or state's, are grouped; None: all alike."""
    storage = graph.storages[storage_id]
    weight = graph.storages[storage.parameter] if storage.parameter >= 0 else storage
    return groupings.get(weight.name) if weight.role == Role.WEIGHT else None


def _read_backward(
    graph: Graph, placement: Placement, ops: Ops, again: Mapping[int, Sequence[OpNode]]
) -> set[int]:
    """Storages of a stage's forward that its backward reads, except recomputed ones."""
    storages: set[int] = set()
    for stage in range(len(placement.stages)):
        forward_storages = {
            s for op in ops.get((Direction.FORWARD, stage), ()) for s in made_by(graph, op)
        }
        forward_storages -= {s for op in again[stage] for s in made_by(graph, op)}
        late = (*again[stage], *ops.get((Direction.BACKWARD, stage), ()))
        storages |= forward_storages & {
            graph.values[v].storage for op in late for v in read_values(op)
        }
    return storages


def _can_part(graph: Graph, weight: int, op: OpNode) -> bool:
    """Whether an operator of a weight's update can run on parts of the weight."""
    elements = graph.storages[weight].elements
    sizes = {prod(graph.values[v].shape) for v in op.inputs}
    return elements not in sizes or (sizes <= {elements, 1} and _runs_on_parts(op))
