"""What a column of a profile may contain: one description for readers, `doctor` and the fuzzer.

`ipuscope.profiler.file.records` annotates its fields with these bounds;
`ipuscope.profiler.file.integrity` checks each column that is read against its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

# Beyond any machine and any model, and far enough from 2^63 that products and sums fit.
MOST_CYCLES = 1 << 53
MOST_BYTES = 1 << 53
MOST_FLOPS = 1 << 60
MOST_SUM = float(1 << 61)  # of a column, or of vectors
MOST_ON_A_TILE = 1 << 44  # cycles or bytes, an entry of a vector over tiles
MOST_TILES = 1 << 21  # of all IPUs: bounds lists over all of them
MOST_IPUS = 1 << 12  # of a replica
MOST_MICRO_BATCHES = 1 << 31
MOST_ROWS = 1 << 31  # of a table: bounds arrays with an entry for each id
MOST_TENSORS = 1 << 31
MOST_SIDES = 64  # of a tensor


@dataclass(frozen=True)
class Context:
    """What a table is checked against.

    ``ipus``: of a replica; ``ids``: of another table, by its name; ``step_ipus``: the IPU of each
    program step; ``whole``: the run finished, so that no table is missing.
    """

    ipus: Callable[[], int]
    ids: Callable[[str], np.ndarray]
    step_ipus: Callable[[], np.ndarray]
    whole: bool


class Bound(Protocol):
    """The values that a column may have."""

    def problem(self, what: str, values: np.ndarray, context: Context) -> str:
        """What is wrong with the values of the column ``what``, in words; empty if nothing is.

        Of texts, ``values`` are the distinct ones.
        """
        ...


@dataclass(frozen=True)
class Within:
    """Numbers (of vectors: entries) from ``least`` to ``most``; ``summed``: their sum must fit."""

    least: float
    most: float
    summed: bool = True

    def problem(self, what: str, values: np.ndarray, context: Context | None = None) -> str:
        """See `Bound`."""
        if not len(values):
            return ""
        low, high = values.min(), values.max()
        if not (low >= self.least and high <= self.most):  # also true of NaN
            wrong = high if low >= self.least else low
            return f"{what} has {wrong}, which is not within {self.least:,} to {self.most:,}"
        total = np.sum(values, dtype=np.float64) if self.summed else 0
        return f"{what} adds up to {total:.3g}" if total > MOST_SUM else ""


@dataclass(frozen=True)
class OneOf:
    """A closed list of words."""

    words: tuple[str, ...]

    def problem(self, what: str, values: np.ndarray, context: Context | None = None) -> str:
        """See `Bound`."""
        other = sorted(set(values.tolist()).difference(self.words))
        if not other:
            return ""
        words = ", ".join(filter(None, self.words))
        return f"{what} has {other[0][:60]!r}, which is not one of {words}"


@dataclass(frozen=True)
class Key:
    """Ids of the rows, each once. ``counted``: 0, 1, 2 ... in order, as they index lists."""

    counted: bool = False

    def problem(self, what: str, values: np.ndarray, context: Context | None = None) -> str:
        """See `Bound`."""
        if is_counted(values):
            return ""
        if len(np.unique(values)) < len(values):
            return f"{what} has an id twice"
        if self.counted:
            some = ", ".join(map(str, values[:8].tolist()))
            return f"{what} must count from 0 on, and has {some}"
        return Within(0, MOST_ROWS, summed=False).problem(what, values)


@dataclass(frozen=True)
class RowOf:
    """Ids of another table; -1 is valid if a row may refer to none."""

    table: str
    optional: bool = True

    def problem(self, what: str, values: np.ndarray, context: Context) -> str:
        """See `Bound`."""
        asked = values[values != -1] if self.optional else values
        if not len(asked):
            return ""
        ids = context.ids(self.table)
        if not len(ids) and not context.whole:
            return ""
        missing = asked[rows_of(asked, ids) < 0]
        return f"{what} is {missing[0]}, which is not in {self.table}" if len(missing) else ""


@dataclass(frozen=True)
class OfReplica:
    """IPUs of the first replica: the others do the same."""

    def problem(self, what: str, values: np.ndarray, context: Context) -> str:
        """See `Bound`."""
        if not len(values):
            return ""
        return Within(0, context.ipus() - 1, summed=False).problem(what, values)


@dataclass(frozen=True)
class Sides:
    """The sides of a tensor as a JSON list, or the empty text."""

    def problem(self, what: str, values: np.ndarray, context: Context | None = None) -> str:
        """See `Bound`."""
        wrong = next((words for words in values.tolist() if not _is_shape(words)), None)
        return "" if wrong is None else f"{what} has {wrong[:60]!r}, which is not a shape"


_SHAPE = re.compile(r"(\[(\d{1,16}(, ?\d{1,16})*)?\])?")


def _is_shape(words: str) -> bool:
    if _SHAPE.fullmatch(words) is None or words.count(",") >= MOST_SIDES:
        return False
    return math.prod(map(int, re.findall(r"\d+", words))) <= MOST_BYTES


def is_counted(ids: np.ndarray) -> bool:
    """Whether ids count 0, 1, 2 ..., as the engine's do."""
    return bool((ids == np.arange(len(ids))).all())


def rows_of(ids: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Where each id is in ``keys``, which has each once; -1 where it is not. May be ``ids``."""
    if is_counted(keys):
        if ids.min(initial=0) >= 0 and ids.max(initial=-1) < len(keys):
            return ids
        return np.where((ids >= 0) & (ids < len(keys)), ids, -1)
    order = np.argsort(keys, kind="stable")
    row = order[np.minimum(np.searchsorted(keys, ids, sorter=order), len(keys) - 1)]
    return np.where(keys[row] == ids, row, -1)
