"""Query: read-only SQL on the profile in a drawer; the address has the statement that ran."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
from dash import ALL, Dash, Input, Output, State, dcc, html

from ipuscope.profiler import Report
from ipuscope.profiler.file import records, schema
from ipuscope.profiler.report import query as queries
from ipuscope.viewer.figures import units
from ipuscope.viewer.pages import common, refused, tables
from ipuscope.viewer.pages.common import View
from ipuscope.viewer.pages.tables import Column
from ipuscope.viewer.profiles import Profiles

NAME = "query"
SECONDS = 10
MOST_ROWS = 2000
_FORBIDDEN = "not authorized"  # SQLite's word for what its authorizer refuses
ANSWER_BYTES = 1 << 20
_MOST_CHARACTERS = 4000  # of a statement: it has to fit an address
_EXACT = 1 << 53  # whole numbers below are exact in a browser

# Tables and views of calls: a model that was only compiled has no rows in them.
OF_CALLS = (
    *("runs", "iterations", "host_events", "host_values", "run_cycles", "execution_steps"),
    *("stage_micro_batches", "steps", "steps_by_ipu", "execution_cycle_totals"),
)
_WRITTEN = (Path(__file__).parents[1] / "assets" / "examples.sql").read_text(encoding="utf-8")
EXAMPLES: tuple[tuple[str, str], ...] = tuple(  # title and statement
    re.findall(r"^-- (.*)\n(\w[^;]*);", _WRITTEN, re.MULTILINE)
)


def panel(view: View) -> Any:
    """The drawer; a statement in its address is run at once."""
    asked = _statement(view)
    options = [{"value": str(at), "label": title} for at, (title, _) in enumerate(EXAMPLES)]
    example = dcc.Dropdown(
        id="query-example", options=options, placeholder="choose one", searchable=False
    )
    about = f"Only reading; at most {MOST_ROWS:,} rows and {SECONDS} seconds."
    listing = html.Details([html.Summary("Tables and views"), _tables_and_views()])
    run = html.Button("Run", id="query-run", className="strong", title="Ctrl+Enter", n_clicks=0)
    close = html.Button("Close", id="query-close", className="quiet")
    return common.drawer(
        (
            "SQL",
            [
                *common.misfits(view),
                html.Div([common.control("example", example)], className="controls"),
                common.hidden(view, "sql", asked),
                html.Label("One SELECT", htmlFor="query-text", className="label"),
                dcc.Textarea(
                    id="query-text",
                    value=asked,
                    maxLength=_MOST_CHARACTERS,
                    spellCheck=False,
                    className="code",
                ),
                html.P(about, className="note"),
                html.Div([run, close, listing], className="under beside"),
            ],
        ),
        ("Rows", common.filled("query-rows")),
    )


def _statement(view: View) -> str:
    """The statement of the address, or else the first example."""
    asked = view.params.get("sql", "")
    if len(asked) > _MOST_CHARACTERS:
        there = f"one may have {_MOST_CHARACTERS:,} characters, and this has {len(asked):,}"
        words = refused.refused("statement", asked, there, "This is the first example.")
        view.refuse("sql", words)
        asked = ""
    return asked or EXAMPLES[0][1]


def _tables_and_views() -> Any:
    """What can be queried: every table and view with its columns."""
    columns = {view.name: view.columns for view in schema.VIEWS}
    for record in records.TABLES:
        columns[record.table] = ", ".join(column.name for column in schema.columns(record))
    return common.facts(sorted(columns.items()))


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the drawer."""

    @app.callback(
        Output("query-drawer", "children"),
        *common.param_input(NAME, NAME),
        common.theme_state(),
        prevent_initial_call=True,
    )
    def opened(query: Any, where: Any) -> Any:
        params = common.parse((where or {}).get("search"))
        view = View(profiles, NAME, params, common.theme_of(where))
        return panel(view) if query else []

    app.clientside_callback(
        "function(clicks, text) {"
        " return clicks && text ? text : window.dash_clientside.no_update; }",
        Output(common.param_id(NAME, "sql"), "value"),
        Input("query-run", "n_clicks"),
        State("query-text", "value"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("query-text", "value"),
        Output(common.param_id(NAME, "sql"), "value", allow_duplicate=True),
        Input("query-example", "value"),
        prevent_initial_call=True,
    )
    def example(which: Any) -> Any:
        _, sql = EXAMPLES[common.whole(which, 0, 0, len(EXAMPLES) - 1)]
        return sql, sql

    @app.callback(
        Output("query-rows", "children"),
        Input({"page": ALL, "param": "profile"}, "value"),
        *common.param_input(NAME, "sql"),
        common.theme_state(),
    )
    def rows(profile: Any, sql: Any, where: Any) -> Any:
        report = profiles.get((profile or [0])[0])
        try:
            answer = answer_of(report, sql)
        except queries.QueryError as error:
            return common.message(_refusal(str(error)), "error")
        hint = [] if len(answer.rows) else _none_profiled(report, sql)
        return [*hint, *_table(answer, common.theme_of(where))]


def answer_of(report: Report, sql: Any) -> queries.Answer:
    """The answer to a statement. Raises QueryError if there is none."""
    words = str(sql or "").strip()
    if len(words) > _MOST_CHARACTERS:
        raise queries.QueryError(f"a statement may have {_MOST_CHARACTERS:,} characters")
    return queries.select(report, words, SECONDS, MOST_ROWS, ANSWER_BYTES)


def _none_profiled(report: Report, sql: Any) -> list[Any]:
    """A message where there are no rows because no call was profiled."""
    named = re.findall(r"\w+", str(sql).lower())
    of_calls = [name for name in OF_CALLS if name in named]
    if not report.predicted or not of_calls:
        return []
    words = (
        f"No call was profiled, so {of_calls[0]} has no rows: the model was only compiled. Pages"
        " of time draw the schedule that this predicts."
    )
    return [common.message(words)]


def _table(answer: queries.Answer, theme: Any) -> Any:
    """The rows, to sort and filter; columns go by position, as their names may be anything."""
    columns = []
    for at, name in enumerate(answer.columns):
        cells = answer[name].tolist()
        numbers = queries.is_numeric(cells)
        whole = numbers and all(value is None or value % 1 == 0 for value in cells)
        form = "" if not numbers else ",.0f" if whole else ",.6g"
        columns.append(Column(f"c{at}", str(name), form, width=150 if numbers else 0))
    names = [column.name for column in columns]
    shown = pd.DataFrame(list(answer.rows), columns=names, dtype=object).map(_cell)
    count = units.count(len(answer), "row")
    more = f"the first {count}; there are more" if answer.cut else count
    return [
        html.P(more, className="note", role="status"),
        tables.table("query-table", shown, columns, theme, height=400),
    ]


def _cell(value: object) -> object:
    """A value for the browser: integers beyond its exact range become text."""
    return str(value) if isinstance(value, int) and abs(value) > _EXACT else value


def _refusal(words: str) -> str:
    """Why there is no answer, as a sentence: only some of SQLite's end in a full stop."""
    more = " One SELECT of the profile's tables and views is answered." * (words == _FORBIDDEN)
    return f"No answer: {words.rstrip('.')}.{more}"
