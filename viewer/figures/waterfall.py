"""The critical path as a waterfall: what an update waits for, one cause below the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.viewer.figures.drawing import Drawing, beside
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock, percent

if TYPE_CHECKING:
    import pandas as pd

SPACER = "spacer"  # ``meta`` of a trace that only moves what follows it to the right

# Of `records.PHASES` and waiting, on light and dark pages; at least 3:1 against the card.
_COLOURS = {
    "light": ("#7d8b9c", "#0072b2", "#4d5a69", "#00855f", "#7d8b9c"),
    "dark": ("#8d9aab", "#3d9be0", "#b9c4d1", "#2cbf93", "#8d9aab"),
}


def waterfall(table: pd.DataFrame, clock: Clock, theme: Theme) -> Drawing:
    """Stacked bars, each starting where the one above ends, by phase; they sum to the update.

    ``table`` is the result of `ipuscope.profiler.analysis.critical_path.waterfall`.
    """
    causes = [str(cause) for cause in table["cause"]]
    cycles = table["cycles"].to_numpy()
    before = np.cumsum(cycles) - cycles
    end = max(1, int(cycles.sum())) * clock.scale
    layout = theme.frame(
        80 + 30 * max(1, len(causes)),
        barmode="stack",
        bargap=0.25,
        margin={"l": 64, "r": 110, "t": 30, "b": 44},
        legend={"orientation": "h", "traceorder": "normal", "y": 1, "yanchor": "bottom"},
        xaxis={
            "title": {"text": clock.title},
            "range": [0, end],
            "exponentformat": "SI",
        },
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
    )
    same = {"type": "bar", "y": causes, "orientation": "h"}
    bars: list[dict[str, Any]] = [
        {
            **same,
            "meta": SPACER,
            "x": before * clock.scale,
            "marker": {"color": "rgba(0,0,0,0)"},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]
    phases = [*records.PHASES, "waiting"]
    for phase, colour in zip(phases, _COLOURS[theme.name], strict=True):
        if phase not in table.columns:
            continue
        part = table[phase].to_numpy()
        bars.append(
            {
                **same,
                "name": phase,
                "x": part * clock.scale,
                "marker": {"color": colour, "line": {"width": 0}},
                "customdata": [
                    f"{cause}, {phase}<br>{clock.both(one)}"
                    for cause, one in zip(causes, part.tolist(), strict=True)
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    notes = []
    for cause, share, one in zip(causes, table["share"].tolist(), cycles.tolist(), strict=True):
        colour = theme.text if share >= 0.2 else theme.muted
        notes.append(beside(cause, f"{percent(share)} · {clock.short(one)}", colour))
    return Drawing(bars, {**layout, "annotations": notes})
