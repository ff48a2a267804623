"""Level of detail: reduces a row of slices to what a given number of pixels can show.

Slices of at least two pixels are kept (an edge at every pixel is a colour nobody sees; half as many
pieces redraw in half the time). Shorter ones are merged into pieces two pixels wide, which `bands`
divides in proportion to their slices' time. Pieces cover what the slices covered, and record how
many they stand for. Times are cycles; arrays are int64; nothing loops over slices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any

import numpy as np

from ipuscope.viewer.figures.theme import ACTIVITIES, NAMES, WAITING, Theme, text_on

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
        windows = ((low - half, low, False), (low, high, True), (high, high + half, False))
        for left, right, middle in windows:
            columns = max(1, pixels if middle else pixels // 4)
            bars = pieces(start, end, colour, left, right, columns, finest)
            since = np.maximum(bars.start, int(np.floor(left)))
            until = np.minimum(bars.end, int(np.ceil(right)))
            parts.append((since, until, bars.code, bars.first + here.start, bars.count))
            inside.append(np.full(len(bars), middle))
        joined = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Pieces(*joined), np.concatenate(inside)

    def bands(
        self, drawn: Pieces, code: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The contents of pieces of several slices, in proportion to cycles; gaps are in no band.

        For each code in a piece: ``piece`` (position in ``drawn``), ``code``, ``below`` (share of
        the piece beneath the band, 0..1) and ``share``. ``code`` may replace the rows' own.
        """
        colour = self.code if code is None else code
        behind = np.cumsum(drawn.count)
        before, total = behind - drawn.count, int(behind[-1]) if len(behind) else 0
        if len(drawn) and np.array_equal(drawn.first, drawn.first[0] + before):
            at: slice | np.ndarray = slice(int(drawn.first[0]), int(drawn.first[0]) + total)
        else:
            at = np.arange(total) + np.repeat(drawn.first - before, drawn.count)
        inside = np.subtract(self.end[at], self.start[at], dtype=np.float64)
        # what a piece's ends, at the edges of a window, cut off its first and last slices
        ends = behind - 1
        np.subtract.at(inside, before, (drawn.start - self.start[drawn.first]).clip(0))
        last = drawn.first + drawn.count - 1
        np.subtract.at(inside, ends, (self.end[last] - drawn.end).clip(0))
        codes = int(colour[at].max(initial=0)) + 1
        cell = np.repeat(np.arange(0, len(drawn) * codes, codes), drawn.count)
        cell += colour[at]
        cycles = np.bincount(cell, weights=inside, minlength=len(drawn) * codes)
        cycles = cycles.reshape(len(drawn), codes)
        share = cycles / np.maximum(1, drawn.end - drawn.start)[:, None]
        below = np.cumsum(share, axis=1) - share
        which, of = np.nonzero(share)
        return which, of, below[which, of], share[which, of]


WIDE = 8  # pixels
_TOGETHER = 48  # pixels that one part of an outline covers: its label is as far away at most
_LINE = 0.08  # of its row: the height of waiting
_LEAST_FOUND = 0.3  # of its row: the height of what a search found, however short it is
_TOUCHES = 1e-6  # of a row: what is nearer to its base stands on it
_THINNEST = 0.005  # share of a lane: less is not a tenth of a pixel
_MOST_NARROW = 5_000  # pieces of a figure's tasks, or steps: about 0.4 MB
DRAWN = 1 / 1.25  # `times` of a canvas that is drawn: for a few too many it is not drawn again


@dataclass(frozen=True)
class Look:
    """The appearance of an activity: legend name, marker of its bars, outline and text colours."""

    name: str
    marker: dict[str, Any]
    fill: str
    text: str


def look(code: int, marker: dict[str, Any], theme: Theme) -> Look:
    """An activity over time, with its bars' ``marker``; waiting is a line, so work stands out."""
    activity = ACTIVITIES[code]
    fill = activity.edge(theme) or activity.colour(theme)
    return Look(activity.name, {**marker, "color": fill}, fill, text_on(fill))


def _square(look: Look) -> dict[str, Any]:
    """A bar that is seen in the legend only."""
    same = {"name": look.name, "legendgroup": look.name, "marker": look.marker}
    return {"type": "bar", **same, "x": [None], "y": [None]}


