"""Where tensors lie: whole on the chip, in streaming memory, or a part of each on every replica.

Of a tensor sharded over R replicas each keeps 1/R (docs/pipeline-schedules.md#sharded-state). A
weight whose value, state or accumulator is sharded is updated in parts: its gradient is scattered
instead of all-reduced, each replica updates its part, and what is kept whole is gathered. What
becomes of a tensor is read off [POPART, willow/src/transforms/streamingmemoryopinserter.cpp]: a
location holds for a kind of tensor, tensors under a number of elements are left alone, activations
are never sharded, and nothing is without replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ipu_exec.compiler.placement import Placement
from ipu_exec.compiler.reads import read_values
from ipu_exec.compiler.recompute import made_by
from ipu_exec.errors import warn_once
from ipu_exec.graph import Graph, OpNode, Storage
from ipu_exec.lowering import info
from ipu_exec.lowering.plan import ITEM_BYTES, Layout
from ipu_exec.replica_groups import Grouping, Groupings
from profiler.enums import Direction, Role

_KINDS = {
    Role.WEIGHT: "weight",
    Role.OPTIMISER_STATE: "state",
    Role.ACCUMULATOR: "accumulator",
    Role.ACTIVATION: "activation",
}


@dataclass(frozen=True, slots=True)
class Location:
    """Of one kind of tensor. The least elements are PopART's defaults
    [POPART, willow/include/popart/sessionoptions.hpp].
    """

    off_chip: bool = False
    sharded: bool = False
    least_off_chip: int = 2
    least_sharded: int = 8192


@dataclass(frozen=True, slots=True)
class Locations:
    """Of all kinds. ``replicas``: how many share a tensor that is sharded."""

    weight: Location = field(default_factory=Location)
    state: Location = field(default_factory=Location)
    accumulator: Location = field(default_factory=Location)
    activation: Location = field(default_factory=Location)
    replicas: int = 1

    def _of(self, storage: Storage) -> Location | None:
        kind = _KINDS.get(storage.role)
        found: Location | None = getattr(self, kind) if kind else None
        return found

    def off_chip(self, storage: Storage) -> bool:
        """Whether it waits in streaming memory while nothing uses it."""
        location = self._of(storage)
        return (
            location is not None
            and location.off_chip
            and storage.elements >= location.least_off_chip
        )

    def sharded(self, storage: Storage) -> bool:
        """Whether each replica keeps its part of it only."""
        location = self._of(storage)
        if location is None or storage.role == Role.ACTIVATION or self.replicas == 1:
            return False
        return location.sharded and storage.elements >= location.least_sharded

    def moves(self, storage: Storage) -> bool:
        """Whether it is not whole on the chip all the time."""
        return self.off_chip(storage) or self.sharded(storage)


@dataclass(frozen=True, slots=True)
class Shard:
    """A replica's part of a weight, and of what has its size: 1/R of the elements of every tile,
    rounded up.

    So lies what GCL's CollectiveBalancedReorder gives each replica: every tile keeps work, no
    element leaves its tile.
    """

    weight: int  # storage
    whole: Layout
    elements: np.ndarray  # over tiles
    key: tuple[object, ...]

    @classmethod
    def of(cls, weight: Storage, whole: Layout, replicas: int) -> Shard:
        held = whole.bytes // ITEM_BYTES[weight.dtype]
        return cls(weight.id, whole, -(-held // replicas), ("shard", 0, replicas, whole.key))

    @property
    def size(self) -> int:
        """Elements over all tiles."""
        return int(self.elements.sum())

    def layout(self, dtype: str) -> Layout:
        return Layout(self.key, self.elements * ITEM_BYTES[dtype])


def _runs_on_parts(op: OpNode) -> bool:
    """Whether an operator that reads tensors of one size can do so part by part: it is elementwise,
    or it makes one number of all elements, which replicas then reduce.
    """
    operator = info(op.aten)
    dimensions = any(isinstance(item, tuple) for item in (*op.args, *dict(op.kwargs).values()))
    return operator.elementwise or (operator.reduces_parts and not dimensions)


@dataclass(slots=True)
class Places:
    """Storages that are not whole on the chip all the time."""

    remote: set[int] = field(
        default_factory=set
    )  # wait in streaming memory while no operator uses them
    split: set[int] = field(default_factory=set)  # of which a replica keeps its part
    updated_in_parts: set[int] = field(
        default_factory=set
    )  # weights: each replica updates its part
    # of ``remote``: the last operator that changes it in a direction of a stage
    last_change: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)


Ops = Mapping[tuple[str, int], Sequence[OpNode]]  # by direction and stage


def locate(
    graph: Graph,
    placement: Placement,
    ops: Ops,
    again: Mapping[int, Sequence[OpNode]],
    locations: Locations,
    groupings: Groupings,
) -> Places:
    """Find them, and warn of what cannot be as asked. ``again``: what a stage runs again before its
    backward.

    In phased execution phases move weights, accumulators and activations. What stages share stays
    whole on the chip, and in a pipeline so do activations: their stash.
    """
    shared = {transfer.storage for transfer in placement.transfers}
    phases = bool(placement.phases)
    places = Places()
    waits = set() if phases or placement.pipelined else _read_backward(graph, placement, ops, again)
    common, refused, apart = [], [], []
    for storage in graph.storages.values():
        fixed = storage.id in shared or (phases and storage.role != Role.OPTIMISER_STATE)
        if (
            locations.off_chip(storage)
            and not fixed
            and (storage.role != Role.ACTIVATION or storage.id in waits)
        ):
            places.remote.add(storage.id)
        elif (
            storage.role == Role.WEIGHT
            and storage.id in shared
            and not phases
            and locations.moves(storage)
        ):
            common.append(storage.name)
    updates = by_weight(
        graph,
        [
            op
            for (direction, _), mine in ops.items()
            if direction == Direction.UPDATE
            for op in mine
        ],
    )
    for storage in graph.storages.values():
        weight = storage.parameter if storage.parameter >= 0 else storage.id
        if not locations.sharded(storage) or storage.elements != graph.storages[weight].elements:
            continue
        if grouping_of(graph, storage.id, groupings) is not None:
            apart.append(storage.name)
        elif not all(_can_part(graph, weight, op) for op in updates.get(weight, ())):
            refused.append(storage.name)
        elif storage.id not in shared and (storage.role != Role.ACCUMULATOR or not phases):
            places.split.add(storage.id)
            places.updated_in_parts |= {weight} & updates.keys()
    _say("TensorLocations.setWeightLocation", common, "stages share them")
    _say(
        "useReplicatedTensorSharding",
        apart,
        "their values differ between replicas (replicaGrouping)",
    )
    _say(
        "useReplicatedTensorSharding",
        refused,
        "their optimiser does more than elementwise operators and norms",
    )
    for key, mine in ops.items():
        changes = {storage: op.id for op in mine for storage in made_by(graph, op)}
        places.last_change[key] = {
            storage: op for storage, op in changes.items() if storage in places.remote
        }
    return places


def by_weight(graph: Graph, ops: Sequence[OpNode]) -> dict[int, list[OpNode]]:
    """Optimiser ops by the weight (a storage; -1: none) that they belong to."""
    found: dict[int, list[OpNode]] = {}
    made: dict[int, int] = {}

    def owner(storage: Storage) -> int:
        if storage.role == Role.WEIGHT:
            return storage.id
        return storage.parameter if storage.parameter >= 0 else made.get(storage.id, -1)

    for op in ops:
        owners = (owner(graph.storages[graph.values[v].storage]) for v in op.inputs)
        weight = next((w for w in owners if w >= 0), -1)
        found.setdefault(weight, []).append(op)
        for output in op.outputs:
            if output is not None:
                made.setdefault(graph.values[output].storage, weight)
    return found


def grouping_of(graph: Graph, storage_id: int, groupings: Groupings) -> Grouping | None:
    """How replicas are grouped for a weight, or for the weight of a gradient or state; None: they
    are all alike.
    """
    storage = graph.storages[storage_id]
    weight = graph.storages[storage.parameter] if storage.parameter >= 0 else storage
    return groupings.get(weight.name) if weight.role == Role.WEIGHT else None


def _say(option: str, names: list[str], why: str) -> None:
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        warn_once(
            f"{option} is not honoured for {names[0]!r}{more}, which stay whole on the chip: {why}"
        )


def _read_backward(
    graph: Graph, placement: Placement, ops: Ops, again: Mapping[int, Sequence[OpNode]]
) -> set[int]:
    """Storages that a stage's forward makes and its backward reads, but for those that it makes
    again.
    """
    found: set[int] = set()
    for stage in range(len(placement.stages)):
        made = {s for op in ops.get((Direction.FORWARD, stage), ()) for s in made_by(graph, op)}
        made -= {s for op in again[stage] for s in made_by(graph, op)}
        late = (*again[stage], *ops.get((Direction.BACKWARD, stage), ()))
        found |= made & {graph.values[v].storage for op in late for v in read_values(op)}
    return found


def _can_part(graph: Graph, weight: int, op: OpNode) -> bool:
    """Whether an operator of a weight's update can run on parts of it."""
    elements = graph.storages[weight].elements
    sizes = {prod(graph.values[v].shape) for v in op.inputs}
    return elements not in sizes or (sizes <= {elements, 1} and _runs_on_parts(op))
