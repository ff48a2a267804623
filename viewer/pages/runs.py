"""Alternatives as lines and a table: the runs that are listed, or the mappings of a plan.

The page Runs has those of the directories named at the start; Rebalance also has the plans that
`ipu-run --plan --write` left beside its profile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from ipuscope.planner.mappings import Plan
from ipuscope.profiler.analysis.runs import runs, settings_of
from ipuscope.viewer.figures import runs as figures
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.pages import common, plans, tables
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.pages.tables import Column
from ipuscope.viewer.profiles import Profiles

NAME = "runs"
RUNS = "runs"  # the listed profiles; other values of the parameter *rows* are a plan's file

_FIRST = (Column("rank", "", ",.0f", width=60), Column("place", "profile", width=170))
_MEASURES = (
    Column("samples_per_second", "samples/s", ",.2f", width=130),
    Column("cycles", "cycles", ",.0f", width=160),
    Column("fullest_bytes", "largest extent, KiB", ",.0f", width=180, scale=1024),
    Column("memory", "memory", width=140),
    Column("problem", "problem", least=160),
)
_AXIS = 150  # pixels of an axis and its name


@dataclass(frozen=True)
class Rows:
    """Alternatives: ``frame`` has `_MEASURES`, ``settings`` what differs between them.

    ``opened``: what a click on a row shows; ``first``: shown before one.
    """

    frame: pd.DataFrame
    settings: pd.DataFrame
    opened: Callable[[int], Any]
    first: Any = ()
    note: str = ""


def layout(view: View) -> Any:
    """The page of the runs that are listed."""
    return [
        common.controls(view, common.only(view, "rows", RUNS)),
        common.filled("runs-rows", awaited=True),
    ]


def part(view: View) -> list[Any]:
    """The same beside a profile: its plans, and the other runs; nothing without either."""
    files = [*plans.beside(view.report.path)]
    options = [(file, f"plan {Path(file).name}") for file in files]
    options += [(RUNS, "runs")] if len(view.profiles.named) > 1 else []
    if not options:
        return []
    which = common.choice(view, "rows", "plans and runs", options, options[0][0])
    return [html.Div([which], className="controls"), common.filled("runs-rows", awaited=True)]


def rows_of(profiles: Profiles, profile: Any, which: Any) -> Rows:
    """The rows that the parameter *rows* asks for."""
    report = profiles.get(profile)
    plan = plans.beside(report.path).get(str(which)) if which != RUNS else None
    return of_runs(profiles) if plan is None else of_plan(plan, str(which))


def of_plan(plan: Plan, path: str) -> Rows:
    """The mappings of a plan. ``path``: its file, for the commands."""
    opened = partial(plans.opened, plan, path=path)
    return Rows(*plans.rows(plan), opened, opened(0), plans.lead(plan))


def of_runs(profiles: Profiles) -> Rows:
    """The profiles that were named at the start."""
    table = profiles.made(profiles.get(), RUNS, lambda: runs(profiles.named.values())[0])
    keys = {str(path): key for key, path in profiles.named.items()}
    settings, over = settings_of(table), int((~table["fits"]).sum())
    names = ", ".join(map(str, settings))
    note = f"{len(table)} runs; {f'{names} differ' if names else 'nothing differs'}"
    note += f"; {over} out of memory" if over else ""
    shown = table.assign(memory=["fits" if fits else "out of memory" for fits in table["fits"]])
    return Rows(shown, settings, lambda at: opened(table.iloc[at], keys), note=note)


def opened(run: Any, keys: Mapping[str, str]) -> Any:
    """What a click on a run shows: links to its profile, and the command that opens it alone."""
    path, key = Path(run["profile"]), keys.get(run["profile"])
    show = common.link(f"Open {run['place']}", "", profile=key)
    compare = common.link("compare with it", "compare", **{"with": key})
    return html.P(common.separated([show, compare, html.Code(f"ipu-report view {path}")]))


def cards(rows: Rows, theme: Theme) -> list[Any]:
    """Lines through settings and measures, and a table."""
    frame, settings = rows.frame, rows.settings
    # a dot in a field's name would be a path to AG Grid
    fields = {str(name): f"setting{number}" for number, name in enumerate(settings)}
    own = [column for column in _FIRST if column.name in frame]
    measures = [column for column in _MEASURES if column.name in frame]
    taken = [one.name for one in (*own, *measures)]
    own += [_column(fields[name], name, settings[name]) for name in fields]
    shown = settings.rename(columns=fields).join(frame.assign(id=range(len(frame)))[[*taken, "id"]])
    return [
        common.card(
            "Settings and what came of them",
            html.Div(
                dcc.Graph(
                    id="runs-lines",
                    figure=figures.coordinates(frame, settings, theme),
                    config=common.BARE_CONFIG,
                    style={"minWidth": f"{_AXIS * figures.axes(settings)}px"},
                ),
                style={"overflowX": "auto"},  # a phone has room for two axes and their names
            ),
            note=f"{rows.note}. One line per row of the table, the quicker the brighter. The"
            " table's filter applies here too; click a line to open it.",
        ),
        common.card(
            "All of them",
            tables.table("runs-table", shown, [*own, *measures], theme, 520, row_id="id"),
            html.Div(rows.first, id="runs-opened", role="status", style={"marginTop": "12px"}),
            note="Sort by a heading, filter below it; click a row to open it.",
        ),
    ]


def _column(field: str, name: str, values: pd.Series) -> Column:
    numbers = pd.api.types.is_numeric_dtype(values)
    return Column(field, name, ",.6~g" if numbers else "", width=max(120, 9 * len(name) + 40))


_WHICH = tuple({"page": ALL, "param": name} for name in ("profile", "rows"))


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page, and of the part of Rebalance."""

    @app.callback(
        Output("runs-rows", "children"),
        *(Input(one, "value") for one in _WHICH),
        common.theme_state(),
    )
    def fill(profile: Any, which: Any, where: Any) -> Any:
        return cards(rows_of(profiles, *_first(profile, which)), common.theme_of(where))

    register_rows(app, lambda *asked: rows_of(profiles, *_first(*asked)))


