"""When each stage runs: ramp-up, steady state and ramp-down from per-stage costs.

This single implementation has two users (docs/decisions.md#one-schedule): the engine lays out the
trace with it, and the what-if predicts other splits with it. The facts are those of
docs/pipeline-schedules.md. There are K forward stages, G micro-batches per weight update (gradient
accumulation) and S pipeline stages: 2K - 1 in training, where the last forward and the first
backward share one, and K in inference. Units: cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipuscope.profiler.enums import PipelinePhase
from ipuscope.profiler.timeline.closed_forms import pipeline_cycles, pipeline_stages
from ipuscope.profiler.timeline.schedule_layout import (
    _by_group,
    _finish,
    _groups,
    _Host,
    _host,
    _host_of_each,
    _longest,
    _Tasks,
)
from ipuscope.profiler.timeline.schedule_types import BACKWARD, COPY, FORWARD, SYNC, Costs, Schedule


@dataclass(frozen=True)
class Order:
    """Which micro-batch each stage works on in each step: int64[step, stage].

    For its forward, its backward and, if these are separate (`Costs.weights`), its gradients of
    weights. Other numbers mean none. ``phases``: of each step.
    """

    forward: np.ndarray
    backward: np.ndarray
    weights: np.ndarray
    phases: tuple[PipelinePhase, ...]


def grouped(stages: int, micro_batches: int, training: bool) -> Order:
    """PopART's order: pipeline stage s works on micro-batch c - s in pipeline cycle c."""
    cycles = np.arange(pipeline_cycles(stages, micro_batches, training))[:, None]
    stage, none = np.arange(stages), np.zeros((len(cycles), 0), dtype=np.int64)
    fill = pipeline_stages(stages, training) - 1
    ramp_up, ramp_down = (PipelinePhase.RAMP_UP,) * fill, (PipelinePhase.RAMP_DOWN,) * fill
    steady = (PipelinePhase.STEADY,) * (len(cycles) - 2 * fill)
    backward = cycles - (2 * (stages - 1) - stage) if training else none
    return Order(cycles - stage, backward, none, (*ramp_up, *steady, *ramp_down))


def pipelined(costs: Costs, micro_batches: int) -> Schedule:
    """Lay out the pipelined order: `grouped`, in pipeline cycles."""
    order = grouped(len(costs.forward), micro_batches, bool(costs.backward))
    return in_steps(costs, order, micro_batches)


def in_steps(costs: Costs, order: Order, micro_batches: int) -> Schedule:
    """Lay out an order in which all IPUs meet after each step (of `grouped`: pipeline cycle).

    In every step each active stage runs on its IPU; then results are copied to the next. A step is:
    streams in, all active stages in parallel (an IPU with several runs them one after the other),
    streams out, copies.
    """
    turns = _Turns.of(costs, order, micro_batches)
    host, bodies, last, sync = turns.host, turns.bodies, turns.last, turns.sync
    cycles = np.arange(len(turns.length))
    end = np.cumsum(turns.length)
    start = end - turns.length
    begins = start + turns.first
    main = begins[:, None] + turns.begin
    join = begins + turns.meet
    leave = (join + sync)[:, None] + np.zeros_like(main) if turns.together else main + turns.work
    tasks = _Tasks()
    where, body = np.nonzero(turns.active)
    ipu = bodies.ipu[body]
    tasks.add(
        bodies.kind[body],
        ipu,
        where,
        main[where, ipu] + turns.before[where, body],
        turns.spent[where, body],
        bodies.stage[body],
        turns.micro[where, body],
    )
    over = join + sync + last + turns.copy  # when all but the last overlapped outputs are out
    host.place(
        tasks, {"first": start, "before": begins, "beside": main, "after": leave, "last": over}
    )
    every = np.arange(costs.num_ipus)
    if sync:
        tasks.add_to_each(SYNC, every, cycles, join, np.full(len(every), sync))
    if costs.copies:
        each = np.array(costs.copies[: len(every)])
        tasks.add_to_each(COPY, every, cycles, over - turns.copy, each)
    busiest = np.maximum(turns.load, host.beside).argmax(axis=1)
    return _finish(costs, tasks, list(turns.phases), start, end, busiest, host)


