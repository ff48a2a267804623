"""When each stage runs: ramp-up, steady state and ramp-down from per-stage costs.

It is the only implementation and has two users (docs/decisions.md#one-schedule): the engine lays
out the trace with it, and the what-if predicts other splits with it. The facts are those of
docs/pipeline-schedules.md. There are K forward stages, G micro-batches per weight update (gradient
accumulation) and S pipeline stages: 2K - 1 in training, where the last forward and the first
backward share one, and K in inference. Units: cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuscope.profiler.enums import BodyTask, PipelinePhase

# What a task is. FORWARD and BACKWARD have a stage and a micro-batch, the others may not.
# What a backward runs again of the forward is part of it until the trace is laid out.
# Those in BESIDE are transfers of I/O tiles, which run beside what the other tiles do.
TASKS = tuple(BodyTask)
(
    FORWARD,
    BACKWARD,
    UPDATE,
    STREAM_IN,
    STREAM_OUT,
    COPY,
    REDUCE,
    SYNC,
    IDLE,
    RECOMPUTE,
    LOAD,
    UNLOAD,
    ENTER,
    RETURN,
    LEAVE,
    LOAD_FORWARD,
    STORE_FORWARD,
    LOAD_BACKWARD,
    STORE_BACKWARD,
    LOAD_ENTER,
    LOAD_RETURN,
    STORE_LEAVE,
) = range(len(TASKS))
# Loads and stores of streaming memory over I/O tiles, by the task on whose behalf they are.
LOADS_BESIDE = {
    FORWARD: LOAD_FORWARD,
    BACKWARD: LOAD_BACKWARD,
    ENTER: LOAD_ENTER,
    RETURN: LOAD_RETURN,
}
STORES_BESIDE = {FORWARD: STORE_FORWARD, BACKWARD: STORE_BACKWARD, LEAVE: STORE_LEAVE}
BESIDE = (LOAD, UNLOAD, *LOADS_BESIDE.values(), *STORES_BESIDE.values())
# With fewer micro-batches a phase would load what the phase before has not stored yet.
LEAST_BESIDE = 3


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one micro-batch on each stage, and the fixed costs of every pipeline cycle.

    ``forward``/``backward`` per stage (``backward`` includes recomputation; empty for inference).
    ``update`` and ``reduce`` (all-reduce over replicas) per IPU, once a weight update.
    ``stream_in``/``stream_out``: (stage, cycles) of the host transfers; ``stream_out_once``: at the
    end of a device iteration rather than per micro-batch. ``copies``: per IPU, the exchange between
    IPUs that ends a pipeline cycle; it lasts as long as the longest.

    ``load``/``unload``: (stage, cycles) of host transfers over I/O tiles: a micro-batch's input
    comes in the pipeline cycle before its forward, its output leaves in the one after it.
    ``across``: the first input of the next device iteration comes beside the last pipeline cycle
    and the weight update, and the last output of the one before leaves beside the first pipeline
    cycle. ``host_sync``: of each IPU the group with which it waits for the host; empty: all are one
    group. ``weights``: per stage the gradients of weights, where an `Order` has them apart from
    ``backward``; empty: they are part of it.
    """

    ipus: tuple[int, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...] = ()
    update: tuple[int, ...] = ()
    reduce: tuple[int, ...] = ()
    stream_in: tuple[tuple[int, int], ...] = ()
    stream_out: tuple[tuple[int, int], ...] = ()
    stream_out_once: bool = False
    copies: tuple[int, ...] = ()
    sync: int = 0  # external sync before each phase in which IPUs meet
    load: tuple[tuple[int, int], ...] = ()
    unload: tuple[tuple[int, int], ...] = ()
    across: bool = False
    host_sync: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()

    @property
    def num_ipus(self) -> int:
        """Number of IPUs of one replica."""
        return max(self.ipus) + 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """One device iteration.

    Contains its tasks (arrays of equal length, sorted by IPU and start) and its pipeline cycles.

    Tasks cover each IPU's time from 0 to ``total`` without gap or overlap; waiting is a task of
    kind IDLE. Tasks of the kinds in `BESIDE` overlap with these, but not with each other.
    """

    kind: np.ndarray
    ipu: np.ndarray
    stage: np.ndarray  # -1: none
    micro_batch: np.ndarray  # -1: none
    cycle: np.ndarray  # pipeline cycle
    start: np.ndarray
    end: np.ndarray
    phases: tuple[PipelinePhase, ...]  # of each pipeline cycle
    cycle_start: np.ndarray
    cycle_end: np.ndarray
    slowest_ipu: np.ndarray
    # which of a backward's turns (`split_backward`); None: no backward is cut
    part: np.ndarray | None = None
    # cycles before the first of a call's device iterations: its first inputs come ...
    head: int = 0
    # ... and after the last: its last outputs leave. Both are 0 but for `Costs.across`, where this
    # device iteration is one amid others: the first and last are at most as long, by a transfer
    # that has none to go with.
    tail: int = 0

    @property
    def total(self) -> int:
        """Cycles up to the end of the last pipeline cycle."""
        return int(self.cycle_end[-1]) if len(self.cycle_end) else 0


