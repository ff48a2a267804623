"""Which bytes are live when: sums over variables' intervals, some states of a program at a time.

An interval is a vector of bytes over tiles, live at the steps ``start <= step < stop``. A state is
how often each vector is live from one step on, until an interval starts or stops; equal layers have
equal states, which are summed once. Pieces bound the memory however long the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_REMEMBERED = 8  # totals that others are computed from
_TOGETHER = 16  # states that share a bound
PIECE = 2048  # states that are summed at a time


@dataclass(frozen=True, slots=True)
class Intervals:
    """Variables' lifetimes; ``vector[i]`` is variable i's row of ``vectors`` [vector, tile]."""

    start: np.ndarray
    stop: np.ndarray
    vector: np.ndarray
    vectors: Any  # int64[vector, tile]; for `tile_peaks` a list of rows does

    @property
    def tiles(self) -> int:
        """Tiles of one IPU."""
        return int(self.vectors.shape[1])

    def live(self, step: int) -> np.ndarray:
        """A mask of the variables live at a step."""
        return (self.start <= step) & (step < self.stop)

    def where(self, mask: np.ndarray) -> Intervals:
        """The variables selected by ``mask``."""
        return Intervals(self.start[mask], self.stop[mask], self.vector[mask], self.vectors)

    def on_tiles(self, tiles: slice) -> Intervals:
        """The same variables' bytes on some tiles only."""
        return Intervals(self.start, self.stop, self.vector, self.vectors[:, tiles])


