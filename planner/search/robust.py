"""The split with the least regret under uncertain costs.

The cycles of every Block may be off by a given share, independently of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.interval_costs import (
    INFINITE,
    interval_costs,
    least_maximum,
    with_cycles,
)
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.split_search import least_bottleneck


@dataclass(frozen=True)
class Robust:
    """A split and its ``regret``.

    The regret is the number of cycles by which its bottleneck exceeds the best one's in the worst
    case.

    ``worst``: its bottleneck if all Blocks take longer at once. ``regret_of_best``: the regret of
    the split that is best for the nominal costs.
    """

    assignment: Assignment
    regret: int
    worst: int
    regret_of_best: int
    exact: bool


def least_regret(costs: Costs, stages: int, off: float) -> Robust:
    """The split with the least regret if each Block's cycles may be off by ``off``.

    It has as many stages as asked for, one per IPU.

    ``off``: 0.1 for up to a tenth more or less. A split's regret is greatest when all Blocks of one
    of its stages take longer and all others take less: that raises the stage by at least as much as
    the best split, and the other Blocks lower only the best split. So the regret is not a sum over
    stages but a maximum over intervals of Blocks, and the least one is found like the least
    bottleneck, within the memory. It is exact if stages do not recompute; if they do, a Block may
    count twice in one split and once in another, and it is an estimate. Raises ValueError unless 0
    <= off < 1, or if no split fits.
    """
    if not 0 <= off < 1:
        raise ValueError(f"Blocks may be off by a share from 0 up to 1, not {off}")
    choices = (Choice.profiled(costs),)
    nominal = least_bottleneck(costs, stages, choices)
    # What takes longer than the best split in its worst case is no candidate: it is never less
    # wrong.
    reach = int(np.ceil(nominal * ((1 + off) / (1 - off)) ** 2)) + 1
    table = interval_costs(costs, range(stages), choices, reach)
    count, width = table.final.shape
    regret = [np.full((count, width), INFINITE, dtype=np.int64) for _ in range(stages)]
    loads = [table.load(k) for k in range(stages)]
    fits = [load < INFINITE for load in loads]

    def cycles_of(case: Costs) -> list[np.ndarray]:
        """Cycles of all stages that fit; memory is the same in every scenario."""
        other = with_cycles(table, case)
        return [
            np.where(fits[k], other.final if k == stages - 1 else other.early[0], INFINITE)
            for k in range(stages)
        ]

    def shortest(lengths: list[np.ndarray]) -> int:
        best = least_maximum(lengths.__getitem__, stages)
        assert best is not None  # what fits as profiled does in each scenario
        return best[0]

    floor = shortest(cycles_of(scenario(costs, [], off)))  # no scenario's best split is shorter
    for first in range(count):
        for step in range(min(width, count - first)):
            usable = [k for k in range(stages) if loads[k][first, step] <= reach]
            if not usable:
                continue
            lengths = cycles_of(scenario(costs, range(first, first + step + 1), off))
            longer = {k: int(lengths[k][first, step]) for k in usable}
            best = shortest(lengths) if max(longer.values()) > floor else floor
            for k in usable:
                regret[k][first, step] = max(0, longer[k] - best)
    calmest = least_maximum(regret.__getitem__, stages)
    plain = least_maximum(loads.__getitem__, stages)
    assert calmest is not None and plain is not None  # the best split is a candidate
    spans = Assignment(plain[1], tuple(range(stages))).spans(count)
    of_best = max(int(regret[k][a, b - a]) for k, (a, b) in enumerate(spans))
    assignment = Assignment(calmest[1], tuple(range(stages)))
    worst = what_if(scenario(costs, range(count), off), assignment).bottleneck
    return Robust(assignment, calmest[0], worst, of_best, not costs.recompute)


def scenario(costs: Costs, longer: Sequence[int], off: float) -> Costs:
    """The costs with some Blocks' cycles raised by ``off`` and the others' lowered by it."""
    factor = np.full(len(costs), 1 - off)
    factor[list(longer)] = 1 + off
    return replace(costs, cycles=costs.cycles.scaled(factor))
