"""Runs as parallel coordinates: a line a run, an axis a setting or a measure."""

from __future__ import annotations

import html
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from ipuscope.profiler import units
from ipuscope.viewer.figures.theme import Theme

_HEIGHT = 400
_MOST_AXES = 12
_MOST_NAMES = 12  # ticks of an axis of words
_MOST_LINES = 500
MEASURES = {
    "samples_per_second": ("samples/s", 1),
    "cycles": ("cycles, million", 1_000_000),
    "fullest_bytes": ("largest extent, KiB", 1024),
}


def axes(settings: pd.DataFrame) -> int:
    """How many axes `coordinates` has."""
    return min(settings.shape[1] + len(MEASURES), _MOST_AXES)


def coordinates(runs: pd.DataFrame, settings: pd.DataFrame, theme: Theme) -> go.Figure:
    """``settings`` of `ipuscope.profiler.analysis.runs.settings_of`; colour is speed.

    Runs that do not fit are left out. A line's ``customdata`` is the index of its run.
    """
    ran = runs[runs["fits"]].nlargest(_MOST_LINES, "samples_per_second")
    shown = list(settings.columns[: axes(settings) - len(MEASURES)])
    drawn = [_of_setting(settings.loc[ran.index, name]) for name in shown]
    drawn += [_of_measure(ran[name] / scale) for name, (_, scale) in MEASURES.items()]
    names = [*shown, *(label for label, _ in MEASURES.values())]
    figure = go.Figure()
    heights = np.column_stack([height for height, _ in drawn]) if len(ran) else np.zeros((0, 1))
    speed = _of_measure(ran["samples_per_second"])[0]
    for line, fast, (index, run) in zip(heights[::-1], speed[::-1], _backwards(ran), strict=True):
        figure.add_scatter(
            x=list(range(len(drawn))),
            y=line,
            mode="lines+markers",
            customdata=[index] * len(drawn),
            text=[_hover(run, settings.loc[index, shown])] * len(drawn),
            hovertemplate="%{text}<extra></extra>",
            line={"color": sample_colorscale("Viridis", [0.1 + 0.8 * fast])[0], "width": 2},
            marker={"size": 6},
            showlegend=False,
        )
    for at, (_, ticks) in enumerate(drawn):
        figure.add_vline(x=at, line={"color": theme.muted, "width": 1}, layer="below")
        for height, words in ticks:
            figure.add_annotation(
                x=at,
                y=height,
                text=html.escape(words),
                showarrow=False,
                xanchor="left",
                xshift=8,
                bgcolor=theme.card,
                opacity=0.9,
                font={"color": theme.text, "size": 12},
            )
    figure.update_layout(
        theme.layout(
            _HEIGHT,
            xaxis={
                "tickvals": list(range(len(drawn))),
                "ticktext": [f"<b>{html.escape(name)}</b>" for name in names],
                "side": "top",
                "showgrid": False,
                "range": [-0.2, len(drawn) - 0.4],
                "fixedrange": True,
            },
            yaxis={"visible": False, "range": [-0.08, 1.08], "fixedrange": True},
            margin={"l": 16, "r": 16, "t": 48, "b": 16},
        )
    )
    return figure


def _backwards(ran: pd.DataFrame) -> list[tuple[Any, pd.Series]]:
    """The quickest last, so that its line lies above the others."""
    return list(ran.iloc[::-1].iterrows())


def _of_setting(values: pd.Series) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Heights of an axis whose values lie evenly apart, and its ticks."""
    known = sorted(values.unique(), key=lambda value: (isinstance(value, str), value))
    apart = 1 / max(1, len(known) - 1)
    heights = {value: number * apart for number, value in enumerate(known)}
    step = -(-len(known) // _MOST_NAMES)
    ticks = [(heights[value], str(value)) for value in known[:: max(1, step)]]
    return values.map(heights).to_numpy(dtype=float), ticks


def _of_measure(values: pd.Series) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Heights of an axis from the least to the most of its values, and these as ticks."""
    least, most = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    if units.per_second(least) == units.per_second(most):  # no axis from 209 to 209
        return np.full(len(values), 0.5), [(0.5, units.per_second(most))] if len(values) else []
    heights = ((values - least) / (most - least)).to_numpy(dtype=float)
    return heights, [(0.0, units.per_second(least)), (1.0, units.per_second(most))]


def _hover(run: pd.Series, settings: pd.Series) -> str:
    said = [f"{name} {value}" for name, value in settings.items()]
    lines = [
        f"<b>{units.per_second(run['samples_per_second'])} samples/s</b>",
        *map(html.escape, said),
    ]
    return "<br>".join(lines)
