"""``poptorch.profiling``: a script's activity on the host, as a trace for Perfetto.

If ``PVTI_OPTIONS`` requests it (``{"enable": "true", "directory": "."}``), each process writes
``host-<pid>.trace.json`` there when it ends. The modelled IPUs' activity is in the profile
(``ipu-report trace``), on its own clock.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipu_exec.base import host_clock
from ipu_exec.errors import UsageError

VARIABLE = "PVTI_OPTIONS"


class Channel:
    """Tracepoints of one part of a program."""

    def __init__(self, name: str) -> None:
        self._name = name

    @contextlib.contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """``with channel.tracepoint("Load"): ...`` is one bar in the trace."""
        trace = _trace(os.getpid())
        if trace is None:
            yield
            return
        start = host_clock.now_ns()
        try:
            yield
        finally:
            trace.add(self._name, f"{self._name}.{name}", start, host_clock.now_ns())

    def instrument(self, obj: Any, *methods: str) -> Any:
        """Make each call of these methods of ``obj``, which is returned, a tracepoint."""
        for name in methods:
            method = getattr(obj, name, None)
            if not callable(method):
                raise UsageError(f"instrument: {type(obj).__name__} has no method {name!r}")
            if _trace(os.getpid()) is not None:
                setattr(obj, name, self._traced(name, method))
        return obj

    def _traced(self, name: str, method: Any) -> Any:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return method(*args, **kwargs)

        return call


class _Trace:
    """The tracepoints of a process, written when it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._events: list[dict[str, Any]] = []
        atexit.register(self.write)

    def add(self, channel: str, name: str, start: int, end: int) -> None:
        """Add a tracepoint. Times are in nanoseconds; the format's are microseconds."""
        where = {"pid": os.getpid(), "tid": threading.get_ident()}
        self._events.append(
            {
                "name": name,
                "cat": channel,
                "ph": "X",
                "ts": start / 1e3,
                "dur": (end - start) / 1e3,
                **where,
            }
        )

    def write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": self._events}))


@functools.cache
def _trace(process: int) -> _Trace | None:
    """The trace of a process (a fork has its own), if the environment requests one."""
    text = os.environ.get(VARIABLE, "").strip()
    try:
        options = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise UsageError(f"{VARIABLE} is not JSON ({error}): {text!r}") from None
    if not isinstance(options, dict):
        raise UsageError(f'{VARIABLE} is a JSON object such as {{"enable": "true"}}, not {text!r}')
    if str(options.get("enable", "false")).lower() != "true":
        return None
    return _Trace(Path(options.get("directory", ".")) / f"host-{process}.trace.json")
