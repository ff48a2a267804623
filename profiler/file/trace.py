"""Unrolling what a run executed: stored by repetition, returned as tasks and slices in time.

All arrays are int64 and have one entry per task or slice; times are cycles. Nothing here loops over
either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ipuscope.profiler.enums import Purpose
from ipuscope.profiler.file import records

_STEP_KINDS = {
    records.ON_TILE_EXECUTE: "compute",
    records.DO_EXCHANGE: "exchange",
    records.GLOBAL_EXCHANGE: "global exchange",
    records.STREAM_COPY_BEGIN: "host I/O",
    records.STREAM_COPY_MID: "host I/O",
    records.STREAM_COPY_END: "host I/O",
    records.SYNC: "sync",
}


def step_kind(type: str, purpose: str) -> str:
    """The kind, of `records.KINDS`, of a step of a program type."""
    kind = _STEP_KINDS.get(type, "compute")
    return "external sync" if kind == "sync" and purpose == Purpose.EXTERNAL_SYNC else kind


@dataclass(frozen=True, slots=True)
class Tasks:
    """Bodies running on IPUs. ``body`` counts the rows of the bodies' table."""

    iteration: np.ndarray
    pipeline_cycle: np.ndarray
    ipu: np.ndarray
    body: np.ndarray
    micro_batch: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: np.ndarray) -> Tasks:
        """The tasks selected by ``mask``, or by their positions."""
        return Tasks(*(getattr(self, name)[mask] for name in self.__slots__))

    def repeated(self, iterations: np.ndarray, iteration_cycles: int, cycle_start: int) -> Tasks:
        """These tasks of one device iteration in each of ``iterations``, on all runs' clock."""
        count, times = len(self), len(iterations)
        if times == 1:
            begin = cycle_start + int(iterations[0]) * iteration_cycles
            which = np.full(count, iterations[0])
            return replace(self, iteration=which, start=self.start + begin, end=self.end + begin)
        offset = np.repeat(cycle_start + iterations * iteration_cycles, count)
        return Tasks(
            np.repeat(iterations, count),
            np.tile(self.pipeline_cycle, times),
            np.tile(self.ipu, times),
            np.tile(self.body, times),
            np.tile(self.micro_batch, times),
            np.tile(self.start, times) + offset,
            np.tile(self.end, times) + offset,
        )


def distinct(tasks: Tasks) -> tuple[Tasks, np.ndarray]:
    """The distinct tasks (those of one body with equal duration count once), and their counts."""
    body, length = tasks.body, tasks.end - tasks.start
    order = np.lexsort((length, body))
    differs = (np.diff(body[order]) != 0) | (np.diff(length[order]) != 0)
    begins = np.flatnonzero(np.concatenate([[True], differs]))
    return tasks.where(order[begins]), np.diff(np.append(begins, len(order)))


@dataclass(frozen=True, slots=True)
class Bodies:
    """The steps of all bodies in one row: ``step[first[b] : first[b] + count[b]]`` for body b.

    A body without steps (a wait) has one entry with step -1.
    """

    first: np.ndarray
    count: np.ndarray
    step: np.ndarray  # step ids
    start: np.ndarray  # relative to the body's start

    @classmethod
    def make(cls, steps: list[np.ndarray], starts: list[np.ndarray]) -> Bodies:
        """Build from each body's ``steps`` and ``starts``.

        ValueError if a body leaves a gap before its first step or goes back in time.
        """
        for index, (ids, at) in enumerate(zip(steps, starts, strict=True)):
            if len(ids) != len(at):
                raise ValueError(f"body {index} has {len(ids)} steps and {len(at)} starts")
        wait, begins = np.array([-1]), np.array([0])
        pieces = [ids if len(ids) else wait for ids in steps]
        count = np.array([len(piece) for piece in pieces], dtype=np.int64)
        first, none = np.cumsum(count) - count, np.zeros(0, dtype=np.int64)
        start = np.concatenate([none, *(at if len(at) else begins for at in starts)])
        back = np.append(False, start[1:] < start[:-1])[: len(start)]
        back[first] = start[first] != 0
        if back.any():
            index = int(np.searchsorted(first, back.argmax(), side="right")) - 1
            raise ValueError(f"the steps of body {index} do not follow one another from 0 on")
        return cls(first, count, np.concatenate([none, *pieces]), start)


@dataclass(frozen=True, slots=True)
class Slices:
    """Steps running on IPUs.

    ``count``: slices of each task that they were unrolled from, in order; ``entry``: position of
    each in ``bodies``.
    """

    count: np.ndarray
    start: np.ndarray
    end: np.ndarray
    entry: np.ndarray
    bodies: Bodies

    @property
    def task(self) -> np.ndarray:
        """The position of each slice's task."""
        return np.repeat(np.arange(len(self.count)), self.count)

    @property
    def step(self) -> np.ndarray:
        """Step ids; -1 for a wait."""
        return self.bodies.step[self.entry]


def slice_count(tasks: Tasks, bodies: Bodies) -> int:
    """The number of slices that `slices` would return."""
    return int(bodies.count[tasks.body].sum())


def slices(tasks: Tasks, bodies: Bodies) -> Slices:
    """Every task's steps, one after the other; the last step of a task lasts until the task ends.

    ValueError if a task ends before its last step begins.
    """
    count = bodies.count[tasks.body]
    last = np.cumsum(count) - 1
    # in place: for a million slices each extra column takes as long as the arithmetic
    at = np.repeat(bodies.first[tasks.body] - (last + 1 - count), count)
    at += np.arange(len(at))
    start = bodies.start[at]
    start += np.repeat(tasks.start, count)
    end = np.empty_like(start)
    end[:-1] = start[1:]
    end[last] = tasks.end
    if (end < start).any():
        raise ValueError("a task ends before its last step begins")
    return Slices(count, start, end, at, bodies)


@dataclass(frozen=True, slots=True)
class Waits:
    """The result of `waits_as_syncs`. One entry per task or slice passed to it.

    ``stays``: False for a wait that its IPU's next sync has absorbed; ``start``: with it, that
    sync's; ``waited``: cycles of each that were waiting.
    """

    stays: np.ndarray
    start: np.ndarray
    waited: np.ndarray


def waits_as_syncs(
    ipu: np.ndarray, start: np.ndarray, end: np.ndarray, wait: np.ndarray, sync: np.ndarray
) -> Waits:
    """Waiting as an IPU spends it: in an external sync, which lasts until the others arrive.

    ``wait`` and ``sync`` are masks over tasks or slices that are sorted by IPU and start and follow
    one another on each IPU without a gap. The waits right before an external sync become a part of
    it. Any other wait (say for another IPU's host transfers) stays, as an external sync of its own.
    """
    row = np.arange(len(ipu))
    others = np.flatnonzero(~wait)
    after = np.append(others, len(ipu))[np.searchsorted(others, row)]
    after = np.minimum(after, len(ipu) - 1)  # the row itself, if it is not a wait
    absorbed = wait & sync[after] & (ipu[after] == ipu)
    length = end - start
    waited = np.where(wait & ~absorbed, length, 0)
    np.add.at(waited, after[absorbed], length[absorbed])
    return Waits(~absorbed, np.where(sync, start - waited, start), waited)
