"""What the process that serves the viewer does before its first answer."""

from __future__ import annotations

import gc


def settle() -> None:
    """Let the garbage collector leave alone what is loaded by now, a million objects that stay.

    A pass over them takes 70 ms, and would fall into one answer or another.
    """
    gc.collect()
    gc.freeze()
