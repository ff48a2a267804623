"""Shared by Timeline and Memory: time window, marks, selection and lanes.

All are in the address, in cycles from the start of what is shown, and so carry over between pages.
assets/timeline.js writes them: wheel and keys move the window, M sets marks, a drag with Shift
selects, a click asks for details.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

import numpy as np
from dash import Input, State, html

from ipuscope.profiler import Report
from ipuscope.profiler.analysis.counters import OfSteps, of_merged, of_steps
from ipuscope.profiler.analysis.critical_path import path_on_ipus
from ipuscope.profiler.analysis.movement import streaming_steps
from ipuscope.profiler.analysis.pod import shards_of
from ipuscope.profiler.timeline.executed_steps import Executed
from ipuscope.viewer.figures import lanes as lane_figures
from ipuscope.viewer.figures import pipeline as pipeline_figures
from ipuscope.viewer.figures import trace as trace_figures
from ipuscope.viewer.figures.counters import Track, tracks
from ipuscope.viewer.figures.drawing import MOST_MARKS, Drawing, Selection
from ipuscope.viewer.figures.lanes import FEW, CriticalPath, Lanes, StepRows
from ipuscope.viewer.figures.pipeline import MARGINS
from ipuscope.viewer.figures.trace import Trace
from ipuscope.viewer.figures.units import Clock, percent
from ipuscope.viewer.pages import common, refused
from ipuscope.viewer.pages.common import View
from ipuscope.viewer.profiles import Profiles

MOST_PINS = 16
_LONGEST = 200  # characters of the names of lanes
MOST_IN_WINDOW = 200_000  # ... of a window, if there are more in all
_EACH = 100_000  # steps: beyond so many, those narrower than a pixel are merged
_COLUMNS = 2048  # pixels: few figures are wider
LANES = ("lanes", "opened", "pins", "tracks")
Window = tuple[float, float] | None  # cycles from the start of what is shown; None: all
Ipus = Sequence[int] | np.ndarray


def hidden(view: View) -> list[Any]:
    """Inputs without a visible control, which hold state."""
    names = ("from", "to", "marks", "select", "at")
    lanes = view.report.target.num_ipus * (2 if shards_of(view.report) > 1 else 1)

    def no_lane(value: str) -> str:
        bad = [one for one in value.split(",") if common.whole(one, -1, 0, lanes - 1) < 0]
        there, then = refused.numbers(0, lanes - 1), "None is opened; click a lane's name."
        return refused.refused("lane", bad[0], there, then) if bad else ""

    return [
        *(common.hidden(view, name) for name in names),
        common.hidden(view, "opened", check=no_lane),
    ]


def lane_controls(view: View) -> list[Any]:
    """Controls to fold equal lanes, and to pin IPUs to their own lanes at the top."""
    count = view.report.target.num_ipus
    if count < 2:
        return [
            common.hidden(view, "lanes", "all"),
            *(common.hidden(view, name) for name in ("pins", "tracks")),
        ]
    options = (("folded", "folded"), ("all", "each"))
    return [
        common.switch(view, "lanes", "like lanes", options, fold_default(view.report)),
        common.several(
            view, "pins", "pinned", [(str(ipu), f"IPU {ipu}") for ipu in range(count)], "no IPU"
        ),
        common.search(view, "tracks", "lanes with", "IPU 3"),
    ]


def fold_default(report: Report) -> str:
    """Whether equal lanes are folded by default: yes if there are many."""
    return "folded" if report.target.num_ipus > FEW else "all"


def inputs(page: str, *names: str) -> list[Input]:
    """Callback inputs of window, marks and selection, after other parameters of the page."""
    return common.param_input(page, *names, "from", "to", "marks", "select")


def states(page: str, *names: str) -> list[State]:
    """The same as `inputs`, as states of a callback with another trigger."""
    return common.param_state(page, *names, "from", "to", "marks", "select")


def width(where: Any) -> int:
    """Pixels of a figure as wide as the page, from the browser's window width."""
    return common.whole((where or {}).get("width"), pipeline_figures.PIXELS + MARGINS, 320, 8000)


def pixels(where: Any) -> int:
    """Pixel columns of such a figure's lanes."""
    return max(180, width(where) - MARGINS)


def numbers(value: Any, most: int) -> list[int]:
    """Distinct whole numbers of a comma-separated text or a list; the rest is ignored."""
    parts = value if isinstance(value, list) else str(value or "").split(",")
    parsed = (common.whole(part, -1) for part in parts[: 4 * most])
    return list(dict.fromkeys(number for number in parsed if number >= 0))[:most]


