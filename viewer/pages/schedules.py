"""Rebalance's other pipeline schedules: the cycles and the memory of each for the shown split."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, html, no_update

from ipuscope.planner.schedules.compared import ASSUMES, compared
from ipuscope.profiler import confidence
from ipuscope.profiler.units import sentence
from ipuscope.viewer.pages import common
from ipuscope.viewer.pages.checked import Asked
from ipuscope.viewer.pages.common import View
from ipuscope.viewer.pages.tables import Column, table
from ipuscope.viewer.profiles import Profiles

_BUTTON, _ROWS = "rebalance-schedules", "rebalance-schedules-rows"
_COLUMNS = (
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


def card(view: View) -> Any:
    """The card; a click fills its table, which takes seconds for a large model."""
    button = html.Button("Compare schedules", id=_BUTTON, className="quiet")
    return common.card(
        "Other schedules",
        html.Div([button], className="buttons"),
        common.filled(_ROWS),
        note="What another order of the same work would take: 1F1B, zero bubble, DualPipe-V ...",
    )


def register(app: Dash, profiles: Profiles, asked: Asked, page: str) -> None:
    """Register callbacks. ``asked``: costs, split and provenance, by an address's parameters."""

    @app.callback(
        Output(_ROWS, "children"),
        Input(_BUTTON, "n_clicks"),
        State(common.param_id(page, "starts"), "value"),
        State(common.param_id(page, "profile"), "value"),
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
        if within := confidence.likely(report):
            notes.append(f"Cycles are {within}; two schedules share most of that.")
        return [
            table("rebalance-schedules-grid", answered, _COLUMNS, common.theme_of(where)),
            html.P(" ".join([*notes, ASSUMES]), className="note"),
        ]
