"""Executed steps as columns of numbers, without text in their rows, and sums over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuscope.profiler.file.trace import Bodies, Slices, Tasks, distinct, slices
from ipuscope.profiler.timeline.merged_bodies import Merged

_SIGNED = (np.int8, np.int16, np.int32, np.int64)


class Names:
    """Texts by position, read only when requested; ``some`` gives those at positions."""

    def __init__(self, count: int, some: Callable[[np.ndarray], np.ndarray]) -> None:
        self._count, self._some = count, some

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        """The text at a position, or those at an array of them."""
        texts = self._some(np.atleast_1d(at))
        return texts if np.ndim(at) else texts[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._some(np.arange(self._count)).tolist())


@dataclass(frozen=True, slots=True)
class Named:
    """What bodies execute, by name: program steps in the order of their table, then bodies.

    ``name`` of each; ``of_entry`` is the position of each entry of `trace.Bodies` among them,
    ``kind_of_entry`` its kind (an index into ``kinds``): the step's; the body's for a wait and for
    overlapped work of I/O tiles.
    """

    name: Names | np.ndarray
    kinds: tuple[str, ...]
    of_entry: np.ndarray
    kind_of_entry: np.ndarray

    @classmethod
    def nothing(cls) -> Named:
        """For a profile in which nothing runs."""
        none = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(0, dtype=object), (), none, none)

    def merged(self, entries: Merged) -> Named:
        """The same for merged bodies: several steps have the name of the first."""
        source = entries.source
        of = {"of_entry": self.of_entry[source], "kind_of_entry": self.kind_of_entry[source]}
        return replace(self, **of)


@dataclass(frozen=True, slots=True)
class Executed:
    """Slices: one entry each, times (int64) in cycles on the clock that all runs share.

    ``step`` is the program step's id, -1 for a wait; ``what`` a position in ``named.name``, and
    ``kind`` one in ``named.kinds``, all of narrow types: a call has a million. ``merged``: if steps
    of fewer than ``finest`` cycles are merged, the entry of each slice among those of the merged
    bodies; ``step`` is then also -1 for several steps.
    """

    ipu: np.ndarray
    step: np.ndarray
    what: np.ndarray
    kind: np.ndarray
    start: np.ndarray
    end: np.ndarray
    named: Named
    merged: np.ndarray | None = None
    finest: int = 0

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def nothing(cls) -> Executed:
        """No slices."""
        none = np.zeros(0, dtype=np.int64)
        return cls(none, none, none, none, none, none, Named.nothing())

    @classmethod
    def of(cls, tasks: Tasks, unrolled: Slices, named: Named, finest: int = 0) -> Executed:
        """The slices of tasks (`trace.slices`); ``finest``: of merged bodies, as ``named`` is."""
        entry = unrolled.entry
        columns = (unrolled.bodies.step, named.of_entry, named.kind_of_entry)
        step, what, kind = (as_narrow(column)[entry] for column in columns)
        ipu = np.repeat(as_narrow(tasks.ipu), unrolled.count)
        merged = entry if finest else None
        return cls(ipu, step, what, kind, unrolled.start, unrolled.end, named, merged, finest)


def as_narrow(values: np.ndarray) -> np.ndarray:
    """Integers in the narrowest signed type that fits them all."""
    most = max(int(values.max(initial=0)), -1 - int(values.min(initial=0)))
    narrow = next(one for one in _SIGNED if most <= np.iinfo(one).max)
    return values.astype(narrow, copy=False)


_SPARSE = 8  # times as many numbers as rows: sort rather than count


@dataclass(frozen=True, slots=True)
class Spent:
    """Cycles by step (-1: waits) and kind (index into ``kinds``), int64; ``count``: slices."""

    step: np.ndarray
    kind: np.ndarray
    cycles: np.ndarray
    count: np.ndarray
    kinds: tuple[str, ...]

    def by_kind(self) -> list[tuple[str, int, int]]:
        """(kind, cycles, slices), in the order of ``kinds``."""
        cycles, count = (
            np.bincount(self.kind, weights=values, minlength=len(self.kinds)).astype(np.int64)
            for values in (self.cycles, self.count)
        )
        there = np.flatnonzero(count).tolist()
        return [(self.kinds[at], int(cycles[at]), int(count[at])) for at in there]


def spent(
    tasks: Tasks, bodies: Bodies, named: Named, low: float, high: float, without: Sequence[str] = ()
) -> Spent:
    """What the slices of tasks take between two cycles, exactly.

    Tasks between them count by their body and length, so that only those that are cut are unrolled
    one by one. ``without``: kinds that are left out. ValueError as in `trace.slices`.
    """
    tasks = tasks.where((tasks.end > low) & (tasks.start < high))
    whole = (tasks.start >= low) & (tasks.end <= high)
    uncut, times = distinct(tasks.where(whole)) if whole.any() else (tasks.where(whole), None)
    parts = []
    for chosen, count in ((uncut, times), (tasks.where(~whole), None)):
        unrolled = slices(chosen, bodies)
        start, end, entry = unrolled.start, unrolled.end, unrolled.entry
        many = np.ones(len(start), dtype=np.int64) if count is None else count[unrolled.task]
        if low >= chosen.start.min(initial=0) or high <= chosen.end.max(initial=0):
            shown = (end > low) & (start < high)
            start, end = np.maximum(start, low)[shown], np.minimum(end, high)[shown]
            entry, many = entry[shown], many[shown]
        cycles = (end - start).clip(0) * many
        parts.append((bodies.step[entry], named.kind_of_entry[entry], cycles, many))
    step, kind, cycles, count = (np.concatenate(column) for column in zip(*parts, strict=True))
    wanted = np.array([name not in without for name in named.kinds], dtype=bool)
    counted = wanted[kind] if len(kind) else np.zeros(0, dtype=bool)
    return _summed(step[counted], kind[counted], cycles[counted], count[counted], named.kinds)


def _summed(
    step: np.ndarray,
    kind: np.ndarray,
    cycles: np.ndarray,
    count: np.ndarray,
    kinds: tuple[str, ...],
) -> Spent:
    """One entry for each step and kind, by step."""
    many = max(1, len(kinds))
    at = (step + 1) * many + kind
    key = np.arange(int(at.max(initial=-1)) + 1)
    if len(key) > _SPARSE * len(at):
        key, at = np.unique(at, return_inverse=True)
    total, slices_of = (
        np.bincount(at, weights=values, minlength=len(key)).astype(np.int64)
        for values in (cycles, count)
    )
    there = np.flatnonzero(slices_of)
    key = key[there]
    return Spent(key // many - 1, key % many, total[there], slices_of[there], kinds)
