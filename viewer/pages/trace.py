"""Execution trace: every step of a device iteration or a whole call.

It is flat, or a flame graph by module path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import Dash, Input, Output, ctx, dcc, html, no_update

from ipuscope.profiler import Report
from ipuscope.profiler.analysis.host_clock import host_lanes
from ipuscope.profiler.analysis.named_steps import ExecutedByName
from ipuscope.profiler.file import records
from ipuscope.viewer.figures import counters as counter_figures
from ipuscope.viewer.figures import host as host_figures
from ipuscope.viewer.figures import memory as memory_figures
from ipuscope.viewer.figures import tiles as tile_figures
from ipuscope.viewer.figures import trace as figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.lanes import Lane
from ipuscope.viewer.figures.legend import with_streams
from ipuscope.viewer.figures.marks import marked
from ipuscope.viewer.figures.theme import WAITING, Theme
from ipuscope.viewer.figures.trace import Trace
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, hits, refused, selection, timeline
from ipuscope.viewer.pages.common import Column, Page, View
from ipuscope.viewer.pages.timeline import Arrangement, Window
from ipuscope.viewer.profiles import Profiles

NAME = "trace"
_VERTICES = (
    Column("vertex_type", "vertex"),
    Column("count", "count", ",.0f", width=100),
    Column("tiles", "tiles", ",.0f", width=90),
    Column("code_bytes", "code, bytes", ",.0f", width=120),
    Column("state_bytes", "state, bytes", ",.0f", width=120),
)

_MOVED = (
    Column("name", "tensor it moves"),
    Column("source", "from", width=92),
    Column("target", "to", width=92),
    Column("bytes", "bytes", ",.0f", width=118),
)
_FEW_TENSORS = 8
_NO_STEP = ("program step", "Click a step in the trace.")


def layout(view: View) -> Any:
    """The page; its callbacks draw it."""
    report = view.report
    if not len(report.runs):
        words = "This profile holds no schedule: it ends before the compile did."
        return [common.controls(view), common.card("Execution trace", common.message(words))]
    ipus = [
        ("all", "all"),
        *((str(ipu), str(ipu)) for ipu in range(report.target.ipus_per_replica)),
    ]
    return [
        common.controls(
            view,
            *common.run_choices(view),
            common.switch(
                view,
                "span",
                "show",
                (("iteration", "one iteration"), ("call", "the whole call")),
                "iteration",
            ),
            common.choice(view, "ipu", "IPU", ipus, "all"),
            common.switch(view, "form", "as", (("flat", "flat"), ("flame", "flame")), "flat"),
            *timeline.lane_controls(view),
            common.unit_switch(view),
            common.search(view, "find", "find by name"),
            common.hidden(view, "step", check=refused.no_row(report, records.Step, *_NO_STEP)),
            *timeline.hidden(view),
            dcc.Store(id="trace-marked"),
            dcc.Store(id="trace-drawn"),  # when the trace is there, what is beneath it follows
        ),
        *common.predicted(view),
        html.Div(id="trace-said"),
        common.card(
            "Overview",
            common.graph("trace-overview", height=84),
            note="The share of the time that is not waiting. Drag over a part to zoom into it.",
        ),
        html.Div(
            [
                html.Button("← previous", id="trace-previous", className="quiet"),
                html.Button("next →", id="trace-next", className="quiet"),
                common.filled("trace-found"),
                html.Span(id="trace-hit", role="status"),
            ],
            className="hits",
        ),
        common.figure_card(
            "Execution trace",
            "trace-rows",
            note=(
                "Wheel: zoom. Drag: move along or zoom; with Shift: select. Click anything for"
                " details. Red: the critical path."
            ),
            height=240,
            below=[html.Div(id="trace-measured")],
        ),
        common.figure_card(
            "Counters",
            "trace-counters",
            note="Of the IPUs above, in sum. A folded lane counts as the one that is drawn.",
            height=counter_figures.HEIGHT,
        ),
        html.Div(
            [
                selection.card(view, "trace-kinds"),
                common.card("The chosen step", common.filled("trace-step")),
            ],
            className="row",
        ),
        *_host(view),
    ]


def _host(view: View) -> list[Any]:
    """The host's tracepoints beside the calls that they ran, if the program had any."""
    if not len(view.report.host_events):
        return []
    lanes, ipus = host_lanes(view.report), view.report.target.ipus_per_replica
    return [
        common.figure_card(
            "Host and IPUs",
            "trace-host",
            host_figures.host_timeline(lanes, ipus, view.theme),
            note="Calls take as long as the modelled IPUs do; between them is the host's own time.",
        )
    ]


