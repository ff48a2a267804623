"""The execution trace: every step in time, flat (one row per IPU) or as a flame graph by module.

Rows have the detail that pixels can show (`lod`); steps that a filter excludes are faint.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.profiler.timeline.executed_steps import Names, Spent
from ipuscope.viewer.figures import lod
from ipuscope.viewer.figures.drawing import Drawing, legend_above
from ipuscope.viewer.figures.lanes import CriticalPath, StepRows, codes, codes_of_steps
from ipuscope.viewer.figures.lod import DRAWN, Canvas, Look, Pieces, Rows, look
from ipuscope.viewer.figures.pipeline import MARGINS, critical, judged_by, over_time
from ipuscope.viewer.figures.theme import ACTIVITIES, BY_KIND, COMPUTE, NAMES, WAITING, Theme
from ipuscope.viewer.figures.units import Clock, plain, shortened, text_of

if TYPE_CHECKING:
    import pandas as pd

Labels = Names | np.ndarray | tuple[str, ...]
PIXELS = 1300
MAX_LEVELS = 8  # rows of a flame
_CHARACTER = 7  # pixels
_LEAST_CUT = 6  # characters: of a name cut shorter nobody knows what it is
_HEIGHT = 0.86  # of its row
_FAINT = len(ACTIVITIES)  # what the filter leaves out
_MODULES = len(ACTIVITIES) + 1  # codes of modules begin here
# Muted hues for modules: they say "another module", not what it does.
_MODULE_COLOURS = {
    "light": (
        "#c6d7ea",
        "#d9d0ea",
        "#cfe5d6",
        "#ecdcc5",
        "#e8d0da",
        "#d3dde0",
        "#e0e3c8",
        "#d8d4cc",
    ),
    "dark": (
        "#33475e",
        "#463d5e",
        "#31503f",
        "#57462e",
        "#55394a",
        "#3c4a50",
        "#4b4f33",
        "#46423b",
    ),
}


@dataclass(frozen=True)
class Trace:
    """Rows prepared for drawing."""

    rows: Rows
    names: tuple[str, ...]  # of the rows
    label: np.ndarray  # of each slice in the frame order of ``rows``: an index into ``labels``
    labels: Labels
    step: np.ndarray  # program step id of each slice; -1 where it is none, or several
    origin: int
    end: int  # cycles that are shown
    ipu: np.ndarray  # of each row
    of_steps: np.ndarray  # whether a row has the steps of its IPU: what is summed up
    merged: np.ndarray | None = None  # of `Executed`, where short steps are merged
    finest: int = 0  # of `Executed`

    @property
    def counted(self) -> np.ndarray:
        """By what counters know each slice: its step, or its entry where steps are merged."""
        return self.step if self.merged is None else self.merged

    def named(self, label: np.ndarray) -> list[str]:
        """The texts of some labels."""
        if isinstance(self.labels, tuple):
            return [self.labels[at] for at in label.tolist()]
        return list(map(str, self.labels[label].tolist()))

    def rows_of_steps(self) -> list[int]:
        """The rows to sum up."""
        return np.flatnonzero(self.of_steps).tolist()


def flat(
    executed: StepRows,
    lanes: Sequence[tuple[int, str]] | None = None,
    whole: tuple[int, int] | None = None,
    with_io: Collection[int] | None = None,
) -> Trace:
    """One row per IPU, and one for the I/O tiles of each IPU that has any.

    ``lanes``: IPUs with a row, and names (default: all known); an IPU of several lanes has as many
    equal rows. Where steps are a part of what is shown: ``whole``, its first and last cycle, and
    ``with_io``, the IPUs that have I/O tiles.
    """
    steps, ipus = executed.steps, np.array(executed.ipus, dtype=np.int64)
    named = [(ipu, f"IPU {ipu}") for ipu in executed.ipus] if lanes is None else list(lanes)
    if whole is None:
        start, end = steps.start, steps.end
        whole = int(start.min(initial=end.max(initial=0))), int(end.max(initial=0))
    again = np.array([executed.ipus.index(one) for one, _ in named], dtype=np.int64)
    of_part = np.diff(executed.beside.first) > 0
    more = np.flatnonzero(of_part if with_io is None else np.isin(ipus, list(with_io)))
    more = more[np.isin(more, again)]
    names = (*(name for _, name in named), *(f"I/O {one}" for one in ipus[more].tolist()))
    first = np.unique(again, return_index=True)[1]
    return Trace(
        executed.rows.only(again).before(executed.beside.only(more)),
        names,
        steps.what,
        steps.named.name,
        steps.step,
        whole[0],
        whole[1] - whole[0],
        ipus[np.append(again, more)],
        np.isin(np.arange(len(names)), first),
        steps.merged,
        steps.finest,
    )


def flame(
    steps: pd.DataFrame,
    tasks: pd.DataFrame,
    operators: pd.Series[str],
    streaming: np.ndarray | Sequence[int] = (),
) -> Trace:
    """One IPU: tasks, then modules and operators by level of path, steps, and I/O tiles' steps.

    ``steps`` and ``tasks``: `Report.steps` and `Report.tasks` of one IPU, by start; ``operators``:
    names by id; ``streaming``: ids of streaming memory's steps.
    """
    import pandas as pd

    tasks, beside = tasks[tasks["kind"] != records.BESIDE], steps[steps["kind"] == records.BESIDE]
    steps = steps[steps["kind"] != records.BESIDE]
    name, names = pd.factorize(steps["name"])
    start, end = steps["start"].to_numpy(), steps["end"].to_numpy()
    task = np.searchsorted(tasks["start"].to_numpy(), start, side="right") - 1
    op, ops = pd.factorize(steps["op"])
    paths = [str(words).split("/") if words else [] for words in operators.reindex(ops).fillna("")]
    levels = min(MAX_LEVELS, max((len(path) for path in paths), default=0))
    labels = [*map(str, names)]
    pieces: list[tuple[np.ndarray, ...]] = []

    task_label = np.array([len(labels) + i for i in range(len(tasks))], dtype=np.int64)
    for words, batch in zip(tasks["name"], tasks["micro_batch"].tolist(), strict=True):
        labels.append(f"{words} · micro-batch {batch}" if batch >= 0 else str(words))
    code = codes(tasks)
    pieces.append(_row(0, tasks["start"].to_numpy(), tasks["end"].to_numpy(), code, task_label))

    for level in range(levels):
        modules: dict[str, int] = {}
        prefix = np.array(
            [
                (
                    modules.setdefault("/".join(path[: level + 1]), len(modules))
                    if len(path) > level
                    else -1
                )
                for path in paths
            ]
        )
        of = prefix[op] if len(op) else np.zeros(0, dtype=np.int64)
        first = (
            np.flatnonzero(np.append(True, (np.diff(of) != 0) | (np.diff(task) != 0)))
            if len(of)
            else of
        )
        last = np.append(first[1:], len(of)) - 1
        there = of[first] >= 0
        first, last = first[there], last[there]
        base = len(labels)
        labels += list(modules)
        colours = np.array([_MODULES + zlib.crc32(word.encode()) % 8 for word in modules] or [0])
        pieces.append(
            _row(level + 1, start[first], end[last], colours[of[first]], base + of[first])
        )
    code = codes_of_steps(steps, streaming)
    pieces.append(_row(levels + 1, start, end, code, name, steps["step"].to_numpy()))
    if len(beside):
        label, more = pd.factorize(beside["name"])
        label = label + len(labels)
        labels += map(str, more)
        begins, ends = beside["start"].to_numpy(), beside["end"].to_numpy()
        code = codes_of_steps(beside, streaming)
        pieces.append(_row(levels + 2, begins, ends, code, label, beside["step"].to_numpy()))

    row, starts, ends, colour, label, step = (
        np.concatenate(column) for column in zip(*pieces, strict=True)
    )
    origin = int(start.min()) if len(start) else 0
    of_rows = (
        "task",
        *("modules" if level == 0 else "" for level in range(levels)),
        "step",
        *(["I/O"] * bool(len(beside))),
    )
    return Trace(
        Rows.make(row, starts, ends, colour, len(of_rows)),
        of_rows,
        label,
        tuple(labels),
        step,
        origin,
        int(end.max(initial=origin)) - origin,
        np.full(len(of_rows), int(tasks["ipu"].iloc[0]) if len(tasks) else -1),
        np.array([one == "step" for one in of_rows]),
    )


def stacked(flames: Sequence[tuple[str, Trace]]) -> Trace:
    """The flame graphs of several IPUs, stacked; the first row of each carries its name."""
    names: list[str] = []
    labels: list[str] = []
    columns: dict[str, list[np.ndarray]] = {}
    first, slices = [np.zeros(1, dtype=np.int64)], 0
    for name, one in flames:
        parts = {
            "start": one.rows.start,
            "end": one.rows.end,
            "code": one.rows.code,
            "source": one.rows.source + slices,
            "label": one.label + len(labels),
            "step": one.step,
            "ipu": one.ipu,
            "of_steps": one.of_steps,
        }
        for key, values in parts.items():
            columns.setdefault(key, []).append(values)
        first.append(one.rows.first[1:] + slices)
        names += [name, *one.names[1:]]
        labels += map(str, one.labels)
        slices += len(one.step)
    whole = {key: np.concatenate(values) for key, values in columns.items()}
    origin = min(one.origin for _, one in flames)
    rows = Rows(np.concatenate(first), *(whole[key] for key in ("start", "end", "code", "source")))
    return Trace(
        rows,
        tuple(names),
        whole["label"],
        tuple(labels),
        whole["step"],
        origin,
        max(one.origin + one.end for _, one in flames) - origin,
        whole["ipu"],
        whole["of_steps"],
    )


def drawing(
    rows: Trace,
    clock: Clock,
    theme: Theme,
    window: tuple[float, float] | None = None,
    pixels: int = PIXELS,
    find: str = "",
    path: CriticalPath | None = None,
    have: Collection[str] = (),
    left: int = 0,
) -> Drawing:
    """The rows between two cycles (default: all). Names that do not contain ``find`` are faint.

    ``path``: the critical path by row; ``have``: other names not faint, of tasks with such a step;
    ``left``: least pixels left of the rows.
    """
    low, high = window or (0.0, float(max(1, rows.end)))
    low, high = low + rows.origin, high + rows.origin
    code = _codes(rows, find, have)
    every = range(len(rows.rows))
    finest = float(lod.FINEST)
    some = judged_by(every, len(rows.rows.start))
    if len(some) < len(every):
        few = _drawn(rows, clock, low, high, pixels, code, finest, some)
        finest = few.coarser(finest, len(every) / len(some))
    canvas = _drawn(rows, clock, low, high, pixels, code, finest)
    if (coarser := canvas.coarser(finest, DRAWN)) > finest:
        canvas = _drawn(rows, clock, low, high, pixels, code, coarser)
    layout = _layout(rows, clock, theme, low, high)
    layout["margin"]["l"] = max(left, layout["margin"]["l"])
    figure = Drawing(canvas.traces(_looks(theme)), layout)
    _one_name_for_modules(figure)
    if path is not None:
        view = (low - rows.origin, high - rows.origin)
        figure.data.extend(critical(path, clock, theme, view, below=_HEIGHT / 2))
    return legend_above(figure, pixels + MARGINS, below=10)


def _drawn(
    rows: Trace,
    clock: Clock,
    low: float,
    high: float,
    pixels: int,
    code: np.ndarray | None,
    finest: float,
    some: Sequence[int] | None = None,
) -> Canvas:
    """The rows, or ``some``, at a level of detail."""
    faint = None if code is None else _FAINT
    canvas = Canvas((high - low) / pixels, rows.origin, clock.scale, faint=faint)
    for row in range(len(rows.rows)) if some is None else some:
        pieces, shown = rows.rows.around(row, low, high, pixels, code, finest)
        wide = canvas.add(rows.rows, pieces, row, _HEIGHT, code)
        bars, source = pieces.where(wide), rows.rows.source[pieces.first[wide]]
        words = _words(rows, bars, source, shown[wide], canvas.cycles_a_pixel)
        hover = list(
            zip(_hover(rows, bars, source, clock), rows.step[source].tolist(), strict=True)
        )
        canvas.add_bars(bars, row, _HEIGHT, hover, words)
    return canvas


def overview(
    rows: Trace, clock: Clock, theme: Theme, pixels: int = PIXELS, left: int = 0
) -> Drawing:
    """The whole time in small: the share of it not spent waiting. ``left``: as for `drawing`."""
    bins = min(pixels // 2, max(1, rows.end))
    edges = np.linspace(0, max(1, rows.end), bins + 1)
    busy = np.zeros(bins)
    counted = 0
    for row in rows.rows_of_steps():
        counted += 1
        here = rows.rows.of(row)
        busy += _busy(
            rows.rows.start[here], rows.rows.end[here], rows.rows.code[here], edges + rows.origin
        )
    share = 100 * busy / max(1, counted) / np.diff(edges)
    middle = (edges[:-1] + edges[1:]) / 2 * clock.scale
    line = {
        "type": "scatter",
        "x": middle,
        "y": share,
        "mode": "lines",
        "line": {"width": 0, "color": theme.accent},
        "fill": "tozeroy",
        "fillcolor": theme.accent,
        "opacity": 0.8,
        "hovertemplate": "%{y:.0f}% busy<extra></extra>",
    }
    layout = theme.frame(
        84,
        margin={"l": max(left, left_margin(rows)), "r": 16, "t": 10, "b": 22},
        xaxis={"range": [0, rows.end * clock.scale], "showgrid": False, "exponentformat": "SI"},
        yaxis={
            "range": [0, 100],
            "tickvals": [0, 100],
            "ticktext": ["0%", "100%"],
            "fixedrange": True,
            "showgrid": False,
        },
        dragmode="select",
        selectdirection="h",
        showlegend=False,
    )
    return Drawing([line], layout)


def by_activity(spent: Spent) -> list[tuple[str, int, int]]:
    """(activity, cycles, slices), largest first."""
    code = np.array([BY_KIND.get(kind, COMPUTE) for kind in spent.kinds] or [0])[spent.kind]
    cycles, count = (
        np.bincount(code, weights=values, minlength=len(NAMES)).astype(np.int64).tolist()
        for values in (spent.cycles, spent.count)
    )
    activities = [(NAMES[at], cycles[at], count[at]) for at in range(len(NAMES)) if count[at]]
    return sorted(activities, key=lambda row: -row[1])


def next_hit(
    rows: Trace, find: str, window: tuple[float, float] | None, forward: bool, now: int = -1
) -> int | None:
    """Position in ``rows.rows`` of the next, or previous, slice whose name contains ``find``.

    From the slice ``now`` if it is named so, else the middle of ``window``, and wraps around; None
    if no slice is.
    """
    hits, middles = _hits(rows, find)
    if not len(hits):
        return None
    chosen = np.flatnonzero(hits == now)
    if len(chosen):
        return int(hits[(chosen[0] + (1 if forward else -1)) % len(hits)])
    here = -1.0 if window is None else (window[0] + window[1]) / 2
    at = (
        int(np.searchsorted(middles, here + 1, side="right"))
        if forward
        else int(np.searchsorted(middles, here - 1, side="left")) - 1
    ) % len(hits)
    return int(hits[at])


def number_of_hit(rows: Trace, find: str, position: int) -> tuple[int, int]:
    """Number of a position among slices named so, from 1 (0: not one of them), and of how many."""
    hits, _ = _hits(rows, find)
    at = np.flatnonzero(hits == position)
    return (int(at[0]) + 1 if len(at) else 0), len(hits)


def _hits(rows: Trace, find: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the slices whose name contains the words, and their middles, by time."""
    wanted = _wanted(rows, find)
    if wanted is None:
        none = np.zeros(0, dtype=np.int64)
        return none, none
    hits = np.flatnonzero(wanted[rows.label[rows.rows.source]])
    middles = (rows.rows.start[hits] + rows.rows.end[hits]) / 2 - rows.origin
    order = np.argsort(middles, kind="stable")
    return hits[order], middles[order]


