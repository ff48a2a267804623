"""Assigns the operators of an update to its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipu_exec.capture.layers.expand import PerWeight
from ipu_exec.capture.layers.repeats import NotRepeatable
from ipu_exec.graph import Graph, weight_of


def updates_of_weights(
    graph: Graph, ops: range, order: Sequence[str], twins: Mapping[str, str]
) -> PerWeight:
    """The operators of ``ops`` grouped by weight.

    ``order``: all weights' names in update order. ``twins``: those whose operators were left out,
    each with the one updated the same way. NotRepeatable if an operator belongs to no weight or
    several (a norm of all gradients), or if a weight's are not consecutive.
    """
    owners: dict[int, int] = {}  # storage that the update makes -> weight
    segments: dict[str, range] = {}
    for number in ops:
        op = graph.ops[number]
        of_inputs = {weight_of(graph.storage_of(value), owners) for value in op.inputs}
        weights = of_inputs - {-1}
        if len(weights) != 1:
            raise NotRepeatable(f"{op.name} is of {len(weights)} weights")
        (weight,) = weights
        for storage in graph.results(op):
            owners.setdefault(storage, weight)
        name = graph.storages[weight].name
        before = segments.get(name, range(number, number))
        if before.stop != number:
            raise NotRepeatable(f"{op.name} comes behind another weight's update")
        segments[name] = range(before.start, number + 1)
    return PerWeight(ops, segments, [(name, twins.get(name, name)) for name in order])
