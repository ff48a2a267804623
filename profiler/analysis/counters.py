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
    steps = report.program_steps(ipu)
    order = np.argsort(steps["step"].to_numpy(), kind="stable")
    across = (steps["kind"] == "global exchange").to_numpy()
    columns = (
        steps["step"].to_numpy(),
        report.live_bytes(ipu),
        steps["active_tiles"].to_numpy(),
        np.where(across, steps["bytes_out"].to_numpy(), 0),
    )
    return OfSteps(*(column[order] for column in columns))


def at_slices(known: OfSteps, step: np.ndarray, name: str) -> np.ndarray:
    """A field of `OfSteps` for executed steps in time order; int64, one entry a slice.

    While an IPU waits (step -1), what it held before stays live; no tile is active and nothing is
    sent.
    """
    values = getattr(known, name)
    if not len(known.step):
        return np.zeros(len(step), dtype=np.int64)
    at = np.searchsorted(known.step, step).clip(0, len(known.step) - 1)
    there = known.step[at] == step
    values_there = np.where(there, values[at], 0)
    if name != "live" or not len(step):
        return values_there
    last = np.maximum.accumulate(np.where(there, np.arange(len(step)), -1))
    first = values[at[int(there.argmax())]] if there.any() else 0
    return np.where(last >= 0, values_there[last], first)


def mean(start: np.ndarray, end: np.ndarray, value: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The mean of a value over time between consecutive edges: float64.

    Slices are in time order, without overlap; between them the value is 0.
    """
    if not len(start):
        return np.zeros(len(edges) - 1)
    until = np.concatenate([[0.0], np.cumsum((end - start) * value.astype(np.float64))])
    at = np.searchsorted(start, edges, side="right") - 1
    inside = at.clip(0)
    part = (np.minimum(edges, end[inside]) - start[inside]) * value[inside]
    area = np.where(at >= 0, until[inside] + part, 0.0)
    return np.diff(area) / np.diff(edges)


def most(start: np.ndarray, end: np.ndarray, value: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The maximum of a value between consecutive edges: int64; 0 where there is no slice."""
    bins = len(edges) - 1
    if not len(start):
        return np.zeros(bins, dtype=np.int64)
    first = np.searchsorted(end, edges[:-1], side="right")
    last = np.searchsorted(start, edges[1:], side="left")
    padded = np.append(value, 0)
    bounds = np.stack([first, np.maximum(first, last)], axis=1).ravel().clip(0, len(value))
    peaks = np.maximum.reduceat(padded, bounds)[::2]
    return np.where(last > first, peaks, 0)
