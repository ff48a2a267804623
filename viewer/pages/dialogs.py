"""Dialogs beside every page: the command palette, which finds anything by name, and saved views."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from dash import ALL, Dash, Input, Output, State, dcc, html

from ipuscope.profiler import Report
from ipuscope.profiler.answers import write_whole
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
        text, shown = str(words or "").strip().lower(), _shown(profiles, profile)
        if len(text) < 2:
            return []
        return [*_listed(profiles, shown, text), *matches(profiles.get(shown), text)]


def _shown(profiles: Profiles, chosen: list[Any] | None) -> str:
    """The key of the profile of the page, from its control, if it has one."""
    return profiles.key((chosen or [None])[0])


def _listed(profiles: Profiles, shown: str, words: str) -> list[Any]:
    """Buttons that show another profile on this page, or compare with it."""
    buttons = []
    for key, name in common.names_of(profiles).items():
        for kind, does in (("profile", "open"), ("with", "compare with")):
            if key != shown and words in f"{does} {name}".lower():
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
    for record, kind, page, key in (
        (records.Op, "operator", "costs", "op"),
        (records.Variable, "variable", "memory", "variable"),
    ):
        columns = report.file.table(record)
        names = report.file.names_of(record, columns["id"])
        for at in _with(names, words):
            of_memory = {"ipu": int(columns["ipu"][at])} if page == "memory" else {}
            place = {"page": page, key: int(columns["id"][at]), **of_memory}
            links.append((kind, str(names[at]), place))
    return [common.link([html.Span(kind), name], **place) for kind, name, place in links]


def _with(names: Any, words: str) -> list[int]:
    """Positions of the first names with these words; equal names count once."""
    first_at: dict[str, int] = {}
    for at, name in enumerate(np.asarray(names).tolist()):
        if words in name.lower():
            first_at.setdefault(name, at)
            if len(first_at) == _MOST:
                break
    return list(first_at.values())


FILE = "views.json"
MOST, LONGEST, LONGEST_NOTE = 100, 4000, 200  # views; characters of an address, of a note
_MOST_BYTES = MOST * 4 * (LONGEST + LONGEST_NOTE)
_LISTED = ("profile", "with")
View = tuple[str, str]  # note, and path with query


def views_dialog() -> Any:
    """The dialog; assets/viewer.js opens it and says what is asked for."""
    named: Any = {"aria-labelledby": "views-title"}
    parts = [
        html.H2("Saved views", id="views-title"),
        html.Div(id="views-field"),  # as in the palette: made in the browser
        html.Div(
            [
                html.Button("Save this view", id="views-save", className="strong"),
                html.Button("Copy link", id="views-copy", className="quiet"),
                html.Button("Save as file", id="views-export", className="quiet", n_clicks=0),
            ],
            className="buttons",
        ),
        html.Div(id="views-list"),
        dcc.Store(id="views-asked"),
        dcc.Download(id="views-file"),
    ]
    return html.Dialog(parts, id="views-dialog", **named)


def register_views(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the dialog."""
    shown = State({"page": ALL, "param": "profile"}, "value")

    @app.callback(
        Output("views-list", "children"),
        Input("views-asked", "data"),
        shown,
        prevent_initial_call=True,
    )
    def change(asked: Any, profile: Any) -> Any:
        key = _shown(profiles, profile)
        report = profiles.get(key)
        views, asked = saved(report), asked if isinstance(asked, dict) else {}
        after = list(views)
        if isinstance(asked.get("remove"), int) and 0 <= asked["remove"] < len(views):
            del after[asked["remove"]]
        elif asked.get("address"):
            after.append((str(asked.get("note") or "a view"), _in_profile(asked["address"])))
        words = "" if after == views else save(report, after)
        words = words or f"Views are saved in {_file(report)}, beside the profile."
        return [html.P(words, className="note"), _views_listed(saved(report), key)]

    @app.callback(
        Output("views-file", "data"),
        Input("views-export", "n_clicks"),
        shown,
        prevent_initial_call=True,
    )
    def export(_: Any, profile: Any) -> Any:
        views = saved(profiles.get(_shown(profiles, profile)))
        return {"content": _text(views), "filename": FILE, "type": "application/json"}


def saved(report: Report) -> list[View]:
    """The views beside a profile; those that are no address of a page are left out."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        with open(_file(report), "rb") as file:
            rows = json.loads(file.read(_MOST_BYTES))["views"]
        views = [(str(row["note"])[:LONGEST_NOTE], str(row["address"])) for row in rows[:MOST]]
        return [one for one in views if _is_address(one[1])]
    return []


def save(report: Report, views: list[View]) -> str:
    """Write the views beside a profile; why that cannot be, or ""."""
    note, address = views[-1] if views else ("", "/")
    if len(views) > MOST:
        return f"There are {MOST} views at the most: remove one first."
    if not _is_address(address) or len(note) > LONGEST_NOTE:
        return f"A note may have {LONGEST_NOTE} characters, and an address {LONGEST:,}."
    folder = _file(report).parent
    try:
        if folder.stat().st_uid != os.geteuid():
            return f"{folder} is not yours: nothing is written there. Copy the link instead."
        write_whole(_file(report), _text(views).encode())
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}. Copy the link instead."
    return ""


def _in_profile(address: object, **more: str) -> str:
    """An address without which profiles it is of: numbers in this viewer's list."""
    path, _, search = str(address).partition("?")
    params = {name: value for name, value in common.parse(search).items() if name not in _LISTED}
    return f"{path}?{common.query(**params, **more)}"


def _text(views: list[View]) -> str:
    rows = [{"note": note, "address": address} for note, address in views]
    return json.dumps({"views": rows}, indent=1) + "\n"


def _file(report: Report) -> Path:
    return report.path.resolve().with_name(FILE)


def _is_address(address: str) -> bool:
    """Whether it is a path of this viewer, and not another host's address."""
    plain = address.startswith("/") and not address.startswith(("//", "/\\"))
    return plain and len(address) <= LONGEST and address.isprintable()


def _views_listed(views: list[View], key: str) -> Any:
    rows = []
    for at, (note, address) in enumerate(views):
        remove: Any = {"data-unsave": str(at), "aria-label": f"Remove {note}"}
        button = html.Button("Remove", className="link", **remove)
        rows.append(html.Li([dcc.Link(note, href=_in_profile(address, profile=key)), " ", button]))
    return html.Ul(rows) if rows else []
