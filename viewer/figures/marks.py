"""Draws marked times and a selection over a figure of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ipuscope.viewer.figures.drawing import Drawing, vertical
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock

MOST_MARKS = 26  # each has a letter


@dataclass(frozen=True, slots=True)
class Selection:
    """A range of time in cycles, and a range of rows (first, last), or None for all rows."""

    low: int
    high: int
    rows: tuple[int, int] | None = None


def marked(
    figure: Drawing,
    marks: Sequence[int],
    selection: Selection | None,
    clock: Clock,
    theme: Theme,
) -> None:
    """Add lines and letters at marks (cycles) and a selection's frame; existing shapes stay."""
    if not marks and selection is None:
        return
    shapes: list[Any] = list(figure.layout.get("shapes", ()))
    notes: list[Any] = list(figure.layout.get("annotations", ()))
    for at, mark in enumerate(marks[:MOST_MARKS]):
        x = mark * clock.scale
        shapes.append(vertical(x, {"color": theme.text, "width": 1.5, "dash": "dash"}))
        notes.append(
            {
                "x": x,
                "y": 1,
                "yref": "paper",
                "yanchor": "top",
                "text": f"<b>{chr(ord('A') + at)}</b>",
                "showarrow": False,
                "bgcolor": theme.text,
                "font": {"color": theme.card, "size": 11},
                "borderpad": 2,
            }
        )
    if selection is not None:
        rows = selection.rows
        shapes.append(
            {
                "type": "rect",
                "x0": selection.low * clock.scale,
                "x1": selection.high * clock.scale,
                "y0": 0 if rows is None else rows[0] - 0.5,
                "y1": 1 if rows is None else rows[1] + 0.5,
                "yref": "paper" if rows is None else "y",
                "fillcolor": theme.accent,
                "opacity": 0.18,
                "line": {"color": theme.accent, "width": 2},
            }
        )
    figure.update_layout(shapes=shapes, annotations=notes)
