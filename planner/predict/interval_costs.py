"""Stages as intervals of Blocks, and the split whose largest cost is least.

Costs are int64[first, width], of stages of Blocks ``first .. first + width``. Dynamic programming
finds the least maximum exactly for any cost of (stage, first Block, last Block).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_columns import sums_between
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import surely_passing
from ipuscope.planner.predict.interval_memory import (
    FULL,
    IntervalMemory,
    interval_memory,
    intervals,
    with_margin,
)
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.timeline.closed_forms import stash_depth

Rows = slice | np.ndarray  # of first Blocks
INFINITE = int(np.iinfo(np.int64).max // 4)
_LEAST_WIDTH = 8  # Blocks: stages of so many are looked at together


def least_maximum(
    cost: Callable[[int, Rows], np.ndarray], stages: int, begins: Sequence[slice] | None = None
) -> tuple[int, tuple[int, ...]] | None:
    """The least maximum of ``cost(k)`` over the stages of a split, and the stages' first Blocks.

    ``cost(k, rows)``: of intervals that begin with these Blocks, as stage k; ``begins``: the Blocks
    with which each stage may begin (default: any). None where every split has an `INFINITE` stage.
    """
    count, width = cost(0, slice(None)).shape
    behind = np.minimum(np.arange(count)[:, None] + np.arange(1, width + 1), count)
    rest = [np.full(count + 1, INFINITE)]  # the least from stage k on, by its first Block
    rest[0][count] = 0
    for k in reversed(range(stages)):
        rows = begins[k] if begins is not None else slice(0, count)
        least = np.full(count + 1, INFINITE)
        least[rows] = np.maximum(cost(k, rows), rest[0][behind[rows]]).min(axis=1, initial=INFINITE)
        rest.insert(0, least)
    if rest[0][0] >= INFINITE:
        return None
    starts = [0]
    for k in range(stages - 1):
        rows = slice(starts[-1], starts[-1] + 1)
        worst = np.maximum(cost(k, rows), rest[k + 1][behind[rows]])
        starts.append(starts[-1] + 1 + int(worst.argmin()))
    return int(rest[0][0]), tuple(starts)


@dataclass(frozen=True)
class IntervalCosts:
    """Costs of all stages of at most ``width`` Blocks, for each allowed way of saving memory.

    ``ipus``: the IPU of each stage. Memory is exact where all differ; else it is at most what the
    IPU holds: who looks at whole splits decides.
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
    allowed: np.ndarray  # bool: keeps Blocks together that must be
    most: int  # cycles: stages that take as many are all in

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.ipus)

    def load(self, k: int, rows: Rows = slice(None)) -> np.ndarray:
        """Cycles of stage k by its quickest choice that fits, else INFINITE: int64[row, width]."""
        every = [self.final] * len(self.choices) if k == self.stages - 1 else self.early
        shortest = np.full_like(self.final[rows], INFINITE)
        for cycles, fits in zip(every, self.fits(k, rows), strict=True):
            shortest = np.where(fits, np.minimum(shortest, cycles[rows]), shortest)
        return np.where(self.allowed[rows], shortest, INFINITE)

    @cached_property
    def begins(self) -> tuple[slice, ...]:
        """The Blocks with which each stage may begin, if none takes over ``most`` cycles."""
        count, width = self.final.shape
        short = np.minimum(np.minimum.reduce(self.early), self.final) <= self.most
        reach = np.where(short, np.arange(1, width + 1), 0).max(axis=1) + np.arange(count)
        furthest = np.maximum.accumulate(reach)  # where the next stage begins at the latest
        latest, earliest = [0], [count]
        for _ in range(self.stages):
            latest.append(int(furthest[min(latest[-1], count - 1)]))
            earliest.insert(0, int(np.searchsorted(furthest, earliest[0])))
        return tuple(
            slice(max(k, low), min(high, count - self.stages + k) + 1)
            for k, (low, high) in enumerate(zip(earliest[:-1], latest[:-1], strict=True))
        )

    def choice(self, k: int, first: int, last: int) -> Choice:
        """The quickest choice with which stage k of these Blocks fits; the first of equal ones."""
        at = (first, last - first)
        cycles = [self.final] * len(self.choices) if k == self.stages - 1 else self.early
        length = [
            int(c[at]) if fits[at] else INFINITE
            for c, fits in zip(cycles, self.fits(k), strict=True)
        ]
        return self.choices[int(np.argmin(length))]

    def fits(self, k: int, rows: Rows = slice(None)) -> list[np.ndarray]:
        """Where the tiles of stage k hold it, bool[row, width] of each choice."""
        if self.memory is None:
            return [self.final[rows] < INFINITE] * len(self.choices)
        depth = depth_of(self.costs, self.stages, k)
        once = self.ipus.count(self.ipus[k]) == 1
        tables = self._deepest[once, bool(self.passed[k])]
        return [deepest[rows] >= depth for deepest in tables]

    @cached_property
    def _deepest(self) -> dict[tuple[bool, bool], list[np.ndarray]]:
        """Stashable micro-batches, less than 0 if none fits, a table of each choice.

        By whether a stage has its own IPU, and whether tied weights pass it.
        """
        assert self.memory is not None
        limit, inside = self.costs.machine.bytes_per_tile, self.final < INFINITE
        tables = {}
        for once, passed in {
            (self.ipus.count(i) == 1, bool(p)) for i, p in zip(self.ipus, self.passed, strict=True)
        }:
            memories = self.memory if once else self.in_company
            if not passed:  # other stages may be on the IPUs between which weights travel
                memories = tuple(replace(one, passing=0 * one.passing) for one in memories)
            deepest = [np.where(inside, one.deepest(limit), -1) for one in memories]
            for (first, last, choice), *others in self.costs.too_full if once else ():
                if not others and choice in self.choices:
                    deepest[self.choices.index(choice)][first, last - first : last - first + 1] = -1
            tables[once, passed] = deepest
        return tables


