"""``ipu_state`` and ``ipu_param``, which PopTorch's optimisers add to PyTorch's ``state_dict``.

Tensors under PopART's names [POPART, willow/include/popart/names.hpp], [POPTORCH,
tests/optimizers_test.py]: ``Accl1___weight`` is the first moment of the parameter ``weight``.
Both are None until a model was compiled with the optimiser. ``load_state_dict`` takes both back.
``ipu_param`` follows from the parameter groups, unless a different one was loaded: the device
then trains with that, until the groups change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ipu_exec.base.optimiser_attributes import loss_scaling

# of a parameter: its name, and how many replicas' values it has or 0
Names = Mapping[torch.Tensor, tuple[str, int]]


@dataclass(frozen=True)
class Loaded:
    """Hyperparameters that the device was given, other than those of the parameter groups."""

    values: Mapping[str, torch.Tensor]  # by PopART's names
    instead_of: Mapping[str, torch.Tensor]  # what followed from the groups at that time


def states(
    optimizer: torch.optim.Optimizer, names: Names, scale: float | None = None
) -> dict[str, torch.Tensor]:
    """Copies of the optimiser's states of each parameter; 0, as on the device, before a step.

    ``scale``: automatic loss scaling's factor, stored as a factor of ``loss_scaling``.
    """
    states = {}
    if scale is not None:
        states["lossScaleUpdateFactor"] = torch.tensor(scale / loss_scaling(optimizer))
    for parameter, state, prefix in _each(optimizer, names):
        name, rows = names[parameter]
        value = optimizer.state.get(parameter, {}).get(state)
        if state == "step":
            on_device = torch.full((rows or 1,), float(0 if value is None else value))
        elif value is None:
            on_device = torch.full_like(parameter, _start(optimizer, state), requires_grad=False)
        else:
            on_device = value.detach().clone()
        states[f"{prefix}___{name}"] = on_device
    return states


def load(optimizer: torch.optim.Optimizer, names: Names, given: Mapping[str, torch.Tensor]) -> None:
    """Load states that `states` or PopTorch returned. Missing ones keep their values."""
    given = _by_our_names(given)
    own = states(optimizer, names)
    for parameter, state, prefix in list(_each(optimizer, names)):
        key = f"{prefix}___{names[parameter][0]}"
        value = given.get(key, own[key])
        if state == "step":
            steps = value.flatten()[0]
            # LAMB counts with a number, PyTorch's optimisers with a tensor
            counts = (
                isinstance(optimizer.state[parameter].get("step"), int)
                or type(optimizer).__name__ == "LAMB"
            )
            optimizer.state[parameter]["step"] = int(steps) if counts else steps.float().clone()
        # PyTorch's first velocity is undamped, and 0 stands for none
        elif value.any() or state != "momentum_buffer":
            optimizer.state[parameter][state] = value.detach().clone().to(parameter.device)


def values(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, torch.Tensor]:
    """The optimiser's hyperparameters as they follow from its groups.

    With momentum, SGD's are under PyTorch's names, since PopART combines them in its own way.
    """
    scale = loss_scaling(optimizer)
    state = {"lossScaling_FLOAT": torch.tensor(scale)}
    for group in optimizer.param_groups:
        own = {
            theirs: group[name] for name, theirs in _VALUES.items() if group.get(name) is not None
        }
        if "betas" in group:
            own["beta1"], own["beta2"] = group["betas"][:2]
        elif "alpha" not in group and not has_velocity(optimizer, group):
            rate, decay = group["lr"], group.get("weight_decay", 0.0)
            own = {"scaledLearningRate0": rate / scale, "weightDecayScaleFactor0": 1 - rate * decay}
        for name, _ in (names[parameter] for parameter in group["params"] if parameter in names):
            state |= {
                f"{key}___specific___{name}": torch.tensor(float(value))
                for key, value in own.items()
            }
    return state


def settings(optimizer: torch.optim.Optimizer) -> list[tuple[float, ...]]:
    """Each group's numbers, by which a change is seen."""
    return [
        tuple(float(group[name]) for name in _VALUES if group.get(name) is not None)
        + tuple(float(beta) for beta in group.get("betas", ()))
        for group in optimizer.param_groups
    ]


def loaded(
    optimizer: torch.optim.Optimizer, names: Names, given: Mapping[str, torch.Tensor]
) -> Loaded | None:
    """The hyperparameters of ``given``, completed by the groups'; None if those say the same."""
    given = _by_our_names(given)
    own = values(optimizer, names)
    chosen = {name: given.get(name, value).detach().clone() for name, value in own.items()}
    # a checkpoint may have been rounded differently
    same = all(
        torch.allclose(chosen[name], value, rtol=1e-6, atol=0) for name, value in own.items()
    )
    return None if same else Loaded(chosen, own)


