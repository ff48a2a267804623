"""Compare: two profiles side by side and their differences, with operators matched by name."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, html

from ipuscope.profiler import Report, analysis
from ipuscope.profiler.analysis.compare import LEVELS
from ipuscope.profiler.analysis.hierarchy import Path
from ipuscope.profiler.report import DAMAGED
from ipuscope.viewer.figures import bars, units
from ipuscope.viewer.figures import pipeline as pipeline_figures
from ipuscope.viewer.figures.drawing import nothing
from ipuscope.viewer.figures.flame import path_of
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, refused, tables
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.pages.tables import Column
from ipuscope.viewer.pages.timespan import Span, pixels
from ipuscope.viewer.profiles import Profiles

NAME = "compare"
_TOTAL = (
    "of a weight update; of a sample where updates have different numbers of samples;"
    " of one execution where one was imported"
)
_OPS = (
    Column("name", "operator"),
    Column("direction", "for", width=100),
    Column("stage_a", "stage, A", ",.0f", width=100),
    Column("stage_b", "stage, B", ",.0f", width=100),
    Column("total_cycles_a", "cycles, A", ",.0f", width=120, tip=_TOTAL),
    Column("total_cycles_b", "cycles, B", ",.0f", width=120, tip=_TOTAL),
    Column("difference", "B − A", "+,.0f", width=120),
    Column("ratio", "B / A", ".3f", width=100),
)
_SCALES = (("one", "to one scale"), ("own", "each to its own"))
_SLIVER = 5  # times as long: the shorter one would be too narrow to read


def _far_apart(a: Report, b: Report) -> bool:
    """Whether a device iteration of one takes many times as long as the other's."""
    low, high = sorted(analysis.pace(one).cycles / one.target.clock_hz for one in (a, b))
    return high > _SLIVER * low > 0


