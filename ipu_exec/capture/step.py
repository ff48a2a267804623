"""Capture: record every ATen call of one micro-batch and one weight update, on fake tensors.

The real module, autograd and optimiser run under ``FakeTensorMode``: shapes and dtypes are true,
no weight is copied and nothing is computed. The `Recorder` above it records each call.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from ipu_exec.base.context import copying_before_changes
from ipu_exec.base.optimiser_attributes import accumulates_in_velocity, state_dtype, take_step
from ipu_exec.base.sharding_plan import TensorSharding
from ipu_exec.base.structures import tensors_in
from ipu_exec.capture import overlap, shared_sizes
from ipu_exec.capture.layers.equal_layers import EqualLayers, enclosing, find_equal_layers
from ipu_exec.capture.layers.expand import PerWeight, Registered, expand
from ipu_exec.capture.layers.per_weight import updates_of_weights
from ipu_exec.capture.layers.repeats import NotRepeatable, Repeats
from ipu_exec.capture.recording.devices import Devices
from ipu_exec.capture.recording.fake_tensors import FakeTensors, make_state, unlogged
from ipu_exec.capture.recording.marks import note_marks
from ipu_exec.capture.recording.open_blocks import reset_blocks
from ipu_exec.capture.recording.recorder import Recorder
from ipu_exec.capture.rewrites.casts import Casting
from ipu_exec.capture.rewrites.multi_conv import fuse
from ipu_exec.capture.rewrites.replacements import torch_as_on_ipu
from ipu_exec.capture.sharding import (
    cut_alike,
    losses_of_shares,
    refused,
    sharded,
    without_propagation,
)
from ipu_exec.errors import Error
from ipu_exec.graph import Graph
from ipuscope.profiler.enums import Direction, Role

logger = logging.getLogger("ipu_exec")

_CHANGED = "has been modified by an inplace operation"  # what PyTorch's error says


def capture(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    accumulate: bool = False,
    find_loss: Callable[[Any], torch.Tensor] | None = None,
    contents: Sequence[bool | int | float] = (),
    casting: contextlib.AbstractContextManager[Any] | None = None,
    repeats: bool = True,
    sharding: TensorSharding | None = None,
) -> Graph:
    """Record what one micro-batch computes; with an optimiser, its backward and the update too.

    ``args``/``kwargs`` are one micro-batch (real tensors, untouched). ``accumulate``: gradients
    are added to accumulators that persist. ``find_loss`` picks the loss from what the model
    returns. ``contents``: the values that the forward reads from tensors, in order, since fake
    tensors have none; ContentError if it reads more. ``casting``: entered around forward and
    backward (`ipu_exec.capture.rewrites.casts`). ``repeats``: of equal layers, and of their
    weights' updates, only two run and the others are copied, for the same graph
    (`ipu_exec.capture.layers.repeats`). ``sharding``: record one of the IPUs that share the
    model's tensors (`ipu_exec.capture.sharding`).

    If a model changes a tensor in place that its backward still needs, a copy is recorded, as in
    PopART's programs, which change no tensor (``Graph.mutates``). PyTorch refuses such a
    backward.
    """
    casting = casting or contextlib.nullcontext()
    step = _Step(model, args, kwargs, optimizer, accumulate, find_loss, contents, casting, sharding)
    groups = tuple(find_equal_layers(model)) if repeats and not contents else ()
    for equal, per_weight in ((groups, True), (groups, False)) if groups else ():
        try:
            return _run(step, equal, per_weight)
        except Error:
            raise
        except Exception as error:  # any: the run without repeats decides
            logger.debug("layers are captured one by one: %s", error)
    return _run(step, (), False)


def _run(step: _Step, equal: Sequence[EqualLayers], per_weight: bool) -> Graph:
    with unlogged():
        try:
            return _Run(step, False, equal, per_weight).graph()
        except RuntimeError as error:
            if _CHANGED not in str(error):
                raise
        return _Run(step, True, equal, per_weight).graph()


@dataclass(frozen=True)
class _Step:
    """The step to capture; the fields are the arguments of `capture`."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    optimizer: torch.optim.Optimizer | None
    accumulate: bool
    find_loss: Callable[[Any], torch.Tensor] | None
    contents: Sequence[bool | int | float]
    casting: contextlib.AbstractContextManager[Any]
    sharding: TensorSharding | None


