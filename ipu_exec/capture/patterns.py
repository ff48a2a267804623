"""PopART's patterns that change the cost of a program.

They rewrite the captured step before it is placed.

The gradient of an embedding is rows for the tokens that were looked up. With gradient accumulation
they are added directly to the weight's accumulator (PopART's ``SparseAccumulate``, on by default),
also if the weight is tied to a product's (``TiedGatherAccumulate``, off by default, as in PopART).
The dense gradient, which has the table's size, is never created; the product's is added as soon as
it is made, or has come to the stage of the accumulator, rather than wait for the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ipu_exec.graph import Graph, OpNode, ValueRef
from profiler.enums import Role

SPARSE, TIED = "SparseAccumulate", "TiedGatherAccumulate"
# The operators that the pattern is made of: what is rewritten, not what they are.
_GRADIENT, _ADD, _ADD_TO = "aten.embedding_dense_backward", "aten.add.Tensor", "aten.add_.Tensor"


def rewrite(graph: Graph, patterns: Mapping[str, bool]) -> None:
    """Apply to ``graph`` the patterns that ``Options._Popart.setPatterns`` leaves enabled."""
    if patterns.get(SPARSE, True):
        _accumulate_rows(graph, patterns.get(TIED, False))


def _accumulate_rows(graph: Graph, tied: bool) -> None:
    readers: dict[int, list[OpNode]] = {}  # of storages
    for op in graph.ops:
        for value in op.inputs:
            readers.setdefault(graph.values[value].storage, []).append(op)
    changed: dict[int, OpNode] = {}
    dropped: set[int] = set()
    right_behind: dict[int, int] = {}  # operators that run earlier, each behind another
    for rows in graph.ops:
        if not rows.aten.startswith(_GRADIENT) or rows.outputs[0] is None:
            continue
        after = _only_reader(graph, readers, rows.outputs[0])
        if after is None or after.id in changed:
            continue
        if _adds_to_accumulator(graph, after) and after.inputs[1] == rows.outputs[0]:
            changed[after.id] = _into(graph, after, rows)
            dropped.add(rows.id)
        elif tied and after.aten == _ADD and _plain(after) and after.outputs[0] is not None:
            total = _only_reader(graph, readers, after.outputs[0])
            other = next(v for v in after.inputs if v != rows.outputs[0])
            if total is None or not _adds_to_accumulator(graph, total):
                continue
            accumulator = total.inputs[0]
            changed[total.id] = replace(
                total, args=(ValueRef(accumulator), ValueRef(other)), inputs=(accumulator, other)
            )
            right_behind[total.id] = graph.values[other].producer
            changed[after.id] = replace(_into(graph, total, rows), id=after.id, name=rows.name)
            dropped.add(rows.id)
    if changed:
        _replace(graph, changed, dropped, right_behind)


def _only_reader(graph: Graph, readers: Mapping[int, list[OpNode]], value: int) -> OpNode | None:
    consumers = readers.get(graph.values[value].storage, [])
    return consumers[0] if len(consumers) == 1 and value not in graph.outputs else None


def _plain(op: OpNode) -> bool:
    """Whether it adds two tensors without a factor."""
    return len(op.inputs) == 2 and all(name == "alpha" and value == 1 for name, value in op.kwargs)


def _adds_to_accumulator(graph: Graph, op: OpNode) -> bool:
    into = graph.storages[graph.values[op.inputs[0]].storage] if op.inputs else None
    return op.aten == _ADD_TO and _plain(op) and into is not None and into.role == Role.ACCUMULATOR


def _into(graph: Graph, add: OpNode, rows: OpNode) -> OpNode:
    """Add an embedding gradient's rows in place instead of the dense gradient of ``add``."""
    accumulator, (gradient, indices) = add.inputs[0], rows.inputs[:2]
    return replace(
        rows,
        id=add.id,
        aten="aten.index_put_.default",
        args=(ValueRef(accumulator), (ValueRef(indices),), ValueRef(gradient), True),
        kwargs=(),
        inputs=(accumulator, indices, gradient),
        outputs=add.outputs,
        writes=add.writes,
    )


def _replace(
    graph: Graph,
    changed: Mapping[int, OpNode],
    dropped: set[int],
    right_behind: Mapping[int, int],
) -> None:
    """Insert the ``changed`` operators, remove the ``dropped`` ones and renumber all.

    ``right_behind``: operators that come right behind another one, rather than where they were.
    """
    remaining = [changed.get(op.id, op) for op in graph.ops if op.id not in dropped]
    remaining.sort(key=lambda op: (right_behind.get(op.id, op.id), op.id in right_behind))
    number = {op.id: index for index, op in enumerate(remaining)}
    graph.ops = [
        replace(op, id=index, forward_op=number.get(op.forward_op, -1))
        for index, op in enumerate(remaining)
    ]
    values = {v for op in graph.ops for v in op.outputs if v is not None}
    for value in graph.values.values():
        value.producer = number.get(value.producer, -1) if value.id in values else -1
    used = (
        {v for op in graph.ops for v in (*op.inputs, *op.writes)}
        | values
        | {*graph.inputs, *graph.outputs}
    )
    graph.values = {id: value for id, value in graph.values.items() if id in used}
