"""When each stage of phased execution runs (docs/pipeline-schedules.md#phased-execution).

Phases follow each other; the stages of one phase work at the same time, each on its own IPU, unless
one needs another's result. The backward takes the phases in reverse. A body begins with its loads
from streaming memory and ends with its stores there. If two groups of IPUs take turns (parallel),
the waiting group loads while the other computes, and stores while the other continues: the total is
about the sum of max(compute, transfer). Otherwise it is the sum of all of them.

`phased` takes micro-batches one by one through all phases; `pipelined_phases` takes all of them
through the pipeline of a phase before the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ipuscope.profiler.enums import PipelinePhase
from ipuscope.profiler.timeline.schedule_layout import (
    _finish,
    _Host,
    _host,
    _host_of_each,
    _Tasks,
    end_of_update,
)
from ipuscope.profiler.timeline.schedule_types import (
    BACKWARD,
    ENTER,
    FORWARD,
    LEAVE,
    LOADS_BESIDE,
    RETURN,
    STORES_BESIDE,
    SYNC,
    Costs,
    Schedule,
)


@dataclass(frozen=True, slots=True)
class Phases:
    """The properties of stages in phased execution, besides their costs.

    ``of_stage``: the phase of each stage, not decreasing. ``load`` and ``store``: cycles for
    streaming memory at the beginning and end of its body, by kind (FORWARD, BACKWARD). ``needs``:
    (kind, stage, stage of the same phase whose result it needs first).
    """

    of_stage: tuple[int, ...]
    load: dict[int, tuple[int, ...]]
    store: dict[int, tuple[int, ...]]
    needs: frozenset[tuple[int, int, int]] = frozenset()
    parallel: bool = False
    # of a phase that is a pipeline: cycles of each stage for transfers before all micro-batches
    # (ENTER, RETURN) and after them (LEAVE)
    once: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # ... and, by task (`schedule_types.LOADS_BESIDE`, `STORES_BESIDE`), for those over I/O tiles
    beside: dict[int, tuple[int, ...]] = field(default_factory=dict)


def pipelined_phases(costs: Costs, micro_batches: int, phases: Phases) -> Schedule:
    """The schedule in which all micro-batches go through a phase's pipeline before the next phase.

    In pipeline cycle c of a phase of p stages, stage k works on micro-batch c - k; the cycle lasts
    as long as its slowest stage, and there are M + p - 1 cycles per phase and direction. An IPU
    loads for its next stage as soon as it has finished the last one, while others still work; the
    first cycle of its next stage waits for that load. The closed forms are in
    docs/pipeline-schedules.md#phased-execution; `tests/closed_forms.py` computes them.
    """
    laid = _LaidOut.of(costs, micro_batches, phases)
    tasks, active, host = laid.tasks, laid.active, laid.host
    for kind, numbers in active.micro.items():
        cost = costs.forward if kind == FORWARD else costs.backward
        cycle, stage = np.nonzero(numbers >= 0)
        lengths = np.array(cost or [0])[stage]
        ipu = np.array(costs.ipus)[stage]
        tasks.add(kind, ipu, cycle, laid.begins[cycle], lengths, stage, numbers[cycle, stage])
        synced = np.full(len(cycle), laid.sync)
        tasks.add(SYNC, ipu, cycle, (laid.begins + laid.work)[cycle], synced)
    where = {
        "first": laid.ready,
        "before": laid.ready + host.first.max(axis=1),
        "beside": laid.begins,
        "after": laid.begins + laid.work + laid.sync,
        "last": laid.ready + laid.length - host.last.max(axis=1),
    }
    host.place(tasks, where)
    slowest = active.load.argmax(axis=1)
    return _finish(costs, tasks, active.labels, laid.start, laid.end, slowest, host, laid.over)


def pipelined_phases_total(costs: Costs, micro_batches: int, phases: Phases) -> int:
    """``pipelined_phases(...).total``, without its tasks where they do not matter.

    Pipeline cycles in which all of a phase's stages work, next to others like it, are equal: of
    many micro-batches few are laid out, and one cycle stands for those left out.
    """
    few = min(micro_batches, max(len(stages) for _, stages in _runs(costs, phases)) + 4)
    laid = _LaidOut.of(costs, few, phases, micro_batches - few)
    if laid.host.ahead:  # loads that begin when I/O tiles have finished the last tasks
        return pipelined_phases(costs, micro_batches, phases).total
    return end_of_update(costs, laid.end, laid.over)


@dataclass(frozen=True, slots=True)
class _LaidOut:
    """When the pipeline cycles are, with the tasks that overlap them or lie between."""

    active: _Activity
    host: _Host
    tasks: _Tasks
    over: list[tuple[int, int, int]]  # IPU, start, end of tasks that continue over a cycle's end
    sync: int
    # int64[pipeline cycle]: when transfers for it may begin, and the work; the cycles of the work
    # and of all; and the whole, which follow each other
    ready: np.ndarray
    begins: np.ndarray
    work: np.ndarray
    length: np.ndarray
    start: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, costs: Costs, micro_batches: int, phases: Phases, left_out: int = 0) -> _LaidOut:
        """``left_out``: more micro-batches, all in a cycle in the middle of each phase."""
        runs = _runs(costs, phases)
        active = _activity(costs, runs, micro_batches)
        aside = _Beside.of(costs, phases, runs, micro_batches)
        micro = np.where(active.micro[FORWARD] >= 0, active.micro[FORWARD], 0)
        host = _host(costs, active.micro[FORWARD] >= 0, micro, micro_batches)
        first, before = host.first.max(axis=1), host.before.max(axis=1)
        work = np.maximum(active.load, host.beside + aside.amid).max(axis=1)
        after, last = host.after.max(axis=1), host.last.max(axis=1)
        sync = costs.sync if costs.num_ipus > 1 else 0
        length = first + before + work + sync + after + last
        if left_out:  # for each phase and direction, in a cycle amid equal ones
            stages = np.array([len(stages) for _, stages in runs])
            cycles = micro_batches + stages - 1
            length[np.cumsum(cycles) - cycles + stages + 1] *= 1 + left_out

        tasks = _Tasks()
        ready, over, free = _cycle_starts(
            costs, phases, runs, micro_batches, length, tasks, aside.ahead
        )
        end = ready + length
        start = np.append(0, end[:-1])
        begins = ready + first + before
        end[-1] = aside.place(tasks, begins[:, None] + host.beside, int(end[-1]), free)
        return cls(active, host, tasks, over, sync, ready, begins, work, length, start, end)


Run = tuple[int, list[int]]  # FORWARD or BACKWARD, and the stages in the order of the pipeline


def _runs(costs: Costs, phases: Phases) -> list[Run]:
    """The pipelines one after another: each phase forward, then each backward in reverse."""
    stages: dict[int, list[int]] = {}
    for stage, phase in enumerate(phases.of_stage):
        stages.setdefault(phase, []).append(stage)
    order = sorted(stages)
    runs = [(FORWARD, stages[phase]) for phase in order]
    if costs.backward:
        runs += [(BACKWARD, stages[phase][::-1]) for phase in reversed(order)]
    return runs


@dataclass(frozen=True, slots=True)
class _Activity:
    """Which stage runs what in each pipeline cycle."""

    micro: dict[int, np.ndarray]  # by kind: the micro-batch [cycle, stage], -1 where there is none
    load: np.ndarray  # cycles [cycle, IPU]
    labels: list[PipelinePhase]  # of each cycle


def _activity(costs: Costs, runs: list[Run], micro_batches: int) -> _Activity:
    total = sum(micro_batches + len(stages) - 1 for _, stages in runs)
    micro = {
        kind: np.full((total, len(costs.ipus)), -1, dtype=np.int64) for kind in (FORWARD, BACKWARD)
    }
    load = np.zeros((total, costs.num_ipus), dtype=np.int64)
    labels: list[PipelinePhase] = []
    numbers, begin = np.arange(micro_batches), 0
    for kind, stages in runs:
        cost = costs.forward if kind == FORWARD else costs.backward
        for place, stage in enumerate(stages):
            cycles = slice(begin + place, begin + place + micro_batches)
            micro[kind][cycles, stage] = numbers
            load[cycles, costs.ipus[stage]] += cost[stage]
        fill = min(len(stages), micro_batches) - 1
        cycles_of_run = micro_batches + len(stages) - 1
        labels += [PipelinePhase.RAMP_UP] * fill
        labels += [PipelinePhase.STEADY] * (cycles_of_run - 2 * fill)
        labels += [PipelinePhase.RAMP_DOWN] * fill
        begin += cycles_of_run
    return _Activity(micro, load, labels)


def _cycle_starts(
    costs: Costs,
    phases: Phases,
    runs: list[Run],
    micro_batches: int,
    length: np.ndarray,
    tasks: _Tasks,
    ahead: np.ndarray,
) -> tuple[np.ndarray, list[tuple[int, int, int]], list[int]]:
    """When work begins in each pipeline cycle, (IPU, start, end) of loads and stores, and the ends.

    ``ahead``: when each IPU's first transfers over I/O tiles are complete. The ends are when each
    IPU has finished.
    """
    none = (0,) * len(costs.ipus)
    free = ahead.tolist()
    over: list[tuple[int, int, int]] = []
    moved: list[tuple[int, int, int, int, int, int]] = []
    starts = np.zeros(len(length), dtype=np.int64)
    now, begin = 0, 0

    def move(task: int, stage: int, cycle: int) -> None:
        ipu, cycles = costs.ipus[stage], phases.once.get(task, none)[stage]
        if cycles:
            at = free[ipu]
            moved.append((task, ipu, cycle, at, cycles, stage))
            over.append((ipu, at, at + cycles))
            free[ipu] = at + cycles

    for kind, stages in runs:
        for stage in stages:
            move(ENTER if kind == FORWARD else RETURN, stage, begin)
        for place in range(micro_batches + len(stages) - 1):
            if place < len(stages):  # the cycle in which this stage begins
                now = max(now, free[costs.ipus[stages[place]]])
            starts[begin + place] = now
            now += int(length[begin + place])
            through = place - micro_batches + 1
            if through >= 0:
                free[costs.ipus[stages[through]]] = now
        begin += micro_batches + len(stages) - 1
        for place, stage in enumerate(stages) if kind == BACKWARD else ():
            move(LEAVE, stage, begin - len(stages) + place)
    tasks.add(*np.array(moved, dtype=np.int64).reshape(-1, 6).T)
    return starts, over, free


@dataclass(frozen=True, slots=True)
class _Beside:
    """Transfers over I/O tiles, each in a pipeline cycle, which lasts until they are complete.

    A micro-batch's load comes in the pipeline cycle before its work, its store in the one after it.
    Loads once for the next phase, and stores once for the one before, go in the cycle in which the
    last stage of a phase begins: by then the tiles that compute have taken over the earlier data.
    Transfers of one IPU take turns.
    """

    # columns: task, stage, IPU, micro-batch (-1: once), pipeline cycle (-1: before the first; their
    # number: after the last), start among those of its cycle and IPU, cycles
    moves: tuple[np.ndarray, ...]
    spent: np.ndarray  # cycles [1 + pipeline cycle, IPU]

    @classmethod
    def of(cls, costs: Costs, phases: Phases, runs: list[Run], micro_batches: int) -> _Beside:
        wanted: list[tuple[int, int, np.ndarray, np.ndarray]] = []  # task, stage, number, cycle
        numbers, once = np.arange(micro_batches), np.array([-1])
        meets = [-1]  # the pipeline cycle for what is once, before each run and behind the last
        begin = 0
        for kind, stages in runs:
            enter = ENTER if kind == FORWARD else RETURN
            for place, stage in enumerate(stages):
                cycles = begin + place + numbers
                wanted.append((LOADS_BESIDE[kind], stage, numbers, cycles - 1))
                wanted.append((STORES_BESIDE[kind], stage, numbers, cycles + 1))
                wanted.append((LOADS_BESIDE[enter], stage, once, np.array([meets[-1]])))
            meets.append(begin + len(stages) - 1)
            begin += micro_batches + len(stages) - 1
        meets.append(begin)
        leaves = enumerate(stages for kind, stages in runs if kind == BACKWARD)
        first_backward = sum(kind == FORWARD for kind, _ in runs)
        for number, stages in leaves:
            cycle = np.array([meets[first_backward + number + 2]])
            wanted += [(STORES_BESIDE[LEAVE], stage, once, cycle) for stage in stages]
        return cls._in_turns(costs, phases, wanted, begin)

    @classmethod
    def _in_turns(
        cls,
        costs: Costs,
        phases: Phases,
        wanted: list[tuple[int, int, np.ndarray, np.ndarray]],
        total: int,
    ) -> _Beside:
        """Transfers that take time, each after the others of its cycle and IPU."""
        spent = np.zeros((total + 2, costs.num_ipus), dtype=np.int64)
        pieces = [np.zeros((7, 0), dtype=np.int64)]
        for task, stage, numbers, cycle in wanted:
            cycles, ipu = phases.beside.get(task, ())[stage : stage + 1], costs.ipus[stage]
            if not any(cycles):
                continue
            at = spent[1 + cycle, ipu]
            spent[1 + cycle, ipu] += cycles[0]
            columns = np.broadcast_arrays(task, stage, ipu, numbers, cycle, at, cycles[0])
            pieces.append(np.stack(columns))
        return cls(tuple(np.concatenate(pieces, axis=1)), spent)

    @property
    def ahead(self) -> np.ndarray:
        """Cycles of each IPU's transfers before the first pipeline cycle."""
        return self.spent[0]

    @property
    def amid(self) -> np.ndarray:
        """Cycles [pipeline cycle, IPU] of the transfers that overlap work."""
        return self.spent[1:-1]

    def place(self, tasks: _Tasks, begins: np.ndarray, end: int, free: list[int]) -> int:
        """Add the transfers; returns when the last of them and of the pipeline cycles ends.

        ``begins``: when they may begin, [pipeline cycle, IPU]; ``end``: of the last pipeline cycle;
        ``free``: when each IPU has finished, so that its last stores may begin.
        """
        behind = np.maximum(end, free)
        at_of = np.vstack([np.zeros_like(behind), begins, behind])
        task, stage, ipu, number, cycle, at, cycles = self.moves
        start = at_of[1 + cycle, ipu] + at
        within = np.clip(cycle, 0, len(begins) - 1)
        tasks.add(task, ipu, within, start, cycles, stage, number)
        stores = self.spent[-1] > 0
        return int((behind + self.spent[-1])[stores].max(initial=end))


