"""Checks of arguments that several of PopTorch's functions take."""

from __future__ import annotations

from typing import Any

import torch

from ipu_exec.errors import UsageError


def check_proportion(place: str, proportion: float) -> float:
    """The proportion as a float; Error if it is not in 0 ... 1 (exclusive of 0)."""
    if (
        isinstance(proportion, bool)
        or not isinstance(proportion, (int, float))
        or not 0 < proportion <= 1
    ):
        raise UsageError(
            f"{place}: a memory proportion is above 0 and at most 1, not {proportion!r}"
        )
    return float(proportion)


def check_tensor(place: str, *values: Any) -> None:
    """Error if a value is not a tensor."""
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"{place} takes torch tensors; {type(value)} is not supported")