def matches(rows: Trace, find: str) -> tuple[int, int]:
    """(slices, cycles) of the steps whose name contains ``find``."""
    wanted = _wanted(rows, find)
    if wanted is None:
        return 0, 0
    slices, cycles = 0, 0
    for row in rows.rows_of_steps():
        here = rows.rows.of(row)
        hits = wanted[rows.label[rows.rows.source[here]]]
        slices += int(hits.sum())
        cycles += int((rows.rows.end[here] - rows.rows.start[here])[hits].sum())
    return slices, cycles


def _row(
    row: int,
    start: np.ndarray,
    end: np.ndarray,
    code: np.ndarray,
    label: np.ndarray,
    step: np.ndarray | None = None,
) -> tuple[np.ndarray, ...]:
    none = np.full(len(start), -1)
    return np.full(len(start), row), start, end, code, label, none if step is None else step


def _wanted(rows: Trace, find: str, have: Collection[str] = ()) -> np.ndarray | None:
    """Mask of the labels that contain the words, ignoring case; None if there is no search."""
    words = find.strip().lower()
    if not words:
        return None
    return np.array([words in name.lower() or name in have for name in rows.labels] or [False])


def _codes(rows: Trace, find: str, have: Collection[str]) -> np.ndarray | None:
    """The rows' codes, with slices that do not match made faint; None if there is no search."""
    wanted = _wanted(rows, find, have)
    if wanted is None:
        return None
    return np.where(wanted[rows.label[rows.rows.source]], rows.rows.code, _FAINT)


