"""Host and IPUs on one timeline (`ipuscope.profiler.analysis.host_clock`)."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from ipuscope.viewer.figures.theme import Theme

_MOST = 20_000  # events drawn, the longest


def host_timeline(lanes: pd.DataFrame, ipus: int, theme: Theme) -> go.Figure:
    """The calls: one row per host thread and nesting depth, and one per IPU.

    ``lanes``: `ipuscope.profiler.analysis.host_clock.host_lanes`; x-axis: ms from the first call.
    """
    shown = lanes.nlargest(_MOST, "end_us", keep="all") if len(lanes) > _MOST else lanes
    thread = "host thread " + shown["thread"].astype(str)
    rows = thread.where(shown["depth"] == 0, thread + ", in " + shown["depth"].astype(str))
    calls = shown[shown["channel"] == "model"]
    figure = go.Figure()
    for name, part, colour in (
        ("host", shown.assign(row=rows), theme.muted),
        *((f"IPU {ipu}", calls.assign(row=f"IPU {ipu}"), theme.accent) for ipu in range(ipus)),
    ):
        figure.add_trace(
            go.Bar(
                base=part["start_us"] / 1e3,
                x=(part["end_us"] - part["start_us"]) / 1e3,
                y=part["row"],
                orientation="h",
                name=name,
                marker={"color": colour, "line": {"width": 0}},
                text=part["label"],
                textposition="inside",
                customdata=part[["label", "channel"]],
                hovertemplate=(
                    "%{customdata[0]} (%{customdata[1]})<br>from %{base:.3f} ms, %{x:.3f} ms long"
                    "<extra></extra>"
                ),
            )
        )
    count = rows.nunique() + ipus
    figure.update_layout(
        theme.layout(
            84 + 28 * count,
            barmode="overlay",
            bargap=0.2,
            margin={"l": 150, "r": 16, "t": 12, "b": 44},
            xaxis={"title": {"text": "ms from the first call on"}},
            yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
            showlegend=False,
        )
    )
    return figure
