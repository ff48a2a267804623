"""A histogram of a value per tile (cycles, bytes), which shows how even the work is."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ipuscope.viewer.figures.theme import Theme


def histogram(values: np.ndarray, name: str, theme: Theme, bins: int = 40) -> go.Figure:
    """How many tiles have each value, with mean and maximum marked. ``values`` is over tiles."""
    top = max(1, int(values.max(initial=0)))
    counts, edges = np.histogram(values, bins=min(bins, top), range=(0, top))
    figure = go.Figure(
        go.Bar(
            x=(edges[:-1] + edges[1:]) / 2,
            y=counts,
            width=np.diff(edges),
            marker={"color": theme.accent, "line": {"width": 0}},
            customdata=np.stack([edges[:-1], edges[1:]], axis=1),
            hovertemplate="%{customdata[0]:,.0f} to %{customdata[1]:,.0f} "
            + name
            + ": %{y:,} tiles<extra></extra>",
        )
    )
    mean = float(values.mean()) if len(values) else 0.0
    figure.add_vline(
        x=mean,
        line={"color": theme.text, "dash": "dot", "width": 1},
        annotation={
            "text": f"mean {mean:,.0f}",
            "font": {"size": 11, "color": theme.muted},
            "yanchor": "bottom",
            "xanchor": "right" if mean > top / 2 else "left",
        },
    )
    figure.update_layout(
        theme.layout(
            210,
            margin={"l": 56, "r": 16, "t": 22, "b": 44},
            xaxis={"title": {"text": f"{name} on a tile"}, "range": [0, top * 1.02]},
            yaxis={"title": {"text": "tiles"}},
            showlegend=False,
        )
    )
    return figure
