"""Memory that passes hold, and totals of sets that differ a little, against step-by-step sums."""

from __future__ import annotations

import numpy as np

from ipuscope.planner.costs.pass_memory import _most_live
from ipuscope.planner.costs.passes import _last_valid
from ipuscope.profiler.timeline.liveness import Totals, total


def test_the_most_that_lives_at_some_steps() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        count, tiles, steps = int(random.integers(0, 9)), 4, 12
        start = random.integers(0, steps, count)
        stop = start + random.integers(1, 6, count)
        vectors = random.integers(0, 100, (count, tiles))
        region1 = random.random(count) < 0.4
        spots = np.unique(np.append(0, random.integers(0, steps, 5)))
        alive = [(start <= step) & (step < stop) for step in spots]
        here = (start, stop, np.arange(count), region1)
        for peak, region in zip(
            _most_live(here, vectors, spots), (region1 | True, region1), strict=True
        ):
            most = np.max([vectors[one & region].sum(axis=0) for one in alive], axis=0)
            assert (peak == most).all()


def test_totals_of_sets_that_differ_a_little() -> None:
    random = np.random.default_rng(1)
    vectors = random.integers(0, 1 << 40, (30, 7))
    totals, rows = Totals(vectors), random.integers(0, 30, 200)
    for _ in range(40):
        rows = np.append(rows[random.integers(0, 3) :], random.integers(0, 30, 2))
        assert (totals.of(rows) == total(vectors, rows)).all()
    assert (totals.of(rows[:0]) == 0).all()


def test_the_last_valid_value_stays_in_its_group() -> None:
    values = np.array([-1, 3, -1, -1, -1, 5, -1])
    group = np.array([0, 0, 0, 1, 1, 1, 1])
    assert _last_valid(values, group).tolist() == [-1, 3, 3, -1, -1, 5, 5]
    assert _last_valid(values[:0], group[:0]).tolist() == []
