"""The parts of PopTorch's own ``_impl`` that its tests and libraries for it use."""

from __future__ import annotations

from typing import Any

import torch

from ipu_exec.session.executor import PoplarExecutor
from ipu_exec.session.wrapped_model import is_wrapped as isWrapped

__all__ = [
    "PoplarExecutor",
    "isDispatchTracing",
    "isWrapped",
    "rewrapModelIfNecessary",
    "unwrapIfWrapped",
    "unwrapModelIfNecessary",
]


def isDispatchTracing() -> bool:
    """False: tensors of a captured model, and those it creates, are on the CPU."""
    return False


def unwrapIfWrapped(model: Any) -> Any:
    """The user's model, which wrapping does not change."""
    return model.model if isinstance(model, PoplarExecutor) else model


def _restoreWrapperIfNecessary(obj: Any) -> Any:
    """Return the argument: copies and files contain plain objects here, with nothing to restore."""
    return obj


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Do nothing: PopTorch removes marks from parameters and buffers here, and ours have none."""


def rewrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Do nothing: see `unwrapModelIfNecessary`."""
