"""Insights: sentences with numbers on what limits a run and what to change.

The largest entries of the critical path (`ipuscope.profiler.analysis.critical_path`), each with
what removes it; together they cover at least nine tenths of it (`share_accounted`). A gain is what
the engine's schedule gives after the change (`ipuscope.planner.predict.what_if.what_if` over the
profile's own costs), in cycles a weight update unless stated; tests compile the changed model and
compare. A gain that no known change reaches is marked as a bound (``at_most``), one on estimated
costs (another precision or micro-batch) as an ``estimate``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipuscope.planner.advice import Basis, Levers, basis_of
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import cycles
from ipuscope.planner.insights.finding import Insight, accounted, with_line
from ipuscope.planner.insights.lever_gains import no_blocks, of_levers
from ipuscope.planner.insights.memory import memory, overflow
from ipuscope.planner.insights.rest import rest
from ipuscope.planner.levers.waits import Waits
from ipuscope.planner.predict.what_if import Prediction, what_if
from ipuscope.profiler import analysis
from ipuscope.profiler.analysis.critical_path import critical_path
from ipuscope.profiler.answers import stored
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Insight", "Waits", "insights", "share_accounted"]


def insights(report: Report) -> list[Insight]:
    """All insights, most cycles first, then most bytes, then the rest; none if imported.

    Changes of the batch stand behind the others, and what no change is known for behind both.
    """
    return [one.with_paths(report.with_path) for one in _insights(report)]


@stored
def _insights(report: Report) -> list[Insight]:
    """`insights` of the profile and its copies: PROFILE stands for its path."""
    if report.imported:
        return []
    basis = _basis(report)
    findings: list[Insight] = [*overflow(report, basis)]
    if analysis.pace(report).cycles:
        path = critical_path(report)
        findings += [_with_line(report, path, one) for one in _cycle_findings(report, basis, path)]
    splits = basis is not None and basis.can_split
    findings += memory(report, basis.costs if basis is not None and splits else None)
    findings += no_blocks(report)

    def rank(one: Insight) -> tuple[bool, int, int, int]:
        cycles = one.gain_cycles
        behind = 3 if not cycles else 2 if one.remainder else int(one.changes_batch)
        return "overflow" not in one.title, behind, -cycles, -one.gain_bytes

    return sorted(findings, key=rank)


def share_accounted(report: Report, findings: list[Insight]) -> float:
    """Share (0..1) of the critical path's cycles that the findings account for."""
    return accounted(critical_path(report), [one.waits for one in findings if one.waits])


def _with_line(report: Report, path: pd.DataFrame, one: Insight) -> Insight:
    waits = one.waits
    if waits is None:
        return one
    return with_line(report, one, lambda: path.loc[waits.of(path), ["op", "cycles"]])


def _basis(report: Report) -> Basis | None:
    try:
        return basis_of(report)
    except ValueError:
        return None


def _cycle_findings(report: Report, basis: Basis | None, path: pd.DataFrame) -> list[Insight]:
    turn = analysis.turn(report)
    if basis is None:
        return [*rest(path, [], turn)]
    if not basis.can_split:
        of_phases = [*of_levers(basis, basis.outlook(Levers()))]
        spoken = [one.waits for one in of_phases if one.waits]
        return [*of_phases, *rest(path, spoken, turn)]
    costs, present = basis.costs, what_if(basis.costs, basis.present)
    least = int(cycles.LEAST_SHARE * present.total)
    worthwhile = [
        one for one in _all(basis.report, basis, costs, present) if one.gain_cycles >= least
    ]
    return [
        *worthwhile,
        *rest(path, [one.waits for one in worthwhile if one.waits], turn, costs, present),
    ]


def _all(report: Report, basis: Basis, costs: Costs, present: Prediction) -> list[Insight]:
    travelling = cycles.travelling_weights(costs, present)
    return [
        *cycles.split(report, costs, present, travelling),
        *travelling,
        *cycles.taking_turns(report, costs, present),
        *cycles.more_micro_batches(costs, present),
        *cycles.host(report, costs, present),
        *cycles.balance(report, costs, present),
        *cycles.padding(report, costs, present),
        *of_levers(basis, present),
    ]
