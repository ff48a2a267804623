"""The split as it was profiled, whose memory and critical path a large profile has worked out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.memory_verdict import Verdict
from ipuscope.planner.predict.what_if import Assignment, Prediction, memory_of, what_if
from ipuscope.profiler import held
from ipuscope.profiler.analysis.critical_path import chain, held_on_ipus, pieces_on_ipus
from ipuscope.profiler.file import from_json
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline import schedules

NAME = "memory of the profiled split"  # names of the answers
PATH = "critical path of the profiled split"
_MOST_BYTES = 1 << 62


def profiled_split(report: Report) -> Prediction:
    """`what_if` of the split that was profiled.

    ValueError where it has no costs, or its stages do not follow the order of the Blocks.
    """
    costs = Costs.from_report(report)
    prediction = what_if(costs, Assignment.of(costs.stage.tolist(), costs.ipus))
    known = report.answered(
        NAME,
        lambda said: _read(prediction, said),
        lambda: memory_of(costs, prediction.assignment),
    )
    return replace(prediction, known_memory=known)


def predicted_path(report: Report) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The critical path over IPUs of the schedule that is predicted of this split.

    IPU, start and end of each piece, as `path_on_ipus` has the profiled one's.
    """

    def make() -> dict[str, np.ndarray]:
        schedule = profiled_split(report).schedule
        rank = np.isin(schedule.kind, schedules.BESIDE) + 2 * (schedule.kind == schedules.IDLE)
        total = int(schedule.end.max(initial=0))
        found = chain(schedule.ipu, schedule.start, schedule.end, rank, total)
        path = pieces_on_ipus(schedule.ipu, found)
        return dict(zip(("ipu", "start", "end"), path, strict=True))

    return held_on_ipus(report, PATH, make)


def worked_out(report: Report) -> dict[str, Any]:
    """The answers, for the file; ValueError as `profiled_split`."""
    path = dict(zip(("ipu", "start", "end"), predicted_path(report), strict=True))
    return {NAME: plain(profiled_split(report).memory), PATH: held.plain(path)}


def plain(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Verdicts as JSON has them."""
    return [asdict(one) for one in verdicts]


def _read(prediction: Prediction, said: Any) -> tuple[Verdict, ...] | None:
    """From JSON; None where it is not what was written."""
    try:
        found: tuple[Verdict, ...] = from_json.read(tuple[Verdict, ...], said)
    except (ValueError, TypeError):
        return None
    machine, ipus = prediction.costs.machine, max(prediction.assignment.ipus) + 1
    if not isinstance(found, tuple) or [one.ipu for one in found] != list(range(ipus)):
        return None
    sound = all(
        0 <= one.tile < machine.tiles
        and one.limit == machine.bytes_per_tile
        and 0 <= one.largest_bytes < _MOST_BYTES
        and 0 <= one.nbytes < _MOST_BYTES
        for one in found
    )
    return found if sound else None
