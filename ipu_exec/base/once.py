"""What is computed of vectors over tiles, once for the same vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


class Once:
    """Remembers results by function and arguments, arrays by identity.

    Equal layers share their vectors, and so everything that is made of them: a model of a hundred
    layers has the vectors of one. The arrays that it returns are read-only.
    """

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], Any] = {}
        self._given: list[Any] = []  # stays, so that no other array gets its id

    def __call__(self, make: Callable[..., T], *given: Any) -> T:
        """``make(*given)``; all but the arrays must be hashable."""
        key = (make, *[id(one) if type(one) is np.ndarray else one for one in given])
        result: T | None = self._results.get(key)
        if result is None:
            result = self._results[key] = make(*given)
            self._given.append(given)
            if isinstance(result, np.ndarray):
                result.setflags(write=False)
        return result


def added(*vectors: np.ndarray) -> np.ndarray:
    """The sum of vectors, entry by entry."""
    return np.sum(vectors, axis=0)


def total(vector: np.ndarray) -> int:
    """The sum of its entries."""
    return int(vector.sum())