def phased(costs: Costs, micro_batches: int, phases: Phases) -> Schedule:
    """Micro-batches go through all phases one after another; each is a 'pipeline cycle'."""
    host = _host_of_each(costs, micro_batches)
    placed = _place(costs, phases, host.begin)
    tasks = _Tasks()
    start, begins, end = host.one_after_another(tasks, max(stop for _, _, _, stop in placed))
    micro, same = np.arange(micro_batches), np.ones(micro_batches, dtype=np.int64)
    for kind, stage, at, stop in placed:
        tasks.add(kind, costs.ipus[stage], micro, begins + at, same * (stop - at), stage, micro)
    busy = np.bincount(
        np.array([costs.ipus[stage] for _, stage, _, _ in placed]),
        [stop - at for _, _, at, stop in placed],
        costs.num_ipus,
    )
    slowest = np.full(micro_batches, busy.argmax())
    return _finish(costs, tasks, [PipelinePhase.STEADY] * micro_batches, start, end, slowest, host)


def _place(costs: Costs, phases: Phases, begin: int) -> list[tuple[int, int, int, int]]:
    """(kind, stage, start, end) of each body of one micro-batch."""
    order = sorted(set(phases.of_stage))
    runs = [(FORWARD, phase) for phase in order]
    if costs.backward:
        runs += [(BACKWARD, phase) for phase in reversed(order)]
    free = [begin] * costs.num_ipus
    ready = begin  # when the results of the phase before exist
    placed = []
    for kind, phase in runs:
        cost = costs.forward if kind == FORWARD else costs.backward
        # In the model's order, or against it in the backward, each comes after those it needs.
        stages = sorted(
            (s for s, of in enumerate(phases.of_stage) if of == phase), reverse=kind == BACKWARD
        )
        computed: dict[int, int] = {}
        for stage in stages:
            load, store = phases.load[kind][stage], phases.store[kind][stage]
            needed = [
                computed[other]
                for k, s, other in phases.needs
                if k == kind and s == stage and other in computed
            ]
            data = max([ready, *needed])
            at = max(free[costs.ipus[stage]], data - (load if phases.parallel else 0))
            end = at + cost[stage]
            free[costs.ipus[stage]] = end
            computed[stage] = end - (store if phases.parallel else 0)
            placed.append((kind, stage, at, end))
        ready = max(computed.values(), default=ready)
    return placed


__all__ = ["Phases", "phased", "pipelined_phases", "pipelined_phases_total"]
