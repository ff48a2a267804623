"""The vendor's ``libpvti``: a program marks its host's activity by tracepoints on channels.

``import ipuscope.profiler.pvti as pvti``; under ``ipu-run`` it is ``libpvti``. Tracepoints nest, a
thread at a time. A profile that is written meanwhile stores them (table ``host_events``), so that
host and IPU are on one timeline; with ``PVTI_OPTIONS='{"enable": "true", "directory": "."}'`` they
are also written to a ``.pvti`` file when the process ends. `ipuscope.profiler.pva.openTrace` reads
both.

>>> channel = createTraceChannel("epochs")
>>> with Tracepoint(channel, "epoch 0"):
...     with Tracepoint(channel, "validation"):
...         pass
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from ipuscope.profiler.file.records import HostEvent, HostValue

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS_VARIABLE = "PVTI_OPTIONS"
MOST_EVENTS = 1_000_000  # of a process; later ones are dropped

__all__ = [
    "Channel",
    "Graph",
    "HeatmapDouble",
    "HeatmapInt",
    "Series",
    "Tracepoint",
    "checkTraceChannel",
    "createTraceChannel",
    "disableTraceChannels",
    "enableTraceChannels",
    "instrument",
    "instrument_fn",
]


class Channel:
    """A channel of tracepoints; those of a disabled channel are dropped."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.enabled = True

    def __repr__(self) -> str:
        return f"Channel({self.name!r})"


class Recorder:
    """The events of a process, in the order in which they end.

    libpvti's functions have no object to store them in: a process has one recorder.
    """

    def __init__(self) -> None:
        self.events: list[HostEvent] = []
        self.values: list[HostValue] = []
        self.channels: dict[str, Channel] = {}
        self._lock = threading.Lock()
        self._open = threading.local()  # of each thread: (id, channel, label, start) of its events
        self._next = 0

    def begin(self, channel: Channel, label: str) -> None:
        """Open an event of this thread."""
        with self._lock:
            number, self._next = self._next, self._next + 1
        self._stack().append((number, channel, label, _now()))

    def end(self, channel: Channel, label: str) -> None:
        """Close the innermost open event of that channel and name; ValueError without one."""
        stack = self._stack()
        for at in range(len(stack) - 1, -1, -1):
            number, of, name, start = stack[at]
            if of is channel and name == label:
                del stack[at]
                parent = stack[at - 1][0] if at else -1
                self._keep(number, parent, channel, label, (start, _now()))
                return
        raise ValueError(f"no tracepoint {label!r} of {channel} was begun in this thread")

    def instant(self, channel: Channel, label: str) -> None:
        """Record an event without duration."""
        with self._lock:
            number, self._next = self._next, self._next + 1
        stack = self._stack()
        now = _now()
        self._keep(number, stack[-1][0] if stack else -1, channel, label, (now, now))

    def value(self, graph: str, series: str, unit: str, value: float) -> None:
        """A point of a graph, now."""
        with self._lock:
            if len(self.values) < MOST_EVENTS:
                number = len(self.values)
                row = HostValue(number, os.getpid(), graph, series, unit, _now(), float(value))
                self.values.append(row)

    def _keep(
        self, number: int, parent: int, channel: Channel, label: str, span: tuple[int, int]
    ) -> None:
        where = os.getpid(), threading.get_native_id()
        if channel.enabled:
            row = HostEvent(number, parent, *where, channel.name, label, *span)
            with self._lock:
                if len(self.events) < MOST_EVENTS:
                    self.events.append(row)

    def _stack(self) -> list[tuple[int, Channel, str, int]]:
        if not hasattr(self._open, "events"):
            self._open.events = []
        return self._open.events

    def write(self, path: Path) -> None:
        """Write a ``.pvti`` file: a profile that has only host events."""
        from ipuscope.profiler.file.writer import ProfileWriter

        with ProfileWriter(path) as writer:
            writer.meta(kind="host", state="executed")
            writer.add([*self.events, *self.values])
            writer.publish()


recorder = Recorder()


def createTraceChannel(name: str) -> Channel:
    """The channel of that name, created on first use."""
    return recorder.channels.setdefault(name, Channel(name))


