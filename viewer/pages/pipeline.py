"""Pipeline: one lane an IPU, ramp-up to ramp-down.

What each IPU does when, and which one the others wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import Dash, Output, html

from profiler import Report
from viewer.figures import pipeline as figures
from viewer.figures import units
from viewer.figures.pipeline import Lanes
from viewer.figures.theme import Theme
from viewer.figures.units import Clock
from viewer.pages import common
from viewer.pages.common import Page, View
from viewer.profiles import Profiles

if TYPE_CHECKING:
    import pandas as pd

NAME = "pipeline"
MARGINS = 140  # pixels of the figure beside its lanes


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
            common.switch(
                view,
                "lanes",
                "like lanes",
                (("folded", "folded"), ("all", "each")),
                fold_default(report),
            ),
            common.hidden(view, "from"),
            common.hidden(view, "to"),
        ),
        *common.predicted(view),
        common.figure_card(
            "Pipeline",
            "pipeline-lanes",
            note=(
                "Large: what the IPU works on, with micro-batch numbers. Strip: its steps. "
                "Red: the critical path, which alone sets how long this takes. What is too"
                " narrow to tell apart is filled in proportion."
            ),
            height=460,
        ),
        html.Div(
            [
                common.figure_card("Busy and waiting", "pipeline-busy", height=190),
                common.card(
                    "Phases", common.filled("pipeline-phases"), note="of the device iteration"
                ),
            ],
            className="row",
        ),
    ]


def lanes_of(
    profiles: Profiles, report: Report, run: int, iteration: int, fold: bool = False
) -> Lanes:
    """A device iteration ready to be drawn, with its steps where there is room for them."""

    def make() -> Lanes:
        tasks = report.tasks(run, iteration=iteration)
        cycles = report.pipeline_cycles(run, iteration)
        lanes = figures.lanes(tasks, tasks.iloc[:0], cycles, report.stages, fold)
        if len(lanes.shown) > figures.FEW:
            return lanes
        return figures.lanes(
            tasks, _steps(report, run, iteration, lanes, fold), cycles, report.stages, fold
        )

    return profiles.made(report, ("lanes", run, iteration, fold), make)


def _steps(report: Report, run: int, iteration: int, lanes: Lanes, fold: bool) -> pd.DataFrame:
    """The steps of the IPUs that are shown."""
    import pandas as pd

    if not fold:
        return report.steps(run, iteration=iteration)
    return pd.concat([report.steps(run, ipu, iteration) for ipu in lanes.shown.tolist()])


def fold_default(report: Report) -> str:
    """Whether like lanes are folded where nobody said: where there are many."""
    return "folded" if report.target.num_ipus > figures.FEW else "all"


def register(app: Dash, profiles: Profiles) -> None:
    """Callbacks of the page."""
    common.zooms(app, NAME, "pipeline-lanes")

    @app.callback(
        Output("pipeline-lanes", "figure"),
        Output("pipeline-busy", "figure"),
        Output("pipeline-phases", "children"),
        *common.param_input(
            NAME, "profile", "run", "iteration", "unit", "follow", "from", "to", "lanes"
        ),
        common.theme_state(),
    )
    def draw(
        profile: Any,
        run: Any,
        iteration: Any,
        unit: Any,
        follow: Any,
        low: Any,
        high: Any,
        lanes_as: Any,
        where: dict[str, Any],
    ) -> Any:
        report = profiles.get(common.whole(profile, 0))
        run = common.whole(run, 0, 0, max(0, len(report.runs) - 1))
        iteration = common.whole(
            iteration, 0, 0, max(0, int(report.runs["iterations"].iloc[run]) - 1)
        )
        lanes = lanes_of(profiles, report, run, iteration, lanes_as == "folded")
        clock = Clock(report.target.clock_hz, "µs" if unit == "µs" else "cycles")
        theme = common.theme_of(where)
        window = common.window(low, high, lanes.end)
        pixels = max(
            300,
            common.whole((where or {}).get("width"), figures.PIXELS + MARGINS, 0, 8000) - MARGINS,
        )
        batch = common.whole(follow, -1)
        figure = figures.pipeline(
            lanes, clock, theme, window, pixels, batch if batch >= 0 else None
        )
        keep_zoom(figure, NAME, clock, window, (run, iteration, lanes_as))
        busy = figures.busy(lanes, clock, theme, window)
        return figure, busy, _phases(report, run, iteration, clock, theme)


def keep_zoom(figure: Any, page: str, clock: Clock, window: Any, key: Any) -> None:
    """Zoom comes from the address, legend switches stay as they are."""
    common.zoomable(figure, page, clock.scale).update_layout(
        uirevision="same",
        xaxis={"uirevision": f"{window}{key}{clock.unit}"},
        legend={"uirevision": "same"},
    )


def _phases(report: Report, run: int, iteration: int, clock: Clock, theme: Theme) -> Any:
    cycles = report.pipeline_cycles(run, iteration)
    total = max(1, int(cycles["cycles"].sum()))
    header = [
        html.Th("phase"),
        *(html.Th(words, className="n") for words in ("pipeline cycles", "cycles", "time", "")),
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
