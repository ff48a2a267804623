"""When each stage runs: ramp-up, steady state and ramp-down from per-stage costs.

One truth with two users (design.md, decision 5): the engine lays out the trace with it, the what-if predicts
another split with it. All facts are from ``shared/facts/pipeline.md``. K forward stages, G micro-batches a weight
update (gradient accumulation), S pipeline stages: 2K - 1 in training, where the last forward and the first
backward share one, K in inference. Units: cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

# What a task is. FORWARD and BACKWARD have a stage and a micro-batch, the others may not.
# What a backward runs again of the forward is part of it until the trace is laid out.
TASKS = ("forward", "backward", "update", "stream in", "stream out", "copy", "reduce", "sync", "idle", "recompute")
FORWARD, BACKWARD, UPDATE, STREAM_IN, STREAM_OUT, COPY, REDUCE, SYNC, IDLE, RECOMPUTE = range(len(TASKS))


@dataclass(frozen=True, slots=True)
class Costs:
    """What one micro-batch costs on each stage, and what every pipeline cycle costs besides.

    ``forward``/``backward`` per stage (``backward`` includes recomputation; empty for inference). ``update`` and
    ``reduce`` (all-reduce over replicas) per IPU, once a weight update. ``stream_in``/``stream_out``: (stage, cycles)
    of the host transfers; ``stream_out_once``: at the end of a device iteration rather than per micro-batch.
    ``copies``: per IPU, the exchange between IPUs that ends a pipeline cycle; it lasts as long as the longest.
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

    @property
    def num_ipus(self) -> int:
        return max(self.ipus) + 1


@dataclass(frozen=True, slots=True)
class Schedule:
    """One device iteration: tasks (arrays of equal length, sorted by IPU and start) and its pipeline cycles.

    Tasks tile each IPU's time from 0 to ``total`` without gap or overlap; waiting is a task of kind IDLE.
    """

    kind: np.ndarray
    ipu: np.ndarray
    stage: np.ndarray  # -1: none
    micro_batch: np.ndarray  # -1: none
    cycle: np.ndarray  # pipeline cycle
    start: np.ndarray
    end: np.ndarray
    phases: tuple[str, ...]  # of profiler.records.PHASES, per pipeline cycle
    cycle_start: np.ndarray
    cycle_end: np.ndarray
    slowest_ipu: np.ndarray
    part: np.ndarray | None = None  # which of a backward's turns (`split_backward`); None: no backward is cut

    @property
    def total(self) -> int:
        return int(self.cycle_end[-1]) if len(self.cycle_end) else 0


# -- closed forms ----------------------------------------------------------------------------------------


def pipeline_stages(stages: int, training: bool) -> int:
    """S: 2K - 1 in training, K in inference."""
    return 2 * stages - 1 if training else stages


def pipeline_cycles(stages: int, micro_batches: int, training: bool) -> int:
    """Pipeline cycles a weight update: G + S - 1."""
    return micro_batches + pipeline_stages(stages, training) - 1


def stash_depth(stages: int, stage: int) -> int:
    """Micro-batches kept between forward and backward of a stage: 2(K - 1 - k) + 1; none for the last."""
    return 0 if stage == stages - 1 else 2 * (stages - 1 - stage) + 1


def slot_bubble(stages: int, micro_batches: int, training: bool = True) -> float:
    """Share of a stage's slots (pipeline cycles) that are empty: (S - 1) / (G + S - 1)."""
    return (pipeline_stages(stages, training) - 1) / pipeline_cycles(stages, micro_batches, training)


def time_bubble(stages: int, micro_batches: int) -> float:
    """Share of time that is empty in a balanced pipeline without overheads: (K - 1) / (G + K - 1)."""
    return (stages - 1) / (micro_batches + stages - 1)


