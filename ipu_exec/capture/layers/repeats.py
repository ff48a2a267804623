"""Equal layers are captured once: the first and the last of a group run, the others stand in.

In the graph a layer that stands in is one operator, `FORWARD`, with the layer's inputs and
results of the first layer's shapes, and one in the backward, `BACKWARD`.
`ipu_exec.capture.layers.expand` replaces them with the operators that the last layer ran. If a
condition for that is not met, `NotRepeatable` is raised, and the model is captured in full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ipu_exec.capture.layers.equal_layers import EqualLayers, unread_numbers
from ipu_exec.capture.recording.open_blocks import attributes, multi_conv
from ipu_exec.capture.recording.origins import SourceLine, source_line
from ipu_exec.capture.recording.recorder import Recorder
from ipu_exec.graph import OpNode
from ipuscope.profiler.enums import Role

FORWARD, BACKWARD = "ipu::layer", "ipu::layer_backward"
_CONSTANTS = (bool, int, float, str, type(None))
Values = tuple[int | None, ...]


class NotRepeatable(Exception):
    """The model's layers look equal but are not."""


@dataclass(slots=True)
class Span:
    """A range of the recording: ids of operators and of values."""

    ops: range
    values: range


@dataclass(slots=True)
class Place:
    """The place of a layer's call: the properties that its operators inherit from outside."""

    path: str  # of the module, "encoder.layer.3"
    scope: str  # its name scopes, "encoder/layer.3"
    block: int
    source: SourceLine


@dataclass(slots=True)
class Layer:
    """A call of a layer that ran."""

    place: Place
    key: Hashable  # of what it is given
    inputs: tuple[int, ...]  # values of its tensors
    outputs: tuple[int, ...]
    forward: Span
    backward: Span | None = None
    gradients_in: dict[int, int] = field(default_factory=dict)  # by output, what came for it
    gradients_out: dict[int, int] = field(default_factory=dict)  # by input, what it gave
    begun: tuple[int, int] | None = None  # operators and values when its backward began


@dataclass(frozen=True, slots=True)
class Sum:
    """The gradient of an input with other users: the sum of the layer's gradient and theirs.

    ``op`` adds them for a layer that stands in, ``index`` is the input. The layer that ran added
    ``others_of_like`` itself; here it is ``others``. ``total``: the sum.
    """

    op: int
    index: int
    others_of_like: int
    others: int
    total: int


@dataclass(slots=True)
class StandIn:
    """A call of a layer that did not run. ``like``: the layer that ran in its place."""

    place: Place
    key: Hashable
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    op: int
    like: Layer | None = None
    backward_op: int = -1
    gradients_in: Values = ()
    gradients_out: Values = ()
    gradients: list[tuple[int, int]] = field(default_factory=list)  # of weights: like's, own
    sum: Sum | None = None


@dataclass(frozen=True, slots=True)
class _Given:
    """A layer's result: its structure, and each tensor's properties except its values."""

    structure: Any
    tensors: tuple[tuple[torch.Size, tuple[int, ...], torch.dtype, bool], ...]


