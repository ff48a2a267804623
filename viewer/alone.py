"""The frame of a single page, of a plan or of many runs, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, dcc, html, no_update

from ipuscope.viewer import guard as guards
from ipuscope.viewer.app import INDEX
from ipuscope.viewer.figures import theme as themes

THEME = "theme-now"  # the id of the store with the theme's name

# A click on "Theme" changes it; the page learns which it is.
_CHANGE = """function (clicks) {
  const root = document.documentElement;
  if (clicks) {
    root.dataset.theme = root.dataset.theme === 'dark' ? 'light' : 'dark';
    try { localStorage.setItem('ipuscope-theme', root.dataset.theme); } catch { /* none */ }
  }
  return root.dataset.theme;
}"""


def page_alone(
    title: str,
    head: Sequence[Any],
    body: Callable[[themes.Theme], Any],
    guard: guards.Guard | None = None,
) -> Dash:
    """An app of one page. ``body`` builds it for a theme."""
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
                html.Div(
                    [html.Div(list(head)), button],
                    className="head",
                    style={
                        "display": "flex",
                        "justifyContent": "space-between",
                        "alignItems": "center",
                        "paddingTop": "20px",
                    },
                ),
                dcc.Store(id=THEME, data="light"),
                html.Div(body(themes.theme("light")), id="body"),
            ],
            id="main",
        ),
        className="shell",
        style={"display": "block", "maxWidth": "1440px", "margin": "0 auto", "padding": "0 24px"},
    )
    guards.protect(app, guard or guards.Guard())
    app.clientside_callback(_CHANGE, Output(THEME, "data"), Input("theme", "n_clicks"))

    @app.callback(Output("body", "children"), Input(THEME, "data"), prevent_initial_call=True)
    def dress(name: Any) -> Any:
        return body(themes.theme(name)) if name in ("light", "dark") else no_update

    return app
