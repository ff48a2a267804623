"""The split whose worst regret over uncertain costs is least."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.rebalance.random_costs import random_costs
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.robust import least_regret, scenario
from ipuscope.planner.search.split_search import least_bottleneck
from tests.planner.rebalance.test_split import brute_force, splits


def test_the_least_regret_is_brute_forces() -> None:
    """Compared with every Block's cost being high or low; exact without recomputation."""
    random = np.random.default_rng(5)
    better = 0
    for _ in range(12):
        stages = int(random.integers(2, 4))
        costs = random_costs(random, 5, 4, stages=stages, full=1.3, recompute=False, most=3_000)
        none = np.zeros_like(costs.cycles.backward)
        costs = replace(costs, cycles=replace(costs.cycles, backward=none))
        choices = (Choice.profiled(costs),)
        if brute_force(costs, range(stages), choices) is None:
            continue
        corners = [
            scenario(costs, [b for b in range(5) if corner >> b & 1], 0.2) for corner in range(32)
        ]
        optima = [least_bottleneck(case, stages, choices) for case in corners]
        regrets = {}
        for spans in splits(5, stages):
            assignment = Assignment(tuple(a for a, _ in spans), tuple(range(stages)))
            if max(what_if(costs, assignment).fullest) > costs.machine.bytes_per_tile:
                continue
            regrets[assignment.starts] = max(
                what_if(case, assignment).bottleneck - best
                for case, best in zip(corners, optima, strict=True)
            )
        robust = least_regret(costs, stages, 0.2)
        assert robust.regret == min(regrets.values()) == regrets[robust.assignment.starts]
        assert robust.regret <= robust.regret_of_best
        better += robust.regret < robust.regret_of_best
        assert robust.worst == what_if(corners[-1], robust.assignment).bottleneck
    assert better > 0
    assert least_regret(costs, 2, 0.0).regret == 0
