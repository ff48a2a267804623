"""Published ways to split: what they promise holds, and ours is never worse."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.rebalance import others
from ipuscope.planner.predict.what_if import Assignment


def sums(weight: np.ndarray, assignment: Assignment) -> list[int]:
    return [int(weight[a : b + 1].sum()) for a, b in assignment.spans(len(weight))]


@pytest.mark.parametrize(
    "way", [others.by_share, others.halved, others.block_partition, others.partition_balanced]
)
def test_each_block_has_one_stage_and_each_stage_a_block(
    way: Callable[[np.ndarray, int], Assignment],
) -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        count = int(random.integers(1, 20))
        stages = int(random.integers(1, count + 1))
        assignment = way(random.integers(0, 50, count), stages)
        assert len(assignment.starts) == stages
        assert [a <= b for a, b in assignment.spans(count)] == [True] * stages


def test_block_partitions_differ_by_the_largest_element_at_most() -> None:
    """Barany and Grinberg: with elements in 0 .. 1, the parts differ by 1 at the most."""
    random = np.random.default_rng(1)
    for _ in range(300):
        count = int(random.integers(2, 30))
        weight = random.integers(0, 100, count)
        weight[0], weight[-1] = 0, 100  # so that scaling changes nothing but the unit
        stages = int(random.integers(1, max(2, count // 4)))
        parts = sums(weight, others.block_partition(weight, stages))
        assert max(parts) - min(parts) <= 100


def test_partition_balanced_is_the_least_maximum_of_its_weights() -> None:
    random = np.random.default_rng(2)
    for _ in range(300):
        count = int(random.integers(1, 9))
        stages = int(random.integers(1, count + 1))
        weight = random.integers(1, 50, count)
        best = min(
            max(int(weight[a:b].sum()) for a, b in itertools.pairwise([0, *cuts, count]))
            for cuts in itertools.combinations(range(1, count), stages - 1)
        )
        assert max(sums(weight, others.partition_balanced(weight, stages))) == best