def on_device(optimizer: torch.optim.Optimizer, names: Names) -> Mapping[str, torch.Tensor]:
    """The hyperparameters as the device has them: those loaded, until the groups change."""
    own = values(optimizer, names)
    loaded = _loaded_by(optimizer)
    return own if loaded is None or _changed(own, loaded.instead_of) else loaded.values


def loss_scaling_on_device(optimizer: torch.optim.Optimizer) -> float:
    """The factor by which the device multiplies the loss."""
    if _loaded_by(optimizer) is None:
        return loss_scaling(optimizer)
    return float(on_device(optimizer, _names_of(optimizer))["lossScaling_FLOAT"])


@contextlib.contextmanager
def as_on_device(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, the groups have the device's hyperparameters; loaded ones per parameter."""
    if _loaded_by(optimizer) is None:
        yield
        return
    names = _names_of(optimizer)
    device = on_device(optimizer, names)
    groups = optimizer.param_groups
    own = [
        {**group, "params": [parameter], **_settings(parameter, names, device)}
        for group in groups
        for parameter in group["params"]
    ]
    optimizer.param_groups = own
    try:
        yield
    finally:
        optimizer.param_groups = groups


def _loaded_by(optimizer: torch.optim.Optimizer) -> Loaded | None:
    return getattr(optimizer, "_ipu_loaded", None)


def _names_of(optimizer: torch.optim.Optimizer) -> Names:
    return getattr(optimizer, "_ipu_names", None) or {}


def _settings(
    parameter: torch.Tensor, names: Names, device: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """A parameter's settings on the device, if it is there, by PyTorch's names."""
    if parameter not in names:
        return {}
    suffix = f"___specific___{names[parameter][0]}"
    own = {
        name.removesuffix(suffix): value for name, value in device.items() if name.endswith(suffix)
    }
    return _as_torch_has_them(own, float(device["lossScaling_FLOAT"]))


def _as_torch_has_them(device: Mapping[str, torch.Tensor], scale: float) -> dict[str, Any]:
    """Settings by PyTorch's names, of those by PopART's; ``scale`` is the loss's."""
    own: dict[str, Any] = {
        name: float(device[theirs]) for name, theirs in _VALUES.items() if theirs in device
    }
    if "beta1" in device:
        # Tensors, so that the root of what is negative is NaN as on the device, not complex.
        own["betas"] = (device["beta1"], device["beta2"])
    if "scaledLearningRate0" in device:
        rate = float(device["scaledLearningRate0"]) * scale
        lost = 1 - float(device["weightDecayScaleFactor0"])
        own |= {"lr": rate, "weight_decay": lost / rate if rate else 0.0}
    return own


def _changed(own: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]) -> bool:
    if own.keys() != before.keys():
        return True
    return any(not torch.equal(value, before[name]) for name, value in own.items())


def _by_our_names(given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """PopTorch's names, whose module it may have wrapped in one called ``model``."""
    return {name.replace("___model.", "___"): value for name, value in given.items()} | dict(given)


def has_velocity(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether the device has velocities: of a momentum that is not 0, or may change."""
    attributes = getattr(optimizer, "variable_attrs", None)
    may_change = attributes is not None and not attributes.isConstant("momentum")
    return "momentum" in group and bool(group["momentum"] or may_change)


_VALUES = {
    "lr": "learningRate",
    "weight_decay": "weightDecay",
    "eps": "eps",
    "alpha": "alpha",
    "momentum": "momentum",
    "dampening": "dampening",
}


def _each(
    optimizer: torch.optim.Optimizer, names: Names
) -> Iterator[tuple[torch.Tensor, str, str]]:
    """Every state while the optimiser trains: its parameter, and PyTorch's and PopART's names."""
    for group in optimizer.param_groups:
        if "betas" in group:
            popart_names = {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "step": "Step"}
        elif "alpha" in group:
            popart_names = {"square_avg": "Accl1", "step": "Step"}
            popart_names |= {"grad_avg": "Accl2"} if group["centered"] else {}
            velocity = has_velocity(optimizer, group)
            popart_names |= {"momentum_buffer": "Accl3"} if velocity else {}
        else:
            # with the gradients added up, in one tensor
            one = getattr(optimizer, "use_combined_accum", False)
            velocity = has_velocity(optimizer, group)
            popart_names = {"momentum_buffer": "Accl" if one else "Accl1"} if velocity else {}
        for parameter in group["params"]:
            if parameter in names and parameter.requires_grad:
                yield from ((parameter, state, prefix) for state, prefix in popart_names.items())


def _start(optimizer: torch.optim.Optimizer, state: str) -> float:
    return 1.0 if state == "square_avg" and getattr(optimizer, "use_tf_variant", False) else 0.0
