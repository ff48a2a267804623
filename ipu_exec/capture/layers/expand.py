"""Expands the operators that stand for layers into the operators that these layers run.

A layer that stood in (`ipu_exec.capture.layers.repeats`) runs its like's operators on its own
weights. The result, ids included, is the graph captured when every layer runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ipu_exec.capture.layers.repeats import Layer, StandIn
from ipu_exec.graph import Graph, OpNode, Storage, Value, ValueRef
from ipu_exec.lowering import is_view
from ipuscope.profiler.enums import OF_WEIGHTS


@dataclass(frozen=True, slots=True)
class Registered:
    """The numbers of values and storages of weights, state and inputs."""

    values: int = 0
    storages: int = 0


@dataclass(frozen=True, slots=True)
class PerWeight:
    """Operators of the update that run weight by weight: from ``ops`` of the graph, as they were.

    ``order``: the weights (by name) in update order, each with the one whose operators it copies.
    """

    ops: range
    segments: Mapping[str, range]  # of ``ops``, by weight
    order: Sequence[tuple[str, str]]


@dataclass
class _Copy:
    """A copy of a range of operators, for another layer or weight.

    ``values`` and ``storages`` map the graph's to the copy's. ``is_made``: whether these
    operators create a value or storage, which is then new in each copy.
    """

    is_made: Callable[[int], bool]  # of values
    rename: Callable[[str], str]
    values: dict[int, int] = field(default_factory=dict)
    storages: dict[int, int] = field(default_factory=dict)
    ops: dict[int, int] = field(default_factory=dict)
    block: int | None = None
    line: tuple[tuple[str, int], tuple[str, int]] | None = None  # of the call: the like's, its own


def expand(
    graph: Graph, registered: Registered, layers: Sequence[StandIn], updates: Sequence[PerWeight]
) -> Graph:
    """The graph with all layers and weight updates; ``registered``: what was before operators."""
    if not layers and not updates:
        return graph
    return _Expansion(graph, registered, layers, updates).expand()


class _Expansion:
    def __init__(
        self,
        graph: Graph,
        registered: Registered,
        layers: Sequence[StandIn],
        updates: Sequence[PerWeight],
    ) -> None:
        self.graph, self.registered = graph, registered.values
        self.forwards = {one.op: one for one in layers}
        self.backwards = {one.backward_op: one for one in layers if one.backward_op >= 0}
        self.updates = {one.ops.start: one for one in updates}
        self.skipped = {op for one in updates for op in one.ops}
        self.skipped |= {one.sum.op for one in layers if one.sum is not None}
        self.new = replace(
            graph, ops=[], values={}, storages={}, checkpoints=set(), overlapped_inputs={}
        )
        self.new.overlapped_outputs = {}
        self.all = _Copy(lambda value: True, lambda name: name)  # what is in the graph once
        self.copies: dict[int, _Copy] = {}  # by stand-in's forward operator
        self.first_values: dict[int, list[int]] = {}  # storage -> its registered values
        self.made_at: dict[int, int] = {}  # storage -> its first value
        for value in graph.values.values():
            self.made_at.setdefault(value.storage, value.id)
            if value.id < self.registered:
                self.first_values.setdefault(value.storage, []).append(value.id)
        self.storages = registered.storages  # the number of the next one
        self.state = {
            storage.name: storage.id
            for storage in graph.storages.values()
            if storage.role in OF_WEIGHTS
            and self.made_at.get(storage.id, self.registered) < self.registered
        }
        self.state_of: dict[str, list[str]] = {}  # weight -> names of itself and its states
        for name in self.state:
            self.state_of.setdefault(name.partition("/")[0], []).append(name)
        self.state_in: dict[str, list[str]] = {}  # by prefix
        self.gradients: dict[str, list[tuple[int, int]]] = {}  # by name: the like's, its own
        for one in layers:
            for of_like, own in one.gradients:
                name = graph.storages[graph.values[own].storage].name
                self.gradients.setdefault(name, []).append((of_like, own))
        self.made_by: dict[int, frozenset[int]] = {}  # first operator of a weight's -> values

    def expand(self) -> Graph:
        graph, new = self.graph, self.new
        for value in range(self.registered):
            self._value(value, self.all)
        for op in graph.ops:
            if op.id in self.updates:
                self._update(self.updates[op.id])
            if op.id in self.forwards:
                self._forward(self.forwards[op.id])
            elif op.id in self.backwards:
                self._backward(self.backwards[op.id])
            elif op.id not in self.skipped:
                self._append(op, self.all)
        new.inputs = tuple(self._value(v, self.all) for v in graph.inputs)
        new.outputs = tuple(self._value(v, self.all) for v in graph.outputs)
        new.loss = self._value(graph.loss, self.all) if graph.loss >= 0 else graph.loss
        new.outside = self.all.ops.get(graph.outside, -1)
        of_storage = self.all.storages
        new.overlapped_inputs = {of_storage[s]: m for s, m in graph.overlapped_inputs.items()}
        new.overlapped_outputs = {of_storage[s]: m for s, m in graph.overlapped_outputs.items()}
        new.checkpoints |= {of_storage[s] for s in graph.checkpoints if s in of_storage}
        return new

    # -- layers ---

    def _forward(self, one: StandIn) -> None:
        """Copy its like's forward operators in place of the operator that stands for it."""
        like = one.like
        assert like is not None
        copy = self._copy_of_layer(one, like)
        self.copies[one.op] = copy
        first = len(self.new.ops)
        for number in like.forward.ops:
            self._append(self.graph.ops[number], copy)
        stop = len(self.new.ops)
        heavy = (i for i in range(first, stop) if not is_view(self.new.ops[i].aten))
        self.all.ops[one.op] = next(heavy, first)
        self._hand_out(zip(like.outputs, one.outputs, strict=True), copy)

    def _backward(self, one: StandIn) -> None:
        like, copy = one.like, self.copies[one.op]
        assert like is not None and like.backward is not None
        for index, came in like.gradients_in.items():
            own = one.gradients_in[index]
            assert own is not None
            copy.values[came] = self._value(own, self.all)
            copy.storages.setdefault(self.graph.values[came].storage, self._storage_of(own))
        if one.sum is not None:
            copy.values[one.sum.others_of_like] = self._value(one.sum.others, self.all)
            theirs = self.graph.values[one.sum.others_of_like].storage
            copy.storages[theirs] = self._storage_of(one.sum.others)
        for number in like.backward.ops:
            self._append(self.graph.ops[number], copy)
        gradients = dict(enumerate(one.gradients_out))
        if one.sum is not None:  # the like's has it added already
            gradients[one.sum.index] = one.sum.total
        pairs = (
            (like.gradients_out[index], own) for index, own in gradients.items() if own is not None
        )
        self._hand_out(pairs, copy)
        self._hand_out(one.gradients, copy)

    def _copy_of_layer(self, one: StandIn, like: Layer) -> _Copy:
        forward = like.forward.values
        backward = range(0) if like.backward is None else like.backward.values
        copy = _Copy(
            lambda value: value in forward or value in backward,
            _renamed(like.place, one.place),
            block=one.place.block,
            line=(like.place.source[:2], one.place.source[:2]),
        )
        for theirs, own in zip(like.inputs, one.inputs, strict=True):
            copy.values[theirs] = self._value(own, self.all)
            copy.storages[self.graph.values[theirs].storage] = self._storage_of(own)
        prefix = f"{like.place.path}."
        if prefix not in self.state_in:
            self.state_in[prefix] = [name for name in self.state if name.startswith(prefix)]
        for name in self.state_in[prefix]:  # stands for what has the same name in this layer
            self._stands_for(copy, self.state[name], self.state[copy.rename(name)])
        return copy

    def _stands_for(self, copy: _Copy, theirs: int, own: int) -> None:
        copy.storages[theirs] = self.all.storages[own]
        pairs = zip(self.first_values[theirs], self.first_values[own], strict=True)
        copy.values.update((a, self._value(b, self.all)) for a, b in pairs)

    def _hand_out(self, pairs: Any, copy: _Copy) -> None:
        """Map the values that the rest of the graph uses to those that the copy made."""
        for theirs, own in pairs:
            value = self._value(theirs, copy)
            self.all.values[own] = value
            self.all.storages[self.graph.values[own].storage] = self.new.values[value].storage

    # -- the update ---

    def _update(self, update: PerWeight) -> None:
        """Copy the update weight by weight, in its order."""
        for weight, twin in update.order:
            copy = self.all if weight == twin else self._copy_of_update(weight, twin, update)
            for number in update.segments.get(twin, ()):
                self._append(self.graph.ops[number], copy)

    def _copy_of_update(self, weight: str, twin: str, update: PerWeight) -> _Copy:
        segment = update.segments.get(twin, range(0))
        if segment.start not in self.made_by:
            outputs = {v for i in segment for v in self.graph.ops[i].outputs if v is not None}
            self.made_by[segment.start] = frozenset(
                value for value in outputs if value >= self.registered
            )
        created = self.made_by[segment.start]
        copy = _Copy(lambda value: value in created, _renamed_weight(twin, weight))
        for name in self.state_of.get(twin, ()):
            own = weight + name.removeprefix(twin)
            self._stands_for(copy, self.state[name], self.state[own])
        for of_twin, gradient in self.gradients.get(f"{weight}/gradient", ()):
            copy.values[of_twin] = self._value(gradient, self.all)
            theirs = self.graph.values[of_twin].storage
            copy.storages[theirs] = self._storage_of(gradient)
        return copy

    # -- one operator ---

    def _append(self, op: OpNode, copy: _Copy) -> None:
        number = len(self.new.ops)
        inputs = tuple([self._value(v, copy) for v in op.inputs])
        writes = tuple([self._value(v, copy) for v in op.writes])
        copy.ops[op.id] = number
        outputs = tuple([None if v is None else self._value(v, copy) for v in op.outputs])
        file, line = op.file, op.line
        if copy.line is not None and copy.line[0] == (file, line):
            file, line = copy.line[1]
        self.new.ops.append(
            OpNode(
                number,
                op.aten,
                tuple([self._argument(item, copy) for item in op.args]),
                tuple([(name, self._argument(item, copy)) for name, item in op.kwargs]),
                inputs,
                outputs,
                writes,
                op.direction,
                op.block if copy.block is None else copy.block,
                copy.rename(op.module),
                copy.rename(op.name),
                file,
                line,
                copy.ops.get(op.forward_op, self.all.ops.get(op.forward_op, -1)),
                op.attributes,
                op.callers,
            )
        )

    def _argument(self, item: Any, copy: _Copy) -> Any:
        if isinstance(item, ValueRef):
            return ValueRef(self._value(item.id, copy))
        if isinstance(item, tuple):
            return tuple([self._argument(element, copy) for element in item])
        return item

    def _value(self, number: int, copy: _Copy) -> int:
        """The value of a copy that corresponds to a value of the graph."""
        copied = copy.values.get(number)
        if copied is not None:
            return copied
        if not copy.is_made(number):
            copy.values[number] = self._value(number, self.all)
            return copy.values[number]
        old = self.graph.values[number]
        storage = self._storage(old.storage, copy)
        value = Value(
            len(self.new.values),
            storage,
            old.shape,
            old.strides,
            old.offset,
            old.dtype,
            copy.ops.get(old.producer, self.all.ops.get(old.producer, -1)),
        )
        self.new.values[value.id] = value
        copy.values[number] = value.id
        return value.id

    def _storage_of(self, value: int) -> int:
        """The new storage of a value that is only in the graph once."""
        return self.new.values[self._value(value, self.all)].storage

    def _storage(self, number: int, copy: _Copy) -> int:
        copied = copy.storages.get(number)
        if copied is not None:
            return copied
        if not copy.is_made(self.made_at[number]):
            copy.storages[number] = self._storage(number, self.all)
            return copy.storages[number]
        old = self.graph.storages[number]
        new_id = number  # a storage from before the first operator keeps its own
        if self.made_at[number] >= self.registered:
            new_id, self.storages = self.storages, self.storages + 1
        copy.storages[number] = new_id
        parameter = self._storage(old.parameter, copy) if old.parameter >= 0 else -1
        self.new.storages[new_id] = Storage(
            new_id, old.elements, old.dtype, old.role, copy.rename(old.name), parameter
        )
        if number in self.graph.checkpoints:
            self.new.checkpoints.add(new_id)
        return new_id


def _renamed(like: Any, own: Any) -> Callable[[str], str]:
    """Names of a layer's operators, modules and tensors as those of another layer."""
    prefixes = ((f"{like.scope}/", f"{own.scope}/"), (f"{like.path}.", f"{own.path}."))
    return partial(_rename, {like.scope: str(own.scope)}, prefixes)


def _renamed_weight(like: str, own: str) -> Callable[[str], str]:
    """Names of a weight's update as those of another weight's."""
    theirs, ours = like.replace(".", "/"), own.replace(".", "/")
    module = {theirs.rpartition("/")[0]: ours.rpartition("/")[0]}
    prefixes = ((f"{theirs}/", f"{ours}/"), (f"{like}/", f"{own}/"))
    return partial(_rename, {theirs: ours, like: own} | module, prefixes)


def _rename(whole: Mapping[str, str], prefixes: Sequence[tuple[str, str]], name: str) -> str:
    if name in whole:
        return whole[name]
    for theirs, ours in prefixes:
        if name.startswith(theirs):
            return ours + name[len(theirs) :]
    return name
