"""What PopTorch's optimisers say beside torch's.

That is the types of their states, combined accumulators and loss scaling.

Read off an optimiser's attributes, so that no pass needs the classes of `ipu_exec.optim`.
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


def is_poptorch_optimizer(optimizer: torch.optim.Optimizer) -> bool:
    """True for those of `ipu_exec.optim`, which say themselves what they keep states in."""
    return hasattr(optimizer, "_ipu_names")


def accumulates_in_velocity(optimizer: torch.optim.Optimizer) -> bool:
    """Whether one tensor holds velocities and gradients that are added up (PopART's SGD1)."""
    return bool(getattr(optimizer, "use_combined_accum", False))


def state_dtype(optimizer: torch.optim.Optimizer, state: str) -> torch.dtype | None:
    """The dtype in which an optimiser keeps a state, whatever that of the weight is.

    ``state`` is PyTorch's name of it, or "accumulator" for the gradients that are added up. One of
    PyTorch's keeps all in float32, as PopTorch has it: what it does not know an optimiser to say is
    float32 [POPTORCH, python/_optimizer_attributes.py]. None, as the weight: where one tensor holds
    gradients and velocities (PopTorch gives PopART no type for it: popart_compiler,
    CompilerImpl.cpp), and for what PopTorch has no argument for.
    """
    if accumulates_in_velocity(optimizer):
        return None
    if not is_poptorch_optimizer(optimizer):
        return torch.float32
    return cast("torch.dtype | None", getattr(optimizer, STATES.get(state, ""), None))


def loss_scaling(optimizer: torch.optim.Optimizer) -> float:
    """What the optimiser multiplies losses by; 1 for PyTorch's own, and where it is None."""
    given = getattr(optimizer, "loss_scaling", None)
    return 1.0 if given is None else float(given)


def take_step(optimizer: torch.optim.Optimizer) -> None:
    """One weight update, also where a script keeps something of its own under the name ``step``."""
    step = optimizer.step if callable(optimizer.step) else partial(type(optimizer).step, optimizer)
    step()


def complete(optimizer: torch.optim.Optimizer) -> None:
    """Zeros for states that the optimiser's settings need and an earlier one's did not."""
    for group in optimizer.param_groups:
        wanted = {"momentum_buffer": bool(group.get("momentum")), "grad_avg": group.get("centered")}
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            like = state.get("square_avg")  # of RMSprop, which expects all of them once it has one
            for name in (name for name, needed in wanted.items() if needed and like is not None):
                state.setdefault(name, torch.zeros_like(like))
