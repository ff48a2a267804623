"""The app: the frame around the pages, the address, the theme, and failing pages."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dash import (
    ALL,
    ClientsideFunction,
    Dash,
    Input,
    Output,
    State,
    ctx,
    dcc,
    html,
    no_update,
    set_props,
)
from werkzeug.serving import WSGIRequestHandler, run_simple

from ipuscope.planner.advice import Relief, relief, way_to_fit
from ipuscope.planner.predict.memory_verdict import Answer
from ipuscope.profiler import ProfileError, Report, analysis
from ipuscope.profiler.enums import OUT_OF_MEMORY
from ipuscope.profiler.report import PREDICTED_NOTE
from ipuscope.profiler.units import sentence
from ipuscope.viewer import guard as guards
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.figures import units
from ipuscope.viewer.pages import (
    common,
    compare,
    costs,
    dialogs,
    memory,
    pod,
    query,
    rebalance,
    refused,
    runs,
    summary,
    timeline,
)
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.profiles import FollowedProfiles, Profiles

PAGES: tuple[Page, ...] = (
    summary.PAGE,
    timeline.PAGE,
    memory.PAGE,
    costs.PAGE,
    rebalance.PAGE,
    compare.PAGE,
    pod.PAGE,
    runs.PAGE,
)

PAGE_KEYS = "12345678"  # the keys that open them
_BUTTONS = (
    ("Find", "Anything (Ctrl+K)"),
    ("Query", "SQL, in a drawer (q)"),
    ("Views", "Saved views (v)"),
    ("Theme", "Light or dark (t)"),
    ("Keys", "Keyboard shortcuts (?)"),
)
_MOST_RELIEFS = 4
LOOK_MILLISECONDS = 2000  # between looks at a directory that is followed

_log = logging.getLogger(__name__)

INDEX = (Path(__file__).parent / "assets" / "index.html").read_text(encoding="utf-8")


def create_app(
    report: Report,
    other: Report | None = None,
    guard: guards.Guard | None = None,
    script: Sequence[str] = (),
) -> Dash:
    """The viewer over one or two profiles; ``app.run(host="127.0.0.1", port=8050)`` serves it.

    ``guard`` decides who is answered; by default, only this machine. ``script``: the script that
    wrote the profile, with its arguments, so that Rebalance can compile splits.
    """
    return app_of(Profiles([report] if other is None else [report, other], script), guard)


def app_of(profiles: Profiles, guard: guards.Guard | None = None) -> Dash:
    """The viewer over the profiles that may be opened; ProfileError if the first cannot be."""
    return _app(profiles, _title(profiles.get()), guard)


def serve(app: Dash, host: str, port: int) -> None:
    """Serve until the process is interrupted, silently; `Dash.run` prints five lines."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line a request
    settle()
    run_simple(host, port, app.server, threaded=True, request_handler=_Handler)


class _Handler(WSGIRequestHandler):
    """Frees the thread of a request that the browser does not finish."""

    timeout = 20  # seconds

    def log_error(self, format: str, *args: object) -> None:
        """Not a line on the terminal for whoever sends half a request."""


def following_app(profiles: FollowedProfiles, guard: guards.Guard | None = None) -> Dash:
    """The viewer over the profiles that runs write below a directory; it announces a new one.

    The profile of the same run is redrawn by itself, another run's only when the reader asks.
    """
    profiles.refresh()
    app = _app(profiles, profiles.directory.resolve().name, guard)
    look_again = dcc.Interval(id="look", interval=LOOK_MILLISECONDS)
    app.layout = lambda: html.Div([_shell(profiles), look_again])

    @app.callback(
        Output("followed", "data"),
        Output("toast", "children"),
        Input("look", "n_intervals"),
        Input({"toast": ALL}, "n_clicks"),
        State("followed", "data"),
    )
    def look(_: int | None, clicks: list[int | None], seen: str | None) -> Any:
        new = None if any(clicks) else profiles.newer()
        if new is not None:
            show = html.Button("Show it", id={"toast": "show"}, className="strong", n_clicks=0)
            there = ctx.triggered_id != "look" or not clicks  # a button already there stays
            return no_update, [html.Span(f"A new profile: {new}"), show] if there else no_update
        now = profiles.refresh()
        return no_update if now == seen else now, []

    return app


