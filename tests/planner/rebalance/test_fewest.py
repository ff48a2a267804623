"""The fewest IPUs that a model fits on."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from ipuscope.planner.predict import interval_costs
from ipuscope.planner.search import split_search
from ipuscope.planner.search.refusal import NoneFits, surely_none_fits
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


def test_what_is_always_there_alone_refuses_only_what_no_split_holds() -> None:
    random, refused = np.random.default_rng(1), 0
    for _ in range(200):
        costs = random_case(random, 3, micro_batches=40)
        if random.random() < 0.5:  # where code ends counts, too
            code = replace(
                costs.memory.region0,
                own=random.integers(0, 300, costs.memory.always.shape),
                users=random.random((4, len(costs))) < 0.5,
                pieces=random.integers(0, 300, (4, costs.memory.always.shape[1])),
                besides=random.integers(0, 50, (1, costs.memory.always.shape[1])),
                ran=np.zeros((1, len(costs)), dtype=bool),
            )
            machine = replace(costs.machine, region0_bytes=int(random.integers(300, 2_000)))
            costs = replace(costs, machine=machine, memory=replace(costs.memory, region0=code))
        costs = costs.with_tile_bytes(int(costs.machine.bytes_per_tile * random.uniform(0.3, 1.0)))
        for stages in range(1, len(costs)):
            if surely_none_fits(costs, stages, (costs.own_choice,)):
                refused += 1
                assert brute_force(costs, range(stages), (costs.own_choice,)) is None
    assert refused > 50


def test_no_table_of_stages_is_made_and_no_reason_looked_for_where_nothing_can_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = random_case(np.random.default_rng(2), 3, micro_batches=40)
    costs = costs.with_tile_bytes(int(costs.memory.always.sum(axis=0).max()) // 4)
    asked = []

    def why(*args: object) -> str:
        asked.append(args)
        return "no split fits"

    monkeypatch.setattr(split_search, "does_not_fit", why)
    monkeypatch.setattr(interval_costs, "interval_memory", None)
    with pytest.raises(NoneFits) as caught:
        split_search.best_split(costs, 3)
    assert not asked
    assert str(caught.value) == "no split fits"
    error = pickle.loads(pickle.dumps(NoneFits("for other processes".title)))
    assert str(error) == "For Other Processes"
