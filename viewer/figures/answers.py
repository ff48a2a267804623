"""Charts of the rows that a query returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.theme import Theme

if TYPE_CHECKING:
    import pandas as pd

FORMS = ("bars", "line", "points")
MOST_POINTS = 2000
MOST_BARS = 60
_NAME = 40  # characters of a label


def numeric(column: pd.Series) -> bool:
    """Whether a column holds only numbers and NULLs, with at least one number."""
    return any(_is_number(value) for value in column) and all(
        value is None or _is_number(value) for value in column
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def chart(frame: pd.DataFrame, x: str, y: str, form: str, theme: Theme) -> go.Figure:
    """Plot the numeric column ``y`` over column ``x``, in row order.

    ``form`` is one of `FORMS`. Bars are horizontal, one per row, for the first rows only; lines and
    points use numeric ``x`` values if the column has them.
    """
    if form == "bars":
        return _bars(frame.head(MOST_BARS), x, y, theme, len(frame))
    shown = frame.head(MOST_POINTS)
    words = not numeric(shown[x])
    figure = go.Figure(
        go.Scatter(
            x=[_label(value) for value in shown[x]] if words else shown[x].tolist(),
            y=shown[y].tolist(),
            mode="lines" if form == "line" else "markers",
            line={"color": theme.accent, "width": 2},
            marker={"color": theme.accent, "size": 7},
            hovertemplate="%{x}: %{y:,}<extra></extra>",
        )
    )
    return figure.update_layout(
        theme.layout(
            360,
            xaxis={"title": {"text": _label(x)}, "type": "category" if words else "linear"},
            yaxis={"title": {"text": _label(y)}, "exponentformat": "SI"},
            showlegend=False,
        )
    )


def _bars(frame: pd.DataFrame, x: str, y: str, theme: Theme, rows: int) -> go.Figure:
    first = f", the first {len(frame)} of {rows:,} rows" if rows > len(frame) else ""
    labels = [_label(value) for value in frame[x]]
    figure = go.Figure(
        go.Bar(
            x=frame[y].tolist(),
            y=list(range(len(labels))),  # rows of equal names stay apart
            customdata=labels,
            orientation="h",
            marker={"color": theme.accent, "line": {"width": 0}},
            hovertemplate="%{customdata}: %{x:,}<extra></extra>",
        )
    )
    return figure.update_layout(
        theme.layout(
            76 + 22 * max(1, len(labels)),
            bargap=0.25,
            margin={"l": 24 + 7 * max(map(len, labels), default=4), "r": 16, "t": 12, "b": 48},
            xaxis={
                "title": {"text": _label(y) + first},
                "rangemode": "tozero",
                "exponentformat": "SI",
            },
            yaxis={
                "range": [len(labels) - 0.5, -0.5],
                "tickvals": list(range(len(labels))),
                "ticktext": labels,
                "showgrid": False,
                "zeroline": False,
                "automargin": False,
            },
            showlegend=False,
        )
    )


def _label(value: object) -> str:
    return units.plain(units.shortened("NULL" if value is None else str(value), _NAME))