def interval_costs(
    costs: Costs,
    ipus: Sequence[int],
    choices: Sequence[Choice],
    most: int,
    together: Sequence[Sequence[int]] = (),
    memory: bool = True,
) -> IntervalCosts:
    """Costs of stages on these IPUs of at most ``most`` cycles; each of ``together`` is in one."""
    count, width = len(costs), _width(costs, most)
    first, last, inside = intervals(count, width)
    early, final = cycles_of_intervals(costs, choices, width)
    memories, in_company = None, tuple[IntervalMemory, ...]()
    apart = len(set(ipus)) == len(ipus)
    if memory:
        deepest = depth_of(costs, len(ipus), 0)
        stash = max(int(costs.stash_on_tile(first, last, one.recompute).max()) for one in choices)
        enough = deepest * stash
        memories = tuple(_memory(costs, width, one, enough) for one in choices)
        if not apart:
            in_company = tuple(
                _memory(costs, width, one, enough, in_company=True) for one in choices
            )
    allowed = np.ones_like(inside)
    for group in together:
        here = sums_between(np.isin(np.arange(count), group), first, last)
        allowed &= (here == 0) | (here == len(set(group)))
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
        allowed,
        most,
    )


def _memory(
    costs: Costs, width: int, choice: Choice, enough: int | None, in_company: bool = False
) -> IntervalMemory:
    """`interval_memory`, from an earlier table that is wide, and exact or leaves enough room.

    An exact table serves for smaller tiles too, one that leaves room for larger ones.
    """
    limit = costs.machine.bytes_per_tile
    key = "interval_memory", choice, in_company, costs.machine.region0_bytes
    least_enough = INFINITE if enough is None else enough
    for exact in (False, True):
        cached = costs.tables.get((*key, exact), (0, 0, 0, None))
        cached_width, cached_enough, cached_limit, table = cached
        of_tile = limit <= cached_limit if exact else limit >= cached_limit
        if table and cached_width >= width and of_tile and cached_enough >= least_enough:
            break
    else:
        # Wider ones will be asked for; more Blocks cost little, as too full stages are skipped.
        wide = cached_width
        if width > cached_width:
            full = table is not None and bool((table.used[:, -1] >= FULL).all())
            wider = len(costs) if full else 2 * cached_width
            wide = max(width + width // 6, wider, _LEAST_WIDTH)
            wide = wide if 3 * wide < len(costs) else len(costs)
        table = interval_memory(costs, wide, choice, enough, in_company)
        serves = (INFINITE, with_margin(limit)) if table.exact else (least_enough, limit)
        costs.tables[(*key, table.exact)] = wide, *serves, table
    return table.narrowed(width)


def memory_of_all(
    costs: Costs, choice: Choice, most: int | None = None, in_company: bool = False
) -> IntervalMemory:
    """Exact memory of stages of up to ``most`` cycles; ``in_company``: the least of their IPUs."""
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
    first, last, inside = intervals(len(costs), width)
    own = sums_between(costs.cycles.work, first, last)
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
