"""Host and IPUs on one timeline.

The host's time between calls of the model counts as it is. A call takes as long as on the modelled
IPUs, whatever time the host took to compute its numbers: host events during a call are stretched
with it, so that they stay inside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class HostTimeline:
    """Calls of the model in order, float64[call]: microseconds on the host and on the timeline.

    The timeline begins with the first call. ``shift``: what the timeline adds to the clock that
    runs share, in cycles: the host's time between the calls so far.
    """

    host_start: np.ndarray
    host_end: np.ndarray
    start: np.ndarray
    end: np.ndarray
    shift: np.ndarray

    def at(self, host_us: np.ndarray) -> np.ndarray:
        """Timeline positions, in microseconds, of moments on the host."""
        host = np.stack([self.host_start, self.host_end], axis=1).ravel()
        here = np.stack([self.start, self.end], axis=1).ravel()
        moments = np.asarray(host_us, dtype=np.float64)
        if not len(host):
            return moments - moments.min(initial=np.inf)
        before = np.minimum(moments - host[0], 0)
        behind = np.maximum(moments - host[-1], 0)
        return np.interp(moments, host, here) + before + behind


def host_timeline(report: Report) -> HostTimeline:
    """The calls of a profile on one timeline with its host's events."""
    runs, clock = report.runs, report.target.clock_hz
    host_start, host_end = (runs[f"host_{end}_us"].to_numpy(float) for end in ("start", "end"))
    length = runs["cycles"].to_numpy(float) / clock * 1e6
    gaps = np.maximum(host_start[1:] - host_end[:-1], 0)
    before = np.concatenate([np.zeros(min(1, len(runs))), np.cumsum(length[:-1] + gaps)])
    start_us = runs["start"].to_numpy(float) / clock * 1e6
    origin = start_us[0] if len(runs) else 0.0
    shift = np.round((before - (start_us - origin)) * clock / 1e6).astype(np.int64)
    return HostTimeline(host_start, host_end, before, before + length, shift)


def host_lanes(report: Report) -> pd.DataFrame:
    """The host's activity, calls of the model included, on one timeline with the IPUs.

    ``process, thread, channel, label, depth`` (0: not nested), ``start_us, end_us`` (from the
    beginning of the first call; earlier times are negative), by thread and start.
    """
    import pandas as pd

    events, runs, line = report.host_events, report.runs, host_timeline(report)
    calls = pd.DataFrame(
        {
            "process": events["process"].iloc[0] if len(events) else 0,
            "thread": events["thread"].iloc[0] if len(events) else 0,
            "channel": "model",
            "label": runs["name"],
            "start_us": runs["host_start_us"],
            "end_us": runs["host_end_us"],
        }
    )
    names = ["process", "thread", "channel", "label", "start_us", "end_us"]
    every = pd.concat([events[names], calls[names]], ignore_index=True)
    every = every.sort_values(
        ["process", "thread", "start_us", "end_us"],
        ascending=[True, True, True, False],
        kind="stable",
        ignore_index=True,
    )
    depth = _depths(every)
    for name in ("start_us", "end_us"):
        every[name] = line.at(every[name].to_numpy())
    return every.assign(depth=depth)


def _depths(events: pd.DataFrame) -> list[int]:
    """The nesting depth of each event in its thread; events are sorted by thread and start."""
    depths: list[int] = []
    around: list[int] = []  # ends of the events that are open
    thread: tuple[int, int] | None = None
    columns = (events[name].tolist() for name in ("process", "thread", "start_us", "end_us"))
    for process, number, start, end in zip(*columns, strict=True):
        if (process, number) != thread:
            thread, around = (process, number), []
        while around and (around[-1] <= start < end or around[-1] < end):
            around.pop()
        depths.append(len(around))
        around.append(end)
    return depths
