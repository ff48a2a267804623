"""Train or eval: a model stays in the mode in which it was compiled.

PopTorch wraps a shallow copy with its own ``training``; the modules inside are shared, and their
mode is fixed when they are compiled [POPTORCH, python/__init__.py, ``trainingModel``]. Later
calls of ``train()`` and ``eval()`` only affect those who run the module itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

Modes = tuple[tuple[torch.nn.Module, bool], ...]


def modes_of(model: torch.nn.Module) -> Modes:
    """The current modes of the wrapped copy and of every module inside."""
    return tuple((module, module.training) for module in model.modules())


@contextlib.contextmanager
def in_modes(modes: Modes) -> Iterator[None]:
    """Inside, each module has its mode from ``modes``; afterwards the mode that its user set."""
    others = [(module, training) for module, training in modes if module.training != training]
    for module, training in others:
        module.training = training
    try:
        yield
    finally:
        for module, training in others:
            module.training = not training
