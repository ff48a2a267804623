"""From lengths of tasks to a schedule: host streams, waits, update, overlapped transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuscope.profiler.enums import PipelinePhase
from ipuscope.profiler.timeline.schedule_types import (
    BACKWARD,
    BESIDE,
    FORWARD,
    IDLE,
    LOAD,
    REDUCE,
    STREAM_IN,
    STREAM_OUT,
    UNLOAD,
    UPDATE,
    Costs,
    Schedule,
)


@dataclass(frozen=True)
class _Host:
    """Host transfers of a schedule.

    Cycles on each IPU, [pipeline cycle, IPU]: ``first``, before anything else, over I/O tiles;
    ``before`` the work; ``beside`` the work, over I/O tiles; ``after`` the work; ``last``, at the
    very end, over I/O tiles.
    """

    first: np.ndarray
    before: np.ndarray
    beside: np.ndarray
    after: np.ndarray
    last: np.ndarray
    moves: tuple[tuple[Any, ...], ...]  # which of these, then `_Tasks.add`'s, start within it
    ahead: tuple[tuple[int, int], ...] = ()  # (stage, cycles): loads beside the weight update
    head: int = 0
    tail: int = 0

    @property
    def begin(self) -> int:
        """When all IPUs have their inputs, except over I/O tiles, in the first pipeline cycle."""
        return int(self.before[0].max())

    def place(self, tasks: _Tasks, at: dict[str, np.ndarray]) -> None:
        """Add the transfers; ``at``: when each of the five begins, [pipeline cycle(, IPU)]."""
        for where, kind, ipu, cycle, offset, length, stage, micro in self.moves:
            begin = at[where] if at[where].ndim == 1 else at[where][:, ipu]
            tasks.add(kind, ipu, cycle, begin[cycle] + offset, length, stage, micro)

    def one_after_another(
        self, tasks: _Tasks, done: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lay out micro-batches one after another, and add the transfers of each.

        Returns the start of each, when its inputs over all tiles begin to arrive (its own times
        count from there, until ``done``), and its end.
        """
        done_at = np.maximum(max(done, self.begin), self.begin + self.beside.max(axis=1))
        first, last = self.first.max(axis=1), self.last.max(axis=1)
        end = np.cumsum(first + done_at + self.after.max(axis=1) + last)
        start = np.append(0, end[:-1])
        begins = start + first
        where = {
            "first": start,
            "before": begins,
            "beside": begins + self.begin,
            "after": begins + done_at,
        }
        self.place(tasks, where | {"last": end - last})
        return start, begins, end


def _host_of_each(costs: Costs, micro_batches: int) -> _Host:
    """Host transfers of a schedule whose stages run the same micro-batch, one after another."""
    runs = np.ones((micro_batches, len(costs.forward)), dtype=bool)
    return _host(costs, runs, np.arange(micro_batches)[:, None] * runs, micro_batches)


def _host(costs: Costs, runs: np.ndarray, micro: np.ndarray, micro_batches: int) -> _Host:
    """Host transfers given when each stage runs which micro-batch forward.

    ``runs``, ``micro``, [pipeline cycle, stage]: whether a stage runs a forward, and of which
    micro-batch. Transfers of one IPU take turns.
    """
    cycles, none = np.arange(len(runs)), np.zeros_like(runs[:1])
    earliest = runs & (cycles == 0)[:, None]
    latest = runs & (cycles == cycles[-1])[:, None]
    behind = np.vstack([latest[-1:] if costs.across else none, runs[:-1]])
    outputs = () if costs.stream_out_once else costs.stream_out
    wanted = [
        ("first", LOAD, () if costs.across else costs.load, earliest, 0),
        ("before", STREAM_IN, costs.stream_in, runs, 0),
        ("beside", LOAD, costs.load, np.vstack([runs[1:], none]), 1),
        ("beside", UNLOAD, costs.unload, behind, -1),
        ("after", STREAM_OUT, outputs, runs, 0),
        ("last", UNLOAD, () if costs.across else costs.unload, latest, 0),
    ]
    used = {name: np.zeros((len(runs), costs.num_ipus), dtype=np.int64) for name, *_ in wanted}
    moves = []
    for where, kind, streams, active, shift in wanted:
        for k, length in streams:
            ipu, at = costs.ipus[k], np.flatnonzero(active[:, k])
            offset = used[where][at, ipu].copy()
            used[where][at, ipu] += length
            number = (micro[at, k] + shift) % micro_batches
            moves.append((where, kind, ipu, at, offset, np.full(len(at), length), k, number))
    host = _Host(
        used["first"], used["before"], used["beside"], used["after"], used["last"], tuple(moves)
    )
    if not costs.across:
        return host
    ahead = tuple((k, length) for k, length in costs.load if runs[0, k])
    left = [(k, length) for k, length in costs.unload if latest[-1, k]]
    return replace(host, ahead=ahead, head=_longest(costs, ahead), tail=_longest(costs, left))