def marks_of(value: Any, end: int) -> list[int]:
    """The marked times in order: cycles from the start of what is shown."""
    return sorted(time for time in numbers(value, MOST_MARKS) if time <= end)


def selection_of(value: Any, end: int) -> Selection | None:
    """The selection: ``low,high,first row,last row``; all rows without the last two."""
    parts = [common.whole(part, -1) for part in str(value or "").split(",")[:4]]
    if len(parts) < 2 or not 0 <= parts[0] < parts[1]:
        return None
    rows = (parts[2], parts[3]) if len(parts) == 4 and 0 <= parts[2] <= parts[3] else None
    low, high = min(parts[0], end), min(parts[1], end)
    return Selection(low, high, rows) if high > low else None


def run_of(report: Report, run: Any) -> int:
    """The run given by a parameter."""
    return common.whole(run, 0, 0, max(0, len(report.runs) - 1))


def iteration_of(report: Report, run: int, iteration: Any) -> int:
    """The device iteration of a run given by a parameter."""
    return common.whole(iteration, 0, 0, max(0, int(report.runs["iterations"].iloc[run]) - 1))


def refusals(
    low: Any, high: Any, marks: Any, select: Any, end: int, lanes: int, at: Any = None
) -> list[Any]:
    """Messages about a window, marks and a selection outside of what is shown.

    ``end``: its cycles; ``lanes``: its rows; ``at``: a point, if the details do not refuse it.
    """
    notes = [common.no_window(low, high, end, "cycles")]
    asked = [one for one in str(marks or "").split(",") if one]
    valid = [one for one in asked if common.whole(one, -1, 0, end) >= 0]
    if valid != asked:
        bad = next(one for one in asked if one not in valid)
        there = refused.numbers(0, end, "cycles")
        notes.append(refused.refused("mark at", bad, there, "It is left out; M sets one."))
    elif len(set(valid)) > MOST_MARKS:
        there = f"there are {MOST_MARKS} at most"
        notes.append(refused.refused("mark after the first", MOST_MARKS, there, ""))
    if str(select or ""):
        notes.append(_no_selection(str(select), end, lanes))
    point = point_of(at)
    if at and (point is None or not 0 <= point[0] <= end):
        notes.append(_no_point(at, end, lanes, "Click anything for details."))
    return [common.message(words, "warning") for words in notes if words]


def _no_point(at: Any, end: int, lanes: int, then: str) -> str:
    there = f"there are cycles 0 to {end:,} of lanes 0 to {lanes - 1}"
    point = point_of(at)
    if point is None:
        return refused.refused("point", at, there, then)
    where = (round(point[0]), round(point[1]))
    return refused.refused("slice at cycle {} of lane {}", where, there, then)


def _no_selection(asked: str, end: int, lanes: int) -> str:
    selection = selection_of(asked, end)
    rows = None if selection is None else selection.rows
    if selection is not None and (rows is None or rows[1] < lanes):
        as_it_is = [selection.low, selection.high, *(rows or ())]
        if [common.whole(one, -1) for one in asked.split(",")] == as_it_is:
            return ""
    there = f"two cycles of 0 to {end:,} make one, and two of the lanes 0 to {lanes - 1}"
    drawn = "This is what there is of it" if selection is not None else "Nothing is selected"
    return refused.refused("selection", asked, there, f"{drawn}; drag with Shift to select.")


