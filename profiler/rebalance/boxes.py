"""Narrows the gap between a split and the least that any split takes, box by box.

A box is the splits whose longest stage and busiest link lie in a range. Within a narrow one far
fewer ways to choose each stage are possible, and `least_ramps` bounds what is to come far better,
so that few partial splits need to be kept. The box with the lowest bound is looked at first; where
a gap remains it is halved, and its halves look only at what was kept.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace

import numpy as np

from profiler.rebalance.costs import Costs
from profiler.rebalance.interval_costs import IntervalCosts
from profiler.rebalance.least_ramps import LeastRamps, least_ramps
from profiler.rebalance.partial_splits import LeastUpdate, Search, Within
from profiler.rebalance.stage_ways import StageWays, connected, least_of_rest

_NEAR = 9e-4  # the share by which another split may be quicker
_WAYS = 1_000  # kept at a time
_CELLS = 6_000  # of the grid of a box whose stages are few
_LEAST_CELLS = 500
_CELLS_OF_ALL = 20_000_000  # over all ways to choose a stage
_OF_A_WAY = 3_000  # cells that take as long as to look at a way to choose a stage
_OF_A_PART = 400  # ... and to look at a split of the first Blocks
_EFFORT = 25  # cells for each byte of the memory of all stages
_WIDE = 2  # times the gap that is aimed at: beyond this a coarse grid does


def effort_of(costs: Costs, table: IntervalCosts) -> int:
    """How many cells to look at: in proportion to what the memory of all stages takes to find."""
    return _EFFORT * table.final.size * len(table.choices) * costs.machine.tiles


@dataclass(frozen=True, order=True)
class _Box:
    """Splits whose longest stage and busiest link lie in these ranges, both ends included.

    None takes less than ``bound``, nor its ramps less than ``ramps``. ``stages``: the ways to
    choose each.
    """

    bound: int
    stage: tuple[int, int]
    link: tuple[int, int]
    ramps: int = field(compare=False)
    stages: tuple[StageWays, ...] = field(compare=False)


class Boxes:
    """The boxes that are open, and the best split so far."""

    def __init__(self, search: Search, least: LeastUpdate, near: float = _NEAR) -> None:
        self.search, self.least, self.near = search, least, near
        self.spent = 0
        self.open: list[_Box] = []
        self.aside: list[int] = []  # bounds of boxes that cannot be halved any further
        stages = search.everything.stages
        if not all(map(len, stages)):
            return
        span = search.bottleneck, search.table.most
        box = _Box(least.bound, span, (0, _most_link(stages)), 0, stages)
        # first those near the least bottleneck, for a better split to hold the others against
        near = 2 * _WIDE * int(self.near * least.total) // max(1, search.weights.main)
        self._look_at(replace(box, stage=(span[0], min(span[1], span[0] + near))))
        self.open = []
        self._add(box)

    @property
    def target(self) -> int:
        """A bound that is near enough to the best split: boxes with this need no look."""
        return int(self.least.total * (1 - self.near))

    @property
    def floor(self) -> int:
        """No split takes less."""
        left = [box.bound for box in self.open[:1]]
        lowest = min([self.target, *left, *self.aside])
        return min(self.least.total, max(self.least.bound, lowest))

    def narrowed(self, effort: int) -> LeastUpdate:
        """Look at boxes until the gap is near enough, or this many cells were looked at."""
        while self.open and self.open[0].bound < self.target and self.spent < effort:
            self._look_at(heapq.heappop(self.open))
        return replace(self.least, bound=self.floor)

    def _add(self, box: _Box) -> None:
        bound = self.search.bound_of(box.stage[0], box.link[0], box.ramps)
        box = replace(box, bound=max(box.bound, bound))
        if box.bound < self.target:
            heapq.heappush(self.open, box)

    def _look_at(self, box: _Box) -> None:
        search, blocks = self.search, self.search.count
        inside = [
            one.where(np.flatnonzero((one.both <= box.stage[1]) & (one.link <= box.link[1])))
            for one in box.stages
        ]
        stages = connected(inside, blocks)
        self.spent += sum(map(len, box.stages))
        if not all(map(len, stages)):
            return
        stage, link = self._ranges(stages, (box.stage[0], box.link[0]))
        if search.bound_of(stage[0], link[0], box.ramps) >= self.target:
            return
        ramps = self._ramps(stages, self._cells(box, sum(map(len, stages))))
        box = _Box(box.bound, stage, link, max(box.ramps, ramps.whole), stages)
        bound = max(box.bound, search.bound_of(stage[0], link[0], box.ramps))
        if bound >= self.target:
            return
        box = self._trimmed(replace(box, bound=bound))
        within = replace(Within.of(stages, blocks, (stage[0], link[0])), ramps=ramps)
        found = search.run(self.least, _WAYS, within, self.target)
        self.spent += sum(map(len, found.kept)) * _OF_A_PART
        bound = max(bound, found.update.bound)
        self.least = replace(found.update, bound=self.least.bound)
        kept = tuple(one.where(rows) for one, rows in zip(stages, found.kept, strict=True))
        self._halve(replace(box, bound=bound, stages=kept))

    def _ramps(self, stages: tuple[StageWays, ...], cells: int) -> LeastRamps:
        self.spent += sum(map(len, stages)) * (cells + _OF_A_WAY)
        return least_ramps(stages, self.search.count, cells)

    def _ranges(
        self, stages: tuple[StageWays, ...], least: tuple[int, int]
    ) -> tuple[tuple[int, int], tuple[int, int]]:
        """The lengths that the longest stage and the busiest link may have.

        ``least``: what is known of either.
        """
        blocks = self.search.count
        longest, busiest = (
            least_of_rest(stages, values, blocks)[0][0]
            for values in ([one.both for one in stages], [one.link for one in stages])
        )
        low = max(least[0], self.search.bottleneck, int(longest)), max(least[1], int(busiest))
        high = (
            max(int(one.both.max()) for one in stages),
            _most_link(stages),
        )
        return (low[0], max(low[0], high[0])), (low[1], max(low[1], high[1]))

    def _trimmed(self, box: _Box) -> _Box:
        """Without lengths of the longest stage that are too much already."""
        each = self.search.weights.main
        spare = self.target - self.search.bound_of(box.stage[0], box.link[0], box.ramps)
        return replace(box, stage=(box.stage[0], min(box.stage[1], box.stage[0] + spare // each)))

    def _spans(self, box: _Box) -> dict[str, int]:
        """By how much the lengths of the stage and the link change the bound of a box."""
        of = self.search.bound_of
        low = of(box.stage[0], box.link[0], 0)
        return {
            "stage": of(box.stage[1], box.link[0], 0) - low,
            "link": of(box.stage[0], box.link[1], 0) - low,
        }

    def _cells(self, box: _Box, ways: int) -> int:
        """Of the grid of a box with so many ways to choose its stages: few in a wide one."""
        if self._spans(box)["stage"] > _WIDE * self.near * self.least.total:
            return _LEAST_CELLS
        return min(_CELLS, max(_LEAST_CELLS, _CELLS_OF_ALL // ways))

    def _halve(self, box: _Box) -> None:
        spans = self._spans(box)
        which = max(spans, key=spans.__getitem__)
        low, high = box.stage if which == "stage" else box.link
        if low >= high:  # splits that differ in their ramps only
            self.aside.append(box.bound)
            return
        middle = (low + high) // 2
        for half in ((low, middle), (middle + 1, high)):
            self._add(replace(box, stage=half) if which == "stage" else replace(box, link=half))


def _most_link(stages: tuple[StageWays, ...]) -> int:
    return max(int(one.link.max()) for one in stages)