def _app(profiles: Profiles, title: str, guard: guards.Guard | None) -> Dash:
    app = guards.GuardedDash(
        "viewer",
        assets_folder=str(Path(__file__).parent / "assets"),
        title=f"IPUscope · {title}",
        update_title="",
        suppress_callback_exceptions=True,
        on_error=_on_error,
    )
    app.index_string = INDEX.replace("@@STYLE@@", themes.stylesheet())
    guard = guard or guards.Guard()
    app.layout = lambda: _shell(profiles)
    guards.protect(app, guard)
    _register(app, profiles)
    for page in PAGES:
        page.register(app, profiles)
    query.register(app, profiles)
    dialogs.register(app, profiles)
    dialogs.register_views(app, profiles)
    return app


def _title(report: Report) -> str:
    try:
        return str(report.meta["model"] or report.path.parent.name)
    except ProfileError:
        return report.path.name


def _is_listed(page: Page, view: View) -> bool:
    """Whether the page has something to show; if the profile is gone, the page itself says so."""
    try:
        return page.shown(view)
    except ProfileError:
        return True


def _shell(profiles: Profiles) -> Any:
    view = View(profiles, "summary", {}, themes.theme("light"))
    links = [
        dcc.Link(
            page.name,
            href=page.path,
            className="nav" if _is_listed(page, view) else "nav unused",
            id={"nav": page.path},
            title=f"{page.help} ({key})",
        )
        for key, page in zip(PAGE_KEYS, PAGES, strict=True)
    ]
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="where"),
            dcc.Store(id="written"),
            html.A("To the page", href="#main", className="skip"),
            dcc.Store(id="followed"),  # the profiles shown of a followed directory
            html.Nav(
                [
                    html.Div([html.Span("IPU"), "scope"], className="brand"),
                    *links,
                    html.Div(
                        [
                            html.Button(
                                name, id=name.lower(), className="quiet", title=title, n_clicks=0
                            )
                            for name, title in _BUTTONS
                        ],
                        className="foot",
                    ),
                ],
                className="side",
            ),
            html.Main(
                [
                    html.Div(id="head", className="head"),
                    html.Div(id="notes"),
                    html.Div(id="alert"),
                    html.Div(id="page"),
                    dcc.Input(id=common.param_id("query", "query"), type="hidden", value=""),
                    html.Aside(id="query-drawer"),
                ],
                id="main",
                tabIndex="-1",
            ),
            html.Div(id="toast", role="status"),
            _shortcuts(),
            dialogs.dialog(),
            dialogs.views_dialog(),
        ],
        className="shell",
    )


def _shortcuts() -> Any:
    keys = [
        *[(key, page.name) for key, page in zip(PAGE_KEYS, PAGES, strict=True)],
        ("Ctrl + K", "find a page, an operator, a variable, a stage, or what to do"),
        ("q", "a query, in a drawer"),
        ("v", "saved views: what is shown now, with a note"),
        ("t", "light or dark"),
        ("/", "search or filter on the page"),
        ("wheel, drag", "zoom a figure; double-click shows all of it"),
        ("a d, ← →", "move along the figure under the pointer, or the one in focus"),
        ("w s, + −", "zoom in and out"),
        ("f, 0", "show all"),
        ("m", "mark the time at the pointer, or in the middle; again: remove it"),
        ("M", "select what is between the last two marks"),
        ("Shift + drag", "select a range and lanes: its sums are below"),
        ("↑ ↓, Enter", "what is in the middle of the figure in focus, lane by lane"),
        ("p", "pin the lane under the pointer or asked after, or unpin it"),
        ("o", "open that lane, or fold it"),
        ("↑ ↓ ← →, Tab", "from cell to cell of a table, and on to what follows it"),
        ("n N, Enter", "next and previous step found in the timeline; Enter in its field"),
        ("?", "these keys"),
        ("Esc", "close; no selection, then no details"),
    ]
    rows = [html.Tr([html.Td(html.Kbd(key)), html.Td(words)]) for key, words in keys]
    named: Any = {"aria-labelledby": "shortcuts-title"}
    title = html.H2("Keys", id="shortcuts-title")
    return html.Dialog([title, html.Table(html.Tbody(rows))], id="shortcuts", **named)


