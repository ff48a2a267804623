"""The search's memory is what-if's: random models with tied weights, against brute force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from benchmarks.rebalance.random_costs import random_costs
from ipuscope.planner.costs.carried_tensors import Carried
from ipuscope.planner.costs.cuts import Ties
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import (
    Part,
    at_least,
    at_the_end,
    ipu_bytes,
    passing_alone,
    passing_through,
    stage_parts,
    surely_passing,
)
from ipuscope.planner.predict.interval_memory import interval_memory
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.split_search import ALL_CHOICES, best_split

TILES = 4


def sharing(random: np.random.Generator, blocks: int, stages: int, **more: object) -> Costs:
    """Random costs of Blocks that share weights and hand tensors on, also past others."""
    costs = random_costs(random, blocks, TILES, stages=stages, **more)  # type: ignore[arg-type]
    readers = _readers(random, blocks)
    tied = [(home, reader) for home, *others in readers for reader in others]
    touched = random.random((5 + len(tied), blocks)) < 0.3
    touched[: len(tied)] = False
    for row, pair in enumerate(tied):
        touched[row, list(pair)] = True
    back = random.random(len(touched)) < 0.5
    back[: len(tied)] = True
    for row in range(len(tied), len(touched)):
        touched[row, random.choice(blocks, 2, replace=False)] = True
    first, last = touched.argmax(axis=1), blocks - 1 - touched[:, ::-1].argmax(axis=1)
    carried = Carried(
        np.where(back, last, first),
        back,
        touched,
        random.integers(0, 20_000, (len(touched), TILES)),
        np.arange(len(touched)) < len(tied),
    )
    heavy = int(random.choice([1, 5]))
    copies = random.integers(0, heavy * 40_000, (len(readers), TILES))
    ties = Ties(
        tuple(f"weight{row}" for row in range(len(readers))),
        tuple(readers),
        tuple(copies.sum(axis=1).tolist()),
        tuple(range(len(readers))),
    )
    ran_by = np.minimum(np.arange(blocks) * stages // blocks, stages - 1)
    memory = replace(
        costs.memory,
        carried=carried,
        updating=random.integers(0, 900, (blocks, TILES)),
        copies=copies,
        peak_of_copies=random.integers(0, heavy * 60_000, (blocks, TILES)),
        residual=random.integers(-9_000, 9_000, (stages, TILES)),
        residual_of=ran_by,
    )
    closed = random.random(blocks) < random.choice([0, 0.5])
    return replace(
        costs,
        memory=memory,
        cycles=replace(costs.cycles, closed=closed),
        cuts=replace(costs.cuts, ties=ties),
        recompute_alone=bool(random.integers(2)),
    )


def _readers(random: np.random.Generator, blocks: int) -> list[tuple[int, ...]]:
    """Which Blocks share each of up to three weights; often the first and the last."""
    if random.random() < 0.4:
        return [(0, blocks - 1)] * int(random.integers(1, 3))
    counts = random.integers(2, min(3, blocks) + 1, random.integers(1, 4))
    return [tuple(sorted(random.choice(blocks, count, replace=False).tolist())) for count in counts]


def splits(blocks: int, ipus: Sequence[int], choices: Sequence[Choice]) -> list[Assignment]:
    """All of them."""
    starts = combinations(range(1, blocks), len(ipus) - 1)
    ways = product(choices, repeat=len(ipus))
    return [Assignment((0, *a), tuple(ipus), b) for a, b in product(starts, list(ways))]


LISTS = (
    *((0,), (0, 1), (0, 1, 2), (0, 1, 0)),
    *((0, 1, 2, 0), (0, 1, 2, 1), (0, 1, 0, 2), (0, 1, 0, 1, 0)),
)


@pytest.mark.parametrize("ipus", LISTS)
def test_none_is_refused_that_fits_and_the_quickest_is_found(ipus: tuple[int, ...]) -> None:
    """Where the tiles hold as much as a split needs that some others need more than."""
    random = np.random.default_rng(7)
    for case in range(8):
        blocks = int(random.integers(max(2, len(ipus)), 8))
        recompute = bool(random.integers(2))
        costs = sharing(random, blocks, len(set(ipus)), recompute=recompute)
        profiled = (costs.own_choice,)
        choices = ALL_CHOICES[2:] if case == 0 and len(ipus) < 4 else profiled
        every = [what_if(costs, one) for one in splits(blocks, ipus, choices)]
        fullest = np.array([max(one.fullest) for one in every])
        limit = int(np.sort(fullest)[min(len(every) - 1, int(random.integers(6)))])
        least = min(one.total for one, size in zip(every, fullest, strict=True) if size <= limit)
        found = best_split(costs.with_tile_bytes(limit), ipus=ipus, choices=choices)
        assert max(found.prediction.fullest) <= limit
        assert (found.prediction.total, found.proven) == (least, True)
        with pytest.raises(ValueError, match="no split"):
            best_split(costs.with_tile_bytes(min(fullest) - 1), ipus=ipus, choices=choices)


@pytest.mark.parametrize("seed", range(6))
def test_tables_hold_what_each_stage_does(seed: int) -> None:
    """On an IPU of its own exactly, with what passes it; in company no more than with others."""
    random = np.random.default_rng(seed)
    costs = sharing(random, 6, 3)
    for choice in ALL_CHOICES:
        alone = interval_memory(costs, len(costs), choice)
        beside = interval_memory(costs, len(costs), choice, in_company=True)
        for first, end in combinations(range(len(costs) + 1), 2):
            if (first, end) == (0, len(costs)):
                continue  # what a single stage recomputes is an option
            followed = end < len(costs)
            part = Part(
                first, end - 1, 3 * followed, choice if followed else at_the_end(costs, choice)
            )
            (passing,) = passing_alone(costs, np.array([first]), np.array([end - 1]))
            at = first, end - 1 - first
            assert alone.fullest(part.depth)[at] == ipu_bytes(costs, [part], passing).max()
            assert beside.fullest(part.depth)[at] == at_least(costs, [part]).max()


@pytest.mark.parametrize("seed", range(6))
def test_more_stages_hold_no_less(seed: int) -> None:
    random = np.random.default_rng(seed)
    costs = sharing(random, 6, 3)
    parts = stage_parts(costs, range(len(costs)))
    for size in range(1, len(parts) + 1):
        for some in combinations(parts, size):
            exact = ipu_bytes(costs, some)
            for fewer in combinations(some, max(1, size - 1)):
                assert (at_least(costs, fewer) <= exact).all()


def test_what_passes_stages_on_ipus_of_their_own() -> None:
    """As far as it is sure, it is the same wherever stages begin and return."""
    random = np.random.default_rng(0)
    passes = 0
    for _ in range(40):
        costs = sharing(random, int(random.integers(4, 8)), 3)
        for starts in combinations(range(1, len(costs)), 3):
            parts = stage_parts(costs, (0, *starts))
            first = np.array([part.first for part in parts])
            last = np.array([part.last for part in parts])
            exact = passing_through(costs, parts, range(4))
            assert (passing_alone(costs, first, last) == exact).all()
            for ipus in ((0, 1, 2, 0), (0, 1, 0, 2), (0, 1, 2, 1)):
                sure, exact = surely_passing(costs, ipus), passing_through(costs, parts, ipus)
                ends = all(blocks == (0, len(costs) - 1) for blocks in costs.cuts.ties.blocks)
                assert (sure == exact).all() if ends else not sure.any()
                passes += bool(sure.any())
    assert passes > 20
