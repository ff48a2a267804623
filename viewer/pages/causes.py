"""What makes an update slow or a tile full, largest gain first, each with its change."""

from __future__ import annotations

from typing import Any

from dash import Dash, Output, dcc, html

from ipuscope.planner.insights import Insight, insights
from ipuscope.planner.insights.finding import MOST_IN
from ipuscope.profiler import analysis, confidence
from ipuscope.profiler.units import sentence
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common
from ipuscope.viewer.pages.common import View
from ipuscope.viewer.profiles import Profiles

_MOST = 8
_BATCH = (("keep", "keep"), ("change", "may change"))


def card(view: View, id: str) -> Any:
    """The card that `register`'s callback fills."""
    return common.card(
        "What to do about it",
        batch_switch(view),
        common.filled(id, awaited=True),
        note="Largest gain first, then changes of the batch, then causes without a known change.",
    )


def batch_switch(view: View) -> Any:
    """Whether an update may have other samples than now."""
    if view.report.meta["kind"] != "training":
        return common.only(view, "batch", "keep")
    return common.switch(view, "batch", "my global batch", _BATCH, "keep")


def register(app: Dash, profiles: Profiles, page: str, id: str) -> None:
    """Fill the card of a page."""

    @app.callback(Output(id, "children"), *common.param_input(page, "profile", "batch"))
    def show(profile: Any, batch: Any) -> Any:
        report = profiles.get(profile)
        if report.imported:
            return common.message(
                "The causes of slowness are not in this profile: it was imported."
            )
        every = profiles.made(report, "insights", lambda: insights(report))
        shown = [one for one in every if batch == "change" or not one.changes_batch]
        hidden = len(every) - len(shown)
        if not shown:
            beside = f"; {units.count(hidden, 'change')} of the batch left out" if hidden else ""
            return common.message(f"No known change makes it faster or smaller{beside}.")
        clock = Clock(report.target.clock_hz)
        rows = html.Ol([_cause(one, clock) for one in shown[:_MOST]], className="insights")
        likely = confidence.likely(report)
        notes = [f"Gains are of {analysis.turn(report).removeprefix('of ')}."]
        notes += [f"Cycles are {likely}."] if likely else []
        notes += [f"{units.count(hidden, 'change')} of the batch left out."] if hidden else []
        return [rows, html.P(" ".join(notes), className="note")]


def _cause(one: Insight, clock: Clock) -> Any:
    gains = []
    if one.gain_cycles:
        seconds = units.seconds(one.gain_cycles / clock.hz)
        gains.append(f"{units.cycles(one.gain_cycles)} cycles, {seconds}")
    if one.gain_bytes:
        gains.append(units.size(one.gain_bytes))
    how = "at most " if one.at_most else "about " if one.estimate else ""
    gain = f"gains {how}{' and '.join(gains)}" if gains else ""
    why = [one.detail]
    if one.file:
        why += [f" {MOST_IN} ", common.source_link(one.file, one.line), "."]
    change = [html.P([*why, " ", html.B(one.change_in_words)])]
    change += [common.statements(one.code)] if one.code else []
    return html.Li(
        [
            dcc.Link(sentence(one.headline), href=one.where),
            html.Span(gain, className="gain"),
            html.Details([html.Summary("Why, and the change"), *change]),
        ]
    )
