"""The real numbers of one call, by plain PyTorch: how a batch is cut, trained on and put together
again.

Everything is a function of the model, the optimiser, the batch and a `CallPlan`; nothing here knows
IPUs or cycles. Training gives the weights of a plain PyTorch loop bit for bit: in each device
iteration, for each replica its micro-batches one after another (``loss.backward()`` adding up), the
replicas' gradients added in replica order, divided once (Mean, Post), one ``optimizer.step()``.

Micro-batches lie along dimension 0 in the order device iteration, accumulation step, replica, as
PopART orders its data (popart ``session.py``: batches per step, accumulation factor, replication
factor, micro-batch).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ipu_exec.enums import CommGroupType, MeanReductionStrategy, OutputMode, ReductionType
from ipu_exec.errors import Error, UsageError
from ipu_exec.numerics.precision import Precision
from ipu_exec.ops import is_marked_loss
from ipu_exec.optim import loss_scaling
from ipu_exec.options import Options
from ipu_exec.replica_groups import Groupings, run, spread
from ipu_exec.structures import learn

if TYPE_CHECKING:
    from ipu_exec.numerics.anchors import Watch

logger = logging.getLogger("ipu_exec")
Gradients = dict[torch.Tensor, torch.Tensor]
_ON_IPU = {torch.int64: torch.int32, torch.float64: torch.float32}


def keeping_what_is_saved(mutates: bool) -> contextlib.AbstractContextManager[Any]:
    """Around forward and backward: what is saved for the backward is copied before it is changed in
    place.
    """
    return (
        torch.autograd.graph.allow_mutation_on_saved_tensors()
        if mutates
        else contextlib.nullcontext()
    )


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How many micro-batches a call has and what becomes of their gradients and outputs."""

    device_iterations: int
    accumulation: int
    replicas: int
    input_replicas: int
    input_group_type: CommGroupType
    output_mode: OutputMode
    output_period: int
    reduction: ReductionType
    strategy: MeanReductionStrategy
    groupings: Groupings = field(default_factory=dict)

    @property
    def factor(self) -> int:
        """Micro-batches of a call."""
        return self.device_iterations * self.accumulation * self.input_replicas

    @property
    def mean_divisor(self) -> int:
        """What Mean divides summed gradients by: accumulation steps x replicas."""
        return self.accumulation * self.replicas

    def micro_batch_index(self, iteration: int, step: int, replica: int) -> int:
        """Position of a micro-batch along dimension 0, in micro-batches."""
        if self.input_group_type is CommGroupType.Orthogonal:
            source = replica % self.input_replicas
        else:
            source = replica // (self.replicas // self.input_replicas)
        return (iteration * self.accumulation + step) * self.input_replicas + source


def plan_call(options: Options, training: bool) -> CallPlan:
    """The plan that ``options`` ask for. Error where EveryN does not divide the micro-batches of a
    replica.
    """
    mode = options.output_mode
    if mode is OutputMode.Default:
        mode = OutputMode.Final if training else OutputMode.All
    plan = CallPlan(
        device_iterations=options.device_iterations,
        accumulation=options.Training.gradient_accumulation,
        replicas=options.replication_factor,
        input_replicas=options.input_replicas,
        input_group_type=options.input_group_type,
        output_mode=mode,
        output_period=options.output_return_period,
        reduction=options.Training.accumulation_and_replication_reduction_type,
        strategy=options.Training.mean_accumulation_and_replication_reduction_strategy,
    )
    count = plan.device_iterations * plan.accumulation
    if mode is OutputMode.EveryN and count % plan.output_period:
        raise UsageError(
            f"outputMode(OutputMode.EveryN, {plan.output_period}): a call has {count} micro-batches"
            f" a replica (deviceIterations {plan.device_iterations} x gradientAccumulation"
            f" {plan.accumulation}), which is no multiple of {plan.output_period}"
        )
    return plan


def check_batch(inputs: Any, plan: CallPlan) -> None:
    """Error where a tensor among ``inputs`` is empty or cannot be cut into the call's
    micro-batches.
    """
    for index, tensor in enumerate(_tensors(inputs)):
        if tensor.numel() == 0:
            raise UsageError(
                f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)}): input"
                f" {index} has no element"
            )
        size = tensor.shape[0] if tensor.dim() else 1
        if size % plan.factor:
            raise UsageError(
                f"input {index} has {size} samples along dimension 0 (shape {tuple(tensor.shape)}),"
                f" which is no multiple of the {plan.factor} micro-batches of a call:"
                f" deviceIterations {plan.device_iterations} x gradientAccumulation"
                f" {plan.accumulation} x replicas {plan.input_replicas}. Pass micro-batch x"
                f" {plan.factor} samples; ipu_exec.DataLoader makes batches of that size"
            )


