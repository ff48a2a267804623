"""The gain from more memory, or from one more stage."""

from __future__ import annotations

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.tile_memory import Part, ipu_bytes
from ipuscope.planner.predict.interval_costs import depth_of
from ipuscope.planner.predict.what_if import stage_cycles
from ipuscope.planner.search.prices import prices
from tests.planner.rebalance.cases import random_case
from tests.planner.rebalance.test_split import brute_force, splits


def test_prices_are_what_brute_force_gains() -> None:
    random = np.random.default_rng(7)
    worth = 0
    for _ in range(40):
        stages = int(random.integers(1, 4))
        costs = random_case(random, stages, most=7)
        choices = (Choice.profiled(costs),)
        now = brute_force(costs, range(stages), choices)
        if now is None:
            continue
        by_change = {price.what: price for price in prices(costs, stages, extra=2_048)}
        assert all(price.now == now for price in by_change.values())
        roomier = costs.with_tile_bytes(costs.machine.bytes_per_tile + 2_048)
        assert by_change["2 KiB more a tile everywhere"].then == brute_force(
            roomier, range(stages), choices
        )
        for k in range(stages):
            best = None
            for spans in splits(len(costs), stages):
                parts = [
                    Part(a, b, depth_of(costs, stages, j), choices[0])
                    for j, (a, b) in enumerate(spans)
                ]
                limits = [costs.machine.bytes_per_tile + 2_048 * (j == k) for j in range(stages)]
                if all(
                    ipu_bytes(costs, [p]).max() <= limit
                    for p, limit in zip(parts, limits, strict=True)
                ):
                    load = max(
                        sum(stage_cycles(costs, p, j == stages - 1)) for j, p in enumerate(parts)
                    )
                    best = load if best is None else min(best, load)
            assert by_change[f"2 KiB more a tile on stage {k}"].then == best
            worth += best is not None and best < now
        more = brute_force(costs, range(stages + 1), choices) if stages < len(costs) else None
        assert (by_change["one more IPU"].then if "one more IPU" in by_change else None) == more
    assert worth > 0
