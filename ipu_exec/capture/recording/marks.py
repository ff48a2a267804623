"""Copies the marks of PopTorch's functions on a captured model's tensors to its graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from ipu_exec.capture.layers.repeats import FORWARD, NotRepeatable
from ipu_exec.graph import Graph, OpNode
from ipu_exec.lowering import info, is_view
from ipuscope.profiler.enums import Role

Tensors = Iterable[tuple[torch.Tensor, int]]  # each with its value

_DIVIDES = "aten.div.Tensor"


def note_checkpoints(graph: Graph, tensors: Tensors) -> None:
    """Note the storages that ops.recomputationCheckpoint was called on."""
    for tensor, value in tensors:
        if getattr(tensor, "_ipu_checkpoint", False):
            graph.checkpoints.add(graph.values[value].storage)


def note_serialised_products(graph: Graph, tensors: Tensors) -> None:
    """Note which operators cut an operand of ops.serializedMatMul."""
    for tensor, value in tensors:
        maker = graph.values[value].producer
        if maker >= 0 and getattr(tensor, "_ipu_serialised", False):
            op = graph.ops[maker]
            op.attributes = replace(op.attributes, serialised=True)


_COLLECTIVES = "_c10d_functional."


def note_memory_proportions(graph: Graph, tensors: Tensors) -> None:
    """Note what ops.set_available_memory asked for on an operator and on its gradients'."""
    proportions: dict[int, float] = {}  # by forward op
    for tensor, value in tensors:
        proportion = getattr(tensor, "_ipu_proportion", 0.0)
        op = _planned_maker(graph, value) if proportion else None
        if op is not None:
            proportions |= dict.fromkeys(_of_one_node(graph, op), proportion)
    for op in graph.ops:
        proportion = proportions.get(op.id, proportions.get(op.forward_op, 0.0))
        if proportion and not is_view(op.aten):
            op.attributes = replace(op.attributes, proportion=proportion)


def _of_one_node(graph: Graph, op: OpNode) -> list[int]:
    """The operator, and DTensor's divisions of a bias before it, which own the call's gradients."""
    makers = (graph.values[value].producer for value in op.inputs)
    divides = (m for m in makers if m >= 0 and graph.ops[m].aten == _DIVIDES)
    return [op.id, *(m for m in divides if graph.ops[m].module == op.module)]


def _planned_maker(graph: Graph, value: int) -> OpNode | None:
    """The product or gather that made a value, or None if another operator did.

    Views, casts, collectives of shards and the addition of a bias in between are skipped.
    """
    while (producer := graph.values[value].producer) >= 0:
        op = graph.ops[producer]
        if op.aten == FORWARD:
            raise NotRepeatable("a memory proportion is asked for what a layer returns")
        operator = info(op.aten)
        if operator.uses_memory_proportion:
            return op
        seen_through = (
            operator.view
            or operator.copy
            or op.aten.startswith(_COLLECTIVES)
            or (operator.addition and _adds_bias(graph, op))
        )
        if not op.inputs or not seen_through:
            return None
        value = op.inputs[0]
    return None


def _adds_bias(graph: Graph, op: OpNode) -> bool:
    """Whether the second of two operands is a weight."""
    if len(op.inputs) != 2:
        return False
    return graph.storages[graph.values[op.inputs[1]].storage].role == Role.WEIGHT