def as_streamed(inputs: Any, model: torch.nn.Module) -> Any:
    """``inputs`` as an IPU gets them: without a gradient (a warning says so), float64 as float32.

    In a model that has float64 itself they stay float64: numbers are PyTorch's, and it mixes no
    types.
    """
    wide = any(tensor.dtype is torch.float64 for tensor in (*model.parameters(), *model.buffers()))

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf.requires_grad:
            logger.warning(
                "Input tensor has requires_grad=True set. This tensor will be detached because"
                " backward pass via inputs is not supported."
            )
            leaf = leaf.detach()
        return leaf.float() if leaf.dtype is torch.float64 and not wide else leaf

    return tree_map(one, inputs)


def micro_batch(
    inputs: Any, plan: CallPlan, iteration: int = 0, step: int = 0, replica: int = 0
) -> Any:
    """``inputs`` with each tensor narrowed to one micro-batch; tuples, lists and dicts stay what
    they are.

    Contiguous, as they arrive on an IPU: a model may take a ``view`` of what its caller expanded or
    transposed.
    """

    def narrow(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            return leaf
        size = leaf.shape[0] // plan.factor
        return leaf.narrow(
            0, plan.micro_batch_index(iteration, step, replica) * size, size
        ).contiguous()

    return tree_map(narrow, inputs)


def refuse_backward(*args: Any, **kwargs: Any) -> None:
    """What ``backward`` of an output does."""
    raise Error(
        "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a"
        " trainingModel, the backwards pass is performed automatically when invoking the model. If"
        " you're using an inferenceModel, you should use a trainingModel instead."
    )


def _nothing() -> None:
    return None


def frozen(model: torch.nn.Module) -> bool:
    """Whether no weight requires grad: PopTorch accepts such a training model, and only runs it."""
    return not any(parameter.requires_grad for parameter in model.parameters())


def find_loss(returned: Any, frozen: bool = False) -> torch.Tensor:
    """The loss among what a model returned: what `identity_loss` marked (the last such), else the
    last scalar.

    Error where there is none that can be differentiated; of a ``frozen`` model it need not be.
    """
    learn(returned)
    tensors = _tensors(returned)
    marked = [tensor for tensor in tensors if is_marked_loss(tensor)]
    scalars = [tensor for tensor in tensors if tensor.numel() == 1 and tensor.is_floating_point()]
    found = marked or scalars
    if not found:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensors"
        raise Error(
            "Couldn't find a loss in graph: the model returned no loss, its outputs have the"
            f" shapes {shapes}. A training model returns its loss last, reduced to one number; mark"
            " another output with ipu_exec.identity_loss(x, 'mean')"
        )
    loss = found[-1]
    if loss.numel() != 1:
        raise Error(
            f"the loss has the shape {tuple(loss.shape)} and must be one number: use"
            " identity_loss(x, 'mean') or 'sum'"
        )
    if not loss.requires_grad and not frozen:
        raise Error(
            "the loss does not depend on any weight that requires grad, so there is nothing to"
            " train; look for .detach(), torch.no_grad() or frozen parameters between the weights"
            " and the loss"
        )
    return loss


def find_final_loss(returned: Any, frozen: bool = False) -> torch.Tensor:
    """`find_loss`, and a warning where an unmarked loss was put together from several of torch's
    losses.

    PopTorch refuses that: each of torch's losses is one to it, and what is made of several has to
    be marked.
    """
    loss = find_loss(returned, frozen)
    if is_marked_loss(loss):
        return loss
    losses, seen, to_see = set(), set(), [loss.grad_fn]
    while to_see:
        node = to_see.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if any(
            part in node.name() for part in ("LossBackward", "Loss2DBackward", "BinaryCrossEntropy")
        ):
            losses.add(node)
        else:
            to_see += [before for before, _ in node.next_functions]
    if len(losses) > 1:
        logger.warning(
            "Multiple independent losses found in graph: the loss is made of %d, and PopTorch"
            " refuses it. Return poptorch.identity_loss(loss, 'none') of it",
            len(losses),
        )
    return loss


@dataclass(slots=True)
class Outputs:
    """Keeps of the micro-batches' outputs what the output mode returns, and puts it together.

    Final: the last micro-batch. All: every one. EveryN: the N-th, 2N-th, ... Sum: the sum of all.
    Each replica has its own; they are concatenated along dimension 0, replicas innermost. Scalars
    become a vector where more than one is returned, and stay scalars else. An IPU has no 64-bit
    numbers: int64 and float64 come out as int32 and float32.
    """

    plan: CallPlan
    _kept: dict[tuple[int, int], list[Any]] = field(
        default_factory=dict
    )  # (micro-batch, replica) -> leaves
    _structure: Any = None

    def add(self, returned: Any, iteration: int, step: int, replica: int) -> None:
        """Take what the model returned for one micro-batch."""
        learn(returned)
        leaves, self._structure = tree_flatten(returned)
        # a copy: what the model returned may be a buffer or an input, which the next micro-batch
        # changes in place
        leaves = [
            leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        ]
        index, plan = iteration * self.plan.accumulation + step, self.plan
        if plan.output_mode is OutputMode.Sum:
            if (0, replica) in self._kept:
                leaves = [_add(a, b) for a, b in zip(self._kept[0, replica], leaves, strict=True)]
            self._kept[0, replica] = leaves
        elif (
            plan.output_mode is OutputMode.All
            or (plan.output_mode is OutputMode.EveryN and (index + 1) % plan.output_period == 0)
            or (
                plan.output_mode is OutputMode.Final
                and index == plan.device_iterations * plan.accumulation - 1
            )
        ):
            self._kept[index, replica] = leaves

    @property
    def any(self) -> bool:
        """Whether something was kept."""
        return bool(self._kept)

    def result(self) -> Any:
        """What the call returns, in the structure that the model returned."""
        ordered = [self._kept[key] for key in sorted(self._kept)]
        leaves = [
            _join([_narrow(leaf) for leaf in column]) for column in zip(*ordered, strict=True)
        ]
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                leaf.backward = refuse_backward  # type: ignore[method-assign]
                leaf.__getstate__ = _nothing  # type: ignore[method-assign]  # saved, it is a plain tensor
        return tree_unflatten(leaves, self._structure)


def _narrow(leaf: Any) -> Any:
    return (
        leaf.to(_ON_IPU[leaf.dtype])
        if isinstance(leaf, torch.Tensor) and leaf.dtype in _ON_IPU
        else leaf
    )


def _add(total: Any, leaf: Any) -> Any:
    return total + leaf if isinstance(total, torch.Tensor) else leaf


def _join(leaves: list[Any]) -> Any:
    if len(leaves) == 1 or not isinstance(leaves[0], torch.Tensor):
        return leaves[-1]
    return torch.stack(leaves) if leaves[0].dim() == 0 else torch.cat(leaves)


class ReplicaBuffers:
    """Buffers (running statistics) of replicas 1, 2, ...; the model's own are replica 0's.

    Each replica runs on other data, so its buffers go their own way from the model's at the first
    call on.
    """

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, torch.Tensor]] = {}

    @contextlib.contextmanager
    def of(self, model: torch.nn.Module, replica: int) -> Iterator[None]:
        """Run the model with the buffers of ``replica``."""
        buffers = dict(model.named_buffers())
        if replica == 0 or not buffers:
            yield
            return
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        for name, value in self._kept[replica].items():
            buffers[name].copy_(value)
        try:
            yield
        finally:
            self._kept[replica] = {name: buffer.clone() for name, buffer in model.named_buffers()}
            for name, value in own.items():
                model.get_buffer(name).copy_(value)

    def start(self, model: torch.nn.Module, replicas: int) -> None:
        """Give replicas that have none yet a copy of the model's buffers."""
        for replica in range(1, replicas):
            if replica not in self._kept:
                self._kept[replica] = {
                    name: buffer.clone() for name, buffer in model.named_buffers()
                }

    def forget(self) -> None:
        """Start again from the model's buffers."""
        self._kept.clear()


