"""The viewer of a plan alone, without a profile: one page, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, dcc, html, no_update

from ipuscope.planner.mappings import Plan
from ipuscope.viewer import guard as guards
from ipuscope.viewer.app import INDEX
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.pages import common, runs


def create_plan_app(plan: Plan, path: str, guard: guards.Guard | None = None) -> Dash:
    """The viewer of one plan. ``path``: its file, for the commands."""
    title = f"{plan.model or 'Plan'} on {plan.question.ipus} IPUs"
    head = [html.H1(title), html.P(runs.lead(plan), className="note")]
    rows = runs.of_plan(plan, path)

    def body(theme: themes.Theme) -> Any:
        return [runs.why(plan), *runs.cards(rows, theme)]

    app = guards.GuardedDash(
        "viewer",
        assets_folder=str(Path(__file__).parent / "assets"),
        assets_ignore=r"viewer\.js|timeline\.js",
        title=f"IPUscope · {title}",
        update_title="",
        suppress_callback_exceptions=True,
    )
    app.index_string = INDEX.replace("@@STYLE@@", themes.stylesheet())
    button = html.Button("Theme", id="theme", className="quiet", title="Light or dark", n_clicks=0)
    app.layout = lambda: html.Div(
        html.Main(
            [
                html.Div([html.Div(head), button], className="head"),
                dcc.Store(id="where", data={"theme": "light"}),
                html.Div(body(themes.theme("light")), id="body"),
            ],
            id="main",
        ),
        className="shell plan",
    )
    guards.protect(app, guard or guards.Guard())
    app.clientside_callback(
        common.script("theme"), Output("where", "data"), Input("theme", "n_clicks")
    )

    @app.callback(Output("body", "children"), Input("where", "data"), prevent_initial_call=True)
    def dress(where: Any) -> Any:
        return body(common.theme_of(where)) if where else no_update

    runs.register_rows(app, lambda *which: rows)
    return app
