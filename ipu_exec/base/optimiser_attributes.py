"""Settings of PopTorch's optimisers that torch's lack: state types, combined accumulators, scaling.

They are read from an optimiser's attributes, so that no pass needs `ipu_exec.optim`'s classes.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch

STATES = {  # by PyTorch's names: PopTorch's argument for the dtype
    "accumulator": "accum_type",
    "exp_avg": "first_order_momentum_accum_type",
    "grad_avg": "first_order_momentum_accum_type",
    "exp_avg_sq": "second_order_momentum_accum_type",
    "square_avg": "second_order_momentum_accum_type",
    "momentum_buffer": "velocity_accum_type",
}


def accumulates_in_velocity(optimizer: torch.optim.Optimizer) -> bool:
    """Whether one tensor holds velocities and accumulated gradients (PopART's SGD1)."""
    return bool(getattr(optimizer, "use_combined_accum", False))


def state_dtype(optimizer: torch.optim.Optimizer, state: str) -> torch.dtype | None:
    """The dtype in which an optimiser stores a state, independent of the weight's dtype.

    ``state`` is PyTorch's name of it, or "accumulator" for accumulated gradients. PyTorch's own
    optimisers store all states in float32, as in PopTorch: a missing attribute means float32
    [POPTORCH, python/_optimizer_attributes.py]. None means the weight's dtype: if one tensor
    holds gradients and velocities (PopTorch passes PopART no type for it: popart_compiler,
    CompilerImpl.cpp), and for states that PopTorch has no argument for.
    """
    if accumulates_in_velocity(optimizer):
        return None
    if not hasattr(optimizer, "_ipu_names"):  # those of `ipu_exec.optim` define the types
        return torch.float32
    return cast("torch.dtype | None", getattr(optimizer, STATES.get(state, ""), None))


def loss_scaling(optimizer: torch.optim.Optimizer) -> float:
    """The optimiser's loss scaling factor; 1 for PyTorch's own optimisers, and if it is None."""
    given = getattr(optimizer, "loss_scaling", None)
    return 1.0 if given is None else float(given)


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """One weight update, even if a script stores something else under the name ``step``."""
    step = optimizer.step if callable(optimizer.step) else partial(type(optimizer).step, optimizer)
    step()


def complete(optimizer: torch.optim.Optimizer) -> None:
    """Add zeros for states that the optimiser's settings need and earlier settings did not."""
    for group in optimizer.param_groups:
        wanted = {"momentum_buffer": bool(group.get("momentum")), "grad_avg": group.get("centered")}
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            like = state.get("square_avg")  # of RMSprop, which expects all of them once it has one
            for name in (name for name, needed in wanted.items() if needed and like is not None):
                state.setdefault(name, torch.zeros_like(like))
