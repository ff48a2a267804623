"""Whether the model runs as on an IPU now, rather than on the CPU by its user."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_depth = 0


@contextlib.contextmanager
def on_ipu() -> Iterator[None]:
    """Inside, the model is being compiled or run for the modelled IPUs."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def isRunningOnIpu() -> bool:
    """True inside a model that `trainingModel` or `inferenceModel` compiles or runs; False where its user calls it."""
    return _depth > 0
