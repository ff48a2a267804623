"""The split as it was profiled, as it is predicted."""

from __future__ import annotations

import numpy as np

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, Prediction, what_if
from ipuscope.profiler.analysis.critical_path import chain, pieces_on_ipus
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline import schedule_types


def profiled_split(report: Report) -> Prediction:
    """`what_if` of the profiled split; ValueError: no costs, or stages not in order of Blocks."""
    costs = Costs.from_report(report)
    return what_if(costs, Assignment.of(costs.stage.tolist(), costs.ipus))


def predicted_path(report: Report) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """IPU, start and end of pieces of the predicted critical path, like `path_on_ipus`."""
    schedule = profiled_split(report).schedule
    rank = np.isin(schedule.kind, schedule_types.BESIDE) + 2 * (
        schedule.kind == schedule_types.IDLE
    )
    total = int(schedule.end.max(initial=0))
    path = chain(schedule.ipu, schedule.start, schedule.end, rank, total)
    return pieces_on_ipus(schedule.ipu, path)
