"""Answers the server has already given, cached in memory and in the user's cache directory.

An answer depends only on the profiles, the code, the script that may be compiled and the request.
Slow ones are cached (`ipuscope.profiler.kept`), so that a page seen before costs next to nothing,
however large the profile; what a first visit needs is prepared while the user reads the first page.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from dash import Dash
from flask import Response, g, request

from ipuscope.profiler import ProfileError, kept
from ipuscope.profiler.file import schema
from ipuscope.viewer.profiles import Profiles

LEAST_SECONDS = 0.015  # of the server's thread: what is quicker is answered anew
LEAST_ON_DISK = 0.08  # ... and what is quicker than this only while the viewer runs
_OTHERS = b'"sideUpdate"'  # in Dash's answers: what a callback set besides its outputs
PREPARED = "ipuscope.prepared"  # in the environment of a request that no browser made
MOST_BYTES = 96 << 20  # in memory
_log = logging.getLogger(__name__)
_PATH = "_dash-update-component"
_LIVE = ("rebalance-checked",)  # outputs that follow from more than profiles and the request
_ELSEWHERE = ("path", "search")  # of where the browser is: only the frame's own callback asks


class Answers:
    """Answers by request, for the profiles as they are now. Safe to share between threads."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles
        self._lock = threading.RLock()
        self._stamps: Any = None
        self._kept: kept.Kept | None = None
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def get(self, name: str) -> bytes | None:
        """The answer to a request, if it is known. Raises ProfileError if a file is gone."""
        with self._lock:
            self.follow()
            if name in self._recent:
                self._recent.move_to_end(name)
                return self._recent[name]
            answer = self._kept.get(name) if self._kept is not None else None
            if answer is not None:
                self._remember(name, answer)
            return answer

    def put(self, name: str, answer: bytes, lasting: bool = True) -> None:
        """Store an answer, on the disk too if it is ``lasting``.

        Raises ProfileError if a file is gone.
        """
        with self._lock:
            self.follow()
            self._remember(name, answer)
            if lasting and self._kept is not None:
                self._kept.put(name, answer)

    def _remember(self, name: str, answer: bytes) -> None:
        self._size += len(answer) - len(self._recent.pop(name, b""))
        self._recent[name] = answer
        while self._size > MOST_BYTES and self._recent:
            self._size -= len(self._recent.popitem(last=False)[1])

    def follow(self) -> None:
        """Drop the answers of a profile that was rewritten. Raises ProfileError if it is gone."""
        reports = [self._profiles.get(at) for at in range(len(self._profiles))]
        stamps = self._profiles.stamps()
        if stamps == self._stamps:
            return
        self._stamps, self._size = stamps, 0
        self._recent.clear()
        paths = [report.path for report in reports]
        growing = any(path.name.endswith(schema.PARTIAL_SUFFIX) for path in paths)
        try:
            self._kept = None if growing else kept.Kept(paths)
        except OSError:
            self._kept = None


def keep(app: Dash, profiles: Profiles) -> Answers:
    """Make an app reuse earlier answers. Call it after the app's guard, which has to run first."""
    answers = Answers(profiles)
    with suppress(ProfileError):
        answers.follow()  # reads each file once: better now than with the first page

    @app.server.before_request
    def known() -> Response | None:
        if request.method != "POST" or not request.path.endswith(_PATH):
            return None
        name = _name(request.get_json(silent=True), profiles.checks.script)
        if name is None:
            return None
        try:
            answer = answers.get(name)
        except ProfileError:
            return None  # the callback says so, on the page
        if answer is not None:
            return Response(answer, mimetype="application/json")
        g.unknown = name, time.thread_time()
        return None

    @app.server.after_request
    def learn(response: Response) -> Response:
        name, start = g.pop("unknown", (None, 0.0))
        if name is None or response.status_code != 200 or not response.is_json:
            return response
        took = time.thread_time() - start
        prepared = PREPARED in request.environ
        answer = response.get_data()
        if (took >= LEAST_SECONDS or prepared) and _whole(answer):
            with suppress(ProfileError):
                answers.put(name, answer, prepared or took >= LEAST_ON_DISK)
        return response

    return answers


def _whole(answer: bytes) -> bool:
    """Whether an answer consists only of its outputs: a failure also sets others (`set_props`)."""
    if _OTHERS not in answer:  # without reading a figure's megabyte again
        return True
    try:
        said = json.loads(answer)
    except ValueError:
        return False
    return isinstance(said, dict) and set(said) <= {"response", "multi"}


def _name(body: Any, script: Sequence[str] = ()) -> str | None:
    """The key that identifies a callback's request; None if it is not one.

    ``script``: what the viewer may compile; pages have more where there is one.
    """
    if not isinstance(body, dict) or not isinstance(body.get("output"), str):
        return None
    if any(name in body["output"] for name in _LIVE):
        return None
    frame = "page.children" in body["output"]
    said = {
        "output": body["output"],
        "inputs": _values(body.get("inputs") or [], frame),
        "state": _values(body.get("state") or [], frame),
        "changed": body.get("changedPropIds") or [],
        "script": list(script),
    }
    return kept.name_of(json.dumps(said, sort_keys=True))


def _values(parts: Any, frame: bool) -> Any:
    """Values of inputs or states by component, without those that have no value."""
    if isinstance(parts, list):
        return [_values(one, frame) for one in parts]
    if not isinstance(parts, dict):
        return parts
    value = parts.get("value")
    if parts.get("id") == "where" and isinstance(value, dict) and not frame:
        value = {name: one for name, one in value.items() if name not in _ELSEWHERE}
    return [parts.get("id"), parts.get("property"), value]


# -- what a first opening needs ---


class Preparation:
    """Works out the first answers of pages in the background, and reports how far it has got.

    ``begin(where)`` starts it, once; it goes through the pages one by one.
    """

    def __init__(self, total: int, prepare: Callable[[int, dict[str, Any]], None]) -> None:
        self.total, self.done = total, 0
        self._prepare = prepare
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def begin(self, where: dict[str, Any]) -> None:
        """Start, in the theme of the first request; later calls do nothing."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, args=(where,), daemon=True)
                self._thread.start()

    def _run(self, where: dict[str, Any]) -> None:
        for at in range(self.total):
            try:
                self._prepare(at, where)
            except Exception:  # whoever opens the page sees what is wrong with it
                _log.debug("page %d could not be prepared", at, exc_info=True)
            self.done = at + 1
        kept.make_room()

    @property
    def words(self) -> str:
        """How far the preparation has got; "" once it is done."""
        if self.done >= self.total:
            return ""
        return f"Preparing pages: {self.done} of {self.total}, once for this profile"
