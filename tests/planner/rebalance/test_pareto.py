"""Speed against memory: the splits that no other split beats in both."""

from __future__ import annotations

import numpy as np
import pytest

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.tile_memory import Part, ipu_bytes
from ipuscope.planner.predict.interval_costs import depth_of
from ipuscope.planner.predict.what_if import stage_cycles, what_if
from ipuscope.planner.search.pareto import pareto
from ipuscope.planner.search.split_search import ALL_CHOICES
from tests.planner.rebalance.cases import random_case
from tests.planner.rebalance.test_split import splits


@pytest.mark.parametrize("choices", [(), ALL_CHOICES])
def test_the_front_is_brute_forces(choices: tuple[Choice, ...]) -> None:
    random = np.random.default_rng(1)
    lengths = []
    for _ in range(25):
        stages = int(random.integers(1, 4))
        costs = random_case(random, stages, most=6)
        points = set()
        for spans in splits(len(costs), stages):
            ways = [[]]  # type: ignore[var-annotated]
            for k, (a, b) in enumerate(spans):
                parts = [
                    Part(a, b, depth_of(costs, stages, k), choice)
                    for choice in choices or (Choice.profiled(costs),)
                ]
                ways = [[*way, part] for way in ways for part in parts]
            for way in ways:
                cycles = max(
                    sum(stage_cycles(costs, part, k == stages - 1)) for k, part in enumerate(way)
                )
                points.add((cycles, max(int(ipu_bytes(costs, [part]).max()) for part in way)))
        wanted = sorted(
            p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)
        )
        front = pareto(costs, stages, choices)
        assert [(point.bottleneck, point.fullest) for point in front] == wanted
        lengths.append(len(wanted))
        for point in front:
            prediction = what_if(costs, point.assignment)
            assert (prediction.bottleneck, max(prediction.fullest)) == (
                point.bottleneck,
                point.fullest,
            )
    assert max(lengths) > 1
