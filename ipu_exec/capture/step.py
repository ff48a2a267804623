"""Capture: record every ATen call of one micro-batch and one weight update, on fake tensors.

The real module, the real autograd and the real optimiser run under ``FakeTensorMode``: shapes and
dtypes are true, no weight is copied and nothing is computed. The `Recorder` above it records each
call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ipu_exec.capture import overlap
from ipu_exec.capture.casts import Casting
from ipu_exec.capture.fake_tensors import FakeTensors, make_state
from ipu_exec.capture.marks import note_checkpoints, note_memory_proportions
from ipu_exec.capture.multi_conv import fuse
from ipu_exec.capture.open_blocks import reset_blocks
from ipu_exec.capture.optimiser_states import keep_as_optimizer_does
from ipu_exec.capture.recorder import Recorder, tensors_of
from ipu_exec.capture.replacements import torch_as_on_ipu
from ipu_exec.context import keeping_what_is_saved
from ipu_exec.errors import Error
from ipu_exec.graph import Graph
from ipu_exec.optimiser_attributes import take_step
from profiler.enums import Direction, Role

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
) -> Graph:
    """Record what one micro-batch computes; with an optimiser, its backward and the update too.

    ``args``/``kwargs`` are one micro-batch (real tensors, untouched). ``accumulate``: gradients are
    added to accumulators that live on, as gradient accumulation does. ``find_loss`` picks the loss
    from what the model returns. ``contents``: what the forward reads off tensors, in order, for
    fake tensors hold nothing; ContentError where it asks for more. ``casting``: entered around
    forward and backward (`ipu_exec.capture.casts`).

    A model that changes in place what its backward still needs is recorded with a copy of it, as
    PopART's programs, where no tensor is changed, have it (``Graph.mutates``); PyTorch refuses such
    a backward.
    """
    casting = casting or contextlib.nullcontext()
    step = _Step(model, args, kwargs, optimizer, accumulate, find_loss, contents, casting)
    try:
        return _Run(step, mutates=False).graph()
    except RuntimeError as error:
        if _CHANGED not in str(error):
            raise
    return _Run(step, mutates=True).graph()


@dataclass(frozen=True)
class _Step:
    """What is to be captured; the fields are the arguments of `capture`."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    optimizer: torch.optim.Optimizer | None
    accumulate: bool
    find_loss: Callable[[Any], torch.Tensor] | None
    contents: Sequence[bool | int | float]
    casting: contextlib.AbstractContextManager[Any]


