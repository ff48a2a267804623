"""The command palette: pages, profiles, operators, variables, stages and actions by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from dash import ALL, Dash, Input, Output, dcc, html

from ipuscope.profiler import Report
from ipuscope.profiler.file import records
from ipuscope.viewer.pages import common
from ipuscope.viewer.profiles import Profiles

_MOST = 8  # of each kind


def dialog() -> Any:
    """The dialog; assets/viewer.js opens it, makes its field and finds pages and actions.

    Dash's own field resets its value while the user types, which garbles letters.
    """
    named: Any = {"aria-label": "Find anything"}
    parts = [html.Div(id=f"palette-{name}") for name in ("field", "actions", "found")]
    return html.Dialog([dcc.Store(id="palette-words"), *parts], id="palette", **named)


def register(app: Dash, profiles: Profiles) -> None:
    """Find what a profile has by the words that are typed."""

    @app.callback(
        Output("palette-found", "children"),
        Input("palette-words", "data"),
        Input({"page": ALL, "param": "profile"}, "value"),
        prevent_initial_call=True,
    )
    def find(words: Any, profile: Any) -> Any:
        text, shown = str(words or "").strip().lower(), (profile or [0])[0]
        if len(text) < 2:
            return []
        return [*_listed(profiles, shown, text), *matches(profiles.get(shown), text)]


def _listed(profiles: Profiles, shown: Any, words: str) -> list[Any]:
    """Buttons that show another profile on this page, or compare with it."""
    buttons = []
    for key, name in common.names_of(profiles).items():
        for kind, does in (("profile", "open"), ("with", "compare with")):
            if key != profiles.key(shown) and words in f"{does} {name}".lower():
                asks: Any = {f"data-{kind}": key}
                buttons.append(html.Button([html.Span("profile"), f"{does} {name}"], **asks))
    return buttons[: 2 * _MOST]


def matches(report: Report, words: str) -> list[Any]:
    """Links to stages, operators and variables whose names have these words."""
    stages = [
        ("stage", f"stage {stage}: {blocks}", {"page": "costs", "stage": stage})
        for stage, blocks in zip(report.stages["stage"], report.stages["blocks"], strict=True)
        if words in f"stage {stage} {blocks}".lower()
    ][:_MOST]
    links = [*stages]
    for record, kind, page in (
        (records.Op, "operator", "costs"),
        (records.Variable, "variable", "memory"),
    ):
        columns = report.columns_of(record)
        ids = columns["id"]
        names = report.names_of(record, ids)
        for at in _with(names, words):
            place = {"op": int(ids[at])} if page == "costs" else {"variable": int(ids[at])}
            if page == "memory":
                place |= {"ipu": int(columns["ipu"][at])}
            links.append((kind, str(names[at]), {"page": page, **place}))
    return [
        dcc.Link([html.Span(kind), name], href=f"/{place.pop('page')}?{common.query(**place)}")
        for kind, name, place in links
    ]


def _with(names: Any, words: str) -> list[int]:
    """Positions of the first names with these words; equal names count once."""
    first_at: dict[str, int] = {}
    for at, name in enumerate(np.asarray(names).tolist()):
        if words in name.lower():
            first_at.setdefault(name, at)
            if len(first_at) == _MOST:
                break
    return list(first_at.values())
