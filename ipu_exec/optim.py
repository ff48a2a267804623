"""PyTorch's optimisers with the extra arguments that PopTorch gives them, and LAMB.

The extra arguments say how an IPU keeps states and scales losses. They are checked and kept as attributes; with
their defaults the update is PyTorch's, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch

from ipu_exec.errors import Error

Params = Iterable[torch.Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, torch.Tensor]]


class _Extras:
    """PopTorch's arguments of an optimiser, kept apart from torch's."""

    loss_scaling: float
    bias_correction = True
    max_grad_norm: float | None = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One weight update, the gradients scaled down first where their norm is above ``max_grad_norm``."""
        optimizer = cast(torch.optim.Optimizer, self)
        if self.max_grad_norm is not None and math.isfinite(self.max_grad_norm):
            every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            torch.nn.utils.clip_grad_norm_(every, self.max_grad_norm)
        if self.bias_correction:
            return super().step(closure)  # type: ignore[misc]
        loss = closure() if closure is not None else None
        _update_without_correction(optimizer, decoupled=isinstance(optimizer, torch.optim.AdamW))
        return loss

    def _keep(self, **extras: Any) -> None:
        for name, value in extras.items():
            if name.endswith("accum_type") and value not in (torch.float32, torch.float16):
                raise Error(f"{type(self).__name__}: {name} is torch.float32 or torch.float16, not {value!r}")
            if name in ("loss_scaling", "velocity_scaling", "max_weight_norm", "max_grad_norm") and not (
                value is None or (isinstance(value, (int, float)) and value > 0)
            ):
                raise Error(f"{type(self).__name__}: {name} is a number above 0, not {value!r}")
            setattr(self, name, value)
        self.variable_attrs = None


class SGD(_Extras, torch.optim.SGD):
    """`torch.optim.SGD`; ``loss_scaling`` multiplies the loss and divides the gradients."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        loss_scaling: float = 1.0,
        velocity_scaling: float = 1.0,
        use_combined_accum: bool = False,
        accum_type: torch.dtype = torch.float32,
        velocity_accum_type: torch.dtype = torch.float32,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize, foreach=foreach,
                         differentiable=differentiable)  # fmt: skip
        self._keep(
            loss_scaling=loss_scaling,
            velocity_scaling=velocity_scaling,
            use_combined_accum=use_combined_accum,
            accum_type=accum_type,
            velocity_accum_type=velocity_accum_type,
            max_grad_norm=max_grad_norm,
        )


class Adam(_Extras, torch.optim.Adam):
    """`torch.optim.Adam` with PopTorch's arguments."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        loss_scaling: float = 1.0,
        accum_type: torch.dtype = torch.float32,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        bias_correction: bool = True,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize)
        _check_without_correction(self, bias_correction)
        self._keep(
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
            bias_correction=bias_correction,
            max_grad_norm=max_grad_norm,
        )


class AdamW(_Extras, torch.optim.AdamW):
    """`torch.optim.AdamW` with PopTorch's arguments."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        loss_scaling: float = 1.0,
        accum_type: torch.dtype = torch.float32,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        bias_correction: bool = True,
        max_grad_norm: float | None = None,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize)
        _check_without_correction(self, bias_correction)
        self._keep(
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
            bias_correction=bias_correction,
            max_grad_norm=max_grad_norm,
        )


class RMSprop(_Extras, torch.optim.RMSprop):
    """`torch.optim.RMSprop` with PopTorch's arguments."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        loss_scaling: float = 1.0,
        accum_type: torch.dtype = torch.float32,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
        use_tf_variant: bool = False,
    ) -> None:
        super().__init__(params, lr, alpha, eps, weight_decay, momentum, centered, foreach=foreach, maximize=maximize)
        if use_tf_variant:
            raise Error("RMSprop: use_tf_variant=True (eps inside the root) is not supported; leave it False")
        self._keep(
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )


