"""Rebalance: move Blocks between stages and see the effect; the quickest split and its proof."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from ipuscope.planner.advice import Advice, Advised, Allowed, advise, anything, basis_of
from ipuscope.planner.advice.search import NO_GAIN
from ipuscope.planner.costs.profile_costs import Costs, check, pipelined
from ipuscope.planner.levers.compile_again import merged_placement
from ipuscope.planner.predict.split_text import in_address
from ipuscope.planner.predict.what_if import (
    Assignment,
    Prediction,
    placement_file,
    predicted_path,
    profiled_split,
    what_if,
)
from ipuscope.planner.search.split_search import Split, best_split, quickest
from ipuscope.profiler import Report, analysis, confidence
from ipuscope.profiler.analysis.pace import IMPORTED
from ipuscope.profiler.enums import OUT_OF_MEMORY
from ipuscope.profiler.provenance import Provenance
from ipuscope.profiler.report import number
from ipuscope.profiler.units import count as counted
from ipuscope.profiler.units import per_second, sentence
from ipuscope.viewer.figures import memory as memory_figures
from ipuscope.viewer.figures import pipeline as pipeline_figures
from ipuscope.viewer.figures import rebalance as figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.lanes import CriticalPath
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import causes, checked, common, model_graph, refused, runs, timespan
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.profiles import Profiles

NAME = "rebalance"
MOST_STAGES = 64
MOST_LEVERS = 4
_MOST_NAMED = 14  # stages that have room for the word
_LEAST_NAMED = 0.06  # of the row: a narrower stage has its number only


def layout(view: View) -> Any:
    """The page; its callbacks fill it."""
    report = view.report
    try:
        check(report)
    except ValueError as error:
        return [
            common.controls(view, common.hidden(view, "unit", "cycles")),
            common.card("Rebalance", common.message(f"{sentence(str(error))}.")),
            model_graph.card(view, borders=False),
            _levers_card(view, "What else gains, each alone and several together."),
            *runs.part(view),
        ]
    options = [str(n) for n in range(1, min(len(report.blocks), MOST_STAGES) + 1)]
    now = str(len(report.stages))
    count = dcc.Dropdown(id="rebalance-count", options=options, value=now, clearable=False)
    return [
        common.controls(
            view,
            common.control("stages to propose", count),
            common.control(
                "propose",
                html.Div(
                    [
                        html.Button("Quickest split", id="rebalance-best", className="quiet"),
                        html.Button("As profiled", id="rebalance-profiled", className="quiet"),
                        html.Button("Save placement", id="rebalance-save", className="quiet"),
                        *checked.button(view.profiles),
                        dcc.Download(id="rebalance-file"),
                    ],
                    className="buttons",
                ),
            ),
            common.unit_switch(view),
            common.hidden(view, "starts", check=_no_split(view)),
        ),
        common.filled("rebalance-numbers"),
        common.card(
            "Stages and their Blocks",
            html.Div(id="rebalance-blocks"),
            common.graph("rebalance-stages", height=240),
            note="Drag a border, or move it with ← and →; + adds a stage after it, Delete removes"
            " the border. Below: predicted cycles of a micro-batch; hatched: recomputation and"
            f" stash. {_pace(report)}",
            tools=True,
        ),
        common.card("Why", common.filled("rebalance-why")),
        model_graph.card(view),
        common.figure_card(
            f"The {'pipeline' if pipelined(report) else 'schedule'}, predicted",
            "rebalance-lanes",
            height=420,
        ),
        common.figure_card(
            "Largest extent of a tile, predicted",
            "rebalance-memory",
            note=(
                "Bytes and gaps decide whether it fits. For other splits than the profiled one it"
                " is an estimate: Blocks keep their tiles, each with as much stash as the fullest."
            ),
            height=190,
        ),
        *checked.card(view.profiles),
        _levers_card(view, "What each gives alone, and several together."),
        *([checked.schedules_card(view)] if pipelined(report) and len(report.stages) > 1 else []),
        *runs.part(view),
    ]


def _levers_card(view: View, note: str) -> Any:
    levers = common.filled("rebalance-levers", awaited=True)
    return common.card("All levers", causes.batch_switch(view), levers, note=note)


def _pace(report: Report) -> str:
    if pipelined(report) or report.blocks["stage"].nunique() == 1:
        return "Copies between IPUs, which may take longer, are in the pipeline below."
    return "Stages work one after another: their sum and the copies between IPUs set the pace."


def costs_of(profiles: Profiles, report: Report) -> Costs:
    """The costs of the profile's Blocks. Raises ValueError if it has none."""
    return profiles.made(report, "costs", lambda: Costs.from_report(report))


