"""Search by name in the execution trace: how many hits, which one is shown, and the next.

Rows with all steps are searched directly; where rows have tasks because there are too many steps,
`ipuscope.profiler.analysis.named_steps` finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipuscope.profiler import Report
from ipuscope.profiler.analysis.kinds import spent_by_kind
from ipuscope.profiler.analysis.named_steps import ExecutedByName, NamedSteps
from ipuscope.profiler.timeline.executed_steps import Spent
from ipuscope.viewer.figures import trace as figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.drawing import Selection
from ipuscope.viewer.figures.trace import Trace
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, tables
from ipuscope.viewer.pages.common import View
from ipuscope.viewer.pages.timespan import Span

_WIDTH = 40  # times the hit's width: the window around it, unless it is narrower already


@dataclass(frozen=True)
class Hit:
    """A step that matches: its row, and cycles from the start of what is shown."""

    row: int
    start: int
    end: int

    @property
    def at(self) -> str:
        """The point of the figure that is in it."""
        return f"{(self.start + self.end) // 2},{self.row}"

    def around(self, window: tuple[float, float] | None, end: int) -> tuple[int, int]:
        """A window as wide as ``window`` around the hit; ``end``: of what is shown."""
        length = max(1, self.end - self.start)
        width = _WIDTH * length if window is None else max(window[1] - window[0], length)
        low = max(0, int((self.start + self.end - width) / 2))
        return low, min(end, int(low + width))


def executed(span: Span, rows: Trace, find: str) -> ExecutedByName:
    """The executions of steps of that name on the IPUs of the rows."""
    words, report = find.strip().lower(), span.report
    steps = span.profiles.made(report, ("named", words), lambda: NamedSteps.of(report, words))
    ipus = np.unique(rows.ipu[rows.of_steps]).tolist()
    return steps.executed(report, span.run, ipus, span.iteration)


def slice_at(rows: Trace, point: tuple[float, float] | None) -> int:
    """The position in ``rows.rows`` of the slice at a point of the figure; -1 if none."""
    return -1 if point is None else rows.rows.at(round(point[1]), point[0] + rows.origin)


def chosen(
    rows: Trace, find: str, point: tuple[float, float] | None, window: tuple[float, float] | None
) -> Hit | None:
    """The slice at a point of the figure, if it is a hit and within the window."""
    position = slice_at(rows, point)
    if not figures.number_of_hit(rows, find, position)[0]:
        return None
    hit = _of(rows, position)
    return hit if window is None or (hit.start <= window[1] and window[0] <= hit.end) else None


def in_tasks(
    steps: ExecutedByName,
    rows: Trace,
    window: tuple[float, float] | None,
    forward: bool,
    here: Hit | None = None,
) -> Hit | None:
    """The hit after ``here`` or before it, around the end; default: the window's middle."""
    middle = -1.0 if window is None else (window[0] + window[1]) / 2
    ipu = None
    if here is not None:
        middle, ipu = (here.start + here.end) / 2, int(rows.ipu[here.row])
    next_one = steps.next(middle + rows.origin, forward, ipu)
    next_one = next_one or steps.next(-np.inf if forward else np.inf, forward)
    if next_one is None:
        return None
    ipu, start, end = next_one
    row = int(np.flatnonzero((rows.ipu == ipu) & rows.of_steps)[0])
    return Hit(row, start - rows.origin, end - rows.origin)


def in_rows(
    rows: Trace,
    find: str,
    window: tuple[float, float] | None,
    forward: bool,
    here: Hit | None = None,
) -> Hit | None:
    """The same among the slices of the rows."""
    middle = 0 if here is None else (here.start + here.end) // 2 + rows.origin
    now = -1 if here is None else rows.rows.at(here.row, middle)
    position = figures.next_hit(rows, find, window, forward, now)
    return None if position is None else _of(rows, position)


