"""Stages as intervals of Blocks, and the split whose largest cost is least.

Costs of intervals are int64[first, width]: what a stage of Blocks ``first .. first + width`` costs.
Dynamic programming over them finds the least maximum exactly for any cost of (stage, first Block,
last Block).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import surely_passing
from ipuscope.planner.predict.interval_memory import FULL, IntervalMemory, interval_memory
from ipuscope.profiler.timeline.closed_forms import stash_depth

INFINITE = int(np.iinfo(np.int64).max // 4)
_LEAST_WIDTH = 8  # Blocks: stages of so many are looked at together


def least_maximum(
    cost: Callable[[int], np.ndarray], stages: int
) -> tuple[int, tuple[int, ...]] | None:
    """The least maximum of ``cost(k)`` over the stages of a split, and the stages' first Blocks.

    ``cost(k)`` has the cost of all intervals, as stage k.

    None where every split has an `INFINITE` stage.
    """
    count, width = cost(0).shape
    last = np.arange(count)[:, None]
    first = last - np.arange(width)[None, :]
    at = np.maximum(first, 0) * width + np.arange(width)[None, :]
    behind = np.maximum(
        first, 0
    )  # the entry before Block 0 stands for "no split", as that before a first one < 0
    none = np.full(1, INFINITE, dtype=np.int64)
    best = [np.concatenate([none, np.where(first == 0, cost(0).ravel()[at], INFINITE).min(axis=1)])]
    for k in range(1, stages):
        worst = np.maximum(best[-1].take(behind), cost(k).ravel().take(at))
        best.append(np.concatenate([none, worst.min(axis=1)]))
    value = int(best[-1][count])
    if value >= INFINITE:
        return None
    starts, end = [], count - 1
    for k in range(stages - 1, 0, -1):
        begins = np.arange(max(1, end - width + 1), end + 1)
        worst = np.maximum(best[k - 1][begins], cost(k)[begins, end - begins])
        starts.append(int(begins[worst.argmin()]))
        end = starts[-1] - 1
    return value, (0, *reversed(starts))


@dataclass(frozen=True)
class IntervalCosts:
    """Costs of all stages of at most ``width`` Blocks, for each allowed way of saving memory.

    ``ipus``: the IPU of each stage. Memory is exact where they are all different. Where some come
    again it is at most what the IPU holds: who looks at whole splits decides.
    """

    costs: Costs
    ipus: tuple[int, ...]
    choices: tuple[Choice, ...]
    early: tuple[
        np.ndarray, ...
    ]  # cycles a micro-batch, one a choice, of a stage that another follows
    final: np.ndarray
    memory: tuple[IntervalMemory, ...] | None  # a choice each; None: memory is not looked at
    in_company: tuple[IntervalMemory, ...]  # of stages whose IPUs come again; empty if none do
    passed: np.ndarray  # bool[stage]: whether tied weights pass it, where that is sure
    link: np.ndarray  # bytes over the busier way of the IPU's link
    allowed: np.ndarray  # bool: keeps Blocks together that must be
    most: int  # cycles: stages that take as many are all in

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.ipus)

    def load(self, k: int) -> np.ndarray:
        """Cycles of stage k with the quickest choice that fits; INFINITE if none does."""
        if k == self.stages - 1:
            shortest = np.where(self._fits_somehow(k), self.final, INFINITE)
        else:
            shortest = np.full_like(self.final, INFINITE)
            for cycles, fits in zip(self.early, self.fits(k), strict=True):
                shortest = np.where(fits, np.minimum(shortest, cycles), shortest)
        return np.where(self.allowed, shortest, INFINITE)

    def choice(self, k: int, first: int, last: int) -> Choice:
        """The quickest choice with which stage k of these Blocks fits; the first of equal ones."""
        at = (first, last - first)
        cycles = [self.final] * len(self.choices) if k == self.stages - 1 else self.early
        length = [
            int(c[at]) if fits[at] else INFINITE
            for c, fits in zip(cycles, self.fits(k), strict=True)
        ]
        return self.choices[int(np.argmin(length))]

    def fits(self, k: int) -> list[np.ndarray]:
        """Where the tiles of stage k hold it, bool[first, width] of each choice."""
        if self.memory is None:
            return [self.final < INFINITE] * len(self.choices)
        depth = depth_of(self.costs, self.stages, k)
        once = self.ipus.count(self.ipus[k]) == 1
        memories = self.memory if once else self.in_company
        if not self.passed[k]:
            memories = tuple(one.without_passing for one in memories)
        limit, inside = self.costs.machine.bytes_per_tile, self.final < INFINITE
        fits = [(one.fullest(depth) <= limit) & inside for one in memories]
        for (first, last, choice), *others in self.costs.too_full:
            if once and not others and choice in self.choices:
                fits[self.choices.index(choice)][first, last - first : last - first + 1] = False
        return fits

    def _fits_somehow(self, k: int) -> np.ndarray:
        fits: np.ndarray = np.logical_or.reduce(self.fits(k))
        return fits


def interval_costs(
    costs: Costs,
    ipus: Sequence[int],
    choices: Sequence[Choice],
    most: int,
    together: Sequence[Sequence[int]] = (),
    memory: bool = True,
) -> IntervalCosts:
    """Costs of all stages on these IPUs that take at most ``most`` cycles.

    ``together``: groups of Blocks that must be in one stage.
    """
    count, width = len(costs), _width(costs, most)
    first = np.arange(count)[:, None]
    last = first + np.arange(width)[None, :]
    inside = last < count
    last = np.minimum(last, count - 1)
    early, final = cycles_of_intervals(costs, choices, width)
    memories, in_company = None, tuple[IntervalMemory, ...]()
    apart = len(set(ipus)) == len(ipus)
    if memory:
        deepest = depth_of(costs, len(ipus), 0)
        stash = max(
            int(costs.stash_bytes(np.arange(count), count - 1, c.recompute).max()) for c in choices
        )
        enough = -(-deepest * stash // costs.machine.tiles)
        memories = tuple(_memory(costs, width, one, enough) for one in choices)
        if not apart:
            in_company = tuple(
                _memory(costs, width, one, enough, in_company=True) for one in choices
            )
    allowed = np.ones_like(inside)
    for group in together:
        member = np.concatenate([[0], np.cumsum(np.isin(np.arange(count), group))])
        here = member[last + 1] - member[first]
        allowed &= (here == 0) | (here == len(set(group)))
    ahead, back = costs.cuts.ahead.copy(), costs.cuts.back.copy()
    ahead[-1] = back[-1] = 0
    into = np.concatenate([[0], ahead[:-1]])[first]
    out_back = np.concatenate([[0], back[:-1]])[first]
    link = np.where(inside, np.maximum(ahead[last] + out_back, into + back[last]), INFINITE)
    passed = np.ones(len(ipus), dtype=bool)
    if not apart:
        passed[:] = surely_passing(costs, ipus).any(axis=1)
    return IntervalCosts(
        costs,
        tuple(ipus),
        tuple(choices),
        early,
        final,
        memories,
        in_company,
        passed,
        link,
        allowed,
        most,
    )


def _memory(
    costs: Costs,
    width: int,
    choice: Choice,
    enough: int | None,
    in_company: bool = False,
) -> IntervalMemory:
    """`interval_memory`, taken from an earlier table where possible.

    A table that leaves more room for a stash, or is exact, also answers for less room; a wider one
    contains the narrower.
    """
    key = "interval_memory", choice, costs.machine.bytes_per_tile, in_company
    least_enough = INFINITE if enough is None else enough
    known_width, known_enough, table = costs.known.get(key, (0, 0, None))
    if table is None or known_width < width or known_enough < least_enough:
        # Who asked for wider ones asks for still wider ones. A few Blocks more cost next to
        # nothing: stages that are too full are not looked at.
        wide = known_width
        if width > known_width:
            full = table is not None and bool((table.used[:, -1] >= FULL).all())
            wider = len(costs) if full else 2 * known_width
            wide = min(len(costs), max(width + width // 6, wider, _LEAST_WIDTH))
        table = interval_memory(costs, wide, choice, enough, in_company)
        costs.known[key] = wide, INFINITE if table.exact else least_enough, table
    narrow: IntervalMemory = table.narrowed(width)
    return narrow


def memory_of_all(
    costs: Costs, choice: Choice, most: int | None = None, in_company: bool = False
) -> IntervalMemory:
    """Exact memory of all stages, or of those that take at most ``most`` cycles.

    ``in_company``: the least that IPUs with these stages hold.
    """
    width = len(costs) if most is None else _width(costs, most)
    return _memory(costs, width, choice, None, in_company)


def _width(costs: Costs, most: int) -> int:
    """The largest number of Blocks in a stage that takes at most ``most`` cycles."""
    total = np.concatenate([[0], np.cumsum(costs.cycles.work)])
    reach = np.searchsorted(total, total[:-1] + most, side="right") - 1 - np.arange(len(costs))
    return max(1, min(len(costs), int(reach.max())))


def cycles_of_intervals(
    costs: Costs, choices: Sequence[Choice], width: int
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Cycles of all stages that others follow, one array per choice, and of all final stages."""
    count = len(costs)
    total = np.concatenate([[0], np.cumsum(costs.cycles.work)])
    first = np.arange(count)[:, None]
    last = first + np.arange(width)[None, :]
    inside = last < count
    last = np.minimum(last, count - 1)
    own = total[last + 1] - total[first]
    final = own + costs.again_at_once(first, last)
    early = tuple(
        np.where(inside, _early(costs, choice, first, last, own, final), INFINITE)
        for choice in choices
    )
    return early, np.where(inside, final, INFINITE)


def _early(
    costs: Costs,
    choice: Choice,
    first: np.ndarray,
    last: np.ndarray,
    own: np.ndarray,
    final: np.ndarray,
) -> np.ndarray:
    """Cycles of stages that others follow: `what_if.stage_cycles` of all of them at once."""
    if not costs.pipelined or not costs.training:
        return final
    cycles: np.ndarray = own + 2 * costs.stash_cycles(first, last, choice.recompute)
    return cycles + costs.again_cycles(first, last) if choice.recompute else cycles


def depth_of(costs: Costs, stages: int, k: int) -> int:
    """Micro-batches that stage k stashes."""
    return stash_depth(stages, k) if costs.training and costs.pipelined else 0


def copy_cycles(costs: Costs, link: int) -> int:
    """Cycles of the exchange between IPUs when the busiest moves this many bytes one way."""
    return (
        int(np.ceil(costs.machine.link_latency + link / costs.machine.link_bytes_per_cycle))
        if link
        else 0
    )
