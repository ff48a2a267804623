"""Execution trace: every step of a device iteration or a whole call.

Flat, or as a flame graph by module path.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from profiler import Report
from profiler.host import host_lanes
from viewer.figures import host as host_figures
from viewer.figures import memory as memory_figures
from viewer.figures import tiles as tile_figures
from viewer.figures import trace as figures
from viewer.figures import units
from viewer.figures.lod import Rows
from viewer.figures.pipeline import FEW, CriticalPath
from viewer.figures.theme import Theme
from viewer.figures.trace import Trace
from viewer.figures.units import Clock
from viewer.pages import common, waits
from viewer.pages.common import Column, Page, View
from viewer.pages.pipeline import MARGINS, keep_zoom
from viewer.profiles import Profiles

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
    Column("source", "from", width=110),
    Column("target", "to", width=110),
    Column("bytes", "bytes", ",.0f", width=130),
)
_FEW_TENSORS = 8
_BY = (
    ("kind", "kind"),
    ("operator", "operator"),
    ("aten", "ATen"),
    ("module", "module"),
    ("block", "Block"),
    ("stage", "stage"),
)
_MOST_ROWS = 40  # of the table by operator and the like


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
            common.choice(view, "ipu", "IPU", ipus, _first_ipu(view)),
            common.switch(view, "form", "as", (("flat", "flat"), ("flame", "flame")), "flat"),
            common.unit_switch(view),
            common.search(view, "find", "find by name"),
            common.hidden(view, "from"),
            common.hidden(view, "to"),
            common.hidden(view, "step"),
            dcc.Store(id="trace-marked"),
        ),
        *common.predicted(view),
        common.card(
            "Overview",
            common.graph("trace-overview", height=84),
            note="Drag over a part to zoom into it.",
        ),
        common.figure_card(
            "Execution trace",
            "trace-rows",
            note=(
                "Wheel: zoom. Drag: move along or zoom. Click a step for its tensors, peers, tiles,"
                " vertices and source. Red: the critical path."
            ),
            height=240,
        ),
        html.Div(
            [
                html.Button("← previous", id="trace-previous", className="quiet"),
                html.Button("next →", id="trace-next", className="quiet"),
                common.filled("trace-found"),
            ],
            className="hits",
        ),
        *_host(view),
        html.Div(
            [
                common.card(
                    "In the shown part",
                    common.choice(view, "by", "by", _BY, "kind"),
                    common.filled("trace-kinds"),
                    note="exact, however coarse the figure",
                ),
                common.card("The chosen step", common.filled("trace-step")),
            ],
            className="row",
        ),
    ]


def _host(view: View) -> list[Any]:
    """The host's tracepoints beside the calls that they ran, where the program had any."""
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


def _first_ipu(view: View) -> str:
    """All IPUs where they are few, else the one that is on the critical path for longest."""
    report = view.report
    if report.target.ipus_per_replica <= FEW:
        return "all"
    path = waits.chain(view.profiles, report, 0, 0)
    weight = np.bincount(
        path.ipu % report.target.ipus_per_replica, weights=path.end - path.start, minlength=1
    )
    return str(int(weight.argmax()))


def rows_of(
    profiles: Profiles, report: Report, run: int, iteration: int | None, ipu: int | None, form: str
) -> Trace:
    """The trace ready to be drawn; a flame is of one IPU."""

    def make() -> Trace:
        if form == "flame":
            return figures.flame(
                report.steps(run, ipu or 0, iteration),
                report.tasks(run, ipu or 0, iteration),
                report.ops["name"],
            )
        steps = report.steps(run, ipu, iteration)
        rows = figures.flat(steps, report.target.ipus_per_replica)
        return (
            rows
            if ipu is None
            else only(rows, [ipu, *range(report.target.ipus_per_replica, len(rows.names))])
        )

    return profiles.made(report, ("trace", run, iteration, ipu, form), make)


def only(rows: Trace, wanted: list[int]) -> Trace:
    """Some rows of a flat trace."""
    parts = [rows.rows.of(row) for row in wanted]
    first = np.cumsum([0, *(part.stop - part.start for part in parts)])
    columns = (rows.rows.start, rows.rows.end, rows.rows.code, rows.rows.source)
    part_rows = Rows(
        first, *(np.concatenate([column[part] for part in parts]) for column in columns)
    )
    return replace(rows, rows=part_rows, names=tuple(rows.names[row] for row in wanted))


_SELECTED = """
function(selected, figure) {
    const none = [window.dash_clientside.no_update, window.dash_clientside.no_update];
    const range = selected && selected.range && selected.range.x;
    if (!range) { return none; }
    const scale = figure.layout.meta ? figure.layout.meta.scale : 1;
    return [String(Math.floor(range[0] / scale)), String(Math.ceil(range[1] / scale))];
}
"""

