"""The real numbers of one call, by plain PyTorch: cut the batch, train on it, join the outputs.

Everything is a function of the model, the optimiser, the batch and a `CallPlan`, without IPUs or
cycles. Training gives, bit for bit, the float32 weights of this PyTorch loop:

    for micro_batches in batches:  # a device iteration each
        for micro_batch in micro_batches:
            loss_of(model(*micro_batch)).backward()  # gradients add up undivided
        for weight in model.parameters():
            weight.grad /= len(micro_batches)  # once (Mean, Post); not at all for Sum
        optimizer.step(), optimizer.zero_grad()

``(loss / accumulation).backward()`` rounds each quotient and differs in the last bits. Replicas run
one after another; their gradients are added in replica order before the division, also where
instances share them (`ipu_exec.numerics.collectives`): the bits do not depend on how replicas are
shared out. float16 weights are updated in float32 by any optimiser (`ipu_exec.numerics.precision`).

Micro-batches lie along dimension 0 in the order device iteration, accumulation step, replica, as
PopART orders its data (popart ``session.py``).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from ipu_exec.base.optimiser_attributes import take_step
from ipu_exec.base.replica_groups import run, spread
from ipu_exec.base.structures import map_leaves, tensors_in
from ipu_exec.capture.loss import find_loss
from ipu_exec.enums import MeanReductionStrategy, ReductionType
from ipu_exec.errors import UsageError
from ipu_exec.numerics.anchors import Watch
from ipu_exec.numerics.call import CallPlan, Outputs
from ipu_exec.numerics.collectives import Instances
from ipu_exec.numerics.lockstep import Members, ReplicaState, Turns, norms_together
from ipu_exec.numerics.optimiser_state import as_on_device, loss_scaling_on_device
from ipu_exec.numerics.precision import Precision
from ipu_exec.numerics.randomness import ReplicaRandomness

logger = logging.getLogger("ipu_exec")
Gradients = dict[torch.Tensor, torch.Tensor]
_NOTHING = contextlib.nullcontext()


def check_batch(inputs: Any, plan: CallPlan) -> None:
    """Error if an input is empty or cannot be split into the call's micro-batches."""
    for index, tensor in enumerate(tensors_in(inputs)):
        if tensor.numel() == 0:
            raise UsageError(
                f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)}): input"
                f" {index} has no element"
            )
        size = tensor.shape[0] if tensor.dim() else 1
        if size % plan.factor:
            raise UsageError(
                f"input {index} has {size} samples along dimension 0 (shape {tuple(tensor.shape)}),"
                f" which is not a multiple of the {plan.factor} micro-batches of a call:"
                f" deviceIterations {plan.device_iterations} x gradientAccumulation"
                f" {plan.accumulation} x replicas {plan.input_replicas}. Pass micro-batch x"
                f" {plan.factor} samples; ipu_exec.DataLoader makes batches of that size"
            )


def as_streamed(inputs: Any, model: torch.nn.Module) -> Any:
    """``inputs`` as an IPU receives them: no gradients (with a warning), float64 as float32.

    A model that contains float64 gets float64: PyTorch does not mix types.
    """

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.requires_grad:
            logger.warning(
                "Input tensor has requires_grad=True set. This tensor will be detached because"
                " backward pass via inputs is not supported."
            )
            leaf = leaf.detach()
        if leaf.dtype is torch.float64 and not _computes_in_float64(model):
            return leaf.float()
        return leaf

    return map_leaves(one, inputs)


def _computes_in_float64(model: torch.nn.Module) -> bool:
    tensors = itertools.chain(model.parameters(), model.buffers())
    return any(tensor.dtype is torch.float64 for tensor in tensors)


