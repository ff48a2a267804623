"""Counters over time beside the steps: live bytes, active tiles, bytes over links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline.executed_steps import as_narrow
from ipuscope.profiler.timeline.merged_bodies import lengths

_SPARSE = 8  # times as many ids as steps: search rather than a table


@dataclass(frozen=True, slots=True)
class OfSteps:
    """Memory, tiles and link traffic of steps; entry i is of step ``step[i]``, ids in order.

    ``live``: bytes live on the IPU, over all tiles; ``tiles``: active tiles; ``link``: bytes that
    the IPU sends to other IPUs. int64, except the mean of the tiles of merged steps.
    """

    step: np.ndarray
    live: np.ndarray
    tiles: np.ndarray
    link: np.ndarray


def of_steps(report: Report, ipu: int) -> OfSteps:
    """Counters of the steps of one IPU of a replica; IndexError if there is no such IPU."""
    steps = report.sequence.steps_of_ipu(ipu, "step", "kind")
    active, sent = report.sequence.activity_of_steps(ipu)
    order = np.argsort(steps["step"], kind="stable")
    columns = (
        steps["step"],
        report.usage.live_bytes(ipu),
        active,
        np.where(steps["kind"] == "global exchange", sent, 0),
    )
    return OfSteps(*(column[order] for column in columns))


def of_merged(report: Report, counters: Sequence[OfSteps], finest: int) -> OfSteps:
    """Counters of merged bodies' entries (`Report.trace.merged`), whose numbers replace ``step``.

    ``counters``: of the IPUs whose steps count. ``live`` is the maximum over an entry, ``tiles``
    the mean over its time, ``link`` the sum.
    """
    bodies, entries = report.sequence.bodies_in_row, report.trace.merged(finest)
    live, tiles, link = np.zeros((3, len(bodies.step)), dtype=np.int64)
    there = np.zeros(len(bodies.step), dtype=bool)
    for one in counters:
        if not len(one.step):
            continue
        at, missing = _positions(one.step, bodies.step)
        here = np.delete(np.arange(len(at)), missing)
        there[here] = True
        live[here], tiles[here], link[here] = (
            column[at[here]] for column in (one.live, one.tiles, one.link)
        )
    length = lengths(bodies)
    took = entries.total(length)
    alone = np.diff(entries.begin) == 1
    mean = np.where(
        alone, tiles[entries.source], entries.total(tiles * length) / np.maximum(1, took)
    )
    rows = np.flatnonzero(there[entries.source])
    return OfSteps(rows, entries.most(live)[rows], mean[rows], entries.total(link)[rows])


def at_slices(counters: OfSteps, step: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``live, tiles, link`` of `OfSteps` for executed steps in time order, one entry a slice.

    While an IPU waits (step -1), what was live stays live; no tile is active and nothing is sent.
    """
    none = np.zeros(len(step), dtype=np.int64)
    if not len(counters.step) or not len(step):
        return none, none, none
    at, idle = _positions(counters.step, step)
    if len(idle) == len(step):
        return none, none, none
    at[idle] = 0
    columns = (counters.live, counters.tiles, counters.link)
    live, tiles, link = (
        (as_narrow(column) if column.dtype.kind == "i" else column)[at] for column in columns
    )
    if len(idle):
        begins = np.append(True, np.diff(idle) > 1)
        before = (idle[begins] - 1)[np.cumsum(begins) - 1]
        first = int((idle == np.arange(len(idle))).sum())  # step: its bytes are live before it too
        live[idle] = live[np.where(before < 0, first, before)]
        tiles[idle] = link[idle] = 0
    return live, tiles, link


def _positions(ids: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions of ``step`` in the sorted ``ids``, and which of them are missing there."""
    low, high = ids[[0, -1]].tolist()
    if high - low >= _SPARSE * (len(ids) + len(step)):  # ids of another's making
        at = np.searchsorted(ids, step).clip(0, len(ids) - 1)
        return at, np.flatnonzero(ids[at] != step)
    position = np.full(high - low + 2, -1)  # the last one for all that is outside
    position[ids - low] = np.arange(len(ids))
    offset = np.subtract(step, low, dtype=np.int64)
    if step.min() < low or step.max() > high:
        offset[(offset < 0) | (offset > high - low)] = high - low + 1
    at = position[offset]
    return at, np.flatnonzero(at < 0)


def until(value: np.ndarray) -> np.ndarray:
    """The sum of the values before each slice, and the total at the end: float64."""
    sums = np.zeros(len(value) + 1)
    np.cumsum(value, dtype=np.float64, out=sums[1:])
    return sums


def mean(start: np.ndarray, end: np.ndarray, sums: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The mean over time, between consecutive edges, of what slices add up to: float64.

    ``sums``: from `until`, of the total of each slice over its cycles (working tiles times its
    length; bytes sent). Slices are in time order, without overlap; gaps count 0.
    """
    if not len(start):
        return np.zeros(len(edges) - 1)
    # whole numbers, as slices have: else numpy makes all of them floats first
    at = np.searchsorted(start, np.floor(edges).astype(np.int64), side="right") - 1
    here = at.clip(0)
    length, own = end[here] - start[here], sums[here + 1] - sums[here]
    part = (np.minimum(edges, end[here]) - start[here]) / np.maximum(1, length) * own
    area = np.where(at >= 0, sums[here] - sums[0] + part, 0.0)
    return np.diff(area) / np.diff(edges)


def most(start: np.ndarray, end: np.ndarray, value: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The maximum of a value between consecutive edges: int64; 0 where there is no slice."""
    bins = len(edges) - 1
    if not len(start):
        return np.zeros(bins, dtype=np.int64)
    first = np.searchsorted(end, np.floor(edges[:-1]).astype(np.int64), side="right")
    last = np.searchsorted(start, np.ceil(edges[1:]).astype(np.int64), side="left")
    bounds = np.stack([first, np.maximum(first, last)], axis=1).ravel().clip(0, len(value) - 1)
    peaks = np.maximum.reduceat(value, bounds)[::2]
    # the last slice of all is behind such a bound
    peaks = np.where(last == len(value), np.maximum(peaks, value[-1]), peaks)
    return np.where(last > first, peaks, 0)