def infer(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plan: CallPlan,
    buffers: ReplicaBuffers | None = None,
    watch: Watch | None = None,
    precision: Precision | None = None,
) -> Any:
    """One inference call: every micro-batch of every device iteration and replica, outputs by the
    output mode.
    """
    buffers = buffers or ReplicaBuffers()
    buffers.start(model, plan.replicas)
    outputs = Outputs(plan)
    precision = precision or Precision()
    with torch.no_grad():
        for iteration, replica in _iterations(plan):
            with buffers.of(model, replica):
                for step in range(plan.accumulation):
                    taken, named = micro_batch((args, kwargs), plan, iteration, step, replica)
                    with (
                        _watched(watch, (taken, named), iteration, step, replica),
                        precision.model(replica),
                    ):
                        returned = run(model, plan.groupings, replica, taken, named)
                    outputs.add(returned, iteration, step, replica)
    return outputs.result()


def train(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plan: CallPlan,
    optimizer: torch.optim.Optimizer,
    buffers: ReplicaBuffers | None = None,
    loss_of: Callable[[Any, bool], torch.Tensor] = find_loss,
    watch: Watch | None = None,
    precision: Precision | None = None,
) -> Any:
    """One training call: ``device_iterations`` weight updates; outputs by the output mode."""
    buffers = buffers or ReplicaBuffers()
    buffers.start(model, plan.replicas)
    outputs = Outputs(plan)
    parameters, forward_only = _trained(model, optimizer), frozen(model)
    precision = precision or Precision()
    with torch.enable_grad():
        for iteration in range(plan.device_iterations):
            total: Gradients = {}
            scale = precision.scaler.scale if precision.scaler else loss_scaling(optimizer)
            for replica in range(plan.replicas):
                with buffers.of(model, replica):
                    _clear(parameters)
                    for step in range(plan.accumulation):
                        taken, named = micro_batch((args, kwargs), plan, iteration, step, replica)
                        watched = _watched(watch, (taken, named), iteration, step, replica)
                        with precision.counting(), watched, precision.model(replica):
                            returned = run(model, plan.groupings, replica, taken, named)
                            if watch is not None:
                                watch.backward()
                            _backward(
                                loss_of(returned, forward_only), parameters, plan, step, scale
                            )
                        if plan.accumulation > 1:
                            precision.accumulate(optimizer, parameters)
                        outputs.add(returned, iteration, step, replica)
                total = add_gradients(total, {p: p.grad for p in parameters if p.grad is not None})
            for parameter in parameters:
                parameter.grad = total.get(parameter)
            if precision.scaler:
                precision.scaler.update(total.values())
            with precision.update(optimizer):
                _divide(parameters, plan, scale)
                optimizer.step()
            spread(model, plan.groupings)
            if watch is not None:
                watch.updated(iteration)
            _clear(parameters)
    return outputs.result()


