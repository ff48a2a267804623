"""The fewest IPUs that a model fits on."""

from __future__ import annotations

import numpy as np

from ipuscope.planner.search.what_fits import fewest_ipus
from tests.planner.rebalance.cases import random_case
from tests.planner.rebalance.test_split import brute_force


def test_fewer_ipus_than_the_fewest_do_not_fit() -> None:
    random = np.random.default_rng(0)
    counts = set()
    for _ in range(60):
        costs = random_case(random, 4, micro_batches=40)
        try:
            split = fewest_ipus(costs)
        except ValueError:
            assert all(
                brute_force(costs, range(k), (costs.own_choice,)) is None
                for k in range(1, len(costs))
            )
            continue
        stages = len(split.prediction.assignment.starts)
        counts.add(stages)
        assert brute_force(costs, range(stages), (costs.own_choice,)) is not None
        for fewer in range(1, stages):
            assert brute_force(costs, range(fewer), (costs.own_choice,)) is None
    assert len(counts) > 1
