"""Figures as plain JSON, which plotly does not check: those redrawn at a zoom, and bars.

plotly's graph objects check and copy each property several times, which takes longer than to find
out what is drawn. `Drawing.checked` makes one of them, for notebooks and files.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

_TYPES = {"float32": "f4", "float64": "f8", "int32": "i4", "uint8": "u1"}


@dataclass(frozen=True, slots=True)
class Drawing:
    """Traces and layout, as `plotly.graph_objects.Figure` takes them."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]

    def add_traces(self, more: list[dict[str, Any]]) -> None:
        """Draw more traces, over those that are there."""
        self.data.extend(more)

    def update_layout(self, **more: Any) -> Drawing:
        """Change the layout, keeping what is beside a changed property."""
        _update(self.layout, more)
        return self

    def checked(self) -> go.Figure:
        """The same as a plotly figure.

        Raises:
            ValueError: A property is none of plotly's.
        """
        return go.Figure(self.data, self.layout)

    def to_plotly_json(self) -> dict[str, Any]:
        """What is sent to the browser; arrays of numbers in base64."""
        return {"data": _sent(self.data), "layout": self.layout}


def vertical(x: float, line: dict[str, Any]) -> dict[str, Any]:
    """A shape: a line from the bottom to the top of a figure."""
    ends = {"x0": x, "x1": x, "y0": 0, "y1": 1}
    return {"type": "line", "xref": "x", "yref": "y domain", **ends, "line": line}


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