def _heights(code: np.ndarray, height: float) -> np.ndarray:
    return np.where(code == WAITING, _LINE * height, height)


class Canvas:
    """Collects slices row by row.

    Those of fewer than ``wide`` pixels are narrow; ``origin`` is 0 on the x-axis; ``faint``: the
    code, above all others, of what a search did not find.
    """

    def __init__(
        self,
        cycles_a_pixel: float,
        origin: int,
        scale: float,
        wide: int = WIDE,
        faint: int | None = None,
    ) -> None:
        self.cycles_a_pixel, self.origin, self.scale = cycles_a_pixel, origin, scale
        self._wide, self._faint = wide, faint
        self._bars: list[tuple[np.ndarray, ...]] = []
        self._narrow: list[tuple[np.ndarray, ...]] = []

    def wide(self, drawn: Pieces) -> np.ndarray:
        """Mask of the pieces that are drawn as bars."""
        return drawn.end - drawn.start >= self._wide * self.cycles_a_pixel

    def add_bars(
        self, drawn: Pieces, y: float, height: float, hover: list[Any], text: list[str]
    ) -> None:
        """Add wide pieces at ``y``, of a height in rows, each with a hover label and a text."""
        count = len(drawn)
        words, labels = np.empty(count, dtype=object), np.array(text, dtype=object)
        words[:] = hover
        middle, heights = np.full(count, y), _heights(drawn.code, height)
        self._bars.append((drawn.start, drawn.end, drawn.code, middle, heights, words, labels))

    def add(
        self, rows: Rows, drawn: Pieces, y: float, height: float, code: np.ndarray | None = None
    ) -> np.ndarray:
        """Draw what needs no text; the mask is True for the pieces to pass to `add_bars`.

        Pieces of several slices are filled in proportion; waiting stays empty, or a line if it is
        all.
        """
        several = drawn.count > 1
        bars = ~several & self.wide(drawn)
        self.add_narrow(drawn.where(~several & ~bars), y, height)
        merged = drawn.where(several)
        bands = self._seen(*rows.bands(merged, code))
        busy = (bands[1] != WAITING) & (bands[3] >= _THINNEST)
        idle = np.bincount(bands[0], weights=busy, minlength=len(merged)) == 0
        self.add_narrow(replace(merged.where(idle), code=np.full(idle.sum(), WAITING)), y, height)
        piece, of, below, share = (column[busy] for column in bands)
        start, end = merged.start[piece], merged.end[piece]
        middle = y + height * (0.5 - below - share / 2)
        base = np.full(len(piece), y + height / 2)
        self._narrow.append((start, end, of, middle, height * share, base))
        return bars

    def _seen(
        self, piece: np.ndarray, of: np.ndarray, below: np.ndarray, share: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """`Rows.bands` in which what was found is high enough to be seen."""
        if self._faint is None or not len(piece):
            return piece, of, below, share
        there = np.bincount(piece, weights=np.where(of < self._faint, share, 0.0))[piece]
        low = (there > 0) & (there < _LEAST_FOUND)

        def stretched(height: np.ndarray) -> np.ndarray:
            within = height * _LEAST_FOUND / np.where(low, there, 1.0)
            above = (height - there) * (1 - _LEAST_FOUND) / np.where(low, 1 - there, 1.0)
            return np.where(height <= there, within, _LEAST_FOUND + above)

        bottom, top = stretched(below), stretched(below + share)
        return piece, of, np.where(low, bottom, below), np.where(low, top - bottom, share)

    def coarser(self, finest: float, times: float = 1.0) -> float:
        """Pixels below which to merge pieces, ``times`` as many; ``finest`` if light enough."""
        count = sum(len(columns[0]) for columns in self._narrow) * times
        return finest if count <= _MOST_NARROW else 1.2 * finest * count / _MOST_NARROW

    def add_narrow(self, drawn: Pieces, y: float, height: float) -> None:
        """Add narrow pieces."""
        middle, base = (np.full(len(drawn), at) for at in (y, y + height / 2))
        heights = _heights(drawn.code, height)
        self._narrow.append((drawn.start, drawn.end, drawn.code, middle, heights, base))

    def traces(self, looks: dict[int, Look]) -> list[dict[str, Any]]:
        """The traces, in the order of ``looks`` (by code)."""
        scatters: list[dict[str, Any]] = []
        bars, narrow = (
            [np.concatenate(column) for column in zip(*pieces, strict=True)]
            for pieces in (self._bars, self._narrow)
        )
        for code, look in looks.items():
            if bars and (of_code := bars[2] == code).any():
                scatters.append(self._bar(look, (column[of_code] for column in bars)))
            if narrow and (of_code := narrow[2] == code).any():
                # the legend shows squares, whatever is drawn
                if not scatters or scatters[-1]["name"] != look.name:
                    scatters.append(_square(look))
                scatters.append(self._outline(look, (column[of_code] for column in narrow)))
        return scatters

    def _at(self, cycles: np.ndarray) -> np.ndarray:
        return (cycles - self.origin) * self.scale

    def _bar(self, look: Look, columns: Iterable[np.ndarray]) -> dict[str, Any]:
        start, end, _, y, height, hover, text = columns
        pairs = len(hover) > 0 and isinstance(hover[0], tuple)
        return dict(
            type="bar",
            name=look.name,
            legendgroup=look.name,
            orientation="h",
            base=self._at(start),
            x=(end - start) * self.scale,
            y=y,
            width=height,
            marker=look.marker,
            **({"text": text} if any(text) else {}),
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            textfont={"color": look.text, "size": 12},
            customdata=np.array([*map(list, hover)], dtype=object) if pairs else hover,
            hovertemplate=("%{customdata[0]}" if pairs else "%{customdata}") + "<extra></extra>",
        )

    def _outline(self, look: Look, columns: Iterable[np.ndarray]) -> dict[str, Any]:
        """All narrow pieces of an activity as one filled outline."""
        start, end, _, y, height, base = columns
        left, right = self._at(start), self._at(end)
        # Half as many bytes where that moves nothing by a pixel.
        fine = np.spacing(np.float32(np.abs(right).max())) > self.cycles_a_pixel * self.scale / 16
        pixel = (start - self.origin) / max(self.cycles_a_pixel, 1e-9)
        x, heights = outline((left, right), y, height, base, np.floor(pixel / _TOGETHER))
        return {
            "type": "scatter",
            "name": look.name,
            "legendgroup": look.name,
            "showlegend": False,
            "x": x.astype(np.float64 if fine else np.float32),
            "y": heights.astype(np.float32),
            "mode": "none",
            "fill": "toself",
            "fillcolor": look.fill,
            "hoveron": "fills",
            "text": f"{look.name}: zoom in to tell the steps apart",
            "hoverinfo": "text",
        }


def outline(
    ends: tuple[np.ndarray, np.ndarray],
    y: np.ndarray,
    height: np.ndarray,
    base: np.ndarray,
    part: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Rectangles as few closed paths: x and y of their corners, with nan between paths.

    ``ends``: left and right; ``y``: middle. Those of one ``base`` and ``part`` are one path along
    the base, up and down to one that floats above (a base is at the largest y, as the axis points
    down): these ways enclose nothing.
    """
    order = np.lexsort((part, base))
    left, right, y, half, base, part = (
        column[order] for column in (*ends, y, height / 2, base, part)
    )
    top, bottom, none = y - half, y + half, np.full(len(y), np.nan)
    floats = np.abs(base - bottom) > _TOUCHES
    bottom = np.where(floats, bottom, base)
    x = np.stack([left, left, right, right, left, left, none], axis=1)
    heights = np.stack([base, top, top, bottom, bottom, base, none], axis=1)
    needed = np.ones(x.shape, dtype=bool)
    needed[:, 4] = needed[:, 5] = floats
    needed[:-1, 6] = (base[1:] != base[:-1]) | (part[1:] != part[:-1])
    return x[needed], heights[needed]


def marker(code: int, theme: Theme) -> dict[str, Any]:
    """How plotly fills bars of an activity."""
    activity = ACTIVITIES[code]
    marker: dict[str, Any] = {"color": activity.colour(theme), "line": {"width": 0}}
    if activity.edge(theme):
        marker["line"] = {"width": 1, "color": activity.edge(theme)}
    if activity.pattern:
        stroke = ACTIVITIES[NAMES.index("forward")].colour(theme)
        marker["pattern"] = {
            "shape": activity.pattern,
            "fgcolor": stroke,
            "bgcolor": activity.colour(theme),
            "size": 6,
            "solidity": 0.25,
        }
    return marker
