"""What the process that serves the viewer does before its first answer."""

from __future__ import annotations

import gc


def settle() -> None:
    """Exempt the million objects loaded by now, which stay, from garbage collection.

    A pass over them takes 70 ms and would delay some answer. A pass over all newer objects takes as
    long as a small answer, and is rare; passes over young objects, most of which go at once, stay
    as frequent as they are.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 200)
