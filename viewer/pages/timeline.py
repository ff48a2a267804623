"""Timeline: tasks, steps and modules over time, as levels of one zoom.

Wide windows show a lane of tasks per IPU, from ramp-up to ramp-down; narrow ones every step.
Modules of steps are lanes above them on request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import Dash, Input, Output, ctx, dcc, html, no_update

from ipuscope.profiler import Report
from ipuscope.profiler.analysis import link_slices, shards_of
from ipuscope.profiler.analysis.host_clock import host_lanes
from ipuscope.profiler.analysis.named_steps import ExecutedByName
from ipuscope.profiler.file import records
from ipuscope.viewer.figures import counters as counter_figures
from ipuscope.viewer.figures import pipeline as pipeline_figures
from ipuscope.viewer.figures import trace as figures
from ipuscope.viewer.figures.drawing import Drawing, marked, nothing
from ipuscope.viewer.figures.lanes import FEW, Lane, Lanes, has_name
from ipuscope.viewer.figures.theme import WAITING, Theme
from ipuscope.viewer.figures.trace import Trace
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import causes, common, hits, refused, timespan
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.pages.details import step_details, step_row, task_details
from ipuscope.viewer.pages.timespan import Arrangement, Span, Window
from ipuscope.viewer.profiles import Profiles

NAME = "timeline"
_NO_STEP = ("program step", "Click a step in the timeline.")
LEVELS = (("auto", "by zoom"), ("tasks", "tasks"), ("steps", "steps"), ("modules", "modules"))
_TASKS = 8  # of a lane on average: a window with more shows tasks


def layout(view: View) -> Any:
    """The page; its callbacks draw it."""
    report = view.report
    if not len(report.runs):
        words = "This profile has no schedule: " + (
            "its runs have no steps." if report.imported else "it ends before the compile did."
        )
        return [common.controls(view), common.card("Timeline", common.message(words))]
    ipus = [
        ("all", "all"),
        *((str(ipu), str(ipu)) for ipu in range(report.target.ipus_per_replica)),
    ]
    calls = (("iteration", "one iteration"), ("call", "the whole call"))
    batches = int(report.tasks(0, iteration=0)["micro_batch"].max()) + 1
    which = [("none", "none"), *((str(i), str(i)) for i in range(batches))]
    find = refused.no_row(report, records.Step, *_NO_STEP)
    figure = common.figure_card(
        "Timeline",
        "timeline-rows",
        controls=[common.graph("timeline-overview", height=84)],
        note=(
            "Above: time not waiting. Wheel: zoom, to steps. Drag: move; with Shift: select. Click:"
            " details. Red: the critical path."
        ),
        height=460,
        below=[html.Div(id="timeline-measured")],
    )
    folded, pinned, tracks = timespan.lane_controls(view)
    counters = common.figure_card(
        "Counters",
        "timeline-counters",
        note="Sums over the IPUs above. A folded lane counts as the one that is drawn.",
        height=counter_figures.HEIGHT,
    )
    of_links = "The share of each link's rate in use; beside its name, over a whole update."
    links = common.figure_card("Links between IPUs", "timeline-links", note=of_links, height=150)
    alone = report.target.num_ipus * shards_of(report) == 1
    return [
        common.controls(
            view,
            common.search(view, "find", "find by name"),
            common.switch(view, "level", "show", LEVELS, "auto"),
            folded,
            tracks,
            common.unit_switch(view),
            common.more(
                common.choice(view, "ipu", "IPU alone", ipus, "all"),
                pinned,
                common.choice(view, "follow", "follow a micro-batch", which, "none"),
                *common.run_choices(view),
                common.switch(view, "span", "of", calls, "iteration")
                if int(report.runs["iterations"].max()) > 1
                else common.only(view, "span", "iteration"),
            ),
            common.hidden(view, "step", check=find),
            *timespan.hidden(view),
            dcc.Store(id="timeline-marked"),
            dcc.Store(id="timeline-drawn"),  # then the rest of the page follows
        ),
        html.Div(id="timeline-said"),
        html.Div(
            [
                html.Aside(causes.card(view, "timeline-causes"), className="causes"),
                html.Div([_hits(), figure, counters, *([] if alone else [links]), *_host(view)]),
            ],
            className="workspace",
        ),
        common.drawer(
            ("Chosen", common.filled("timeline-step")),
            ("In sum", hits.sums(view, "timeline-kinds")),
        ),
    ]


def _hits() -> Any:
    return html.Div(
        [
            html.Button("← previous", id="timeline-previous", className="quiet"),
            html.Button("next →", id="timeline-next", className="quiet"),
            common.filled("timeline-found"),
            html.Span(id="timeline-hit", role="status"),
        ],
        className="hits",
    )


def _host(view: View) -> list[Any]:
    """The host's tracepoints beside the calls that they ran, if any."""
    if not len(view.report.host_events):
        return []
    lanes, ipus = host_lanes(view.report), view.report.target.ipus_per_replica
    return [
        common.figure_card(
            "Host and IPUs",
            "timeline-host",
            counter_figures.host_timeline(lanes, ipus, view.theme),
            note="Calls take as long as the modelled IPUs do; between them is the host's own time.",
        )
    ]


