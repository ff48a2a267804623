"""Pipeline: one lane per IPU, from ramp-up to ramp-down.

It shows what each IPU does when, and which one the others wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dash import Dash, Input, Output, dcc, html

from ipuscope.profiler import Report
from ipuscope.viewer.figures import pipeline as figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.lanes import Lanes, task_at
from ipuscope.viewer.figures.legend import with_streams
from ipuscope.viewer.figures.marks import marked
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, selection, timeline
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.pages.timeline import Arrangement
from ipuscope.viewer.profiles import Profiles

NAME = "pipeline"


def layout(view: View) -> Any:
    """The page; `_register` draws its figures."""
    report = view.report
    if not len(report.runs):
        return [
            common.controls(view),
            common.card(
                "Pipeline",
                common.message(
                    "This profile holds no schedule: it ends before the compile did. The memory"
                    " pages and the stages' cycles are there as far as they were written."
                ),
            ),
        ]
    batches = int(report.tasks(0, iteration=0)["micro_batch"].max()) + 1
    return [
        common.controls(
            view,
            *common.run_choices(view),
            common.unit_switch(view),
            common.choice(
                view,
                "follow",
                "follow a micro-batch",
                [("none", "none"), *((str(i), str(i)) for i in range(batches))],
                "none",
            ),
            *timeline.lane_controls(view),
            *timeline.hidden(view),
            dcc.Store(
                id="pipeline-drawn"
            ),  # when the lanes are there, what is beneath them follows
        ),
        *common.predicted(view),
        html.Div(id="pipeline-said"),
        common.figure_card(
            "Pipeline",
            "pipeline-lanes",
            note=(
                "Large: what the IPU works on, with micro-batch numbers. Strip: its steps. "
                "Red: the critical path, which alone sets how long this takes. Filled in"
                " proportion where narrow. Click for details, a lane's name to open it."
            ),
            height=460,
            below=[html.Div(id="pipeline-measured")],
        ),
        html.Div(
            [
                selection.card(view, "pipeline-sum"),
                common.card("The chosen task", common.filled("pipeline-task")),
            ],
            className="row",
        ),
        html.Div(
            [
                common.card(
                    "Phases", common.filled("pipeline-phases"), note="of the device iteration"
                ),
            ],
            className="row",
        ),
    ]


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    common.zooms(app, NAME, "pipeline-lanes")

    def asked(profile: Any, run: Any, iteration: Any, lanes: Any, opened: Any, pins: Any) -> Any:
        """The report, its run, its iteration, and the arrangement of the lanes."""
        report = profiles.get(common.whole(profile, 0))
        at = timeline.run_of(report, run)
        which = timeline.iteration_of(report, at, iteration)
        return report, at, which, Arrangement.of(lanes, opened, pins)

    what = ("profile", "run", "iteration", *timeline.LANES)

    @app.callback(
        Output("pipeline-lanes", "figure"),
        Output("pipeline-phases", "children"),
        Output("pipeline-said", "children"),
        Output("pipeline-measured", "children"),
        Output("pipeline-drawn", "data"),
        *timeline.inputs(NAME, *what, "unit", "follow"),
        common.theme_state(),
    )
    def draw(*values: Any) -> Any:
        *of, unit, follow, low, high, asked_marks, chosen, where = values
        report, run, iteration, arrangement = asked(*of)
        lanes = timeline.lanes_of(profiles, report, run, iteration, arrangement)
        clock, theme = Clock(report.target.clock_hz, common.unit_of(unit)), common.theme_of(where)
        window = common.window(low, high, lanes.end)
        lanes = timeline.with_steps(profiles, report, run, iteration, lanes, window)
        batch = common.whole(follow, -1)
        figure = figures.drawing(
            lanes, clock, theme, window, timeline.pixels(where), batch if batch >= 0 else None
        )
        figure = with_streams(figure, report)
        marks = timeline.marks_of(asked_marks, lanes.end)
        selected = timeline.selection_of(chosen, lanes.end)
        marked(figure, marks, selected, clock, theme)
        key = (run, iteration, arrangement)
        end, count = lanes.end, len(lanes.shown)
        timeline.keep_zoom(figure, NAME, clock, window, key, end, lanes.arranged, count)
        said = [
            *timeline.no_iteration(report, run, of[2]),
            *timeline.refusals(low, high, asked_marks, chosen, end, count),
        ]
        measured = timeline.measured(marks, selected, clock)
        phases = _phases(report, run, iteration, clock, theme)
        return figure, phases, said, measured, list(window or ())

    @app.callback(
        Output("pipeline-sum", "children"),
        Input("pipeline-drawn", "data"),
        *common.param_input(NAME, "by"),
        *timeline.states(NAME, *what, "unit"),
        prevent_initial_call=True,
    )
    def in_sum(_drawn: Any, by: Any, *values: Any) -> Any:
        *of, unit, low, high, _, chosen = values
        report, run, iteration, arrangement = asked(*of)
        lanes = timeline.lanes_of(profiles, report, run, iteration, arrangement)
        clock = Clock(report.target.clock_hz, common.unit_of(unit))
        window = common.window(low, high, lanes.end) or (0.0, float(lanes.end))
        selected = timeline.selection_of(chosen, lanes.end)
        ipus = timeline.lanes_in(lanes, selected.rows if selected else None)
        executed, shown = (run, iteration, lanes.origin), lanes.ipus
        return selection.table(report, executed, shown, window, selected, ipus, by, clock)

    @app.callback(
        Output("pipeline-task", "children"), *common.param_input(NAME, *what, "unit", "at")
    )
    def chosen(*values: Any) -> Any:
        *of, unit, at = values
        report, run, iteration, arrangement = asked(*of)
        lanes = timeline.lanes_of(profiles, report, run, iteration, arrangement)
        clock = Clock(report.target.clock_hz, common.unit_of(unit))
        point = timeline.point_of(at)
        path = partial(timeline.meanwhile, profiles, report, run, iteration)
        return task_details(report, lanes, point, clock, path, at)


def task_details(
    report: Report,
    lanes: Lanes,
    point: tuple[float, float] | None,
    clock: Clock,
    meanwhile: Callable[[int, int], list[tuple[str, Any]]] = lambda begin, end: [],
    asked: Any = None,
) -> Any:
    """The task at a point of the lanes, with links to its steps, operators and memory.

    ``meanwhile`` has more to say of a wait between two cycles; ``asked`` is the point as the
    address has it.
    """
    position = None if point is None else task_at(lanes, *point)
    if point is None or position is None:
        return timeline.nothing_at(asked, lanes.end, len(lanes.shown), "a task in the pipeline")
    task: Any = lanes.tasks.iloc[position]
    ipu, begin, end = (int(task[name]) for name in ("ipu", "start", "end"))
    begin, end = begin - lanes.origin, end - lanes.origin
    in_replica = ipu % report.target.ipus_per_replica
    rows: list[tuple[str, Any]] = [
        ("task", str(task["name"])),
        ("IPU", str(ipu)),
        ("from, for", f"{begin:,}, {clock.both(end - begin)}"),
    ]
    if task["micro_batch"] >= 0:
        rows.append(("micro-batch", str(task["micro_batch"])))
    if task["kind"] == "idle":
        rows += meanwhile(begin, end)
    if task["phase"]:
        rows.append(("pipeline cycle", f"{task['pipeline_cycle']}, {task['phase']}"))
    margin = max(1, (end - begin) // 20)
    window = {"from": max(0, begin - margin), "to": min(lanes.end, end + margin)}
    steps = common.query(ipu=in_replica, **window)
    links = [dcc.Link("its steps in the trace", href=f"/trace?{steps}")]
    if task["stage"] >= 0:
        operators = common.query(stage=task["stage"])
        links.append(dcc.Link(f"operators of stage {task['stage']}", f"/operations?{operators}"))
    memory = common.query(ipu=in_replica, **window)
    links.append(dcc.Link("live bytes meanwhile", href=f"/liveness?{memory}"))
    pin = timeline.pin_button(begin, end)
    return [common.facts(rows), html.P(common.separated(links)), pin]


def _phases(report: Report, run: int, iteration: int, clock: Clock, theme: Theme) -> Any:
    cycles = report.pipeline_cycles(run, iteration)
    total = max(1, int(cycles["cycles"].sum()))
    header = [
        html.Th("phase"),
        *(
            html.Th(words, className="n")
            for words in ("pipeline cycles", "cycles", "time", "share")
        ),
    ]
    rows = []
    for phase, part in cycles.groupby("phase", sort=False):
        length = int(part["cycles"].sum())
        rows.append(
            html.Tr(
                [
                    html.Td(str(phase)),
                    html.Td(f"{len(part):,}", className="n"),
                    html.Td(f"{length:,}", className="n"),
                    html.Td(units.seconds(length / clock.hz), className="n"),
                    html.Td(units.percent(length / total), className="n"),
                ]
            )
        )
    return html.Table([html.Thead(html.Tr(header)), html.Tbody(rows)], className="plain")


PAGE = Page(
    "/pipeline",
    "Pipeline",
    layout,
    register,
    "What each IPU does when, and the critical path through them",
)