def _head(view: View) -> Any:
    report = view.report
    meta, target = report.meta, report.target
    parts: list[Any] = [
        f"{meta['kind'] or 'profile'}, {meta['state'] or 'unfinished'}",
        f"{units.count(target.num_ipus * analysis.shards_of(report), 'IPU')} ({target.name})",
        f"{target.tiles_per_ipu:,} tiles with {units.size(target.bytes_per_tile)} each",
        f"{target.clock_hz / 1e9:.3g} GHz",
        *([html.Span("times are predicted", title=PREDICTED_NOTE)] if report.predicted else []),
    ]
    children: list[Any] = [
        html.Div(
            [html.H1(str(meta["model"] or report.path.parent.name)), html.Code(str(report.path))]
        ),
        html.P(common.separated(parts)),
    ]
    if meta["state"] == OUT_OF_MEMORY:
        words = [_too_full(view), *_relief(view)]
        alert = html.Div(words, className="message error", role="alert", id="too-full")
        children.append(alert)
    return children


def _too_full(view: View) -> Any:
    """The worst tile, its step, and how many other IPUs are too full."""
    report = view.report
    over = view.profiles.made(report, "overflows", lambda: analysis.overflows(report))
    if not over:
        return html.P("Out of memory: the compile stopped.")
    worst = max(over, key=lambda one: one.bytes_over)
    ipu, tile, step = worst.ipu, worst.tile, worst.position
    more = f" {len(over)} IPUs do not fit." if len(over) > 1 else ""
    name = report.sequence.names_of_steps(ipu, np.array([step]))[0]
    words = (
        f" {worst}, {worst.bytes_over:,} bytes more than it has, at step {step} ({name}).{more} "
    )
    there = common.query(ipu=ipu, tile=tile, profile=view.params.get("profile"))
    live = common.query(ipu=ipu, tile=tile, step=step, profile=view.params.get("profile"))
    links = [
        dcc.Link("What that tile holds", href=f"/memory?{there}"),
        dcc.Link("what is live at that step", href=f"/memory?{live}"),
        dcc.Link("other splits", href="/rebalance"),
    ]
    return html.P([html.B("Out of memory:"), words, *common.separated(links)])


def _relief(view: View) -> list[Any]:
    """What frees most memory on the worst tile, each with a link to its effect."""

    def made() -> tuple[list[Relief], str]:
        try:
            return relief(view.report), way_to_fit(view.report)
        except ValueError:
            return [], ""

    every, way = view.profiles.made(view.report, "relief", made)
    reliefs = every[:_MOST_RELIEFS]
    if not reliefs:
        return [html.P(way)] if way else []
    rows = [
        html.Li(
            [dcc.Link(sentence(one.title), href=one.where), _relieved(one), html.Code(one.command)]
        )
        for one in reliefs
    ]
    alone = [one for one in reliefs if one.fits == Answer.FITS.value]
    lead = "What frees most of it:" if alone else "What frees most of it; none of these fits alone:"
    parts = [html.Summary(lead, className="then"), html.Ol(rows, id="relief"), html.P(way)]
    return [html.Details(parts, open=view.page == "summary")]  # elsewhere it would hide the page


def _relieved(one: Relief) -> str:
    """What a change frees, whether the model then fits, and what that costs in cycles."""
    about = "about " if one.estimate else ""
    then = "it fits then" if one.fits == Answer.FITS.value else f"then {one.fits}"
    longer = f"{units.cycles(abs(one.cycles))} cycles {'more' if one.cycles > 0 else 'less'}"
    cost = f"; {longer} for as many samples" if one.cycles else ""
    return f" frees {about}{units.size(one.freed)}; {then}{cost} · "