_WHAT = ("profile", "run", "iteration", "span", "ipu", "form", "unit")

# Marks the shown part on the overview: a shape, without drawing its curve again.
_MARK = """
function(low, high, figure) {
    const mark = () => {
        const plot = document.querySelector('#trace-overview .js-plotly-plot');
        if (!plot || !plot.layout || !plot.layout.meta) { return; }
        const scale = plot.layout.meta.scale;
        const shapes = low && high ? [{ type: 'rect', xref: 'x', yref: 'paper', y0: 0, y1: 1,
            x0: Number(low) * scale, x1: Number(high) * scale, fillcolor: '#808a96', opacity: 0.35,
            line: { width: 1, color: '#808a96' } }] : [];
        window.Plotly.relayout(plot, { shapes, selections: [] });
    };
    setTimeout(mark, 150);
    return [low, high];
}
"""

_CLICK = """
function(point) {
    const at = point && point.points && point.points[0];
    const step = at && at.customdata && at.customdata[1];
    const none = step === undefined || step === null || step < 0;
    return none ? window.dash_clientside.no_update : String(step);
}
"""


def register(app: Dash, profiles: Profiles) -> None:
    """Callbacks of the page."""
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
        _CLICK,
        Output(common.param_id(NAME, "step"), "value"),
        Input("trace-rows", "clickData"),
        prevent_initial_call=True,
    )

    app.clientside_callback(
        _MARK,
        Output("trace-marked", "data"),
        *common.param_input(NAME, "from", "to"),
        Input("trace-overview", "figure"),
    )

    def asked(
        profile: Any, run: Any, iteration: Any, span: Any, ipu: Any, form: Any, unit: Any
    ) -> Any:
        """The report, the rows that are asked for, the clock, and what tells them from others."""
        report = profiles.get(common.whole(profile, 0))
        run = common.whole(run, 0, 0, max(0, len(report.runs) - 1))
        last = max(0, int(report.runs["iterations"].iloc[run]) - 1)
        which = None if span == "call" else common.whole(iteration, 0, 0, last)
        chip = common.whole(ipu, -1, 0, report.target.ipus_per_replica - 1)
        kind = "flame" if form == "flame" else "flat"
        rows = rows_of(profiles, report, run, which, chip if chip >= 0 else None, kind)
        return (
            rows,
            Clock(report.target.clock_hz, "µs" if unit == "µs" else "cycles"),
            (run, which, chip, kind),
        )

    @app.callback(
        Output("trace-rows", "figure"),
        Output("trace-kinds", "children"),
        Output("trace-found", "children"),
        *common.param_input(NAME, *_WHAT, "find", "from", "to", "by"),
        common.theme_state(),
    )
    def draw(*values: Any) -> Any:
        *what, find, low, high, by, where = values
        rows, clock, key = asked(*what)
        window = common.window(low, high, rows.end)
        report = profiles.get(common.whole(what[0], 0))
        figure = figures.trace(
            rows,
            clock,
            common.theme_of(where),
            window,
            _pixels(where),
            str(find or ""),
            _path(profiles, report, key),
        )
        keep_zoom(figure, NAME, clock, window, key)
        shares = aggregated(report, rows, window, by) if by in dict(_BY[1:]) else None
        kinds = figures.by_kind(rows, window) if shares is None else shares
        return figure, _kinds(kinds, clock), _found(rows, str(find or ""), clock)

    @app.callback(
        Output(common.param_id(NAME, "from"), "value", allow_duplicate=True),
        Output(common.param_id(NAME, "to"), "value", allow_duplicate=True),
        Input("trace-previous", "n_clicks"),
        Input("trace-next", "n_clicks"),
        *(State(common.param_id(NAME, name), "value") for name in (*_WHAT, "find", "from", "to")),
        prevent_initial_call=True,
    )
    def step_through(previous: Any, following: Any, *values: Any) -> Any:
        *what, find, low, high = values
        if not (previous or following):
            return no_update, no_update
        rows, _, _ = asked(*what)
        forward = ctx.triggered_id == "trace-next"
        window = common.window(low, high, rows.end)
        hit = figures.next_hit(rows, str(find or ""), window, forward)
        return (no_update, no_update) if hit is None else tuple(map(str, hit))

    @app.callback(
        Output("trace-overview", "figure"), *common.param_input(NAME, *_WHAT), common.theme_state()
    )
    def overview(*values: Any) -> Any:
        *what, where = values
        rows, clock, _ = asked(*what)
        over = figures.overview(rows, clock, common.theme_of(where), _pixels(where))
        return over.update_layout(meta={"scale": clock.scale})

    @app.callback(
        Output("trace-step", "children"),
        *common.param_input(NAME, "profile", "step", "unit"),
        common.theme_state(),
    )
    def chosen(profile: Any, step: Any, unit: Any, where: Any) -> Any:
        report = profiles.get(common.whole(profile, 0))
        number = common.whole(step, -1)
        frame = report.program_steps()
        at = np.flatnonzero(frame["step"].to_numpy() == number)
        if not len(at):
            return common.message("Click a step in the trace.")
        clock = Clock(report.target.clock_hz, "µs" if unit == "µs" else "cycles")
        return step_details(report, frame.iloc[int(at[0])], clock, common.theme_of(where))