def layout(view: View) -> Any:
    """The page."""
    if not view.beside:
        words = "Choose the profile to compare with above."
        if len(view.profiles) < 2:
            words = "One profile is open. Give two to compare them: ipu-report view A B"
        choice = common.controls(view, compares=True)
        return [choice, common.card("Compare", common.message(words))]
    a, b = view.profiles.pair(view.profile, view.beside)
    names = [("A", f"{a.meta['model']}: {a.path}"), ("B", f"{b.meta['model']}: {b.path}")]
    wrong = [f"{one.path}: {DAMAGED}" for one in (a, b) if one.file.damaged]
    warnings = [common.message(words, "warning") for words in (*wrong, *analysis.caveats(a, b))]
    return [
        common.controls(
            view,
            common.unit_switch(view),
            common.switch(view, "scale", "timelines", _SCALES, _SCALES[_far_apart(a, b)][0]),
            common.search(view, "find", "find an operator"),
            common.hidden(view, "at"),
            compares=True,
        ),
        html.Div(
            [
                common.card("A and B", common.facts(names), *warnings, _measures(a, b)),
                common.figure_card(
                    "From A to B",
                    "compare-path",
                    note=(
                        "What an update waits for on its critical path; the differences add up."
                        " Click a bar: by cause, then module, then IPU. Cycles are those of a"
                        " sample where the updates are not of as many samples."
                    ),
                    height=300,
                    controls=[html.Div(id="compare-trail")],
                ),
            ],
            className="row",
        ),
        common.card(
            "Operators",
            common.filled("compare-ops", awaited=True),
            note="Matched by name. Empty: not in that profile.",
        ),
        *(common.figure_card(f"Timeline of {name}", f"compare-lanes-{name}") for name in "AB"),
    ]


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    clicked = Input("compare-path", "clickData")
    common.sets(app, NAME, "compared", ["at"], clicked, *common.param_state(NAME, "at"))
    common.leads(app, NAME, "compared")

    @app.callback(
        Output("compare-path", "figure"),
        Output("compare-trail", "children"),
        *common.param_input(NAME, "profile", "with", "unit", "at"),
        common.theme_state(),
    )
    def path(profile: Any, beside: Any, unit: Any, at: Any, where: Any) -> Any:
        a, b = profiles.pair(profile, beside)
        theme, clock = common.theme_of(where), Clock(a.target.clock_hz, common.unit_of(unit))
        here = path_of(str(at or ""))[:2]
        frame = analysis.compare_paths(a, b, here)
        if not len(frame) and not here:
            words = "One of them has no schedule."
            if a.imported != b.imported:
                words = "One was imported: its run is not the other's weight update."
            return nothing(words, theme), []
        if not len(frame):
            words = refused.refused("part", at, "neither path has it", "Go back to all.")
            parts = [_trail(here), common.message(words, "warning")]
            return nothing("There is nothing to compare.", theme), parts
        ends = (float(frame["cycles_a"].sum()), float(frame["cycles_b"].sum()))
        return bars.between(frame, ends, clock, theme), _trail(here)

    @app.callback(
        *(Output(f"compare-lanes-{name}", "figure") for name in "AB"),
        *common.param_input(NAME, "profile", "with", "unit", "scale"),
        common.theme_state(),
    )
    def draw(profile: Any, beside: Any, unit: Any, scale: Any, where: Any) -> Any:
        theme, both = common.theme_of(where), profiles.pair(profile, beside)
        clocks = [Clock(report.target.clock_hz, common.unit_of(unit)) for report in both]
        spans = [Span(profiles, report) for report in both]
        lanes = [one.with_steps(one.lanes()) if len(one.report.runs) else None for one in spans]
        pairs = [*zip(lanes, clocks, strict=True)]
        end = max((lane.end / c.hz for lane, c in pairs if lane), default=0.0)
        own = scale == _SCALES[1][0]
        return [
            nothing("it has no schedule", theme)
            if lane is None
            else pipeline_figures.drawing(
                lane, c, theme, (0.0, max(1.0, lane.end if own else end * c.hz)), pixels(where)
            )
            for lane, c in pairs
        ]

    @app.callback(
        Output("compare-ops", "children"),
        *common.param_input(NAME, "profile", "with", "find"),
        common.theme_state(),
    )
    def operators(profile: Any, beside: Any, find: Any, where: Any) -> Any:
        frame = analysis.compare_ops(*profiles.pair(profile, beside))
        order = "The largest differences first."
        if not frame["difference"].any():
            order = "All take as long in both: those with most cycles first."
        words = str(find or "").strip()
        if words:
            frame = frame[frame["name"].str.contains(words, case=False, regex=False)]
        grid = tables.table("compare-grid", frame, _OPS, common.theme_of(where), height=420)
        return [html.P(order, className="note"), grid]


def _trail(at: Path) -> Any:
    """What the bars are of, and the way back."""
    return common.trail("compared", at, f", by {LEVELS[len(at)]}")


def _measures(a: Report, b: Report) -> Any:
    frame = analysis.compare(a, b)
    rows = []
    for row in units.rows_of(frame):
        ratio = f"{row.ratio:.3f}" if row.ratio is not None and row.ratio == row.ratio else ""
        both = [_amount(value, row.unit) for value in (row.a, row.b)]
        name = (
            f"{row.what}, cycles" if row.unit == "cycles" and "cycles" not in row.what else row.what
        )
        sign = "+" if row.difference > 0 else ""
        off = units.minus(_amount(row.difference, row.unit)).replace("%", " points")  # of shares
        cells = [*both, sign + off, ratio]
        rows.append((name, *cells))
    return tables.small(rows, ("", "A", "B", "B − A", "B / A"))


def _amount(value: float, unit: str) -> str:
    if value != value:
        return "–"
    if unit == "bytes":
        return units.size(value)
    if unit == "share":
        return units.percent(value)
    return units.per_second(value) if unit == "1/s" else f"{value:,.0f}"


PAGE = Page(
    "/compare",
    "Compare",
    layout,
    register,
    "Two profiles side by side",
    lambda view: len(view.profiles) > 1,
)