def _watched(
    watch: Watch | None, inputs: Any, iteration: int, step: int, replica: int
) -> contextlib.AbstractContextManager[None]:
    return (
        contextlib.nullcontext()
        if watch is None
        else watch.micro_batch(inputs, iteration, step, replica)
    )


def add_gradients(total: Gradients, more: Gradients) -> Gradients:
    """Sum of the gradients of two replicas; a parameter that only one of them used keeps that
    one's.
    """
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
    """Add the gradients of one micro-batch to ``.grad``, as the reduction strategy keeps them."""
    if plan.reduction is ReductionType.Mean and plan.strategy is MeanReductionStrategy.PostAndLoss:
        scale = scale / plan.replicas
    running = (
        plan.reduction is ReductionType.Mean and plan.strategy is MeanReductionStrategy.Running
    )
    if not loss.requires_grad:  # every weight is frozen
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
            kept = None if mean is None else mean.mul_(step / (step + 1))
            parameter.grad = (
                scaled if kept is None else kept if scaled is None else kept.add_(scaled)
            )


def _divide(parameters: list[torch.Tensor], plan: CallPlan, scale: float) -> None:
    """Make gradients summed over the replicas what the optimiser takes."""
    divisor = 1
    if plan.reduction is ReductionType.Mean:
        divisor = {
            MeanReductionStrategy.Post: plan.mean_divisor,
            MeanReductionStrategy.Running: plan.replicas,
            MeanReductionStrategy.PostAndLoss: plan.accumulation,
        }[plan.strategy]
    for parameter in parameters:
        if parameter.grad is not None:
            if scale != 1:
                parameter.grad.div_(scale)
            if divisor != 1:
                parameter.grad.div_(divisor)


def _trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Every parameter that may get a gradient, once."""
    own = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return list(
        dict.fromkeys([*own, *(p for group in optimizer.param_groups for p in group["params"])])
    )


def _clear(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]
