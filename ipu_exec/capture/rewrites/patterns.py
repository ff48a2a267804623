"""PopART's patterns that change the cost of a program, applied to the captured step.

The gradient of an embedding is rows for the tokens that were looked up. With gradient
accumulation they are added directly to the weight's accumulator (PopART's ``SparseAccumulate``,
on by default), also if the weight is tied to a product's (``TiedGatherAccumulate``, off by
default, as in PopART). The dense gradient, of the table's size, is never created; the product's
is added once it is made, or has come to the accumulator's stage, without waiting for the rows.

The weight's gradient of a serialised product is never whole either: each part is added to its
slice of the accumulator before the next is computed ([POPART,
willow/src/transforms/serializematmuls.cpp], ``serializeVarUpdate``: if only transposes lie
between the product and the update).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ipu_exec.graph import Graph, OpNode, Value, ValueRef
from ipuscope.profiler.enums import Direction, Role

SPARSE, TIED = "SparseAccumulate", "TiedGatherAccumulate"
# The operators that the pattern is made of: what is rewritten, not what they are.
_GRADIENT, _ADD, _ADD_TO = "aten.embedding_dense_backward", "aten.add.Tensor", "aten.add_.Tensor"
_JOIN = "aten.cat."


def rewrite(graph: Graph, patterns: Mapping[str, bool]) -> None:
    """Apply to ``graph`` the patterns that ``Options._Popart.setPatterns`` leaves enabled."""
    if patterns.get(SPARSE, True):
        _accumulate_rows(graph, patterns.get(TIED, False))
    _accumulate_slices(graph)


def _readers(graph: Graph) -> dict[int, list[OpNode]]:
    """The operators that read each storage."""
    readers: dict[int, list[OpNode]] = {}
    for op in graph.ops:
        for value in op.inputs:
            readers.setdefault(graph.values[value].storage, []).append(op)
    return readers


def _accumulate_rows(graph: Graph, tied: bool) -> None:
    readers = _readers(graph)
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


def _accumulate_slices(graph: Graph) -> None:
    """Add the parts of serialised products' gradients one by one, each behind its product."""
    readers = _readers(graph)
    dropped: set[int] = set()
    added: list[OpNode] = []
    right_behind: dict[int, int] = {}
    for join in graph.ops:
        whole = _joined_gradient(graph, join)
        if whole is None:
            continue
        users = readers.get(whole.storage, [])
        views = [op for op in users if graph.only_aliases(op)]
        adds = [op for op in users if not graph.only_aliases(op)]
        if len(adds) != 1 or not _adds_to_accumulator(graph, adds[0]):
            continue
        slices = _slices(graph, join, whole, adds[0])
        if not slices:
            continue
        dropped |= {join.id, adds[0].id, *(op.id for op in views)}
        for number, (into, part) in enumerate(slices):
            new = len(graph.ops) + len(added)
            behind = graph.values[join.inputs[number]].producer
            added.append(_slice_added(adds[0], graph.ops[behind], new, number, into, part))
            right_behind[new] = behind
    if added:
        _replace(graph, {}, dropped, right_behind, added)


def _joined_gradient(graph: Graph, op: OpNode) -> Value | None:
    """What ``op`` joins, if that is the gradient of a serialised product, which came in parts."""
    cut = graph.ops[op.forward_op] if op.forward_op >= 0 else None
    joins = op.aten.startswith(_JOIN) and op.direction == Direction.BACKWARD
    made = op.outputs[0] if joins and cut is not None and cut.attributes.serialised else None
    return None if made is None else graph.values[made]


def _slices(graph: Graph, join: OpNode, whole: Value, add: OpNode) -> list[tuple[int, int]]:
    """For each part, the values of its slice of the accumulator and of the part as it is added.

    Empty if more than a transpose lies between the parts and the accumulator.
    """
    accumulator, gradient = (graph.values[value] for value in add.inputs)
    turned = _turned(whole, gradient)
    axis = join.args[1] % len(whole.shape) if len(join.args) > 1 else 0
    if turned is None or accumulator.shape != gradient.shape:
        return []
    across = turned.index(axis)  # the accumulator's dimension that is cut
    slices, begin = [], 0
    for value in join.inputs:
        part = graph.values[value]
        size = part.shape[axis]
        shape = tuple(part.shape[d] for d in turned)
        strides = tuple(part.strides[d] for d in turned)
        offset = accumulator.offset + begin * accumulator.strides[across]
        into = _view(graph, accumulator, shape, accumulator.strides, offset)
        slices.append((into, _view(graph, part, shape, strides, part.offset)))
        begin += size
    return slices


def _turned(whole: Value, gradient: Value) -> list[int] | None:
    """The dimension of ``whole`` that each of the gradient's is; None if it is no transpose."""
    dimensions = list(zip(whole.shape, whole.strides, strict=True))
    wanted = list(zip(gradient.shape, gradient.strides, strict=True))
    if whole.offset != gradient.offset or sorted(dimensions) != sorted(wanted):
        return None
    return [dimensions.index(one) for one in wanted] if len(set(wanted)) == len(wanted) else None


def _view(
    graph: Graph, of: Value, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> int:
    """The value of this view of a value's storage: one that is there already, or a new one."""
    geometry = (of.storage, shape, strides, offset)
    for value in graph.values.values():
        if (value.storage, value.shape, value.strides, value.offset) == geometry:
            return value.id
    new = max(graph.values) + 1
    graph.values[new] = Value(new, of.storage, shape, strides, offset, of.dtype)
    return new


def _slice_added(
    add: OpNode, product: OpNode, new: int, number: int, into: int, part: int
) -> OpNode:
    """Add a part to its slice of the accumulator, in the product's Block."""
    return replace(
        add,
        id=new,
        name=f"{add.name}/{number}",
        args=(ValueRef(into), ValueRef(part)),
        inputs=(into, part),
        outputs=(into,),
        writes=(into,),
        block=product.block,
    )


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
    added: Sequence[OpNode] = (),
) -> None:
    """Insert the ``changed`` and ``added`` operators, remove ``dropped`` ones and renumber all.

    ``right_behind``: operators that move right behind another one.
    """
    remaining = [changed.get(op.id, op) for op in graph.ops if op.id not in dropped]
    remaining += added
    remaining.sort(key=lambda op: (right_behind.get(op.id, op.id), op.id in right_behind))
    number = {op.id: index for index, op in enumerate(remaining)}
    for index, op in enumerate(remaining):
        op.id, op.forward_op = index, number.get(op.forward_op, -1)
    graph.ops = remaining
    values = {v for op in graph.ops for v in op.outputs if v is not None}
    for value in graph.values.values():
        value.producer = number.get(value.producer, -1) if value.id in values else -1
    used = (
        {v for op in graph.ops for v in (*op.inputs, *op.writes)}
        | values
        | {*graph.inputs, *graph.outputs}
    )
    graph.values = {id: value for id, value in graph.values.items() if id in used}
