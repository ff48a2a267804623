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
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from ipu_exec.base.context import NOTHING
from ipu_exec.base.optimiser_attributes import take_step
from ipu_exec.base.replica_groups import run, spread
from ipu_exec.base.structures import map_leaves, taken_apart, tensors_in
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
        if leaf.layout != torch.strided:
            raise UsageError(f"an input is a sparse tensor ({leaf.layout}): pass it .to_dense()")
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


def micro_batches(inputs: Any, plan: CallPlan) -> Callable[[int], Any]:
    """A function of `CallPlan.micro_batch_index`: ``inputs`` with each tensor cut to a micro-batch.

    In the same tuples, lists and dicts. Tensors are contiguous, as on an IPU: a model may take a
    ``view`` of an input that its caller expanded or transposed.
    """
    leaves, together = taken_apart(inputs)
    parts = [(leaf, _cut(leaf, plan.factor)) for leaf in leaves]
    args, kwargs = inputs
    flat = not kwargs and list(map(id, leaves)) == list(map(id, args))  # quicker put together

    def micro_batch(index: int) -> Any:
        row = [leaf if cut is None else cut[index].contiguous() for leaf, cut in parts]
        return (tuple(row), {}) if flat else together(row)

    return micro_batch


def _cut(leaf: Any, count: int) -> Sequence[torch.Tensor] | None:
    """A tensor's equal parts along dimension 0, which an operator in place may change."""
    if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
        return None
    return [leaf.detach()] if count == 1 else leaf.unsafe_split(leaf.shape[0] // count)


class ReplicaBuffers:
    """Buffers (running statistics) of replicas 1, 2, ...; the model's own are replica 0's.

    Replicas, counted within this instance, run on other data, so their buffers differ.
    ``randomness``: None if they draw one after another from PyTorch's generator, as in a plain
    loop.
    """

    def __init__(self, randomness: ReplicaRandomness | None = None) -> None:
        self._copies: dict[int, dict[str, torch.Tensor]] = {}
        # the last gradients: freed at the end of a call, their pages would go back to the system
        self.spent: list[torch.Tensor | None] = []
        self.randomness = randomness

    def of(
        self, model: torch.nn.Module, replica: int, among_all: int | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Inside, the model has the buffers of ``replica`` and draws its random numbers.

        ``among_all``: its number among the replicas of all instances, if there are several.
        """
        number = replica if among_all is None else among_all
        if replica == 0 and (self.randomness is None or number == 0):
            return NOTHING
        return self._of(model, replica, number)

    @contextlib.contextmanager
    def _of(self, model: torch.nn.Module, replica: int, among_all: int) -> Iterator[None]:
        drawing = NOTHING if self.randomness is None else self.randomness.of(among_all)
        with drawing, NOTHING if replica == 0 else self._buffers_of(model, replica):
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
            self.spent.clear()
        for buffers in self._copies.values():
            for name in names:
                buffers.pop(name, None)


def infer(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plan: CallPlan,
    buffers: ReplicaBuffers,
    precision: Precision,
    watch: Watch | None = None,
) -> Any:
    """One inference call: every micro-batch, with outputs by the output mode."""
    buffers.start(model, plan.replicas)
    outputs, micro_batch = Outputs(plan), micro_batches((args, kwargs), plan)
    with torch.set_grad_enabled(False):
        for number in range(plan.device_iterations * plan.replicas):
            iteration, replica = divmod(number, plan.replicas)
            among_all, at = plan.first_replica + replica, (iteration, 0, replica)
            inputs = micro_batch(plan.micro_batch_index(*at))
            watched = NOTHING if watch is None else watch.micro_batch(inputs, *at)
            with buffers.of(model, replica, among_all):
                with watched, precision.model(replica):
                    returned = run(model, plan.groupings, among_all, *inputs)
                outputs.add(returned, *at)
    return outputs.result()


def train(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plan: CallPlan,
    optimizer: torch.optim.Optimizer,
    buffers: ReplicaBuffers,
    precision: Precision,
    watch: Watch | None = None,
    together: Instances | None = None,
    parameters: Iterable[torch.Tensor] | None = None,
) -> Any:
    """One training call: ``device_iterations`` weight updates; outputs by the output mode.

    ``together``: the instances that share the replicas; this one runs, and returns, its own.
    ``parameters``: the model's, where its caller has listed them.
    """
    buffers.start(model, plan.replicas)
    outputs, micro_batch = Outputs(plan), micro_batches((args, kwargs), plan)
    parameters = _trained(model.parameters() if parameters is None else parameters, optimizer)

    def replica_of(iteration: int, gradients: _Sum | None, scale: float, replica: int) -> None:
        """Forward and backward of one replica's micro-batches."""
        among_all = plan.first_replica + replica
        with buffers.of(model, replica, among_all):
            _clear(parameters)
            buffers.spent.clear()
            for step in range(plan.accumulation):
                at = (iteration, step, replica)
                inputs = micro_batch(plan.micro_batch_index(*at))
                watched = NOTHING if watch is None else watch.micro_batch(inputs, *at)
                with precision.counting(), watched, precision.model(replica):
                    returned = run(model, plan.groupings, among_all, *inputs)
                    if watch is not None:
                        watch.backward()
                    _backward(find_loss(returned), parameters, plan, step, scale)
                if plan.accumulation > 1:
                    precision.accumulate(optimizer, parameters, among_all)
                outputs.add(returned, *at)
        if gradients is not None:
            gradients.add_replica()

    with torch.set_grad_enabled(True):
        for iteration in range(plan.device_iterations):
            gradients = _Sum(parameters, together) if plan.replicas > 1 or together else None
            scaler = precision.scaler
            scale = scaler.scale if scaler else loss_scaling_on_device(optimizer)
            work = partial(replica_of, iteration, gradients, scale)
            _each_replica(model, parameters, plan, precision, together, work)
            if gradients is not None:
                gradients.leave()
            if scaler:
                scaler.update([p.grad for p in parameters if p.grad is not None], together)
            with precision.update(optimizer), as_on_device(optimizer):
                _divide(parameters, plan, scale)
                take_step(optimizer)
            spread(model, plan.groupings)
            if watch is not None:
                watch.updated(iteration)
            buffers.spent = [parameter.grad for parameter in parameters]
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
        with torch.enable_grad(), norms_together(turns, replica):  # of this thread
            work(replica)

    turns.run([partial(one, replica) for replica in range(plan.replicas)])


class _Sum:
    """The sum of the replicas' gradients, in the order of the replicas of all instances."""

    def __init__(self, parameters: list[torch.Tensor], together: Instances | None) -> None:
        self._parameters, self._together = parameters, together
        self._total: Gradients = {}
        self._apart: list[Gradients] = []  # of each replica, where other instances have some too

    def add_replica(self) -> None:
        """Add the gradients that a replica has left in ``.grad``."""
        gradients = {p: p.grad for p in self._parameters if p.grad is not None}
        if self._together is not None:
            self._apart.append(gradients)
            return
        for parameter, gradient in gradients.items():  # one that it did not use keeps the others'
            total = self._total.get(parameter)
            self._total[parameter] = gradient if total is None else total + gradient

    def leave(self) -> None:
        """Leave the sums, the same on all instances, in ``.grad``."""
        total = self._total
        if self._together is not None:
            total = self._together.add_gradients(self._parameters, self._apart)
        for parameter in self._parameters:
            parameter.grad = total.get(parameter)


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
            if new is not None:
                new.div_(step + 1)
            if mean is not None:
                mean.mul_(step / (step + 1))
                parameter.grad = mean if new is None else mean.add_(new)


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


def _trained(own: Iterable[torch.Tensor], optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Every parameter that may get a gradient, once each."""
    trained = [parameter for parameter in own if parameter.requires_grad]
    for group in optimizer.param_groups:
        trained += group["params"]
    return list(dict.fromkeys(trained))


def _clear(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None
