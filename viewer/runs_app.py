"""A page of many runs, or of a plan's mappings: parallel coordinates, a table, a click to open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

# The address of a profile's viewer; None if there can be none from here
Opener = Callable[[Path], str | None]

_RANK = Column("rank", "", ",.0f", width=60)
_MEASURES = (
    Column("samples_per_second", "samples/s", ",.2f", width=130),
    Column("cycles", "cycles", ",.0f", width=160),
    Column("fullest_bytes", "largest extent, KiB", ",.0f", width=180, scale=1024),
    Column("memory", "memory", width=140),
    Column("place", "profile", least=160),
    Column("problem", "problem", least=160),
)
_AXIS = 150  # pixels of an axis and its name


def create_runs_app(
    runs: pd.DataFrame, name: str, opener: Opener, guard: guards.Guard | None = None
) -> Dash:
    """The viewer of `ipuscope.profiler.analysis.runs.runs`. ``name``: their folder's."""
    settings = settings_of(runs)
    over = int((~runs["fits"]).sum())
    names = ", ".join(map(str, settings))
    note = f"{len(runs)} runs; {f'{names} differ' if names else 'nothing differs'}"
    note += f"; {over} out of memory" if over else ""
    shown = runs.assign(memory=["fits" if fits else "out of memory" for fits in runs["fits"]])
    app = rows_app(f"Runs of {name}", note, shown, settings, guard=guard)
    register(app, shown, settings, lambda at: opened(runs.iloc[at], opener))
    return app


def rows_app(
    title: str,
    note: str,
    rows: pd.DataFrame,
    settings: pd.DataFrame,
    above: Sequence[Any] = (),
    first: Any = (),
    guard: guards.Guard | None = None,
) -> Dash:
    """A page of alternatives: lines through settings and measures, a table, a click to open one.

    ``rows`` has `_MEASURES`; ``note``: below the title; ``above``: cards; ``first``: opened at
    first.
    """

    def body(theme: themes.Theme) -> Any:
        return [*above, *_body(rows, settings, first, theme)]

    head = [html.H1(title), html.P(note, className="note")]
    return page_alone(title, head, body, guard)


def _body(rows: pd.DataFrame, settings: pd.DataFrame, first: Any, theme: themes.Theme) -> Any:
    # a dot in a field's name would be a path to AG Grid
    fields = {str(name): f"setting{number}" for number, name in enumerate(settings)}
    own = [_RANK] if "rank" in rows else []
    own += [_column(fields[name], name, settings[name]) for name in fields]
    measures = [column for column in _MEASURES if column.name in rows]
    shown = settings.rename(columns=fields).join(
        rows.assign(id=range(len(rows)))[
            [*(one.name for one in measures), *({"rank"} & {*rows}), "id"]
        ]
    )
    return [
        common.card(
            "Settings and what came of them",
            html.Div(
                dcc.Graph(
                    id="runs-lines",
                    figure=figures.coordinates(rows, settings, theme),
                    config=common.BARE_CONFIG,
                    style={"minWidth": f"{_AXIS * figures.axes(settings)}px"},
                ),
                style={"overflowX": "auto"},  # a phone has room for two axes and their names
            ),
            note="One line per row of the table, the quicker the brighter. The table's filter"
            " applies here too; click a line to open it.",
        ),
        common.card(
            "All of them",
            tables.table("runs-table", shown, [*own, *measures], theme, 520, row_id="id"),
            html.Div(first, id="runs-opened", role="status", style={"marginTop": "12px"}),
            note="Sort by a heading, filter below it; click a row to open it.",
        ),
    ]


def _column(field: str, name: str, values: pd.Series) -> Column:
    numbers = pd.api.types.is_numeric_dtype(values)
    return Column(field, name, ",.6~g" if numbers else "", width=max(120, 9 * len(name) + 40))


def register(
    app: Dash, rows: pd.DataFrame, settings: pd.DataFrame, opened: Callable[[int], Any]
) -> None:
    """Register the callbacks of `rows_app`. ``opened``: shown below a row that is clicked."""

    @app.callback(
        Output("runs-opened", "children"),
        Input("runs-table", "cellClicked"),
        Input("runs-lines", "clickData"),
        prevent_initial_call=True,
    )
    def open_run(cell: Any, click: Any) -> Any:
        by_line = ctx.triggered_id == "runs-lines"
        if not (click if by_line else cell):  # a change of theme redraws both
            return no_update
        number = click["points"][0]["customdata"] if by_line else cell.get("rowId")
        position = common.whole(number, -1, 0, len(rows) - 1)
        return no_update if position < 0 else opened(position)

    @app.callback(
        Output("runs-lines", "figure"),
        Input("runs-table", "virtualRowData"),
        State(THEME, "data"),
        prevent_initial_call=True,
    )
    def filtered(shown: Any, name: Any) -> Any:
        positions = [common.whole(row.get("id"), -1, 0, len(rows) - 1) for row in shown or ()]
        some = rows.iloc[sorted({one for one in positions if one >= 0})]
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