@dataclass(frozen=True)
class _Bodies:
    """Forwards and backwards of the stages, by IPU and in the order in which each IPU runs them.

    ``column``: of each in the three arrays of `Order`, side by side.
    """

    column: np.ndarray
    kind: np.ndarray
    stage: np.ndarray
    ipu: np.ndarray
    cycles: np.ndarray

    @classmethod
    def of(cls, costs: Costs) -> _Bodies:
        stages = len(costs.forward)
        # slot: the pipeline stage, which the last stage's forward and backward share
        bodies = [(k, FORWARD, k, costs.forward[k]) for k in range(stages)]
        for cycles_of in (costs.backward, costs.weights):
            bodies += [(2 * (stages - 1) - k, BACKWARD, k, c) for k, c in enumerate(cycles_of)]
        slot, kind, stage, cycles = (np.array(column) for column in zip(*bodies, strict=True))
        ipu = np.array(costs.ipus)[stage]
        order = np.lexsort((kind, slot, ipu))
        return cls(order, kind[order], stage[order], ipu[order], cycles[order])

    def sums(self, spent: np.ndarray, num_ipus: int) -> tuple[np.ndarray, np.ndarray]:
        """Sums of cycles [pipeline cycle, body]: before each body on its IPU, and per IPU."""
        total = np.zeros((len(spent), len(self.ipu) + 1), dtype=np.int64)
        np.cumsum(spent, axis=1, out=total[:, 1:])
        edges = np.searchsorted(self.ipu, np.arange(num_ipus + 1))
        before = total[:, :-1] - total[:, edges[self.ipu]]
        return before, total[:, edges[1:]] - total[:, edges[:-1]]


@dataclass(frozen=True)
class _Turns:
    """The durations of the pipeline cycles, before anything is laid out.

    Arrays are over pipeline cycles; a second axis is bodies or IPUs. ``spent``, ``before``: cycles
    of each body, and of those before it on its IPU; ``begin``, ``work``: cycles until an IPU's
    group has its inputs, and of its work after that. All IPUs meet ``meet`` cycles after ``first``;
    the ``last`` outputs leave after that.
    """

    bodies: _Bodies
    host: _Host
    phases: tuple[PipelinePhase, ...]
    together: bool  # all IPUs wait for the host together
    micro: np.ndarray
    active: np.ndarray
    spent: np.ndarray
    before: np.ndarray
    load: np.ndarray
    begin: np.ndarray
    work: np.ndarray
    first: np.ndarray
    meet: np.ndarray
    last: np.ndarray
    sync: int
    copy: int
    length: np.ndarray

    @classmethod
    def of(cls, costs: Costs, order: Order, micro_batches: int) -> _Turns:
        bodies, forwards = _Bodies.of(costs), order.forward
        micro = np.concatenate([forwards, order.backward, order.weights], axis=1)[:, bodies.column]
        active = (micro >= 0) & (micro < micro_batches)
        spent = np.where(active, bodies.cycles, 0)
        before, load = bodies.sums(spent, costs.num_ipus)
        runs = (forwards >= 0) & (forwards < micro_batches)
        host = _host(costs, runs, forwards, micro_batches)
        # IPUs that wait for the host together: streams in, work, streams out. If that is not all of
        # them, each group finishes with the host before all meet for the copies; else they meet
        # before the outputs leave.
        group = _groups(costs)
        together = len(set(group)) == 1
        begin, work = (
            _by_group(each, group) for each in (host.before, np.maximum(load, host.beside))
        )
        finish = _by_group(host.after, group)
        first = host.first.max(axis=1)  # nobody computes before the overlapped inputs arrive
        meet = (begin + work + (0 if together else finish)).max(axis=1)
        last = finish.max(axis=1) if together else np.zeros_like(meet)
        sync, copy = costs.sync if costs.num_ipus > 1 else 0, max(costs.copies, default=0)
        length = first + meet + sync + last + copy + host.last.max(axis=1)
        return cls(
            *(bodies, host, order.phases, together, micro, active, spent, before, load),
            *(begin, work, first, meet, last, sync, copy, length),
        )


@dataclass(frozen=True)
class Lengths:
    """Duration of a device iteration by phase, in cycles.

    ``steady``: the longest pipeline cycle in which all stages work (the longest of all, if there is
    none); ``ramps``: all of ramp-up and ramp-down; ``update``: what follows the last pipeline
    cycle.
    """

    total: int
    steady: int
    ramps: int
    update: int


def lengths(costs: Costs, micro_batches: int) -> Lengths:
    """The lengths of `pipelined`.

    Pipeline cycles between ramp-up and ramp-down are alike, so many micro-batches take no longer to
    count than a few.
    """
    counted = min(micro_batches, 4 * len(costs.forward))
    order = grouped(len(costs.forward), counted, bool(costs.backward))
    turns = _Turns.of(costs, order, counted)
    if turns.host.ahead:  # loads beside the update must be laid out
        return lengths_of(pipelined(costs, counted), micro_batches - counted)
    update = max(costs.reduce, default=0) + max(costs.update, default=0)
    once = costs.stream_out if costs.stream_out_once else ()
    if not any(costs.update) and not once:
        update = 0
    phases = np.array([*turns.phases, PipelinePhase.UPDATE])
    length = np.append(turns.length, update + _longest(costs, once))
    return _lengths(phases, length, micro_batches - counted)


