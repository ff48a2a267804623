"""Rebalance's check: the shown split and others near it, compiled and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update, set_props

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.split_text import in_address
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.planner.search.verified_splits import Verified
from ipuscope.profiler.provenance import Provenance
from ipuscope.profiler.units import sentence
from ipuscope.viewer.checks import COUNT, Check
from ipuscope.viewer.figures import units
from ipuscope.viewer.pages import common
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
        State(common.param_id(page, "starts"), "value"),
        State(common.param_id(page, "profile"), "value"),
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
        State(common.param_id(page, "starts"), "value"),
        State(common.param_id(page, "profile"), "value"),
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
    lead = (
        html.P(["None of them runs."])
        if first.problem
        else html.P(
            [
                f"{first.prediction.assignment.named(blocks)} is the quickest"
                f" {_of_compiled(len(check.results))}: ",
                dcc.Link(
                    "show it",
                    href=f"/rebalance?starts={in_address(first.prediction.assignment)}",
                ),
            ]
        )
    )
    heads = ("predicted", "compiled", "off by", "largest extent", "compiled")
    numbers = [html.Th(words, className="n") for words in heads]
    table = html.Table(
        [
            html.Thead(html.Tr([html.Th("Blocks a stage"), *numbers, html.Th("")])),
            html.Tbody([_row(one, blocks) for one in check.results]),
        ],
        className="plain",
    )
    return [lead, html.Div(table, className="scroll")]


def _of_compiled(count: int) -> str:
    if count == 1:
        return "and the only split that could be compiled"
    return f"of {count} splits that were compiled"


def _row(one: Verified, blocks: int) -> Any:
    predicted = one.prediction
    numbers = (
        f"{predicted.total:,}",
        f"{one.cycles:,}" if one.cycles else "",
        units.minus(f"{predicted.total / one.cycles - 1:+.2%}") if one.cycles else "",
        units.size(max(predicted.fullest)),
        units.size(max(one.fullest)) if one.fullest else "",
    )
    cells = [html.Td(words, className="n") for words in numbers]
    return html.Tr(
        [html.Td(predicted.assignment.named(blocks)), *cells, html.Td(one.problem or "fits")]
    )