def _path(profiles: Profiles, report: Report, key: tuple[Any, ...]) -> CriticalPath | None:
    """The critical path by the rows that are shown; None over a whole call."""
    run, iteration, ipu, form = key
    if iteration is None:
        return None
    path = waits.chain(profiles, report, run, iteration)
    if ipu < 0 and form == "flat":
        return path
    here = path.ipu == max(0, ipu)
    return CriticalPath(np.zeros(int(here.sum()), np.int64), path.start[here], path.end[here])


def step_details(report: Report, step: Any, clock: Clock, theme: Theme) -> list[Any]:
    """What is known of a program step: a row of `Report.program_steps`."""
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
    children: list[Any] = [common.facts(rows), *_moved(report, int(step["step"]), theme)]
    vectors = report.step_tiles(int(step["step"]))
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


def _moved(report: Report, step: int, theme: Theme) -> list[Any]:
    """The tensors that a step moves over a chip's edge, and between whom."""
    moved = report.moved_tensors
    mine = moved[moved["step"] == step].sort_values("bytes", ascending=False, kind="stable")
    if not len(mine):
        return []
    ends = {name: [_end(one) for one in mine[name]] for name in ("source", "target")}
    height = None if len(mine) <= _FEW_TENSORS else 320
    return [common.table("trace-moved", mine.assign(**ends), _MOVED, theme, height)]


def _end(ipu: int) -> str:
    return f"IPU {ipu}" if ipu >= 0 else "off chip"


def _pixels(where: Any) -> int:
    """Columns of the figures: as the browser said its window is wide."""
    return max(
        300, common.whole((where or {}).get("width"), figures.PIXELS + MARGINS, 0, 8000) - MARGINS
    )


def aggregated(
    report: Report, rows: Trace, window: tuple[float, float] | None, by: str
) -> list[tuple[str, int, int]]:
    """(name, cycles, slices) of what is shown by operator, ATen, module, Block or stage.

    Largest first; waits, copies and whatever no operator does are named by their kind.
    """
    step, cycles, count = figures.by_step(rows, window)
    frame = report.program_steps().set_index("step").reindex(step)
    if by == "stage":
        stage = frame["stage"].fillna(-1).astype(int).tolist()
        names = [f"stage {one}" if one >= 0 else "no stage" for one in stage]
    else:
        column = {"operator": "name", "block": "block_name"}.get(by, by)
        said = report.ops[column].reindex(frame["op"].fillna(-1).astype(int)).tolist()
        kinds = frame["kind"].fillna("waiting").tolist()
        names = [
            (name or "none") if isinstance(name, str) else f"no operator: {kind}"
            for name, kind in zip(said, kinds, strict=True)
        ]
    unique, at = np.unique(np.array(names, dtype=str), return_inverse=True)
    total = np.bincount(at, weights=cycles, minlength=len(unique)).astype(np.int64)
    slices = np.bincount(at, weights=count, minlength=len(unique)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return [(str(unique[i]), int(total[i]), int(slices[i])) for i in order]


def _kinds(found: list[tuple[str, int, int]], clock: Clock) -> Any:
    total = max(1, sum(cycles for _, cycles, _ in found))
    heads = [
        html.Th(""),
        *(html.Th(words, className="n") for words in ("cycles", "time", "share", "slices")),
    ]
    body = [
        html.Tr(
            [
                html.Td(name),
                *(
                    html.Td(words, className="n")
                    for words in (
                        f"{cycles:,}",
                        units.seconds(cycles / clock.hz),
                        units.percent(cycles / total),
                        f"{count:,}",
                    )
                ),
            ]
        )
        for name, cycles, count in found[:_MOST_ROWS]
    ]
    return html.Table([html.Thead(html.Tr(heads)), html.Tbody(body)], className="plain")


def _found(rows: Trace, find: str, clock: Clock) -> Any:
    if not find.strip():
        return []
    slices, cycles = figures.matches(rows, find)
    if not slices:
        return common.message(f"No step has “{find}” in its name.", "warning")
    return common.message(
        f"“{find}”: {slices:,} slices, {clock.both(cycles)} in sum over what is shown."
    )


PAGE = Page("/trace", "Execution trace", layout, register, "Every step in time")
