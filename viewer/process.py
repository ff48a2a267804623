"""What the process that serves the viewer does before its first answer."""

from __future__ import annotations

import gc


def settle() -> None:
    """Let the garbage collector leave alone what is loaded by now, a million objects that stay.

    A pass over them takes 70 ms, and would fall into one answer or another. Later passes come
    seldom: an answer makes thousands of objects, few of which are in cycles, and a pass over all
    that came since takes as long as a small answer.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
