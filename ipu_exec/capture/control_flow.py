"""Models that branch on the contents of a tensor.

A compiled program is one path through the model. PopTorch makes the first call's path a constant.
Here the numbers follow the data, by plain PyTorch, and another path is compiled anew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ipu_exec.capture.recording.devices import Devices
from ipu_exec.capture.recording.unchanged import unchanged

Contents = tuple[bool | int | float, ...]
_ARGUMENT_CHECKS = {"gaussian_nll_loss"}  # in torch.nn.functional: that no variance is negative
# of torchmetrics, where a metric validates its arguments: that labels are classes
_METRIC_CHECKS = "_tensor_validation"


class Reads(TorchDispatchMode):
    """Records the values read off tensors (``bool(x)``, ``torch.equal``): ``values``, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[bool | int | float] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        of_equal = func is torch.ops.aten.equal.default and args[0].shape == args[1].shape
        reads = of_equal or func is torch.ops.aten._local_scalar_dense.default
        if reads and not in_argument_check():
            self.values.append(result)
        return result


def read_contents(model: torch.nn.Module, args: Any, kwargs: Any, training: bool) -> Contents:
    """The values that the forward of a micro-batch reads off tensors, by a run that is undone."""
    args, kwargs = tree_map_only(torch.Tensor, lambda one: one.detach().clone(), (args, kwargs))
    with (
        unchanged(model),
        torch.random.fork_rng(devices=[]),
        torch.set_grad_enabled(training),
        Devices(),
        Reads() as reads,
    ):
        model(*args, **kwargs)
    return tuple(reads.values)


def path(contents: Contents) -> tuple[bool | int | str, ...]:
    """The booleans and integers read, which decide what runs; a placeholder for floats."""
    return tuple("a number" if isinstance(value, float) else value for value in contents)


class PathWatch:
    """While entered, compares forwards' paths with the compiled one; ``left``: the first other."""

    def __init__(self, model: torch.nn.Module, contents: Contents) -> None:
        self.left: Contents | None = None
        self._model, self._compiled = model, path(contents)
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self._handles = [
            self._model.register_forward_pre_hook(self._begin),
            self._model.register_forward_hook(self._end, always_call=True),
        ]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin(self, *about: Any) -> None:
        self._reads = Reads()
        self._reads.__enter__()

    def _end(self, *about: Any) -> None:
        self._reads.__exit__(None, None, None)
        contents = tuple(self._reads.values)
        if self.left is None and path(contents) != self._compiled:
            self.left = contents


def in_metric() -> bool:
    """True while a torchmetrics metric, whose state is on the host, is computed."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "torchmetrics" in Path(frame.f_code.co_filename).parts:
            return True
        frame = frame.f_back
    return False


def in_argument_check() -> bool:
    """True while torch or torchmetrics validates a tensor, which a capture takes to be valid."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name in _ARGUMENT_CHECKS and code.co_filename == torch.nn.functional.__file__:
            return True
        if code.co_name.endswith(_METRIC_CHECKS) and "torchmetrics" in code.co_filename:
            return True
        frame = frame.f_back
    return False
