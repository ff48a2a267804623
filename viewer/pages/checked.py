"""Rebalance's check: the shown split and others near it, compiled and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import Dash, Input, Output, dcc, html, no_update, set_props

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.split_text import in_address
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.planner.schedules.compared import ASSUMES, compared
from ipuscope.planner.search.verified_splits import Verified
from ipuscope.profiler import confidence
from ipuscope.profiler.provenance import Provenance
from ipuscope.profiler.units import sentence
from ipuscope.viewer.checks import COUNT, Check
from ipuscope.viewer.figures import units
from ipuscope.viewer.pages import common, tables
from ipuscope.viewer.pages.common import View
from ipuscope.viewer.pages.tables import Column, table
from ipuscope.viewer.profiles import Profiles

CHECKED, CHECKING = "rebalance-checked", "rebalance-checking"
_MILLISECONDS = 1000


def button(profiles: Profiles) -> list[Any]:
    """The button that starts a check; nothing if the viewer was given no script."""
    if not profiles.checks.script:
        return []
    title = f"compile this split, the quickest, and those near it, {COUNT} in all, with the script"
    return [html.Button("Check", id="rebalance-check", className="quiet", title=title)]


def card(profiles: Profiles) -> list[Any]:
    """The card that shows the answer."""
    if not profiles.checks.script:
        return []
    script = " ".join(profiles.checks.script)
    return [
        common.card(
            "Compiled",
            html.Div(common.message(f"Check compiles {script}."), id=CHECKED),
            note="Predicted and compiled side by side; the quickest that runs comes first.",
        ),
        dcc.Interval(id=CHECKING, interval=_MILLISECONDS, disabled=True),
    ]


Asked = Callable[[Any, Any], tuple[Costs, Assignment, Provenance]]


def register(app: Dash, profiles: Profiles, asked: Asked, page: str) -> None:
    """Register callbacks. ``asked``: costs, split and provenance, by an address's parameters."""
    if not profiles.checks.script:
        return

    @app.callback(
        Output(CHECKED, "children"),
        Input("rebalance-check", "n_clicks"),
        *common.param_state(page, "starts", "profile"),
        prevent_initial_call=True,
    )
    def begin(clicks: Any, starts: Any, profile: Any) -> Any:
        if not clicks:
            return no_update
        costs, split, made = asked(profile, starts)
        profiles.checks.begin(costs, split, made)
        set_props(CHECKING, {"disabled": False})
        return _result(profiles.checks.now, len(costs))

    @app.callback(
        Output(CHECKED, "children", allow_duplicate=True),
        Output(CHECKING, "disabled"),
        Input(CHECKING, "n_intervals"),
        *common.param_state(page, "starts", "profile"),
        prevent_initial_call=True,
    )
    def look(_: Any, starts: Any, profile: Any) -> Any:
        now = profiles.checks.now
        costs, _, _ = asked(profile, starts)
        return _result(now, len(costs)), not now.running


def _result(check: Check, blocks: int) -> Any:
    if check.problem:
        return common.message(sentence(check.problem) + ".", "error")
    if check.running:
        count = f"{check.done} of {check.total}" if check.total else "the splits"
        return common.message(f"Compiling {count} ...")
    if not check.results:
        return common.message("Nothing was compiled yet.")
    first = check.results[0]
    split = first.prediction.assignment
    quickest = f"{split.named(blocks)} is the quickest {_of_compiled(len(check.results))}: "
    show = dcc.Link("show it", href=f"/rebalance?starts={in_address(split)}")
    lead = html.P(["None of them runs."] if first.problem else [quickest, show])
    heads = ("Blocks a stage", "predicted", "compiled", "off by", "largest extent", "compiled", "")
    table = tables.small([_row(one, blocks) for one in check.results], heads, (0, 6))
    return [lead, html.Div(table, className="scroll")]


def _of_compiled(count: int) -> str:
    if count == 1:
        return "and the only split that could be compiled"
    return f"of {count} splits that were compiled"


def _row(one: Verified, blocks: int) -> tuple[str, ...]:
    predicted = one.prediction
    return (
        predicted.assignment.named(blocks),
        f"{predicted.total:,}",
        f"{one.cycles:,}" if one.cycles else "",
        units.minus(f"{predicted.total / one.cycles - 1:+.2%}") if one.cycles else "",
        units.size(max(predicted.fullest)),
        units.size(max(one.fullest)) if one.fullest else "",
        one.problem or "fits",
    )


_BUTTON, _ROWS = "rebalance-schedules", "rebalance-schedules-rows"
_SCHEDULES = (
    Column("schedule", "schedule", width=130),
    Column("words", "how", least=300),
    Column("stages", "stages", ",.0f", width=80),
    Column("cycles", "cycles", ",.0f", width=130, tip="all IPUs meet after every step"),
    Column("change", "change", "+.1%", width=110),
    Column("free_change", "free", "+.1%", width=110, tip="each IPU waits only for what it reads"),
    Column("stash", "stash, KiB", ",.0f", width=110, scale=1024, tip="IPU with most, all tiles"),
    Column("memory", "memory", least=90),
    Column("runs", "in PopTorch", width=110),
)


def schedules_card(view: View) -> Any:
    """The card; a click fills its table, which takes seconds for a large model."""
    button = html.Button("Compare schedules", id=_BUTTON, className="quiet")
    return common.card(
        "Other schedules",
        html.Div([button], className="buttons"),
        common.filled(_ROWS),
        note="What another order of the same work would take: 1F1B, zero bubble, DualPipe-V ...",
    )


def register_schedules(app: Dash, profiles: Profiles, asked: Asked, page: str) -> None:
    """Register callbacks. ``asked``: costs, split and provenance, by an address's parameters."""

    @app.callback(
        Output(_ROWS, "children"),
        Input(_BUTTON, "n_clicks"),
        *common.param_state(page, "starts", "profile"),
        common.theme_state(),
        prevent_initial_call=True,
    )
    def compare(clicks: Any, starts: Any, profile: Any, where: Any) -> Any:
        if not clicks:
            return no_update
        report = profiles.get(profile)
        costs, assignment, _ = asked(profile, starts)
        try:
            rows, _ = compared(report, costs, assignment)
        except ValueError as error:
            return common.message(sentence(str(error)))
        answered = rows[rows["note"] == ""]
        notes = [f"{row.schedule}: {row.note}." for row in rows[rows["note"] != ""].itertuples()]
        notes += confidence.of_two(report, "schedules")
        return [
            table("rebalance-schedules-grid", answered, _SCHEDULES, common.theme_of(where)),
            html.P(" ".join([*notes, ASSUMES]), className="note"),
        ]