def _hover(rows: Trace, pieces: Pieces, source: np.ndarray, clock: Clock) -> list[str]:
    lines = []
    lengths = rows.rows.end[pieces.first] - rows.rows.start[pieces.first]
    names, each = rows.named(rows.label[source]), (pieces.code, lengths)
    for name, code, length in zip(names, *(column.tolist() for column in each), strict=True):
        name = f"<b>{plain(shortened(name, 90))}</b>"
        kind = NAMES[code] if code < len(NAMES) else ""
        lines.append(text_of([name, kind, clock.both(length)]))
    return lines


_OF_IPU = re.compile(r"^IPU \d+ ")
_HOST_WAYS = {"copyFromHost": "from the host", "copyToHost": "to the host"}


def _last(name: str) -> str:
    """What a bar shows of a name: its last part, or two for a transfer step, on the row's IPU."""
    parts = _OF_IPU.sub("", name).rsplit("/", 3)
    if parts[-1] not in ("begin", "mid", "end") or len(parts) < 3:
        return parts[-1]
    way = _HOST_WAYS.get(parts[-3])
    return f"{parts[-2]} {way}" if way else " ".join(parts[-3:-1])


def _words(
    rows: Trace, pieces: Pieces, source: np.ndarray, shown: np.ndarray, cycles_a_pixel: float
) -> list[str]:
    """The last part of the name, if it or enough of it fits into its bar."""
    room = ((pieces.end - pieces.start) / max(cycles_a_pixel, 1e-9) / _CHARACTER).astype(int)
    legible = shown & (room >= 3) & (pieces.code != WAITING) & (pieces.code != _FAINT)
    words = [""] * len(pieces)
    some = np.flatnonzero(legible)
    for at, whole in zip(some.tolist(), rows.named(rows.label[source[some]]), strict=True):
        name, fits = _last(whole), int(room[at])
        if len(name) <= fits:
            words[at] = plain(name)
        elif fits >= _LEAST_CUT:
            words[at] = plain(name[: fits - 1] + "…")
    return words


