"""Other schedules for a profile's model: cycles, memory, ramps, and the picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from ipuscope.planner.costs.cuts import even_runs
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import stash_bytes
from ipuscope.planner.costs.weight_gradients import weight_gradient_cycles
from ipuscope.planner.predict.memory_verdict import Answer, Verdict, summary, verdicts
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.schedules.actions import ActionSchedule, depths, read_csv
from ipuscope.planner.schedules.generators import KINDS
from ipuscope.planner.schedules.simulation import Work, free, in_steps, ramps, waiting
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline.schedule_types import Schedule

RUNS_TODAY = "poptorch"
ASSUMES = (
    "'In steps', all IPUs meet after every step, as in PopART's programs. 'Free', each IPU waits"
    " only for what it reads, and copies run beside the work: no runtime for IPUs can do that."
    " Costs of stages are the profile's; a pair that overlaps on a GPU runs in turn. The tensors"
    " that a micro-batch saves stay until its weight gradients are made; each stash costs the"
    " cycles that PopTorch's does. Virtual stages cut the Blocks into consecutive runs, the longest"
    " as short as possible."
)


@dataclass(frozen=True)
class Outcome:
    """A schedule over the costs of a profile. ``stash``: bytes of each IPU's, all tiles."""

    schedule: ActionSchedule
    words: str
    assignment: Assignment
    in_steps: Schedule
    free: Schedule
    stash: tuple[int, ...]
    memory: tuple[Verdict, ...]


def outcome(
    report: Report, costs: Costs, name: str, assignment: Assignment, chunks: int = 2
) -> Outcome:
    """The outcome of a schedule: a name of `KINDS`, or a CSV file.

    ``assignment``: its stages if there is one a rank; its IPUs are the ranks. ``chunks``: stages a
    rank, for virtual stages. ValueError says what does not go together.
    """
    _check(costs)
    ranks = len(set(assignment.ipus))
    if name == RUNS_TODAY:  # its stages may return to an IPU
        kind, ipus = KINDS[name], assignment.ipus
        words = kind.words
        schedule = kind.make(len(ipus), costs.micro_batches).on(ipus)
    elif name in KINDS:
        kind = KINDS[name]
        schedule = kind.make(ranks, costs.micro_batches, chunks)
        words, ipus = kind.words, kind.ipus(ranks, kind.chunks or chunks)
    elif Path(name).is_file():
        schedule, words = read_csv(name), "as in the file"
        ipus = schedule.ipus
        if schedule.micro_batches != costs.micro_batches:
            costs = costs.of_micro_batches(schedule.micro_batches)
    else:
        raise ValueError(f"{name}: neither a file nor one of {', '.join(KINDS)}")
    if len(ipus) != len(assignment.ipus):
        assignment = Assignment(even_runs(costs.cycles.work, len(ipus)), ipus)
    else:
        assignment = replace(assignment, ipus=ipus)
    work = work_of(costs, assignment, weight_gradient_cycles(report, len(costs)))
    parts = [
        replace(part, depth=depth)
        for part, depth in zip(assignment.parts(costs), depths(schedule), strict=True)
    ]
    stash = np.zeros(max(assignment.ipus) + 1, dtype=np.int64)
    np.add.at(stash, list(assignment.ipus), [stash_bytes(costs, part) for part in parts])
    own = name == RUNS_TODAY
    memory = what_if(costs, assignment).memory if own else verdicts(costs, parts, assignment.ipus)
    return Outcome(
        *(schedule, words, assignment, in_steps(schedule, work), free(schedule, work)),
        *(tuple(stash.tolist()), memory),
    )


def _check(costs: Costs) -> None:
    if not costs.training or not costs.pipelined:
        raise ValueError("other schedules are answered for pipelines in training only")


def work_of(costs: Costs, assignment: Assignment, weights: np.ndarray) -> Work:
    """What the stages of an assignment cost; ``weights``: int64[Block], of the backward."""
    prediction = what_if(costs, assignment)
    spans = assignment.spans(len(costs))
    late = tuple(
        min(int(weights[first : last + 1].sum()), whole)
        for (first, last), whole in zip(spans, prediction.backward, strict=True)
    )
    early = tuple(whole - own for whole, own in zip(prediction.backward, late, strict=True))
    ahead, back = (
        _copies(costs, assignment, nbytes, way)
        for nbytes, way in zip(
            costs.cuts.crossing(assignment.starts, assignment.ipus), (1, -1), strict=True
        )
    )
    return Work(replace(prediction.stage_costs, backward=early), late, ahead, back)


def _copies(costs: Costs, assignment: Assignment, nbytes: np.ndarray, way: int) -> tuple[int, ...]:
    """Cycles of each stage's copy ``way`` (1: to the next stage, -1: to the one before)."""
    ipus, ends = assignment.ipus, [last for _, last in assignment.spans(len(costs))]
    machine, cycles = costs.machine, [0] * len(ipus)
    for k, here in enumerate(ipus):
        if not 0 <= k + way < len(ipus) or ipus[k + way] == here:
            continue
        there, size = ipus[k + way], int(nbytes[ends[k if way > 0 else k - 1]])
        moving = machine.hop_latency(here, there) + size / machine.link_rate(here, there)
        cycles[k] = int(np.ceil(moving)) if size else 0
    return tuple(cycles)


def compared(
    report: Report,
    costs: Costs,
    assignment: Assignment,
    names: Iterable[str] = tuple(KINDS),
    chunks: int = 2,
) -> tuple[pd.DataFrame, dict[str, Outcome]]:
    """A row a schedule, and the outcomes of those that fit this model.

    Columns: ``schedule, words, stages, cycles`` (in steps), ``free``, ``change`` and
    ``free_change`` (to what runs today), ``waiting`` (share of the IPUs' time, free), ``ramps``
    (free), ``stash`` (bytes of the IPU with most, all tiles), ``fullest_tile``, ``memory``,
    ``runs`` ("yes" if PopTorch can), ``note`` (why there is no answer).
    """
    _check(costs)
    now = what_if(costs, assignment).total
    rows: list[dict[str, object]] = []
    outcomes: dict[str, Outcome] = {}
    for name in names:
        try:
            result = outcome(report, costs, name, assignment, chunks)
        except ValueError as error:
            rows.append({"schedule": name, "note": str(error)})
            continue
        outcomes[name] = result
        rows.append(
            {
                "schedule": result.schedule.name,
                "words": result.words,
                "stages": result.schedule.stages,
                "cycles": result.in_steps.total,
                "change": result.in_steps.total / now - 1,
                "free": result.free.total,
                "free_change": result.free.total / now - 1,
                "waiting": waiting(result.free, len(result.schedule.ranks)),
                "ramps": ramps(result.free),
                "stash": max(result.stash),
                "fullest_tile": max(verdict.nbytes for verdict in result.memory),
                "fits": all(verdict.answer is not Answer.OVER for verdict in result.memory),
                "memory": summary(result.memory),
                "runs": "yes" if name == RUNS_TODAY else "no",
                "note": "",
            }
        )
    return pd.DataFrame(rows), outcomes
