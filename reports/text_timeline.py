"""The pipeline as text: one row per IPU, one cell per pipeline cycle.

Every character of a cell is an equal part of the pipeline cycle's time and shows the IPU's longest
activity in it; dots are waiting. Cells are equally wide, whatever their cycles, which are in the
row beneath. With more pipeline cycles than columns, a column stands for several and shows one of
their activities, so that along a lane each letter is as frequent as its activity is long.

Pure functions from the frames of an `ipuscope.profiler.Report` to styled lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.reports import alike
from ipuscope.viewer.figures import theme
from ipuscope.viewer.figures.lanes import codes

if TYPE_CHECKING:
    import pandas as pd

Segment = tuple[str, str]  # text and rich style
Line = tuple[Segment, ...]

MAX_CELL = 12  # columns; wider cells show no more
_PARTS, _STEPS = 8, 5  # lanes are alike if each eighth is, in steps of a fifth


WEIGHTS = "gradients of weights"  # a direction of its own if a schedule separates them
ACTIVITIES = (*theme.ACTIVITIES, theme.Activity(WEIGHTS, "W", "black on bright_magenta"))

_ASCII = str.maketrans({"×": "x", "·": ".", "─": "-", "├": "|", "┤": "|", "│": "|"})


@dataclass(frozen=True, slots=True)
class Grid:
    """Columns of the timeline: ``edges`` (cycles, columns + 1) and each cell's first column."""

    edges: np.ndarray
    cells: np.ndarray
    width: int  # columns of a cell; 1 where a column stands for several pipeline cycles


