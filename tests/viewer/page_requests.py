"""The requests a browser makes when it opens each page, made without a browser.

A page is requested the way Dash's renderer requests it, followed by each callback whose inputs and
outputs are on it, with their current values.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from dash import Dash

from ipuscope.viewer.app import PAGES
from ipuscope.viewer.pages.common import Page

UPDATE = "/_dash-update-component"
Where = dict[str, Any]  # path, query and theme, as assets/viewer.js says them


class PageRequests:
    """The requests of an app's pages, and their answers."""

    def __init__(self, app: Dash) -> None:
        self._client = app.server.test_client()
        self._held: dict[str, dict[str, Any]] = {}
        self._frame = self._client.get("/_dash-layout").json
        self._specs = self._client.get("/_dash-dependencies").json or []

    def ask(self, body: dict[str, Any]) -> str:
        """The server's answer to a callback's request; "" if there is none.

        Callbacks that are asked later have what it put into the page.
        """
        text = self._client.post(UPDATE, json=body).text
        with suppress(ValueError, KeyError):  # no answer, or a failure's
            for id, values in json.loads(text)["response"].items():
                self._held.get(id, {}).update(values)
        return text

    def of_page(self, page: Page, where: Where) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (what, request) of the layout and then, once it is answered, of each callback.

        Yields no callbacks if the page cannot be shown. ``where``: the theme and, if the page is
        asked for something, the ``search`` of its address.
        """
        here = {"search": "", **where, "path": page.path}
        show = next(one for one in self._specs if "page.children" in one["output"])
        frame = {_key(node["id"]): node for node in _nodes(self._frame) if "id" in node}
        held: dict[str, dict[str, Any]] = {**frame, "where": {"data": here}}
        request = _request(show, held)
        assert request is not None
        request["changedPropIds"] = ["where.data"]
        yield "layout", request
        try:
            shown = json.loads(self.ask(request))["response"]
            tree = shown["page"]["children"]
        except (ValueError, KeyError):
            return
        components = {_key(node["id"]): node for node in _nodes(tree) if "id" in node}
        held |= {**components, "page": {"children": [shown.get("head", {}), tree]}}
        self._held = held
        for spec in self._specs:
            if spec is show or spec["clientside_function"]:
                continue
            asked = _request(spec, held)
            if asked is not None and any(key in spec["output"] for key in components):
                yield _name(spec), asked

    def open(self, address: str) -> Shown:
        """The page at an address, with what all of its callbacks put into it."""
        path, _, search = address.partition("?")
        page = next(one for one in PAGES if one.path == path)
        where = {"theme": "light", "width": 1000, "search": search and f"?{search}"}
        for _, request in self.of_page(page, where):
            self.ask(request)
        return Shown(self._held["page"]["children"])


class Shown:
    """A page as it stands after its callbacks."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    def part(self, id: str) -> dict[str, Any]:
        """The properties of a component."""
        return next(node for node in _nodes(self._tree) if node.get("id") == id)

    def named(self, id: str, name: str) -> list[str]:
        """The values of a component's bars of a name."""
        nodes = _nodes(self.part(id)["children"])
        return [one["data-value"] for one in nodes if one.get("data-name") == name]

    def words(self, id: str = "") -> str:
        """What the page or one of its components says, tables included."""
        return _words(self.part(id) if id else self._tree)

    def trace(self, id: str, name: str = "") -> dict[str, Any]:
        """A figure's first trace, or that of a name, with arrays as lists."""
        traces = self.part(id)["figure"]["data"]
        return plain(next(one for one in traces if name in ("", one.get("name"))))


def plain(part: Any) -> Any:
    """Arrays as lists, whichever way they are sent: plotly has shorter types for whole numbers."""
    if isinstance(part, dict) and "bdata" in part:
        values = np.frombuffer(base64.b64decode(part["bdata"]), part["dtype"]).tolist()
        return [None if one != one else one for one in values]
    if isinstance(part, dict):
        return {name: plain(one) for name, one in part.items()}
    if isinstance(part, list):
        return [plain(one) for one in part]
    return part


def _words(node: Any) -> str:
    if isinstance(node, list):
        return " ".join(map(_words, node))
    if isinstance(node, dict):
        props = node.get("props", node)
        rows = [[*row.values()] for row in props.get("rowData") or ()]
        return f"{_words(props.get('children'))} {_words(rows)}".strip()
    return "" if node is None else str(node)


def _request(spec: dict[str, Any], held: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """A callback's request with the current values; None if something is missing."""
    parts: dict[str, list[Any]] = {"inputs": [], "state": []}
    for name, values in parts.items():
        for one in spec[name]:
            value = _values(one, held)
            if value is None or (isinstance(value, list) and not value and name == "inputs"):
                return None
            values.append(value)
    outputs = _outputs(spec["output"], held)
    if outputs is None:
        return None
    return {
        "output": spec["output"],
        "outputs": outputs if spec["output"].startswith("..") else outputs[0],
        "inputs": parts["inputs"],
        "state": parts["state"],
        "changedPropIds": [],
    }


def _values(one: dict[str, Any], held: dict[str, dict[str, Any]]) -> Any:
    """A property of the component that an input or state names, or of all that match it."""
    matching = _matching(one["id"], held)
    if matching is None:
        node = held.get(one["id"])
        return None if node is None else _value(_id(one["id"]), one["property"], node)
    return [_value(_id(key), one["property"], held[key]) for key in matching]


def _value(id: Any, name: str, node: dict[str, Any]) -> dict[str, Any]:
    said = {"id": id, "property": name}
    return {**said, "value": node[name]} if name in node else said


def _matching(words: str, held: dict[str, dict[str, Any]]) -> list[str] | None:
    """The components matched by an id with ``ALL`` in it; None for an id without."""
    id = _id(words)
    if not isinstance(id, dict) or ["ALL"] not in id.values():
        return None
    fixed = {name: value for name, value in id.items() if value != ["ALL"]}
    known = [(key, _id(key)) for key in held]
    return [
        key
        for key, other in known
        if isinstance(other, dict) and set(other) == set(id) and fixed.items() <= other.items()
    ]


_FRAME = ("page", "head", "alert")  # of the app itself, on every page


def _outputs(words: str, held: dict[str, dict[str, Any]]) -> list[Any] | None:
    """Ids and properties of ``..a.children...b.figure..``; None if one is not on the page."""
    names = words.strip(".").split("...") if words.startswith("..") else [words]
    outputs: list[Any] = []
    for name in names:
        key, _, what = name.rpartition(".")
        what = what.split("@")[0]
        matching = _matching(key, held)
        if matching is not None:
            outputs.append([{"id": _id(one), "property": what} for one in matching])
        elif key in held or key in _FRAME:
            outputs.append({"id": _id(key), "property": what})
        else:
            return None
    return outputs


def _id(words: str) -> Any:
    return json.loads(words) if words.startswith("{") else words


def _key(id: Any) -> str:
    """An id as Dash writes it in its specifications."""
    return id if isinstance(id, str) else json.dumps(id, sort_keys=True, separators=(",", ":"))


def _name(spec: dict[str, Any]) -> str:
    names = spec["output"].strip(".").split("...")
    ids = [_id(name.rpartition(".")[0]) for name in names]
    said = [id if isinstance(id, str) else str(id.get("param", id)) for id in ids]
    return ", ".join(dict.fromkeys(said))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Properties of all components below a node of Dash's JSON."""
    if isinstance(tree, list):
        for one in tree:
            yield from _nodes(one)
    elif isinstance(tree, dict) and "props" in tree:
        yield tree["props"]
        yield from _nodes(tree["props"].get("children"))