# -- closed forms ---


def pipeline_stages(stages: int, training: bool) -> int:
    """Number of pipeline stages S: 2K - 1 in training, K in inference."""
    return 2 * stages - 1 if training else stages


def pipeline_cycles(stages: int, micro_batches: int, training: bool) -> int:
    """Pipeline cycles per weight update: G + S - 1."""
    return micro_batches + pipeline_stages(stages, training) - 1


def stash_depth(stages: int, stage: int) -> int:
    """Micro-batches stashed between the forward and backward of a stage.

    2(K - 1 - k) + 1; none for the last stage.
    """
    return 0 if stage == stages - 1 else 2 * (stages - 1 - stage) + 1


def slot_bubble(stages: int, micro_batches: int, training: bool = True) -> float:
    """Share of a stage's slots (pipeline cycles) that are empty: (S - 1) / (G + S - 1)."""
    return (pipeline_stages(stages, training) - 1) / pipeline_cycles(
        stages, micro_batches, training
    )


def time_bubble(stages: int, micro_batches: int) -> float:
    """Time bubble of a balanced pipeline without overheads, (K - 1) / (G + K - 1)."""
    return (stages - 1) / (micro_batches + stages - 1)


def training_cycles(
    forward: Sequence[int], backward: Sequence[int], micro_batches: int, overhead: int = 0
) -> int:
    """Exact cycles of a weight update with one stage per IPU and G >= 2K - 1.

    Every pipeline cycle has the same overhead.
    """
    stages = len(forward)
    f, b = np.asarray(forward), np.asarray(backward)
    both = f + b
    main = (micro_batches - 2 * stages + 2) * both.max()
    fill = np.maximum.accumulate(f)[: stages - 1].sum()
    flush = np.maximum.accumulate(b)[: stages - 1].sum()
    from_stage = np.maximum.accumulate(both[::-1])[::-1][1:]
    mixed = (np.maximum(f.max(), from_stage) + np.maximum(b.max(), from_stage)).sum()
    return int(main + fill + flush + mixed + (micro_batches + 2 * stages - 2) * overhead)


def phase_cycles(stages: int, micro_batches: int) -> int:
    """Pipeline cycles of one phase in one direction: M + p - 1."""
    return micro_batches + stages - 1


def pipelined_phases_cycles(
    stages: int,
    phases: int,
    micro_batches: int,
    forward: int,
    backward: int = 0,
    enter: int = 0,
    back: int = 0,
    leave: int = 0,
) -> int:
    """Exact cycles of Q phases that are pipelines of p equal stages, without update and host.

    ``forward``, ``backward``: cycles per stage and micro-batch, including all overheads of a
    pipeline cycle. ``enter``, ``back``, ``leave``: per stage, the cycles that precede its forward
    and its backward in a phase (``back`` also in the last phase), and those that follow its
    backward. Between two phases an IPU has p - 1 pipeline cycles in which the others ramp down and
    up, so its transfers cost only what exceeds that. T = e + Q (M + p - 1) (f + b) + (Q - 1)
    (max(0, e - (p - 1) f) + max(0, l + r - (p - 1) b)) + r + l; in inference only the terms in e
    and f.
    """
    run, shadow = phase_cycles(stages, micro_batches), stages - 1
    total = enter + phases * run * forward + (phases - 1) * max(0, enter - shadow * forward)
    if not backward:
        return total
    between = max(0, leave + back - shadow * backward)
    return total + back + phases * run * backward + (phases - 1) * between + leave


