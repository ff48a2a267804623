"""Horizontal bars: where the cycles of IPUs go, what stages cost, and what an update waits for."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from ipuscope.profiler import units
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.figures.drawing import NAMES_DOWN, Drawing, above, bar, beside, note, vertical
from ipuscope.viewer.figures.lanes import FEW, stage_label
from ipuscope.viewer.figures.lod import marker
from ipuscope.viewer.figures.theme import ACTIVITIES, BY_KIND, Theme
from ipuscope.viewer.figures.units import Clock, minus, percent, plain, rows_of

_MOST_STAGES = 48  # of stages
_MOST_CHANGES = 10  # between two profiles
_SPREAD = 0.02  # of the time: IPUs of one bar that wait longer than others by more say so
SPACER = "spacer"  # ``meta`` of a trace that only moves what follows it to the right

# Of `records.PHASES` and waiting, on light and dark pages; at least 3:1 against the card.
_COLOURS = {
    "light": ("#7d8b9c", "#0072b2", "#4d5a69", "#00854a", "#7d8b9c"),
    "dark": ("#8d9aab", "#3d9be0", "#b9c4d1", "#2bc981", "#8d9aab"),
}


def spacer(names: Sequence[str], before: np.ndarray) -> dict[str, Any]:
    """What moves the next bars to the right."""
    unseen = {"meta": SPACER, "marker": {"color": "rgba(0,0,0,0)"}, "hoverinfo": "skip"}
    of: dict[str, Any] = {"type": "bar", "orientation": "h", "y": names, "x": before}
    return {**of, **unseen, "showlegend": False}


def busy(
    groups: Sequence[tuple[str, np.ndarray]],
    kinds: Sequence[str],
    cycles: np.ndarray,
    clock: Clock,
    theme: Theme,
) -> Drawing:
    """How IPUs spend their cycles, in per cent: the mean of each group of them.

    ``groups``: name and IPUs of each; ``cycles``: int64[ipu, kind], of
    `ipuscope.profiler.analysis.kinds.cycles_of_ipus`. Behind a bar: the range of its IPUs' waits,
    where they differ.
    """
    code = np.array([BY_KIND[kind] for kind in kinds], dtype=np.int64)
    share = cycles / cycles.sum(axis=1, keepdims=True).clip(1)
    layout = theme.frame(
        92 + 30 * max(1, len(groups)),
        barmode="stack",
        bargap=0.25,
        margin={"l": 64, "r": 120, "t": 36, "b": 36},
        xaxis={"range": [0, 100], "ticksuffix": "%", "dtick": 20},
        yaxis=NAMES_DOWN,
        legend={"traceorder": "normal", "orientation": "h", "y": 1, "yanchor": "bottom"},
    )
    bars = []
    for at, activity in enumerate(ACTIVITIES):
        of = share[:, code == at].sum(axis=1)
        if not of.any():
            continue
        each = [100 * of[ipus] for _, ipus in groups]
        mean = np.array([one.mean() for one in each])
        spent = cycles[:, code == at].sum(axis=1)
        words = [
            f"{name}: {activity.name}<br>{percent(one.mean() / 100)} of the time"
            + (f" on average, {_between(one)}" if _differ(one) else "")
            + f", {clock.both(round(float(spent[ipus].mean())))}"
            for (name, ipus), one in zip(groups, each, strict=True)
        ]
        inside = {
            "text": [f"{value:.0f}%" if value >= 4 else "" for value in mean],
            "textposition": "inside",
            "constraintext": "none",  # as large in narrow parts
            "insidetextanchor": "middle",
            "textangle": 0,
            "textfont": {"color": themes.text_on(activity.colour(theme)), "size": 11},
        }
        look = {"name": activity.name, "marker": marker(at, theme), **inside}
        bars.append(bar([name for name, _ in groups], mean, words, **look))
    waits = 100 * share[:, code == themes.WAITING].sum(axis=1)
    notes = [
        beside(name, f"{_between(waits[ipus])} waiting", theme.muted)
        for name, ipus in groups
        if _differ(waits[ipus])
    ]
    return Drawing(bars, layout | {"annotations": notes} if notes else layout)


def _differ(shares: np.ndarray) -> bool:
    return bool(np.ptp(shares) > 100 * _SPREAD)


def _between(shares: np.ndarray) -> str:
    return f"{shares.min():.0f} to {shares.max():.0f}%"


def _alike(stages: pd.DataFrame) -> pd.DataFrame:
    """Neighbouring stages of equal cycles as one row, ``stage`` being their range.

    With many such rows, all stages of equal cycles; ``stage``: the first, and how many more.
    """
    names = ["forward_cycles", "backward_cycles", "recompute_cycles"]
    costs = stages[names]
    part = (costs != costs.shift()).any(axis=1).cumsum()
    if len(part) and part.iloc[-1] > _MOST_STAGES:
        equal = stages.groupby(names, sort=False)
        firsts, counts = equal.first(), equal.size().to_numpy()
        words = [
            f"{stage} and {count - 1} alike" if count > 1 else str(stage)
            for stage, count in zip(firsts["stage"], counts, strict=True)
        ]
        return firsts.reset_index().assign(stage=words)
    ends = stages.groupby(part)["stage"].agg(["min", "max"])
    words = [
        str(low) if low == high else f"{low}–{high}"
        for low, high in zip(ends["min"], ends["max"], strict=True)
    ]
    blocks = stages.groupby(part)["blocks"].agg(", ".join)
    return stages.groupby(part).first().assign(stage=words, blocks=blocks)


def stage_costs(stages: pd.DataFrame, clock: Clock, theme: Theme) -> Drawing:
    """Cycles of a micro-batch in each stage; of many, adjacent equal ones share a bar."""
    mean = float(stages["cycles"].mean()) if len(stages) else 0.0
    if len(stages) > FEW:
        stages = _alike(stages)
    labels = [stage_label(row, " · ", 26) for row in rows_of(stages)]
    layout = theme.frame(
        92 + 30 * max(1, len(labels)),
        barmode="stack",
        bargap=0.25,
        margin={"l": 64, "r": 88, "t": 46, "b": 44},
        xaxis={"title": {"text": f"{clock.unit} a micro-batch"}, "rangemode": "tozero"},
        yaxis=NAMES_DOWN,
    )
    bars: list[dict[str, Any]] = []
    parts = {
        Direction.FORWARD: "forward_cycles",
        Direction.RECOMPUTE: "recompute_cycles",
        Direction.BACKWARD: "backward_cycles",
    }
    total = stages["forward_cycles"].to_numpy() + stages["backward_cycles"].to_numpy()
    for name, column in parts.items():
        cycles = stages[column].to_numpy()
        if name == "backward":  # which contains the recomputation
            cycles = cycles - stages["recompute_cycles"].to_numpy()
        if not cycles.any():
            continue
        both = zip(labels, cycles, strict=True)
        words = [f"{label}: {name}<br>{clock.both(c)}" for label, c in both]
        look = {"name": name, "marker": marker(themes.NAMES.index(name), theme)}
        bars.append(bar(labels, cycles * clock.scale, words, **look))
    figure = Drawing(bars, layout)
    if len(total):
        at, line = mean * clock.scale, {"color": theme.text, "dash": "dot", "width": 1}
        notes = [above(at, f"mean {clock.short(mean)}", theme.muted)]
        for label, cycles in zip(labels, total, strict=True):
            colour = theme.limit if cycles == total.max() > mean else theme.muted
            notes.append(beside(label, f"{cycles / mean if mean else 0:.2f} × mean", colour))
        legend = {"x": 1, "xanchor": "right", "y": 1, "yref": "container", "yanchor": "top"}
        legend |= {"traceorder": "normal"}
        figure.update_layout(legend=legend, shapes=[vertical(at, line)], annotations=notes)
    return figure


def waterfall(table: pd.DataFrame, clock: Clock, theme: Theme) -> Drawing:
    """Stacked bars by phase that sum to the update; ``table``: of `critical_path.waterfall`."""
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
        xaxis={"title": {"text": clock.title}, "range": [0, end], "exponentformat": "SI"},
        yaxis=NAMES_DOWN,
    )
    bars = [spacer(causes, before * clock.scale)]
    phases = [*records.PHASES, "waiting"]
    for phase, colour in zip(phases, _COLOURS[theme.name], strict=True):
        if phase not in table.columns:
            continue
        part = table[phase].to_numpy()
        both = zip(causes, part.tolist(), strict=True)
        words = [f"{cause}, {phase}<br>{clock.both(one)}" for cause, one in both]
        look = {"name": phase, "marker": {"color": colour, "line": {"width": 0}}}
        bars.append(bar(causes, part * clock.scale, words, **look))
    notes = []
    for cause, share, one in zip(causes, table["share"].tolist(), cycles.tolist(), strict=True):
        colour = theme.text if share >= 0.2 else theme.muted
        notes.append(beside(cause, f"{percent(share)} · {clock.short(one)}", colour))
    return Drawing(bars, {**layout, "annotations": notes})


def between(table: pd.DataFrame, ends: tuple[float, float], clock: Clock, theme: Theme) -> Drawing:
    """From the cycles of A to those of B (``ends``) by differences; small ones are one bar.

    ``table``: ``name, cycles_a, cycles_b, difference``, of `compare_paths`.
    """
    rows = [
        (str(name), float(change), f"A {clock.both(before)}<br>B {clock.both(after)}")
        for name, before, after, change in zip(
            *(table[name] for name in ("name", "cycles_a", "cycles_b", "difference")), strict=True
        )
        if change
    ]
    rest = rows[_MOST_CHANGES:]
    if rest:
        name = f"{len(rest)} more"
        rows = [*rows[:_MOST_CHANGES], (name, sum(change for _, change, _ in rest), name)]
    before = ends[0] + np.cumsum([0.0, *(change for _, change, _ in rows)])[: len(rows)]
    colours = [theme.limit if change > 0 else theme.accent for _, change, _ in rows]
    both = [("A", ends[0], clock.both(ends[0])), *rows, ("B", ends[1], clock.both(ends[1]))]
    names = [name for name, _, _ in both]
    drawn = bar(
        names,
        [value * clock.scale for _, value, _ in both],
        [f"<b>{plain(name)}</b><br>{words}" for name, _, words in both],
        base=[0.0, *(before * clock.scale).tolist(), 0.0],
        marker={"color": [theme.muted, *colours, theme.muted]},
        showlegend=False,
    )
    notes = [
        beside(name, ("+" if change > 0 else "") + minus(clock.short(change)), theme.text)
        for name, change, _ in rows
    ]
    notes += [
        beside(name, clock.short(end), theme.muted) for name, end in zip("AB", ends, strict=True)
    ]
    layout = theme.frame(
        70 + 28 * len(names),
        bargap=0.25,
        margin={"l": 64, "r": 90, "t": 8, "b": 44},
        xaxis={"title": {"text": clock.title}, "exponentformat": "SI"},
        yaxis={**NAMES_DOWN, "categoryorder": "array", "categoryarray": names},
    )
    return Drawing([drawn], {**layout, "annotations": notes})


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
    # so that its line lies above the others
    quickest_last: list[tuple[Any, pd.Series]] = list(ran.iloc[::-1].iterrows())
    for line, fast, (index, run) in zip(heights[::-1], speed[::-1], quickest_last, strict=True):
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
            look = {"xanchor": "left", "xshift": 8, "bgcolor": theme.card, "opacity": 0.9}
            figure.add_annotation(note(at, height, html.escape(words), theme.text, 12, **look))
    return theme.laid_out(
        figure,
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


def _of_setting(values: pd.Series) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Heights of an axis whose values lie evenly apart, and its ticks."""
    ordered = sorted(values.unique(), key=lambda value: (isinstance(value, str), value))
    apart = 1 / max(1, len(ordered) - 1)
    heights = {value: number * apart for number, value in enumerate(ordered)}
    step = -(-len(ordered) // _MOST_NAMES)
    ticks = [(heights[value], str(value)) for value in ordered[:: max(1, step)]]
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
