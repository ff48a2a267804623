"""The split with the least cycles of a whole weight update, and a bound for all others.

The search splits the first Blocks, stage by stage, and keeps every way to continue that a lower
bound does not rule out: what the stages so far take in the ramps and, for those to come, the least
bottleneck by dynamic programming. If few enough ways remain, the best is optimal. Else nearly alike
ways are merged into one as good as the best of them in every respect, whose best bounds all splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import comb
from typing import Self

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_columns import sums_between
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.interval_costs import INFINITE, IntervalCosts, Rows, interval_costs
from ipuscope.planner.predict.interval_memory import intervals
from ipuscope.planner.predict.many_splits import (
    ManySplits,
    assignment_cycles,
    copies_bound,
    total_cycles,
)
from ipuscope.planner.predict.what_if import Assignment, holds, what_if
from ipuscope.planner.search.update_bounds import (
    PipelineWeights,
    fixed_cycles,
    least_copies,
    least_weight_update,
    longest_within,
    may_stay,
)

MOST_APART = 400_000  # ways x stages up to which none need go on as one
_WAYS = 1_000  # kept at a time at the least
_CELLS = 4_000_000  # of way x stage x Block that are looked at where some go on as one
_TRIED = 2_000  # of the ways at the end, laid out where they stand for others
_AT_A_TIME = 1_000  # of them, the most promising first
_TRIED_SHARING = 100  # ... and stages share IPUs, so that there is no closed form


@dataclass(frozen=True)
class LeastUpdate:
    """A split, its cycles an update, and a lower ``bound`` for all splits; equal: proven best."""

    assignment: Assignment
    total: int
    bound: int


def least_update(
    costs: Costs,
    current: Assignment,
    choices: Sequence[Choice],
    together: Sequence[Sequence[int]] = (),
    bottleneck: int = 0,
) -> LeastUpdate:
    """The quickest split found onto the IPUs of ``current`` that fits, with a bound on all others.

    ``choices``: ways of saving memory that each stage may take; ``together``: groups of Blocks for
    one IPU; ``bottleneck``: a lower bound on the busiest IPU's cycles, over all splits.
    """
    least = LeastUpdate(current, assignment_cycles(costs, current), 0)
    most = longest_within(costs, current.ipus, least.total, choices)
    apart = len(set(current.ipus)) == len(current.ipus)
    table = interval_costs(costs, current.ipus, choices, most, together if apart else ())
    search = Search(costs, table, current.ipus, together, bottleneck)
    ways, cells = MOST_APART // search.stages, table.final.shape[1] * search.stages
    if not search.few(ways):
        ways = max(_WAYS, min(ways, _CELLS // cells))
    return search.run(least, ways, least.total)


@dataclass(frozen=True)
class _Rest:
    """Bounds on stages k and later by their first Block; `INFINITE`: no split."""

    before: int  # the Block before the first with which they may begin
    # int64[4, Block + 1]: the least that the longest of them can be, bytes of the busiest link,
    # cycles of the longest weight update, the sum over them of the longest from each on
    bounds: np.ndarray

    def of(self, bound: int, first: np.ndarray) -> np.ndarray:
        """One of the bounds, by first Block."""
        return self.bounds[bound, np.clip(first - self.before, 0, self.bounds.shape[1] - 1)]


_SLOWEST, _LINK, _UPDATE, _BEHIND = range(4)  # of the bounds


@dataclass(frozen=True)
class _Columns:
    def where(self, rows: np.ndarray) -> Self:
        """Some of the rows."""
        return type(self)(*(getattr(self, one.name)[rows] for one in fields(self)))


@dataclass(frozen=True)
class _Ways(_Columns):
    """Ways to split the first Blocks; arrays over ways."""

    begin: np.ndarray  # the next Block
    forward: np.ndarray  # the most of a stage so far, as the next four
    backward: np.ndarray
    both: np.ndarray
    link: np.ndarray
    update: np.ndarray
    ramps: np.ndarray  # the least cycles that its stages so far take in ramps
    bound: np.ndarray
    choice: np.ndarray  # how its last stage saves memory
    before: np.ndarray  # the row of the way without that stage


_FIELDS = tuple(one.name for one in fields(_Ways))
# how far apart alike ways may be, in cycles or bytes: what less often counts, or for less
_ALIKE = {"forward": 1, "backward": 1, "both": 1, "link": 16, "update": 64}
_WORST = ("forward", "backward", "both", "link", "update", "ramps")


@dataclass(frozen=True)
class _Stages(_Columns):
    """The ways to choose one stage, sorted by first Block; int64[way]."""

    first: np.ndarray
    behind: np.ndarray  # the Block after its last one
    choice: np.ndarray  # the number of its way of saving memory
    forward: np.ndarray  # cycles a micro-batch
    backward: np.ndarray  # cycles a micro-batch
    link: np.ndarray  # bytes over its IPU's busier link
    update: np.ndarray  # cycles of its weight update


class Search:
    """What partial splits share: cycles of stages, int64[first, width], and bounds on the rest."""

    def __init__(
        self,
        costs: Costs,
        table: IntervalCosts,
        ipus: tuple[int, ...],
        together: Sequence[Sequence[int]],
        bottleneck: int,
    ) -> None:
        self.bottleneck, self.least_copies = bottleneck, least_copies(costs, ipus)
        self.costs, self.table, self.ipus, self.together = costs, table, ipus, together
        self.stages, self.count = len(ipus), len(costs)
        self.apart = len(set(ipus)) == self.stages
        self.weights = PipelineWeights.of(costs, ipus)
        self.first, self.last, _ = first, last, _ = intervals(*table.final.shape)
        self.cycles = [self._cycles(choice) for choice in table.choices]
        self.link = self._links()
        updates, moved = (
            sums_between(one * costs.training, first, last)
            for one in (costs.cycles.update, costs.moves)
        )
        self.updates = [updates + moved * choice.offload for choice in table.choices]
        self.rest = [_Rest(self.count - 1, np.array([[INFINITE, 0]] * 4))]
        for k in reversed(range(self.stages)):
            self.rest.insert(0, self._before(k, self.rest[0]))
        self.least_weight_update = least_weight_update(costs, ipus, table.choices)
        self.fixed = fixed_cycles(costs, ipus, table.choices) - self.least_weight_update
        work = costs.cycles.work if costs.training else costs.cycles.forward
        self.work = np.concatenate([np.cumsum(work[::-1])[::-1], [0]])

    # -- of stages ---

    def _cycles(self, choice: Choice) -> tuple[np.ndarray, np.ndarray]:
        """Forward and backward cycles of all stages but final ones."""
        costs, first, last = self.costs, self.first, self.last
        forward, backward = (
            sums_between(one, first, last) for one in (costs.cycles.forward, costs.cycles.backward)
        )
        if not costs.training:
            return forward, np.zeros_like(backward)
        if not costs.pipelined:
            return forward, backward + costs.again_at_once(first, last)
        stash = costs.stash_cycles(first, last, choice.recompute)
        again = costs.again_cycles(first, last) if choice.recompute else 0
        return forward + stash, backward + stash + again

    def _stage_cycles(self, k: int, choice: int, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        forward, backward = (cycles[rows] for cycles in self.cycles[choice])
        if k < self.stages - 1 or not (self.costs.training and self.costs.pipelined):
            return forward, backward
        forward = sums_between(self.costs.cycles.forward, self.first[rows], self.last[rows])
        return forward, self.table.final[rows] - forward

    def _links(self) -> np.ndarray:
        """A lower bound on the bytes over a stage's busier link: int64[first, width]."""
        if any(a == b for a, b in pairwise(self.ipus)):
            return np.zeros_like(self.table.final)  # some cuts are crossed by nothing
        spared = may_stay(self.costs, self.ipus)
        cuts = self.costs.cuts
        ahead = np.maximum(0, cuts.ahead - spared[0])
        back = np.maximum(0, cuts.back - spared[1])
        ahead[-1] = back[-1] = 0
        into, out_back = (np.concatenate([[0], one[:-1]])[self.first] for one in (ahead, back))
        return np.maximum(ahead[self.last] + out_back, into + back[self.last])

    def _before(self, k: int, rest: _Rest) -> _Rest:
        """The bounds on stages k and later, from those without it."""
        rows = self.table.begins[k]
        behind, link = self.last[rows] + 1, self.link[rows]
        load, update = (np.full_like(link, INFINITE) for _ in range(2))
        for number, fits in enumerate(self.table.fits(k, rows)):
            forward, backward = self._stage_cycles(k, number, rows)
            load = np.where(fits, np.minimum(load, forward + backward), load)
            update = np.where(fits, np.minimum(update, self.updates[number][rows]), update)
        outside = ~self.table.allowed[rows] | (load >= INFINITE)
        load[outside] = update[outside] = INFINITE
        longest = np.maximum(load, rest.of(_SLOWEST, behind))
        tables = (
            longest,
            np.maximum(np.where(outside, INFINITE, link), rest.of(_LINK, behind)),
            np.maximum(update, rest.of(_UPDATE, behind)),
            np.minimum(INFINITE, longest + rest.of(_BEHIND, behind)),
        )
        bounds = np.full((len(tables), len(load) + 2), INFINITE)
        for bound, table in zip(bounds, tables, strict=True):
            bound[1:-1] = table.min(axis=1, initial=INFINITE)
        return _Rest(rows.start - 1, bounds)

    def _usable(self, k: int, rows: np.ndarray) -> list[np.ndarray]:
        """Where stage k of ``rows`` fits each choice and no other is as good in every respect."""
        allowed = self.table.allowed[rows]
        lengths = [self._stage_cycles(k, c, rows) for c in range(len(self.table.choices))]
        usable: list[np.ndarray] = []
        for number, (fits, choice) in enumerate(
            zip(self.table.fits(k, rows), self.table.choices, strict=True)
        ):
            useful = fits & allowed
            for other, other_fits in enumerate(usable):
                if self.table.choices[other].offload and not choice.offload:
                    continue
                if not self.apart:
                    continue  # what two stages hold together is not known yet
                quicker = (lengths[other][0] <= lengths[number][0]) & (
                    lengths[other][1] <= lengths[number][1]
                )
                useful = useful & ~(other_fits & quicker)
            usable.append(useful)
        return usable

    def _ways(self, k: int, rows: np.ndarray) -> _Stages:
        """The ways to choose stage k that begin with one of the Blocks ``rows``, ascending."""
        pieces = []
        for number, usable in enumerate(self._usable(k, rows)):
            row, step = np.nonzero(usable)
            at = first, _ = rows[row], step
            cycles = (one[row, step] for one in self._stage_cycles(k, number, rows))
            choice = np.full(len(first), number)
            behind = first + step + 1
            pieces.append((first, behind, choice, *cycles, self.link[at], self.updates[number][at]))
        columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
        return _Stages(*columns).where(np.argsort(columns[0], kind="stable"))

    # -- bounds ---

    def _bound(self, k: int, ways: _Ways) -> np.ndarray:
        """A lower bound on any split that continues these ways, whose next stage is k."""
        at, weights, rest = ways.begin, self.weights, self.rest[k]
        slowest = np.maximum(ways.both, self.bottleneck)
        slowest = np.maximum(slowest, rest.of(_SLOWEST, at))
        link = np.maximum(ways.link, rest.of(_LINK, at))
        update = np.maximum(ways.update, self.least_weight_update)
        update = np.maximum(update, rest.of(_UPDATE, at))
        still = max(0, self.stages - 1 - k)  # stages to come in whose ramps all before them count
        ahead = np.maximum(
            still * (ways.forward + ways.backward), self.work[at] - self.table.most if still else 0
        )
        to_come = weights.ahead * ahead + weights.behind * rest.of(_BEHIND, at)
        copies = copies_bound(self.costs, np.minimum(link, 1 << 50))
        total: np.ndarray = (
            self.fixed
            + weights.main * slowest
            + ways.ramps
            + to_come
            + update
            + weights.each * np.maximum(copies, self.least_copies)
        )
        return np.where(np.maximum(slowest, to_come) < INFINITE, total, INFINITE)

    # -- the search ---

    def few(self, ways: int) -> bool:
        """Whether no stage can have more than this many ways."""
        each = len(self.table.choices) ** self.stages
        return comb(self.count - 1, self.stages - 1) * each <= ways

    def run(self, least: LeastUpdate, most: int, below: int) -> LeastUpdate:
        """A better split than ``least``, or a better bound, with at most this many ways a time.

        Ways whose bound is ``below`` or more are skipped: the bound found is at most that.
        """
        ways = _Ways(*np.zeros((len(_FIELDS), 1), dtype=np.int64))
        merged, unit, steps = False, 1, list[tuple[np.ndarray, ...]]()
        for k in range(self.stages):
            ways = self._further(k, ways, below)
            if len(ways.begin) > most:
                (ways, unit), merged = _alike(ways, most, unit), True
            steps.append((ways.begin, ways.choice, ways.before))
        floor = int(ways.bound.min(initial=below)) if merged else below
        tried = _TRIED if self.apart else _TRIED_SHARING
        rows = np.argsort(ways.bound, kind="stable")[: tried if merged else None]
        size = max(1, len(rows)) if self.costs.streams.across else _AT_A_TIME
        for at in range(0, len(rows), size):
            if ways.bound[rows[at]] >= least.total:
                break
            least = self._least_of(self._splits(rows[at : at + size], steps), least)
        return replace(least, bound=min(least.total, floor))

    def _splits(self, rows: np.ndarray, steps: list[tuple[np.ndarray, ...]]) -> ManySplits:
        """The splits of these rows of the last of ``steps``: of the ways after each stage.

        These are the next Block, how the stage saves memory, and the row of the way without it.
        """
        starts, choice = np.zeros((2, len(rows), self.stages), dtype=np.int64)
        for k in reversed(range(self.stages)):
            _, choices, before = steps[k]
            choice[:, k], rows = choices[rows], before[rows]
            starts[:, k] = steps[k - 1][0][rows] if k else 0
        return ManySplits(starts, choice, self.ipus, self.table.choices)

    def _further(self, k: int, ways: _Ways, below: int) -> _Ways:
        """The ways extended by stage k that may take less than ``below``."""
        stage = self._ways(k, np.unique(ways.begin))
        low, high = (np.searchsorted(stage.first, ways.begin, side) for side in ("left", "right"))
        row = np.repeat(np.arange(len(ways.begin)), high - low)
        skipped = np.cumsum(high - low) - (high - low)
        at = np.arange(len(row)) + (low - skipped)[row]
        longer = self._with(k, ways.where(row), stage.where(at))
        bound = np.maximum(longer.bound, self._bound(k + 1, longer))
        return replace(longer, bound=bound, before=row).where(np.flatnonzero(bound < below))

    def _with(self, k: int, ways: _Ways, stage: _Stages) -> _Ways:
        """Each of the ways with its own next stage."""
        forward = np.maximum(ways.forward, stage.forward)
        backward = np.maximum(ways.backward, stage.backward)
        both, ramps = stage.forward + stage.backward, ways.ramps
        if k < self.stages - 1:
            ramps = ramps + self.weights.ahead * (forward + backward)
        if k > 0:
            longest = np.maximum(both, self.rest[k + 1].of(_SLOWEST, stage.behind))
            ramps = ramps + self.weights.behind * longest
        return replace(
            ways,
            begin=stage.behind,
            forward=forward,
            backward=backward,
            both=np.maximum(ways.both, both),
            link=np.maximum(ways.link, stage.link),
            update=np.maximum(ways.update, stage.update),
            ramps=ramps,
            choice=stage.choice,
        )

    def _least_of(self, splits: ManySplits, least: LeastUpdate) -> LeastUpdate:
        """The quickest split that fits, among these and ``least``."""
        totals = total_cycles(self.costs, splits)
        for row in np.argsort(totals, kind="stable").tolist():
            if totals[row] >= least.total:
                break
            chosen = tuple(self.table.choices[number] for number in splits.choice[row].tolist())
            starts, named = tuple(splits.starts[row].tolist()), self.costs.named_choices(chosen)
            tried = Assignment(starts, self.ipus, named)
            if not self._fits(tried):
                continue
            total = int(totals[row])
            if self.costs.streams.across:
                total = what_if(self.costs, tried).total
            if total < least.total:
                least = replace(least, assignment=tried, total=total)
        return least

    def _fits(self, tried: Assignment) -> bool:
        """Whether the IPUs hold the split; splits with one stage per IPU were checked before."""
        if self.apart:
            return True
        stage = tried.stage_of(self.count)
        for group in self.together:
            if len({self.ipus[stage[block]] for block in group}) > 1:
                return False
        return holds(self.costs, tried)


def _alike(ways: _Ways, most: int, unit: int) -> tuple[_Ways, int]:
    """At most this many ways: nearly alike ones are merged into one as good as the best of them.

    ``unit``: cycles that may be alike, to begin with; also of the result.
    """
    unit = max(1, int(ways.both.max()) // 2048, unit // 2)
    while True:
        key = ways.begin.copy()
        for name, coarser in _ALIKE.items():
            values = getattr(ways, name)
            steps = (values - values.min()) // (coarser * unit)
            key = key * (int(steps.max()) + 1) + steps
        number = np.unique(key)
        if len(number) <= most or unit > int(ways.both.max()):
            break
        unit *= 2
    order = np.lexsort((ways.bound, key))
    begins = np.flatnonzero(np.concatenate([[True], np.diff(key[order]) > 0]))
    best = ways.where(order[begins])
    least = {name: np.minimum.reduceat(getattr(ways, name)[order], begins) for name in _WORST}
    return replace(best, **least), unit
