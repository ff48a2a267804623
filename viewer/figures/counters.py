"""Drawn over time below a trace: live bytes, tiles at work, bytes over links; the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ipuscope.profiler import Report, analysis
from ipuscope.profiler.analysis import counters
from ipuscope.profiler.analysis.counters import OfSteps
from ipuscope.viewer.figures import lod
from ipuscope.viewer.figures.drawing import NAMES_DOWN, Drawing, above, note
from ipuscope.viewer.figures.memory import MIB
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.trace import Trace
from ipuscope.viewer.figures.units import Clock, percent

BINS = 600
HEIGHT = 300
_HIGH, _BETWEEN = 0.24, 0.14  # of the figure: a counter, and the room for the next one's name


@dataclass(frozen=True, slots=True)
class Track:
    """The slices of one IPU in time order, with the counters during each slice."""

    start: np.ndarray  # cycles, as the slices count them
    end: np.ndarray
    live: np.ndarray  # bytes
    tiles: np.ndarray  # at work, times cycles
    sent: np.ndarray  # bytes, as `counters.until` adds them up


def tracks(rows: Trace, of_ipus: Mapping[int, OfSteps]) -> list[Track]:
    """A track for each row of steps whose IPU is in ``of_ipus``.

    By `counters.of_steps`, or `counters.of_merged` where the rows' steps are merged.
    """
    drawn_tracks = []
    for row in rows.rows_of_steps():
        of_ipu = of_ipus.get(int(rows.ipu[row]))
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
) -> Drawing:
    """Draw the counters of the shown IPUs between two cycles (default: all).

    In cycles: ``end``, the total length, and ``origin``, from which slices count. ``tiles``: per
    IPU; ``left``: margin of the figure above, in pixels.
    """
    low, high = window or (0.0, float(max(1, end)))
    half = (high - low) / 2  # a margin for dragging
    edges = np.linspace(low - half, high + half, BINS + 1) + origin
    live, busy, link = over_time(of, edges)
    middle = ((edges[:-1] + edges[1:]) / 2 - origin) * clock.scale
    count = max(1, len(of))
    hz = clock.hz / 1e9
    lines = (
        ("live MiB", live / MIB, "%{y:,.1f} MiB live, at most"),
        ("tiles at work", 100 * busy / (tiles * count), "%{y:.0f}% of the tiles at work"),
        ("GB/s sent", link * hz, "%{y:,.1f} GB/s over links"),
    )
    colours = (theme.accent, theme.muted, _LINK[theme.name])
    frame = theme.frame(
        HEIGHT, margin={"l": left, "r": 16, "t": 22, "b": 44}, showlegend=False, hovermode="x"
    )
    figure = Drawing([], {**frame, "annotations": []})
    shown = [low * clock.scale, high * clock.scale]
    for row, ((name, values, words), colour) in enumerate(zip(lines, colours, strict=True)):
        number = str(row + 1) if row else ""
        x, y = f"x{number}", f"y{number}"
        figure.data.append(
            {
                "type": "scatter",
                "x": middle.astype(np.float64),
                "y": values.astype(np.float32),
                "xaxis": x,
                "yaxis": y,
                "name": name,
                "mode": "lines",
                "line": {"width": 1, "shape": "hvh", "color": colour},
                "fill": "tozeroy",
                "fillcolor": colour,
                "hovertemplate": words + "<extra></extra>",
            }
        )
        top = 1 - row * (_HIGH + _BETWEEN)
        figure.layout[f"xaxis{number}"] = {
            **_time_axis(clock, theme, last=row == len(lines) - 1),
            "anchor": y,
            "range": shown,
        }
        figure.layout[f"yaxis{number}"] = {
            "rangemode": "tozero",
            "nticks": 3,
            **dict.fromkeys(("gridcolor", "linecolor", "zerolinecolor"), theme.line),
            "fixedrange": True,
            "automargin": False,
            "tickfont": {"size": 11},
            "anchor": x,
            "domain": [max(0.0, top - _HIGH), top],
            **({"range": [0, 100], "ticksuffix": "%"} if row == 1 else {}),
        }
        over: Any = {"xref": "paper", "xanchor": "left", "yref": f"{y} domain", "yanchor": "bottom"}
        figure.layout["annotations"].append(note(0, 1, name, theme.muted, **over))
    return figure


def _time_axis(clock: Clock, theme: Theme, last: bool) -> dict[str, Any]:
    """All three are one: the lowest has numbers and a title."""
    axis: dict[str, Any] = {
        "showgrid": False,
        "zeroline": False,
        "linecolor": theme.line,
        "tickfont": {"size": 12},
        "exponentformat": "SI",
    }
    if not last:
        return {**axis, "matches": "x3", "showticklabels": False}
    font = {"size": 12, "color": theme.muted}
    return {**axis, "title": {"text": clock.title, "font": font, "standoff": 8}}


_LINK = {"light": "#e2367c", "dark": "#d664ab"}


def over_time(of: Sequence[Track], edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per bin: peak live bytes, mean tiles at work, mean bytes sent per cycle; sums over IPUs.

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


def links(
    report: Report,
    slices: pd.DataFrame,
    window: tuple[float, float],
    origin: int,
    clock: Clock,
    theme: Theme,
    left: int = 0,
) -> Drawing:
    """A row for each link and its mean, the more coloured the more of its rate is used.

    ``slices``: of `ipuscope.profiler.analysis.link_slices`; ``window``: cycles from ``origin``.
    """
    of = analysis.link_loads(report)
    shares = map(percent, of["busy"].tolist())
    names = [f"{one} · {busy}" for one, busy in zip(analysis.link_names(of), shares, strict=True)]
    half = (window[1] - window[0]) / 2  # a margin for dragging
    edges = np.linspace(window[0] - half, window[1] + half, BINS + 1)
    share = analysis.link_traffic(report, slices, edges + origin)
    top = 100 * max(1e-9, float(share.max(initial=0)))
    heat = {
        "type": "heatmap",
        "x": (edges[:-1] + edges[1:]) / 2 * clock.scale,
        "y": names,
        "z": (100 * share).astype(np.float32),
        "zmin": 0,
        "zmax": top,
        "colorscale": [[0, theme.page], [1, _LINK[theme.name]]],
        "showscale": False,
        "ygap": 2,
        "hovertemplate": "%{y} of the time<br>now %{z:.1f}% of its rate<extra></extra>",
    }
    longest = 12 + 6 * max(map(len, names), default=0)
    darkest = f"darkest: {top:.0f}% of a link's rate"
    layout = theme.frame(
        max(150, 66 + 17 * len(names)),
        margin={"l": max(left, longest), "r": 16, "t": 22, "b": 44},
        annotations=[{**above(1, darkest, theme.muted), "xref": "paper", "xanchor": "right"}],
        xaxis={**_time_axis(clock, theme, last=True), "range": [at * clock.scale for at in window]},
        yaxis={**NAMES_DOWN, "fixedrange": True, "tickfont": {"size": 11}, "dtick": 1},
    )
    return Drawing([heat], layout)


_MOST_EVENTS = 20_000  # events drawn, the longest


def host_timeline(lanes: pd.DataFrame, ipus: int, theme: Theme) -> go.Figure:
    """The calls: one row per host thread and nesting depth, and one per IPU.

    ``lanes``: `ipuscope.profiler.analysis.host_clock.host_lanes`; x-axis: ms from the first call.
    """
    shown = (
        lanes.nlargest(_MOST_EVENTS, "end_us", keep="all") if len(lanes) > _MOST_EVENTS else lanes
    )
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
    return theme.laid_out(
        figure,
        84 + 28 * count,
        barmode="overlay",
        bargap=0.2,
        margin={"l": 150, "r": 16, "t": 12, "b": 44},
        xaxis={"title": {"text": "ms from the first call on"}},
        yaxis=NAMES_DOWN,
        showlegend=False,
    )
