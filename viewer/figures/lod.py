"""Level of detail: reduces a row of slices to what a given number of pixels can show.

Slices of at least two pixels are kept (an edge at every pixel is a colour nobody sees; half as many
pieces redraw in half the time). Shorter ones are merged into pieces two pixels wide, which `bands`
divides in proportion to their slices' time. Pieces cover what the slices covered, and record how
many they stand for. Times are cycles; arrays are int64; nothing loops over slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

import numpy as np

FINEST = 2  # pixels: what is shorter is drawn with its neighbours


@dataclass(frozen=True, slots=True)
class Pieces:
    """The drawn pieces of one row."""

    start: np.ndarray
    end: np.ndarray
    code: np.ndarray  # of its first slice
    first: np.ndarray  # position in the row of its first slice
    count: np.ndarray  # of slices

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: np.ndarray) -> Pieces:
        """The pieces selected by ``mask``."""
        return Pieces(*(getattr(self, name)[mask] for name in self.__slots__))


def inside(start: np.ndarray, end: np.ndarray, low: float, high: float) -> slice:
    """Positions of the slices that overlap ``[low, high]``. Slices are sorted and disjoint."""
    # whole numbers, as the slices have: else numpy makes all of them floats first
    first = int(np.searchsorted(end, floor(low), side="right"))
    return slice(first, max(first, int(np.searchsorted(start, ceil(high), side="left"))))


def pieces(
    start: np.ndarray,
    end: np.ndarray,
    code: np.ndarray,
    low: float,
    high: float,
    pixels: int,
    finest: float = FINEST,
) -> Pieces:
    """The slices of one row between ``low`` and ``high``, merged for ``pixels`` pixels.

    ``start``, ``end`` and ``code`` (the colour) are sorted, without overlaps. Slices shorter than
    ``finest`` pixels are merged.
    """
    window = inside(start, end, low, high)
    start, end, code = start[window], end[window], code[window]
    if not len(start):
        none = np.zeros(0, dtype=np.int64)
        return Pieces(none, none, none, none, none)
    pixel = max(finest * (high - low) / max(1, pixels), 1e-9)
    first = _firsts(start, end, low, pixel)
    stop = np.append(first[1:], len(start))
    return Pieces(start[first], end[stop - 1], code[first], first + window.start, stop - first)


def _firsts(start: np.ndarray, end: np.ndarray, low: float, pixel: float) -> np.ndarray:
    """First slices of pieces, a long slice or short ones of a pixel, with few full comparisons."""
    slices, columns = len(start), floor((int(start[-1]) - low) / pixel) + 1
    begins = [np.zeros(1, dtype=np.int64)]
    if columns < slices:
        edges = np.ceil(low + np.arange(columns) * pixel).astype(np.int64)
        begins.append(np.searchsorted(start, edges))
    else:
        column = np.floor((start - low) / pixel)
        begins.append(np.flatnonzero(column[1:] != column[:-1]) + 1)
    long = np.flatnonzero(end - start >= pixel)
    begins += [long, long + 1, np.flatnonzero(start[1:] - end[:-1] >= pixel) + 1]
    firsts = np.unique(np.concatenate(begins))
    return firsts[firsts < slices]


def _in_order(row: np.ndarray, start: np.ndarray) -> bool:
    """Whether slices are sorted by row and start."""
    same = row[1:] == row[:-1]
    same &= start[1:] < start[:-1]
    same |= row[1:] < row[:-1]
    return not same.any()


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of slices, one after another: row r is ``[first[r], first[r + 1])``."""

    first: np.ndarray
    start: np.ndarray
    end: np.ndarray
    code: np.ndarray
    source: np.ndarray  # the position of each slice in its frame

    @classmethod
    def make(
        cls, row: np.ndarray, start: np.ndarray, end: np.ndarray, code: np.ndarray, rows: int
    ) -> Rows:
        """Rows from slices in any order, by row and start; only of rows ``0 .. rows - 1``."""
        outside = (row < 0) | (row >= rows)
        order = np.flatnonzero(~outside) if outside.any() else np.arange(len(row))
        if len(order) < len(row):
            row, start, end, code = (column[order] for column in (row, start, end, code))
        if not _in_order(row, start):  # sorted they are many times as fast
            by_row = np.lexsort((start, row))
            columns = (row, start, end, code, order)
            row, start, end, code, order = (column[by_row] for column in columns)
        return cls(np.searchsorted(row, np.arange(rows + 1)), start, end, code, order)

    def __len__(self) -> int:
        return len(self.first) - 1

    def of(self, row: int) -> slice:
        """The extent of a row."""
        return slice(int(self.first[row]), int(self.first[row + 1]))

    def at(self, row: int, time: float) -> int:
        """Position in these rows of the slice that covers a time; -1 if there is none."""
        if not 0 <= row < len(self):
            return -1
        here = self.of(row)
        position = (
            here.start + int(np.searchsorted(self.start[here], floor(time), side="right")) - 1
        )
        return position if position >= here.start and self.end[position] > time else -1

    def only(self, wanted: np.ndarray) -> Rows:
        """A selection of the rows, in the given order."""
        if np.array_equal(wanted, np.arange(len(self))):
            return self
        parts = [self.of(row) for row in wanted.tolist()]
        first = np.cumsum([0, *(part.stop - part.start for part in parts)])
        positions = np.concatenate(
            [np.arange(part.start, part.stop) for part in parts] or [first[:0]]
        )
        columns = (self.start, self.end, self.code, self.source)
        return Rows(first, *(column[positions] for column in columns))

    def before(self, others: Rows) -> Rows:
        """These rows, and the others below them."""
        if not len(others):
            return self
        first = np.append(self.first[:-1], self.first[-1] + others.first)
        columns = ((getattr(one, name) for one in (self, others)) for name in self.__slots__[1:])
        return Rows(first, *(np.concatenate(list(column)) for column in columns))

    def around(
        self,
        row: int,
        low: float,
        high: float,
        pixels: int,
        code: np.ndarray | None = None,
        finest: float = FINEST,
    ) -> tuple[Pieces, np.ndarray]:
        """The pieces of a row between ``low`` and ``high``, and half as much beside, to drag.

        Pieces are split at the window's edges, so that their text is in view; the mask is True
        inside. ``first`` is a position in these rows. ``code`` may replace the rows' own.
        """
        here = self.of(row)
        start, end = self.start[here], self.end[here]
        colour = self.code[here] if code is None else code[here]
        half = (high - low) / 2
        parts, inside = [], []
        for left, right, middle in (
            (low - half, low, False),
            (low, high, True),
            (high, high + half, False),
        ):
            columns = max(1, pixels if middle else pixels // 4)
            bars = pieces(start, end, colour, left, right, columns, finest)
            parts.append(
                (
                    np.maximum(bars.start, int(np.floor(left))),
                    np.minimum(bars.end, int(np.ceil(right))),
                    bars.code,
                    bars.first + here.start,
                    bars.count,
                )
            )
            inside.append(np.full(len(bars), middle))
        return Pieces(
            *(np.concatenate(column) for column in zip(*parts, strict=True))
        ), np.concatenate(inside)

    def bands(
        self, found: Pieces, code: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The contents of pieces of several slices, in proportion to cycles; gaps are in no band.

        For each code in a piece: ``piece`` (position in ``found``), ``code``, ``below`` (share of
        the piece beneath the band, 0..1) and ``share``. ``code`` may replace the rows' own.
        """
        colour = self.code if code is None else code
        behind = np.cumsum(found.count)
        before, total = behind - found.count, int(behind[-1]) if len(behind) else 0
        if len(found) and np.array_equal(found.first, found.first[0] + before):
            at: slice | np.ndarray = slice(int(found.first[0]), int(found.first[0]) + total)
        else:
            at = np.arange(total) + np.repeat(found.first - before, found.count)
        inside = np.subtract(self.end[at], self.start[at], dtype=np.float64)
        # what a piece's ends, at the edges of a window, cut off its first and last slices
        ends = behind - 1
        np.subtract.at(inside, before, (found.start - self.start[found.first]).clip(0))
        last = found.first + found.count - 1
        np.subtract.at(inside, ends, (self.end[last] - found.end).clip(0))
        codes = int(colour[at].max(initial=0)) + 1
        cell = np.repeat(np.arange(0, len(found) * codes, codes), found.count)
        cell += colour[at]
        cycles = np.bincount(cell, weights=inside, minlength=len(found) * codes)
        cycles = cycles.reshape(len(found), codes)
        share = cycles / np.maximum(1, found.end - found.start)[:, None]
        below = np.cumsum(share, axis=1) - share
        which, of = np.nonzero(share)
        return which, of, below[which, of], share[which, of]
