"""Cycles against memory: the splits that no other beats on both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.interval_costs import (
    INFINITE,
    IntervalCosts,
    depth_of,
    interval_costs,
    least_maximum,
)
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.planner.search.split_search import longest


@dataclass(frozen=True)
class Point:
    """A split on the Pareto front.

    Cycles of its slowest stage per micro-batch, and bytes of its fullest tile.
    """

    bottleneck: int
    fullest: int
    assignment: Assignment


def pareto(
    costs: Costs, stages: int, choices: Sequence[Choice] = (), most: int = 100
) -> list[Point]:
    """The Pareto front of splits into this many stages, one an IPU.

    The shortest bottleneck comes first, and there are at most ``most`` points.

    The tile's limit is ignored: points beyond it show what a larger tile would give. Exact: each
    step down in memory finds the least bottleneck under it, then the least memory for that
    bottleneck.
    """
    allowed = tuple(choices) or (Choice.profiled(costs),)
    endless = costs.with_tile_bytes(INFINITE // 2)
    table = interval_costs(endless, range(stages), allowed, longest(costs), spare=1)
    points: list[Point] = []
    below = INFINITE
    while len(points) < most:
        loads = [_loads(table, k, below) for k in range(stages)]
        reached = least_maximum(loads.__getitem__, stages)
        if reached is None:
            return points
        slowest = reached[0]
        sizes = [_sizes(table, k, slowest) for k in range(stages)]
        least = least_maximum(sizes.__getitem__, stages)
        assert least is not None  # the split that was just reached is one
        below, starts = least
        ends = [*(start - 1 for start in starts[1:]), len(costs) - 1]
        chosen = tuple(
            _choice(table, k, a, b, slowest)
            for k, (a, b) in enumerate(zip(starts, ends, strict=True))
        )
        plain = (Choice.profiled(costs),) * stages
        points.append(
            Point(
                slowest,
                below,
                Assignment(starts, tuple(range(stages)), () if chosen == plain else chosen),
            )
        )
    return points


def _ways(table: IntervalCosts, k: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(cycles, bytes of the fullest tile) of stage k, for each choice."""
    depth = depth_of(table.costs, table.stages, k)
    early = [table.final] * len(table.choices) if k == table.stages - 1 else table.early
    return [
        (cycles, one.fullest(depth)) for cycles, one in zip(early, table.memory or (), strict=True)
    ]


def _loads(table: IntervalCosts, k: int, below: int) -> np.ndarray:
    """The least cycles of stage k in fewer than ``below`` bytes."""
    least: np.ndarray = np.minimum.reduce(
        [np.where(size < below, cycles, INFINITE) for cycles, size in _ways(table, k)]
    )
    return least


def _sizes(table: IntervalCosts, k: int, slowest: int) -> np.ndarray:
    """The least bytes of stage k in at most ``slowest`` cycles."""
    nbytes: np.ndarray = np.minimum.reduce(
        [np.where(cycles <= slowest, size, INFINITE) for cycles, size in _ways(table, k)]
    )
    return nbytes


def _choice(table: IntervalCosts, k: int, first: int, last: int, slowest: int) -> Choice:
    at = (first, last - first)
    sizes = [
        int(size[at]) if cycles[at] <= slowest else INFINITE for cycles, size in _ways(table, k)
    ]
    return table.choices[int(np.argmin(sizes))]