def profiled(costs: Costs) -> Assignment:
    """The profiled split. ValueError if its stages are not in the order of the Blocks."""
    return Assignment.of(costs.stage.tolist(), costs.ipus)


def asked(costs: Costs, starts: Any) -> Assignment:
    """The split that an address asks for; the profiled one without a valid request.

    The address has each stage's first Block and, after an @, the stages' IPUs if not one each.
    """
    first_blocks, _, on_ipus = str(starts or "").partition("@")
    rows = [
        common.whole(first, -1, 0, len(costs) - 1)
        for first in first_blocks.split(",")[:MOST_STAGES]
    ]
    if rows and rows[0] == 0 and rows == sorted(set(rows)):
        words = on_ipus.split(",")[:MOST_STAGES] if on_ipus else []
        ipus = tuple(common.whole(ipu, -1, 0, MOST_STAGES - 1) for ipu in words)
        if len(ipus) == len(rows) and set(ipus) == set(range(max(ipus) + 1)):
            return Assignment(tuple(rows), ipus)
        return Assignment(tuple(rows), tuple(range(len(rows))))
    return profiled(costs)


def _no_split(view: View) -> refused.Check:
    """Checks the split that an address asks for."""

    def check(value: str) -> str:
        costs = costs_of(view.profiles, view.report)
        split = asked(costs, value)
        first, ipus = (",".join(map(str, part)) for part in (split.starts, split.ipus))
        if value in (in_address(split), f"{first}@{ipus}"):
            return ""
        there = (
            "it has the first Block of each stage, from 0 and rising to"
            f" {len(costs) - 1} at most, and after an @ its IPU"
        )
        return refused.refused("split", value, there, "This is the profiled one.")

    return check


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""

    @app.callback(
        Output(common.param_id(NAME, "starts"), "value"),
        Input("rebalance-best", "n_clicks"),
        Input("rebalance-profiled", "n_clicks"),
        State("rebalance-count", "value"),
        *common.param_state(NAME, "profile"),
        prevent_initial_call=True,
    )
    def change(best: Any, back: Any, count: Any, profile: Any) -> Any:
        costs = costs_of(profiles, profiles.get(profile))
        if not (best or back):
            return no_update
        if ctx.triggered_id == "rebalance-profiled":
            return ""
        number = common.whole(count, len(costs.ipus), 1, len(costs))
        return in_address(_best(costs, number)[0].prediction.assignment)

    @app.callback(
        Output("rebalance-numbers", "children"),
        Output("rebalance-stages", "figure"),
        Output("rebalance-blocks", "children"),
        Output("rebalance-why", "children"),
        Output("rebalance-lanes", "figure"),
        Output("rebalance-memory", "figure"),
        *common.param_input(NAME, "profile", "starts", "unit"),
        common.theme_state(),
    )
    def show(profile: Any, starts: Any, unit: Any, where: Any) -> Any:
        report = profiles.get(profile)
        costs = costs_of(profiles, report)
        clock = Clock(costs.machine.clock_hz, "µs" if unit == "µs" else "cycles")
        theme = common.theme_of(where)
        now, split = profiled_split(report), asked(costs, starts)
        wanted = now if split == now.assignment else what_if(costs, split)
        slowest = int(now.stage_cycles.max())
        path = CriticalPath(*predicted_path(report)) if wanted is now else None
        lanes = figures.predicted_lanes(costs, wanted, path)
        return (
            _numbers(report, costs, now, wanted, clock),
            figures.stages(costs, wanted, slowest, clock, theme),
            _row(costs, split),
            _why(report, costs, wanted),
            pipeline_figures.drawing(lanes, clock, theme, pixels=timespan.pixels(where)),
            _memory(costs, wanted, theme),
        )

    @app.callback(
        Output("rebalance-levers", "children"), *common.param_input(NAME, "profile", "batch")
    )
    def levers(profile: Any, batch: Any) -> Any:
        report, may = profiles.get(profile), batch == "change"
        try:
            advised = profiles.made(report, ("advised", may), lambda: _advised(report, may))
        except ValueError as error:
            return common.message(sentence(str(error)))
        return _levers(report, advised)

    @app.callback(
        Output("rebalance-file", "data"),
        Input("rebalance-save", "n_clicks"),
        *common.param_state(NAME, "starts", "profile"),
        prevent_initial_call=True,
    )
    def save(clicks: Any, starts: Any, profile: Any) -> Any:
        return _saved(*split_of(profile, starts)) if clicks else no_update

    def split_of(profile: Any, starts: Any) -> tuple[Costs, Assignment, Provenance]:
        report = profiles.get(profile)
        costs = costs_of(profiles, report)
        return costs, asked(costs, starts), Provenance.of(report)

    checked.register(app, profiles, split_of, NAME)
    model_graph.register(app, profiles, split_of, NAME)
    checked.register_schedules(app, profiles, split_of, NAME)


