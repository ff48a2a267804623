"""``ipu_state`` and ``ipu_param``, which PopTorch's optimisers add to PyTorch's ``state_dict``.

Tensors under PopART's names [POPART, willow/include/popart/names.hpp], [POPTORCH,
tests/optimizers_test.py]: ``Accl1___weight`` is the first moment of the parameter ``weight``.
Both are None until a model was compiled with the optimiser. ``load_state_dict`` takes ``ipu_state``
back, and the parameter groups, which ``ipu_param`` follows from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ipu_exec.optimiser_attributes import loss_scaling

Names = Mapping[
    torch.Tensor, tuple[str, int]
]  # of a parameter: its name, and how many replicas' values it has or 0


def states(
    optimizer: torch.optim.Optimizer, names: Names, scale: float | None = None
) -> dict[str, torch.Tensor]:
    """Copies of the optimiser's states of each parameter.

    States that no step has created yet are 0, as on the device. ``scale``: the factor by which
    automatic loss scaling multiplies the loss, if it is on; kept as a factor of the optimiser's
    ``loss_scaling``.
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
    given = {name.replace("___model.", "___"): value for name, value in given.items()} | dict(given)
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
        elif (
            value.any() or state != "momentum_buffer"
        ):  # PyTorch's first velocity is undamped, and 0 stands for none
            optimizer.state[parameter][state] = value.detach().clone().to(parameter.device)


def values(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, torch.Tensor]:
    """The optimiser's hyperparameters as the device has them.

    With momentum, SGD's are under PyTorch's names, because PopART combines them in its own way.
    """
    scale = loss_scaling(optimizer)
    state = {"lossScaling_FLOAT": torch.tensor(scale)}
    for group in optimizer.param_groups:
        own = {
            theirs: group[name] for name, theirs in _VALUES.items() if group.get(name) is not None
        }
        if "betas" in group:
            own["beta1"], own["beta2"] = group["betas"]
        elif "alpha" not in group and not group.get("momentum"):
            rate, decay = group["lr"], group.get("weight_decay", 0.0)
            own = {"scaledLearningRate0": rate / scale, "weightDecayScaleFactor0": 1 - rate * decay}
        for name, _ in (names[parameter] for parameter in group["params"] if parameter in names):
            state |= {
                f"{key}___specific___{name}": torch.tensor(float(value))
                for key, value in own.items()
            }
    return state


_VALUES = {
    "lr": "learningRate",
    "weight_decay": "weightDecay",
    "eps": "eps",
    "alpha": "alpha",
    "momentum": "momentum",
}


def _each(
    optimizer: torch.optim.Optimizer, names: Names
) -> Iterator[tuple[torch.Tensor, str, str]]:
    """Every state that the optimiser has while it trains.

    Each comes with its parameter, its name in PyTorch and its name in PopART.
    """
    for group in optimizer.param_groups:
        if "betas" in group:
            popart_names = {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "step": "Step"}
        elif "alpha" in group:
            popart_names = {"square_avg": "Accl1", "step": "Step"}
            popart_names |= {"grad_avg": "Accl2"} if group["centered"] else {}
            popart_names |= {"momentum_buffer": "Accl3"} if group["momentum"] else {}
        else:
            one = getattr(
                optimizer, "use_combined_accum", False
            )  # with the gradients added up, in one tensor
            popart_names = (
                {"momentum_buffer": "Accl" if one else "Accl1"} if group.get("momentum") else {}
            )
        for parameter in group["params"]:
            if parameter in names and parameter.requires_grad:
                yield from ((parameter, state, prefix) for state, prefix in popart_names.items())


def _start(optimizer: torch.optim.Optimizer, state: str) -> float:
    return 1.0 if state == "square_avg" and getattr(optimizer, "use_tf_variant", False) else 0.0
