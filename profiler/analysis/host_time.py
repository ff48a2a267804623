"""What the host did (libpvti's tracepoints), on the timeline of the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd


def host_spans(report: Report) -> pd.DataFrame:
    """The host's events by start, with ``depth``: how many events each is in.

    ``process, thread, channel, label, depth, start_us, end_us``. No rows of a model that was only
    compiled: there is no call to put them beside.
    """
    events = report.host_events
    if report.predicted or not len(report.runs):
        events = events.iloc[:0]
    parents = dict(zip(events["event"].tolist(), events["parent"].tolist(), strict=True))
    depths = [_depth(parents, event) for event in parents]
    kept = events[["process", "thread", "channel", "label", "start_us", "end_us"]]
    return kept.assign(depth=np.array(depths, dtype=np.int64))


def _depth(parents: dict[int, int], event: int) -> int:
    """A stranger's file may have circles: none is deeper than there are events."""
    depth, parent = 0, parents[event]
    while parent in parents and depth < len(parents):
        depth, parent = depth + 1, parents[parent]
    return depth


def call_starts(report: Report) -> np.ndarray:
    """When each call begins on the device, on the host's clock: int64[run], nanoseconds.

    When the host called; later where the modelled device is still busy with the call before.
    """
    runs = report.runs
    length = np.rint(runs["cycles"].to_numpy() * 1e9 / report.target.clock_hz).astype(np.int64)
    asked = runs["host_start_us"].to_numpy() * 1000
    before = np.cumsum(length) - length
    # begin[r] = max(asked[r], begin[r - 1] + length[r - 1])
    begins: np.ndarray = np.maximum.accumulate(asked - before) + before
    return begins