def _longest(costs: Costs, streams: Sequence[tuple[int, int]]) -> int:
    """Cycles of the longest series of transfers that take turns on their IPU."""
    spent = np.zeros(costs.num_ipus, dtype=np.int64)
    np.add.at(spent, [costs.ipus[k] for k, _ in streams], [length for _, length in streams])
    return int(spent.max())


def _groups(costs: Costs) -> tuple[int, ...]:
    return costs.host_sync or (0,) * costs.num_ipus


def _by_group(cycles: np.ndarray, group: Sequence[int]) -> np.ndarray:
    """The maximum over each IPU's group: [pipeline cycle, IPU]."""
    slowest = cycles.copy()
    for one in set(group):
        here = np.array(group) == one
        slowest[:, here] = cycles[:, here].max(axis=1, keepdims=True)
    return slowest


def _finish(
    costs: Costs,
    tasks: _Tasks,
    phases: list[PipelinePhase],
    start: np.ndarray,
    end: np.ndarray,
    slowest: np.ndarray,
    host: _Host,
    over: Sequence[tuple[int, int, int]] = (),
) -> Schedule:
    """Append the weight update, fill the waits and sort.

    The next device iteration's first inputs may overlap the update. ``over``: (IPU, start, end) of
    tasks that may continue past the end of a pipeline cycle; the last one lasts until all of them
    have ended.
    """
    end = _with_tasks_over(end, over)
    once = costs.stream_out if costs.stream_out_once else ()
    if any(costs.update) or once or host.ahead:
        at, cycle = int(end[-1]), len(phases)
        cell = np.array([cycle])
        reduce = max(costs.reduce, default=0)
        update = max(costs.update, default=0)
        for i, c in enumerate(costs.reduce):
            tasks.add(REDUCE, i, cell, np.array([at]), np.array([c]))
        for i, c in enumerate(costs.update):
            tasks.add(UPDATE, i, cell, np.array([at + reduce]), np.array([c]))
        done = at + reduce + update
        for what, streams, free in (
            (STREAM_OUT, once, dict.fromkeys(range(costs.num_ipus), done)),
            (LOAD, host.ahead, tasks.free_beside(cycle - 1, costs.num_ipus) if host.ahead else {}),
        ):
            for k, c in streams:  # those of one IPU take turns
                i = costs.ipus[k]
                tasks.add(
                    what, i, cell, np.array([free[i]]), np.array([c]), k, 0 if what == LOAD else -1
                )
                free[i] += c
                done = max(done, free[i])
        phases = [*phases, PipelinePhase.UPDATE]
        start, end = np.append(start, at), np.append(end, done)
        slowest = np.append(slowest, np.argmax(costs.update) if costs.update else 0)
    columns = tasks.columns()
    beside = np.isin(columns[0], BESIDE)
    apart = bool(beside.any())
    own = tuple(column[~beside] for column in columns) if apart else columns
    filled = _with_waits(own, costs.num_ipus, start, end, over)
    if apart:
        aside = (column[beside] for column in columns)
        filled = tuple(np.concatenate(both) for both in zip(filled, aside, strict=True))
    if apart or over:
        kind, ipu, begin = filled[0], filled[1], filled[5]
        order = _sorted(np.isin(kind, BESIDE), begin, ipu)
        filled = tuple(column[order] for column in filled)
    kind, ipu, stage, micro, cycle_of, begin, finish = filled
    return Schedule(
        kind,
        ipu,
        stage,
        micro,
        cycle_of,
        begin,
        finish,
        tuple(phases),
        start,
        end,
        np.asarray(slowest),
        head=host.head,
        tail=host.tail,
    )


