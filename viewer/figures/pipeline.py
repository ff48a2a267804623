"""The pipeline figure: one lane per IPU, of tasks, with steps below and I/O tiles above.

Slices are drawn by activity (`slices`), which the legend switches on and off. The x-axis counts
time from the start of what is shown (a device iteration or a run).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ipuscope.profiler.enums import PipelinePhase
from ipuscope.viewer.figures.drawing import Drawing, legend_above, note, vertical
from ipuscope.viewer.figures.lanes import BESIDE, STRIP, TASK, CriticalPath, Lanes, codes
from ipuscope.viewer.figures.lod import (
    DRAWN,
    FINEST,
    WIDE,
    Canvas,
    Pieces,
    Rows,
    inside,
    look,
    marker,
)
from ipuscope.viewer.figures.theme import ACTIVITIES, COMPUTE, Theme
from ipuscope.viewer.figures.units import Clock, plain, rows_of, shortened, text_of

PIXELS = 1160  # columns of a figure as wide as a page of 1,440
MARGINS = 140  # pixels of it beside the lanes, about
_SLOWEST_AT = 0.42
LANE = 74  # pixels
_DIGIT = 7  # pixels
_BOLD, _SMALL = 8.0, 6.0  # pixels of a character in a lane's name, and in the lines below it
_APART = 8  # pixels between the numbers of neighbours, which would read as one
_WHOLE_LABELS = 0.3  # of the figure's width at most
_LINE, _TWO_LINES = 14, 34  # pixels of a lane's label
_JUDGED_BY, _MANY_SLICES = 4, 20_000  # of so many lanes one is drawn first, of so many slices
_ATTEMPTS = 3  # to find a level of detail that is light enough
_MOST_BARS = 1500  # of tasks
_BOLD = 9  # pixels of a letter of a phase's name, and room between names
_MOST_SHADES = 4  # shapes; phased execution has a hundred
_TOP: dict[str, Any] = {"yref": "paper", "yanchor": "middle"}
_MOST_HOPS = 60  # of the critical path between IPUs, as arrows


def drawing(
    lanes: Lanes,
    clock: Clock,
    theme: Theme,
    window: tuple[float, float] | None = None,
    pixels: int = PIXELS,
    follow: int | None = None,
) -> Drawing:
    """The lanes between two cycles (default: all); ``follow``: a micro-batch to trace."""
    low, high = window or (0.0, float(max(1, lanes.end)))
    low, high = low + lanes.origin, high + lanes.origin
    layout = _layout(lanes, clock, theme, low, high, pixels + MARGINS)
    figure = Drawing(_traces(lanes, clock, theme, low, high, pixels), layout)
    view = (low - lanes.origin, high - lanes.origin)
    on_lanes = replace(lanes.path, ipu=lanes.lane[lanes.path.ipu])
    figure.data.extend(critical(on_lanes, clock, theme, view))
    if len(lanes.cycles):
        _phases(figure, lanes, clock, theme, low, high, pixels)
    if follow is not None:
        figure.data.extend(_path(lanes, clock, theme, follow))
    return legend_above(figure, pixels + MARGINS, below=38)


def _traces(
    lanes: Lanes, clock: Clock, theme: Theme, low: float, high: float, pixels: int
) -> list[dict[str, Any]]:
    """The tasks and, beneath them, the steps of all lanes."""
    finest = _likely_level(lanes, clock, low, high, pixels)
    tasks, steps = _drawn(lanes, clock, low, high, pixels, finest)
    for _ in range(_ATTEMPTS):
        coarser = max(tasks.coarser(finest, DRAWN), steps.coarser(finest, DRAWN))
        if coarser == finest:
            break
        finest = coarser
        tasks, steps = _drawn(lanes, clock, low, high, pixels, finest)
    looks = {code: look(code, marker(code, theme), theme) for code in range(len(ACTIVITIES))}
    traces = tasks.traces(looks)
    named = {trace["name"] for trace in traces}
    for trace in steps.traces(looks):
        if trace["name"] in named:
            trace["showlegend"] = False
        traces.append(trace)
    order = {activity.name: code for code, activity in enumerate(ACTIVITIES)}
    return sorted(traces, key=lambda trace: order[trace["name"]])


def judged_by(rows: Sequence[int], count: int) -> Sequence[int]:
    """The rows that tell the level of detail: some of them, where they have very many slices."""
    few = len(rows) <= _JUDGED_BY or count < _MANY_SLICES
    return rows if few else rows[_JUDGED_BY // 2 :: _JUDGED_BY]


def _likely_level(lanes: Lanes, clock: Clock, low: float, high: float, pixels: int) -> float:
    """A level of detail that is light enough, judged by one of a few lanes where they have many."""
    finest, count = float(FINEST), len(lanes.task_rows)
    some = judged_by(range(count), len(lanes.step_rows.start))
    if len(some) == count:
        return finest
    canvases = _drawn(lanes, clock, low, high, pixels, finest, some)
    return max(canvas.coarser(finest, count / len(some)) for canvas in canvases)


def _drawn(
    lanes: Lanes,
    clock: Clock,
    low: float,
    high: float,
    pixels: int,
    finest: float,
    some: Iterable[int] | None = None,
) -> tuple[Canvas, Canvas]:
    """Tasks, steps and I/O tile work at a level of detail, of all lanes or of ``some``."""
    # of few, narrow ones have their hatching and their numbers, too
    few = _shown_tasks(lanes, low, high) <= _MOST_BARS
    tasks = Canvas((high - low) / pixels, lanes.origin, clock.scale, 3 if few else WIDE)
    steps = Canvas((high - low) / pixels, lanes.origin, clock.scale)
    for lane in range(len(lanes.task_rows)) if some is None else some:
        rows = lanes.task_rows
        pieces, shown = rows.around(lane, low, high, pixels, finest=finest)
        wide = tasks.add(rows, pieces, lane + TASK[0], TASK[1])
        bars = pieces.where(wide)
        words = _numbers(lanes, bars, shown[wide], tasks.cycles_a_pixel)
        hover = _task_words(lanes, bars, clock, rows)
        tasks.add_bars(bars, lane + TASK[0], TASK[1], hover, words)
        for rows, (at, height), words_of in (
            (lanes.step_rows, STRIP, _step_words),
            (lanes.beside_rows, BESIDE, _task_words),
        ):
            pieces, _ = rows.around(lane, low, high, pixels, finest=finest)
            bars = pieces.where(steps.add(rows, pieces, lane + at, height))
            hover = words_of(lanes, bars, clock, rows)
            steps.add_bars(bars, lane + at, height, hover, [""] * len(bars))
    return tasks, steps


def _shown_tasks(lanes: Lanes, low: float, high: float) -> int:
    rows = lanes.task_rows
    slices = map(rows.of, range(len(rows)))
    spans = (inside(rows.start[here], rows.end[here], low, high) for here in slices)
    return sum(span.stop - span.start for span in spans)


def _task_words(lanes: Lanes, pieces: Pieces, clock: Clock, rows_of_lanes: Rows) -> list[str]:
    at = rows_of_lanes.source[pieces.first]
    names = ("name", "micro_batch", "cycles", "pipeline_cycle", "phase")
    columns = (lanes.tasks[name].array.take(at).tolist() for name in names)
    lines = []
    for name, batch, cycles, cycle, phase in zip(*columns, strict=True):
        of_batch = f"micro-batch {batch}" if batch >= 0 else ""
        of_cycle = f"pipeline cycle {cycle}, {phase}" if phase else ""
        lines.append(text_of([f"<b>{plain(name)}</b>", of_batch, clock.both(cycles), of_cycle]))
    return lines


def _step_words(lanes: Lanes, pieces: Pieces, clock: Clock, rows_of_lanes: Rows) -> list[str]:
    steps, named = lanes.steps, lanes.steps.named
    at = rows_of_lanes.source[pieces.first]
    names, kinds = named.name[steps.what[at]], [named.kinds[kind] for kind in steps.kind[at]]
    lengths = steps.end[at] - steps.start[at]
    lines = []
    for name, kind, length in zip(names.tolist(), kinds, lengths.tolist(), strict=True):
        label = plain(shortened(name or kind))
        lines.append(text_of([f"<b>{label}</b>", f"{kind}, {clock.both(length)}"]))
    return lines


def _numbers(lanes: Lanes, pieces: Pieces, shown: np.ndarray, cycles_a_pixel: float) -> list[str]:
    """Micro-batch numbers, where they fit into their bar."""
    batch = lanes.tasks["micro_batch"].to_numpy()[lanes.task_rows.source[pieces.first]]
    width = (pieces.end - pieces.start) / max(cycles_a_pixel, 1e-9)
    large = shown & (pieces.code < COMPUTE)  # what moves a micro-batch through its stage
    return [
        str(number) if show and number >= 0 and room >= _DIGIT * len(str(number)) + _APART else ""
        for number, room, show in zip(batch.tolist(), width.tolist(), large.tolist(), strict=True)
    ]


def critical(
    path: CriticalPath,
    clock: Clock,
    theme: Theme,
    window: tuple[float, float],
    below: float = _SLOWEST_AT,
) -> list[dict[str, Any]]:
    """The critical path between two cycles: a line below its current IPU, arrows between IPUs.

    More than `_MOST_HOPS` arrows in view would hide the lanes: none are drawn.
    """
    low, high = window
    margin = (high - low) / 2
    shown = inside(path.start, path.end, low - margin, high + margin)
    if shown.stop <= shown.start:
        return []
    start, end = path.start[shown] * clock.scale, path.end[shown] * clock.scale
    level = path.ipu[shown] + below
    gap = np.full(len(start), np.nan)
    hops = len(start) - 1
    drawn: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "x": np.stack([start, end, gap], axis=1).ravel(),
            "y": np.repeat(level, 3),
            "mode": "lines",
            "line": {"color": theme.limit, "width": 3},
            "name": "critical path",
            "legendgroup": "critical path",
            "hoverinfo": "skip",
            "connectgaps": False,
        }
    ]
    if 0 < hops <= _MOST_HOPS:
        drawn.append(_hops(start[1:], level[:-1], level[1:], theme))
    return drawn


def _hops(x: np.ndarray, before: np.ndarray, after: np.ndarray, theme: Theme) -> dict[str, Any]:
    """Arrows from the IPU whose work ends to the one that waited for it."""
    gap = np.full(len(x), np.nan)
    return {
        "x": np.stack([x, x, gap], axis=1).ravel(),
        "y": np.stack([before, after, gap], axis=1).ravel(),
        **_arrows(np.tile([0, 9, 0], len(x)), theme.limit, 1),
        "name": "critical path",
        "legendgroup": "critical path",
        "showlegend": False,
        "connectgaps": False,
    }


def _arrows(sizes: np.ndarray, colour: str, width: float) -> dict[str, Any]:
    """The look of lines with arrowheads of these sizes."""
    marker = {"symbol": "arrow", "angleref": "previous", "size": sizes, "color": colour}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "line": {"color": colour, "width": width},
        "marker": {**marker, "line": {"width": 0}},  # else plotly draws one in the page's colour
        "hoverinfo": "skip",
    }


def _phases(
    figure: Drawing, lanes: Lanes, clock: Clock, theme: Theme, low: float, high: float, pixels: int
) -> None:
    """Shade ramp-up and ramp-down; number the pipeline cycles and separate them by thin lines."""
    cycles = lanes.cycles
    phases, starts, stops = (cycles[name].tolist() for name in ("phase", "start", "end"))
    first = [at for at, phase in enumerate(phases) if not at or phase != phases[at - 1]]
    cycles_a_pixel = (high - low) / pixels
    shades, notes = list[tuple[float, float]](), []
    for at, behind in zip(first, [*first[1:], len(phases)], strict=True):
        phase, start, end = phases[at], starts[at], stops[behind - 1]
        left, right = (
            (max(start, low) - lanes.origin) * clock.scale,
            (min(end, high) - lanes.origin) * clock.scale,
        )
        if right <= left:
            continue
        if phase != PipelinePhase.STEADY:
            span = (start - lanes.origin) * clock.scale, (end - lanes.origin) * clock.scale
            if shades and shades[-1][1] == span[0]:  # one ends where the next begins
                span = shades.pop()[0], span[1]
            shades.append(span)
        room = (right - left) / clock.scale / cycles_a_pixel
        label = f"<b>{phase}</b> {clock.short(end - start)}"
        label = label if room > _BOLD * (len(label) - 7) else f"<b>{phase}</b>"
        if room > _BOLD * (len(label) - 7):
            notes.append(note((left + right) / 2, 1, label, theme.text, 12, yshift=22, **_TOP))
    shapes = _rectangles(shades, theme.shade)
    shown = cycles[(cycles["end"] > low) & (cycles["start"] < high)]
    thin = {"color": theme.line, "width": 1}
    if len(shown) <= pixels // 24:
        for row in rows_of(shown):
            left, right = max(row.start, low) - lanes.origin, min(row.end, high) - lanes.origin
            if (right - left) / cycles_a_pixel >= _DIGIT * len(str(row.position)) + 4:
                middle, number = (left + right) / 2 * clock.scale, str(row.position)
                notes.append(note(middle, 1, number, theme.muted, yshift=6, **_TOP))
            rule = vertical((row.start - lanes.origin) * clock.scale, thin)
            shapes.append({**rule, "layer": "below"})
    figure.update_layout(shapes=shapes, annotations=notes)


def _rectangles(spans: Sequence[tuple[float, float]], colour: str) -> list[dict[str, Any]]:
    """The shades of spans of time; of many, as one shape: plotly takes long for each."""
    style = {"yref": "paper", "fillcolor": colour, "line": {"width": 0}, "layer": "below"}
    if len(spans) <= _MOST_SHADES:
        return [
            {"type": "rect", "x0": left, "x1": right, "y0": 0, "y1": 1, **style}
            for left, right in spans
        ]
    path = " ".join(f"M{left},0V1H{right}V0Z" for left, right in spans)
    return [{"type": "path", "path": path, **style}]


def _path(lanes: Lanes, clock: Clock, theme: Theme, micro_batch: int) -> list[dict[str, Any]]:
    """The path of one micro-batch: an arrow from the end of each task to the start of the next."""
    code = codes(lanes.tasks)
    tasks = lanes.tasks[(lanes.tasks["micro_batch"] == micro_batch).to_numpy() & (code < COMPUTE)]
    tasks = tasks[lanes.lane[tasks["ipu"].to_numpy()] >= 0]
    tasks = tasks.sort_values(["iteration", "start"], kind="stable")
    times = tasks[["start", "end"]].to_numpy(np.float64).ravel() - lanes.origin
    at = np.arange(len(times))
    return [
        {
            "x": times * clock.scale,
            "y": np.repeat(lanes.lane[tasks["ipu"].to_numpy()], 2) + TASK[0],
            **_arrows(np.where((at % 2 == 0) & (at > 0), 12, 0), theme.text, 1.5),
            "name": f"micro-batch {micro_batch}",
        }
    ]


def _label_width(labels: Sequence[str]) -> int:
    """About how wide the widest line in the lanes' labels is, in pixels."""
    widest = 6 * _BOLD
    for label in labels:
        for at, line in enumerate(label.split("<br>")):
            words = html.unescape(re.sub("<[^>]*>", "", line))
            widest = max(widest, len(words) * (_SMALL if at else _BOLD))
    return round(widest)


