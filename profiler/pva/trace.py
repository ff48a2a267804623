"""``openTrace``: what happened on the host (docs/libpva.md#module).

The vendor has a file of its own for it; here the calls of the model, with their host times, are in
the profile.
"""

from __future__ import annotations

import os

from profiler.pva.lists import Shown
from profiler.report import open_report


class Event(Shown):
    """Something that took time on the host.

    ``label``, ``timestamp`` and ``duration`` in microseconds.
    """

    __slots__ = ("_children", "duration", "label", "timestamp")
    _shown = ("label", "timestamp", "duration")

    def __init__(
        self, label: str, timestamp: int, duration: int, children: list[Event] | None = None
    ) -> None:
        self.label = label
        self.timestamp = timestamp
        self.duration = duration
        self._children = children or []

    def children(self) -> list[Event]:
        """Events inside this one."""
        return list(self._children)


class Thread(Shown):
    """A thread of the host and its ``events``."""

    __slots__ = ("events", "tid")
    _shown = ("tid", "events")

    def __init__(self, tid: int, events: list[Event]) -> None:
        self.tid = tid
        self.events = events


class Process(Shown):
    """A process of the host and its ``threads``."""

    __slots__ = ("pid", "threads")
    _shown = ("pid", "threads")

    def __init__(self, pid: int, threads: list[Thread]) -> None:
        self.pid = pid
        self.threads = threads


class Trace(Shown):
    """What the host did."""

    __slots__ = ("processes",)
    _shown = ("processes",)

    def __init__(self, processes: list[Process]) -> None:
        self.processes = processes


def openTrace(path: str | os.PathLike[str]) -> Trace:
    """The host's side of a profile: one process, one thread, and an event per call of the model."""
    with open_report(path) as report:
        rows = zip(
            *(report.runs[name].tolist() for name in ("name", "host_start_us", "host_end_us")),
            strict=True,
        )
        events = [Event(name, start, end - start) for name, start, end in rows]
    return Trace([Process(0, [Thread(0, events)])])
