"""Activations that the IPUs which share a stage's tensors have alike, and keep in parts.

Off the chip each of t IPUs keeps a t-th of such a tensor, and they gather it when it comes back
(Graphcore's GPT-3 does: [EX, nlp/gpt3_175B/popxl/pretraining_config.py], RTS_ACT).

A tensor is alike on all of them if it is made of tensors that are: of inputs, of weights that no
style cuts, and of what an all-reduce or an all-gather gives. What a collective cuts, and what a
slice takes of a tensor (a rank's part of a sequence), counts as different.
"""

from __future__ import annotations

from ipu_exec.compiler.options import CompileOptions
from ipu_exec.graph import Graph, OpNode
from ipu_exec.lowering.operator_info import info
from ipuscope.profiler.enums import Role

_OF_WEIGHTS = (Role.WEIGHT, Role.BUFFER, Role.ACCUMULATOR, Role.OPTIMISER_STATE)


def kept_in_parts(graph: Graph, options: CompileOptions) -> frozenset[int]:
    """The storages of which each of the IPUs keeps a part off the chip.

    Where phases are pipelines, and the location of activations has replicated tensor sharding.
    """
    location = options.locations.activation
    wanted = location.sharded and options.shards > 1 and options.strategy.pipelined_phases
    if not wanted:
        return frozenset()
    alike = alike_on_shards(graph)
    return frozenset(s for s in alike if graph.storages[s].elements >= location.least_sharded)


def alike_on_shards(graph: Graph) -> frozenset[int]:
    """The storages, without those of weights, that all IPUs of a stage have alike."""
    cut = graph.shares  # storages of weights
    alike = set(graph.inputs)
    alike |= {
        value.id
        for value in graph.values.values()
        if graph.storages[value.storage].role in _OF_WEIGHTS and value.storage not in cut
    }
    storages: dict[int, bool] = {}
    for op in graph.ops:
        same = _is_alike(op, alike)
        for value in (*op.outputs, *op.writes):
            if value is None:
                continue
            (alike.add if same else alike.discard)(value)
            storage = graph.values[value].storage
            storages[storage] = storages.get(storage, True) and same
    return frozenset(
        storage
        for storage, same in storages.items()
        if same and graph.storages[storage].role not in _OF_WEIGHTS
    )


def _is_alike(op: OpNode, alike: set[int]) -> bool:
    facts = info(op.aten)
    if facts.makes_alike:
        return True
    return not facts.makes_different and set(op.inputs) <= alike
