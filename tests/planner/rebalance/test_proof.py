"""Why no split is quicker, in sentences that name the obstacle."""

from __future__ import annotations

import numpy as np
import pytest

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.tile_memory import Part, ipu_bytes
from ipuscope.planner.predict.interval_costs import depth_of
from ipuscope.planner.predict.what_if import stage_cycles
from ipuscope.planner.search.proof import prove
from ipuscope.planner.search.split_search import best_split
from tests.planner.rebalance.cases import random_case
from tests.planner.rebalance.test_split import splits


def test_a_proof_names_a_block_that_overflows_with_a_cycle_less() -> None:
    random = np.random.default_rng(5)
    for _ in range(80):
        stages = int(random.integers(1, 5))
        costs = random_case(random, stages)
        choices = (Choice.profiled(costs),)
        try:
            split = best_split(costs, stages)
        except ValueError:
            continue
        least = split.least_bottleneck
        proof = prove(costs, stages, least, split.lower_bound, choices)
        assert (
            max(proof.largest_block, proof.even_share)
            <= proof.endless_memory
            <= proof.least
            == least
        )
        # Brute force: with a cycle less, stages 0 .. proof.stage end at `reached` at the furthest.
        furthest = -1
        for size in range(1, len(costs) + 1):
            if proof.stage + 1 > size:
                continue
            for spans in splits(size, proof.stage + 1):
                parts = [
                    Part(a, b, depth_of(costs, stages, k), choices[0])
                    for k, (a, b) in enumerate(spans)
                ]
                short = all(
                    sum(stage_cycles(costs, p, k == stages - 1)) < least
                    for k, p in enumerate(parts)
                )
                if short and all(
                    ipu_bytes(costs, [p]).max() <= costs.machine.bytes_per_tile for p in parts
                ):
                    furthest = max(furthest, size - 1)
        if furthest >= 0:
            assert furthest == proof.reached < len(costs) - 1
        assert costs.names[proof.stuck] in " ".join(proof.sentences(costs.names))
        with pytest.raises(ValueError, match="fits"):
            prove(costs, stages, least + 1, split.lower_bound, choices)
