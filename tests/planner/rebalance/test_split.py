"""The rebalancer's optima against brute force on small models, and HiGHS on larger ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.rebalance.random_costs import random_costs
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.passes import Pass
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import Part, at_the_end, ipu_bytes
from ipuscope.planner.predict.interval_costs import INFINITE, depth_of, least_maximum
from ipuscope.planner.predict.interval_memory import interval_memory
from ipuscope.planner.predict.what_if import Assignment, stage_cycles, what_if
from ipuscope.planner.search import returning_stages
from ipuscope.planner.search import split_search as split
from ipuscope.planner.search.split_search import (
    ALL_CHOICES,
    best_split,
)


def splits(count: int, stages: int) -> Iterator[list[tuple[int, int]]]:
    """Yield every contiguous split, as the (first, last) Block of each stage."""
    for cuts in itertools.combinations(range(1, count), stages - 1):
        bounds = [0, *cuts, count]
        yield [(a, b - 1) for a, b in itertools.pairwise(bounds)]


def brute_force(
    costs: Costs,
    ipus: Sequence[int],
    choices: Sequence[Choice],
    together: Sequence[Sequence[int]] = (),
) -> int | None:
    """The least cycles per micro-batch of the busiest IPU, over all splits that fit."""
    count, stages = len(costs), len(ipus)
    best = None
    for spans in splits(count, stages):
        where = {
            block: ipu for (a, b), ipu in zip(spans, ipus, strict=True) for block in range(a, b + 1)
        }
        if any(len({where[block] for block in group}) > 1 for group in together):
            continue
        for chosen in itertools.product(choices, repeat=stages):
            parts = [
                Part(a, b, depth_of(costs, stages, k), chosen[k]) for k, (a, b) in enumerate(spans)
            ]
            load = dict.fromkeys(ipus, 0)
            for k, (part, ipu) in enumerate(zip(parts, ipus, strict=True)):
                load[ipu] += sum(stage_cycles(costs, part, k == stages - 1))
            value = max(load.values())
            if best is not None and value >= best:
                continue
            if all(
                ipu_bytes(costs, [p for p, i in zip(parts, ipus, strict=True) if i == ipu]).max()
                <= costs.machine.bytes_per_tile
                for ipu in set(ipus)
            ):
                best = value
    return best


def test_the_least_maximum_is_brute_forces() -> None:
    random = np.random.default_rng(0)
    for _ in range(500):
        count = int(random.integers(1, 8))
        stages, width = int(random.integers(1, count + 1)), int(random.integers(1, count + 1))
        cost = random.integers(1, 30, (stages, count, width))
        cost[random.random(cost.shape) < 0.15] = INFINITE  # does not fit
        inside = np.arange(count)[:, None] + np.arange(width)[None, :] < count
        cost = np.where(inside, cost, INFINITE)
        values = [
            max(
                int(cost[k, a, b - a]) if b - a < width else INFINITE
                for k, (a, b) in enumerate(spans)
            )
            for spans in splits(count, stages)
        ]
        least = least_maximum(lambda k, rows, cost=cost: cost[k][rows], stages)  # type: ignore[misc]
        if min(values) >= INFINITE:
            assert least is None
            continue
        assert least is not None
        value, starts = least
        ends = [*(start - 1 for start in starts[1:]), count - 1]
        assert value == min(values)
        assert value == max(
            int(cost[k, a, b - a]) for k, (a, b) in enumerate(zip(starts, ends, strict=True))
        )


@pytest.mark.parametrize("choice", ALL_CHOICES)
def test_the_room_of_all_intervals_is_that_of_each(choice: Choice) -> None:
    random = np.random.default_rng(1)
    for _ in range(20):
        costs = random_costs(random, int(random.integers(1, 12)), tiles=8)
        memory = interval_memory(costs, len(costs), choice)
        bound = interval_memory(costs, len(costs), choice, enough=0)
        for first in range(len(costs)):
            for last in range(first, len(costs)):
                way = choice if last < len(costs) - 1 else at_the_end(costs, choice)
                for depth in (0, 1, 5):
                    exact = int(ipu_bytes(costs, [Part(first, last, depth, way)]).max())
                    assert memory.fullest(depth)[first, last - first] == exact
                    assert bound.fullest(depth)[first, last - first] >= exact


def test_the_least_bottleneck_is_brute_forces() -> None:
    random = np.random.default_rng(2)
    fitted = 0
    for case in range(150):
        count = int(random.integers(2, 8))
        stages = int(random.integers(1, min(count, 4) + 1))
        costs = random_costs(
            random,
            count,
            4,
            stages=stages,
            full=float(random.uniform(0.7, 1.6)),
            most=int(random.choice([20, 30_000])),
            recompute=bool(case % 2),
        )
        choices = (costs.own_choice,) if case % 3 else tuple(ALL_CHOICES[: 2 + case % 2 * 2])
        best = brute_force(costs, range(stages), choices)
        if best is None:
            with pytest.raises(ValueError, match="fits"):
                best_split(costs, stages, choices=choices)
            continue
        fitted += 1
        split = best_split(costs, stages, choices=choices)
        assert split.least_bottleneck == best
        assert split.lower_bound == brute_force(
            costs.with_tile_bytes(1 << 40), range(stages), choices
        )
        assert max(split.prediction.fullest) <= costs.machine.bytes_per_tile
    assert 30 < fitted < 145  # both kinds were tried


@pytest.mark.parametrize("ipus", [(0, 1, 0), (0, 1, 2, 0), (0, 1, 0, 1), (0, 1, 1, 2, 0)])
def test_stages_that_come_back_to_an_ipu_are_brute_forces(ipus: tuple[int, ...]) -> None:
    random = np.random.default_rng(4)
    fitted = 0
    for case in range(60):
        count = int(random.integers(len(ipus), 9))
        costs = random_costs(
            random,
            count,
            4,
            stages=len(set(ipus)),
            full=float(random.uniform(0.9, 2.5)),
            most=int(random.choice([20, 30_000])),
        )
        choices = ALL_CHOICES[2:] if case % 4 == 0 and count < 7 else (costs.own_choice,)
        together = ((0, count - 1),) if case % 2 else ()
        best = brute_force(costs, ipus, choices, together)
        if best is None:
            with pytest.raises(ValueError, match="no split"):
                best_split(costs, ipus=ipus, together=together, choices=choices)
            continue
        fitted += 1
        split = best_split(costs, ipus=ipus, together=together, choices=choices)
        assert split.least_bottleneck == best
        assignment = split.prediction.assignment
        assert assignment.ipus == ipus
        stage = assignment.stage_of(count)
        assert not together or ipus[stage[0]] == ipus[stage[-1]]
    assert fitted > 15


@pytest.mark.parametrize(("full", "says"), [(0.9, "need 7 stages"), (1.4, "need 3 IPUs or more")])
def test_a_list_that_cannot_fit_says_how_many_stages_would(
    full: float, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = random_costs(np.random.default_rng(3), 24, stages=6, full=full)
    searches = []
    search = split.least_bottleneck_revisiting

    def counted(*asked: Any) -> Any:
        searches.append(asked)
        return search(*asked)

    monkeypatch.setattr(split, "least_bottleneck_revisiting", counted)
    with pytest.raises(ValueError, match=says):
        best_split(costs, ipus=(0, 1, 0, 1))
    assert len(searches) <= 12  # not ever longer stages, up to all Blocks in one


def test_a_list_with_too_many_ways_begins_at_the_profiled_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = random_costs(np.random.default_rng(4), 12, 4, stages=6)
    ipus = (0, 1, 2, 0, 1, 2)
    profiled = replace(costs, ipus=ipus)
    before = what_if(profiled, Assignment.of(profiled.stage.tolist(), ipus))
    exact = best_split(profiled, ipus=ipus)
    monkeypatch.setattr(returning_stages, "_MOST_WAYS", 3)
    for tried in (profiled, replace(costs)):  # or with as much work in each stage
        split = best_split(tried, ipus=ipus)
        assert exact.prediction.total <= split.prediction.total <= before.total
        assert split.least_total <= exact.prediction.total
        assert split.least_bottleneck <= exact.least_bottleneck <= split.bottleneck
    with pytest.raises(ValueError, match="too many to look at"):
        best_split(profiled.with_tile_bytes(1), ipus=ipus)


def test_blocks_that_share_a_weight_stay_on_one_ipu() -> None:
    random = np.random.default_rng(5)
    for _ in range(100):
        count = int(random.integers(4, 9))
        costs = random_costs(random, count, 4)
        a, b = sorted(random.choice(count, 2, replace=False).tolist())
        stages = int(random.integers(1, count - (b - a) + 1))
        best = brute_force(costs, range(stages), (costs.own_choice,), ((a, b),))
        split = best_split(costs, stages, together=((a, b),))
        stage = split.prediction.assignment.stage_of(count)
        assert stage[a] == stage[b]
        assert split.least_bottleneck == best
    with pytest.raises(ValueError, match="together"):
        best_split(costs, count, together=((0, 1),))


def test_the_choices_reach_what_each_alone_cannot() -> None:
    """With little memory, some stages have to recompute while others do not."""
    random = np.random.default_rng(6)
    mixed = 0
    for _ in range(60):
        costs = random_costs(random, 8, 4, stages=3, full=float(random.uniform(1.0, 1.6)))
        try:
            split = best_split(costs, 3, choices=ALL_CHOICES)
        except ValueError:
            continue
        chosen = split.prediction.assignment.choices
        mixed += len({choice.recompute for choice in chosen[:-1]}) > 1
        for one in ALL_CHOICES:
            try:
                alone = best_split(costs, 3, choices=(one,))
            except ValueError:
                continue
            assert split.least_bottleneck <= alone.least_bottleneck
    assert mixed > 0


# -- an integer programme ---


def _keep_in_order(
    inside: np.ndarray,
    begins: np.ndarray,
    constrain: Callable[[dict[int, float], float, float], None],
) -> None:
    """Constrain each Block to its predecessor's stage or to the next one, which it then begins.

    ``inside`` and ``begins`` are numbers of variables: int64[Block, stage].
    """
    count, stages = inside.shape
    for k in range(stages):
        constrain({int(begins[0, k]): 1, int(inside[0, k]): -1}, 0, 0)
    for b in range(count):
        constrain({int(inside[b, k]): 1 for k in range(stages)}, 1, 1)
    for b in range(1, count):
        for k in range(stages):
            here, there = int(inside[b, k]), int(inside[b - 1, k])
            constrain({int(begins[b, k]): 1, here: -1, there: 1}, 0, np.inf)
            before = {int(inside[b - 1, j]): 1.0 for j in (k - 1, k) if j >= 0}
            constrain({here: -1.0, **before}, 0, np.inf)


def _own(costs: Costs, kind: Pass, b: int, t: int, final: bool) -> float:
    """Bytes that a Block profiled with recomputation holds; the last stage never recomputes."""
    memory = costs.memory
    if kind == Pass.BACKWARD:
        otherwise = memory.peak[kind, b, t] + memory.saved[b, t]
        return float(otherwise if final else memory.peak_of_backward[b, t])
    return float(0 if final and kind == Pass.AGAIN else memory.peak[kind, b, t])


def integer_programme(costs: Costs, stages: int) -> int | None:
    """The least bottleneck by HiGHS, from another formulation.

    There is a variable for each Block and stage: whether the Block is in it. A stage's cycles are
    sums over its Blocks and of what its first one stashes. On each tile, and for each Block b, what
    a stage holds always, the code that any of its Blocks runs, its stash, and what b holds in each
    of its passes must fit, with what the Blocks before b save (in the last stage from the forward
    on, in the others once they have run again).
    """
    optimize = pytest.importorskip("scipy.optimize")
    sparse = pytest.importorskip("scipy.sparse")
    count, tiles = len(costs), costs.machine.tiles
    assert (
        costs.recompute
        and (costs.cycles.again_end == costs.cycles.forward).all()
        and not costs.memory.peak_interleaved.any()
    )
    inside = np.arange(count * stages).reshape(count, stages)
    begins = count * stages + inside
    pieces = len(costs.memory.code)
    runs = 2 * count * stages + np.arange(pieces * stages).reshape(pieces, stages)
    bottleneck = (2 * count + pieces) * stages
    size = bottleneck + 1
    rows: list[dict[int, float]] = []
    low: list[float] = []
    high: list[float] = []

    def constrain(row: dict[int, float], at_least: float, at_most: float) -> None:
        rows.append(row)
        low.append(at_least)
        high.append(at_most)

    _keep_in_order(inside, begins, constrain)
    for k in range(stages):
        constrain({int(begins[b, k]): 1 for b in range(count)}, 1, 1)
        final = k == stages - 1
        load: dict[int, float] = {bottleneck: -1.0}
        for b in range(count):
            load[int(inside[b, k])] = float(
                costs.cycles.forward[b] * (1 if final else 2) + costs.cycles.backward[b]
            )
            load[int(begins[b, k])] = 0.0 if final else 2.0 * float(costs.stash_cycles(b, b, True))
        constrain(load, -np.inf, 0)
        for piece, b in np.argwhere(costs.memory.code_users).tolist():
            constrain({int(runs[piece, k]): 1, int(inside[b, k]): -1}, 0, np.inf)
        depth = depth_of(costs, stages, k)
        for t in range(tiles):
            held = {
                int(inside[b, k]): float(costs.memory.always[b, t] + costs.memory.state[b, t])
                for b in range(count)
            }
            held |= {
                int(begins[b, k]): float(-(-depth * int(costs.stash_bytes(b, b, True)) // tiles))
                for b in range(count)
            }
            held |= {
                int(runs[piece, k]): float(costs.memory.code[piece, t]) for piece in range(pieces)
            }
            free = float(costs.machine.bytes_per_tile - costs.memory.shared[t])
            for b, kind in itertools.product(range(count), Pass):
                row = dict(held)
                waits = final or kind in (Pass.AGAIN, Pass.BACKWARD)
                for j in range(b if waits and kind != Pass.UPDATE else 0):
                    row[int(inside[j, k])] += float(costs.memory.saved[j, t])
                row[int(inside[b, k])] += _own(costs, kind, b, t, final)
                constrain(row, -np.inf, free)
    at = [(i, j, value) for i, row in enumerate(rows) for j, value in row.items()]
    i, j, value = zip(*at, strict=True)
    matrix = sparse.csr_array((value, (i, j)), shape=(len(rows), size))
    cost = np.zeros(size)
    cost[bottleneck] = 1
    integral = np.ones(size)
    integral[bottleneck] = 0
    solution = optimize.milp(
        cost,
        constraints=optimize.LinearConstraint(matrix, low, high),
        integrality=integral,
        bounds=optimize.Bounds(0, np.where(integral, 1, np.inf)),
        options={"mip_rel_gap": 0},
    )
    assert solution.status in (0, 2), solution.message  # solved, or infeasible
    return None if solution.status == 2 else round(solution.fun)


@pytest.mark.parametrize("seed", range(12))
def test_the_least_bottleneck_is_an_integer_programmes(seed: int) -> None:
    random = np.random.default_rng(seed)
    count, stages = int(random.integers(12, 19)), int(random.integers(2, 5))
    costs = random_costs(
        random, count, 3, stages=stages, full=float(random.uniform(0.75, 1.2)), most=2_000
    )
    costs = replace(
        costs,
        cycles=replace(costs.cycles, again_end=costs.cycles.forward),
        memory=replace(costs.memory, peak_interleaved=np.zeros_like(costs.memory.saved)),
    )
    wanted = integer_programme(costs, stages)
    if wanted is None:
        with pytest.raises(ValueError, match="fits"):
            best_split(costs, stages)
    else:
        assert best_split(costs, stages).least_bottleneck == wanted


def test_a_thousand_blocks_into_sixty_four_stages_are_bounded_closely() -> None:
    """With the memory of 1,472 tiles; benchmarks/rebalance measures the time."""
    costs = random_costs(
        np.random.default_rng(0), 1000, 1472, stages=64, full=1.6, micro_batches=256
    )
    split = best_split(costs, 64)
    assert split.gap < 0.02
    assert split.bottleneck >= split.least_bottleneck >= split.lower_bound
    assert max(split.prediction.fullest) <= costs.machine.bytes_per_tile
