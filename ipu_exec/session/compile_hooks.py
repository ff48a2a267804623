"""Functions that a script has called before and after each compile."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.hooks import RemovableHandle

from ipu_exec.errors import UsageError

_BEFORE_COMPILING: dict[int, Callable[[], Any]] = OrderedDict()
_AFTER_COMPILING: dict[int, Callable[[], Any]] = OrderedDict()


def registerPreCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call ``hook`` before each compile. The handle's ``remove`` ends that."""
    return _register(_BEFORE_COMPILING, hook, "Pre-compile hook must be callable")


def registerPostCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Call ``hook`` after each compile. The handle's ``remove`` ends that."""
    return _register(_AFTER_COMPILING, hook, "Post-compile hook must be callable")


def _register(hooks: dict[int, Callable[[], Any]], hook: Any, says: str) -> RemovableHandle:
    if not callable(hook):
        raise UsageError(says)
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


@contextmanager
def hooked() -> Iterator[None]:
    """Call the hooks before, and those after even if the compile fails."""
    for hook in list(_BEFORE_COMPILING.values()):
        hook()
    try:
        yield
    finally:
        for hook in list(_AFTER_COMPILING.values()):
            hook()
