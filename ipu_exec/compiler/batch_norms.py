"""Batch norms that take their statistics over the samples of a micro-batch."""

from __future__ import annotations

from ipu_exec.graph import Graph, OpNode, ValueRef
from ipu_exec.lowering import info
from ipu_exec.lowering.operators.norm import takes_statistics


def over_samples(op: OpNode, graph: Graph) -> bool:
    """Whether it is one in training, or its backward.

    PyTorch makes an instance norm a batch norm of one row, which has the channels of all samples.
    A micro-batch of one sample looks like that, too, but for its running statistics.
    """
    if not info(op.aten).over_batch or not takes_statistics(op.aten, op.args):
        return False
    rows = graph.values[op.inputs[0]].shape[:1]
    return rows != (1,) or any(isinstance(one, ValueRef) for one in op.args[3:4])


def any_over_samples(graph: Graph) -> bool:
    """Whether another micro-batch would train otherwise."""
    return any(over_samples(op, graph) for op in graph.ops)
