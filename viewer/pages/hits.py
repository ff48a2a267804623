"""Search by name in the execution trace: how many hits, which one is shown, and the next.

Rows with all steps are searched directly; where rows have tasks because there are too many steps,
`ipuscope.profiler.analysis.named_steps` finds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipuscope.profiler import Report
from ipuscope.profiler.analysis.named_steps import ExecutedByName, NamedSteps
from ipuscope.viewer.figures import trace as figures
from ipuscope.viewer.figures.trace import Trace
from ipuscope.viewer.profiles import Profiles

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


def executed(
    profiles: Profiles, report: Report, run: int, iteration: int | None, rows: Trace, find: str
) -> ExecutedByName:
    """The executions of steps of that name on the IPUs of the rows."""
    words = find.strip().lower()
    steps = profiles.made(report, ("named", words), lambda: NamedSteps.of(report, words))
    ipus = np.unique(rows.ipu[rows.of_steps]).tolist()
    return steps.executed(report, run, ipus, iteration)


def chosen(
    rows: Trace, find: str, point: tuple[float, float] | None, window: tuple[float, float] | None
) -> Hit | None:
    """The slice at a point of the figure, if it is a hit and within the window."""
    position = -1 if point is None else rows.rows.at(round(point[1]), point[0] + rows.origin)
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
