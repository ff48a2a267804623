"""The viewer of a sweep's runs: a table to sort and filter, parallel coordinates, a click to open.

A row's click opens the viewer of that run's profile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from ipuscope.planner.mappings.sweep_runs import settings_of
from ipuscope.viewer import guard as guards
from ipuscope.viewer.alone import THEME, page_alone
from ipuscope.viewer.figures import sweep as figures
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.pages import common, tables
from ipuscope.viewer.pages.tables import Column

# The address of a viewer of a profile; None where there can be none from here
Opener = Callable[[Path], str | None]

_MEASURES = (
    Column("ipus", "IPUs", ",.0f", width=90),
    Column("samples_per_second", "samples/s", ",.2f", width=130),
    Column("cycles", "cycles", ",.0f", width=140),
    Column("fullest_bytes", "largest extent, KiB", ",.0f", width=180, scale=1024),
    Column("problem", "problem", least=160),
)


_AXIS = 150  # pixels of an axis and its name


def create_sweep_app(
    runs: pd.DataFrame, name: str, opener: Opener, guard: guards.Guard | None = None
) -> Dash:
    """The viewer of runs (`sweep_runs.read`). ``name``: the sweep's folder, for the heading."""
    settings = settings_of(runs)
    failed = int((runs["problem"] != "").sum())
    said = f"{len(runs)} runs of {', '.join(settings)}"
    said += f"; {failed} failed" if failed else ""
    title = name if name.lower().startswith("sweep") else f"sweep {name}"
    app = page_alone(
        title,
        [html.H1(title[:1].upper() + title[1:]), html.P(said, className="note")],
        lambda theme: _body(runs, settings, theme),
        guard,
    )
    _register(app, runs, settings, opener)
    return app


def _body(runs: pd.DataFrame, settings: list[str], theme: themes.Theme) -> Any:
    # a dot in a field's name would be a path to AG Grid
    fields = {name: f"setting{number}" for number, name in enumerate(settings)}
    own = [_column(fields[name], name, runs[name]) for name in settings]
    shown = runs[[*settings, *(column.name for column in _MEASURES)]].rename(columns=fields)
    numbers = [column.name for column in _MEASURES if column.format]
    shown[numbers] = shown[numbers].astype(object).where(runs["cycles"] > 0, None)
    return [
        common.card(
            "Settings and what came of them",
            html.Div(
                dcc.Graph(
                    id="sweep-lines",
                    figure=figures.coordinates(runs, settings, theme),
                    config=common.BARE_CONFIG,
                    style={"minWidth": f"{_AXIS * figures.axes(settings)}px"},
                ),
                style={"overflowX": "auto"},  # a phone has room for two axes and their names
            ),
            note="A line a run, the quicker the brighter. A filter of the table below holds here,"
            " too; a click on a line opens its profile.",
        ),
        common.card(
            "Runs",
            tables.table(
                "sweep-table",
                shown.assign(id=range(len(runs))),
                [*own, *_MEASURES],
                theme,
                520,
                row_id="id",
            ),
            html.Div(id="sweep-opened", role="status", style={"marginTop": "12px"}),
            note="Sort by a heading, filter below it; a click on a row opens its profile.",
        ),
    ]


def _column(field: str, name: str, values: pd.Series) -> Column:
    numbers = pd.api.types.is_numeric_dtype(values)
    return Column(field, name, ",.6~g" if numbers else "", width=max(120, 9 * len(name) + 40))


def _register(app: Dash, runs: pd.DataFrame, settings: list[str], opener: Opener) -> None:
    @app.callback(
        Output("sweep-opened", "children"),
        Input("sweep-table", "cellClicked"),
        Input("sweep-lines", "clickData"),
        prevent_initial_call=True,
    )
    def open_run(cell: Any, click: Any) -> Any:
        by_line = ctx.triggered_id == "sweep-lines"
        if not (click if by_line else cell):  # a change of theme makes both anew
            return no_update
        said = click["points"][0]["customdata"] if by_line else cell.get("rowId")
        position = common.whole(said, -1, 0, len(runs) - 1)
        return no_update if position < 0 else opened(runs.iloc[position], opener)

    @app.callback(
        Output("sweep-lines", "figure"),
        Input("sweep-table", "virtualRowData"),
        State(THEME, "data"),
        prevent_initial_call=True,
    )
    def filtered(rows: Any, name: Any) -> Any:
        kept = [common.whole(row.get("id"), -1, 0, len(runs) - 1) for row in rows or ()]
        some = runs.iloc[sorted({one for one in kept if one >= 0})]
        return figures.coordinates(some, settings, themes.theme(name))


def opened(run: Any, opener: Opener) -> Any:
    """What a click on a run shows: a link to its viewer, or why there is none."""
    if not run["profile"]:
        return common.message(f"this run has no profile: {run['problem']}", "warning")
    path = Path(run["profile"])
    address = opener(path)
    command = html.Code(f"ipu-report view {path}")
    if address is None:
        return common.message("from elsewhere, open it with:", "note"), command
    link = html.A(f"Open {path.parent.parent.name}", href=address, target="_blank")
    return html.P([link, " in the viewer (or ", command, ")"])
