"""The value of more resources: memory on a stage's tiles, or one more IPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.interval_costs import (
    INFINITE,
    depth_of,
    interval_costs,
    least_maximum,
)
from ipuscope.planner.search.split_search import least_bottleneck


@dataclass(frozen=True)
class Price:
    """The cycles a micro-batch by which more of ``what`` shortens the bottleneck.

    ``now`` is its present length, and ``then`` its length with more.
    """

    what: str
    now: int
    then: int

    @property
    def worth(self) -> int:
        """The cycles it saves."""
        return self.now - self.then


def prices(
    costs: Costs, stages: int, choices: Sequence[Choice] = (), extra: int = 10 * 1024
) -> list[Price]:
    """The price of ``extra`` bytes a tile on each stage alone and on all, and of one more IPU.

    Exact, for one stage an IPU.

    One more IPU can have a negative value when memory is tight, because the stages before it stash
    more. ValueError where no split fits at present.
    """
    allowed = tuple(choices) or (Choice.profiled(costs),)
    now = least_bottleneck(costs, stages, allowed)
    priced = [
        Price(
            f"{extra / 1024:g} KiB more a tile on stage {k}",
            now,
            _with(costs, stages, allowed, {k: extra}, now),
        )
        for k in range(stages)
    ]
    everywhere = dict.fromkeys(range(stages), extra)
    priced.append(
        Price(
            f"{extra / 1024:g} KiB more a tile everywhere",
            now,
            _with(costs, stages, allowed, everywhere, now),
        )
    )
    if stages < len(costs):
        try:
            priced.append(Price("one more IPU", now, least_bottleneck(costs, stages + 1, allowed)))
        except ValueError:
            pass  # it does not fit with one more: there is no price to say
    return priced


def _with(
    costs: Costs, stages: int, choices: tuple[Choice, ...], more: dict[int, int], now: int
) -> int:
    """The least bottleneck with this many more bytes on the tiles of some stages."""
    table = interval_costs(costs, range(stages), choices, now, spare=max(more.values()))

    def load(k: int) -> np.ndarray:
        depth, limit = depth_of(costs, stages, k), costs.machine.bytes_per_tile + more.get(k, 0)
        early = [table.final] * len(choices) if k == stages - 1 else table.early
        ways = [
            np.where(one.fullest(depth) <= limit, cycles, INFINITE)
            for cycles, one in zip(early, table.memory or (), strict=True)
        ]
        shortest: np.ndarray = np.minimum.reduce(ways)
        return shortest

    bottleneck = least_maximum(load, stages)
    assert bottleneck is not None  # what fitted before does
    return bottleneck[0]
