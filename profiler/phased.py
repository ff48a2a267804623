"""When each stage of phased execution runs (docs/pipeline-schedules.md#phased-execution).

Phases follow each other; the stages of one work at the same time, on an IPU each, unless one needs
what another makes. The backward takes the phases in reverse. A body begins with what it loads from
streaming memory and ends with what it stores there. Where two groups of IPUs take turns (parallel),
the group that waits loads already while the other computes, and stores while the other goes on:
about the sum of max(compute, transfer). Else it is the sum of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiler.enums import PipelinePhase
from profiler.schedules import BACKWARD, FORWARD, Costs, Schedule, _finish, _host_of_each, _Tasks


@dataclass(frozen=True, slots=True)
class Phases:
    """What phased execution knows of each stage, besides its costs.

    ``of_stage``: its phase, not decreasing. ``load`` and ``store``: cycles at the beginning and end
    of its body for streaming memory, by kind (FORWARD, BACKWARD). ``needs``: (kind, stage, stage of
    the same phase whose result it needs first).
    """

    of_stage: tuple[int, ...]
    load: dict[int, tuple[int, ...]]
    store: dict[int, tuple[int, ...]]
    needs: frozenset[tuple[int, int, int]] = frozenset()
    parallel: bool = False


def phased(costs: Costs, micro_batches: int, phases: Phases) -> Schedule:
    """The schedule in which micro-batches go through their phases one after another.

    A 'pipeline cycle' is one micro-batch here.
    """
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
    ready = begin  # when the results of the phase before are there
    placed = []
    for kind, phase in runs:
        cost = costs.forward if kind == FORWARD else costs.backward
        # In the model's order, and against it in the backward, each comes after those it needs.
        mine = sorted(
            (s for s, of in enumerate(phases.of_stage) if of == phase), reverse=kind == BACKWARD
        )
        computed: dict[int, int] = {}
        for stage in mine:
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


__all__ = ["Phases", "phased"]