@dataclass
class _Run:
    """One run of a step on fake tensors."""

    step: _Step
    mutates: bool
    fakes: FakeTensors = field(default_factory=FakeTensors)
    recorder: Recorder = field(init=False)
    state: dict[str, torch.Tensor] = field(init=False)  # fake weights and buffers, by name
    buffers: dict[str, torch.Tensor] = field(init=False)  # those of them that are buffers
    trained: dict[str, torch.Tensor] = field(init=False)  # those that the optimiser updates
    optimizer: torch.optim.Optimizer | None = field(init=False)

    def graph(self) -> Graph:
        step = self.step
        parameters = dict(step.model.named_parameters(remove_duplicate=False))
        buffers = dict(step.model.named_buffers(remove_duplicate=False))
        self.state = {
            name: self.fakes.of_state(tensor) for name, tensor in {**parameters, **buffers}.items()
        }
        self.buffers = {name: self.state[name] for name in buffers}
        with self.fakes.mode:
            self.recorder = Recorder(training=step.optimizer is not None, contents=step.contents)
            for name, tensor in self.state.items():
                self.recorder.register(
                    tensor, Role.WEIGHT if name in parameters else Role.BUFFER, name
                )
            args, kwargs = self._inputs()
            self.trained = self._trained()
            self.optimizer = self._fake_optimizer()
            reset_blocks()
            returned = self._forward_and_backward(args, kwargs)
            self._update()
            self._note_marks(returned)
        return self._finished()

    def _inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The micro-batch on nothing."""
        args, kwargs = self.fakes.copies((self.step.args, self.step.kwargs))
        self.recorder.graph.inputs = tuple(
            self.recorder.register(tensor, Role.INPUT, f"input.{index}")
            for index, tensor in enumerate(tensors_of((args, kwargs)))
        )
        return args, kwargs

    def _trained(self) -> dict[str, torch.Tensor]:
        """The fake parameters that the optimiser updates.

        They have accumulators where gradients are added up.
        """
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
            parameter.grad = torch.zeros_like(parameter)
            self.recorder.register(
                parameter.grad, Role.ACCUMULATOR, f"{name}/accumulator", parameter
            )
        return trained

    def _fake_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimiser over the fake parameters, with the state that it has after a step."""
        if self.step.optimizer is None:
            return None
        optimizer = self.fakes.optimizer(self.step.optimizer)
        make_state(optimizer, self.trained)
        for name, parameter in self.trained.items():
            for key, tensor in optimizer.state[parameter].items():
                if isinstance(tensor, torch.Tensor):
                    self.recorder.register(tensor, Role.OPTIMISER_STATE, f"{name}/{key}", parameter)
        return optimizer

    def _forward_and_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # a checkpointed layer runs again in the backward, which has to find the fake weights too
        around = _Around(self.step.model, self._recorded_forward_and_backward)
        fakes = {f"model.{name}": tensor for name, tensor in self.state.items()}
        return torch.func.functional_call(around, fakes, args, kwargs)

    def _recorded_forward_and_backward(self, *args: Any, **kwargs: Any) -> Any:
        model = self.step.model
        with (
            torch.set_grad_enabled(self.optimizer is not None),
            torch_as_on_ipu(),
            self.recorder.modules(model),
            self.step.casting,
            self.recorder,
            keeping_what_is_saved(self.mutates),
        ):
            returned = model(*args, **kwargs)
            _check_buffers(model, self.buffers)
            if self.optimizer is not None:
                self._backward(returned)
        return returned

    def _backward(self, returned: Any) -> None:
        if self.step.find_loss is None:
            raise Error("a training step needs to know which output is the loss: pass find_loss")
        loss = self.step.find_loss(returned)
        self.recorder.graph.loss = self.recorder.value(loss)
        self.recorder.direction = Direction.BACKWARD
        if loss.requires_grad:  # else every weight is frozen, as `find_loss` saw
            loss.backward()

    def _update(self) -> None:
        """The weight update, after which accumulators begin at zero again."""
        if self.optimizer is None:
            return
        with torch.enable_grad(), self.recorder:
            self.recorder.direction = Direction.UPDATE
            take_step(self.optimizer)
            for parameter in self.trained.values() if self.step.accumulate else ():
                if parameter.grad is not None:
                    parameter.grad.zero_()

    def _note_marks(self, returned: Any) -> None:
        graph, recorder = self.recorder.graph, self.recorder
        note_checkpoints(graph, recorder.tensors())
        note_memory_proportions(graph, recorder.tensors())
        graph.outputs = tuple(recorder.value(tensor) for tensor in tensors_of(returned))

    def _finished(self) -> Graph:
        """The graph with all that is known of it once everything ran."""
        graph, recorder = self.recorder.graph, self.recorder
        graph.mutates = self.mutates
        casting = self.step.casting
        graph.promotes = isinstance(casting, Casting) and casting.promoted
        overlap.note_overlaps(graph, recorder.tensors(), self.step.model)
        self._name_gradients()
        if self.step.optimizer is not None:
            keep_as_optimizer_does(graph, self.step.optimizer)
        fuse(graph, list(recorder.multi_convs.values()))
        return graph

    def _name_gradients(self) -> None:
        """Say which storages are the gradients of weights, where no accumulator took them."""
        for name, parameter in self.trained.items():
            if parameter.grad is None:
                continue
            storage = self.recorder.storage(self.recorder.value(parameter.grad))
            if storage.role != Role.ACCUMULATOR:
                storage.role, storage.name = Role.GRADIENT, f"{name}/gradient"
                storage.parameter = self.recorder.storage(self.recorder.value(parameter)).id


class _Around(torch.nn.Module):
    """A model around which something is done while its weights are replaced."""

    def __init__(self, model: torch.nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.run = model, run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def _check_buffers(model: torch.nn.Module, before: dict[str, torch.Tensor]) -> None:
    """Error where the forward took away a buffer or put another tensor in its place.

    The device holds the first.
    """
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