_SELECTED = """
function(selected, figure) {
    const none = [window.dash_clientside.no_update, window.dash_clientside.no_update];
    const range = selected && selected.range && selected.range.x;
    if (!range) { return none; }
    const { scale, end } = figure.layout.meta;
    const [low, high] = range.map((at) => at / scale).sort((a, b) => a - b);
    return [String(Math.max(0, Math.floor(low))), String(Math.min(end, Math.ceil(high)))];
}
"""

_WHAT = ("profile", "run", "iteration", "span", "ipu", "form", *timeline.LANES, "unit")

# Marks the part that is drawn on the overview: a shape, without drawing its curve again.
_MARK = """
function(drawn, figure) {
    const mark = (again) => {
        const plot = document.querySelector('#trace-overview .js-plotly-plot');
        if (!plot || !plot.layout || !plot.layout.meta) {
            if (again) { setTimeout(() => mark(again - 1), 150); }  // it is not drawn yet
            return;
        }
        const scale = plot.layout.meta.scale;
        const whole = { type: 'rect', xref: 'x', yref: 'paper', y0: 0, y1: 1 };
        const shapes = drawn && drawn.length ? [{ ...whole,
            x0: drawn[0] * scale, x1: drawn[1] * scale, fillcolor: '#808a96', opacity: 0.35,
            line: { width: 1, color: '#808a96' } }] : [];
        window.Plotly.relayout(plot, { shapes, selections: [] });
    };
    setTimeout(() => mark(40), 150);
    return drawn;
}
"""


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    common.zooms(app, NAME, "trace-rows")
    app.clientside_callback(
        _SELECTED,
        Output(common.param_id(NAME, "from"), "value", allow_duplicate=True),
        Output(common.param_id(NAME, "to"), "value", allow_duplicate=True),
        Input("trace-overview", "selectedData"),
        Input("trace-overview", "figure"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _MARK,
        Output("trace-marked", "data"),
        Input("trace-drawn", "data"),
        Input("trace-overview", "figure"),
    )
    _figures(app, profiles)
    _sums(app, profiles)
    _details(app, profiles)


def _figures(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the figures over time."""

    @app.callback(
        Output("trace-rows", "figure"),
        Output("trace-found", "children"),
        Output("trace-said", "children"),
        Output("trace-measured", "children"),
        Output("trace-drawn", "data"),
        *timeline.inputs(NAME, *_WHAT, "find"),
        common.theme_state(),
    )
    def draw(*values: Any) -> Any:
        *what, find, low, high, asked_marks, chosen, where = values
        words, theme = str(find or ""), common.theme_of(where)
        # what is found, and what is not, is told step by step
        it = what_is_asked(profiles, *what, window=(low, high), each=bool(words.strip()))
        window = common.window(low, high, it.rows.end)
        path = timeline.path_on_rows(
            profiles, it.report, it.run, it.iteration, it.rows, it.arrangement
        )
        pixels, named = timeline.pixels(where), it.named(profiles, words)
        have = named.names if named is not None else ()
        figure = figures.drawing(it.rows, it.clock, theme, window, pixels, words, path, have)
        figure = with_streams(figure, it.report)
        marks = timeline.marks_of(asked_marks, it.rows.end)
        selected = timeline.selection_of(chosen, it.rows.end)
        marked(figure, marks, selected, it.clock, theme)
        lanes = it.lanes(profiles)
        end, count = it.rows.end, len(it.rows.names)
        timeline.keep_zoom(figure, NAME, it.clock, window, it.key, end, lanes, count)
        said = [
            *timeline.no_iteration(it.report, it.run, values[2]),
            *timeline.refusals(low, high, asked_marks, chosen, it.rows.end, len(it.rows.names)),
            *it.as_tasks(),
            *it.left_out(profiles),
        ]
        measured = timeline.measured(marks, selected, it.clock)
        found = _found(it.rows, words, it.clock, named)
        return figure, found, said, measured, list(window or ())

    @app.callback(
        Output("trace-counters", "figure"),
        Input("trace-drawn", "data"),
        *timeline.states(NAME, *_WHAT),
        common.theme_state(),
        prevent_initial_call=True,
    )
    def counters(_drawn: Any, *values: Any) -> Any:
        *what, low, high, marks, _, where = values
        it = what_is_asked(profiles, *what, window=(low, high))
        window, theme = common.window(low, high, it.rows.end), common.theme_of(where)
        if it.as_tasks():
            return counter_figures.nothing("Counted by steps: zoom in to have them.", theme)
        tracks = timeline.tracks_of(profiles, it.report, it.rows, it.drawn)
        left, tiles = figures.left_margin(it.rows), it.report.target.tiles_per_ipu
        whole = (it.rows.end, it.rows.origin, tiles)
        figure = counter_figures.drawn(tracks, *whole, it.clock, theme, window, left)
        marked(figure, timeline.marks_of(marks, it.rows.end), None, it.clock, theme)
        timeline.keep_zoom(figure, NAME, it.clock, window, it.key, it.rows.end)
        return figure

    @app.callback(
        Output("trace-overview", "figure"), *common.param_input(NAME, *_WHAT), common.theme_state()
    )
    def overview(*values: Any) -> Any:
        *what, where = values
        it = what_is_asked(profiles, *what)
        over = figures.overview(it.rows, it.clock, common.theme_of(where), timeline.pixels(where))
        return over.update_layout(meta={"scale": it.clock.scale, "end": it.rows.end})


def _sums(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the sums over the visible part and of the next search hit."""

    @app.callback(
        Output("trace-kinds", "children"),
        Input("trace-drawn", "data"),
        *common.param_input(NAME, "by"),
        *timeline.states(NAME, *_WHAT),
        prevent_initial_call=True,
    )
    def in_sum(_drawn: Any, by: Any, *values: Any) -> Any:
        *what, low, high, _, chosen = values
        it = what_is_asked(profiles, *what)
        rows = it.rows
        window = common.window(low, high, rows.end) or (0.0, float(rows.end))
        selected = timeline.selection_of(chosen, rows.end)
        lanes = timeline.ipus_in(rows, selected.rows if selected else None)
        executed, shown = (it.run, it.iteration, rows.origin), rows.ipu[rows.of_steps].tolist()
        return selection.table(it.report, executed, shown, window, selected, lanes, by, it.clock)

    @app.callback(
        Output(common.param_id(NAME, "from"), "value", allow_duplicate=True),
        Output(common.param_id(NAME, "to"), "value", allow_duplicate=True),
        Output(common.param_id(NAME, "at"), "value", allow_duplicate=True),
        Input("trace-previous", "n_clicks"),
        Input("trace-next", "n_clicks"),
        *(common.param_state(NAME, name) for name in (*_WHAT, "find", "from", "to", "at")),
        prevent_initial_call=True,
    )
    def step_through(previous: Any, following: Any, *values: Any) -> Any:
        *what, find, low, high, at = values
        nothing = no_update, no_update, no_update
        if not (previous or following):
            return nothing
        it, words = what_is_asked(profiles, *what, each=True), str(find or "")
        forward = ctx.triggered_id == "trace-next"
        window = common.window(low, high, it.rows.end)
        named = it.named(profiles, words)
        near = it if named is None else what_is_asked(profiles, *what, window=(low, high))
        here = hits.chosen(near.rows, words, timeline.point_of(at), window)
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
        Output("trace-hit", "children"),
        *common.param_input(NAME, "at", "find"),
        *(common.param_state(NAME, name) for name in (*_WHAT, "from", "to")),
    )
    def which_hit(at: Any, find: Any, *values: Any) -> Any:
        """Which of the hits the chosen slice is."""
        *what, low, high = values
        words = str(find or "").strip()
        if not words or not at:
            return ""
        it = what_is_asked(profiles, *what, window=(low, high), each=True)
        position = slice_at(it.rows, timeline.point_of(at))
        number, count = figures.number_of_hit(it.rows, words, position)
        named = what_is_asked(profiles, *what).named(profiles, words) if number else None
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
        *(common.param_state(NAME, name) for name in (*_WHAT, "from", "to")),
        prevent_initial_call=True,
    )
    def clicked(at: Any, *values: Any) -> Any:
        """The step that was clicked; empty for a task, a module or a wait."""
        if at in (None, ""):
            return no_update
        *what, low, high = values
        point = timeline.point_of(at)
        rows = what_is_asked(profiles, *what, window=(low, high), point=point).rows
        position = slice_at(rows, point)
        return "" if position < 0 else _step_of(rows, position)

    @app.callback(
        Output("trace-step", "children"),
        *common.param_input(NAME, "step", "at", *_WHAT),
        *(common.param_state(NAME, name) for name in ("from", "to")),
        common.theme_state(),
    )
    def chosen(step: Any, at: Any, *values: Any) -> Any:
        *what, low, high, where = values
        point = timeline.point_of(at)
        it = what_is_asked(profiles, *what, window=(low, high), point=point)
        position = slice_at(it.rows, point)
        number = common.whole(step, -1)
        here = position >= 0 and (number < 0 or _step_of(it.rows, position) == str(number))
        details: list[Any] = [_slice(profiles, it, position)] if here else []
        if here and number < 0:  # an address with a point only
            number = common.whole(_step_of(it.rows, position), -1)
        known = number >= 0  # reading the steps to find none takes as long as finding one
        row = np.flatnonzero(it.report.steps_in_order("step") == number) if known else np.zeros(0)
        if len(row):
            theme, frame = common.theme_of(where), it.report.program_steps()
            details += step_details(it.report, frame.iloc[int(row[0])], it.clock, theme)
        if details:
            return details
        return timeline.nothing_at(at, it.rows.end, len(it.rows.names), "a step in the trace")