def _looks(theme: Theme) -> dict[int, Look]:
    """Colours by code: activities, faint ones, and the modules' hues (one name in the legend)."""
    looks = {}
    for code in range(len(ACTIVITIES)):
        looks[code] = look(code, {"line": {"width": 0}}, theme)
    looks[_FAINT] = _plain("not found", theme.line, theme.muted)
    for number, colour in enumerate(_MODULE_COLOURS[theme.name]):
        looks[_MODULES + number] = _plain(
            "module" if number == 0 else f"module {number + 1}", colour, theme.text
        )
    return looks


def _one_name_for_modules(figure: Drawing) -> None:
    """Name the hues of modules once: the legend need not say "another module" eight times."""
    modules = [one for one in figure.data if one["name"].startswith("module")]
    for at, one in enumerate(modules):
        shown = at == 0 and one["type"] == "bar"
        one.update(name="module", legendgroup="module", showlegend=shown)


def _plain(name: str, colour: str, text: str) -> Look:
    return Look(name, {"color": colour, "line": {"width": 0}}, colour, text)


def _busy(start: np.ndarray, end: np.ndarray, code: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Cycles not spent waiting between consecutive edges."""
    busy = code != WAITING
    length = np.where(busy, end - start, 0)
    total = np.concatenate([[0], np.cumsum(length)])
    at = np.searchsorted(start, edges, side="right") - 1
    inside = np.clip(at, 0, None)
    partial = np.where((at >= 0) & busy[inside], np.minimum(edges, end[inside]) - start[inside], 0)
    until = np.where(at >= 0, total[inside] + partial, 0)
    return np.diff(until)


def left_margin(rows: Trace) -> int:
    """Width in pixels of the row names."""
    return 22 + _CHARACTER * max(6, *(len(name) for name in rows.names))


def _layout(rows: Trace, clock: Clock, theme: Theme, low: float, high: float) -> dict[str, Any]:
    count = max(1, len(rows.names))
    least, usual, whole = (22, 46, 1200) if rows.of_steps.sum() * 2 > count else (15, 30, 2000)
    height = max(least, min(usual, whole // count))
    margin = {"l": left_margin(rows), "r": 16, "t": 64, "b": 48}
    span = (low - rows.origin, high - rows.origin)
    return over_time(theme, height * count + 112, margin, clock, span, rows.names)
