"""What is asked of PopTorch's own ``_impl`` by its tests and by libraries made for it."""

from __future__ import annotations

from typing import Any

from ipu_exec.executor import PoplarExecutor

__all__ = ["PoplarExecutor", "isDispatchTracing", "unwrapIfWrapped"]


def isDispatchTracing() -> bool:
    """False: tensors of a model that is captured are on the CPU, and so are those it makes."""
    return False


def unwrapIfWrapped(model: Any) -> Any:
    """The user's model: wrapping it leaves it as it is."""
    return model.model if isinstance(model, PoplarExecutor) else model