@dataclass(frozen=True, slots=True)
class OverIoTiles:
    """Cycles of one stage's transfers over I/O tiles, for phases that are pipelines.

    Each micro-batch has ``load_forward``, ``store_forward``, ``load_backward`` and
    ``store_backward``; ``enter``, ``back`` and ``leave`` are once for all of a phase's.
    """

    load_forward: int = 0
    store_forward: int = 0
    load_backward: int = 0
    store_backward: int = 0
    enter: int = 0
    back: int = 0
    leave: int = 0


def phases_over_io_tiles_cycles(
    stages: int,
    phases: int,
    micro_batches: int,
    forward: int,
    backward: int,
    once: tuple[int, int, int],
    over: OverIoTiles,
) -> int:
    """Exact cycles as `pipelined_phases_cycles`, with transfers ``over`` I/O tiles beside them.

    ``once``: what remains of enter, back and leave on the tiles that compute. There are at least
    as many micro-batches as stages, and `LEAST_BESIDE`. A pipeline cycle lasts as long as its work
    w or the transfers beside it: loads a of the next micro-batch, stores u of the last. A run of
    M + p - 1 pipeline cycles takes

        max(w, before) + (M + p - 3) max(w, a + u) + max(w, after)

    where ``before`` and ``after`` are what the runs on either side still store, or load already:
    u' and a'' of different IPUs, except where a run turns from forward to backward, or has up to
    two stages. What is loaded once for the next phase, and stored once of the phase before, goes
    beside the pipeline cycle in which the last stage begins. The first loads and the last stores
    have nothing beside them.
    """
    if micro_batches < max(stages, LEAST_BESIDE):
        raise ValueError(f"{micro_batches} micro-batches are fewer than {stages} stages, or 3")
    enter, back, leave = once
    forwards = _RunOver(forward, over.load_forward, over.store_forward, 0, enter, over.enter, 0)
    runs = [forwards] * phases
    if backward:
        turned = _RunOver(
            *(backward, over.load_backward, over.store_backward),
            *(leave, back, over.back, over.leave),
        )
        runs += [turned] * phases
    first, last = runs[0], runs[-1]
    total = first.once_load + first.load + first.enter
    lengths = [
        _run_lengths(runs, number, stages, micro_batches, phases) for number in range(len(runs))
    ]
    total += sum(int(length.sum()) for length in lengths)
    for number in range(1, len(runs)):
        turns = number == phases
        free = _free_between(lengths[number - 1], lengths[number], stages, turns)
        moves = runs[number].enter + runs[number - 1].leave
        total += max(0, moves - int(free.min()))
    return total + last.leave + last.store + last.once_store


@dataclass(frozen=True, slots=True)
class _RunOver:
    """One direction of a phase, per stage: cycles on the tiles that compute, and over I/O tiles."""

    work: int
    load: int
    store: int
    leave: int
    enter: int
    once_load: int
    once_store: int


def _run_lengths(
    runs: Sequence[_RunOver], number: int, stages: int, micro_batches: int, turn: int
) -> np.ndarray:
    """Cycles of each pipeline cycle of a run; ``turn``: the first run of the backward."""
    run, none = runs[number], _RunOver(0, 0, 0, 0, 0, 0, 0)
    before = runs[number - 1] if number else none
    after = runs[number + 1] if number + 1 < len(runs) else none

    def together(store: int, load: int, turns: bool) -> int:
        return store + load if turns or stages <= 2 else max(store, load)

    beside = np.full(phase_cycles(stages, micro_batches), run.load + run.store)
    beside[0] = together(before.store, run.load, number == turn)
    beside[-1] = together(run.store, after.load, number + 1 == turn)
    beside[stages - 1] += after.once_load + before.once_store
    return np.maximum(beside, run.work)


def _free_between(one: np.ndarray, other: np.ndarray, stages: int, turns: bool) -> np.ndarray:
    """Cycles between an IPU's last micro-batch of a run and its first of the next, by its place."""
    places = np.arange(stages)
    left = np.append(0, np.cumsum(one[::-1]))[places if turns else stages - 1 - places]
    return left + np.append(0, np.cumsum(other))[places]


