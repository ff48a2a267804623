"""Figures as plain JSON, which plotly does not check: those redrawn at a zoom, and bars.

plotly's graph objects check and copy properties, which takes longer than to find out what is drawn.
`Drawing.checked` makes one, for notebooks and files.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

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


def as_plotly(figure: go.Figure | Drawing) -> go.Figure:
    """Either as a plotly figure, for who has no server."""
    return figure.checked() if isinstance(figure, Drawing) else figure


# -- shapes and annotations ---


def vertical(x: float, line: dict[str, Any]) -> dict[str, Any]:
    """A shape: a line from the bottom to the top of a figure."""
    ends = {"x0": x, "x1": x, "y0": 0, "y1": 1}
    return {"type": "line", "yref": "paper", **ends, "line": line}


def above(x: float, words: str, colour: str, **more: str) -> dict[str, Any]:
    """An annotation over a figure, at such a line."""
    where = {"x": x, "y": 1, "yref": "paper", "yanchor": "bottom", **more}
    return {**where, "text": words, "showarrow": False, "font": {"size": 11, "color": colour}}


def beside(y: str, words: str, colour: str) -> dict[str, Any]:
    """An annotation to the right of a figure, at a row."""
    where = {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 8, "y": y}
    return {**where, "text": words, "showarrow": False, "font": {"size": 11, "color": colour}}


# -- changing and sending ---


def _update(known: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        here = known.get(name)
        if isinstance(here, dict) and isinstance(value, dict):
            known[name] = {**here}
            _update(known[name], value)
        else:
            known[name] = value


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
