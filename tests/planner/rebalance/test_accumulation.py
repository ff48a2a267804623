"""The least gradient accumulation that keeps the share of ramps below a limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.rebalance.random_costs import random_costs
from ipuscope.planner.costs.cuts import Cuts
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.accumulation import least_accumulation
from ipuscope.planner.search.split_search import best_split


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_accumulation_is_the_least_with_so_small_ramps(share: float) -> None:
    random = np.random.default_rng(2)
    for _ in range(15):
        stages = int(random.integers(1, 5))
        costs = random_costs(random, stages + 2, 4, stages=stages)
        assignment = best_split(costs, stages).prediction.assignment
        least = least_accumulation(costs, assignment, share)

        def lost(batches: int, costs: Costs = costs, assignment: Assignment = assignment, cycle: int = least.cycle) -> float:  # fmt: skip  # noqa: E501
            total = what_if(replace(costs, micro_batches=batches), assignment).total
            return 1 - batches * cycle / total

        assert lost(least.micro_batches) <= share + 1e-9
        if least.micro_batches > 2 * stages - 1:
            assert lost(least.micro_batches - 1) > share


def test_accumulation_of_a_balanced_pipeline_is_the_closed_form() -> None:
    """A time bubble of at most 5 % needs G >= 19 (K - 1) (docs/pipeline-schedules.md#bubbles)."""
    costs, none = random_costs(np.random.default_rng(3), 4, 4, recompute=False), np.zeros(4, int)
    even = replace(
        costs,
        cycles=replace(
            costs.cycles, forward=np.full(4, 100), backward=np.full(4, 200), update=none
        ),
        machine=replace(costs.machine, sync=0, link_latency=0),
        cuts=Cuts(none, none),
        stash=replace(costs.stash, base=0.0, rate=0.0),
        streams=replace(costs.streams, stream_in=none, stream_out=none),
        samples=8,
        micro_batches=15,
    )
    least = least_accumulation(even, Assignment((0, 1, 2, 3), (0, 1, 2, 3)), 0.05)
    assert least.micro_batches == 19 * 3
    # Of 8 x 15 samples, 57 micro-batches or more: 2 samples each are 60.
    assert (least.micro_batch, least.of_batch) == (2, 60)
    with pytest.raises(ValueError, match="between 0 and 1"):
        least_accumulation(even, Assignment((0,), (0,)), 0.0)
