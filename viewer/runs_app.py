"""The viewer of many runs: a table to sort and filter, parallel coordinates, a click to open.

A row's click opens the viewer of that run's profile.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from ipuscope.profiler.analysis.runs import settings_of
from ipuscope.viewer import guard as guards
from ipuscope.viewer.alone import THEME, page_alone
from ipuscope.viewer.figures import runs as figures
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.pages import common, tables
from ipuscope.viewer.pages.tables import Column

# The address of a viewer of a profile; None where there can be none from here
Opener = Callable[[Path], str | None]

_MEASURES = (
    Column("samples_per_second", "samples/s", ",.2f", width=130),
    Column("cycles", "cycles", ",.0f", width=160),
    Column("fullest_bytes", "largest extent, KiB", ",.0f", width=180, scale=1024),
    Column("memory", "memory", width=140),
    Column("place", "profile", least=160),
)
_AXIS = 150  # pixels of an axis and its name


def create_runs_app(
    runs: pd.DataFrame, name: str, opener: Opener, guard: guards.Guard | None = None
) -> Dash:
    """The viewer of `ipuscope.profiler.analysis.runs.runs`. ``name``: of their folder."""
    settings = settings_of(runs)
    over = int((~runs["fits"]).sum())
    names = ", ".join(map(str, settings))
    said = f"{len(runs)} runs; {f'{names} differ' if names else 'nothing differs'}"
    said += f"; {over} out of memory" if over else ""
    app = page_alone(
        f"runs of {name}",
        [html.H1(f"Runs of {name}"), html.P(said, className="note")],
        lambda theme: _body(runs, settings, theme),
        guard,
    )
    _register(app, runs, settings, opener)
    return app


def _body(runs: pd.DataFrame, settings: pd.DataFrame, theme: themes.Theme) -> Any:
    # a dot in a field's name would be a path to AG Grid
    fields = {str(name): f"setting{number}" for number, name in enumerate(settings)}
    own = [_column(fields[name], name, settings[name]) for name in fields]
    shown = settings.rename(columns=fields).join(
        runs.assign(
            memory=["fits" if fits else "out of memory" for fits in runs["fits"]],
            id=range(len(runs)),
        )[[*(column.name for column in _MEASURES), "id"]]
    )
    return [
        common.card(
            "Settings and what came of them",
            html.Div(
                dcc.Graph(
                    id="runs-lines",
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
            tables.table("runs-table", shown, [*own, *_MEASURES], theme, 520, row_id="id"),
            html.Div(id="runs-opened", role="status", style={"marginTop": "12px"}),
            note="Sort by a heading, filter below it; a click on a row opens its profile.",
        ),
    ]


def _column(field: str, name: str, values: pd.Series) -> Column:
    numbers = pd.api.types.is_numeric_dtype(values)
    return Column(field, name, ",.6~g" if numbers else "", width=max(120, 9 * len(name) + 40))


def _register(app: Dash, runs: pd.DataFrame, settings: pd.DataFrame, opener: Opener) -> None:
    @app.callback(
        Output("runs-opened", "children"),
        Input("runs-table", "cellClicked"),
        Input("runs-lines", "clickData"),
        prevent_initial_call=True,
    )
    def open_run(cell: Any, click: Any) -> Any:
        by_line = ctx.triggered_id == "runs-lines"
        if not (click if by_line else cell):  # a change of theme makes both anew
            return no_update
        said = click["points"][0]["customdata"] if by_line else cell.get("rowId")
        position = common.whole(said, -1, 0, len(runs) - 1)
        return no_update if position < 0 else opened(runs.iloc[position], opener)

    @app.callback(
        Output("runs-lines", "figure"),
        Input("runs-table", "virtualRowData"),
        State(THEME, "data"),
        prevent_initial_call=True,
    )
    def filtered(rows: Any, name: Any) -> Any:
        kept = [common.whole(row.get("id"), -1, 0, len(runs) - 1) for row in rows or ()]
        some = runs.iloc[sorted({one for one in kept if one >= 0})]
        return figures.coordinates(some, settings, themes.theme(name))


def opened(run: Any, opener: Opener) -> Any:
    """What a click on a run shows: a link to its viewer, or the command that opens it."""
    path = Path(run["profile"])
    address = opener(path)
    command = html.Code(f"ipu-report view {path}")
    if address is None:
        return common.message("from elsewhere, open it with:", "note"), command
    link = html.A(f"Open {path.parent.parent.name}", href=address, target="_blank")
    return html.P([link, " in the viewer (or ", command, ")"])
