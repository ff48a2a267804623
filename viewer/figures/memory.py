"""Memory figures: bytes over tiles and program steps, and the limit where data could reach it.

Arrays are int64 bytes unless noted; figures show KiB per tile and MiB per IPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ipuscope.profiler.timeline.tile_usage import KINDS, kind_of
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.drawing import (
    NAMES_DOWN,
    Drawing,
    above,
    axis,
    colour_bar,
    legend_above,
    note,
    vertical,
)
from ipuscope.viewer.figures.lanes import FEW
from ipuscope.viewer.figures.theme import ACTIVITIES, BY_DIRECTION, WAITING, Theme, text_on
from ipuscope.viewer.figures.units import as_array, plain

if TYPE_CHECKING:
    import pandas as pd

KIB = 1024
_WIDTH = 1188  # pixels of a figure as wide as a page of 1,440
MIB = 1024 * 1024
FULLEST = 12  # IPUs of many whose fullest tile is drawn
OTHER = "#cc4f8f"  # what is of the other of two profiles
MOST_POINTS = 2400  # of a line over program steps, beyond which a page shows no more
_HEAT, _STRIP = 0.921, 0.059  # heights in a figure: of the map, and of what its steps are for
HEAT_SHAPE = (560, 300)  # steps x tiles at the most: what a page can show
# 64 columns (docs/machine.md#targets); which tile is where is assumed
_ROWS_OF_CHIP = {1472: 23, 1216: 19}

# The fills of `ipuscope.profiler.timeline.tile_usage.KINDS`, in their order: (light, dark)
FILLS = (
    ("#0094fd", "#1c65d8"),
    ("#03728b", "#019ed8"),
    ("#633c00", "#e8c917"),
    ("#245943", "#177957"),
    ("#5b9600", "#6a9b00"),
    ("#c80059", "#da1f5c"),
    ("#4b1977", "#855c8c"),
    ("#232327", "#b0e5ff"),
    ("#747475", "#7f7f81"),
    ("#e67168", "#ee8971"),
    ("#6f6905", "#ffe3cc"),
    ("#8d91ba", "#b6b7c7"),
)

# Up to what a tile has, and beyond it.
_VIRIDIS = (
    (0.0, "#440154"),
    (0.25, "#3b528b"),
    (0.5, "#21918c"),
    (0.75, "#5ec962"),
    (1.0, "#fde725"),
)
_USED = {"light": "#bf8300", "dark": "#f0b23a"}
_JUST_OVER, _FAR_OVER = "#f4511e", "#7f0000"


def fill(kind: int, theme: Theme) -> str:
    """The colour of a kind of `ipuscope.profiler.timeline.tile_usage.KINDS`."""
    light, dark = FILLS[kind]
    return dark if theme.name == "dark" else light


def heat_map(
    values: np.ndarray,
    steps: tuple[int, int],
    tiles: tuple[int, int],
    program: Mapping[str, np.ndarray] | pd.DataFrame,
    limit: int,
    theme: Theme,
    to_limit: bool = False,
    scale: tuple[float, float] | None = None,
) -> Drawing:
    """Live bytes over tiles and program steps, with the purpose of the steps beneath.

    ``values``: `Report.liveness_map` of ``steps`` x ``tiles`` (first, last + 1), resampled or not;
    ``program``: ``position`` and ``direction`` of the IPU's steps, a frame or mapping; ``scale``:
    least and most bytes of all maps compared (default: this map's own).
    """
    least, most = scale or (float(values.min(initial=0)), float(values.max(initial=0)))
    over = most > limit
    top = max(most, limit) / KIB if to_limit or over else max(1.0, most / KIB)
    heat = {
        "type": "heatmap",
        "z": (values.T / KIB).astype(np.float32),
        "x": _middles(steps, values.shape[0]),
        "y": _middles(tiles, values.shape[1]),
        "zmin": 0 if to_limit or over else least / KIB,
        "zmax": top,
        "colorscale": colours_to(most, limit),
        "colorbar": colour_bar("KiB", len=0.94, y=1, yanchor="top"),
        "hovertemplate": "step %{x:.0f}, tile %{y:.0f}<br>%{z:.1f} KiB live<extra></extra>",
    }
    plain_axis = {"showgrid": False, "zeroline": False, "ticks": ""}
    layout = theme.frame(
        502,
        barmode="overlay",
        margin={"l": 72, "r": 16, "t": 30, "b": 76},  # the toolbar stands above the colours
        legend={"orientation": "h", "yref": "container", "y": 0.0, "yanchor": "bottom", "x": 0},
        xaxis={**plain_axis, "range": list(steps), "matches": "x2", "showticklabels": False},
        xaxis2=axis("program step", **plain_axis, range=list(steps), anchor="y2"),
        yaxis=axis("tile", **plain_axis, range=list(tiles), domain=[1 - _HEAT, 1]),
        yaxis2={
            "range": [0, 1],
            "fixedrange": True,
            "showticklabels": False,
            "showgrid": False,
            "domain": [0, _STRIP],
            "anchor": "x2",
        },
    )
    below = {"xaxis": "x2", "yaxis": "y2"}
    strip = [{**one, **below} for one in _directions(program, steps, theme)]
    return Drawing([heat, *strip], layout)


def extremes(values: np.ndarray, most: int) -> np.ndarray:
    """Positions of at most ``most`` values to draw a line: all, or extremes of equal pieces."""
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2 + 1).astype(np.int64)
    piece = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    order = np.lexsort((values, piece))
    return np.unique([order[edges[:-1]], order[edges[1:] - 1]])


@dataclass(frozen=True, slots=True)
class LiveSteps:
    """Live bytes at an IPU's program steps, `Report.usage.live_columns`; ``names`` by position."""

    columns: Mapping[str, np.ndarray]
    names: Callable[[np.ndarray], np.ndarray]

    def through(self, column: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Positions to draw a column's line through, its values there, and the steps' names."""
        values = self.columns[column]
        at = extremes(values, MOST_POINTS)
        return at, values[at], self.named(at)

    def named(self, at: np.ndarray) -> list[str]:
        """Names of steps as labels have them."""
        return [plain(units.shortened(name)) for name in self.names(at).tolist()]


def liveness(
    steps: LiveSteps,
    limit: int,
    theme: Theme,
    tile: tuple[int, np.ndarray] | None = None,
    to_limit: bool = True,
    other: LiveSteps | None = None,
) -> go.Figure:
    """Live bytes over program steps: the IPU's sum above, its fullest tile at each step below.

    ``other``: another profile's, as lines on top over its own steps. ``tile``: one drawn instead of
    the fullest, and its bytes. ``to_limit``: a tile's limit is in view, however far away.
    """
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, row_heights=[0.5, 0.5], vertical_spacing=0.09
    )
    which = steps.columns["max_tile"] if tile is None else np.full(len(tile[1]), tile[0])
    of_tile = steps.columns["max_tile_bytes"] if tile is None else tile[1]
    position, _, names = steps.through("total")
    always, rest = (
        steps.columns[name][position] / MIB for name in ("always_live", "not_always_live")
    )
    colours = ("#7a8696", "#0072b2") if theme.name == "light" else ("#5b6776", "#56b4e9")
    for label, values, colour in (
        ("always live", always, colours[0]),
        ("not always live", rest, colours[1]),
    ):
        step = "step %{x}: %{customdata}<br>" if values is rest else ""  # once for both
        words = step + label + " %{y:.2f} MiB"
        about = as_array(names) if values is rest else None
        area = {"fillcolor": colour, "stackgroup": "live", "name": label, "customdata": about}
        line = _line(position, values, words, "hv", 0, colour, **area)
        figure.add_trace(line, row=1, col=1)
    at = extremes(of_tile, MOST_POINTS)
    words = "step %{x}: %{customdata[1]}<br>tile %{customdata[0]}: %{y:.1f} KiB"
    about = np.column_stack([as_array(which[at].tolist()), as_array(steps.named(at))])
    named = {"name": "fullest tile" if tile is None else "the tile", "customdata": about}
    line = _line(at, of_tile[at] / KIB, words, "hv", 1.5, theme.accent, **named)
    figure.add_trace(line, row=2, col=1)
    if other is not None:
        for row, part, unit in ((1, "total", MIB), (2, "max_tile_bytes", KIB)):
            theirs, values, names = other.through(part)
            words = "the other profile, step %{x}: %{customdata}<br>%{y:.2f}"
            group: Any = {
                "legendgroup": "other",
                "showlegend": row == 1,
                "customdata": as_array(names),
            }
            of = (theirs, values / unit, words, "hv", 1.5, OTHER)
            line = _line(*of, name="the other profile", **group)
            figure.add_trace(line, row=row, col=1)
    if to_limit or of_tile.max(initial=0) > 0.7 * limit:
        _limit(figure, limit, theme, row=2, col=1)
    return theme.laid_out(
        figure,
        440,
        margin={"l": 72, "r": 16, "t": 32, "b": 48},
        yaxis=axis("MiB an IPU", rangemode="tozero"),
        yaxis2=axis("KiB on a tile", rangemode="tozero"),
        xaxis2=axis("program step"),
        hovermode="x",
    )


def _line(
    x: Any, y: Any, words: str, shape: str, width: float, colour: str, **more: Any
) -> go.Scatter:
    """A line in steps; ``words``: on hovering."""
    line = {"width": width, "shape": shape, "color": colour}
    words += "<extra></extra>"
    return go.Scatter(x=x, y=y, mode="lines", line=line, hovertemplate=words, **more)


def tiles(
    frame: pd.DataFrame,
    limit: int,
    theme: Theme,
    selected: int | None = None,
    gaps: bool = True,
    to_limit: bool = True,
    other: pd.DataFrame | None = None,
) -> go.Figure:
    """Bytes of each tile of `Report.tiles`, with and without gaps; ``other``: another profile's."""
    x = frame["tile"].to_numpy()
    figure = go.Figure()
    lines = [
        ("extent, with gaps", "total", theme.accent, "solid"),
        ("used", "total_excluding_gaps", _USED[theme.name], "solid"),
        ("always live", "always_live", theme.muted, "dot"),
    ]
    for name, column, colour, dash in lines if gaps else lines[1:]:
        words = "tile %{x}<br>" + name + ": %{y:.1f} KiB"
        line = _line(x, frame[column].to_numpy() / KIB, words, "hvh", 1.3, colour, name=name)
        figure.add_trace(line.update(line={"dash": dash}))
    if other is not None:
        values = other["total" if gaps else "total_excluding_gaps"].to_numpy()
        own = frame["total" if gaps else "total_excluding_gaps"]
        same = own.reindex(range(len(values)), fill_value=0).to_numpy()
        words = "tile %{x}<br>the other profile: %{y:.1f} KiB (%{customdata:+.1f})"
        named = {"name": "the other profile", "customdata": (values - same) / KIB}
        figure.add_trace(_line(other["tile"], values / KIB, words, "hvh", 1.3, OTHER, **named))
    if to_limit or float(frame["total"].max()) > limit:
        _limit(figure, limit, theme)
    if selected is not None:
        figure.add_vline(x=selected, line={"color": theme.text, "width": 1, "dash": "dot"})
    return theme.laid_out(
        figure,
        300,
        xaxis=axis("tile", range=[-0.5, len(x) - 0.5]),
        yaxis=axis("KiB", rangemode="tozero"),
    )


def colours_to(most: float, limit: float) -> list[tuple[float, str]]:
    """Viridis up to the limit, then darkening reds if ``most`` exceeds it."""
    if most <= limit:
        return list(_VIRIDIS)
    part = limit / most
    below = [(position * part, colour) for position, colour in _VIRIDIS]
    return [*below, (part, _JUST_OVER), (1.0, _FAR_OVER)]


def chip(
    values: np.ndarray, limit: float, theme: Theme, name: str = "KiB", to_limit: bool = False
) -> go.Figure:
    """Bytes (or other numbers) of tiles on the chip: 64 columns, tile order an assumption."""
    rows = _ROWS_OF_CHIP.get(len(values), max(1, int(np.sqrt(len(values) / 2.5))))
    columns = -(-len(values) // rows)
    grid = np.full(rows * columns, np.nan, dtype=np.float32)
    grid[: len(values)] = values
    number = np.arange(rows * columns).reshape(columns, rows).T
    most = float(values.max(initial=0))
    figure = go.Figure(
        go.Heatmap(
            z=grid.reshape(columns, rows).T,
            customdata=number,
            zmin=0 if to_limit else None,
            zmax=max(limit, most) if to_limit else None,
            colorscale=colours_to(most, limit) if to_limit else "Viridis",
            xgap=1,
            ygap=1,
            colorbar=colour_bar(name),
            hovertemplate=f"tile %{{customdata}}: %{{z:,.1f}} {name}<br>column %{{x}}, row %{{y}}"
            "<extra></extra>",
        )
    )
    return theme.laid_out(
        figure,
        322,
        margin={"l": 48, "r": 16, "t": 30, "b": 44},
        xaxis=axis("column of the chip", showgrid=False, zeroline=False),
        yaxis=axis("row", showgrid=False, zeroline=False, autorange="reversed"),
    )


def categories(memory: pd.DataFrame, theme: Theme, columns: int = 2) -> go.Figure:
    """Bytes on each IPU at its fullest step, by purpose; ``memory`` is `Report.memory`.

    ``columns``: of the legend, when the figure is at its narrowest.
    """
    ipus = sorted(set(memory["ipu"].tolist()))
    kind = list(map(kind_of, memory["category"], memory["role"]))
    grouped = memory.assign(kind=kind).groupby(["kind", "ipu"])["bytes"].sum()
    labels = [f"IPU {ipu}" for ipu in ipus]
    figure = go.Figure()
    for at, (name, _) in enumerate(KINDS):
        values = np.array([int(grouped.get((at, ipu), 0)) for ipu in ipus])
        if not values.any():
            continue
        figure.add_bar(
            name=name,
            y=labels,
            x=values / MIB,
            orientation="h",
            marker={"color": fill(at, theme), "line": {"width": 0}},
            customdata=as_array([units.size(value) for value in values]),
            hovertemplate="%{y}: " + name + "<br>%{customdata}<extra></extra>",
        )
    rows = -(-len(figure.data) // columns)
    return theme.laid_out(
        figure,
        64 + 18 * rows + 30 * max(1, len(labels)),
        barmode="stack",
        bargap=0.25,
        margin={"l": 64, "r": 16, "t": 12 + 18 * rows, "b": 44},
        legend={
            "orientation": "h",
            "xref": "container",
            "yref": "container",
            "x": 0,
            "y": 1,
            "yanchor": "top",
            "traceorder": "normal",
            "maxheight": 0.9,  # else half, and a bar to scroll it
            "font": {"size": 11},
        },
        xaxis=axis("MiB on the IPU, at its fullest step"),
        yaxis=NAMES_DOWN,
    )


def tile_kinds(
    category: np.ndarray, role: np.ndarray, nbytes: np.ndarray, theme: Theme
) -> go.Figure:
    """The contents of one tile by purpose: of each variable that is live its kind and its bytes."""
    kind = np.array([*map(kind_of, category.tolist(), role.tolist())], dtype=np.int64)
    size = np.bincount(kind, weights=nbytes, minlength=len(KINDS))
    order = [at for at in np.argsort(size, kind="stable") if size[at] > 0]
    figure = go.Figure(
        go.Bar(
            x=size[order] / KIB,
            y=[KINDS[at][0] for at in order],
            orientation="h",
            marker={"color": [fill(at, theme) for at in order], "line": {"width": 0}},
            text=[f" {units.size(size[at])}" for at in order],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{y}: %{x:.1f} KiB<extra></extra>",
        )
    )
    top = float(size.max(initial=1)) / KIB
    return theme.laid_out(
        figure,
        76 + 24 * max(1, len(order)),
        bargap=0.25,
        margin={"l": 168, "r": 24, "t": 8, "b": 44},
        # words stand behind the longest
        xaxis=axis("KiB on the tile, at its fullest step", range=[0, top * 1.4]),
        yaxis={"type": "category", "showgrid": False},
        showlegend=False,
    )


def lifetimes(
    variables: pd.DataFrame, step: int, steps: int, theme: Theme, width: int = _WIDTH
) -> go.Figure:
    """When variables are live, largest first; columns: name, category, role, bytes, start, stop."""
    letters = max(12, min(44, width // 20))
    figure = go.Figure()
    labels = [
        f"{at + 1}. {plain(units.shortened(name, letters))}"
        for at, name in enumerate(variables["name"])
    ]
    kind = np.array([*map(kind_of, variables["category"], variables["role"])])
    start, stop = variables["start"].to_numpy(), variables["stop"].to_numpy()
    size = variables["bytes"].to_numpy()
    for at in sorted(set(kind.tolist())):
        variables_of_kind = np.flatnonzero(kind == at)
        figure.add_bar(
            name=KINDS[at][0],
            orientation="h",
            base=start[variables_of_kind],
            x=(stop - start)[variables_of_kind],
            y=[labels[i] for i in variables_of_kind],
            marker={"color": fill(at, theme), "line": {"width": 0}},
            customdata=[
                f"{units.size(size[i])}, steps {start[i]} to {stop[i] - 1}"
                for i in variables_of_kind
            ],
            hovertemplate="%{y}<br>%{customdata}<extra></extra>",
        )
    if not len(labels):
        words = "All that is live here is always live."
        figure.add_annotation(note(0.5, 0.5, words, theme.muted, 12, xref="paper", yref="paper"))
    figure.add_vline(x=step + 0.5, line={"color": theme.text, "width": 1, "dash": "dot"})
    theme.laid_out(
        figure,
        110 + 22 * max(3, len(labels)),
        barmode="overlay",
        bargap=0.25,
        margin={"l": 64, "r": 16, "t": 32, "b": 44},
        xaxis=axis("program step", range=_around(start, stop, steps)),
        yaxis={
            "categoryorder": "array",
            "categoryarray": labels[::-1],
            "showgrid": False,
            "type": "category",
            "visible": bool(labels),
        },
        showlegend=True,
    )
    return legend_above(figure, width, below=4)


def _around(start: np.ndarray, stop: np.ndarray, steps: int) -> list[float]:
    """The steps of lifetimes with some room: in a long program most are narrower than a pixel."""
    low, high = int(start.min(initial=steps)), int(stop.max(initial=0))
    if low >= high:
        return [0, max(1, steps)]
    room = max(4, (high - low) // 20)
    return [max(0, low - room), min(steps, high + room)]


def fullest_ipus(fullest: np.ndarray, most: int = FULLEST) -> np.ndarray:
    """The IPUs to draw, given the bytes on each one's fullest tile: all, or the fullest of many."""
    if len(fullest) <= FEW:
        return np.arange(len(fullest))
    return np.sort(np.argsort(-fullest, kind="stable")[:most])


def headroom(
    fullest: np.ndarray,
    limit: int,
    theme: Theme,
    ipus: np.ndarray | None = None,
    what: str = "fullest tile",
) -> Drawing:
    """Memory used on the fullest tile (``what``) of ``ipus`` (from 0) against what a tile has."""
    shown = np.arange(len(fullest)) if ipus is None else ipus
    labels = [f"IPU {ipu}" for ipu in shown.tolist()]
    over = fullest > limit
    bars = {
        "type": "bar",
        "x": fullest / KIB,
        "y": labels,
        "orientation": "h",
        "marker": {"color": np.where(over, theme.limit, theme.accent), "line": {"width": 0}},
        "text": [f" {value / KIB:,.0f} KiB, {units.percent(value / limit)}" for value in fullest],
        "textposition": "auto",
        "insidetextfont": {"size": 12, "color": text_on(theme.accent)},
        "outsidetextfont": {"size": 12},
        "hovertemplate": f"%{{y}}: {what} %{{x:.1f}} KiB<extra></extra>",
    }
    words = f"a tile has {limit / KIB:,.0f} KiB"
    note = above(limit / KIB, words, theme.limit, xanchor="right")
    layout = theme.frame(
        72 + 30 * max(1, len(labels)),
        bargap=0.25,
        margin={"l": 64, "r": 16, "t": 22, "b": 44},
        xaxis=axis(f"{what}, KiB", range=[0, max(limit, fullest.max(initial=0)) / KIB]),
        yaxis=NAMES_DOWN,
        showlegend=False,
        shapes=[vertical(limit / KIB, {"color": theme.limit, "width": 1.5, "dash": "dash"})],
        annotations=[note],
    )
    return Drawing([bars], layout)


def _middles(bounds: tuple[int, int], count: int) -> np.ndarray:
    """Centres of ``count`` equal parts."""
    edges = np.linspace(bounds[0], bounds[1], max(1, count) + 1)
    return (edges[:-1] + edges[1:]) / 2


def _limit(figure: go.Figure, limit: int, theme: Theme, **where: int) -> None:
    figure.add_hline(
        y=limit / KIB,
        line={"color": theme.limit, "width": 1.5, "dash": "dash"},
        annotation={
            "text": f"a tile has {limit / KIB:,.0f} KiB",
            "font": {"size": 11, "color": theme.limit},
            "bgcolor": theme.card,  # the line of a chosen tile goes behind the words
            "xanchor": "left",  # the toolbar is on the right
            "x": 0,
            "xshift": 4,
            "yanchor": "bottom",
        },
        **where,
    )


def _directions(
    program: Mapping[str, np.ndarray] | pd.DataFrame, steps: tuple[int, int], theme: Theme
) -> list[dict[str, Any]]:
    """Runs of steps of the same direction, as bars of height 1."""
    position = np.asarray(program["position"])
    shown = (position >= steps[0]) & (position < steps[1])
    position, directions = position[shown], np.asarray(program["direction"])[shown].tolist()
    code = np.array([BY_DIRECTION.get(name, -1) for name in directions], dtype=np.int64)
    if not len(code):
        return []
    first = np.flatnonzero(np.append(True, np.diff(code) != 0))
    start = position[first].astype(np.float64)
    stop = np.append(start[1:], position[-1] + 1)
    bars: list[dict[str, Any]] = []
    for value in sorted(set(code.tolist())):
        runs = code[first] == value
        activity = ACTIVITIES[value if value >= 0 else WAITING]
        name = activity.name if value >= 0 else "copies and waits"
        # the fill of waiting is nearly that of the card
        colour = (activity.colour if value >= 0 else activity.edge)(theme)
        bars.append(
            {
                "type": "bar",
                "base": start[runs],
                "x": (stop - start)[runs],
                "y": np.full(int(runs.sum()), 0.5),
                "width": 1.0,
                "orientation": "h",
                "name": name,
                "marker": {"color": colour, "line": {"width": 0}},
                "hovertemplate": f"{name}<extra></extra>",
            }
        )
    return bars
