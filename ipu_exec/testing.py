"""PopTorch's helpers for tests."""

from __future__ import annotations

from typing import Any

import torch


def allclose(
    expected_output: Any,
    model_output: Any,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    equal_nan: bool = False,
) -> bool:
    """Whether two tensors, or nested lists and tuples of them, are close; float16 as float32."""
    if isinstance(expected_output, torch.Tensor) and isinstance(model_output, torch.Tensor):
        if expected_output.shape != model_output.shape:
            return False
        return torch.allclose(expected_output.float(), model_output.float(), rtol, atol, equal_nan)
    if isinstance(expected_output, (list, tuple)) and isinstance(model_output, (list, tuple)):
        return len(expected_output) == len(model_output) and all(
            allclose(a, b, rtol, atol, equal_nan)
            for a, b in zip(expected_output, model_output, strict=True)
        )
    return bool(expected_output == model_output)