def no_iteration(report: Report, run: int, iteration: Any) -> list[Any]:
    """A message if the chosen call lacks this device iteration."""
    most = max(0, int(report.runs["iterations"].iloc[run]) - 1)
    if str(iteration or "") == "" or common.whole(iteration, -1, 0, most) >= 0:
        return []
    there, then = refused.numbers(0, most), "This is 0."
    words = refused.refused("device iteration {} in this call", iteration, there, then)
    return [common.message(words, "warning")]


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How lanes are arranged: folded or not, which are open, pinned, and ``named``."""

    fold: bool = False
    opened: tuple[int, ...] = ()
    pinned: tuple[int, ...] = ()
    named: str = ""

    @classmethod
    def of(cls, lanes: Any, opened: Any, pins: Any, tracks: Any = "") -> Arrangement:
        """The arrangement that an address describes."""
        fold = lanes == "folded"
        return cls(
            fold,
            tuple(numbers(opened, MOST_PINS)),
            tuple(numbers(pins, MOST_PINS)),
            str(tracks or "").strip()[:_LONGEST],
        )


@dataclass(frozen=True, slots=True)
class Part:
    """The drawn steps of a span of time, on the clock of `Report.tasks`.

    ``finest``: shorter steps, in cycles, are merged with their neighbours; 0: none are.
    """

    low: float = -np.inf
    high: float = np.inf
    finest: int = 0

    @property
    def span(self) -> tuple[float, float]:
        """The first and the last cycle."""
        return self.low, self.high


@dataclass(frozen=True)
class Span:
    """A device iteration of a call, or the whole call (``iteration`` None), as figures draw it."""

    profiles: Profiles
    report: Report
    run: int = 0
    iteration: int | None = 0
    arrangement: Arrangement = Arrangement()

    def lanes(self) -> Lanes:
        """The lanes of the device iteration, without the steps; of a call, of its first."""
        report, run, iteration, how = self.report, self.run, self.iteration or 0, self.arrangement

        def make() -> Lanes:
            return lane_figures.lanes(
                report.tasks(run, iteration=iteration),
                Executed.nothing(),
                report.pipeline_cycles(run, iteration),
                report.stages,
                how.fold,
                how.opened,
                how.pinned,
                self.path(),
                shards_of(report),
                how.named,
            )

        return self.profiles.made(report, ("lanes", run, iteration, how), make)

    def with_steps(self, lanes: Lanes, window: Window = None) -> Lanes:
        """Lanes with their steps, if there is room for them.

        ``window``: cycles from their start; if all steps are too many, only its steps.
        """
        part = self.part(lanes.ipus, window)
        return lanes if part is None else lanes.with_steps(self._executed(lanes.ipus, part))

    def _executed(self, ipus: Ipus, part: Part) -> StepRows:
        """`Report.trace.executed`, once for lanes and rows of the same IPUs."""
        key = ("executed", self.run, self.iteration, tuple(int(ipu) for ipu in ipus), part)

        def make() -> StepRows:
            of = (self.run, ipus, self.iteration, part.span, part.finest)
            return StepRows.of(self.report.trace.executed(*of), ipus)

        return self.profiles.made(self.report, key, make)

    def part(
        self, ipus: Ipus, window: Window, each: bool = False, moment: float | None = None
    ) -> Part | None:
        """The steps of these IPUs that are drawn.

        All if they are not too many; merged if there is no ``window`` and no pixel for each: a
        first look. Zooms and moves share what the first of them made. Otherwise those of the window
        (cycles from the start of what is shown), with a margin for dragging; None if these are too
        many, too: tasks are drawn instead. ``each``: merge none; ``moment``: nor those of the tasks
        that run at that cycle, which then suffice.
        """
        report, run, iteration = self.report, self.run, self.iteration
        if lane_figures.drawable(report, run, iteration, ipus):
            few = lane_figures.steps_of(report, run, iteration, ipus) <= _EACH
            if each or few or window is not None:
                return Part()
            origin, end = report.trace.extent(run, ipus, iteration)
            if moment is None:
                return Part(finest=1 << int(np.log2(max(1, (end - origin) // _COLUMNS))))
            return Part(origin + moment - 1, origin + moment + 1)
        if len(ipus) > FEW or window is None:
            return None
        origin, _ = report.trace.extent(run, ipus, iteration)
        margin = (window[1] - window[0]) / 2
        part = (window[0] - margin + origin, window[1] + margin + origin)
        few = report.trace.executed_count(run, ipus, iteration, part) <= MOST_IN_WINDOW
        return Part(*part) if few else None

    def as_tasks(self, ipus: Ipus, window: Window = None) -> list[Any]:
        """A message if rows have tasks because their steps are too many."""
        if self.part(ipus, window) is not None:
            return []
        count = lane_figures.steps_of(self.report, self.run, self.iteration, ipus)
        words = (
            f"{count:,} steps are more than can be drawn at once: rows have tasks, each a stage's"
            " forward or backward. Zoom in for the steps."
        )
        return [common.message(words)]

    def rows(
        self,
        ipu: int | None,
        form: str,
        window: Window = None,
        each: bool = False,
        moment: float | None = None,
    ) -> Trace:
        """The trace ready to be drawn, of one IPU or of all lanes, at most `FEW`.

        Rows have tasks if there are more steps than are drawn at once; with a ``window`` (cycles
        from the start of what is shown) they have its steps if these are at most `MOST_IN_WINDOW`.
        ``each`` and ``moment`` as for `part`. ``form``: "flat", or "flame" for a flame graph by
        module path.
        """
        report, run, iteration = self.report, self.run, self.iteration

        def lanes() -> list[tuple[int, str]]:
            return self._named() if ipu is None else [(ipu, f"IPU {ipu}")]

        def flames() -> Trace:
            names, streaming, shown = report.ops["name"], streaming_steps(report), lanes()
            drawn = []
            for one, name in shown:
                steps, tasks = (of(run, one, iteration) for of in (report.steps, report.tasks))
                flame = trace_figures.flame(steps, tasks, names, streaming)
                drawn.append((name if len(shown) > 1 else "task", flame))
            return trace_figures.stacked(drawn)

        key = ("trace", run, iteration, ipu, form, self.arrangement)
        if form == "flame":
            return self.profiles.made(report, key, flames)
        shown = lanes()
        ipus = list(dict.fromkeys(one for one, _ in shown))
        part = self.part(ipus, window, each, moment)

        def flat() -> Trace:
            steps = (
                StepRows.of(report.trace.executed_tasks(run, ipus, iteration), ipus)
                if part is None
                else self._executed(ipus, part)
            )
            whole = report.trace.extent(run, ipus, iteration)
            return trace_figures.flat(steps, shown, whole, report.trace.ipus_with_io(run))

        return self.profiles.made(report, (*key, part), flat)

    def _named(self) -> list[tuple[int, str]]:
        """The IPUs with a row, and its name; of many, the longest on the critical path."""
        lanes = self.lanes()
        length = lanes.path.end - lanes.path.start
        weight = np.bincount(lanes.lane[lanes.path.ipu], weights=length, minlength=len(lanes.shown))
        pinned = np.array([one.pinned for one in lanes.arranged])
        best = np.lexsort((-weight, ~pinned))[:FEW]
        chosen = [(lanes.arranged[at], lanes.names[at]) for at in np.sort(best).tolist()]
        return [(one.shown, one.mark + name) for one, name in chosen]

    def left_out(self) -> list[Any]:
        """A message if there are more lanes than `rows` has rows."""
        count = len(self.lanes().shown)
        if count <= FEW:
            return []
        words = (
            f"{FEW} of {count} lanes: the pinned ones, and those that the update waits for longest."
            " To see another, pin it, choose its IPU, or fold some."
        )
        return [common.message(words)]

    def path(self) -> CriticalPath:
        """The critical path over the IPUs in the device iteration; of a call, in the first."""
        run, iteration = self.run, self.iteration or 0
        return self.profiles.made(
            self.report,
            ("path", run, iteration),
            lambda: CriticalPath(*path_on_ipus(self.report, run, iteration)),
        )

    def path_on_rows(self, rows: Trace) -> CriticalPath | None:
        """The critical path on the rows that are shown; None for a whole call."""
        if self.iteration is None:
            return None
        path = self.path()
        row = self._row_of_ipus(rows)[path.ipu]
        there = row >= 0
        return CriticalPath(row[there], path.start[there], path.end[there])

    def _row_of_ipus(self, rows: Trace) -> np.ndarray:
        """The first row of each IPU, or of the IPU drawn in its place; -1 if it has none."""
        row = np.full(self.report.target.num_ipus, -1)
        ipus, first = np.unique(rows.ipu, return_index=True)
        row[ipus[ipus >= 0]] = first[ipus >= 0]
        if len(ipus) > 1:
            lanes = self.lanes()
            row = np.where(lanes.lane >= 0, row[lanes.shown[lanes.lane]], -1)
        return row

    def meanwhile(self, begin: int, end: int) -> list[tuple[str, Any]]:
        """The IPU that is longest on the critical path between two cycles; a link to its steps.

        Cycles are from the start of the device iteration; empty for a whole call.
        """
        if self.iteration is None:
            return []
        path = self.path()
        took = (np.minimum(path.end, end) - np.maximum(path.start, begin)).clip(0)
        if not took.any():
            return []
        by_ipu = np.bincount(path.ipu, weights=took)
        ipu = int(by_ipu.argmax())
        there = {"ipu": ipu % self.report.target.ipus_per_replica, "from": begin, "to": end}
        words = f"IPU {ipu}, for {percent(by_ipu[ipu] / (end - begin))} of it: "
        return [("critical path", [words, common.link("its steps", "timeline", **there)])]

    def tracks(self, rows: Trace, key: Hashable) -> list[Track]:
        """The counters of the rows; ``key`` distinguishes them from others of the report."""
        return self.profiles.made(
            self.report, ("tracks", key), lambda: tracks(rows, self.counters(rows))
        )

    def counters(self, rows: Trace) -> dict[int, OfSteps]:
        """The counters of the rows' IPUs, by IPU; replicas equal the first."""
        report = self.report
        ipus = np.unique(rows.ipu[rows.of_steps]).tolist()
        in_replica = [ipu % report.target.ipus_per_replica for ipu in ipus]
        each = [
            self.profiles.made(report, ("counters", of), partial(of_steps, report, of))
            for of in in_replica
        ]
        if rows.finest and ipus:
            several = dict(zip(in_replica, each, strict=True)).values()
            each = [of_merged(report, [*several], rows.finest)] * len(ipus)
        return dict(zip(ipus, each, strict=True))


