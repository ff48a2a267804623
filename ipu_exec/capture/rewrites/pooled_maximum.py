"""The gradient of a maximum over windows reads the pooled output, not torch's indices.

popnn compares the input with each window's maximum ([PL, lib/popnn/Pooling.cpp],
maxPoolInputGradient; [POPART, willow/src/op/maxpool.cpp], MaxPoolGradOp). Unread indices are not
made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipu_exec.graph import Graph, OpNode, ValueRef


def read_pooled(graph: Graph) -> None:
    """Have the gradients of maxima in ``graph`` read pooled outputs for indices."""
    pooled: dict[int, int] = {}  # indices -> the output
    for op in graph.ops:
        if "max_pool" in op.aten and len(op.outputs) == 2 and op.outputs[0] is not None:
            indices = op.outputs[1]
            if indices is not None and indices not in graph.outputs:
                pooled[indices] = op.outputs[0]
    read = {value for op in graph.ops for value in op.inputs} | {*graph.outputs}
    for op in graph.ops:
        unread = not read & {*op.outputs}  # torch's pooling of one dimension leaves such a view
        if not (unread or ("max_pool" in op.aten and "_backward" in op.aten)):
            for value in op.inputs:
                pooled.pop(value, None)
    if pooled:
        graph.ops = [_reading(op, pooled) for op in graph.ops]
        values = graph.values
        storages = {values[one].storage: values[other].storage for one, other in pooled.items()}
        graph.values = {
            id: replace(value, storage=storages.get(value.storage, value.storage))
            for id, value in values.items()
            if id not in pooled
        }


def _reading(op: OpNode, pooled: Mapping[int, int]) -> OpNode:
    """The operator without indices, or with the pooled output in their place."""

    def instead(argument: Any) -> Any:
        if isinstance(argument, ValueRef):
            return ValueRef(pooled.get(argument.id, argument.id))
        return argument

    if not pooled.keys() & {*op.inputs, *op.outputs}:
        return op
    return replace(
        op,
        args=tuple(instead(argument) for argument in op.args),
        kwargs=tuple((name, instead(argument)) for name, argument in op.kwargs),
        inputs=tuple(pooled.get(value, value) for value in op.inputs),
        outputs=tuple(None if value in pooled else value for value in op.outputs),
    )
