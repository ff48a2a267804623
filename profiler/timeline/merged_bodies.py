"""Bodies at a level of detail: their short steps merged, for figures over all of a run.

A body runs the same every time, so it is merged once however often it runs: of a million slices,
those narrower than a pixel need not be unrolled to be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipuscope.profiler.file.trace import Bodies


@dataclass(frozen=True, slots=True)
class Merged:
    """Bodies whose steps of fewer than some cycles are merged with their neighbours.

    Entry i of ``bodies`` stands for the entries ``order[begin[i] : begin[i + 1]]`` of the original
    bodies, all of one kind; its step is -1 if they are several.
    """

    bodies: Bodies
    order: np.ndarray
    begin: np.ndarray

    @property
    def source(self) -> np.ndarray:
        """The first entry that each stands for."""
        return self.order[self.begin[:-1]]

    def most(self, value: np.ndarray) -> np.ndarray:
        """The maximum over the original entries of each, of a value per original entry."""
        return np.maximum.reduceat(value[self.order], self.begin[:-1]) if len(value) else value

    def total(self, value: np.ndarray) -> np.ndarray:
        """The sum over the original entries of each, of a value per original entry."""
        return np.add.reduceat(value[self.order], self.begin[:-1]) if len(value) else value


def merged(bodies: Bodies, kind: np.ndarray, finest: int) -> Merged:
    """Merge steps shorter than ``finest`` cycles that begin in the same ``finest`` cycles.

    They become one entry for each ``kind`` (of the bodies' entries), which takes as long as they do
    together; a kind's steps come before those of larger ones, so nothing moves by more than
    ``finest`` cycles. The first and the last step of a body stay separate: its surroundings follow
    from them.
    """
    entries = len(bodies.step)
    of = np.repeat(np.arange(len(bodies.count)), bodies.count)
    length, alone = lengths(bodies), np.zeros(entries, dtype=bool)
    alone[bodies.first] = alone[bodies.first + bodies.count - 1] = True
    alone |= length >= finest
    part = bodies.start // finest
    begins = alone.copy()
    begins[1:] |= alone[:-1] | (part[1:] != part[:-1])
    group = np.cumsum(begins) - 1
    key = group * (int(kind.max(initial=0)) + 1) + kind
    order = np.argsort(key, kind="stable")
    begin = np.flatnonzero(np.diff(key[order], prepend=-1))
    source = order[begin]
    took = np.add.reduceat(length[order], begin) if entries else length
    before = np.cumsum(took) - took
    first = np.flatnonzero(np.diff(group[source], prepend=-1))  # entry of each group
    start = bodies.start[begins] - before[first]
    count = np.bincount(of[source], minlength=len(bodies.count))
    several = np.diff(np.append(begin, entries)) > 1
    fewer = Bodies(
        np.cumsum(count) - count,
        count,
        np.where(several, -1, bodies.step[source]),
        start[group[source]] + before,
    )
    return Merged(fewer, order, np.append(begin, entries))


def lengths(bodies: Bodies) -> np.ndarray:
    """Cycles of each entry; 0 of a body's last, which lasts until its task ends."""
    length = np.zeros(len(bodies.start), dtype=np.int64)
    length[:-1] = np.diff(bodies.start)
    length[bodies.first + bodies.count - 1] = 0
    return length