def link_to_wait(row: Any, total: int) -> str:
    """The address in the execution trace where a wait is longest on the path.

    ``row``: from `ipuscope.profiler.analysis.waits`'s longest; ``total``: cycles of the path.
    """
    query: dict[str, int | str] = {"step": int(row.step)}
    if row.end >= 0:
        margin = max(1, (row.end - row.begin) // 4)
        query["from"] = max(0, row.begin - margin)
        query["to"] = min(total, row.end + margin)
    return "/timeline?" + urlencode(query)


def keep_zoom(
    figure: Drawing,
    page: str,
    clock: Clock,
    window: tuple[float, float] | None,
    key: Any,
    end: int,
    lanes: Sequence[lane_figures.Lane] = (),
    rows: int = 0,
) -> None:
    """Let the address set the zoom, and keep legend switches as they are.

    The browser learns how to request another part, the total length (``end``, cycles), what a click
    on a lane's name opens, closes or pins, and how many ``rows`` can be selected.
    """
    opens = [[one.shown, one.group] for one in lanes]
    common.zoomable(figure, page, clock.scale, end=end)
    figure.update_layout(
        meta={"timeline": True, "lanes": opens, "rows": rows},
        uirevision="same",
        xaxis={"uirevision": f"{window}{key}{clock.unit}"},
        legend={"uirevision": "same"},
    )


def lanes_in(lanes: Lanes, rows: tuple[int, int] | None) -> list[int] | None:
    """The IPUs that are drawn in a range of lanes; None for all of them."""
    if rows is None:
        return None
    return lanes.shown[rows[0] : rows[1] + 1].tolist()


def ipus_in(rows: Trace, selected: tuple[int, int] | None) -> list[int] | None:
    """The IPUs of a range of a trace's rows; None for all of them."""
    if selected is None:
        return None
    return np.unique(rows.ipu[selected[0] : selected[1] + 1]).tolist()


def point_of(value: Any) -> tuple[float, float] | None:
    """The cycle of a click, from the start of what is shown, and its row (fractional)."""
    try:
        cycle, row = (float(part) for part in str(value or "").split(","))
    except ValueError:
        return None
    return (cycle, row) if abs(cycle) < 1 << 53 and abs(row) < 1 << 20 else None


def nothing_at(asked: Any, end: int, lanes: int, what: str) -> Any:
    """Details if no point is asked for, or nothing is at it: a hint to click ``what``."""
    click = f"Click {what}."
    if asked in (None, ""):
        return common.message(click)
    return common.message(_no_point(asked, end, lanes, click), "warning")


def pin_button(begin: int, end: int) -> Any:
    """A button that pins a slice: marks at both ends, in the address on every timeline page.

    Pressing it again removes them. Cycles are from the start of what is shown.
    """
    attributes: Any = {"data-pin": f"{begin},{end}"}
    return html.Button(
        "Pin it", className="quiet", title="Mark both of its ends, or unmark them", **attributes
    )


def measured(marks: Sequence[int], selection: Selection | None, clock: Clock) -> Any:
    """The distance between the marks, and the length of the selection."""
    parts: list[Any] = []
    if marks:
        names = [chr(ord("A") + at) for at in range(len(marks))]
        between = [
            f"{one} → {other}: {clock.both(after - before)}"
            for one, other, before, after in zip(names, names[1:], marks, marks[1:], strict=False)
        ]
        at = [f"{name} at {clock.both(mark)}" for name, mark in zip(names, marks, strict=True)]
        parts += [html.Span(words) for words in (between or at)]
        parts.append(html.Button("Clear marks", className="quiet", **{"data-clear": "marks"}))  # type: ignore[arg-type]
    if selection is not None:
        parts.append(html.B(f"Selected: {clock.both(selection.high - selection.low)}"))
        parts.append(html.Button("Clear selection", className="quiet", **{"data-clear": "select"}))  # type: ignore[arg-type]
    return html.Div(parts, className="measured", role="status") if parts else None