def _advised(report: Report, may_change: bool) -> Advised:
    """The advisor's proposals; ``may_change``: an update may have more samples."""
    if report.imported:
        raise ValueError("flops and data types, which other levers need, are not in this profile")
    most = anything(basis_of(report)).samples if may_change else 0
    return advise(report, Allowed(samples=most))


def _saved(costs: Costs, assignment: Assignment, made: Provenance) -> dict[str, str]:
    """The placement file of a split, as the browser saves it."""
    placed = merged_placement(made.placement, placement_file(costs, assignment, False))
    content = json.dumps(placed, indent=2) + "\n"
    return {"content": content, "filename": "placement.json", "type": "application/json"}


def _memory(costs: Costs, wanted: Prediction, theme: Theme) -> Any:
    """The largest extent of a tile of each IPU; if there are many IPUs, of the fullest."""
    extents = np.array(wanted.fullest, dtype=np.int64)
    shown = memory_figures.fullest_ipus(extents)
    limit = costs.machine.bytes_per_tile
    return memory_figures.headroom(extents[shown], limit, theme, shown, "largest extent")


def _levers(report: Report, advised: Advised) -> Any:
    """The advisor's proposals besides the split, and how to check them."""
    every = advised.every
    if not every and report.meta["state"] == OUT_OF_MEMORY:
        return common.message(
            "By the costs of this profile no lever makes it fit. What frees most is above."
        )
    if not every:
        return common.message(NO_GAIN)
    rows = [_lever(one, advised.present.samples) for one in every[:MOST_LEVERS]]
    program = shlex.join(Provenance.of(report).program)
    command = f"ipu-report advise {report.argument} --check {program}"
    check = html.P(["To compile each of them: ", html.Code(command)], className="note")
    notes = [html.P(one, className="note") for one in advised.notes]
    return [html.Ol(rows, className="insights"), check, *notes]


def _lever(one: Advice, samples: int) -> Any:
    rate = f"{units.minus(one.rate)} samples a second"
    gain = f"{rate}, {one.gain:.2f} times now" if one.gain else rate
    if one.samples != samples:
        gain += f"; {one.samples:,} samples an update instead of {samples:,}"
    words = [html.B(sentence(one.title)), html.Span(f"{gain}; {one.memory}", className="gain")]
    return html.Li([html.Div(words), common.statements(one.code)])


def _best(costs: Costs, count: int) -> tuple[Split, str]:
    """The quickest split into this many stages, and a description of it.

    For the profiled number also onto fewer IPUs, or back to one, as in `ipu-report rebalance`.
    """
    if count != len(costs.ipus):
        return best_split(costs, count), f"split into {counted(count, 'stage')}"
    return quickest(costs), "split onto these IPUs"


