"""Figures as plain JSON, which plotly does not check: those redrawn at a zoom, and bars.

plotly's graph objects check and copy properties, which takes longer than to find out what is drawn.
`Drawing.checked` makes one, for notebooks and files.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, TypeVar

import numpy as np
import plotly.graph_objects as go

from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock

_TYPES = {"float32": "f4", "float64": "f8"}  # whole numbers are few


@dataclass(frozen=True, slots=True)
class Drawing:
    """Traces and layout, as `plotly.graph_objects.Figure` takes them."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]

    def update_layout(self, **more: Any) -> Drawing:
        """Change the layout, keeping what is beside a changed property."""
        _update(self.layout, more)
        return self

    def checked(self) -> go.Figure:
        """The same as a plotly figure; ValueError if a property is none of plotly's."""
        return go.Figure(self.data, self.layout)

    def to_plotly_json(self) -> dict[str, Any]:
        """What is sent to the browser; arrays of numbers in base64."""
        return {"data": _sent(self.data), "layout": self.layout}


NAMES_DOWN = {"autorange": "reversed", "type": "category", "showgrid": False}  # an axis of bars


def bar(y: Any, x: Any, hover: Any, **more: Any) -> dict[str, Any]:
    """Horizontal bars at the names ``y``, each with its text on hovering."""
    said = {"customdata": hover, "hovertemplate": "%{customdata}<extra></extra>"}
    return {"type": "bar", "orientation": "h", "y": y, "x": x, **said, **more}


def colour_bar(title: str, side: str = "top", **more: Any) -> dict[str, Any]:
    """The scale beside a map of colours."""
    words = {"text": title, "side": side, "font": {"size": 12}}
    return {"title": words, "thickness": 14, "outlinewidth": 0, **more}


def as_plotly(figure: go.Figure | Drawing) -> go.Figure:
    """Either as a plotly figure, for who has no server."""
    return figure.checked() if isinstance(figure, Drawing) else figure


def vertical(x: float, line: dict[str, Any]) -> dict[str, Any]:
    """A shape: a line from the bottom to the top of a figure."""
    ends = {"x0": x, "x1": x, "y0": 0, "y1": 1}
    return {"type": "line", "yref": "paper", **ends, "line": line}


def note(x: float, y: Any, words: str, colour: str, size: int = 11, **more: Any) -> dict[str, Any]:
    """An annotation: words at a place, without an arrow."""
    font = {"size": size, "color": colour}
    return {"x": x, "y": y, "text": words, "showarrow": False, "font": font, **more}


def above(x: float, words: str, colour: str, **more: Any) -> dict[str, Any]:
    """An annotation over a figure, at such a line."""
    return note(x, 1, words, colour, yref="paper", yanchor="bottom", **more)


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title."""
    return {"title": {"text": title}, **more}


def beside(y: str, words: str, colour: str) -> dict[str, Any]:
    """An annotation to the right of a figure, at a row."""
    return note(1, y, words, colour, xref="paper", xanchor="left", xshift=8)


def nothing(words: str, theme: Theme) -> Drawing:
    """An empty figure that says why it is empty."""
    hidden = {"visible": False}
    words = "<br>".join(wrap(words, 44))  # which a narrow window has room for
    margin = {"l": 8, "r": 8, "t": 8, "b": 8}
    said = note(0, 0.5, words, theme.muted, 12, xref="paper", yref="paper")
    return Drawing(
        [], theme.frame(80, margin=margin, xaxis=hidden, yaxis=hidden, annotations=[said])
    )


def _update(present: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        here = present.get(name)
        if isinstance(here, dict) and isinstance(value, dict):
            present[name] = {**here}
            _update(present[name], value)
        else:
            present[name] = value


def _sent(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sent(one) for name, one in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_sent(one) for one in value]
    if isinstance(value, np.ndarray) and value.size and str(value.dtype) in _TYPES:
        data = base64.b64encode(value.tobytes()).decode("ascii")
        rows = {"shape": ", ".join(map(str, value.shape))} if value.ndim > 1 else {}
        return {"dtype": _TYPES[str(value.dtype)], "bdata": data, **rows}
    return value


MOST_MARKS = 26  # each has a letter


@dataclass(frozen=True, slots=True)
class Selection:
    """A range of time in cycles, and a range of rows (first, last), or None for all rows."""

    low: int
    high: int
    rows: tuple[int, int] | None = None


def marked(
    figure: Drawing, marks: Sequence[int], selection: Selection | None, clock: Clock, theme: Theme
) -> None:
    """Add lines and letters at marks (cycles) and a selection's frame; existing shapes stay."""
    if not marks and selection is None:
        return
    shapes: list[Any] = list(figure.layout.get("shapes", ()))
    notes: list[Any] = list(figure.layout.get("annotations", ()))
    for at, mark in enumerate(marks[:MOST_MARKS]):
        x = mark * clock.scale
        shapes.append(vertical(x, {"color": theme.text, "width": 1.5, "dash": "dash"}))
        letter = f"<b>{chr(ord('A') + at)}</b>"
        look: Any = {"bgcolor": theme.text, "borderpad": 2}
        notes.append(note(x, 1, letter, theme.card, yref="paper", yanchor="top", **look))
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


_Figure = TypeVar("_Figure", go.Figure, Drawing)
_NARROW = 760  # pixels of a figure
_ROW = 19  # pixels
_ENTRY, _NARROW_ENTRY = 192, 172  # pixels
_FROM_EDGE = 14  # pixels
_NARROW_LOOK = {"font": {"size": 11}}
_SQUARES = {"indentation": -8}  # leave room for it; areas and lines are as wide as an entry


def legend_above(figure: _Figure, width: int, below: int) -> _Figure:
    """Put the legend over the whole ``width``, names of lanes included; ``below``: pixels under it.

    Plotly gives it the lanes' width, unless it begins left of them and ends above, and moves them
    to the right if it begins less than 12 pixels from the edge.
    """
    names = {
        trace["name"]
        for trace in figure.data
        if "showlegend" not in trace or trace["showlegend"] is not False
    }
    squares = any(trace["type"] == "bar" for trace in figure.data)
    height, margin, narrow = figure.layout["height"], figure.layout["margin"], width < _NARROW
    columns = max(1, (width - margin["r"]) // (_NARROW_ENTRY if narrow else _ENTRY))
    top = below + _ROW * -(-len(names) // columns) + 12
    high = max(1, height - margin["t"] - margin["b"])
    legend: dict[str, Any] = {
        "orientation": "h",
        "y": 1 + below / high,
        "yanchor": "bottom",
        "x": (_FROM_EDGE - margin["l"]) / max(1, width - margin["l"] - margin["r"]),
        "xanchor": "left",
        "traceorder": "normal",
        "itemwidth": 30,
        **(_NARROW_LOOK if narrow else {"font": {"size": 12}}),
        **(_SQUARES if narrow and squares else {}),
    }
    whole = height + top - margin["t"]
    figure.update_layout(margin={"t": top}, height=whole, legend=legend)
    return figure
