"""The least cycles of the ramps that are still to come, whatever the stages so far were.

While a pipeline fills and empties, a pipeline cycle lasts as long as the longest forward, and the
longest backward, of the stages up to one: what a stage adds depends on those before it. From the
last stage back, dynamic programming over the next Block and over the longest forward and backward
so far finds the least that any split can still add. Both are rounded down to a grid, and cycles to
whole units of which 32 bits hold enough, so that the result is a lower bound; the finer the grid,
the nearer it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipuscope.planner.predict.interval_costs import INFINITE
from ipuscope.planner.search.stage_ways import StageWays, least_of_rest

_MOST_UNITS = 1 << 28
_BELOW, _ABOVE = 0.85, 1.05  # of what the grid is finer about
_NOT_HERE = 1 << 29  # may be added twice, to the most units


@dataclass(frozen=True)
class _Grid:
    """Rounds values down to one of these, ascending: int64[cell]."""

    values: np.ndarray

    @classmethod
    def over(cls, values: Sequence[np.ndarray], count: int, near: Sequence[int]) -> _Grid:
        """About ``count`` cells, most of them about as large as those ``near``."""
        low = min(int(some.min()) for some in values)
        high = max(int(some.max()) for some in values)
        if not len(near):
            return cls(_evenly(low, high, count))
        dense = max(low, round(_BELOW * min(near))), min(high, round(_ABOVE * max(near)))
        most = _evenly(*dense, count * 3 // 4) if dense[0] <= dense[1] else _evenly(low, low, 1)
        return cls(np.union1d(_evenly(low, high, count - len(most)), most))

    def __len__(self) -> int:
        return len(self.values)

    def at(self, values: np.ndarray) -> np.ndarray:
        """The number of each value's cell; values below the first, as are none yet, are in it."""
        cell: np.ndarray = np.searchsorted(self.values, values, side="right") - 1
        return np.maximum(cell, 0)


def _evenly(low: int, high: int, count: int) -> np.ndarray:
    step = max(1, -(-(high - low + 1) // max(1, count)))
    return low + step * np.arange((high - low) // step + 1)


@dataclass(frozen=True)
class LeastRamps:
    """Lower bounds on the ramps of stages k and later: int32[first Block, forward, backward].

    ``row``: for each k the row of each Block that a stage k may begin with, -1 where none may.
    ``units``: the bounds, in units of ``unit`` cycles.
    """

    forward: _Grid
    backward: _Grid
    row: tuple[np.ndarray, ...]
    units: tuple[np.ndarray, ...]
    unit: int

    def to_come(
        self, k: int, first: np.ndarray, forward: np.ndarray, backward: np.ndarray
    ) -> np.ndarray:
        """Of stages k and later, the first of which begins with Block ``first``: int64.

        ``forward``, ``backward``: the longest so far. `INFINITE` where no stage k begins there.
        """
        row = self.row[k][first]
        least = self.units[k][row, self.forward.at(forward), self.backward.at(backward)]
        return np.where(row >= 0, least.astype(np.int64) * self.unit, INFINITE)

    @property
    def whole(self) -> int:
        """Of all stages."""
        return int(self.units[0][0, 0, 0]) * self.unit


def least_ramps(
    ways: Sequence[StageWays],
    blocks: int,
    cells: int,
    behind: int = 2,
    near: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> LeastRamps:
    """The bounds for splits whose stage k is one of ``ways[k]``, on a grid of about this size.

    Filling and flushing a pipeline take the longest forward and the longest backward of the stages
    up to each but the last; and each stage but the first, or a later one that is longer, as often
    as `PipelineWeights.behind` says: twice in training, once in inference, which has no backward.
    ``near``: longest forwards, and backwards, of stages up to one in a good split, about which the
    grid is finer. The ways are `connected`.
    """
    stages = len(ways)
    side = max(1, int(np.sqrt(cells)))
    early = ways[:-1] or ways
    forward = _Grid.over([one.forward for one in early], side, near[0])
    backward = _Grid.over([one.backward for one in early], side, near[1])
    most = stages * 3 * max(int(one.both.max()) for one in ways)
    unit = most // _MOST_UNITS + 1
    each = ((forward.values[:, None] + backward.values[None, :]) // unit).astype(np.int32)
    row = np.full(blocks + 1, -1)
    row[blocks] = 0
    slowest = least_of_rest(ways, [one.both for one in ways], blocks)
    units = np.zeros((1, len(forward), len(backward)), dtype=np.int32)
    rows, tables = [row], [units]
    for k in reversed(range(stages)):
        one, last = ways[k], k == stages - 1
        longest = np.maximum(one.both, slowest[k + 1][one.behind])
        own = (behind * longest if k else 0 * longest) // unit
        none = np.zeros(len(one), dtype=np.int64)
        down, right = (none, none) if last else (forward.at(one.forward), backward.at(one.backward))
        next_row = row[one.behind]
        units = _stage(units if last else units + each, one.begins, (next_row, down, right, own))
        row = np.full(blocks + 1, -1)
        row[one.first[one.begins]] = np.arange(len(units))
        rows.insert(0, row)
        tables.insert(0, units)
    return LeastRamps(forward, backward, tuple(rows), tuple(tables), unit)


def _stage(
    behind: np.ndarray,
    begins: np.ndarray,
    ways: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> np.ndarray:
    """The least over the ways of a stage, for each first Block and longest pass so far.

    ``behind``: what follows; ``ways``: for each way its row there, the cells of its own passes, and
    what it adds. A longest pass below a way's own becomes that; as longer ones never take less, it
    is enough to take each way where its own is no longer, and then the least of all cells from each
    on.
    """
    row, down, right, own = ways
    above = np.where(np.arange(behind.shape[1]) < down[:, None], _NOT_HERE, 0) + own[:, None]
    beside = np.where(np.arange(behind.shape[2]) < right[:, None], _NOT_HERE, 0)
    units = behind[row]
    units += above.astype(np.int32)[:, :, None]
    units += beside.astype(np.int32)[:, None, :]
    least = np.empty((len(begins), *behind.shape[1:]), dtype=np.int32)
    ends = [*begins[1:].tolist(), len(row)]
    for number, (begin, end) in enumerate(zip(begins.tolist(), ends, strict=True)):
        units[begin:end].min(axis=0, out=least[number])
    for at in range(least.shape[1] - 2, -1, -1):
        np.minimum(least[:, at], least[:, at + 1], out=least[:, at])
    for at in range(least.shape[2] - 2, -1, -1):
        np.minimum(least[:, :, at], least[:, :, at + 1], out=least[:, :, at])
    return least