@dataclass
class Repeats:
    """Equal layers of one capture. ``layers`` and ``stand_ins``: their calls so far."""

    model: torch.nn.Module
    groups: Sequence[EqualLayers]
    recorder: Recorder
    stand_ins: list[StandIn] = field(default_factory=list)
    layers: dict[int, list[Layer]] = field(default_factory=dict)  # by group, in order
    _given: dict[Hashable, _Given] = field(default_factory=dict)
    _last: dict[int, Layer] = field(default_factory=dict)  # by group
    _called: set[str] = field(default_factory=set)
    _differentiated: set[int] = field(default_factory=set)  # inputs, by identity
    _alive: list[Any] = field(default_factory=list)

    @contextlib.contextmanager
    def standing_in(self) -> Iterator[None]:
        """Inside, equal layers of the model run once."""
        modules = dict(self.model.named_modules())
        layers = [(modules[p], at, p) for at, group in enumerate(self.groups) for p in group.paths]
        before = [vars(module).get("forward") for module, _, _ in layers]
        for module, group, path in layers:
            module.__dict__["forward"] = _Stand(self, module.forward, group, path)
        try:
            yield
        finally:
            for (module, _, _), forward in zip(layers, before, strict=True):
                del module.__dict__["forward"]
                if forward is not None:
                    module.__dict__["forward"] = forward

    def release(self) -> None:
        """Let go of the tensors, once the capture is over."""
        self._alive.clear()

    def twins(self) -> dict[str, str]:
        """The path of each layer that stands in, with that of the layer that runs in its place."""
        return {path: one.paths[-1] for one in self.groups for path in one.between}

    # -- forward ---

    def call(
        self, forward: Any, group: int, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of a layer, which runs or stands in."""
        if path in self._called or multi_conv() is not None or attributes():
            raise NotRepeatable(path)
        self._called.add(path)
        leaves, structure = tree_flatten((args, kwargs))
        key = (group, structure, torch.is_grad_enabled(), *(_about(leaf) for leaf in leaves))
        if any(about is None for about in key[3:]):
            raise NotRepeatable(f"{path} is given something else than tensors and constants")
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._check_alone(tensors)
        last = path == self.groups[group].paths[-1]
        if last or key not in self._given:
            return self._run(forward, group, path, key, (args, kwargs), tensors)
        return self._stand_in(group, path, key, tensors)

    def _check_alone(self, tensors: Sequence[torch.Tensor]) -> None:
        """Check that a layer's inputs with gradients are not inputs of other layers too."""
        for tensor in tensors:
            if tensor.requires_grad and id(tensor) in self._differentiated:
                raise NotRepeatable("layers share an input")
            if tensor.requires_grad:
                self._differentiated.add(id(tensor))
                self._alive.append(tensor)

    def _run(
        self,
        forward: Any,
        group: int,
        path: str,
        key: Hashable,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        tensors: Sequence[torch.Tensor],
    ) -> Any:
        recorder, place = self.recorder, self._place(path)
        inputs = tuple(map(recorder.value, tensors))
        begin = self._now()
        numbers = self.groups[group].numbers

        def read(name: str) -> NoReturn:
            raise NotRepeatable(f"{path} reads its number, {name}")

        with unread_numbers(self.model.get_submodule(path), numbers, read):
            result = forward(*given[0], **given[1])
        leaves, structure = tree_flatten(result)
        outputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if len(outputs) < len(leaves) or any(not self._whole(one, begin[1]) for one in outputs):
            raise NotRepeatable(f"{path} returns something else than whole tensors of its own")
        span = Span(*map(range, begin, self._now()))
        results = tuple(recorder.value(one) for one in outputs)
        layer = Layer(place, key, inputs, results, span)
        self.layers.setdefault(group, []).append(layer)
        self._last[group] = layer
        about = tuple((o.shape, o.stride(), o.dtype, o.requires_grad) for o in outputs)
        if self._given.setdefault(key, _Given(structure, about)) != _Given(structure, about):
            raise NotRepeatable(f"{path} returns another result than its like")
        self._watch(layer, tensors, outputs)
        return result

    def _whole(self, tensor: torch.Tensor, first_value: int) -> bool:
        """Whether a tensor was created in the layer and fills its storage."""
        value = self.recorder.recorded_value(tensor)
        if value is None or value < first_value:
            return False
        storage = self.recorder.storage(value)
        return storage.elements == tensor.numel() and storage.role == Role.ACTIVATION

    def _stand_in(
        self, group: int, path: str, key: Hashable, tensors: Sequence[torch.Tensor]
    ) -> Any:
        returned = self._given[key]
        stand_in = _Standing(self, group, self._place(path), key, returned)
        if any(requires for *_, requires in returned.tensors):
            outputs = _Function.apply(stand_in, *stand_in.anchored(tensors))
        else:
            outputs = stand_in.forward(tensors)
        return tree_unflatten(list(outputs), returned.structure)

    def _place(self, path: str) -> Place:
        recorder = self.recorder
        return Place(path, recorder.scope, recorder.open_block(), source_line())

    def _now(self) -> tuple[int, int]:
        graph = self.recorder.graph
        return len(graph.ops), len(graph.values)

    # -- backward ---

    def _watch(
        self, layer: Layer, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> None:
        """Record the gradients that enter and leave a layer, and the operators in between."""

        def begin(index: int, gradient: torch.Tensor) -> None:
            layer.begun = layer.begun or self._now()
            layer.gradients_in[index] = self.recorder.value(gradient)

        def end(index: int, gradient: torch.Tensor) -> None:
            if layer.begun is None:
                raise NotRepeatable(layer.place.path)
            layer.gradients_out[index] = self.recorder.value(gradient)
            layer.backward = Span(*map(range, layer.begun, self._now()))

        for note, tensors in ((begin, outputs), (end, inputs)):
            for index, tensor in enumerate(tensors):
                if tensor.requires_grad:
                    tensor.register_hook(_Noted(note, index))

    def backward_of(self, group: int) -> Layer:
        """The layer that runs last; its backward ends when those of others in its group begin."""
        layer = self._last.get(group)
        if layer is None or layer.backward is None:
            raise NotRepeatable("the last layer has no backward before the others")
        return layer

    def finish(self, fakes: Mapping[str, torch.Tensor]) -> None:
        """Match layers that stand in with those that ran; give weights (``fakes``) gradients."""
        for group, one in enumerate(self.groups):
            if group not in self._last:
                continue
            like = self._last[group]
            if like.place.path != one.paths[-1]:
                raise NotRepeatable("the last layer did not run")
            self._compare([layer for layer in self.layers[group] if layer.key == like.key])
            between, path = set(one.between), f"{like.place.path}."
            below = {name: fake for name, fake in fakes.items() if name.startswith(path)}
            for stand_in in self.stand_ins:
                if stand_in.place.path not in between:
                    continue
                if stand_in.key != like.key:
                    raise NotRepeatable(f"{stand_in.place.path} is given other arguments")
                stand_in.like = like
                for name, weight in below.items():
                    if weight.grad is not None:
                        own = fakes[f"{stand_in.place.path}.{name.removeprefix(path)}"]
                        self._give_gradient(stand_in, weight.grad, own)
        self._find_sums()

    def _find_sums(self) -> None:
        """Note the sums that include gradients of layers that stand in."""
        stood = {stand_in.op: stand_in for stand_in in self.stand_ins}
        for op in self.recorder.graph.ops:
            stand_in = stood.get(op.forward_op)
            if stand_in is not None and op.aten != BACKWARD:
                if stand_in.sum is not None:
                    raise NotRepeatable("a layer's gradient is used in several ways")
                stand_in.sum = self._sum(stand_in, op)
        for stand_in in self.stand_ins:
            assert stand_in.like is not None
            if stand_in.sum is None and self._from_outside(stand_in.like):
                raise NotRepeatable("a layer adds to a gradient that no other adds to")

    def _sum(self, stand_in: StandIn, op: OpNode) -> Sum:
        gradients, like = stand_in.gradients_out, stand_in.like
        outside = [] if like is None else self._from_outside(like)
        own = [value for value in op.inputs if value in gradients]
        if op.aten != "aten.add.Tensor" or len(outside) != 1 or len(own) != 1:
            raise NotRepeatable("what a layer gives its input is used otherwise than of its like")
        (others,) = (value for value in op.inputs if value != own[0])
        total = op.outputs[0]
        assert total is not None
        return Sum(op.id, gradients.index(own[0]), outside[0], others, total)

    def _from_outside(self, like: Layer) -> list[int]:
        """The gradients that a layer's backward reads and that do not come through its results."""
        graph, backward = self.recorder.graph, like.backward
        if backward is None:
            return []
        own = {*like.inputs, *like.gradients_in.values()}
        read = dict.fromkeys(v for op in backward.ops for v in graph.ops[op].inputs)
        return [
            v
            for v in read
            if v not in own
            and v not in backward.values
            and v not in like.forward.values
            and graph.storages[graph.values[v].storage].role == Role.GRADIENT
        ]

    def _give_gradient(self, stand_in: StandIn, like: torch.Tensor, weight: torch.Tensor) -> None:
        if weight.grad is None:
            with self.recorder.paused():
                weight.grad = torch.empty_like(like)
            value = self.recorder.value
            stand_in.gradients.append((value(like), value(weight.grad)))

    def _compare(self, layers: Sequence[Layer]) -> None:
        """Check that the layers of a group that ran are the same; if not, none can stand in."""
        kinds = {tuple(self._kinds(layer)) for layer in layers}
        blocks = {
            self.recorder.graph.ops[op].block == layer.place.block
            for layer in layers
            for op in layer.forward.ops
        }
        if len(kinds) > 1 or blocks == {False, True}:
            raise NotRepeatable(f"{layers[-1].place.path} runs something else than its like")
        if False in blocks:
            raise NotRepeatable(f"{layers[-1].place.path} begins a Block")
        last = layers[-1]
        for op in last.backward.ops if last.backward else ():
            if self.recorder.graph.ops[op].forward_op not in last.forward.ops:
                raise NotRepeatable("something else runs within a layer's backward")

    def _kinds(self, layer: Layer) -> Iterator[Hashable]:
        graph = self.recorder.graph
        for number in layer.forward.ops:
            op = graph.ops[number]
            values = [graph.values[v] for v in (*op.inputs, *op.outputs) if v is not None]
            constants = tuple(item for item in op.args if isinstance(item, _CONSTANTS))
            yield op.aten, constants, tuple((v.shape, v.strides, v.dtype) for v in values)


@dataclass(frozen=True, slots=True)
class _Noted:
    """A hook of a tensor: ``note(index, gradient)``."""

    note: Any
    index: int

    def __call__(self, gradient: torch.Tensor) -> None:
        self.note(self.index, gradient)


@dataclass(slots=True)
class _Stand:
    """The replacement of a layer's ``forward`` while it may stand in."""

    repeats: Repeats
    own: Any
    group: int
    path: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.repeats.call(self.own, self.group, self.path, args, kwargs)


@dataclass(slots=True)
class _Standing:
    """One call of a layer that stands in."""

    repeats: Repeats
    group: int
    place: Place
    key: Hashable
    given: _Given
    inputs: int = 0  # tensors of the layer
    operator: StandIn | None = None

    def anchored(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The inputs, and a weight if none of them has a gradient: the results still have one."""
        self.inputs = len(tensors)
        if any(tensor.requires_grad for tensor in tensors):
            return list(tensors)
        module = self.repeats.model.get_submodule(self.place.path)
        return [*tensors, next(p for p in module.parameters() if p.requires_grad)]

    def forward(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        recorder = self.repeats.recorder
        inputs = tuple(recorder.value(tensor) for tensor in tensors)
        with recorder.paused():
            results = tuple(
                torch.empty_strided(shape, stride, dtype=dtype)
                for shape, stride, dtype, _ in self.given.tensors
            )
        op = recorder.stand_in(FORWARD, inputs, results)
        place, made = self.place, tuple(map(recorder.value, results))
        self.operator = StandIn(place, self.key, inputs, made, op)
        self.repeats.stand_ins.append(self.operator)
        return results

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradient of each input, with the shape that the layer that ran returned."""
        repeats, recorder, stand_in = self.repeats, self.repeats.recorder, self.operator
        like = repeats.backward_of(self.group)
        came = {index for index, gradient in enumerate(gradients) if gradient is not None}
        if stand_in is None or came != like.gradients_in.keys():
            raise NotRepeatable(f"other results of {self.place.path} are used than of its like")
        recorded = [None if g is None else recorder.value(g) for g in gradients]
        values = recorder.graph.values
        results: list[torch.Tensor | None] = []
        with recorder.paused():
            for index in range(self.inputs):
                value = like.gradients_out.get(index)
                results.append(None if value is None else _empty(values[value]))
        stand_in.backward_op = recorder.stand_in(
            BACKWARD, [v for v in recorded if v is not None], [g for g in results if g is not None]
        )
        stand_in.gradients_in = tuple(recorded)
        stand_in.gradients_out = tuple(None if g is None else recorder.value(g) for g in results)
        return results


def _empty(value: Any) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, value.dtype)
    return torch.empty_strided(value.shape, value.strides, dtype=dtype)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, standing: _Standing, *tensors: torch.Tensor) -> Any:
        ctx.standing, ctx.count = standing, len(tensors)
        ctx.set_materialize_grads(False)
        results = standing.forward(tensors[: standing.inputs])
        about = zip(results, standing.given.tensors, strict=True)
        ctx.mark_non_differentiable(*(one for one, (*_, requires) in about if not requires))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        results = ctx.standing.backward(gradients)
        return (None, *results, *[None] * (ctx.count - len(results)))


def _about(leaf: Any) -> Hashable:
    """A key for an argument, without a tensor's values; None if neither tensor nor constant."""
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad)
    return (type(leaf), leaf) if isinstance(leaf, _CONSTANTS) else None
