"""How long a schedule takes, on two machines that wait differently.

In steps: all IPUs meet after every step, as in PopART's programs; the engine's own layout
(`schedules.in_steps`). Free: each IPU runs its list and waits only for what it reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ipuscope.planner.schedules.actions import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Action,
    ActionSchedule,
    Key,
)
from ipuscope.profiler.enums import PipelinePhase
from ipuscope.profiler.timeline import schedule_layout, schedule_types, schedules
from ipuscope.profiler.timeline.schedule_types import Costs, Schedule
from ipuscope.profiler.timeline.schedules import Order

MOST_CELLS = 4_000_000  # of steps x stages


@dataclass(frozen=True)
class Work:
    """What the stages of a schedule cost for a micro-batch, in cycles.

    ``costs``: the engine's, with ``backward`` without ``weights``, the gradients of weights.
    ``ahead``, ``back``: of a stage's copy to the next one and to the one before; 0 if that is on
    the same IPU.
    """

    costs: Costs
    weights: tuple[int, ...]
    ahead: tuple[int, ...]
    back: tuple[int, ...]

    def cycles(self, action: Action) -> int:
        """Cycles of an action, without copies; a forward includes its host transfers."""
        costs, stage = self.costs, action.stage
        if action.work == FORWARD:
            outputs = () if costs.stream_out_once else costs.stream_out
            host = sum(cycles for k, cycles in (*costs.stream_in, *outputs) if k == stage)
            return costs.forward[stage] + host
        if action.work == WEIGHTS:
            return self.weights[stage]
        return costs.backward[stage] + self.weights[stage] * (action.work == BACKWARD)


def steps_of(schedule: ActionSchedule) -> tuple[tuple[int, ...], ...]:
    """The step of each action: its schedule's, or the first in which it can run.

    An action reads what another IPU made in an earlier step. An overlapping pair shares a step.
    """
    if schedule.steps:
        return schedule.steps
    last, where = schedule.stages - 1, schedule.ipus
    step: dict[Key, int] = {}
    steps = [[0] * len(rank) for rank in schedule.ranks]
    for rank, at in schedule.runnable():
        action, before = schedule.ranks[rank][at], schedule.ranks[rank][at - 1] if at else None
        first = steps[rank][at - 1] + (not before.overlaps) if before else 0
        for need in action.needs(last):
            first = max(first, step[need] + (where[need[0]] != rank))
        steps[rank][at] = step[action.key] = first
    return tuple(map(tuple, steps))


def order_of(schedule: ActionSchedule) -> Order:
    """The same as the engine's arrays, with ramp-up until every rank works."""
    steps = steps_of(schedule)
    count = max(max(one, default=0) for one in steps) + 1
    if count * schedule.stages > MOST_CELLS:
        raise ValueError(f"{count:,} steps of {schedule.stages} stages are too many to lay out")
    none = np.full((3, count, schedule.stages), -1, dtype=np.int64)
    forward, backward, weights = none
    for rank, own in zip(schedule.ranks, steps, strict=True):
        for action, step in zip(rank, own, strict=True):
            number = action.micro_batch
            if action.work == FORWARD:
                forward[step, action.stage] = number
                continue
            if action.work != WEIGHTS:
                backward[step, action.stage] = number
            if schedule.split and action.work in (BACKWARD, WEIGHTS):
                weights[step, action.stage] = number
    up, down = max(own[0] for own in steps), min(own[-1] for own in steps) + 1
    at = np.arange(count)
    phases = np.where(at < up, 0, np.where(at >= down, 2, 1)).tolist()
    named = (PipelinePhase.RAMP_UP, PipelinePhase.STEADY, PipelinePhase.RAMP_DOWN)
    apart = weights if schedule.split else weights[:, :0]
    return Order(forward, backward, apart, tuple(named[one] for one in phases))


def in_steps(schedule: ActionSchedule, work: Work) -> Schedule:
    """Laid out with all IPUs meeting after each step; ``part`` is 1 for gradients of weights."""
    costs, order = work.costs, order_of(schedule)
    if schedule.split:
        costs = replace(costs, weights=work.weights)
    else:
        unsplit = np.add(costs.backward, work.weights).tolist()
        costs = replace(costs, backward=tuple(unsplit))
    laid_out = schedules.in_steps(costs, order, schedule.micro_batches)
    part = np.zeros_like(laid_out.kind)
    if schedule.split:
        rows = np.flatnonzero(laid_out.kind == schedule_types.BACKWARD)
        own = order.backward[laid_out.cycle[rows], laid_out.stage[rows]]
        part[rows] = own != laid_out.micro_batch[rows]
    return replace(laid_out, part=part)