def checkTraceChannel(channel: Channel) -> bool:
    """Whether a channel's tracepoints are recorded."""
    return channel.enabled


def enableTraceChannels(channels: Iterable[Channel]) -> None:
    """Record tracepoints of these channels from now on."""
    for channel in channels:
        channel.enabled = True


def disableTraceChannels(channels: Iterable[Channel]) -> None:
    """Record none of these channels from now on."""
    for channel in channels:
        channel.enabled = False


class Tracepoint:
    """A host activity that lasts for its ``with`` block, or from ``begin`` to ``end``."""

    def __init__(self, channel: Channel, label: str) -> None:
        self._channel, self._label = channel, label

    def __enter__(self) -> Self:
        recorder.begin(self._channel, self._label)
        return self

    def __exit__(self, *exception: object) -> None:
        recorder.end(self._channel, self._label)

    @staticmethod
    def begin(channel: Channel, label: str) -> None:
        """Open a tracepoint of this thread."""
        recorder.begin(channel, label)

    @staticmethod
    def end(channel: Channel, label: str) -> None:
        """Close it; ValueError if none of that name is open."""
        recorder.end(channel, label)

    @staticmethod
    def event(channel: Channel, label: str) -> None:
        """Record something that takes no time."""
        recorder.instant(channel, label)


def instrument_fn(channel: Channel) -> Callable[[F], F]:
    """Decorator: every call of the function is a tracepoint with the function's name."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with Tracepoint(channel, function.__qualname__):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def instrument(instance: Any, methods: Sequence[str], channel: Channel) -> None:
    """Make a tracepoint of every call of some of an object's methods."""
    for name in methods:
        setattr(instance, name, instrument_fn(channel)(getattr(instance, name)))


class Series:
    """Points of a graph over time."""

    def __init__(self, graph: Graph, name: str) -> None:
        self._graph, self._name = graph, name

    def add(self, value: float) -> None:
        """Add a point, now."""
        recorder.value(self._graph.name, self._name, self._graph.unit, value)


class Graph:
    """Numbers over the host's time, as one or more series."""

    def __init__(self, name: str, unit: str = "") -> None:
        self.name, self.unit = name, unit

    def addSeries(self, name: str) -> Series:
        """Add a series to the graph."""
        return Series(self, name)


class HeatmapDouble:
    """Counts the numbers added at a time between neighbouring ``edges``, as a series for each bin.

    Numbers outside the edges count in the first or last bin.
    """

    def __init__(self, name: str, edges: Sequence[float], unit: str = "") -> None:
        if len(edges) < 2 or list(edges) != sorted(edges):
            raise ValueError(f"heatmap {name!r}: its edges must be two or more ascending numbers")
        self.name, self.edges, self.unit = name, list(edges), unit

    def add(self, values: Iterable[float]) -> None:
        """Count these numbers, now."""
        counts = [0] * (len(self.edges) - 1)
        for value in values:
            at = bisect_right(self.edges, value) - 1
            counts[min(max(at, 0), len(counts) - 1)] += 1
        for at, count in enumerate(counts):
            recorder.value(self.name, f"{self.edges[at]:g} to {self.edges[at + 1]:g}", "", count)


HeatmapInt = HeatmapDouble


def _now() -> int:
    return time.time_ns() // 1_000


def _directory() -> Path | None:
    """The directory of a ``.pvti`` file; None unless the environment requests one in valid JSON."""
    try:
        options = json.loads(os.environ.get(OPTIONS_VARIABLE, "").strip() or "{}")
    except ValueError:
        return None
    if not isinstance(options, dict) or str(options.get("enable", "")).lower() != "true":
        return None
    return Path(str(options.get("directory", ".")))


def _write_at_exit() -> None:
    folder = _directory()
    if folder is not None and (recorder.events or recorder.values):
        time_of_day = time.strftime("%a_%b_%d_%H:%M:%S_%Y_%Z")
        recorder.write(folder / f"{time_of_day}_{os.getpid()}.pvti")


atexit.register(_write_at_exit)
