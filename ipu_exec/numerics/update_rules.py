"""Weight updates that PyTorch's optimisers do not have."""

from __future__ import annotations

import torch


@torch.no_grad()
def update_without_correction(optimizer: torch.optim.Optimizer, decoupled: bool) -> None:
    """Adam's update without bias correction; AdamW's if ``decoupled``."""
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
            parameter.addcdiv_(
                state["exp_avg"], state["exp_avg_sq"].sqrt().add_(group["eps"]), value=-group["lr"]
            )


@torch.no_grad()
def tensorflow_rmsprop(optimizer: torch.optim.Optimizer) -> None:
    """RMSprop's update as TensorFlow has it: epsilon inside the root."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.tensor(0.0)
                state["square_avg"] = torch.ones_like(parameter)
                if group["momentum"]:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                if group["centered"]:
                    state["grad_avg"] = torch.zeros_like(parameter)
            gradient, square = parameter.grad, state["square_avg"]
            if group["weight_decay"]:
                gradient = gradient.add(parameter, alpha=group["weight_decay"])
            state["step"] += 1
            square.mul_(group["alpha"]).addcmul_(gradient, gradient, value=1 - group["alpha"])
            variance = square
            if group["centered"]:
                state["grad_avg"].lerp_(gradient, 1 - group["alpha"])
                variance = square.addcmul(state["grad_avg"], state["grad_avg"], value=-1)
            moved = group["lr"] * gradient / variance.add(group["eps"]).sqrt()
            if group["momentum"]:
                moved = state["momentum_buffer"].mul_(group["momentum"]).add_(moved)
            parameter.sub_(moved)
