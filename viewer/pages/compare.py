"""Compare: two profiles side by side and their differences, with operators matched by name."""

from __future__ import annotations

from typing import Any

from dash import Dash, Output, html

from ipuscope.profiler import Report, analysis
from ipuscope.viewer.figures import bars, units
from ipuscope.viewer.figures import memory as memory_figures
from ipuscope.viewer.figures import pipeline as pipeline_figures
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common
from ipuscope.viewer.pages.common import Column, Page, View
from ipuscope.viewer.pages.timeline import lanes_of, pixels, with_steps
from ipuscope.viewer.profiles import Profiles

NAME = "compare"
_TOTAL = "of a weight update; of a sample where updates have different numbers of samples"
_OPS = (
    Column("name", "operator"),
    Column("direction", "for", width=110),
    Column("stage_a", "stage, A", ",.0f", width=100),
    Column("stage_b", "stage, B", ",.0f", width=100),
    Column("total_cycles_a", "cycles, A", ",.0f", width=120, tip=_TOTAL),
    Column("total_cycles_b", "cycles, B", ",.0f", width=120, tip=_TOTAL),
    Column("difference", "B − A", "+,.0f", width=120),
    Column("ratio", "B / A", ".3f", width=100),
)
_MOST_WAITS = 12


def layout(view: View) -> Any:
    """The page."""
    if len(view.profiles) < 2:
        words = "One profile is open. Give two to compare them: ipu-report view A B"
        return [common.controls(view), common.card("Compare", common.message(words))]
    a, b = view.profiles.get(0), view.profiles.get(1)
    return [
        html.Div(
            [
                common.hidden_profile(view),
                common.unit_switch(view),
                common.search(view, "find", "find by name"),
            ],
            className="controls",
        ),
        common.card(
            "A and B",
            common.facts(
                [("A", f"{a.meta['model']}: {a.path}"), ("B", f"{b.meta['model']}: {b.path}")]
            ),
            _measures(a, b),
        ),
        common.card(
            "Where the difference comes from",
            _waits(a, b),
            note=(
                "What an update waits for on its critical path; differences add up to the whole."
                " Cycles are those of a sample where the updates are not of as many samples."
            ),
        ),
        html.Div(
            [_figure(f"Stages of {name}", f"compare-stages-{name}") for name in "AB"],
            className="row",
        ),
        _figure("Pipeline of A", "compare-lanes-A"),
        _figure("Pipeline of B", "compare-lanes-B"),
        html.Div(
            [_figure(f"Memory of {name}", f"compare-memory-{name}") for name in "AB"],
            className="row",
        ),
        common.card(
            "Operators",
            common.filled("compare-ops", awaited=True),
            note="Matched by name, largest differences first. Empty: not in that profile.",
        ),
    ]


def _figure(title: str, id: str) -> Any:
    return common.figure_card(title, id)


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""

    @app.callback(
        *(
            Output(f"compare-{what}-{name}", "figure")
            for what in ("stages", "lanes", "memory")
            for name in "AB"
        ),
        *common.param_input(NAME, "unit"),
        common.theme_state(),
    )
    def draw(unit: Any, where: Any) -> Any:
        theme = common.theme_of(where)
        both = [profiles.get(0), profiles.get(1)]
        clocks = [
            Clock(report.target.clock_hz, "µs" if unit == "µs" else "cycles") for report in both
        ]
        stages = [bars.stage_costs(r.stages, c, theme) for r, c in zip(both, clocks, strict=True)]
        most = max(
            (
                r.stages["cycles"].max() * c.scale
                for r, c in zip(both, clocks, strict=True)
                if len(r.stages)
            ),
            default=1.0,
        )
        for figure in stages:  # on one scale, so that bars can be compared
            figure.update_layout(xaxis={"range": [0, 1.02 * most]})
        lanes = [
            with_steps(profiles, report, 0, 0, lanes_of(profiles, report, 0, 0))
            if len(report.runs)
            else None
            for report in both
        ]
        end = max(
            (lane.end / c.hz for lane, c in zip(lanes, clocks, strict=True) if lane), default=0.0
        )
        drawn = [
            (
                common.nothing(theme, "it holds no schedule")
                if lane is None
                else pipeline_figures.drawing(
                    lane, c, theme, (0.0, max(1.0, end * c.hz)), pixels(where)
                )
            )
            for lane, c in zip(lanes, clocks, strict=True)
        ]
        memory = [_memory(report, theme) for report in both]
        return [*stages, *drawn, *memory]

    @app.callback(
        Output("compare-ops", "children"), *common.param_input(NAME, "find"), common.theme_state()
    )
    def operators(find: Any, where: Any) -> Any:
        frame = analysis.compare_ops(profiles.get(0), profiles.get(1))
        words = str(find or "").strip()
        if words:
            frame = frame[frame["name"].str.contains(words, case=False, regex=False)]
        return common.table("compare-grid", frame, _OPS, common.theme_of(where), height=420)


