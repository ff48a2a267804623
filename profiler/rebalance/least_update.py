"""The split with the least cycles of a whole weight update, and a bound for all others.

Stage by stage, the search keeps every way to continue that a lower bound does not rule out. The
bound adds what the stages so far take in the ramps and, for those to come, the least bottleneck by
dynamic programming. If few enough ways remain, the best of them is optimal. If there are more,
nearly alike ways are merged into one that is as good as the best of them in every respect: no split
takes less than the best of these, and the difference is the gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import comb

import numpy as np

from profiler import schedules
from profiler.rebalance.choice import Choice
from profiler.rebalance.costs import Costs
from profiler.rebalance.interval_costs import INFINITE, IntervalCosts, interval_costs
from profiler.rebalance.many_splits import (
    ManySplits,
    assignment_cycles,
    copies_bound,
    counted_micro_batches,
    total_cycles,
)
from profiler.rebalance.tile_memory import ipu_bytes
from profiler.rebalance.what_if import Assignment, what_if

_WAYS = (1_000, 20_000)  # kept at a time where they are many: first few, then more
_CELLS = 4_000_000  # of way x stage x Block that are looked at where more are kept
_ALL = 400_000  # ways x stages up to which none need go on as one
_NEAR = 5e-4  # a gap that is small enough not to look further
_TRIED = 2_000  # of the ways at the end, laid out where they stand for others


@dataclass(frozen=True)
class LeastUpdate:
    """A split, its cycles per weight update, and ``bound``, a lower bound for all splits.

    ``bound`` equals ``total`` if the split is proven to be the best.
    """

    assignment: Assignment
    total: int
    bound: int


def least_update(
    costs: Costs,
    known: Assignment,
    choices: Sequence[Choice],
    together: Sequence[Sequence[int]] = (),
    bottleneck: int = 0,
) -> LeastUpdate:
    """The quickest split found onto the IPUs of ``known`` that fits, with a bound on all others.

    ``choices``: ways of saving memory that each stage may take; ``together``: groups of Blocks that
    must be on one IPU; ``bottleneck``: a lower bound on the cycles of the busiest IPU, over all
    splits.
    """
    least = LeastUpdate(known, assignment_cycles(costs, known), 0)
    # one stage too many Blocks in a better split: all its work is done one after the other
    most = least.total // counted_micro_batches(costs, len(known.ipus))
    apart = len(set(known.ipus)) == len(known.ipus)
    table = interval_costs(costs, len(known.ipus), choices, max(1, most), together if apart else ())
    search = _Search(costs, table, known.ipus, together, bottleneck)
    width = table.final.shape[1]
    for ways in (_ALL // len(known.ipus), *_WAYS):
        many = ways > _WAYS[0]
        if many and ways * width * len(known.ipus) > _CELLS and not search.few(ways):
            continue
        least = search.run(least, ways)
        if least.total - least.bound <= _NEAR * least.total * (least.bound < least.total):
            break
    return least


@dataclass(frozen=True)
class _Ways:
    """Ways to split the first Blocks; arrays over ways.

    ``forward``, ``backward``, ``both``, ``link``: the most of a stage so far; ``ramps``: cycles
    that its stages so far take in ramps at the least. ``starts`` and ``choice``: [way, stage].
    """

    begin: np.ndarray  # the next Block
    forward: np.ndarray
    backward: np.ndarray
    both: np.ndarray
    link: np.ndarray
    ramps: np.ndarray
    bound: np.ndarray
    starts: np.ndarray
    choice: np.ndarray

    def where(self, rows: np.ndarray) -> _Ways:
        """Some of the ways."""
        return _Ways(*(getattr(self, name)[rows] for name in _Ways.__dataclass_fields__))


_WORST = ("forward", "backward", "both", "link", "ramps")


@dataclass(frozen=True)
class _Weights:
    """The number of pipeline cycles that last as long as each kind of stage.

    ``main``: at least as long as the longest stage; ``behind``: as the longest of a stage and those
    after it, for each stage but the first; ``ahead``: as the longest forward and the longest
    backward up to each stage but the last; ``each``: as syncs and copies.
    """

    main: int
    behind: int
    ahead: int
    each: int

    @classmethod
    def of(cls, costs: Costs, ipus: Sequence[int]) -> _Weights:
        stages, count = len(ipus), counted_micro_batches(costs, len(ipus))
        if not costs.pipelined:
            order = [*ipus, *(reversed(ipus) if costs.training else ())]
            moves = sum(a != b for a, b in pairwise(order))
            return cls(0, 0, 0, count * moves)
        cycles = schedules.pipeline_cycles(stages, count, costs.training)
        if costs.training:
            return cls(count - 2 * stages + 2, 2, 1, cycles)
        return cls(count - stages + 1, 1, 1, cycles)


def fixed_cycles(costs: Costs, ipus: Sequence[int], choices: Sequence[Choice] = ()) -> int:
    """Cycles of every split onto these IPUs: syncs, the host's transfers, the weight update.

    ``choices``: ways of saving memory that stages may take (default: any).
    """
    streams, count = costs.streams, counted_micro_batches(costs, len(ipus))
    sync = costs.machine.sync if max(ipus) else 0

    def most(cycles: np.ndarray) -> int:
        largest = int(cycles.max(initial=0))
        return largest + streams.latency if largest else 0

    fixed = _Weights.of(costs, ipus).each * sync
    if not costs.pipelined:
        fixed += count * int((costs.cycles.work if costs.training else costs.cycles.forward).sum())
    elif streams.sync not in ("alone", "sides"):
        fixed += count * most(streams.stream_in)
        fixed += 0 if streams.out_once else count * most(streams.stream_out)
    if streams.out_once:
        fixed += most(streams.stream_out)
    update = costs.cycles.update
    if choices and all(choice.offload for choice in choices):
        update = update + costs.moves
    if costs.training and update.any():
        share = -(-int(update.sum()) // len(set(ipus)))
        fixed += costs.least_reduce(len(set(ipus))) + max(share, int(update.max()))
    return fixed


def least_copies(costs: Costs, ipus: Sequence[int]) -> int:
    """A lower bound on the cycles of the exchange between these IPUs, for any split onto them.

    That is a micro-batch over the widest link, plus what crosses any cut over each IPU's own links.
    """
    stages, machine = len(ipus), costs.machine
    if stages < 2 or any(a == b for a, b in pairwise(ipus)):
        return 0
    spared = _may_stay(costs, ipus)
    ahead, back = (np.maximum(0, way - spared)[:-1] for way in (costs.cuts.ahead, costs.cuts.back))
    crossed = np.sort(np.maximum(ahead, back))[stages - 2]
    least = int(copies_bound(costs, np.array([crossed]))[0])
    forward, backward = int(ahead.min()), int(back.min())
    if not forward + backward:
        return least
    rates = [machine.link_rate(a, b) for a, b in pairwise(ipus)]
    latencies = [machine.hop_latency(a, b) for a, b in pairwise(ipus)]
    for k in range(stages - 2):  # the IPUs between two others
        left, right = rates[k], rates[k + 1]
        ways = backward / left + forward / right, forward / left + backward / right
        latency = max(latencies[k], latencies[k + 1])
        least = max(least, int(np.ceil(latency + max(ways))))
    return least


def _may_stay(costs: Costs, ipus: Sequence[int]) -> np.ndarray:
    """Bytes of tied weights that may not have to cross a cut: int64[Block].

    Where each stage has an IPU of its own, a weight crosses all cuts before its last reader.
    """
    spared = np.zeros(len(costs), dtype=np.int64)
    if len(set(ipus)) == len(ipus):
        return spared
    ties = costs.cuts.ties
    for (home, *_, last), nbytes in zip(ties.blocks, ties.nbytes, strict=True):
        spared[home:last] += nbytes
    return spared


class _Search:
    """What all partial splits share: cycles of stages, and bounds on what is still to come."""

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
        self.weights = _Weights.of(costs, ipus)
        self.cycles = [self._cycles(choice) for choice in table.choices]
        self.link = self._links()
        self.usable = [self._usable(k) for k in range(self.stages)]
        self.fixed = fixed_cycles(costs, ipus, table.choices)
        self._bounds_of_the_rest()

    # -- of stages ---

    def _cycles(self, choice: Choice) -> tuple[np.ndarray, np.ndarray]:
        """Forward and backward cycles of all stages but final ones, int64[first, width] each."""
        first, last = self._intervals()
        costs = self.costs

        def sums(values: np.ndarray) -> np.ndarray:
            total = np.concatenate([[0], np.cumsum(values)])
            of_stage: np.ndarray = total[last + 1] - total[first]
            return of_stage

        forward, backward = sums(costs.cycles.forward), sums(costs.cycles.backward)
        if not costs.training:
            return forward, np.zeros_like(backward)
        if not costs.pipelined:
            return forward, backward + costs.again_at_once(first, last)
        stash = costs.stash_cycles(first, last, choice.recompute)
        again = costs.again_cycles(first, last) if choice.recompute else 0
        return forward + stash, backward + stash + again

    def _of_stage(self, k: int, choice: int) -> tuple[np.ndarray, np.ndarray]:
        if k < self.stages - 1 or not (self.costs.training and self.costs.pipelined):
            return self.cycles[choice]
        first, last = self._intervals()
        total = np.concatenate([[0], np.cumsum(self.costs.cycles.forward)])
        forward = total[last + 1] - total[first]
        return forward, self.table.final - forward

    def _intervals(self) -> tuple[np.ndarray, np.ndarray]:
        count, width = self.table.final.shape
        first = np.arange(count)[:, None]
        return first, np.minimum(first + np.arange(width)[None, :], count - 1)

    def _links(self) -> np.ndarray:
        """A lower bound on the bytes over a stage's busier link: int64[first, width]."""
        if any(a == b for a, b in pairwise(self.ipus)):
            return np.zeros_like(self.table.link)  # some cuts are crossed by nothing
        spared = _may_stay(self.costs, self.ipus)
        cuts = self.costs.cuts
        ahead, back = np.maximum(0, cuts.ahead - spared), np.maximum(0, cuts.back - spared)
        ahead[-1] = back[-1] = 0
        first, last = self._intervals()
        into = np.concatenate([[0], ahead[:-1]])[first]
        out_back = np.concatenate([[0], back[:-1]])[first]
        busier: np.ndarray = np.maximum(ahead[last] + out_back, into + back[last])
        return busier

    def _usable(self, k: int) -> list[np.ndarray]:
        """Where each choice fits as stage k and no other is at least as good in every respect."""
        allowed = self.table.allowed & (self.table.final < INFINITE)
        lengths = [self._of_stage(k, c) for c in range(len(self.table.choices))]
        usable: list[np.ndarray] = []
        for number, (fits, choice) in enumerate(
            zip(self.table.fits(k), self.table.choices, strict=True)
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

    # -- bounds ---

    def _bounds_of_the_rest(self) -> None:
        """Lower bounds for stages k and later, by the Block with which they begin: [k][first].

        ``slowest``: on the longest stage; ``links``: on the bytes of the busiest link; ``behind``:
        the sum over the stages of the longest from each on; ``work``: cycles of all.
        """
        count, width = self.table.final.shape
        _, last = self._intervals()
        after = last + 1
        end = np.full(count + 1, INFINITE)
        end[count] = 0
        self.slowest, self.links, self.behind = ([end] for _ in range(3))
        for k in reversed(range(self.stages)):
            both = np.full((count, width), INFINITE)
            for choice, usable in enumerate(self.usable[k]):
                forward, backward = self._of_stage(k, choice)
                both = np.where(usable, np.minimum(both, forward + backward), both)
            linked = np.where(both < INFINITE, self.link, INFINITE)
            from_here = np.maximum(both, self.slowest[0][after])
            busiest = np.maximum(linked, self.links[0][after])
            each = np.minimum(INFINITE, from_here + self.behind[0][after])
            none = np.full(1, INFINITE)
            self.slowest.insert(0, np.concatenate([from_here.min(axis=1), none]))
            self.links.insert(0, np.concatenate([busiest.min(axis=1), none]))
            self.behind.insert(0, np.concatenate([each.min(axis=1), none]))
        work = self.costs.cycles.work if self.costs.training else self.costs.cycles.forward
        self.work = np.concatenate([np.cumsum(work[::-1])[::-1], [0]])

    def _bound(self, k: int, ways: _Ways) -> np.ndarray:
        """A lower bound on any split that continues these ways, whose next stage is k."""
        at, weights = ways.begin, self.weights
        slowest = np.maximum(np.maximum(ways.both, self.bottleneck), self.slowest[k][at])
        link = np.maximum(ways.link, self.links[k][at])
        still = max(0, self.stages - 1 - k)  # stages to come in whose ramps all before them count
        ahead = np.maximum(
            still * (ways.forward + ways.backward),
            self.work[at] - self.table.most if still else 0,
        )
        behind = self.behind[k][at] if k < self.stages else 0
        copies = copies_bound(self.costs, np.minimum(link, 1 << 50))
        total: np.ndarray = (
            self.fixed
            + weights.main * slowest
            + ways.ramps
            + weights.ahead * ahead
            + weights.behind * behind
            + weights.each * np.maximum(copies, self.least_copies)
        )
        return np.where(slowest < INFINITE, total, INFINITE)

    # -- the search ---

    def few(self, ways: int) -> bool:
        """Whether no stage can have more than this many ways."""
        each = len(self.table.choices) ** self.stages
        return comb(self.count - 1, self.stages - 1) * each <= ways

    def run(self, least: LeastUpdate, most: int) -> LeastUpdate:
        """A better split than ``found``, or a better bound, with at most this many ways a time."""
        zero = np.zeros(1, dtype=np.int64)
        none = np.zeros((1, 0), dtype=np.int32)
        ways = _Ways(zero, zero, zero, zero, zero, zero, zero, none, none)
        merged = False
        for k in range(self.stages):
            ways = self._further(k, ways, least.total)
            if len(ways.begin) > most:
                ways, merged = _alike(ways, most), True
        floor = int(ways.bound.min(initial=least.total)) if merged else least.total
        if merged:
            ways = ways.where(np.argsort(ways.bound, kind="stable")[:_TRIED])
        least = self._least_of(ways, least)
        return replace(least, bound=max(least.bound, min(least.total, floor)))

    def _further(self, k: int, ways: _Ways, known: int) -> _Ways:
        """The ways extended by stage k that may take less than ``known`` cycles."""
        pieces: list[_Ways] = []
        for choice, usable in enumerate(self.usable[k]):
            ends = self._ends(k, usable)
            each = ends[ways.begin]
            row, step = np.nonzero(each)
            pieces.append(self._with(k, ways, row, step, choice, known))
        return _Ways(
            *(
                np.concatenate([getattr(piece, name) for piece in pieces])
                for name in _Ways.__dataclass_fields__
            )
        )

    def _ends(self, k: int, usable: np.ndarray) -> np.ndarray:
        """Where stage k may end, for each first Block, so that the stages after it fit."""
        _, last = self._intervals()
        ends = usable & (self.slowest[k + 1][last + 1] < INFINITE)
        return np.concatenate([ends, np.zeros((1, ends.shape[1]), dtype=bool)])

    def _with(
        self, k: int, ways: _Ways, row: np.ndarray, step: np.ndarray, choice: int, known: int
    ) -> _Ways:
        """Ways ``row``, each with a stage that spans ``step`` Blocks after its first."""
        first = ways.begin[row]
        forward, backward = (cycles[first, step] for cycles in self._of_stage(k, choice))
        both, weights, behind = forward + backward, self.weights, first + step + 1
        longest_forward = np.maximum(ways.forward[row], forward)
        longest_backward = np.maximum(ways.backward[row], backward)
        ramps = ways.ramps[row]
        if k < self.stages - 1:
            ramps = ramps + weights.ahead * (longest_forward + longest_backward)
        if k > 0:
            ramps = ramps + weights.behind * np.maximum(both, self.slowest[k + 1][behind])
        longer = _Ways(
            behind,
            longest_forward,
            longest_backward,
            np.maximum(ways.both[row], both),
            np.maximum(ways.link[row], self.link[first, step]),
            ramps,
            ways.bound[row],
            first,
            row,
        )
        bound = np.maximum(longer.bound, self._bound(k + 1, longer))
        open_states = np.flatnonzero(bound < known)
        chosen = np.full((len(open_states), 1), choice, dtype=np.int32)
        begins = first[open_states, None].astype(np.int32)
        return replace(
            replace(longer, bound=bound, starts=ways.starts[row], choice=ways.choice[row]).where(
                open_states
            ),
            starts=np.concatenate([ways.starts[row[open_states]], begins], axis=1),
            choice=np.concatenate([ways.choice[row[open_states]], chosen], axis=1),
        )

    def _least_of(self, ways: _Ways, least: LeastUpdate) -> LeastUpdate:
        """The quickest split that fits, among these and ``found``."""
        splits = ManySplits(
            ways.starts.astype(np.int64),
            ways.choice.astype(np.int64),
            self.ipus,
            self.table.choices,
        )
        totals = total_cycles(self.costs, splits)
        for row in np.argsort(totals, kind="stable").tolist():
            if totals[row] >= least.total:
                break
            tried = self._assignment(ways.starts[row], ways.choice[row])
            if not self._fits(tried):
                continue
            total = int(totals[row])
            if self.costs.streams.across:
                total = what_if(self.costs, tried).total
            if total < least.total:
                least = replace(least, assignment=tried, total=total)
        return least

    def _assignment(self, starts: np.ndarray, choice: np.ndarray) -> Assignment:
        chosen = tuple(self.table.choices[number] for number in choice.tolist())
        own = (Choice.profiled(self.costs),) * self.stages
        return Assignment(tuple(starts.tolist()), self.ipus, () if chosen == own else chosen)

    def _fits(self, tried: Assignment) -> bool:
        """Whether the IPUs hold the split; splits with one stage per IPU were checked before."""
        if self.apart:
            return True
        stage = tried.stage_of(self.count)
        for group in self.together:
            if len({self.ipus[stage[block]] for block in group}) > 1:
                return False
        parts = tried.parts(self.costs)
        for ipu in set(self.ipus):
            own_parts = [part for part, where in zip(parts, self.ipus, strict=True) if where == ipu]
            if len(own_parts) > 1 and (
                int(ipu_bytes(self.costs, own_parts).max()) > self.costs.machine.bytes_per_tile
            ):
                return False
        return True


def _alike(ways: _Ways, most: int) -> _Ways:
    """At most this many ways: nearly alike ones are merged into one as good as the best of them."""
    unit = max(1, int(ways.both.max()) // 2048)
    while True:
        key = ways.begin.copy()
        for name in ("forward", "backward", "both", "link"):
            values = getattr(ways, name)
            steps = (values - values.min()) // (unit if name != "link" else 16 * unit)
            key = key * (int(steps.max()) + 1) + steps
        number = np.unique(key)
        if len(number) <= most or unit > int(ways.both.max()):
            break
        unit *= 2
    order = np.lexsort((ways.bound, key))
    begins = np.flatnonzero(np.concatenate([[True], np.diff(key[order]) > 0]))
    best = ways.where(order[begins])
    least = {name: np.minimum.reduceat(getattr(ways, name)[order], begins) for name in _WORST}
    return replace(best, **least)