def _numbers(
    report: Report, costs: Costs, now: Prediction, wanted: Prediction, clock: Clock
) -> Any:
    turns = number(report.options, "deviceIterations", 1) if report.imported else 1
    measured = int(analysis.pace(report).cycles / max(1, turns))

    def length(cycles: float) -> str:
        return clock.short(cycles) + (" cycles" if clock.unit == "cycles" else "")

    pace = "pipeline cycle, steady" if costs.pipelined else "a micro-batch"
    slowest = "slowest stage" if costs.pipelined else "work of all stages"
    turn = "a weight update" if costs.training else "a device iteration"
    both, rate = (now, wanted), "samples a second"
    runs = costs.samples > 0 and not wanted.problems
    rows: list[tuple[Any, ...]] = [
        (turn, *(one.total for one in both), length, -1),
        (pace, *(one.pipeline_cycle for one in both), length, -1),
        *([(rate, *(one.samples_per_second for one in both), per_second, 1)] * runs),
        (slowest, *(_paces(costs, one) for one in both), length, -1),
        ("largest extent of a tile", *(max(one.fullest) for one in both), units.size, -1),
    ]
    boxes = []
    for name, before, after, words, good in rows:
        change = (after - before) / before if before else 0.0
        kind = "" if abs(change) < 0.0005 else "better" if change * good > 0 else "worse"
        more = html.Span(units.minus(f"{change:+.1%}") if kind else "", className=kind)
        boxes.append(html.Div([html.B(words(after)), html.Span([name, " ", more])]))
    parts: list[Any] = [html.Div(boxes, className="big")]
    parts += [common.message(words, "error") for words in wanted.problems]
    parts += [common.message(words) for words in wanted.notes]
    parts += [common.message(words) for words in confidence.of_two(report, "splits")]
    if report.imported:
        parts.append(common.message(IMPORTED))
    if measured and wanted.assignment == now.assignment:
        off = now.total / measured - 1
        parts.append(
            common.message(
                f"This is the split that was profiled: {measured:,} cycles; {_off(off)}."
            )
        )
    return parts


def _paces(costs: Costs, prediction: Prediction) -> int:
    """Cycles per micro-batch of the bottleneck: one stage, or all if they take turns."""
    cycles = prediction.stage_cycles
    return int(cycles.max() if costs.pipelined else cycles.sum())


def _off(share: float) -> str:
    """The error of a prediction relative to the profile, in words."""
    if abs(share) < 0.00005:
        return "the prediction is as many"
    return f"the prediction is {abs(share):.2%} {'more' if share > 0 else 'less'}"


def _row(costs: Costs, split: Assignment) -> Any:
    """Blocks in a row, each as wide as its cycles, and the border at which each stage begins.

    assets/viewer.js moves the borders: it reads ``data-split`` and asks for another one.
    """
    work, parts = costs.cycles.work, []
    # characters of "net." in "net.down.0" and "net.up.0"
    shared = os.path.commonprefix(costs.names).rfind(".") + 1  # noqa: RUF071
    for stage, (first, last) in enumerate(split.spans(len(costs))):
        wide = work[first : last + 1].sum() > _LEAST_NAMED * work.sum()
        look: Any = {"style": {"order": 2 * first - 1}}
        parts.append(model_graph.border(costs, split, stage, wide, **look))
        for block in range(first, last + 1):
            forward, backward = (of[block] for of in (costs.cycles.forward, costs.cycles.backward))
            title = f"{costs.names[block]}: forward {forward:,}, backward {backward:,} cycles"
            look = {"style": {"order": 2 * block, "flexGrow": max(1, int(work[block]))}}
            name = html.Bdi(costs.names[block][shared:])
            parts.append(html.Div(name, className=f"block of-{stage % 2}", title=title, **look))
    on = (",".join(map(str, each)) for each in (split.starts, split.ipus))
    data: Any = {"data-split": "@".join(on), "data-blocks": str(len(costs))}
    many = " many" * (len(split.starts) > _MOST_NAMED)
    return html.Div(parts, className=f"split{many}", **data)


def _why(report: Report, costs: Costs, prediction: Prediction) -> Any:
    shown = prediction.assignment
    as_many = len(set(shown.ipus)) == len(set(costs.ipus))
    count = len(costs.ipus) if as_many else len(shown.starts)
    try:
        best, what = _best(costs, count)
    except ValueError as error:
        return common.message(sentence(str(error)), "warning")
    rest = prediction.total - best.prediction.total
    which = "best" if best.proven else "quickest found"
    if best.prediction.assignment == shown:
        lead = f"This is the {which} {what}."
    elif prediction.problems and not best.prediction.problems:
        more = "less" if rest > 0 else "more"
        lead = f"The {which} {what} without these problems takes {abs(rest):,} cycles {more}."
    elif rest > 0:
        lead = f"The {which} {what} takes {rest:,} cycles less."
    elif best.proven:
        lead = f"No {what} is quicker."
    else:
        lead = f"No quicker {what} was found."
    quicker = rest > 0 or best.prediction.assignment == shown
    reasons = best.why if quicker else best.why[:1]  # the others are of a split that is slower
    return [html.P(lead), html.Ul([html.Li(sentence(words) + ".") for words in reasons])]


PAGE = Page("/rebalance", "Rebalance", layout, register, "Which Block goes where")
