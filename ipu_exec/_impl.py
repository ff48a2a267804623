"""What is asked of PopTorch's own ``_impl`` by its tests and by libraries made for it."""

from __future__ import annotations

from typing import Any

import torch

from ipu_exec.session.executor import PoplarExecutor
from ipu_exec.session.wrapped_model import is_wrapped

__all__ = [
    "PoplarExecutor",
    "isDispatchTracing",
    "isWrapped",
    "rewrapModelIfNecessary",
    "unwrapIfWrapped",
    "unwrapModelIfNecessary",
]


def isDispatchTracing() -> bool:
    """False: tensors of a model that is captured are on the CPU, and so are those it makes."""
    return False


def unwrapIfWrapped(model: Any) -> Any:
    """The user's model: wrapping it leaves it as it is."""
    return model.model if isinstance(model, PoplarExecutor) else model


def isWrapped(obj: Any) -> bool:
    """Whether it is a module that a training model was made of."""
    return is_wrapped(obj)


def _restoreWrapperIfNecessary(obj: Any) -> Any:
    """Its argument: copies and files have plain objects here, which nothing has to restore."""
    return obj


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Do nothing.

    PopTorch marks a wrapped model's parameters and buffers, and takes the marks off here (Hugging
    Face's optimum-graphcore asks for it around generation); ours are plain tensors all the time.
    """


def rewrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Nothing: see `unwrapModelIfNecessary`."""
