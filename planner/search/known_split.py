"""The quickest split onto as many IPUs as profiled, which a large profile has worked out."""

from __future__ import annotations

from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any, get_type_hints

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.split_search import Split, quickest
from ipuscope.profiler.file import from_json
from ipuscope.profiler.report import Report

NAME = "quickest split"  # name of the answer
_PREDICTION, _ASSIGNMENT = "prediction", "assignment"


def known_split(report: Report) -> Split:
    """`quickest` of the report's costs. ValueError where none fits, or it has no costs."""
    costs = Costs.from_report(report)
    return report.answered(NAME, lambda said: _read(costs, said), lambda: quickest(costs))


def plain(split: Split) -> dict[str, Any]:
    """A split as JSON has it: its prediction follows from the assignment."""
    facts = {one.name: getattr(split, one.name) for one in fields(Split)}
    assignment = facts.pop(_PREDICTION).assignment
    return {**facts, _ASSIGNMENT: asdict(assignment)}


def _read(costs: Costs, said: Any) -> Split | None:
    """From JSON; None where it is not what was written."""
    hints = get_type_hints(Split)
    names = {one.name for one in fields(Split)} - {_PREDICTION}
    if not isinstance(said, dict) or set(said) != {*names, _ASSIGNMENT}:
        return None
    try:
        assignment: Assignment = from_json.read(Assignment, said[_ASSIGNMENT])
        facts = {name: from_json.read(hints[name], said[name]) for name in names}
    except (ValueError, TypeError):
        return None
    starts, ipus = assignment.starts, assignment.ipus
    contiguous = starts[:1] == (0,) and all(a < b for a, b in pairwise(starts))
    sizes = len(starts) == len(ipus) and len(assignment.choices) in (0, len(starts))
    known = set(ipus) <= set(range(len(set(costs.ipus))))
    if not (contiguous and sizes and known and starts[-1] < len(costs)):
        return None
    return Split(prediction=what_if(costs, assignment), **facts)
