"""A legend above a figure, as wide as the figure, with room for as many rows as it has."""

from __future__ import annotations

from typing import Any, TypeVar

import plotly.graph_objects as go

from ipuscope.profiler import Report
from ipuscope.profiler.analysis.movement import streaming_steps
from ipuscope.viewer.figures.drawing import Drawing

_Figure = TypeVar("_Figure", go.Figure, Drawing)
_NARROW = 620  # pixels of a figure
_ROW = 19  # pixels
_ENTRY, _NARROW_ENTRY = 192, 165  # pixels
_FROM_EDGE = 14  # pixels
HOST, HOST_AND_STREAMS = "host I/O", "host I/O, streaming memory"
_NARROW_LOOK = {"font": {"size": 11}}
_SQUARES = {"indentation": -15}  # leave room for it; areas and lines are as wide as an entry


def with_streams(figure: Drawing, report: Report) -> Drawing:
    """Name what has the colour of host I/O, where streaming memory has it too."""
    if len(streaming_steps(report)):
        for trace in figure.data:
            if trace["name"] == HOST:
                trace["name"] = HOST_AND_STREAMS
    return figure


def legend_above(figure: _Figure, width: int, below: int) -> _Figure:
    """Put the legend over the whole ``width``, names of lanes included; ``below``: pixels under it.

    Plotly gives it the lanes' width, unless it begins left of them and ends above, and moves them
    to the right if it begins less than 12 pixels from the edge.
    """
    names = {trace["name"] for trace in figure.data if _listed(trace)}
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


def _listed(trace: Any) -> bool:
    return "showlegend" not in trace or trace["showlegend"] is not False
