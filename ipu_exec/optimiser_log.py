"""Log of the optimiser settings that an executor sends to its device, in PopTorch's words.

Attributes have PopART's names; "(const)" follows those that are compiled in [POPTORCH,
python/_optimizer_attributes.py].
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ipu_exec.base.optimiser_attributes import STATES, accumulates_in_velocity, loss_scaling

logger = logging.getLogger("ipu_exec")

_POPART = {
    "lr": "learningRate",
    "momentum": "momentum",
    "dampening": "dampening",
    "weight_decay": "weightDecay",
    "velocity_scaling": "velocityScaling",
    "nesterov": "nesterov",
    "beta1": "beta1",
    "beta2": "beta2",
    "alpha": "alpha",
    "eps": "eps",
    "max_weight_norm": "maxWeightNorm",
}
# what PopART compiles in of one of PyTorch's optimisers: always, or at a value
_ALWAYS_CONSTANT = ("betas", "alpha", "nesterov")
_CONSTANT_AT = {
    "momentum": 0.0,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "velocity_scaling": 1.0,
    "eps": 1e-8,
    "loss_scaling": 1.0,
}
_ACCUMULATOR_TYPES = {
    "accumType": (STATES["accumulator"],),
    "firstOrderMomentumAccumType": (STATES["exp_avg"], STATES["momentum_buffer"]),
    "secondOrderMomentumAccumType": (STATES["exp_avg_sq"],),
}


def described(optimizer: torch.optim.Optimizer, scales_automatically: bool) -> tuple[str, ...]:
    """The settings sent to a device: the optimiser's, then those of each of its groups."""
    kind = _kind(optimizer)
    whole = [kind, *_attributes(optimizer, optimizer.defaults, "default")]
    constant = _constant(optimizer, "loss_scaling", loss_scaling(optimizer))
    suffix = " (const)" if constant and not scales_automatically else ""
    whole.append(f"lossScaling={loss_scaling(optimizer):g}{suffix}")
    for name, attributes in _ACCUMULATOR_TYPES.items():
        dtypes = (getattr(optimizer, attribute, None) for attribute in attributes)
        dtype = next((dtype for dtype in dtypes if dtype is not None), torch.float32)
        whole.append(f"{name}={str(dtype).removeprefix('torch.')}")
    whole.append(f"useTfVariant={int(getattr(optimizer, 'use_tf_variant', False))}")
    whole.append(f"maxGradNorm={getattr(optimizer, 'max_grad_norm', float('inf')):g}")
    groups = [[kind, *_attributes(optimizer, group, "")] for group in optimizer.param_groups]
    return tuple(", ".join(words) for words in (whole, *groups))


def log(lines: tuple[str, ...]) -> None:
    """Log that an optimiser, as `described`, is sent to the device."""
    whole, *groups = lines
    logger.debug("Updating graph optimizer with %s", whole)
    for number, group in enumerate(groups):
        logger.debug("Updating group %d optimizer with %s", number, group)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """PopTorch's name of it: SGD1 has velocities and gradients in one tensor, SGD2 separately."""
    name = type(optimizer).__name__.upper()
    if isinstance(optimizer, torch.optim.SGD):
        return "SGD1" if accumulates_in_velocity(optimizer) else "SGD2"
    if optimizer.defaults.get("centered"):
        name += "_CENTERED"
    return name if getattr(optimizer, "bias_correction", True) else f"{name}_NO_BIAS"


def _attributes(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], prefix: str
) -> Iterator[str]:
    for name, value in _values(optimizer, group):
        theirs = _POPART[name]
        shown = f"{prefix}{theirs[0].upper()}{theirs[1:]}" if prefix else theirs
        of = _set_with(optimizer, name)
        constant = " (const)" if _constant(optimizer, of, value) else ""
        yield f"{shown}={float(value):g}{constant}"


def _set_with(optimizer: torch.optim.Optimizer, name: str) -> str:
    """The argument that sets one of PopART's attributes."""
    if name.startswith("beta"):
        return "betas"
    if name == "velocity_scaling" and not accumulates_in_velocity(optimizer):
        return "loss_scaling"  # apart, velocities are as the gradients
    return name


def _values(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any]
) -> Iterator[tuple[str, float]]:
    own = dict(group)
    own.update(zip(("beta1", "beta2"), own.get("betas", ()), strict=False))  # Adan has a third
    if isinstance(optimizer, torch.optim.SGD) and not accumulates_in_velocity(optimizer):
        own["velocity_scaling"] = loss_scaling(optimizer)
    if getattr(optimizer, "max_weight_norm", None) is not None:
        own.setdefault("max_weight_norm", getattr(optimizer, "max_weight_norm", None))
    for name in _POPART:
        value = own.get(name)
        if value is not None and not isinstance(value, tuple):  # as Adafactor's two eps
            yield name, value


def _constant(optimizer: torch.optim.Optimizer, name: str, value: Any) -> bool:
    attributes = getattr(optimizer, "variable_attrs", None)
    if attributes is not None and name != "lr":
        return bool(attributes.isConstant(name))
    at = 1e-2 if name == "weight_decay" and type(optimizer).__name__ == "AdamW" else None
    at = _CONSTANT_AT.get(name) if at is None else at
    return name in _ALWAYS_CONSTANT or (at is not None and float(value) == at)
