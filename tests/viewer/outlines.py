"""What the outlines of narrow slices enclose."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def parts_of(x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The corners of each part of an outline; nan is between parts."""
    x, y = (np.asarray(values, dtype=np.float64) for values in (x, y))
    gaps = np.flatnonzero(np.isnan(x))
    assert (gaps == np.flatnonzero(np.isnan(y))).all()
    for first, last in zip([0, *(gaps + 1)], [*gaps, len(x)], strict=True):
        if last > first:
            yield x[first:last], y[first:last]


def enclosed(part: tuple[np.ndarray, np.ndarray]) -> float:
    """The area of a closed path that crosses itself nowhere."""
    x, y = part
    # from its first corner: areas far from 0 would be differences of large numbers
    x, y = x - x[0], y - y[0]
    return abs(float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum())) / 2
