"""Copies the marks of PopTorch's functions on a captured model's tensors to its graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from ipu_exec.capture.layers.repeats import FORWARD, NotRepeatable
from ipu_exec.graph import Graph, OpNode
from ipu_exec.lowering import info, is_view
from ipuscope.profiler.enums import Role

_DIVIDES = "aten.div.Tensor"


_COLLECTIVES = "_c10d_functional."


def note_marks(graph: Graph, tensors: Iterable[tuple[torch.Tensor, int]]) -> None:
    """Note what the functions asked for; ``tensors``: each with its value.

    Of ops.recomputationCheckpoint the storages that it was called on, of ops.serializedMatMul the
    operators that cut an operand, and of ops.set_available_memory what an operator and its
    gradients' may use.
    """
    proportions: dict[int, float] = {}  # by forward op
    for tensor, value in tensors:
        if getattr(tensor, "_ipu_checkpoint", False):
            graph.checkpoints.add(graph.values[value].storage)
        maker = graph.values[value].producer
        if maker >= 0 and getattr(tensor, "_ipu_serialised", False):
            cuts = graph.ops[maker]
            cuts.attributes = replace(cuts.attributes, serialised=True)
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