def free(schedule: ActionSchedule, work: Work) -> Schedule:
    """Laid out with each IPU waiting only for what it reads, exactly, event by event.

    Copies overlap the work, one at a time on the link from an IPU to another. The weight update
    follows when all have finished. There is one pipeline cycle a phase.
    """
    last, where, costs = schedule.stages - 1, schedule.ipus, work.costs
    there: dict[tuple[Key, int], int] = {}  # when an IPU has what an action made
    clock, links = [0] * len(schedule.ranks), dict[tuple[int, int], int]()
    rows: list[tuple[int, ...]] = []  # kind, ipu, stage, micro-batch, start, end, part
    for rank, at in schedule.runnable():
        action = schedule.ranks[rank][at]
        stage, forward = action.stage, action.work == FORWARD
        begin = max(clock[rank], *(there[need, rank] for need in action.needs(last)), 0)
        clock[rank] = begin + work.cycles(action)
        kind = schedule_types.FORWARD if forward else schedule_types.BACKWARD
        late = action.work == WEIGHTS
        rows.append((kind, rank, stage, action.micro_batch, begin, clock[rank], late))
        there[action.key, rank] = clock[rank]
        to = stage + 1 if forward else stage - 1
        if not late and 0 <= to <= last and where[to] != rank:
            link = rank, where[to]
            cycles = (work.ahead if forward else work.back)[stage]
            links[link] = max(clock[rank], links.get(link, 0)) + cycles
            there[action.key, where[to]] = links[link]
    return _laid_out(costs, np.array(rows, dtype=np.int64).T, max(clock))


def _laid_out(costs: Costs, columns: np.ndarray, through: int) -> Schedule:
    """Tasks with the update, and the waits between them."""
    total = schedule_layout.end_of_update(costs, np.array([through]))
    ipus, rows = costs.num_ipus, [columns]
    reduce = max(costs.reduce, default=0)
    for kind, cycles, at in (
        (schedule_types.REDUCE, costs.reduce, through),
        (schedule_types.UPDATE, costs.update, through + reduce),
    ):
        own = [(kind, i, -1, -1, at, at + c, 0) for i, c in enumerate(cycles) if c]
        rows.append(np.array(own, dtype=np.int64).reshape(-1, 7).T)
    ends = [(schedule_types.IDLE, i, -1, -1, total, total, 0) for i in range(ipus)]
    rows.append(np.array(ends, dtype=np.int64).T)
    every = np.concatenate(rows, axis=1)
    every = every[:, np.lexsort((every[5], every[4], every[1]))]
    before = np.append(0, every[5][:-1]) * (np.diff(every[1], prepend=-1) == 0)
    waits = every.copy()
    waits[0], waits[2:4], waits[4], waits[5], waits[6] = (
        schedule_types.IDLE,
        -1,
        before,
        every[4],
        0,
    )
    every = np.concatenate([every, waits], axis=1)
    every = every[:, every[5] > every[4]]
    every = every[:, np.lexsort((every[4], every[1]))]
    kind, ipu, stage, number, start, end, part = every
    works = np.isin(kind, (schedule_types.FORWARD, schedule_types.BACKWARD))
    first = max(int(start[works & (ipu == i)].min(initial=total)) for i in range(ipus))
    done = min(int(end[works & (ipu == i)].max(initial=0)) for i in range(ipus))
    edges = np.array([0, first, max(first, done), through, total])
    named = (PipelinePhase.RAMP_UP, PipelinePhase.STEADY, PipelinePhase.RAMP_DOWN)
    there = np.flatnonzero(np.diff(edges) > 0)
    phases = tuple((*named, PipelinePhase.UPDATE)[one] for one in there.tolist())
    begin = edges[there]
    cycle = np.searchsorted(begin, start, side="right") - 1
    return Schedule(
        *(kind, ipu, stage, number, cycle, start, end, phases),
        *(begin, edges[there + 1], np.zeros_like(begin)),
        part=part,
    )


def sliced(schedule: Schedule, slices: int) -> Schedule:
    """With equal parts of its time as pipeline cycles, for a picture; each in its first phase."""
    edges = np.unique(np.linspace(0, schedule.total, slices + 1).astype(np.int64))
    cycles = np.searchsorted(schedule.cycle_start, edges[:-1], side="right") - 1
    return replace(
        schedule,
        cycle=np.searchsorted(edges, schedule.start, side="right") - 1,
        phases=tuple(schedule.phases[one] for one in cycles.tolist()),
        cycle_start=edges[:-1],
        cycle_end=edges[1:],
        slowest_ipu=np.zeros(len(edges) - 1, dtype=np.int64),
    )


def waiting(schedule: Schedule, ipus: int) -> float:
    """Share of the IPUs' time without forward, backward or update."""
    works = np.isin(
        schedule.kind, (schedule_types.FORWARD, schedule_types.BACKWARD, schedule_types.UPDATE)
    )
    spent = int((schedule.end - schedule.start)[works].sum())
    total = schedule.total * ipus
    return 1 - spent / total if total else 0.0


def span(schedule: Schedule) -> int:
    """Cycles of the IPU that is longest between its first work and its last, without updates."""
    works = np.isin(schedule.kind, (schedule_types.FORWARD, schedule_types.BACKWARD))
    return max(
        int(schedule.end[works & (schedule.ipu == i)].max())
        - int(schedule.start[works & (schedule.ipu == i)].min())
        for i in np.unique(schedule.ipu[works]).tolist()
    )


def ramps(schedule: Schedule) -> int:
    """Cycles until the last IPU begins to work, and from the end of the first one's work."""
    works = np.isin(schedule.kind, (schedule_types.FORWARD, schedule_types.BACKWARD))
    ipu, start, end = schedule.ipu[works], schedule.start[works], schedule.end[works]
    own = [(int(start[ipu == i].min()), int(end[ipu == i].max())) for i in np.unique(ipu)]
    through = max(stop for _, stop in own)
    return max(begin for begin, _ in own) + through - min(stop for _, stop in own)
