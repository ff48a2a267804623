"""Narrows the gap between a split and the least that any split takes, box by box.

A box is the splits whose longest stage, busiest link and longest weight update lie in a range.
Within a narrow one far fewer ways to choose each stage are possible, and `least_ramps` bounds what
is to come far better, so that few partial splits need to be kept. The box with the lowest bound is
looked at first; where a gap remains it is halved, and its halves look only at what was kept.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, fields, replace

import numpy as np

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.interval_costs import IntervalCosts
from ipuscope.planner.predict.what_if import what_if
from ipuscope.planner.search.least_ramps import LeastRamps, least_ramps
from ipuscope.planner.search.partial_splits import LeastUpdate, Lengths, Search, Within
from ipuscope.planner.search.stage_ways import StageWays, connected, least_of_rest

_NEAR = 9e-4  # the share by which another split may be quicker
_WAYS = 1_000  # kept at a time
_CELLS = 6_000  # of the grid of a box whose stages are few
_LEAST_CELLS = 500
_CELLS_OF_ALL = 20_000_000  # over all ways to choose a stage
_OF_A_WAY = 3_000  # cells that take as long as to look at a way to choose a stage
_OF_A_PART = 400  # ... and to look at a split of the first Blocks
_EFFORT = 25  # cells for each byte of the memory of all stages
_NARROW = 4  # parts of the gap that is aimed at, within which more ways are kept apart
_MOST_WAYS = 64_000
_LEAST_EFFORT = 50_000_000  # cells
_WIDE = 2  # times the gap that is aimed at: beyond this a coarse grid does


def effort_of(costs: Costs, table: IntervalCosts) -> int:
    """How many cells to look at: in proportion to what the memory of all stages takes to find."""
    return max(_LEAST_EFFORT, _EFFORT * table.final.size * len(table.choices) * costs.machine.tiles)


@dataclass(frozen=True, order=True)
class _Box:
    """Splits whose `Lengths` are ``low`` to ``high``, both included.

    None takes less than ``bound``, nor its ramps less than ``ramps``. ``stages``: the ways to
    choose each. ``ways``: partial splits that are kept at a time.
    """

    bound: int
    low: Lengths = field(compare=False)
    high: Lengths = field(compare=False)
    ramps: int = field(compare=False)
    stages: tuple[StageWays, ...] = field(compare=False)
    ways: int = field(compare=False, default=_WAYS)


class Boxes:
    """The boxes that are open, and the best split so far."""

    def __init__(self, search: Search, least: LeastUpdate, near: float = _NEAR) -> None:
        self.search, self.least, self.near = search, least, near
        self.spent = 0
        self.open: list[_Box] = []
        self.aside: list[int] = []  # bounds of boxes that are not looked at again
        stages = search.everything.stages
        if not all(map(len, stages)):
            return
        low, high = self._range(stages, Lengths())
        high = replace(high, stage=max(low.stage, search.table.most))
        box = _Box(least.bound, low, high, 0, stages)
        # first those near the least bottleneck, for a better split to hold the others against
        near_stage = low.stage + 2 * _WIDE * self._near // max(1, search.weights.main)
        if near_stage < high.stage:
            self._look_at(replace(box, high=replace(high, stage=near_stage)))
            self.open, self.aside = [], []
        self._add(box)

    @property
    def _near(self) -> int:
        return int(self.least.total * self.near)

    @property
    def target(self) -> int:
        """A bound that is near enough to the best split: boxes with this need no look."""
        return self.least.total - self._near

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
        box = replace(box, bound=max(box.bound, self.search.bound_of(box.low, box.ramps)))
        if box.bound < self.target:
            heapq.heappush(self.open, box)

    def _look_at(self, box: _Box) -> None:
        search, high = self.search, box.high
        inside = [
            one.where(
                np.flatnonzero(
                    (one.both <= high.stage) & (one.link <= high.link) & (one.update <= high.update)
                )
            )
            for one in box.stages
        ]
        stages = connected(inside, search.count)
        self.spent += sum(map(len, box.stages))
        if not all(map(len, stages)):
            return
        low, high = self._range(stages, box.low)
        box = replace(box, low=low, high=high, stages=stages)
        if search.bound_of(low, box.ramps) >= self.target:
            return
        ramps = self._ramps(stages, self._cells(box))
        box = replace(box, ramps=max(box.ramps, ramps.whole))
        bound = max(box.bound, search.bound_of(low, box.ramps))
        if bound >= self.target:
            return
        within = replace(Within.of(stages, search.count), least=low, ramps=ramps)
        found = search.run(self.least, box.ways, within, self.target)
        self.spent += sum(map(len, found.kept)) * _OF_A_PART * box.ways // _WAYS
        bound = max(bound, found.update.bound)
        self.least = replace(found.update, bound=self.least.bound)
        kept = tuple(one.where(rows) for one, rows in zip(stages, found.kept, strict=True))
        self._further(replace(box, bound=bound, stages=kept))

    def _ramps(self, stages: tuple[StageWays, ...], cells: int) -> LeastRamps:
        self.spent += sum(map(len, stages)) * (cells + _OF_A_WAY)
        return least_ramps(
            stages, self.search.count, cells, self.search.weights.behind, self._longest_so_far()
        )

    def _longest_so_far(self) -> tuple[list[int], list[int]]:
        """The longest forwards, and backwards, of the best split up to each stage but the last."""
        best = what_if(self.search.costs, self.least.assignment)
        ways = best.forward, best.backward or (0,) * len(best.forward)
        ahead, back = (np.maximum.accumulate(way[:-1]).tolist() for way in ways)
        return ahead, back

    def _range(self, stages: tuple[StageWays, ...], least: Lengths) -> tuple[Lengths, Lengths]:
        """The least and the most that the lengths of a split may be, and no less than ``least``."""
        lengths = {
            "stage": [one.both for one in stages],
            "link": [one.link for one in stages],
            "update": [one.update for one in stages],
        }
        known = replace(least, stage=max(least.stage, self.search.bottleneck))
        low, high = {}, {}
        for name, values in lengths.items():
            some_split = int(least_of_rest(stages, values, self.search.count)[0][0])
            low[name] = max(getattr(known, name), some_split)
            high[name] = max(low[name], *(int(one.max()) for one in values))
        return Lengths(**low), Lengths(**high)

    def _spans(self, box: _Box) -> dict[str, int]:
        """By how much each length changes the bound of a box."""
        of, low = self.search.bound_of, self.search.bound_of(box.low, 0)
        names = [one.name for one in fields(Lengths)]
        return {
            name: of(replace(box.low, **{name: getattr(box.high, name)}), 0) - low for name in names
        }

    def _cells(self, box: _Box) -> int:
        """Of the grid of a box: few in a wide one."""
        if max(self._spans(box).values()) > _WIDE * self._near:
            return _LEAST_CELLS
        return min(_CELLS, max(_LEAST_CELLS, _CELLS_OF_ALL // sum(map(len, box.stages))))

    def _further(self, box: _Box) -> None:
        """Halve a box where its longest length makes most, or keep more apart in a narrow one."""
        if box.bound >= self.target:
            return
        spans = self._spans(box)
        which = max(spans, key=spans.__getitem__)
        low, high = getattr(box.low, which), getattr(box.high, which)
        if spans[which] > self._near // _NARROW and low < high:
            middle = (low + high) // 2
            self._add(replace(box, high=replace(box.high, **{which: middle})))
            self._add(replace(box, low=replace(box.low, **{which: middle + 1})))
        elif box.ways < _MOST_WAYS:
            self._add(replace(box, ways=4 * box.ways))
        else:
            self.aside.append(box.bound)