class LAMB(_Extras, torch.optim.Optimizer):
    """Layer-wise adaptive moments for large batches (You et al., arXiv:1904.00962, algorithm 2).

    Adam's direction plus weight decay, scaled per parameter by ||w|| / ||direction||, where ``max_weight_norm``
    bounds ||w||; the ratio is 1 where either norm is 0. ``bias_correction`` as in Adam.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        bias_correction: bool = True,
        loss_scaling: float = 1.0,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype = torch.float32,
        first_order_momentum_accum_type: torch.dtype = torch.float32,
        second_order_momentum_accum_type: torch.dtype = torch.float32,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise Error(
                "LAMB: lr, eps and weight_decay are 0 or more and betas in 0 ... 1 (exclusive), not "
                f"lr={lr}, eps={eps}, weight_decay={weight_decay}, betas={betas}"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._keep(
            loss_scaling=loss_scaling,
            bias_correction=bias_correction,
            max_weight_norm=max_weight_norm,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )

    max_weight_norm: float | None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One weight update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(parameter.grad, 1 - beta1)
        second.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        unbias1 = 1 - beta1 ** state["step"] if self.bias_correction else 1.0
        unbias2 = 1 - beta2 ** state["step"] if self.bias_correction else 1.0
        direction = (first / unbias1) / ((second / unbias2).sqrt() + group["eps"])
        direction = direction.add(parameter, alpha=group["weight_decay"])
        weight_norm = parameter.norm()
        if self.max_weight_norm is not None and math.isfinite(self.max_weight_norm):
            weight_norm = weight_norm.clamp(max=self.max_weight_norm)
        direction_norm = direction.norm()
        # torch.where, not a branch on data: the update must be the same program whatever the numbers are.
        usable = (weight_norm > 0) & (direction_norm > 0)
        trust = torch.where(usable, weight_norm / direction_norm, torch.ones_like(weight_norm))
        parameter.sub_(direction * (trust * group["lr"]))


def _check_without_correction(optimizer: torch.optim.Optimizer, bias_correction: bool) -> None:
    if not bias_correction and (optimizer.defaults["amsgrad"] or optimizer.defaults["maximize"]):
        raise Error(f"{type(optimizer).__name__}: bias_correction=False goes with neither amsgrad nor maximize")


@torch.no_grad()
def _update_without_correction(optimizer: torch.optim.Optimizer, decoupled: bool) -> None:
    """Adam's update (AdamW's where ``decoupled``) with the moments as they are, not corrected for their start at 0."""
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)  # unused here; other optimisers' states have it
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            gradient = parameter.grad
            if decoupled:
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
            elif group["weight_decay"]:
                gradient = gradient.add(parameter, alpha=group["weight_decay"])
            state["step"] += 1
            state["exp_avg"].lerp_(gradient, 1 - beta1)
            state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            parameter.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt().add_(group["eps"]), value=-group["lr"])


def loss_scaling(optimizer: torch.optim.Optimizer) -> float:
    """What the optimiser multiplies losses by; 1 for PyTorch's own."""
    return float(getattr(optimizer, "loss_scaling", 1.0))


class LARS(_Extras, torch.optim.Optimizer):
    """Layer-wise adaptive rates on SGD with momentum (You et al., arXiv:1708.03888, algorithm 1).

    A parameter of two dimensions or more moves at ``lr`` times its own rate, ``trust_coefficient`` ||w|| / (||g|| +
    ``weight_decay`` ||w|| + ``eps``), which is 1 where either norm is 0. Vectors (biases, scales of norms) take plain
    steps without decay, as in MLPerf's ResNet-50. Error where an argument is out of range.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust_coefficient: float = 1e-3,
        eps: float = 0.0,
        loss_scaling: float = 1.0,
        accum_type: torch.dtype = torch.float32,
    ) -> None:
        settings = {"lr": lr, "weight_decay": weight_decay, "trust_coefficient": trust_coefficient, "eps": eps}
        if min(settings.values()) < 0 or not 0 <= momentum < 1:
            raise Error(f"LARS: momentum is in 0 ... 1 (exclusive) and the rest 0 or more, not {momentum=}, {settings}")
        super().__init__(params, {**settings, "momentum": momentum})
        self._keep(loss_scaling=loss_scaling, accum_type=accum_type)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One weight update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        gradient = cast(torch.Tensor, parameter.grad)
        if parameter.dim() > 1:
            weight_norm, gradient_norm = parameter.norm(), gradient.norm()
            rate = group["trust_coefficient"] * weight_norm
            rate = rate / (gradient_norm + group["weight_decay"] * weight_norm + group["eps"])
            usable = (weight_norm > 0) & (gradient_norm > 0)
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
            gradient = gradient * torch.where(usable, rate, torch.ones_like(rate))
        state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        parameter.add_(state["momentum_buffer"], alpha=-group["lr"])