def _height(lanes: Lanes) -> int:
    """Pixels of a lane."""
    return max(3, min(LANE, 900 // max(1, len(lanes.labels))))


def _labels(lanes: Lanes, width: int) -> list[str]:
    """The lanes' names, with what is on them where there is room for it."""
    narrow = _label_width(lanes.labels) > _WHOLE_LABELS * width
    names = lanes.names if narrow or _height(lanes) < _TWO_LINES else lanes.labels
    return [one.mark + name for one, name in zip(lanes.arranged, names, strict=True)]


def left_margin(lanes: Lanes, width: int) -> int:
    """Pixels at the left of the lanes, of a figure of that width: their names."""
    return 34 + _label_width(_labels(lanes, width))


def _layout(
    lanes: Lanes, clock: Clock, theme: Theme, low: float, high: float, width: int
) -> dict[str, Any]:
    count = max(1, len(lanes.labels))
    height = _height(lanes)
    labels = _labels(lanes, width)
    every = -(-_LINE // height)
    # top: legend, phases, cycle numbers; bottom: the axis
    margin = {"l": left_margin(lanes, width), "r": 16, "t": 104, "b": 48}
    span = (low - lanes.origin, high - lanes.origin)
    return over_time(theme, height * count + 160, margin, clock, span, labels, every)


def over_time(
    theme: Theme,
    height: int,
    margin: dict[str, int],
    clock: Clock,
    span: tuple[float, float],
    names: Sequence[str],
    every: int = 1,
) -> dict[str, Any]:
    """The frame of rows over time between two cycles; ``every``: of the names that are written."""
    return theme.frame(
        height,
        barmode="overlay",
        margin=margin,
        xaxis={
            "range": [end * clock.scale for end in span],
            "title": {"text": clock.title},
            "showgrid": False,
            "ticks": "outside",
            "tickcolor": theme.line,
            "exponentformat": "SI",
        },
        yaxis={
            "range": [max(1, len(names)) - 0.45, -0.5],
            "tickvals": list(range(0, len(names), every)),
            "ticktext": list(names[::every]),
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "automargin": False,
        },
    )