def _with_waits(
    tasks: tuple[np.ndarray, ...],
    ipus: int,
    start: np.ndarray,
    end: np.ndarray,
    over: Sequence[tuple[int, int, int]],
) -> tuple[np.ndarray, ...]:
    """Columns of tasks with a wait in each gap, by IPU, pipeline cycle and start.

    ``start`` and ``end``: of the pipeline cycles. Without ``over`` that is by IPU and start.
    """
    kind, ipu, stage, micro, cycle_of, begin, finish = tasks
    # Empty marks at each pipeline cycle's ends keep a wait from reaching over one.
    marks_ipu = np.repeat(np.arange(ipus), 2 * len(start))
    marks_cycle = np.tile(np.repeat(np.arange(len(start)), 2), ipus)
    marks_at = np.tile(np.stack([start, end], axis=1).ravel(), ipus)
    marks = _marks_outside(over, marks_ipu, marks_cycle, marks_at, end)
    marks_ipu, marks_cycle, marks_at = marks
    cycle_of = _cycle_of_start(over, ipu, cycle_of, begin, finish, end)
    ends = (ipu, marks_ipu), (cycle_of, marks_cycle), (begin, marks_at), (finish, marks_at)
    ipu, cycle_of, begin, finish = (np.concatenate(both) for both in ends)
    order = _sorted(finish > begin, begin, cycle_of, ipu)
    ipu, cycle_of, begin, finish = (column[order] for column in (ipu, cycle_of, begin, finish))
    gap = begin[1:] > finish[:-1]
    gap &= (ipu[1:] == ipu[:-1]) & (cycle_of[1:] == cycle_of[:-1])
    is_task = order < len(kind)
    # row in the result of each task, and of each wait, after the task or mark before its gap
    rows = is_task.astype(np.int64)
    rows[:-1] += gap
    behind = np.cumsum(rows)
    task, left = np.flatnonzero(is_task), np.flatnonzero(gap)
    at, wait, source = behind[task] - rows[task], behind[left] - 1, order[task]
    columns = (
        (kind[source], IDLE),
        (ipu[task], ipu[left]),
        (stage[source], -1),
        (micro[source], -1),
        (cycle_of[task], cycle_of[left]),
        (begin[task], finish[left]),
        (finish[task], begin[left + 1]),
    )
    filled = []
    for of_tasks, of_waits in columns:
        column = np.empty(len(task) + len(left), dtype=np.int64)
        column[at], column[wait] = of_tasks, of_waits
        filled.append(column)
    return tuple(filled)


