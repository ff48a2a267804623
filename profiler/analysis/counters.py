"""Counters over time beside the steps: live bytes, active tiles, bytes over links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiler.report import Report


@dataclass(frozen=True, slots=True)
class OfSteps:
    """Memory, tiles and link traffic of steps; entry i is of step ``step[i]``, ids in order.

    ``live``: bytes live on the IPU, over all tiles; ``tiles``: active tiles; ``link``: bytes that
    the IPU sends to other IPUs. int64.
    """

    step: np.ndarray
    live: np.ndarray
    tiles: np.ndarray
    link: np.ndarray


def of_steps(report: Report, ipu: int) -> OfSteps:
    """Counters of the steps of one IPU of a replica. IndexError if there is no such IPU."""
    steps = report.steps_of_ipu(ipu, "step", "kind")
    active, sent = report.activity_of_steps(ipu)
    order = np.argsort(steps["step"], kind="stable")
    columns = (
        steps["step"],
        report.live_bytes(ipu),
        active,
        np.where(steps["kind"] == "global exchange", sent, 0),
    )
    return OfSteps(*(column[order] for column in columns))


def at_slices(known: OfSteps, step: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``live, tiles, link`` of `OfSteps` for executed steps in time order; an entry a slice.

    While an IPU waits (step -1), what it held before stays live; no tile is active and nothing is
    sent.
    """
    none = np.zeros(len(step), dtype=np.int64)
    if not len(known.step) or not len(step):
        return none, none, none
    low, high = known.step[[0, -1]].tolist()
    if high - low == len(known.step) - 1:  # the ids count, as the engine's do
        at = step - low
        there = (at >= 0) & (at < len(known.step))
    else:
        at = np.searchsorted(known.step, step).clip(0, len(known.step) - 1)
        there = known.step[at] == step
    if there.all():
        return known.live[at], known.tiles[at], known.link[at]
    # one entry more, of what is no step
    place = np.where(there, at, len(known.step))
    tiles, link = (np.append(values, 0)[place] for values in (known.tiles, known.link))
    first = int(there.argmax())  # which what is before it holds as well
    last = np.maximum.accumulate(np.where(there, np.arange(len(step)), first))
    return np.where(there.any(), known.live[place[last] % len(known.step)], 0), tiles, link


def mean(start: np.ndarray, end: np.ndarray, value: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The mean of a value over time between consecutive edges: float64.

    Slices are in time order, without overlap; between them the value is 0.
    """
    if not len(start):
        return np.zeros(len(edges) - 1)
    until = np.concatenate([[0.0], np.cumsum((end - start) * value.astype(np.float64))])
    # whole numbers, as slices have: else numpy makes all of them floats first
    at = np.searchsorted(start, np.floor(edges).astype(np.int64), side="right") - 1
    inside = at.clip(0)
    part = (np.minimum(edges, end[inside]) - start[inside]) * value[inside]
    area = np.where(at >= 0, until[inside] + part, 0.0)
    return np.diff(area) / np.diff(edges)


def most(start: np.ndarray, end: np.ndarray, value: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The maximum of a value between consecutive edges: int64; 0 where there is no slice."""
    bins = len(edges) - 1
    if not len(start):
        return np.zeros(bins, dtype=np.int64)
    first = np.searchsorted(end, np.floor(edges[:-1]).astype(np.int64), side="right")
    last = np.searchsorted(start, np.ceil(edges[1:]).astype(np.int64), side="left")
    padded = np.append(value, 0)
    bounds = np.stack([first, np.maximum(first, last)], axis=1).ravel().clip(0, len(value))
    peaks = np.maximum.reduceat(padded, bounds)[::2]
    return np.where(last > first, peaks, 0)
