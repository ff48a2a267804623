"""Train or eval: what a model is compiled in, it stays in.

PopTorch wraps a shallow copy of the model, so that its own ``training`` is what it was when it was
wrapped; the modules inside are shared, and their mode is in the program from the compile on
[POPTORCH, python/__init__.py, ``trainingModel``]. What ``train()`` and ``eval()`` say later is for
those who run the module itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

Modes = tuple[tuple[torch.nn.Module, bool], ...]


def modes_of(model: torch.nn.Module) -> Modes:
    """Of the wrapped copy and of every module inside, as they are now."""
    return tuple((module, module.training) for module in model.modules())


@contextlib.contextmanager
def in_modes(modes: Modes) -> Iterator[None]:
    """Inside, each module has its mode of ``modes``; afterwards what its user gave it."""
    others = [(module, training) for module, training in modes if module.training != training]
    for module, training in others:
        module.training = training
    try:
        yield
    finally:
        for module, training in others:
            module.training = not training