_WHAT = ("profile", "run", "iteration", "span", "ipu", "level", *timespan.LANES, "unit")


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    common.zooms(app, NAME, "timeline-rows")
    part = [Input("timeline-overview", one) for one in ("selectedData", "figure")]
    common.sets(app, NAME, "overviewPart", ["from", "to"], *part, too=True)
    app.clientside_callback(
        common.script("markOverview"),
        Output("timeline-marked", "data"),
        Input("timeline-drawn", "data"),
        Input("timeline-overview", "figure"),
    )
    causes.register(app, profiles, NAME, "timeline-causes")
    _figures(app, profiles)
    _counters(app, profiles)
    _sums(app, profiles)
    _details(app, profiles)


def _figures(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the figures over time."""

    @app.callback(
        Output("timeline-rows", "figure"),
        Output("timeline-found", "children"),
        Output("timeline-said", "children"),
        Output("timeline-measured", "children"),
        Output("timeline-drawn", "data"),
        *timespan.inputs(NAME, *_WHAT, "find", "follow"),
        common.theme_state(),
    )
    def draw(*values: Any) -> Any:
        *what, find, follow, low, high, asked_marks, chosen, where = values
        words, theme = str(find or ""), common.theme_of(where)
        # search hits are reported for each step
        it = what_is_asked(profiles, *what, window=(low, high), each=bool(words.strip()))
        window = common.window(low, high, it.rows.end)
        pixels, named = timespan.pixels(where), it.named(words)
        tasks = it.tasks(bool(words.strip()))
        if tasks is not None:
            batch = common.whole(follow, -1)
            figure = pipeline_figures.drawing(
                it.span.with_steps(tasks, window),
                it.clock,
                theme,
                window,
                pixels,
                batch if batch >= 0 else None,
            )
        else:
            path, have = it.span.path_on_rows(it.rows), named.names if named is not None else ()
            of = (it.rows, it.clock, theme, window, pixels, words, path, have)
            figure = figures.drawing(*of, it.left(where))
        marks = timespan.marks_of(asked_marks, it.rows.end)
        selected = timespan.selection_of(chosen, it.rows.end)
        marked(figure, marks, selected, it.clock, theme)
        lanes = it.lanes() if tasks is None else tasks.arranged
        end, count = it.rows.end, len(it.rows.names if tasks is None else tasks.shown)
        key = (it.key, tasks is None)
        timespan.keep_zoom(figure, NAME, it.clock, window, key, end, lanes, count)
        notes = [
            *timespan.no_iteration(it.report, it.span.run, values[2]),
            *timespan.refusals(low, high, asked_marks, chosen, end, count),
            *(it.as_tasks() + it.left_out() if tasks is None else []),
            *it.unnamed(),
        ]
        measured = timespan.measured(marks, selected, it.clock)
        result = _search_result(it.rows, words, it.clock, named)
        return figure, result, notes, measured, list(window or ())

    @app.callback(
        Output("timeline-overview", "figure"),
        *common.param_input(NAME, *_WHAT),
        common.theme_state(),
    )
    def overview(*values: Any) -> Any:
        *what, where = values
        it = what_is_asked(profiles, *what)
        drawn = (it.rows, it.clock, common.theme_of(where), timespan.pixels(where))
        over = figures.overview(*drawn, it.left(where))
        return over.update_layout(meta={"scale": it.clock.scale, "end": it.rows.end})


def _counters(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the counters and links below the lanes."""

    def below(id: str, draw: Callable[..., Drawing | None], none: str) -> None:
        """A figure of the same time; ``draw`` gets what is asked, where and for which window."""

        @app.callback(
            Output(id, "figure"),
            Input("timeline-drawn", "data"),
            *timespan.states(NAME, *_WHAT),
            common.theme_state(),
            prevent_initial_call=True,
        )
        def drawn(_drawn: Any, *values: Any) -> Any:
            *what, low, high, marks, _, where = values
            it = what_is_asked(profiles, *what, window=(low, high))
            window, theme = common.window(low, high, it.rows.end), common.theme_of(where)
            left = max(figures.left_margin(it.rows), it.left(where))
            figure = draw(it, window, theme, left)
            if figure is None:
                return nothing(none, theme)
            marked(figure, timespan.marks_of(marks, it.rows.end), None, it.clock, theme)
            timespan.keep_zoom(figure, NAME, it.clock, window, it.key, it.rows.end)
            return figure

    def counters(it: Asked, window: Any, theme: Theme, left: int) -> Drawing | None:
        if it.as_tasks():
            return None
        tracks = it.span.tracks(it.rows, it.drawn)
        whole = (it.rows.end, it.rows.origin, it.report.target.tiles_per_ipu)
        return counter_figures.drawn(tracks, *whole, it.clock, theme, window, left)

    def links(it: Asked, window: Any, theme: Theme, left: int) -> Drawing | None:
        key = ("link slices", it.span.run, it.span.iteration)
        slices = profiles.made(it.report, key, lambda: link_slices(it.report, *key[1:]))
        if slices.empty:
            return None
        whole = 0.0, float(max(1, it.rows.end))
        drawn = (window or whole, it.rows.origin, it.clock, theme, left)
        return counter_figures.links(it.report, slices, *drawn)

    below("timeline-counters", counters, "These are counted by step: zoom in to see them.")
    below("timeline-links", links, "Nothing goes over links.")


def _sums(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the sums over the window and of the next search hit."""

    @app.callback(
        Output("timeline-kinds", "children"),
        Input("timeline-drawn", "data"),
        *common.param_input(NAME, "by"),
        *timespan.states(NAME, *_WHAT, "find"),
        prevent_initial_call=True,
    )
    def in_sum(_drawn: Any, by: Any, *values: Any) -> Any:
        *what, find, low, high, _, chosen = values
        it = what_is_asked(profiles, *what, window=(low, high))
        tasks = it.tasks(bool(str(find or "").strip()))
        rows = it.rows
        window = common.window(low, high, rows.end) or (0.0, float(rows.end))
        selected = timespan.selection_of(chosen, rows.end)
        part = selected.rows if selected else None
        lanes = timespan.ipus_in(rows, part) if tasks is None else timespan.lanes_in(tasks, part)
        shown = rows.ipu[rows.of_steps].tolist() if tasks is None else tasks.ipus
        executed = (it.span.run, it.span.iteration, rows.origin)
        return hits.table(it.report, executed, shown, window, selected, lanes, by, it.clock)

    @app.callback(
        Output(common.param_id(NAME, "from"), "value", allow_duplicate=True),
        Output(common.param_id(NAME, "to"), "value", allow_duplicate=True),
        Output(common.param_id(NAME, "at"), "value", allow_duplicate=True),
        Input("timeline-previous", "n_clicks"),
        Input("timeline-next", "n_clicks"),
        *common.param_state(NAME, *_WHAT, "find", "from", "to", "at"),
        prevent_initial_call=True,
    )
    def step_through(previous: Any, following: Any, *values: Any) -> Any:
        *what, find, low, high, at = values
        nothing = no_update, no_update, no_update
        if not (previous or following):
            return nothing
        it, words = what_is_asked(profiles, *what, each=True), str(find or "")
        forward = ctx.triggered_id == "timeline-next"
        window = common.window(low, high, it.rows.end)
        named = it.named(words)
        near = it if named is None else what_is_asked(profiles, *what, window=(low, high))
        here = hits.chosen(near.rows, words, timespan.point_of(at), window)
        hit = (
            hits.in_rows(it.rows, words, window, forward, here)
            if named is None
            else hits.in_tasks(named, it.rows, window, forward, here)
        )
        if hit is None:
            return nothing
        wide = named is not None and near.as_tasks()
        return *map(str, hit.around(None if wide else window, it.rows.end)), hit.at

    @app.callback(
        Output("timeline-hit", "children"),
        *common.param_input(NAME, "at", "find"),
        *common.param_state(NAME, *_WHAT, "from", "to"),
    )
    def which_hit(at: Any, find: Any, *values: Any) -> Any:
        """Which of the hits the chosen slice is."""
        *what, low, high = values
        words = str(find or "").strip()
        if not words or not at:
            return ""
        it = what_is_asked(profiles, *what, window=(low, high), each=True)
        position = hits.slice_at(it.rows, timespan.point_of(at))
        number, count = figures.number_of_hit(it.rows, words, position)
        named = what_is_asked(profiles, *what).named(words) if number else None
        if named is not None:
            middle = (it.rows.rows.start[position] + it.rows.rows.end[position]) / 2
            row = int(np.searchsorted(it.rows.rows.first, position, side="right")) - 1
            number, count = named.before(middle, int(it.rows.ipu[row])) + 1, len(named)
        return f"{number:,} of {count:,}" if number else ""


def _details(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the clicked slice's details."""

    @app.callback(
        Output(common.param_id(NAME, "step"), "value"),
        Input(common.param_id(NAME, "at"), "value"),
        *common.param_state(NAME, *_WHAT, "find", "from", "to"),
        prevent_initial_call=True,
    )
    def clicked(at: Any, *values: Any) -> Any:
        """The step that was clicked; empty for a task, a module or a wait."""
        if at in (None, ""):
            return no_update
        *what, find, low, high = values
        point = timespan.point_of(at)
        it = what_is_asked(profiles, *what, window=(low, high), point=point)
        if it.tasks(bool(str(find or "").strip())) is not None:
            return ""
        rows = it.rows
        position = hits.slice_at(rows, point)
        return "" if position < 0 else _step_of(rows, position)

    @app.callback(
        Output("timeline-step", "children"),
        *common.param_input(NAME, "step", "at", *_WHAT),
        *common.param_state(NAME, "find", "from", "to"),
        common.theme_state(),
    )
    def chosen(step: Any, at: Any, *values: Any) -> Any:
        *what, find, low, high, where = values
        point = timespan.point_of(at)
        it = what_is_asked(profiles, *what, window=(low, high), point=point)
        tasks = it.tasks(bool(str(find or "").strip()))
        if tasks is not None and step in (None, ""):
            return task_details(it.report, tasks, point, it.clock, it.span.meanwhile, at)
        position = hits.slice_at(it.rows, point)
        number = common.whole(step, -1)
        here = position >= 0 and (number < 0 or _step_of(it.rows, position) == str(number))
        details: list[Any] = [_slice(it, position)] if here else []
        if here and number < 0:  # an address with a point only
            number = common.whole(_step_of(it.rows, position), -1)
        row = step_row(it.report, "step", number)
        if row is not None:
            details += step_details(it.report, row, it.clock, common.theme_of(where))
        if details:
            return details
        return timespan.nothing_at(at, it.rows.end, len(it.rows.names), "anything in the timeline")


@dataclass(frozen=True)
class Asked:
    """What an address asks for: the span of time and its rows."""

    span: Span
    rows: Trace
    clock: Clock
    ipu: int | None
    level: str
    window: Window = None

    @property
    def report(self) -> Report:
        """The report of the chosen profile."""
        return self.span.report

    @property
    def flame(self) -> bool:
        """Whether modules are lanes above the steps."""
        return self.level == "modules"

    def tasks(self, searching: bool) -> Lanes | None:
        """The lanes if tasks are shown: on request, or in a wide window without a search."""
        if self.level in ("steps", "modules") or self.span.iteration is None:
            return None
        if self.level == "auto" and (searching or self.ipu is not None):
            return None
        lanes = self.span.lanes()
        if self.level == "tasks" or len(lanes.shown) > FEW or self.window is None:
            return lanes
        low, high = (end + lanes.origin for end in self.window)
        rows = lanes.task_rows
        shown = np.count_nonzero((rows.end > low) & (rows.start < high))
        return lanes if shown > _TASKS * len(rows) else None

    def left(self, where: Any) -> int:
        """Pixels at the left of tasks' lanes, shared with the figures below and above."""
        never = self.level == "steps" or self.flame or self.ipu is not None
        if never or self.span.iteration is None:
            return 0
        return pipeline_figures.left_margin(self.span.lanes(), timespan.width(where))

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that tells these rows from others of the profile."""
        span = self.span
        return span.run, span.iteration, self.ipu, self.flame, span.arrangement

    @property
    def drawn(self) -> tuple[Any, ...]:
        """The same, and which part of time has steps."""
        return *self.key, self.span.part(self.ipus, self.window)

    @property
    def ipus(self) -> list[int]:
        """The IPUs that have rows."""
        return np.unique(self.rows.ipu).tolist()

    def as_tasks(self) -> list[Any]:
        """A message where rows have tasks instead of steps."""
        return self.span.as_tasks(self.ipus, self.window)

    def left_out(self) -> list[Any]:
        """A message where not all lanes have a row."""
        return self.span.left_out() if self.ipu is None else []

    def unnamed(self) -> list[Any]:
        """A message where no lane has the name that is asked for, so that all are shown."""
        words = self.span.arrangement.named
        if not words or self.ipu is not None:
            return []
        if any(has_name(one, self.report.stages, words) for one in self.span.lanes().arranged):
            return []
        there, then = "they have IPUs, stages and Blocks in their names", "All are shown."
        return [common.message(refused.refused("lane with", words, there, then), "warning")]

    def named(self, words: str) -> ExecutedByName | None:
        """Executed steps of that name, if the rows over all time show tasks instead."""
        if not words.strip() or self.flame or self.span.part(self.ipus, None) is not None:
            return None
        return hits.executed(self.span, self.rows, words)

    def lanes(self) -> tuple[Lane, ...]:
        """The lanes of the rows, for a click on a name; none in a flame graph."""
        if self.ipu is not None or self.flame:
            return ()
        by_name = {one.mark + one.name: one for one in self.span.lanes().arranged}
        return tuple(by_name[name] for name in self.rows.names if name in by_name)


def what_is_asked(
    profiles: Profiles,
    *values: Any,
    window: tuple[Any, Any] | None = None,
    each: bool = False,
    point: tuple[float, float] | None = None,
) -> Asked:
    """The rows that the values of the parameters `_WHAT` describe.

    ``window``: values of the parameters from and to, if its steps are wanted: ``each``, or those at
    a ``point``, unmerged.
    """
    profile, run, iteration, span, ipu, level, *lanes, unit = values
    report = profiles.get(profile)
    at = timespan.run_of(report, run)
    which = None if span == "call" else timespan.iteration_of(report, at, iteration)
    chip = common.whole(ipu, -1, 0, report.target.ipus_per_replica - 1)
    one = chip if chip >= 0 else None
    kind = "flame" if level == "modules" else "flat"
    level = level if level in dict(LEVELS) else "auto"
    arrangement = Arrangement.of(*lanes) if one is None else Arrangement()
    of = Span(profiles, report, at, which, arrangement)
    rows, shown = of.rows(one, kind, each=each and window is None), None
    if window is not None:
        shown = common.window(*window, rows.end)
        moment = None if point is None else point[0]
        if each or moment is not None or shown is not None:
            rows = of.rows(one, kind, shown, each, moment)
    clock = Clock(report.target.clock_hz, common.unit_of(unit))
    return Asked(of, rows, clock, one, level, shown)


def _step_of(rows: Trace, position: int) -> str:
    step = int(rows.step[rows.rows.source[position]])
    return str(step) if step >= 0 else ""


def _slice(it: Asked, position: int) -> Any:
    """When a slice begins and how long it lasts; for a wait, what the update waits for."""
    rows = it.rows.rows
    begin, end = int(rows.start[position]), int(rows.end[position])
    label = it.rows.labels[it.rows.label[rows.source[position]]]
    row = int(np.searchsorted(rows.first, position, side="right")) - 1
    begin, end = begin - it.rows.origin, end - it.rows.origin
    facts = common.facts(
        [
            ("here", label or "waiting"),
            ("on", f"IPU {it.rows.ipu[row]}"),
            ("from, for", f"{begin:,}, {it.clock.both(end - begin)}"),
            *(it.span.meanwhile(begin, end) if rows.code[position] == WAITING else []),
        ]
    )
    return html.Div([facts, timespan.pin_button(begin, end)])


def _search_result(rows: Trace, find: str, clock: Clock, named: ExecutedByName | None) -> Any:
    if not find.strip():
        return []
    slices, cycles = figures.matches(rows, find) if named is None else (len(named), named.cycles)
    if not slices:
        return common.message(f"No step has “{find}” in its name.", "warning")
    return common.message(
        f"“{find}”: {slices:,} slices, {clock.both(cycles)} in sum over these lanes. n and N go"
        " through them."
    )


PAGE = Page("/timeline", "Timeline", layout, register, "What each IPU does when, and why it waits")