def _first(*values: list[Any]) -> list[Any]:
    return [(one or [RUNS])[0] for one in values]


def register_rows(app: Dash, rows_of: Callable[..., Rows]) -> None:
    """Register the callbacks of `cards`. ``rows_of``: rows by the values of `_WHICH`."""
    states = [State(one, "value") for one in _WHICH]

    @app.callback(
        Output("runs-opened", "children"),
        Input("runs-table", "cellClicked"),
        Input("runs-lines", "clickData"),
        *states,
        prevent_initial_call=True,
    )
    def open_run(cell: Any, click: Any, *which: Any) -> Any:
        by_line = ctx.triggered_id == "runs-lines"
        if not (click if by_line else cell):  # a change of theme redraws both
            return no_update
        number = click["points"][0]["customdata"] if by_line else cell.get("rowId")
        rows = rows_of(*which)
        position = common.whole(number, -1, 0, len(rows.frame) - 1)
        return no_update if position < 0 else rows.opened(position)

    @app.callback(
        Output("runs-lines", "figure"),
        Input("runs-table", "virtualRowData"),
        *states,
        common.theme_state(),
        prevent_initial_call=True,
    )
    def filtered(shown: Any, *which: Any) -> Any:
        *asked, where = which
        rows = rows_of(*asked)
        positions = [common.whole(row.get("id"), -1, 0, len(rows.frame) - 1) for row in shown or ()]
        some = rows.frame.iloc[sorted({one for one in positions if one >= 0})]
        return figures.coordinates(some, rows.settings, common.theme_of(where))


PAGE = Page(
    "/runs",
    "Runs",
    layout,
    register,
    "The runs of a directory, their settings and speed",
    lambda view: len(view.profiles.named) > 2,
)
