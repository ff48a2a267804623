"""Counters over time, drawn below a trace: live bytes, tiles at work, bytes over links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from profiler.analysis import counters
from profiler.analysis.counters import OfSteps
from viewer.figures import lod
from viewer.figures.memory import MIB
from viewer.figures.theme import Theme
from viewer.figures.trace import Trace
from viewer.figures.units import Clock

BINS = 600
HEIGHT = 300


@dataclass(frozen=True, slots=True)
class Track:
    """The slices of one IPU in time order, with the counters during each slice.

    Times are in cycles, counted as the slices count them. ``live``: bytes; ``tiles`` at work times
    cycles, and bytes ``sent``, as `counters.until` adds them up.
    """

    start: np.ndarray
    end: np.ndarray
    live: np.ndarray
    tiles: np.ndarray
    sent: np.ndarray


def tracks(rows: Trace, known: Mapping[int, OfSteps]) -> list[Track]:
    """One track for each row of steps whose IPU is in ``known``.

    These are by `counters.of_steps`, or `counters.of_merged` where the rows' steps are merged.
    """
    drawn_tracks = []
    for row in rows.rows_of_steps():
        of_ipu = known.get(int(rows.ipu[row]))
        if of_ipu is None:
            continue
        here = rows.rows.of(row)
        start, end = rows.rows.start[here], rows.rows.end[here]
        step = rows.counted[rows.rows.source[here]]
        live, tiles, sent = counters.at_slices(of_ipu, step)
        tiles = counters.until(tiles * (end - start))
        drawn_tracks.append(Track(start, end, live, tiles, counters.until(sent)))
    return drawn_tracks


def drawn(
    of: Sequence[Track],
    end: int,
    origin: int,
    tiles: int,
    clock: Clock,
    theme: Theme,
    window: tuple[float, float] | None = None,
    left: int = 64,
) -> go.Figure:
    """Draw the counters of the shown IPUs between two cycles (default: all).

    ``end`` is the total length and ``origin`` the cycle that slices count from, both in cycles;
    ``tiles`` is the number per IPU; ``left`` is the left margin of the figure above, in pixels.
    """
    low, high = window or (0.0, float(max(1, end)))
    half = (high - low) / 2  # a margin for dragging
    edges = np.linspace(low - half, high + half, BINS + 1) + origin
    live, busy, link = over_time(of, edges)
    middle = ((edges[:-1] + edges[1:]) / 2 - origin) * clock.scale
    count = max(1, len(of))
    hz = clock.hz / 1e9
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.13)
    lines = (
        ("live MiB", live / MIB, "%{y:,.1f} MiB live, at most"),
        ("tiles at work", 100 * busy / (tiles * count), "%{y:.0f}% of the tiles at work"),
        ("GB/s sent", link * hz, "%{y:,.1f} GB/s over links"),
    )
    colours = (theme.accent, theme.muted, _LINK[theme.name])
    for row, ((name, values, words), colour) in enumerate(zip(lines, colours, strict=True), 1):
        figure.add_trace(
            go.Scatter(
                x=middle.astype(np.float64),
                y=values.astype(np.float32),
                name=name,
                mode="lines",
                line={"width": 1, "shape": "hvh", "color": colour},
                fill="tozeroy",
                fillcolor=colour,
                hovertemplate=words + "<extra></extra>",
            ),
            row=row,
            col=1,
        )
    figure.update_layout(
        theme.layout(
            HEIGHT,
            margin={"l": left, "r": 16, "t": 22, "b": 44},
            showlegend=False,
            hovermode="x",
        )
    )
    shown = [low * clock.scale, high * clock.scale]
    style = {"showgrid": False, "zeroline": False, "linecolor": theme.line, "range": shown}
    figure.update_xaxes(**style)
    figure.update_xaxes(tickfont={"size": 12}, exponentformat="SI")
    title = {"text": clock.title, "font": {"size": 12, "color": theme.muted}, "standoff": 8}
    figure.update_xaxes(title=title, row=3, col=1)
    figure.update_yaxes(rangemode="tozero", nticks=3, gridcolor=theme.line, fixedrange=True)
    figure.update_yaxes(automargin=False, zerolinecolor=theme.line, tickfont={"size": 11})
    figure.update_yaxes(range=[0, 100], ticksuffix="%", row=2, col=1)
    for row, (name, _, _) in enumerate(lines, 1):
        figure.add_annotation(
            x=0,
            xref="paper",
            y=1,
            yref=f"y{row if row > 1 else ''} domain",
            text=name,
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
            font={"size": 11, "color": theme.muted},
        )
    return figure


_LINK = {"light": "#cc4f8f", "dark": "#e07bb0"}


def over_time(of: Sequence[Track], edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per bin: peak live bytes, mean tiles at work and mean bytes sent per cycle, summed over IPUs.

    ``edges`` are in cycles, counted as the slices count them.
    """
    live, busy, link = np.zeros((3, len(edges) - 1))
    for track in of:
        part = lod.inside(track.start, track.end, edges[0], edges[-1])
        start, end = track.start[part], track.end[part]
        sums = slice(part.start, part.stop + 1)
        live += counters.most(start, end, track.live[part], edges)
        busy += counters.mean(start, end, track.tiles[sums], edges)
        link += counters.mean(start, end, track.sent[sums], edges)
    return live, busy, link


def nothing(words: str, theme: Theme) -> go.Figure:
    """In place of the counters, why there are none."""
    figure = go.Figure(layout=theme.layout(80, margin={"l": 8, "r": 8, "t": 8, "b": 8}))
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    where = {"xref": "paper", "yref": "paper", "x": 0, "y": 0.5, "showarrow": False}
    words = "<br>".join(wrap(words, 44))  # which a narrow window has room for
    return figure.add_annotation(text=words, font={"color": theme.muted}, **where)
