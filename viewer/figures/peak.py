"""How far a run is from the machine's peak: the way down to MFU, and each operator's ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler import Report
from ipuscope.profiler.analysis.operators import EXCHANGE_BYTES_PER_CYCLE
from ipuscope.profiler.analysis.peak import MACS_PER_CYCLE, PARTS, VECTOR_PER_CYCLE, Peak
from ipuscope.profiler.analysis.regions import Regions
from ipuscope.profiler.report import number
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.bars import spacer
from ipuscope.viewer.figures.drawing import NAMES_DOWN, Drawing, axis, bar, beside, nothing
from ipuscope.viewer.figures.theme import ACTIVITIES, BY_DIRECTION, Theme
from ipuscope.viewer.figures.units import Clock

if TYPE_CHECKING:
    import pandas as pd

_LEAST = 0.0005  # of the peak: a part that is less has no bar
_MOST_POINTS = 2000
_ALIKE = ["aten", "direction", "flops", "cycles", "exchanged", "why"]


def from_peak(of: Peak, theme: Theme) -> Drawing:
    """Bars from 100 % of the peak down to MFU, each starting where the one above ends."""
    rows = [(name, share) for name, share in of.rows if share >= _LEAST or name == "MFU"]
    names, shares = zip(*rows, strict=True)
    width = 100 * np.array(shares)
    right = 100 - np.append(0, np.cumsum(width[:-1]))
    start = np.append(right[:-1] - width[:-1], 0)
    colours = [theme.muted] * (len(rows) - 1) + [theme.accent]
    words = [
        f"{name}: {units.percent(share)} of the peak<br>{PARTS.get(name, of.words)}"
        for name, share in rows
    ]
    shown = bar(names, width, words, marker={"color": colours, "line": {"width": 0}})
    layout = theme.frame(
        60 + 28 * len(rows),
        barmode="stack",
        bargap=0.25,
        showlegend=False,
        margin={"l": 64, "r": 70, "t": 8, "b": 36},
        xaxis=axis("of the peak", range=[0, 100], ticksuffix="%", dtick=20),
        yaxis=NAMES_DOWN,
        annotations=[beside(name, units.percent(share), theme.text) for name, share in rows],
    )
    return Drawing([spacer(names, start), shown], layout)


def roofline(report: Report, operators: pd.DataFrame, theme: Theme) -> Drawing:
    """Operators by FLOPs per byte received and FLOPs per cycle, as large as all their cycles.

    ``operators``: of `ipuscope.profiler.analysis.operators`, alike ones as one point. Lines: what
    an IPU's units, exchange and links allow.
    """
    rows = operators[(operators["intensity"] > 0) & (operators["total_cycles"] > 0)]
    some = {"name": ("name", "first"), "total_cycles": ("total_cycles", "sum")}
    some |= {name: (name, "first") for name in ("intensity", "of_roof", "flops_per_cycle")}
    alike = rows.assign(op=rows.index).groupby(_ALIKE, sort=False, as_index=False)
    points = alike.agg(**some, op=("op", "first"), count=("op", "size"))
    points = points.nlargest(_MOST_POINTS, "total_cycles")
    area = np.sqrt(points["total_cycles"] / max(1, points["total_cycles"].max()))
    traces = [_points(direction, points, 5 + 30 * area, theme) for direction in BY_DIRECTION]
    low, high = rows["intensity"].agg(["min", "max"]).tolist() if len(rows) else (1.0, 1.0)
    x = np.geomspace(low / 3, high * 3, 60)
    lines = [_line(name, x, y, dash, theme) for name, y, dash in _ceilings(report, x)]
    layout = theme.frame(
        520,
        margin={"l": 64, "r": 16, "t": 8, "b": 48},
        legend={"orientation": "h", "y": 1, "yanchor": "bottom"},
        xaxis=axis("FLOPs a byte received", type="log", dtick=1, exponentformat="power"),
        yaxis=axis("FLOPs a cycle", type="log", dtick=1),
    )
    return Drawing([*lines, *(one for one in traces if one)], layout)


def _points(
    direction: str, points: pd.DataFrame, size: pd.Series[float], theme: Theme
) -> dict[str, Any] | None:
    own = points["direction"] == direction
    if not own.any():
        return None
    words = [
        f"<b>{units.plain(row.name)}</b>{f' and {row.count - 1} alike' if row.count > 1 else ''}"
        f"<br>{row.total_cycles:,} cycles in an update<br>{row.of_roof:.1%} of its ceiling"
        f"<br>{units.plain(row.why)}"
        for row in units.rows_of(points[own])
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": direction,
        "x": points.loc[own, "intensity"].to_numpy(),
        "y": points.loc[own, "flops_per_cycle"].to_numpy(),
        "text": words,
        "customdata": points.loc[own, "op"].tolist(),
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "size": size[own].to_numpy(),
            "color": ACTIVITIES[BY_DIRECTION[direction]].colour(theme),
            "opacity": 0.75,
            "line": {"width": 1, "color": theme.card},
        },
    }


def _ceilings(report: Report, x: np.ndarray) -> list[tuple[str, np.ndarray, str]]:
    """Name, operations a cycle at each intensity and dash of what the machine allows."""
    target = report.target
    rates = [
        *zip(("AMP fp16", "AMP fp32"), MACS_PER_CYCLE[target.architecture.lower()], strict=True)
    ]
    rates += [*zip(("vector fp16", "vector fp32"), VECTOR_PER_CYCLE, strict=True)]
    flat = [
        (name, np.full(len(x), 2.0 * rate * target.tiles_per_ipu), "solid") for name, rate in rates
    ]
    exchange = EXCHANGE_BYTES_PER_CYCLE * target.tiles_per_ipu
    links = number(report.meta, "link_bytes_per_cycle", 0.0)
    sloped = [("on-chip exchange", x * exchange, "dash")]
    sloped += [("a link to a neighbour", x * links, "dot")] if links else []
    most = flat[0][1][0]
    return [*flat, *((name, np.where(y <= most, y, np.nan), dash) for name, y, dash in sloped)]


def _line(name: str, x: np.ndarray, y: np.ndarray, dash: str, theme: Theme) -> dict[str, Any]:
    text, last = [""] * len(x), int(np.flatnonzero(np.isfinite(y))[-1])
    sloped = dash != "solid"  # its name is at its lower end, where there are few operators
    text[0 if sloped else last] = f"  {name}" if sloped else f"{name}  "
    return {
        "type": "scatter",
        "mode": "lines+text",
        "text": text,
        "textposition": "bottom right" if sloped else "top left",
        "textfont": {"size": 11, "color": theme.muted},
        "name": name,
        "x": x,
        "y": y,
        "line": {"width": 1.5, "dash": dash, "color": theme.muted},
        "hovertemplate": f"{name}: %{{y:.3s}} FLOPs a cycle<extra></extra>",
        "showlegend": False,
    }


MOST_GROUPS = 12  # groups that are drawn
_LETTERS = 28  # of a group's name


def spread(repeated: Regions, clock: Clock, theme: Theme) -> Drawing:
    """Cycles of each thing over the median of its group; slower ones stand out."""
    groups = repeated.groups.head(MOST_GROUPS)
    names = groups["group"].tolist()
    things = repeated.things[repeated.things["group"].isin(names)]
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
    if not len(things):
        return nothing(repeated.words, theme)
    ends = (min(0.98, things["ratio"].min()), max(1.02, things["ratio"].max()))
    room = 0.05 * (ends[1] - ends[0])
    layout = theme.frame(
        84 + 40 * max(1, len(names)),
        margin={"l": 190, "r": 16, "t": 12, "b": 48},
        xaxis=axis(
            "of the median of its group",
            tickformat=".0%" if room > 0.005 else ".1%",
            tickangle=0,
            nticks=6,
            range=[ends[0] - room, ends[1] + room],
        ),
        yaxis={
            "range": [len(names) - 0.5, -0.5],
            "tickvals": list(range(len(names))),
            "ticktext": labels,
            "zeroline": False,
        },
        showlegend=False,
    )
    return Drawing([dots], layout)