def grid(cycle_start: np.ndarray, cycle_end: np.ndarray, columns: int) -> Grid:
    """At most ``columns`` columns for consecutive pipeline cycles without gaps. Units: cycles.

    Equal cells if they fit; otherwise one column per run of pipeline cycles.
    """
    count = len(cycle_start)
    if count == 0:
        return Grid(np.zeros(1), np.zeros(0, dtype=np.int64), 1)
    width = min(MAX_CELL, columns // count)
    if width >= 1:
        parts = np.arange(width) / width
        starts = cycle_start[:, None] + (cycle_end - cycle_start)[:, None] * parts
        return Grid(np.append(starts.ravel(), cycle_end[-1]), np.arange(count) * width, width)
    first = np.arange(columns) * count // columns
    return Grid(
        np.append(cycle_start[first], cycle_end[-1]).astype(np.float64),
        np.arange(count) * columns // count,
        1,
    )


def longest_task(start: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """For each column between ``edges``, the task that fills most of it; -1 if there is none.

    ``start`` and ``end`` (cycles): the tasks of one IPU, sorted, without overlaps.
    """
    columns = len(edges) - 1
    longest = np.full(columns, -1)
    if not len(start) or not columns:
        return longest
    cuts = np.unique(np.concatenate([edges, start, end]))
    cuts = cuts[(cuts >= edges[0]) & (cuts <= edges[-1])]
    task = np.searchsorted(start, cuts[:-1], side="right") - 1
    column = np.clip(np.searchsorted(edges, cuts[:-1], side="right") - 1, 0, columns - 1)
    inside = (task >= 0) & (cuts[:-1] < end[task])
    length, task, column = np.diff(cuts)[inside], task[inside], column[inside]
    order = np.lexsort((-task, length, column))  # of equal ones, the earlier
    longest[column[order]] = task[order]  # the last written wins: the longest
    return longest


def shares_of(
    start: np.ndarray, end: np.ndarray, code: np.ndarray, edges: np.ndarray
) -> np.ndarray:
    """The share of each column's time that each activity takes: float[column, activity].

    Arguments as for `longest_task`; ``code``: the activities of the tasks.
    """
    columns, waits = len(edges) - 1, theme.WAITING
    shares = np.zeros((columns, len(ACTIVITIES)))
    for activity_code in np.unique(code[code != waits]):
        those = np.flatnonzero(code == activity_code)
        total = np.concatenate([[0], np.cumsum(end[those] - start[those])])
        at = np.searchsorted(start[those], edges, side="right") - 1
        begun = those[at.clip(0)]
        inside = np.minimum(edges - start[begun], end[begun] - start[begun])
        until = np.where(at >= 0, total[at.clip(0)] + inside, 0)
        shares[:, activity_code] = np.diff(until) / np.maximum(1, np.diff(edges))
    shares[:, waits] = 1 - shares.sum(axis=1)
    shares[shares < 1e-9] = 0.0  # a remainder of rounding is no activity
    return shares


def in_proportion(shares: np.ndarray) -> np.ndarray:
    """An activity per column, each as often as it takes time: the one furthest behind its share."""
    shown, left = np.zeros(len(shares), dtype=np.int64), np.zeros(len(ACTIVITIES))
    for column in range(len(shares)):
        left += shares[column]
        shown[column] = np.where(shares[column] > 0, left, -np.inf).argmax()
        left[shown[column]] -= 1
    return shown


def lane(tasks: np.ndarray, code: np.ndarray, micro_batch: np.ndarray) -> Line:
    """A row of characters: a task's letter, its micro-batch if it fits, and a line to its end."""
    segments: list[Segment] = []
    at = 0
    while at < len(tasks):
        last = at
        what = int(code[tasks[at]]) if tasks[at] >= 0 else theme.WAITING
        waits = what == theme.WAITING
        while last + 1 < len(tasks) and (tasks[last + 1] == tasks[at]):
            last += 1
        length, drawn = last + 1 - at, ACTIVITIES[what]
        body = drawn.letter * length if waits else drawn.letter
        number = "" if waits or micro_batch[tasks[at]] < 0 else str(int(micro_batch[tasks[at]]))
        if number and length > len(number):
            body += number
        fill = drawn.letter if drawn.letter.islower() else "─"
        segments.append((body.ljust(length, fill), drawn.style))
        at = last + 1
    return tuple(_joined(segments))


def phase_header(phases: list[str], cells: np.ndarray, columns: int) -> str:
    """Phases over their columns: ``├─ramp-up─┤├──steady──┤``; "" if none has room for its name."""
    bounds = [*cells.tolist(), columns]
    runs: list[tuple[str, int, int]] = []
    for phase, first, stop in zip(phases, bounds[:-1], bounds[1:], strict=True):
        if runs and runs[-1][0] == phase:
            runs[-1] = (phase, runs[-1][1], stop)
        elif stop > first:
            runs.append((phase, first, stop))
    if not any(_has_room(phase, stop - first) for phase, first, stop in runs):
        return ""
    return "".join(_bracket(phase, stop - first) for phase, first, stop in runs)


def _has_room(name: str, width: int) -> bool:
    return len(name) <= width - 2


def _bracket(name: str, width: int) -> str:
    """A phase over its columns, without its name if that does not fit."""
    if width < 3:
        return "│".ljust(width)
    return "├" + (name if _has_room(name, width) else "").center(width - 2, "─") + "┤"


def ruler(cells: np.ndarray, width: int, labels: list[str]) -> str:
    """Labels at the first columns of their cells, as far as they fit."""
    if not len(cells):
        return ""
    row = [" "] * (int(cells[-1]) + width)
    free = 0
    for first, label in zip(cells.tolist(), labels, strict=True):
        if first >= free and first + len(label) <= len(row):
            row[first : first + len(label)] = label
            free = first + len(label) + 1
    return "".join(row).rstrip()


def short(cycles: int) -> str:
    """Cycles in four characters: 950, 31k, 1.2M."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if cycles >= unit:
            value = cycles / unit
            return f"{value:.1f}{name}" if value < 9.95 else f"{value:.0f}{name}"
    return str(cycles)


def timeline(
    tasks: pd.DataFrame,
    cycles: pd.DataFrame,
    width: int,
    unicode: bool = True,
    shards: int = 1,
    each: bool = True,
) -> list[Line]:
    """A device iteration as lines of at most ``width`` characters.

    ``tasks`` and ``cycles``: `Report.tasks(run, iteration=i)` and `Report.pipeline_cycles(run, i)`;
    ``shards``: IPUs that share a stage's tensors, as one row. Unless ``each``, equal lanes are one.
    """
    start, end = cycles["start"].to_numpy(np.int64), cycles["end"].to_numpy(np.int64)
    if not len(cycles):
        return [(("no run was profiled: nothing to draw", ""),)]
    times = f" × {shards}" if shards > 1 else ""
    most = tasks["ipu"].max()
    folds = not each and tasks["ipu"].nunique() > alike.FEW
    longest_name = f"IPU {most}-{most}, {most} more" if folds else f"IPU {most}"
    label = max(len("slowest"), len(f"{longest_name}{times}")) + 1
    drawn = grid(start, end, max(8, width - label))
    columns = len(drawn.edges) - 1

    def ruled(name: str, words: list[str]) -> Line:
        ruled_words = ruler(drawn.cells, drawn.width, words)
        return (name.ljust(label), "dim"), (ruled_words, "dim")

    header = phase_header(cycles["phase"].tolist(), drawn.cells, columns)
    lines: list[Line] = [(("".ljust(label), ""), (header, "dim"))] if header else []
    lines.append(ruled("cycle", [str(p) for p in cycles["position"]]))
    seen: set[int] = set()
    lanes: dict[int, list[Line]] = {}
    looks: dict[int, list[Any]] = {}
    beside = tasks["kind"] == records.BESIDE
    for (ipu, _), tasks_of_lane in tasks.groupby(["ipu", beside]):
        separate = (tasks_of_lane["direction"] == WEIGHTS).to_numpy()
        code = np.where(separate, len(ACTIVITIES) - 1, codes(tasks_of_lane))
        begin, stop = (tasks_of_lane[name].to_numpy(np.int64) for name in ("start", "end"))
        batch = tasks_of_lane["micro_batch"].to_numpy()
        if len(cycles) > columns:  # a column is many tasks: no micro-batch to name
            shares = shares_of(begin, stop, code, drawn.edges)
            of_eighths = shares[: columns // _PARTS * _PARTS].reshape(_PARTS, -1, shares.shape[1])
            look = tuple(np.rint(_STEPS * of_eighths.mean(axis=1)).astype(int).ravel().tolist())
            code, longest = in_proportion(shares), np.arange(columns)
            batch = np.full(columns, -1)
        else:
            longest = longest_task(begin, stop, drawn.edges)
            look = ()
        seen.update(code[longest[longest >= 0]].tolist())
        line = lane(longest, code, batch)
        lanes.setdefault(int(str(ipu)), []).append(line)
        looks.setdefault(int(str(ipu)), []).append(look or line)
    ipus = list(lanes)
    keys = [tuple(looks[ipu]) if folds else ipu for ipu in ipus]
    for members in alike.groups(keys):
        drawn_once = lanes[ipus[members[0]]]
        names = [f"IPU {alike.spans([ipus[at] for at in members])}{times}", *["  I/O"] * 8]
        lines += [
            ((name.ljust(label), ""), *one) for name, one in zip(names, drawn_once, strict=False)
        ]
    if folds:
        lines.append(((f"Equal lanes are drawn once: --each prints all {len(ipus)}.", "dim"),))
    lengths = [short(int(c)) for c in end - start]
    if len(cycles) <= columns:
        lines.append(ruled("slowest", [str(ipu) for ipu in cycles["slowest_ipu"]]))
    if drawn.width > max(map(len, lengths)):
        lines.append(ruled("cycles", lengths))
    known = (ACTIVITIES[code] for code in sorted(seen))
    lines += [(), *legend(((one.letter, one.style, f" {one.name}   ") for one in known), width)]
    return (
        lines
        if unicode
        else [tuple((words.translate(_ASCII), style) for words, style in line) for line in lines]
    )


def legend(entries: Iterable[tuple[str, str, str]], width: int, indent: int = 0) -> list[Line]:
    """The meaning of letters that occur: each letter, its style and words, and blanks."""
    begin: list[Segment] = [(" " * indent, "")] if indent else []
    lines, used = [[*begin]], indent
    for letter, style, words in entries:
        if used > indent and used + 1 + len(words.rstrip()) > width:
            lines.append([*begin])
            used = indent
        lines[-1] += [(letter, style), (words, "")]
        used += 1 + len(words)
    return [(*line[:-1], (line[-1][0].rstrip(), "")) for line in lines if line]


def stacked_bar(shares: list[tuple[str, str, float]], width: int) -> Line:
    """Shares of a whole (letter, style, 0..1) as a bar of exactly ``width`` characters."""
    edges = np.rint(np.cumsum([0.0, *(share for *_, share in shares)]) * width).astype(int)
    return tuple(
        (letter * int(count), style)
        for (letter, style, _), count in zip(shares, np.diff(edges), strict=True)
        if count > 0
    )


def _joined(segments: list[Segment]) -> list[Segment]:
    joined: list[Segment] = []
    for words, style in segments:
        if joined and joined[-1][1] == style and style == ACTIVITIES[theme.WAITING].style:
            joined[-1] = (joined[-1][0] + words, style)
        else:
            joined.append((words, style))
    return joined