@dataclass
class _Run:
    """One run of a step on fake tensors."""

    step: _Step
    mutates: bool
    equal: Sequence[EqualLayers]  # layers of which only the first and the last run
    per_weight: bool  # so does the update
    fakes: FakeTensors = field(default_factory=FakeTensors)
    devices: Devices = field(default_factory=Devices)
    recorder: Recorder = field(init=False)
    state: dict[str, torch.Tensor] = field(init=False)  # fake weights and buffers, by name
    buffers: dict[str, torch.Tensor] = field(init=False)  # those of them that are buffers
    trained: dict[str, torch.Tensor] = field(init=False)  # those that the optimiser updates
    optimizer: torch.optim.Optimizer | None = field(init=False)
    repeats: Repeats = field(init=False)
    registered: Registered = field(default_factory=Registered)
    twins: dict[str, str] = field(default_factory=dict)  # weight -> weight that is updated like it
    updates: list[PerWeight] = field(default_factory=list)

    def graph(self) -> Graph:
        """The graph recorded from the run."""
        step = self.step
        with sharded(step.model, step.sharding) as shares:
            self.fakes.shapes = shares.shapes
            self.equal = [one for one in self.equal if cut_alike(one.paths, shares)]
            self.recorder = Recorder(step.optimizer is not None, step.contents, self.devices)
            self.repeats = Repeats(step.model, self.equal, self.recorder)
            try:
                return self._recorded()
            finally:
                # autograd's nodes lead back to the recorder, out of the collector's sight:
                # without this the model's weights would never be freed
                self.recorder.release()
                self.repeats.release()

    def _recorded(self) -> Graph:
        step = self.step
        cut = self.fakes.shapes
        parameters = dict(step.model.named_parameters(remove_duplicate=False))
        buffers = dict(step.model.named_buffers(remove_duplicate=False))
        self.state = {
            name: self.fakes.of_state(tensor) for name, tensor in {**parameters, **buffers}.items()
        }
        self.buffers = {name: self.state[name] for name in buffers}
        with self.fakes.mode:
            for name, tensor in self.state.items():
                self.recorder.register(
                    tensor, Role.WEIGHT if name in parameters else Role.BUFFER, name
                )
            self.recorder.graph.shares = {
                self.recorder.storage(self.recorder.value(self.state[name])).id
                for name, parameter in parameters.items()
                if id(parameter) in cut
            }
            args, kwargs = self._inputs()
            self.trained = self._trained()
            self.optimizer = self._fake_optimizer()
            graph = self.recorder.graph
            self.registered = Registered(len(graph.values), len(graph.storages))
            reset_blocks()
            # a checkpointed layer runs again in the backward: it has to find the fake weights too
            around = _Around(self.step.model, self._forward_and_backward)
            fakes = {f"model.{name}": tensor for name, tensor in self.state.items()}
            returned = torch.func.functional_call(around, fakes, args, kwargs)
            self._update()
            note_marks(graph, self.recorder.tensors())
            graph.outputs = tuple(self.recorder.value(tensor) for tensor in tensors_in(returned))
        return self._finished()

    def _inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The micro-batch as fake tensors."""
        args, kwargs = self.fakes.copies((self.step.args, self.step.kwargs))
        self.recorder.graph.inputs = tuple(
            self.recorder.register(tensor, Role.INPUT, f"input.{index}")
            for index, tensor in enumerate(tensors_in((args, kwargs)))
        )
        return args, kwargs

    def _trained(self) -> dict[str, torch.Tensor]:
        """The fake parameters that the optimiser updates, and accumulators if it accumulates."""
        optimizer = self.step.optimizer
        if optimizer is None:
            return {}
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        trained = {
            name: self.state[name]
            for name, p in self.step.model.named_parameters()
            if p.requires_grad and id(p) in updated
        }
        for name, parameter in trained.items() if self.step.accumulate else ():
            accumulator = self.fakes.alike(parameter)
            with no_dispatch():  # torch asks both for their device, twice
                parameter.grad = accumulator
            self.recorder.register(
                parameter.grad, Role.ACCUMULATOR, f"{name}/accumulator", parameter
            )
        return trained

    def _fake_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimiser over the fake parameters, with the state that it has after a step."""
        if self.step.optimizer is None:
            return None
        optimizer = self.fakes.optimizer(self.step.optimizer)
        self.twins = self._twins(optimizer) if self.per_weight else {}
        with self._without_twins(optimizer):
            one_of_each = {n: p for n, p in self.trained.items() if n not in self.twins}
            make_state(self.fakes, optimizer, one_of_each)
        for name, parameter in self.trained.items():
            # another weight of the same shape has states of the same shapes
            state = optimizer.state[self.trained[self.twins.get(name, name)]]
            for key, tensor in state.items():
                if isinstance(tensor, torch.Tensor):
                    about = Role.OPTIMISER_STATE, f"{name}/{key}", parameter, name in self.twins
                    self.recorder.register(tensor, *about)
        return optimizer

    def _twins(self, optimizer: torch.optim.Optimizer) -> dict[str, str]:
        """The weights of layers that stand in, each with its counterpart in the layer that runs.

        Known optimisers update any weights of a group alike that have the same shape and, as
        accumulators do, gradients in the same order.
        """
        group_of = {
            id(parameter): number
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }
        layers = self.repeats.twins()
        known = type(optimizer).__module__.startswith(("torch.optim.", "ipu_exec.optim"))
        by_shape = known and self.step.accumulate and not self.fakes.shapes
        twins: dict[str, str] = {}
        firsts: dict[tuple[Any, ...], str] = {}
        for name, parameter in self.trained.items():
            group, path = group_of[id(parameter)], enclosing(name, layers)
            like = layers[path] + name.removeprefix(path) if path else name
            if by_shape:
                about = group, parameter.shape, parameter.stride(), parameter.dtype
                like = firsts.setdefault(about, name)
            twin = self.trained.get(like)
            if like != name and twin is not None and group_of[id(twin)] == group:
                twins[name] = like
        return twins

    @contextlib.contextmanager
    def _without_twins(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Inside, the optimiser has only one of the weights that are updated alike."""
        left_out = {id(self.trained[name]) for name in self.twins}
        before = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in left_out]
        try:
            yield
        finally:
            for group, params in zip(optimizer.param_groups, before, strict=True):
                group["params"] = params

    def _forward_and_backward(self, *args: Any, **kwargs: Any) -> Any:
        model = self.step.model
        with (
            torch.set_grad_enabled(self.optimizer is not None),
            torch_as_on_ipu(),
            self.recorder.modules(model),
            self._shards(),
            self.devices,
            self.step.casting,
            self.recorder,
            copying_before_changes(self.mutates),
            self.repeats.standing_in(),
        ):
            with losses_of_shares(self.step.sharding):
                returned = model(*args, **kwargs)
            _check_buffers(model, self.buffers)
            if self.optimizer is not None:
                self._backward(returned)
        return returned

    @contextlib.contextmanager
    def _shards(self) -> Iterator[None]:
        """Entered around the run of a sharded model; rewords that model's errors."""
        sharding = self.step.sharding
        if sharding is None or sharding.shards == 1:
            yield
            return
        try:
            with without_propagation(self.recorder.paused), shared_sizes.noticed(sharding):
                yield
        except (RuntimeError, ValueError) as error:
            if isinstance(error, Error) or _CHANGED in str(error):
                raise
            raise refused(self.recorder.scope, sharding, error) from error

    def _backward(self, returned: Any) -> None:
        if self.step.find_loss is None:
            raise Error("a training step needs to know which output is the loss: pass find_loss")
        loss = self.step.find_loss(returned)
        self.recorder.graph.loss = self.recorder.value(loss)
        self.recorder.direction = Direction.BACKWARD
        if loss.requires_grad:  # else every weight is frozen, as `find_loss` saw
            with losses_of_shares(self.step.sharding):
                loss.backward()

    def _update(self) -> None:
        """The weight update, after which accumulators are zero again."""
        self.repeats.finish(self.trained)
        if self.optimizer is None:
            return
        recorder, graph = self.recorder, self.recorder.graph
        if self.step.accumulate:
            self._leave_out_unused()
        with torch.enable_grad(), recorder:
            recorder.direction = Direction.UPDATE
            begin = len(graph.ops)
            with self._without_twins(self.optimizer):
                take_step(self.optimizer)
            stepped = len(graph.ops)
            for name, parameter in self.trained.items() if self.step.accumulate else ():
                if parameter.grad is not None and name not in self.twins:
                    parameter.grad.zero_()
        if not self.twins:
            return
        names = {id(parameter): name for name, parameter in self.trained.items()}
        every = [id(p) for group in self.optimizer.param_groups for p in group["params"]]
        order = [names[weight] for weight in every if weight in names]
        emptied = range(stepped, len(graph.ops))
        self.updates = [
            updates_of_weights(graph, range(begin, stepped), order, self.twins),
            updates_of_weights(graph, emptied, list(self.trained), self.twins),
        ]

    def _leave_out_unused(self) -> None:
        """Take weights that the loss does not depend on out of the update, as torch leaves them.

        One whose update stands for that of others stays if one of these is used.
        """
        recorder, layers = self.recorder, self.repeats.twins()
        graph, unused = recorder.graph, set()
        written = {graph.storage_of(value).id for op in graph.ops for value in op.writes}
        accumulators = {
            name: recorder.storage(recorder.value(weight.grad)).id
            for name, weight in self.trained.items()
            if weight.grad is not None
        }
        for name in self.trained:
            path = enclosing(name, layers)
            like = layers[path] + name.removeprefix(path) if path else name
            if like in accumulators and accumulators[like] not in written:
                unused.add(name)
        standing = {like for name, like in self.twins.items() if name not in unused}
        for name in unused - standing:
            self.trained.pop(name).grad = None
            self.twins.pop(name, None)

    def _finished(self) -> Graph:
        """The graph with all that the run determines."""
        graph, recorder = self.recorder.graph, self.recorder
        graph.mutates = self.mutates
        graph.names_ipu = self.devices.named
        casting = self.step.casting
        graph.promotes = isinstance(casting, Casting) and casting.promoted
        overlap.note_overlaps(graph, recorder.tensors(), self.step.model)
        self._name_gradients()
        if self.step.optimizer is not None:
            set_optimizer_dtypes(graph, self.step.optimizer)
        if recorder.multi_convs and self.repeats.stand_ins:
            raise NotRepeatable("the model has a MultiConv")
        fuse(graph, list(recorder.multi_convs.values()))
        return expand(graph, self.registered, self.repeats.stand_ins, self.updates)

    def _name_gradients(self) -> None:
        """Record which storages are the gradients of weights that have no accumulator."""
        for name, parameter in self.trained.items():
            if parameter.grad is None:
                continue
            storage = self.recorder.storage(self.recorder.value(parameter.grad))
            if storage.role != Role.ACCUMULATOR:
                storage.role, storage.name = Role.GRADIENT, f"{name}/gradient"
                storage.parameter = self.recorder.storage(self.recorder.value(parameter)).id


class _Around(torch.nn.Module):
    """A model with a context that is entered around it while its weights are replaced."""

    def __init__(self, model: torch.nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.run = model, run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def _check_buffers(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> None:
    """Error if the forward removed a buffer or replaced its tensor: the device holds the first."""
    after = dict(model.named_buffers(remove_duplicate=False))
    for name, buffer in before.items():
        if name not in after:
            raise Error(
                f"Buffer {name} is removed from the model when calling the forward method. Remove"
                " it before the model is compiled"
            )
        if after[name] is not buffer:
            raise Error(
                f"Buffer {name} is reassigned within the model when calling the forward method."
                f" This is not supported. Consider using self.{name}.copy_(src) to copy data from a"
                " source tensor, where src is the name of the source tensor."
            )


# -- The dtypes of PopTorch's optimiser states, and the storages that they merge ---


def set_optimizer_dtypes(graph: Graph, optimizer: torch.optim.Optimizer) -> None:
    """Give states and accumulators the dtypes that a PopTorch optimiser stores them in.

    If one tensor holds accumulated gradients and velocities, the velocity is the accumulator.
    """
    if accumulates_in_velocity(optimizer):
        _join_velocities_to_accumulators(graph)
    dtypes: dict[int, str] = {}  # by storage
    for storage in graph.storages.values():
        if storage.parameter < 0:
            continue
        dtype = state_dtype(optimizer, storage.name.rpartition("/")[2])
        if dtype is not None:
            storage.dtype = dtypes[storage.id] = str(dtype).removeprefix("torch.")
    for value in graph.values.values():
        value.dtype = dtypes.get(value.storage, value.dtype)


def _join_velocities_to_accumulators(graph: Graph) -> None:
    storages = graph.storages
    accumulators = {s.parameter: s.id for s in storages.values() if s.role == Role.ACCUMULATOR}
    velocities = [s.id for s in storages.values() if s.name.endswith("/momentum_buffer")]
    joined: dict[int, int] = {}
    for velocity in velocities:
        if storages[velocity].parameter in accumulators:
            joined[velocity] = accumulators[storages.pop(velocity).parameter]
    for value in graph.values.values():
        value.storage = joined.get(value.storage, value.storage)