def overlapped_cycles(work: int, load: int, unload: int, micro_batches: int) -> int:
    """Exact cycles of ``micro_batches`` whose I/O overlaps with ``work`` cycles each.

    The first load and the last unload are not overlapped, nor is the part of any transfer that is
    longer than the work beside it.
    """
    if micro_batches == 1:
        return load + work + unload
    middle = (micro_batches - 2) * max(work, load + unload)
    return load + max(work, load) + middle + max(work, unload) + unload


# -- schedules ---


@dataclass(frozen=True)
class Order:
    """Which micro-batch each stage works on in each step: int64[step, stage].

    Of its forward, its backward and, where these are apart (`Costs.weights`), its gradients of
    weights. A number that is no micro-batch means none. ``phases``: of each step.
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

    ``column``: where `Order` has each, its three arrays side by side.
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
    group has its inputs, and those it then works. All IPUs meet ``meet`` cycles after ``first``;
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
        # IPUs that wait for the host together: streams in, work, streams out. Where that is not all
        # of them, each group is through with the host before all meet for the copies; else they
        # meet before the outputs leave.
        group = _groups(costs)
        together = len(set(group)) == 1
        begin, work = (
            _by_group(each, group) for each in (host.before, np.maximum(load, host.beside))
        )
        finish = _by_group(host.after, group)
        first = host.first.max(axis=1)  # nobody computes before the overlapped inputs are there
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
    """The lengths that `pipelined` would lay out, for the pipelined order.

    Pipeline cycles between ramp-up and ramp-down are alike, so many micro-batches take no longer to
    count than a few.
    """
    counted = min(micro_batches, 4 * len(costs.forward))
    order = grouped(len(costs.forward), counted, bool(costs.backward))
    turns = _Turns.of(costs, order, counted)
    if turns.host.ahead:  # what is loaded beside the update must be laid out
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
    # Who waits for the host alone begins as soon as its own inputs are there; all meet at the first
    # cut.
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
    moves: tuple[
        tuple[Any, ...], ...
    ]  # where of these, then what `_Tasks.add` takes, the start within it
    ahead: tuple[tuple[int, int], ...] = ()  # (stage, cycles): loads beside the weight update
    head: int = 0
    tail: int = 0

    @property
    def begin(self) -> int:
        """When all IPUs have their inputs, except over I/O tiles, in the first pipeline cycle."""
        return int(self.before[0].max())

    def place(self, tasks: _Tasks, at: dict[str, np.ndarray]) -> None:
        """Add the transfers at ``at``.

        ``at``: when each of the five kinds begins in each pipeline cycle (or there on each IPU).
        """
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

    The next device iteration's first inputs may arrive beside the update. ``over``: (IPU, start,
    end) of tasks that may continue past the end of a pipeline cycle; the last one lasts until all
    of them have ended.
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
    # where in the result each task is, and each wait, behind the task or mark before its gap
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
    """When all is done whose pipeline cycles ``end`` then, as `_finish` lays out what follows them.

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
    known = set(over)
    maybe = np.flatnonzero(np.isin(start, _columns_of(over)[1]))
    rows = zip(ipu[maybe].tolist(), start[maybe].tolist(), stop[maybe].tolist(), strict=True)
    chosen = maybe[np.array([row in known for row in rows], dtype=bool)]
    cycle[chosen] = np.searchsorted(end, start[chosen], side="right")
    return cycle


def _columns_of(over: Sequence[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """IPUs, starts and ends: int64 each."""
    ipu, start, stop = np.array(over, dtype=np.int64).reshape(-1, 3).T
    return ipu, start, stop


def _sorted(*keys: np.ndarray) -> np.ndarray:
    """`np.lexsort` of keys, none below 0, those of the same ones in any order.

    As one number, where they fit into it: several times as fast.
    """
    one, most = np.zeros(len(keys[0]), dtype=np.int64), 1
    for key in keys[::-1]:
        many = int(key.max(initial=0)) + 1
        most *= many
        if most >= 1 << 62:
            return np.lexsort(keys)
        one = one * many + key
    return np.argsort(one)


def _of_rows(column: int | np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Some rows of a column, or as many of its only number: int64."""
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
        kept = np.flatnonzero(length > 0)
        columns = (kind, ipu, stage, micro_batch, cycle, start, start + length)
        self._pieces.append(tuple(_of_rows(column, kept) for column in columns))

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
        """When the I/O tiles of each IPU are idle again.

        Counted from the start of a pipeline cycle's work.
        """
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