@dataclass(frozen=True)
class Asked:
    """What an address asks for: the report, its rows, and the run to which they belong."""

    report: Report
    rows: Trace
    clock: Clock
    run: int
    iteration: int | None
    ipu: int | None
    form: str
    arrangement: Arrangement
    window: Window = None

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that tells these rows from others of the profile."""
        return self.run, self.iteration, self.ipu, self.form, self.arrangement

    @property
    def drawn(self) -> tuple[Any, ...]:
        """The same, and which part of time has steps."""
        ipus = np.unique(self.rows.ipu).tolist()
        part = timeline.part_of(self.report, self.run, self.iteration, ipus, self.window)
        return *self.key, part

    def as_tasks(self) -> list[Any]:
        """A message where rows have tasks instead of steps."""
        ipus = np.unique(self.rows.ipu).tolist()
        return timeline.as_tasks(self.report, self.run, self.iteration, ipus, self.window)

    def left_out(self, profiles: Profiles) -> list[Any]:
        """A message where not all lanes have a row."""
        if self.ipu is not None:
            return []
        what = (self.report, self.run, self.iteration or 0, self.arrangement)
        return timeline.left_out(profiles, *what)

    def named(self, profiles: Profiles, words: str) -> ExecutedByName | None:
        """Executed steps of that name, where the rows of all time have tasks in their place."""
        ipus = np.unique(self.rows.ipu).tolist()
        whole = timeline.part_of(self.report, self.run, self.iteration, ipus, None)
        if not words.strip() or self.form == "flame" or whole is not None:
            return None
        of = (self.report, self.run, self.iteration, self.rows)
        return hits.executed(profiles, *of, words)

    def lanes(self, profiles: Profiles) -> tuple[Lane, ...]:
        """The lanes of the rows, for a click on a name; none in a flame graph."""
        if self.ipu is not None or self.form == "flame":
            return ()
        lanes = timeline.lanes_of(
            profiles, self.report, self.run, self.iteration or 0, self.arrangement
        )
        by_name = {one.mark + one.name: one for one in lanes.arranged}
        return tuple(by_name[name] for name in self.rows.names if name in by_name)


def what_is_asked(
    profiles: Profiles,
    *values: Any,
    window: tuple[Any, Any] | None = None,
    each: bool = False,
    point: tuple[float, float] | None = None,
) -> Asked:
    """The rows that the values of the parameters `_WHAT` describe.

    ``window``: values of the parameters from and to, where its steps are wanted; ``each`` of them,
    or those at a ``point``, where they are not merged.
    """
    profile, run, iteration, span, ipu, form, lanes, opened, pins, unit = values
    report = profiles.get(common.whole(profile, 0))
    at = timeline.run_of(report, run)
    which = None if span == "call" else timeline.iteration_of(report, at, iteration)
    chip = common.whole(ipu, -1, 0, report.target.ipus_per_replica - 1)
    one = chip if chip >= 0 else None
    kind = "flame" if form == "flame" else "flat"
    arrangement = Arrangement.of(lanes, opened, pins) if one is None else Arrangement()
    what = (profiles, report, at, which, one, kind, arrangement)
    rows, shown = timeline.rows_of(*what, each=each and window is None), None
    if window is not None:
        shown = common.window(*window, rows.end)
        moment = None if point is None else point[0]
        if each or moment is not None or shown is not None:
            rows = timeline.rows_of(*what, shown, each, moment)
    clock = Clock(report.target.clock_hz, common.unit_of(unit))
    return Asked(report, rows, clock, at, which, one, kind, arrangement, shown)


def slice_at(rows: Trace, point: tuple[float, float] | None) -> int:
    """Position in ``rows.rows`` of the slice at a point of the figure; -1 if there is none."""
    return -1 if point is None else rows.rows.at(round(point[1]), point[0] + rows.origin)


def _step_of(rows: Trace, found: int) -> str:
    step = int(rows.step[rows.rows.source[found]])
    return str(step) if step >= 0 else ""


def _slice(profiles: Profiles, it: Asked, found: int) -> Any:
    """When a slice begins and how long it lasts; of a wait, what the update waits for meanwhile."""
    rows = it.rows.rows
    begin, end = int(rows.start[found]), int(rows.end[found])
    label = it.rows.labels[it.rows.label[rows.source[found]]]
    row = int(np.searchsorted(rows.first, found, side="right")) - 1
    begin, end = begin - it.rows.origin, end - it.rows.origin
    said = common.facts(
        [
            ("here", label or "waiting"),
            ("on", f"IPU {it.rows.ipu[row]}"),
            ("from, for", f"{begin:,}, {it.clock.both(end - begin)}"),
            *(
                timeline.meanwhile(profiles, it.report, it.run, it.iteration, begin, end)
                if rows.code[found] == WAITING
                else []
            ),
        ]
    )
    return html.Div([said, timeline.pin_button(begin, end)])


def step_details(report: Report, step: Any, clock: Clock, theme: Theme) -> list[Any]:
    """Details of a program step: a row of `Report.program_steps`."""
    op = report.ops.loc[step["op"]] if step["op"] in report.ops.index else None
    rows: list[tuple[str, Any]] = [
        ("name", step["name"]),
        ("kind", f"{step['kind']} ({step['type']})"),
        ("cycles", clock.both(step["cycles"])),
        ("IPU, position", f"{step['ipu']}, {step['position']}"),
        ("for", step["direction"] or "copies and waits"),
    ]
    if op is not None:
        where = f"{op['file']}:{op['line']}" if op["file"] else "unknown"
        rows += [
            ("operator", f"{op['name']} ({op['aten']})"),
            ("Block", op["block_name"] or "none"),
            ("source", where),
        ]
        if op["estimated"]:
            rows.append(("note", "its cycles are an estimate: nobody lowered this operator"))
    if step["bytes_in"] or step["bytes_out"]:
        rows.append(
            (
                "exchanged",
                f"{units.size(step['bytes_out'])} sent, {units.size(step['bytes_in'])} received",
            )
        )
    tiles = report.target.tiles_per_ipu
    rows.append(("tiles at work", f"{step['active_tiles']:,} of {tiles:,}"))
    if step["kind"] == "compute" and step["tile_balance"] == step["tile_balance"]:
        rows.append(("tile balance", f"{units.percent(step['tile_balance'])} (mean over slowest)"))
    vectors = report.step_tiles(int(step["step"]))
    links = html.P(common.separated(_links(step, op, vectors)))
    children: list[Any] = [common.facts(rows), links, *_moved(report, int(step["step"]), theme)]
    for name, label in (
        ("cycles", "cycles"),
        ("bytes_in", "bytes received"),
        ("bytes_out", "bytes sent"),
    ):
        values = vectors[name]
        if values is not None and values.any():
            children.append(
                common.graph(
                    {"step": name}, tile_figures.histogram(values, label, theme), scrollZoom=False
                )
            )
            chip = memory_figures.chip(values.astype(np.float32), float(values.max()), theme, label)
            children.append(common.graph({"chip": name}, chip, scrollZoom=False))
            break
    vertices = report.vertices(int(step["step"]))
    if len(vertices):
        children.append(common.table("trace-vertices", vertices, _VERTICES, theme))
    return children


def _links(step: Any, op: Any, vectors: dict[str, np.ndarray | None]) -> list[Any]:
    """Links from a step to its operator, its source, its busiest tile, and liveness at the step."""
    ipu, links = int(step["ipu"]), []
    if op is not None:
        links.append(dcc.Link("operator", href=f"/operations?{common.query(op=step['op'])}"))
        if op["file"]:
            source = common.query(find=f"{op['file']}:{op['line']}")
            links.append(dcc.Link("all of its line", href=f"/operations?{source}"))
    busy = next((one for one in vectors.values() if one is not None and one.any()), None)
    if busy is not None:
        tile = int(busy.argmax())
        address = common.query(ipu=ipu, tile=tile)
        links.append(dcc.Link(f"tile {tile}, the busiest", href=f"/memory?{address}"))
    live = common.query(ipu=ipu, step=step["position"])
    return [*links, dcc.Link("variables live then", href=f"/liveness?{live}")]


def _moved(report: Report, step: int, theme: Theme) -> list[Any]:
    """The tensors that a step moves on or off a chip, with their sources and targets."""
    moved = report.moved_tensors
    tensors = moved[moved["step"] == step].sort_values("bytes", ascending=False, kind="stable")
    if not len(tensors):
        return []
    ends = {name: [_end(one) for one in tensors[name]] for name in ("source", "target")}
    height = None if len(tensors) <= _FEW_TENSORS else 320
    return [common.table("trace-moved", tensors.assign(**ends), _MOVED, theme, height)]


def _end(ipu: int) -> str:
    return f"IPU {ipu}" if ipu >= 0 else "off chip"


def _found(rows: Trace, find: str, clock: Clock, named: ExecutedByName | None) -> Any:
    if not find.strip():
        return []
    slices, cycles = figures.matches(rows, find) if named is None else (len(named), named.cycles)
    if not slices:
        return common.message(f"No step has “{find}” in its name.", "warning")
    return common.message(
        f"“{find}”: {slices:,} slices, {clock.both(cycles)} in sum over these lanes. n and N go"
        " through them."
    )


PAGE = Page("/trace", "Execution trace", layout, register, "Every step in time")