def total(vectors: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Bytes over tiles of the variables with the rows ``vector`` of ``vectors``."""
    times = np.bincount(vector, minlength=len(vectors))
    rows = np.flatnonzero(times)
    return times[rows] @ vectors[rows]


class Totals:
    """`total` for many similar sets of variables, such as those of equal layers.

    Each is computed from the most similar of the last few sets and the difference.
    """

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors = vectors
        nothing = np.zeros(len(vectors), dtype=np.int64), np.zeros(vectors.shape[1], dtype=np.int64)
        self._last = [nothing]

    def of(self, vector: np.ndarray) -> np.ndarray:
        """Bytes over tiles of the variables with these rows of ``vectors``."""
        times = np.bincount(vector, minlength=len(self.vectors))
        last = self._last[-_REMEMBERED:]
        differ = [np.flatnonzero(times != one) for one, _ in last]
        rows, (near, sum_near) = min(zip(differ, last, strict=True), key=lambda pair: len(pair[0]))
        sum_of: np.ndarray = sum_near + (times[rows] - near[rows]) @ self.vectors[rows]
        self._last = [*last, (times, sum_of)]
        return sum_of


def states(
    intervals: Intervals, first: int, last: int, edges: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The states of ``first <= step < last``, in pieces, with the bytes on each tile.

    The steps at which a piece's states begin, each one's row of the bytes, and the bytes of the
    distinct states, int64[row, tile]. States begin where what is live changes, and at ``edges``,
    of which ``first`` is one.
    """
    step, row, change = changes_of(intervals, first, last)
    always, times = np.unique(intervals.vector[intervals.live(first)], return_counts=True)
    rows = np.union1d(row, always)
    begin = np.union1d(edges, step)
    vectors = intervals.vectors[rows]
    counts = np.zeros(len(rows), dtype=np.int64)
    counts[np.searchsorted(rows, always)] = times
    for at in range(0, len(begin), PIECE):
        some = begin[at : at + PIECE]
        low, high = np.searchsorted(step, (some[0], some[-1] + 1))
        changes = np.zeros((len(some), len(rows)), dtype=np.int32)
        where = np.searchsorted(some, step[low:high]), np.searchsorted(rows, row[low:high])
        changes[where] = change[low:high]
        changes[0] += counts
        every = np.cumsum(changes, axis=0, dtype=np.int32)
        counts = every[-1]
        distinct, which = _distinct(every)
        yield some, which, np.matmul(*_as_floats(every[distinct], vectors)).astype(np.int64)


def _distinct(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first of each group of equal rows, and each row's group."""
    groups: dict[bytes, int] = {}
    which = np.array([groups.setdefault(row.tobytes(), len(groups)) for row in states])
    return np.unique(which, return_index=True)[1], which


def _as_floats(counts: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as the narrowest floats whose product is exact: BLAS does not multiply integers."""
    largest = counts.max(axis=0, initial=0).astype(np.float64) @ vectors.max(axis=1, initial=0)
    kind = np.float32 if largest < 2**24 else np.float64
    return counts.astype(kind), vectors.astype(kind)


def changes_of(
    intervals: Intervals, first: int, last: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sorted changes of what is live at ``first < step < last``: (step, row of vectors, times)."""
    step = np.concatenate([intervals.start, intervals.stop])
    row = np.concatenate([intervals.vector, intervals.vector])
    change = np.repeat([1, -1], len(intervals.start))
    lives = np.tile(intervals.start < intervals.stop, 2)
    inside = (step > first) & (step < last) & lives
    return _merged(step[inside], row[inside], change[inside])


def _merged(
    step: np.ndarray, row: np.ndarray, change: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Changes sorted by step and row, those of a row at a step as one, without those of 0."""
    size = row.max(initial=0) + 1
    unique, where = np.unique(step * size + row, return_inverse=True)
    merged = np.bincount(where, change, len(unique)).astype(np.int64)
    unique, merged = unique[merged != 0], merged[merged != 0]
    return unique // size, unique % size, merged


def resampled(
    intervals: Intervals,
    first: int,
    last: int,
    shape: tuple[int, int],
    always: np.ndarray | None = None,
) -> np.ndarray:
    """Bytes live in fewer cells, each the maximum of those it replaces, so that no peak is lost.

    At steps ``first <= step < last`` on each tile, plus ``always`` (int64[tiles]). ``shape``
    (steps, tiles) is cut to the map: nothing is ever stretched.
    """
    steps, tiles = min(shape[0], last - first), min(shape[1], intervals.tiles)
    base = np.zeros(intervals.tiles, dtype=np.int64) if always is None else always
    if min(steps, tiles) <= 0:
        return np.zeros((max(steps, 0), max(tiles, 0)), dtype=np.int64)
    largest = np.zeros((steps, tiles), dtype=np.int64)
    row_edges = first + np.arange(steps) * (last - first) // steps
    tile_edges = np.arange(tiles) * intervals.tiles // tiles
    for begin, which, nbytes in states(intervals, first, last, row_edges):
        cells = nbytes + base
        if tiles < intervals.tiles:
            cells = np.maximum.reduceat(cells, tile_edges, axis=1)
        # The piece may begin within a row of the piece before; a row has equal states once.
        row = np.searchsorted(row_edges, begin, side="right") - 1
        pairs = np.unique(row * len(cells) + which)
        rows, at = np.unique(pairs // len(cells), return_index=True)
        most = np.maximum.reduceat(cells[pairs % len(cells)], at, axis=0)
        largest[rows] = np.maximum(largest[rows], most)
    return largest


@dataclass(frozen=True, slots=True)
class Peaks:
    """A summary of the whole map.

    Over steps: ``step_total``, ``max_tile``, ``max_tile_bytes``; over tiles: ``tile_peak`` and the
    first step at which it is reached, ``tile_peak_step``.
    """

    step_total: np.ndarray
    max_tile: np.ndarray
    max_tile_bytes: np.ndarray
    tile_peak: np.ndarray
    tile_peak_step: np.ndarray


def peaks(
    intervals: Intervals, steps: int, always: np.ndarray, sums: np.ndarray | None = None
) -> Peaks:
    """Sums and maxima of the bytes live, ``always`` (int64[tiles]) included, without the map.

    With the ``sums`` of the vectors: without ``max_tile`` and ``max_tile_bytes``, in a tenth of the
    time.
    """
    step, row, change = changes_of(intervals, -1, steps)
    tile_peak, peak_step = tile_peaks(intervals.vectors, step, row, change)
    max_tile, max_bytes = (
        fullest_of_steps(intervals, steps, always)
        if sums is None
        else (np.zeros(steps, dtype=np.int64) for _ in range(2))
    )
    totals = np.zeros(steps, dtype=np.int64)
    np.add.at(totals, step, (intervals.vectors.sum(axis=1) if sums is None else sums)[row] * change)
    totals = np.cumsum(totals) + always.sum()
    return Peaks(totals, max_tile, max_bytes, always + tile_peak, peak_step)


def fullest_of_steps(
    intervals: Intervals, steps: int, always: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The fullest tile at each step, ``always`` (int64[tiles]) included, and its bytes."""
    pieces = []
    for begin, which, nbytes in states(intervals, 0, steps, np.array([0])):
        total = nbytes + always
        pieces.append((begin, total.argmax(axis=1)[which], total.max(axis=1)[which]))
    begins, max_tile, max_bytes = map(np.concatenate, zip(*pieces, strict=True))
    times = np.diff(begins, append=steps)
    return np.repeat(max_tile, times), np.repeat(max_bytes, times)


def tile_peaks(
    vectors: np.ndarray | Sequence[np.ndarray],
    step: np.ndarray,
    row: np.ndarray,
    change: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The most bytes on each tile, and the first step that has them, by the `changes_of` intervals.

    A tile is fullest after an addition, or, if there is none, at step 0. Equal states, as in equal
    layers, are computed once: they have the same sum of their vectors' (random) numbers.
    """
    numbers = np.random.default_rng(0).integers(1 << 62, size=len(vectors))
    alive = np.cumsum(change * numbers[row])
    ends = np.flatnonzero(np.diff(step, append=-1))  # the last change of each step
    ends = ends[np.isin(step[ends], step[change > 0])]
    ends = ends[np.sort(np.unique(alive[ends], return_index=True)[1])]
    state, row, change = _merged(np.searchsorted(ends, np.arange(len(step))), row, change)
    begin = np.searchsorted(state, np.arange(len(ends) + 1)).tolist()
    rows, changes = row.tolist(), change.tolist()
    tiles = vectors.shape[1] if isinstance(vectors, np.ndarray) else len(vectors[0])
    level, peak, at = (np.zeros(tiles, dtype=np.int64) for _ in range(3))
    for number, now in enumerate(step[ends].tolist()):
        for k in range(begin[number], begin[number + 1]):
            vector = vectors[rows[k]]
            level += vector if changes[k] == 1 else changes[k] * vector
        higher = level > peak
        if np.count_nonzero(higher):  # several times as fast as any()
            np.copyto(peak, level, where=higher)
            np.copyto(at, now, where=higher)
    return peak, at


def fullest_states(counts: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most bytes on each tile in any of these states, and the first state that has them.

    ``counts``, int32[state, vector]: how many live variables have each of the ``vectors``,
    int64[vector, tile]. At least one state and one vector; int64[tile] twice.

    Equal states, as in equal layers, are computed once. Each group of states has a bound: all
    vectors as often as any of its states has them. A group is computed only for the tiles on which
    no other has a larger bound.
    """
    distinct, _ = _distinct(counts)
    counts, vectors = _as_floats(counts[distinct], vectors)
    groups = np.arange(0, len(counts), _TOGETHER)
    bounds = np.maximum.reduceat(counts, groups, axis=0) @ vectors
    of_tile = np.ascontiguousarray(vectors.T)
    exact = np.zeros(bounds.shape, dtype=bool)
    state = np.zeros(bounds.shape, dtype=np.int64)
    tiles = np.arange(vectors.shape[1])
    best = bounds.argmax(axis=0)
    while len(tiles):
        for group in np.unique(best).tolist():
            there = tiles[best == group]
            within = slice(groups[group], groups[group] + _TOGETHER)
            sums = of_tile[there] @ counts[within].T
            state[group, there] = groups[group] + sums.argmax(axis=1)
            bounds[group, there] = sums.max(axis=1)
            exact[group, there] = True
        best = bounds[:, tiles].argmax(axis=0)
        unknown = ~exact[best, tiles]
        tiles, best = tiles[unknown], best[unknown]
    every = np.arange(vectors.shape[1])
    best = bounds.argmax(axis=0)
    return bounds[best, every].astype(np.int64), distinct[state[best, every]]
