"""What is built alike, side by side: a row a group, a dot a thing, by what it takes."""

from __future__ import annotations

import numpy as np

from ipuscope.profiler.analysis.regions import Regions
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.drawing import Drawing
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock

MOST = 12  # groups that are drawn
_LETTERS = 28  # of a group's name


def spread(found: Regions, clock: Clock, theme: Theme) -> Drawing:
    """Cycles of each thing over the median of its group; slower ones stand out."""
    groups = found.groups.head(MOST)
    names = groups["group"].tolist()
    things = found.things[found.things["group"].isin(names)]
    row = things["group"].map({name: at for at, name in enumerate(names)}).to_numpy()
    slow = (things["why"] != "").to_numpy()
    hover = [
        f"<b>{units.plain(one.name)}</b><br>{clock.both(int(one.cycles))}<br>{units.plain(one.why)}"
        for one in units.rows_of(things)
    ]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": things["ratio"].to_numpy(),
        "y": row + 0.3 * np.sin(np.arange(len(row))),  # apart, where many take the same
        "text": hover,
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "size": 7,
            "opacity": 0.7,
            "color": np.where(slow, theme.limit, theme.accent),
            "line": {"width": 0},
        },
    }
    labels = [
        f"{units.plain(units.shortened(one.group, _LETTERS))} × {one.count}<br>"
        f"{units.plain(clock.short(float(one.median)))}"
        for one in units.rows_of(groups)
    ]
    reach = max(0.02, 1.1 * float((things["ratio"] - 1).abs().max() if len(things) else 0))
    layout = theme.frame(
        84 + 40 * max(1, len(names)),
        margin={"l": 190, "r": 16, "t": 12, "b": 48},
        xaxis={
            "title": {"text": "of the median of its group"},
            "tickformat": ".1%",
            "range": [1 - reach, 1 + reach],
        },
        yaxis={
            "range": [len(names) - 0.5, -0.5],
            "tickvals": list(range(len(names))),
            "ticktext": labels,
            "zeroline": False,
        },
        showlegend=False,
    )
    return Drawing([dots], layout)