def _of(rows: Trace, position: int) -> Hit:
    row = int(np.searchsorted(rows.rows.first, position, side="right")) - 1
    start, end = (int(times[position]) for times in (rows.rows.start, rows.rows.end))
    return Hit(row, start - rows.origin, end - rows.origin)


BY = (
    ("kind", "kind"),
    ("operator", "operator"),
    ("aten", "ATen"),
    ("module", "module"),
    ("block", "Block"),
    ("stage", "stage"),
)
_MOST_ROWS = 40


def sums(view: View, id: str) -> Any:
    """A placeholder for `table`, below the choice of what to sum by."""
    return [common.choice(view, "by", "by", BY, "kind"), common.filled(id, awaited=True)]


def aggregated(report: Report, spent: Spent, by: str) -> list[tuple[str, int, int]]:
    """(name, cycles, slices) of executed steps by operator, ATen, module, Block or stage.

    Largest first; waits, copies and steps without an operator are named by their kind.
    """
    step, cycles, count = spent.step, spent.cycles, spent.count
    frame = report.program_steps().set_index("step").reindex(step)
    if by == "stage":
        stage = frame["stage"].fillna(-1).astype(int).tolist()
        names = [f"stage {one}" if one >= 0 else "no stage" for one in stage]
    else:
        column = {"operator": "name", "block": "block_name"}.get(by, by)
        labels = report.ops[column].reindex(frame["op"].fillna(-1).astype(int)).tolist()
        kinds = frame["kind"].fillna("waiting").tolist()
        names = [
            (name or "none") if isinstance(name, str) else f"no operator: {kind}"
            for name, kind in zip(labels, kinds, strict=True)
        ]
    unique, at = np.unique(np.array(names, dtype=str), return_inverse=True)
    total = np.bincount(at, weights=cycles, minlength=len(unique)).astype(np.int64)
    slices = np.bincount(at, weights=count, minlength=len(unique)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return [(str(unique[i]), int(total[i]), int(slices[i])) for i in order]


def table(
    report: Report,
    executed: tuple[int, int | None, int],
    lanes: Sequence[int],
    shown: tuple[float, float],
    selection: Selection | None,
    selected: Sequence[int] | None,
    by: Any,
    clock: Clock,
) -> Any:
    """Sums over the selection, or over all that is shown.

    ``executed``: run, device iteration (None: the whole call), its first cycle; ``lanes``: the IPUs
    shown; ``shown``: cycles from that first; ``selected``: the selected IPUs, None: all.
    """
    count = units.count(len(lanes), "lane")
    window, words = shown, f"All that is shown, {count}"
    if selection is not None:
        window = (float(selection.low), float(selection.high))
        named = [f"IPU {ipu}" for ipu in selected or ()]
        many = f"all, {count}" if selected is None else ", ".join(named[:6])
        more = f" and {len(named) - 6} more" if len(named) > 6 else ""
        words = f"The selection: {clock.both(selection.high - selection.low)} on {many}{more}"
    run, iteration, origin = executed
    between = (window[0] + origin, window[1] + origin)
    of = (run, lanes if selected is None else selected, iteration, between)
    if by in dict(BY[1:]):
        sums = aggregated(report, report.trace.spent(*of), str(by))
    else:
        sums = figures.by_activity(spent_by_kind(report, *of))
    return _table(sums, clock, words)


def _table(rows: list[tuple[str, int, int]], clock: Clock, words: str) -> Any:
    total = max(1, sum(cycles for _, cycles, _ in rows))
    body: list[tuple[str, ...]] = [
        (
            name,
            f"{cycles:,}",
            units.seconds(cycles / clock.hz),
            units.percent(cycles / total),
            f"{count:,}",
        )
        for name, cycles, count in rows[:_MOST_ROWS]
    ]
    if len(rows) > _MOST_ROWS:
        body.append((f"and {len(rows) - _MOST_ROWS:,} more",))
    return tables.small(body, (words, "cycles", "time", "share", "slices"))