def lengths_of(schedule: Schedule, more: int = 0) -> Lengths:
    """Lengths of a schedule as laid out, with this many more micro-batches in its middle."""
    length = schedule.cycle_end - schedule.cycle_start
    return _lengths(np.array(schedule.phases), length, more)


def _lengths(phases: np.ndarray, length: np.ndarray, more: int) -> Lengths:
    """Lengths with additional micro-batches in the middle of the steady state."""
    whole = int(length.sum()) + more * int(length[len(phases) // 2])
    steady = length[phases == PipelinePhase.STEADY]
    ramps = length[np.isin(phases, (PipelinePhase.RAMP_UP, PipelinePhase.RAMP_DOWN))]
    longest = int((steady if len(steady) else length).max(initial=0))
    update = length[phases == PipelinePhase.UPDATE]
    return Lengths(whole, longest, int(ramps.sum()), int(update.sum()))


def sharded(costs: Costs, micro_batches: int) -> Schedule:
    """One stage at a time, micro-batch after micro-batch: G x sum(f + b), plus copies at every cut.

    A 'pipeline cycle' is one micro-batch here, and there is neither ramp-up nor ramp-down.
    """
    stages, training = len(costs.forward), bool(costs.backward)
    order = [(FORWARD, k) for k in range(stages)]
    if training:
        order += [(BACKWARD, k) for k in reversed(range(stages))]
    sync = costs.sync if costs.num_ipus > 1 else 0
    copy = max(costs.copies, default=0)
    micro = np.arange(micro_batches)
    host = _host_of_each(costs, micro_batches)
    # An IPU that waits for the host alone begins as soon as it has its inputs; all meet at the
    # first cut.
    inputs = _by_group(host.before, _groups(costs))[0]
    at, offsets = int(inputs[costs.ipus[0]]), []
    previous: int | None = None
    for what, k in order:
        if previous is not None and costs.ipus[previous] != costs.ipus[k]:
            at = max(at, host.begin)
            offsets.append((SYNC, -1, at, sync))
            offsets.append((COPY, previous * stages + k, at + sync, copy))
            at += sync + copy
        cost = costs.forward[k] if what == FORWARD else costs.backward[k]
        offsets.append((what, k, at, cost))
        at, previous = at + cost, k
    tasks = _Tasks()
    start, begins, end = host.one_after_another(tasks, at)
    same = np.ones(micro_batches, dtype=np.int64)
    for what, k, at_cycle, cost in offsets:
        if what == SYNC:
            for i in range(costs.num_ipus):
                tasks.add(SYNC, i, micro, begins + at_cycle, same * cost)
        elif what == COPY:
            for i in {costs.ipus[k // stages], costs.ipus[k % stages]}:
                if copy and costs.copies[i]:
                    tasks.add(COPY, i, micro, begins + at_cycle, same * cost)
        else:
            tasks.add(what, costs.ipus[k], micro, begins + at_cycle, same * cost, k, micro)
    busiest = np.bincount(
        np.array([costs.ipus[k] for w, k, _, _ in offsets if w in (FORWARD, BACKWARD)]),
        [c for w, _, _, c in offsets if w in (FORWARD, BACKWARD)],
        costs.num_ipus,
    )
    slowest = np.full(micro_batches, busiest.argmax())
    return _finish(costs, tasks, [PipelinePhase.STEADY] * micro_batches, start, end, slowest, host)


def split_backward(schedule: Schedule, turns: Sequence[Sequence[tuple[int, int]]]) -> Schedule:
    """Split each backward task of a schedule into its ``turns``.

    ``turns``: for each stage, (RECOMPUTE or BACKWARD, cycles) in order; the cycles add up to those
    of the backward.
    """
    pieces = [
        [(kind, cycles, part) for part, (kind, cycles) in enumerate(stage_turns) if cycles]
        for stage_turns in turns
    ]
    count = np.ones(len(schedule.kind), dtype=np.int64)
    where = [
        np.flatnonzero((schedule.kind == BACKWARD) & (schedule.stage == k))
        for k in range(len(pieces))
    ]
    for tasks, stage_pieces in zip(where, pieces, strict=True):
        count[tasks] = max(1, len(stage_pieces))
    at = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    kind, start, end = schedule.kind[at], schedule.start[at], schedule.end[at]
    part = np.zeros_like(kind)
    for tasks, stage_pieces in zip(where, pieces, strict=True):
        begin = 0
        for number, (task, cycles, of) in enumerate(stage_pieces):
            rows = first[tasks] + number
            kind[rows], part[rows] = task, of
            start[rows] = schedule.start[tasks] + begin
            begin += cycles
            end[rows] = schedule.start[tasks] + begin
    return replace(
        schedule,
        kind=kind,
        ipu=schedule.ipu[at],
        stage=schedule.stage[at],
        micro_batch=schedule.micro_batch[at],
        cycle=schedule.cycle[at],
        start=start,
        end=end,
        part=part,
    )