def _memory(report: Report, theme: Theme) -> Any:
    """The fullest tile of each IPU; if there are many IPUs, of the fullest ones."""
    fullest = analysis.fullest_tiles(report)
    shown = memory_figures.fullest_ipus(fullest)
    return memory_figures.headroom(fullest[shown], report.target.bytes_per_tile, theme, shown)


def _measures(a: Report, b: Report) -> Any:
    frame = analysis.compare(a, b)
    heads = [
        html.Td(""),
        *(html.Th(words, className="n") for words in ("A", "B", "B − A", "B / A")),
    ]
    rows = []
    for row in units.rows_of(frame):
        ratio = f"{row.ratio:.3f}" if row.ratio is not None and row.ratio == row.ratio else ""
        both = [_said(value, row.unit) for value in (row.a, row.b)]
        cells = [*both, _change(row.difference, row.unit), ratio]
        rows.append(
            html.Tr(
                [
                    html.Td(row.what),
                    *(html.Td(words, className="n") for words in cells),
                ]
            )
        )
    return html.Table([html.Thead(html.Tr(heads)), html.Tbody(rows)], className="plain")


def _waits(a: Report, b: Report) -> Any:
    """The largest differences in what the two critical paths wait for, and the sum of the rest."""
    frame = analysis.compare_waits(a, b)
    if not len(frame):
        return common.message("One of them holds no schedule.")
    rows: list[tuple[Any, ...]] = [
        (row.cause, row.where, row.cycles_a, row.cycles_b, row.difference, row.share)
        for row in units.rows_of(frame.head(_MOST_WAITS))
    ]
    rest = frame.iloc[_MOST_WAITS:]
    if len(rest):
        sums = (rest[name].sum() for name in ("cycles_a", "cycles_b", "difference", "share"))
        rows.append((f"{len(rest)} more", "", *sums))
    heads = ("waits for", "where", "A", "B", "B − A", "of the difference")
    return html.Table(
        [
            html.Thead(html.Tr([_cell(html.Th, words, at) for at, words in enumerate(heads)])),
            html.Tbody([html.Tr(_wait_cells(row)) for row in rows]),
        ],
        id="compare-waits",
        className="plain",
    )


def _wait_cells(row: Any) -> list[Any]:
    cause, where, *cycles, share = row
    *both, difference = cycles
    words = [cause, where, *(f"{value:,.0f}" for value in both), _change(difference, "")]
    words.append(units.minus(units.percent(share)) if share == share else "")
    return [_cell(html.Td, one, at) for at, one in enumerate(words)]


def _cell(kind: Any, words: str, at: int) -> Any:
    return kind(words, className="n" if at > 1 else "")


def _change(value: float, unit: str) -> str:
    """A difference with its sign, as the table of operators has it."""
    return ("+" if value > 0 else "") + units.minus(_said(value, unit))


def _said(value: float, unit: str) -> str:
    if value != value:
        return "–"
    if unit == "bytes":
        return units.size(value)
    if unit == "share":
        return units.percent(value)
    return f"{value:,.0f}" + (" cycles" if unit == "cycles" else "")


PAGE = Page("/compare", "Compare", layout, register, "Two profiles side by side")
