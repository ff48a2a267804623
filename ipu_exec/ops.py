"""Operations that PopTorch adds to PyTorch."""

from __future__ import annotations

import logging

import torch

from ipu_exec.errors import UsageError

_LOSS_MARK = "_ipu_exec_loss"
logger = logging.getLogger("ipu_exec")


def identity_loss(x: torch.Tensor, reduction: str | int) -> torch.Tensor:
    """Mark ``x`` as the loss to differentiate, after reducing it: "sum", "mean" or "none".

    "none" takes what is one number already. Return the result from the model: a training model finds its loss
    among the outputs. PopTorch's old numbers 0 (sum), 1 (mean), 2 (none) work too.
    """
    name = {0: "sum", 1: "mean", 2: "none"}.get(reduction) if isinstance(reduction, int) else reduction
    if name == "sum":
        loss = x.sum()
    elif name == "mean":
        loss = x.mean()
    elif name == "none":
        loss = x
    else:
        raise UsageError(f"identity_loss: reduction is 'sum', 'mean' or 'none', not {reduction!r}")
    setattr(loss, _LOSS_MARK, True)
    return loss


def is_marked_loss(x: torch.Tensor) -> bool:
    """True for what `identity_loss` returned."""
    return bool(getattr(x, _LOSS_MARK, False))


def nop(x: torch.Tensor) -> torch.Tensor:
    """Does nothing, as in PopTorch."""
    return x


def recomputationCheckpoint(*tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Keep ``tensors`` for the backward pass where a stage recomputes its activations. Numbers do not depend on it."""
    if not tensors or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise UsageError("recomputationCheckpoint takes one or more tensors")
    for tensor in tensors:
        tensor._ipu_checkpoint = True  # type: ignore[attr-defined]  # capture looks for it
    return tensors[0] if len(tensors) == 1 else tensors


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """PopTorch's memory proportion for one operator (0 to 1). Numbers do not depend on it.

    The model takes the proportion per IPU, from ``Options.setAvailableMemoryProportion``; one operator's is
    accepted and logged as not modelled.
    """
    check_proportion("set_available_memory", available_memory_proportion)
    logger.debug("set_available_memory(%g): proportions of single operators are not modelled; set it per IPU with "
                 "Options.setAvailableMemoryProportion", available_memory_proportion)  # fmt: skip
    return tensor


def check_proportion(place: str, proportion: float) -> float:
    """The proportion as a float; Error where it is not in 0 ... 1 (exclusive of 0)."""
    if isinstance(proportion, bool) or not isinstance(proportion, (int, float)) or not 0 < proportion <= 1:
        raise UsageError(f"{place}: a memory proportion is above 0 and at most 1, not {proportion!r}")
    return float(proportion)
