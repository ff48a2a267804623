"""Python's garbage collector, which waits while a model is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Inside, no cycles of objects are looked for.

    A compile makes a million objects that live on; visiting them finds nothing and takes a fifth
    of the time (`benchmarks/compile`). Afterwards they count as old, without a visit: what makes
    cycles has collected them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
        if was_on and not gc.get_freeze_count():  # else a user's own would be among the old ones
            gc.freeze()
            gc.unfreeze()
    finally:
        if was_on:
            gc.enable()
