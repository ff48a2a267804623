"""Slices of rows as plotly traces, wide ones as bars, narrow ones as an outline per activity.

A browser takes a tenth of a second for a thousand bars, each an element of the page, but draws an
outline of a thousand rectangles at once. A slice of a few pixels has no room for a name and needs
no element. (Plotly gives each part of an outline one, drawn or not: `outline` joins neighbours.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuscope.viewer.figures.lod import Pieces, Rows
from ipuscope.viewer.figures.theme import ACTIVITIES, NAMES, WAITING, Theme, text_on

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
        self._faint = faint
        self.cycles_a_pixel, self.origin, self.scale, self._wide = (
            cycles_a_pixel,
            origin,
            scale,
            wide,
        )
        self._bars: list[tuple[np.ndarray, ...]] = []
        self._narrow: list[tuple[np.ndarray, ...]] = []

    def wide(self, found: Pieces) -> np.ndarray:
        """Mask of the pieces that are drawn as bars."""
        return found.end - found.start >= self._wide * self.cycles_a_pixel

    def add_bars(
        self, found: Pieces, y: float, height: float, hover: list[Any], text: list[str]
    ) -> None:
        """Add wide pieces at ``y``, of a height in rows, each with a hover label and a text."""
        count = len(found)
        words, labels = np.empty(count, dtype=object), np.array(text, dtype=object)
        words[:] = hover
        self._bars.append(
            (
                found.start,
                found.end,
                found.code,
                np.full(count, y),
                _heights(found.code, height),
                words,
                labels,
            )
        )

    def add(
        self,
        rows: Rows,
        found: Pieces,
        y: float,
        height: float,
        code: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draw what needs no text; the mask is True for the pieces to pass to `add_bars`.

        Pieces of several slices are filled in proportion; waiting stays empty, or a line if it is
        all.
        """
        several = found.count > 1
        bars = ~several & self.wide(found)
        self.add_narrow(found.where(~several & ~bars), y, height)
        merged = found.where(several)
        bands = self._seen(*rows.bands(merged, code))
        busy = (bands[1] != WAITING) & (bands[3] >= _THINNEST)
        idle = np.bincount(bands[0], weights=busy, minlength=len(merged)) == 0
        self.add_narrow(replace(merged.where(idle), code=np.full(idle.sum(), WAITING)), y, height)
        piece, of, below, share = (column[busy] for column in bands)
        self._narrow.append(
            (
                merged.start[piece],
                merged.end[piece],
                of,
                y + height * (0.5 - below - share / 2),
                height * share,
                np.full(len(piece), y + height / 2),
            )
        )
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

    def add_narrow(self, found: Pieces, y: float, height: float) -> None:
        """Add narrow pieces."""
        middle, base = (np.full(len(found), at) for at in (y, y + height / 2))
        heights = _heights(found.code, height)
        self._narrow.append((found.start, found.end, found.code, middle, heights, base))

    def traces(self, looks: dict[int, Look]) -> list[dict[str, Any]]:
        """The traces, in the order of ``looks`` (by code)."""
        scatters: list[dict[str, Any]] = []
        bars = (
            [np.concatenate(column) for column in zip(*self._bars, strict=True)]
            if self._bars
            else None
        )
        narrow = (
            [np.concatenate(column) for column in zip(*self._narrow, strict=True)]
            if self._narrow
            else None
        )
        for code, look in looks.items():
            if bars is not None and (of_code := bars[2] == code).any():
                scatters.append(self._bar(look, *(column[of_code] for column in bars)))
            if narrow is not None and (of_code := narrow[2] == code).any():
                # the legend shows squares, whatever is drawn
                if not scatters or scatters[-1]["name"] != look.name:
                    scatters.append(_square(look))
                scatters.append(self._outline(look, *(column[of_code] for column in narrow)))
        return scatters

    def _at(self, cycles: np.ndarray) -> np.ndarray:
        return (cycles - self.origin) * self.scale

    def _bar(
        self,
        look: Look,
        start: np.ndarray,
        end: np.ndarray,
        code: np.ndarray,
        y: np.ndarray,
        height: np.ndarray,
        hover: np.ndarray,
        text: np.ndarray,
    ) -> dict[str, Any]:
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

    def _outline(
        self,
        look: Look,
        start: np.ndarray,
        end: np.ndarray,
        code: np.ndarray,
        y: np.ndarray,
        height: np.ndarray,
        base: np.ndarray,
    ) -> dict[str, Any]:
        """All narrow pieces of an activity as one filled outline. ``base``: of each one's row."""
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
    kept = np.ones(x.shape, dtype=bool)
    kept[:, 4] = kept[:, 5] = floats
    kept[:-1, 6] = (base[1:] != base[:-1]) | (part[1:] != part[:-1])
    return x[kept], heights[kept]


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
