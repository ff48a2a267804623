"""Executed steps by a part of their name, counted and searched without unrolling the run.

A step executes in a body, and a body once for each of its tasks: the executions of a name follow
from the bodies' steps and the tasks' times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report


@dataclass(frozen=True)
class NamedSteps:
    """Steps of bodies whose name contains some words.

    int64, one entry per body that has such steps, by id: ``body``, and ``first`` and ``count`` of
    its entries; one entry per such step, by body and time: ``start`` and ``length``, cycles from
    the start of the body.
    """

    body: np.ndarray
    first: np.ndarray
    count: np.ndarray
    start: np.ndarray
    length: np.ndarray

    @classmethod
    def of(cls, report: Report, words: str) -> NamedSteps:
        """The steps whose name contains ``words``, whatever the case."""
        rows = report.sequence.body_steps
        code, names = pd.factorize(rows["name"])
        wanted = np.array([words.lower() in str(name).lower() for name in names] or [False])
        body, start = rows["body"].to_numpy(), rows["start"].to_numpy()
        last = np.append(body[1:] != body[:-1], True)[: len(body)]
        cycles = report.bodies.set_index("body")["cycles"].reindex(body).to_numpy()
        end = np.where(last, cycles, np.append(start[1:], 0)[: len(start)])
        hits = np.flatnonzero(wanted[code])
        hits = hits[np.lexsort((start[hits], body[hits]))]
        ids, first, count = np.unique(body[hits], return_index=True, return_counts=True)
        return cls(ids, first, count, start[hits], (end - start)[hits])

    def executed(
        self, report: Report, run: int, ipus: list[int], iteration: int | None
    ) -> ExecutedByName:
        """Their executions on IPUs, in a device iteration or, with None, in the whole run.

        Overlapped work of I/O tiles is left out, as in `Report.trace.spent`.
        """
        tasks = pd.concat([report.tasks(run, ipu, iteration) for ipu in ipus])
        tasks = tasks[tasks["body"].isin(self.body) & (tasks["kind"] != records.BESIDE)]
        at = np.searchsorted(self.body, tasks["body"].to_numpy())
        names = frozenset(tasks["name"].astype(str).unique())
        return ExecutedByName(self, at, tasks["ipu"].to_numpy(), tasks["start"].to_numpy(), names)


@dataclass(frozen=True)
class ExecutedByName:
    """Tasks that execute such steps, an entry each.

    ``at``: the task's body among `NamedSteps.body`; ``start``: on the clock that all runs share;
    ``names`` of the tasks.
    """

    steps: NamedSteps
    at: np.ndarray
    ipu: np.ndarray
    start: np.ndarray
    names: frozenset[str]

    def __len__(self) -> int:
        """The number of executions of steps."""
        return int(self.steps.count[self.at].sum())

    @property
    def cycles(self) -> int:
        """Cycles of all executions."""
        if not len(self):
            return 0
        of_body = np.add.reduceat(self.steps.length, self.steps.first)
        return int(of_body[self.at].sum())

    def before(self, time: float, ipu: int | None = None) -> int:
        """The number with their middle before a cycle; with an IPU, or at it on an earlier one."""
        many = self._before(time)
        if ipu is not None:
            many = np.where(self.ipu < ipu, self._before(time + 0.5), many)
        return int(many.sum())

    def next(
        self, time: float, forward: bool, ipu: int | None = None
    ) -> tuple[int, int, int] | None:
        """(IPU, start, end) of the first whose middle is later than a cycle, or the last earlier.

        With an IPU, those at that very cycle on later (earlier) ones come first. None if there is
        none on that side.
        """
        until = (time, time + 0.5)
        many = self._before(until[forward])
        if ipu is not None:
            beside = self.ipu > ipu if forward else self.ipu < ipu
            many = np.where(beside, self._before(until[not forward]), many)
        there = many < self.steps.count[self.at] if forward else many > 0
        task = np.flatnonzero(there)
        if not len(task):
            return None
        entry = self.steps.first[self.at[task]] + many[task] - (0 if forward else 1)
        middle = 2 * (self.start[task] + self.steps.start[entry]) + self.steps.length[entry]
        ties = np.flatnonzero(middle == (middle.min() if forward else middle.max()))
        on = self.ipu[task[ties]]
        best = int(ties[on.argmin() if forward else on.argmax()])
        begin = int(self.start[task[best]] + self.steps.start[entry[best]])
        return int(self.ipu[task[best]]), begin, begin + int(self.steps.length[entry[best]])

    def _before(self, time: float) -> np.ndarray:
        """For each task, how many of its steps have their middle before a cycle."""
        steps = self.steps
        middle = 2 * steps.start + steps.length
        span = int(middle.max(initial=0)) + 2
        key = np.repeat(np.arange(len(steps.body)), steps.count) * span + middle
        local = np.clip(np.ceil(2 * (time - self.start)), 0, span - 1).astype(np.int64)
        return np.searchsorted(key, self.at * span + local) - steps.first[self.at]
