"""What a script gave to `torch.compile` or `torch.jit.script`, run as it was written."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from ipu_exec.base.context import NOTHING
from ipu_exec.base.user_tracebacks import warn

_used = False  # by this process; `torch._dynamo.reset` forgets it
NO_EFFECT = (
    "torch.compile has no effect on a model that runs on IPUs, whose compiler takes its operators"
    " as they are written: delete it"
)


def without_torch_compile(model: torch.nn.Module) -> torch.nn.Module:
    """The module that `torch.compile` wrapped; any other as it is. Warns of compiled parts too."""
    if isinstance(model, torch.nn.Module) and any(map(_is_compiled, model.modules())):
        warnings.filterwarnings("ignore", "Using `torch.compile")  # of its hooks, and ours
        warn(f"{NO_EFFECT}. The model runs without it")
    compiled: Any = model
    return compiled._orig_mod if _is_compiled(model) else model


def not_compiled_by_torch(may_begin: bool = False) -> contextlib.AbstractContextManager[object]:
    """Inside, what `torch.compile` made, or ``may_begin`` to make, runs as it was written."""
    global _used
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")  # importing it takes seconds
    if dynamo is None:
        return NOTHING
    _used = _used or any(getattr(dynamo, "cached_backends", {0: True}).values())
    return torch.compiler.set_stance("force_eager") if may_begin or _used else NOTHING


@contextlib.contextmanager
def functions_not_scripted() -> Iterator[None]:
    """Inside, functions of `torch.jit.script` run as written: TorchScript takes no fake tensors."""
    kind: Any = torch.jit.ScriptFunction
    scripted = kind.__call__

    def as_written(self: Any, *args: Any, **kwargs: Any) -> Any:
        written = getattr(self, "_torchdynamo_inline", None)
        return written(*args, **kwargs) if written else scripted(self, *args, **kwargs)

    kind.__call__ = as_written
    try:
        yield
    finally:
        kind.__call__ = scripted


def _is_compiled(model: Any) -> bool:
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(model, dynamo.OptimizedModule)