def _with_tasks_over(end: np.ndarray, over: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Ends of the pipeline cycles, the last one not before all tasks of ``over`` have ended."""
    if not over:
        return end
    return np.append(end[:-1], max(int(end[-1]), *(stop for _, _, stop in over)))


def end_of_update(costs: Costs, end: np.ndarray, over: Sequence[tuple[int, int, int]] = ()) -> int:
    """When all is done if pipeline cycles end at ``end``, as `_finish` lays out the rest.

    Without loads for the next device iteration.
    """
    done = int(_with_tasks_over(end, over)[-1])
    once = costs.stream_out if costs.stream_out_once else ()
    if not any(costs.update) and not once:
        return done
    done += max(costs.reduce, default=0) + max(costs.update, default=0)
    return done + _longest(costs, once) if once else done


def _marks_outside(
    over: Sequence[tuple[int, int, int]],
    ipu: np.ndarray,
    cycle: np.ndarray,
    at: np.ndarray,
    end: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The marks outside tasks that cross them, and one at each end of such a task."""
    ipus, starts, stops = _columns_of(over)
    inside = np.zeros(len(at), dtype=bool)
    for i in set(ipus.tolist()):
        here, own = ipu == i, ipus == i
        order = np.argsort(starts[own], kind="stable")
        # the latest end of those that begin before a mark
        latest = np.append(-1, np.maximum.accumulate(stops[own][order]))
        begun = np.searchsorted(starts[own][order], at[here], side="left")
        inside[here] = at[here] < latest[begun]
    cycles = np.searchsorted(end, stops)  # the cycle that the end belongs to
    columns = (
        np.append(column[~inside], more)
        for column, more in ((ipu, ipus), (cycle, cycles), (at, stops))
    )
    return tuple(columns)  # type: ignore[return-value]


def _cycle_of_start(
    over: Sequence[tuple[int, int, int]],
    ipu: np.ndarray,
    cycle: np.ndarray,
    start: np.ndarray,
    stop: np.ndarray,
    end: np.ndarray,
) -> np.ndarray:
    """The pipeline cycle of each task; for those in ``over``, the one in which they start."""
    cycle = cycle.copy()
    wanted = set(over)
    maybe = np.flatnonzero(np.isin(start, _columns_of(over)[1]))
    rows = zip(ipu[maybe].tolist(), start[maybe].tolist(), stop[maybe].tolist(), strict=True)
    chosen = maybe[np.array([row in wanted for row in rows], dtype=bool)]
    cycle[chosen] = np.searchsorted(end, start[chosen], side="right")
    return cycle


def _columns_of(over: Sequence[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """IPUs, starts and ends: int64 each."""
    ipu, start, stop = np.array(over, dtype=np.int64).reshape(-1, 3).T
    return ipu, start, stop


def _sorted(*keys: np.ndarray) -> np.ndarray:
    """`np.lexsort` of keys >= 0, equal ones in any order; faster if they fit into one number."""
    one, most = np.zeros(len(keys[0]), dtype=np.int64), 1
    for key in keys[::-1]:
        many = int(key.max(initial=0)) + 1
        most *= many
        if most >= 1 << 62:
            return np.lexsort(keys)
        one = one * many + key
    return np.argsort(one)


def _of_rows(column: int | np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Some rows of a column, or its only number that many times: int64."""
    if isinstance(column, np.ndarray) and len(column) > 1:
        return column[rows].astype(np.int64, copy=False)
    return np.full(len(rows), column, dtype=np.int64)


class _Tasks:
    """Columns of tasks, collected piece by piece. Tasks without duration are left out."""

    def __init__(self) -> None:
        self._pieces: list[tuple[np.ndarray, ...]] = []

    def add(
        self,
        kind: int | np.ndarray,
        ipu: int | np.ndarray,
        cycle: np.ndarray,
        start: np.ndarray,
        length: np.ndarray,
        stage: int | np.ndarray = -1,
        micro_batch: int | np.ndarray = -1,
    ) -> None:
        rows = np.flatnonzero(length > 0)
        columns = (kind, ipu, stage, micro_batch, cycle, start, start + length)
        self._pieces.append(tuple(_of_rows(column, rows) for column in columns))

    def add_to_each(
        self, kind: int, ipus: np.ndarray, cycle: np.ndarray, start: np.ndarray, length: np.ndarray
    ) -> None:
        """Add a task on each IPU in every pipeline cycle. ``length``: per IPU."""
        count = len(ipus)
        self.add(
            kind,
            np.repeat(ipus, len(cycle)),
            np.tile(cycle, count),
            np.tile(start, count),
            np.repeat(length, len(cycle)),
        )

    def free_beside(self, cycle: int, ipus: int) -> dict[int, int]:
        """When each IPU's I/O tiles are idle again, from the start of a pipeline cycle's work."""
        kind, ipu, _, _, of, start, end = self.columns()
        begin = start[(of == cycle) & np.isin(kind, (FORWARD, BACKWARD))].min(
            initial=end.max(initial=0)
        )
        beside = np.isin(kind, BESIDE)
        return {i: int(end[beside & (ipu == i)].max(initial=begin)) for i in range(ipus)}

    def columns(self) -> tuple[np.ndarray, ...]:
        if not self._pieces:
            return tuple(np.zeros(0, dtype=np.int64) for _ in range(7))
        return tuple(np.concatenate(column) for column in zip(*self._pieces, strict=True))