def training_cycles(forward: Sequence[int], backward: Sequence[int], micro_batches: int, overhead: int = 0) -> int:
    """Exact cycles a weight update, one stage per IPU, G >= 2K - 1, a constant overhead per pipeline cycle."""
    stages = len(forward)
    f, b = np.asarray(forward), np.asarray(backward)
    both = f + b
    main = (micro_batches - 2 * stages + 2) * both.max()
    fill = np.maximum.accumulate(f)[: stages - 1].sum()
    flush = np.maximum.accumulate(b)[: stages - 1].sum()
    from_stage = np.maximum.accumulate(both[::-1])[::-1][1:]
    mixed = (np.maximum(f.max(), from_stage) + np.maximum(b.max(), from_stage)).sum()
    return int(main + fill + flush + mixed + (micro_batches + 2 * stages - 2) * overhead)


# -- schedules -------------------------------------------------------------------------------------------


def pipelined(costs: Costs, micro_batches: int) -> Schedule:
    """The pipelined order: every pipeline cycle, each active stage on its IPU, then copies to the next.

    Pipeline stage s works on micro-batch c - s in pipeline cycle c, if 0 <= c - s < G. A cycle is: streams in,
    all active stages in parallel (an IPU with several runs them one after the other), streams out, copies.
    """
    stages, training = len(costs.forward), bool(costs.backward)
    total_cycles = pipeline_cycles(stages, micro_batches, training)
    # One row per body: (pipeline stage, kind, stage). The last stage's forward and backward share a pipeline stage.
    bodies = [(k, FORWARD, k) for k in range(stages)]
    if training:
        bodies += [(2 * (stages - 1) - k, BACKWARD, k) for k in reversed(range(stages))]
    bodies.sort(key=lambda body: (body[0], body[1]))
    slot, kind, stage = (np.array(column) for column in zip(*bodies, strict=True))
    ipu = np.array(costs.ipus)[stage]
    cost = np.array([costs.forward[k] if what == FORWARD else costs.backward[k] for _, what, k in bodies])

    cycles = np.arange(total_cycles)
    micro = cycles[:, None] - slot[None, :]  # [cycle, body]
    active = (micro >= 0) & (micro < micro_batches)
    spent = np.where(active, cost, 0)
    before = np.zeros_like(spent)
    load = np.zeros((total_cycles, costs.num_ipus), dtype=np.int64)
    for i in range(costs.num_ipus):
        here = ipu == i
        running = np.cumsum(spent[:, here], axis=1)
        before[:, here] = running - spent[:, here]
        load[:, i] = spent[:, here].sum(axis=1)

    runs = (cycles[:, None] >= np.arange(stages)) & (cycles[:, None] < np.arange(stages) + micro_batches)
    outputs = () if costs.stream_out_once else costs.stream_out
    in_offsets, stream_in = _host_turns(costs.ipus, runs, costs.stream_in)
    out_offsets, stream_out = _host_turns(costs.ipus, runs, outputs)
    copy = max(costs.copies, default=0)
    sync = costs.sync if costs.num_ipus > 1 else 0

    length = stream_in + load.max(axis=1) + sync + stream_out + copy
    end = np.cumsum(length)
    start = end - length
    main = start + stream_in
    join = main + load.max(axis=1)
    tasks = _Tasks()
    where, body = np.nonzero(active)
    tasks.add(
        kind[body],
        ipu[body],
        where,
        main[where] + before[where, body],
        spent[where, body],
        stage[body],
        micro[where, body],
    )
    for what, first, streams, offsets in (
        (STREAM_IN, start, costs.stream_in, in_offsets),
        (STREAM_OUT, join + sync, outputs, out_offsets),
    ):
        for (k, c), offset in zip(streams, offsets, strict=True):
            at = np.flatnonzero(runs[:, k])
            tasks.add(what, costs.ipus[k], at, (first + offset)[at], np.full(len(at), c), k, at - k)
    for i in range(costs.num_ipus):
        if sync:
            tasks.add(SYNC, i, cycles, join, np.full(total_cycles, sync))
        if costs.copies and costs.copies[i]:
            tasks.add(COPY, i, cycles, end - copy, np.full(total_cycles, costs.copies[i]))
    fill = pipeline_stages(stages, training) - 1
    phases = ["ramp-up"] * fill + ["steady"] * (total_cycles - 2 * fill) + ["ramp-down"] * fill
    return _finish(costs, tasks, phases, start, end, load.argmax(axis=1))


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
    every = np.ones((1, stages), dtype=np.int64)
    in_offsets, in_length = _host_turns(costs.ipus, every, costs.stream_in)
    outputs = () if costs.stream_out_once else costs.stream_out
    out_offsets, out_length = _host_turns(costs.ipus, every, outputs)
    once, out = int(in_length[0]), int(out_length[0])
    at, offsets = once, []
    previous: int | None = None
    for what, k in order:
        if previous is not None and costs.ipus[previous] != costs.ipus[k]:
            offsets.append((SYNC, -1, at, sync))
            offsets.append((COPY, previous * stages + k, at + sync, copy))
            at += sync + copy
        cost = costs.forward[k] if what == FORWARD else costs.backward[k]
        offsets.append((what, k, at, cost))
        at, previous = at + cost, k
    length = at + out
    micro = np.arange(micro_batches)
    start = micro * length
    tasks = _Tasks()
    same = np.ones(micro_batches, dtype=np.int64)
    for what, k, at_cycle, cost in offsets:
        if what == SYNC:
            for i in range(costs.num_ipus):
                tasks.add(SYNC, i, micro, start + at_cycle, same * cost)
        elif what == COPY:
            for i in {costs.ipus[k // stages], costs.ipus[k % stages]}:
                if copy and costs.copies[i]:
                    tasks.add(COPY, i, micro, start + at_cycle, same * cost)
        else:
            tasks.add(what, costs.ipus[k], micro, start + at_cycle, same * cost, k, micro)
    for (k, c), offset in zip(costs.stream_in, in_offsets, strict=True):
        tasks.add(STREAM_IN, costs.ipus[k], micro, start + offset, same * c, k, micro)
    for (k, c), offset in zip(outputs, out_offsets, strict=True):
        tasks.add(STREAM_OUT, costs.ipus[k], micro, start + at + offset, same * c, k, micro)
    busiest = np.bincount(
        np.array([costs.ipus[k] for w, k, _, _ in offsets if w in (FORWARD, BACKWARD)]),
        [c for w, _, _, c in offsets if w in (FORWARD, BACKWARD)],
        costs.num_ipus,
    )
    slowest = np.full(micro_batches, busiest.argmax())
    return _finish(costs, tasks, ["steady"] * micro_batches, start, start + length, slowest)


def split_backward(schedule: Schedule, turns: Sequence[Sequence[tuple[int, int]]]) -> Schedule:
    """The same schedule with each backward task cut into its ``turns``.

    ``turns``: of each stage (RECOMPUTE or BACKWARD, cycles) in order, the cycles adding up to the backward's.
    """
    pieces = [[(kind, cycles, part) for part, (kind, cycles) in enumerate(mine) if cycles] for mine in turns]
    count = np.ones(len(schedule.kind), dtype=np.int64)
    where = [np.flatnonzero((schedule.kind == BACKWARD) & (schedule.stage == k)) for k in range(len(pieces))]
    for tasks, mine in zip(where, pieces, strict=True):
        count[tasks] = max(1, len(mine))
    at = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    kind, start, end = schedule.kind[at], schedule.start[at], schedule.end[at]
    part = np.zeros_like(kind)
    for tasks, mine in zip(where, pieces, strict=True):
        begin = 0
        for number, (task, cycles, of) in enumerate(mine):
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


def _host_turns(
    ipus: Sequence[int], runs: np.ndarray, streams: Sequence[tuple[int, int]]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Per stream its offset in each cycle, and the length of the phase: streams of one IPU take turns."""
    used: dict[int, np.ndarray] = {}
    offsets = []
    for k, c in streams:
        before = used.get(ipus[k], np.zeros(len(runs), dtype=np.int64))
        offsets.append(before)
        used[ipus[k]] = before + runs[:, k] * c
    length = np.zeros(len(runs), dtype=np.int64)
    for total in used.values():
        length = np.maximum(length, total)
    return offsets, length


def _finish(
    costs: Costs, tasks: _Tasks, phases: list[str], start: np.ndarray, end: np.ndarray, slowest: np.ndarray
) -> Schedule:
    """Append the weight update, fill the waits and sort."""
    once = costs.stream_out if costs.stream_out_once else ()
    if any(costs.update) or once:
        at, cycle = int(end[-1]), len(phases)
        cell = np.array([cycle])
        reduce = max(costs.reduce, default=0)
        update = max(costs.update, default=0)
        for i, c in enumerate(costs.reduce):
            tasks.add(REDUCE, i, cell, np.array([at]), np.array([c]))
        for i, c in enumerate(costs.update):
            tasks.add(UPDATE, i, cell, np.array([at + reduce]), np.array([c]))
        offsets, length = _host_turns(costs.ipus, np.ones((1, len(costs.forward)), dtype=np.int64), once)
        for (k, c), offset in zip(once, offsets, strict=True):
            tasks.add(STREAM_OUT, costs.ipus[k], cell, at + reduce + update + offset, np.array([c]), k)
        done = at + reduce + update + int(length[0])
        phases = [*phases, "update"]
        start, end = np.append(start, at), np.append(end, done)
        slowest = np.append(slowest, np.argmax(costs.update) if costs.update else 0)
    kind, ipu, stage, micro, cycle_of, begin, finish = tasks.columns()
    # Empty marks at each pipeline cycle's ends keep a wait from reaching over one.
    marks_ipu = np.repeat(np.arange(costs.num_ipus), 2 * len(start))
    marks_cycle = np.tile(np.repeat(np.arange(len(start)), 2), costs.num_ipus)
    marks_at = np.tile(np.stack([start, end], axis=1).ravel(), costs.num_ipus)
    all_ipu = np.concatenate([ipu, marks_ipu])
    all_start = np.concatenate([begin, marks_at])
    all_end = np.concatenate([finish, marks_at])
    all_cycle = np.concatenate([cycle_of, marks_cycle])
    order = np.lexsort((all_end, all_start, all_cycle, all_ipu))
    gap = all_start[order][1:] - all_end[order][:-1]
    same = (all_ipu[order][1:] == all_ipu[order][:-1]) & (all_cycle[order][1:] == all_cycle[order][:-1]) & (gap > 0)
    left = order[:-1][same]
    idle = len(left)
    kind = np.concatenate([kind, np.full(idle, IDLE)])
    ipu = np.concatenate([ipu, all_ipu[left]])
    none = np.full(idle, -1)
    stage, micro = np.concatenate([stage, none]), np.concatenate([micro, none])
    cycle_of = np.concatenate([cycle_of, all_cycle[left]])
    begin = np.concatenate([begin, all_end[left]])
    finish = np.concatenate([finish, all_end[left] + gap[same]])
    order = np.lexsort((begin, ipu))
    return Schedule(
        kind[order],
        ipu[order],
        stage[order],
        micro[order],
        cycle_of[order],
        begin[order],
        finish[order],
        tuple(phases),
        start,
        end,
        np.asarray(slowest),
    )


class _Tasks:
    """Columns of tasks, gathered piece by piece. Tasks without duration are left out."""

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
        columns = np.broadcast_arrays(kind, ipu, stage, micro_batch, cycle, start, start + length)
        self._pieces.append(tuple(np.asarray(column)[length > 0].astype(np.int64) for column in columns))

    def columns(self) -> tuple[np.ndarray, ...]:
        if not self._pieces:
            return tuple(np.zeros(0, dtype=np.int64) for _ in range(7))
        return tuple(np.concatenate(column) for column in zip(*self._pieces, strict=True))