def _register(app: Dash, profiles: Profiles) -> None:
    by_path = {page.path: page for page in PAGES}

    # The browser's address and theme; written parameters are in the address by then.
    app.clientside_callback(
        ClientsideFunction("viewer", "where"),
        Output("where", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("theme", "n_clicks"),
    )
    app.clientside_callback(
        ClientsideFunction("viewer", "write"),
        Output("written", "data"),
        Input({"page": ALL, "param": ALL}, "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("viewer", "shortcuts"),
        Output("keys", "disabled"),
        Input("keys", "n_clicks"),
    )

    @app.callback(
        Output("page", "children"),
        Output("head", "children"),
        Output("alert", "children"),
        Output({"nav": ALL}, "className"),
        Input("where", "data"),
        Input("followed", "data"),
        State({"nav": ALL}, "id"),
    )
    def show(where: dict[str, Any] | None, _: str | None, links: list[dict[str, str]]) -> Any:
        where = where or {}
        path = str(where.get("path") or "/")
        page = by_path.get(path)
        view = View(
            profiles,
            page.path.strip("/") or "summary" if page else "",
            common.parse(where.get("search")),
            common.theme_of(where),
        )
        unused = {page.path for page in PAGES if not _is_listed(page, view)} - {path}
        classes = [
            "nav here" if link["nav"] == path else "nav unused" if link["nav"] in unused else "nav"
            for link in links
        ]
        if isinstance(profiles, FollowedProfiles) and not len(profiles):
            return _waiting(profiles), [], [], classes
        if page is None:
            wrong = ValueError(f"There is no page {path}. Choose one on the left.")
            return common.failure(wrong), [], [], classes
        try:
            layout = page.layout(view)
            allowed = _params_of(app, view.page, layout) | _params_of(app, query.NAME)
            _refuse(view, str(where.get("search") or ""), page.name, allowed)
            return layout, _head(view), common.misfits(view), classes
        except (ProfileError, ValueError, LookupError, OSError) as error:
            return common.failure(error), [], [], classes

    @app.callback(Output("notes", "children"), Input("where", "data"), Input("followed", "data"))
    def noted(where: dict[str, Any] | None, _: str | None) -> Any:
        """Warnings and damage, which is found by going over every byte."""
        asked = common.parse((where or {}).get("search")).get("profile")
        notes = profiles.get(asked).notes if len(profiles) else []
        return common.message(" ".join(notes), "warning") if notes else []


def _params_of(app: Dash, page: str, layout: Any = ()) -> set[str]:
    """The parameters that a page's callbacks take, and those that its layout writes."""
    ids = {
        one["id"]
        for spec in app.callback_map.values()
        for one in (*spec["inputs"], *spec["state"])
        if one["id"].startswith("{")
    }
    drawn = [one for one in html.Div(layout) if isinstance(one, dict)]  # the ids in it
    named = [one for one in (*map(json.loads, ids), *drawn) if one.get("page") == page]
    return {one["param"] for one in named if isinstance(one.get("param"), str)}  # not ALL


def _refuse(view: View, search: str, page: str, allowed: set[str]) -> None:
    """Note what of an address no page takes."""
    if search and not view.params and search.count("&") >= common.MOST_PARAMETERS:
        there = f"an address has {common.MOST_PARAMETERS} parameters at the most"
        view.refuse("", refused.refused("address", search, there, "None of them was taken."))
    view.text("theme", view.theme.name, list(themes.THEMES))
    for name in view.params:
        if name not in allowed and name not in ("theme", "profile", "with"):
            there = f"it takes {', '.join(sorted(allowed - {'profile', 'with'})) or 'none'}"
            words = refused.refused(f"parameter {{}} of {page}", name, there, "It is left out.")
            view.refuse(name, words)


def _waiting(profiles: FollowedProfiles) -> Any:
    """The page while no run has written a profile."""
    there = "" if profiles.directory.is_dir() else ", which does not exist yet"
    return common.card(
        "Waiting for a profile",
        common.message(f"None is below {profiles.directory}{there}. {profiles.to_get_one}"),
    )


def _on_error(error: Exception) -> None:
    """Leave the page as it is when a callback fails, and show the reason above it."""
    if isinstance(error, (ProfileError, ValueError, LookupError, OSError)):
        words = str(error)
    else:
        _log.error("the viewer failed in %s", ctx.triggered_id, exc_info=error)
        words = (
            f"The viewer failed ({type(error).__name__}); the terminal it was started in says"
            " where."
        )
    set_props("alert", {"children": common.message(words, "error")})


def settle() -> None:
    """Exempt the million objects loaded by now, which stay, from garbage collection.

    A pass over them takes 70 ms and would delay some answer. One over all newer objects is as long
    as a small answer, and rare; those over young objects, most of which go at once, stay frequent.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 200)