def micro_batch(
    inputs: Any, plan: CallPlan, iteration: int = 0, step: int = 0, replica: int = 0
) -> Any:
    """``inputs`` with each tensor narrowed to one micro-batch, in the same tuples, lists and dicts.

    Tensors are contiguous, as on an IPU: a model may take a ``view`` of an input that its caller
    expanded or transposed.
    """
    index, factor = plan.micro_batch_index(iteration, step, replica), plan.factor

    def narrow(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            return leaf
        size = leaf.shape[0] // factor
        return leaf[index * size : (index + 1) * size].contiguous()

    return map_leaves(narrow, inputs)


class ReplicaBuffers:
    """Buffers (running statistics) of replicas 1, 2, ...; the model's own are replica 0's.

    Replicas, counted within this instance, run on other data, so their buffers differ.
    ``randomness``: None if they draw one after another from PyTorch's generator, as in a plain
    loop.
    """

    def __init__(self, randomness: ReplicaRandomness | None = None) -> None:
        self._copies: dict[int, dict[str, torch.Tensor]] = {}
        self.randomness = randomness

    def of(
        self, model: torch.nn.Module, replica: int, among_all: int | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Inside, the model has the buffers of ``replica`` and draws its random numbers.

        ``among_all``: its number among the replicas of all instances, if there are several.
        """
        number = replica if among_all is None else among_all
        if replica == 0 and (self.randomness is None or number == 0):
            return _NOTHING
        return self._of(model, replica, number)

    @contextlib.contextmanager
    def _of(self, model: torch.nn.Module, replica: int, among_all: int) -> Iterator[None]:
        drawing = _NOTHING if self.randomness is None else self.randomness.of(among_all)
        with drawing, _NOTHING if replica == 0 else self._buffers_of(model, replica):
            yield

    @contextlib.contextmanager
    def _buffers_of(self, model: torch.nn.Module, replica: int) -> Iterator[None]:
        buffers = dict(model.named_buffers())
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        for name, value in self._copies[replica].items():
            buffers[name].copy_(value)
        try:
            yield
        finally:
            self._copies[replica] = {name: buffer.clone() for name, buffer in model.named_buffers()}
            for name, value in own.items():
                model.get_buffer(name).copy_(value)

    def start(self, model: torch.nn.Module, replicas: int) -> None:
        """Give replicas that have no buffers yet a copy of the model's."""
        for replica in range(1, replicas):
            if replica not in self._copies:
                self._copies[replica] = {
                    name: buffer.clone() for name, buffer in model.named_buffers()
                }

    def forget(self, names: Iterable[str] = ()) -> None:
        """Start again from the model's buffers, or from those with these names only."""
        if not names:
            self._copies.clear()
        for buffers in self._copies.values():
            for name in names:
                buffers.pop(name, None)


def infer(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plan: CallPlan,
    buffers: ReplicaBuffers | None = None,
    watch: Watch | None = None,
    precision: Precision | None = None,
) -> Any:
    """One inference call: every micro-batch, with outputs by the output mode."""
    buffers = buffers or ReplicaBuffers()
    buffers.start(model, plan.replicas)
    outputs = Outputs(plan)
    precision = precision or Precision()
    with torch.no_grad():
        for iteration, replica in _iterations(plan):
            among_all = plan.first_replica + replica
            with buffers.of(model, replica, among_all):
                for step in range(plan.accumulation):
                    positional, named = micro_batch((args, kwargs), plan, iteration, step, replica)
                    with (
                        _watched(watch, (positional, named), iteration, step, replica),
                        precision.model(replica),
                    ):
                        returned = run(model, plan.groupings, among_all, positional, named)
                    outputs.add(returned, iteration, step, replica)
    return outputs.result()


def train(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plan: CallPlan,
    optimizer: torch.optim.Optimizer,
    buffers: ReplicaBuffers | None = None,
    loss_of: Callable[[Any], torch.Tensor] = find_loss,
    watch: Watch | None = None,
    precision: Precision | None = None,
    together: Instances | None = None,
) -> Any:
    """One training call: ``device_iterations`` weight updates; outputs by the output mode.

    ``together``: the instances that share the replicas; this one runs, and returns, its own.
    """
    buffers = buffers or ReplicaBuffers()
    buffers.start(model, plan.replicas)
    outputs = Outputs(plan)
    parameters = _trained(model, optimizer)
    precision = precision or Precision()

    def replica_of(iteration: int, gradients: _Sum, scale: float, replica: int) -> None:
        """Forward and backward of one replica's micro-batches."""
        among_all = plan.first_replica + replica
        with torch.enable_grad(), buffers.of(model, replica, among_all):
            _clear(parameters)
            for step in range(plan.accumulation):
                positional, named = micro_batch((args, kwargs), plan, iteration, step, replica)
                watched = _watched(watch, (positional, named), iteration, step, replica)
                with precision.counting(), watched, precision.model(replica):
                    returned = run(model, plan.groupings, among_all, positional, named)
                    if watch is not None:
                        watch.backward()
                    _backward(loss_of(returned), parameters, plan, step, scale)
                if plan.accumulation > 1:
                    precision.accumulate(optimizer, parameters, among_all)
                outputs.add(returned, iteration, step, replica)
        gradients.add_replica()

    with torch.enable_grad():
        for iteration in range(plan.device_iterations):
            gradients = _Sum(parameters, together)
            scaler = precision.scaler
            scale = scaler.scale if scaler else loss_scaling_on_device(optimizer)
            work = partial(replica_of, iteration, gradients, scale)
            _each_replica(model, parameters, plan, precision, together, work)
            total = gradients.total()
            for parameter in parameters:
                parameter.grad = total.get(parameter)
            if precision.scaler:
                precision.scaler.update(total.values(), together)
            with precision.update(optimizer), as_on_device(optimizer):
                _divide(parameters, plan, scale)
                take_step(optimizer)
            spread(model, plan.groupings)
            if watch is not None:
                watch.updated(iteration)
            _clear(parameters)
    return outputs.result()


def _each_replica(
    model: torch.nn.Module,
    parameters: list[torch.Tensor],
    plan: CallPlan,
    precision: Precision,
    together: Instances | None,
    work: Callable[[int], None],
) -> None:
    """Run ``work`` for one replica after another, or in turns if they share batch norms' sums."""
    if plan.norm_group == 1:
        for replica in range(plan.replicas):
            work(replica)
        return
    members = Members(plan.norm_group, plan.replicas, plan.first_replica, together)
    state = ReplicaState(model, parameters, precision.model)
    turns = Turns(members, state.put_away, state.bring_back)

    def one(replica: int) -> None:
        with norms_together(turns, replica):
            work(replica)

    turns.run([partial(one, replica) for replica in range(plan.replicas)])


def _watched(
    watch: Watch | None, inputs: Any, iteration: int, step: int, replica: int
) -> contextlib.AbstractContextManager[None]:
    return _NOTHING if watch is None else watch.micro_batch(inputs, iteration, step, replica)


class _Sum:
    """The sum of the replicas' gradients, in the order of the replicas of all instances."""

    def __init__(self, parameters: list[torch.Tensor], together: Instances | None) -> None:
        self._parameters, self._together = parameters, together
        self._total: Gradients = {}
        self._apart: list[Gradients] = []  # of each replica, where other instances have some too

    def add_replica(self) -> None:
        """Add the gradients that a replica has left in ``.grad``."""
        gradients = {p: p.grad for p in self._parameters if p.grad is not None}
        if self._together is None:
            self._total = add_gradients(self._total, gradients)
        else:
            self._apart.append(gradients)

    def total(self) -> Gradients:
        """The sums, the same on all instances."""
        if self._together is None:
            return self._total
        return self._together.add_gradients(self._parameters, self._apart)


def add_gradients(total: Gradients, more: Gradients) -> Gradients:
    """Sum of the gradients of two replicas; a parameter that one did not use keeps the other's."""
    return {
        **total,
        **{p: total[p] + gradient if p in total else gradient for p, gradient in more.items()},
    }


def _iterations(plan: CallPlan) -> Iterator[tuple[int, int]]:
    return (
        (iteration, replica)
        for iteration in range(plan.device_iterations)
        for replica in range(plan.replicas)
    )


def _backward(
    loss: torch.Tensor, parameters: list[torch.Tensor], plan: CallPlan, step: int, scale: float
) -> None:
    """Add the gradients of one micro-batch to ``.grad``, as the reduction strategy stores them."""
    if plan.reduction is ReductionType.Mean and plan.strategy is MeanReductionStrategy.PostAndLoss:
        scale = scale / plan.total_replicas
    running = (
        plan.reduction is ReductionType.Mean and plan.strategy is MeanReductionStrategy.Running
    )
    if not loss.requires_grad:  # it depends on no weight that is trained
        return
    before = {p: p.grad for p in parameters if p.grad is not None} if running and step else {}
    if before:
        _clear(parameters)
    loss.backward() if scale == 1 else loss.backward(torch.full_like(loss, scale))
    if before:
        for parameter in parameters:
            # mean of step + 1 values = mean of step values x step / (step + 1) + value / (step + 1)
            mean, new = before.get(parameter), parameter.grad
            scaled = None if new is None else new.div_(step + 1)
            previous = None if mean is None else mean.mul_(step / (step + 1))
            parameter.grad = (
                scaled
                if previous is None
                else previous
                if scaled is None
                else previous.add_(scaled)
            )


def _divide(parameters: list[torch.Tensor], plan: CallPlan, scale: float) -> None:
    """Divide gradients summed over the replicas as the optimiser expects them."""
    divisor = 1
    if plan.reduction is ReductionType.Mean:
        divisor = {
            MeanReductionStrategy.Post: plan.mean_divisor,
            MeanReductionStrategy.Running: plan.total_replicas,
            MeanReductionStrategy.PostAndLoss: plan.accumulation,
        }[plan.strategy]
    for parameter in parameters:
        if parameter.grad is not None:
            if scale != 1:
                parameter.grad.div_(scale)
            if divisor != 1:
                parameter.grad.div_(divisor)


def _trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Every parameter that may get a gradient, once each."""
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list(
        dict.fromkeys([*own, *(p for group in optimizer.param_groups for p in group["params"])])
    )


def _clear(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None
