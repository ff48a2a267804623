"""Splits whose stages return to an IPU, like public BERT's 0, 1, 2, 3, 0.

Cycles and memory of an IPU are those of all its stages, so a split is no chain of independent ones.
The search goes stage by stage, remembers its position and the stages of IPUs that will be met
again, and continues the best of ways that agree in these. That is exact where no tied weight passes
IPUs that do not read it, or all do so for sure; else the bottleneck is a lower bound: what only may
pass is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import (
    Part,
    at_least,
    at_the_end,
    ipu_bytes,
    stages_of,
    surely_passing,
)
from ipuscope.planner.predict.interval_costs import cycles_of_intervals, depth_of, memory_of_all
from ipuscope.planner.predict.interval_memory import IntervalMemory
from ipuscope.planner.predict.what_if import Assignment

_MOST_WAYS = 10_000  # that differ in what is open: more are not all looked at

# What is open: for each IPU that comes again, its stages so far.
_Open = tuple[tuple[int, tuple[Part, ...]], ...]
_Key = tuple[int, _Open]  # the next Block, and what is open


class TooManyWays(Exception):
    """So many stages return to so many IPUs that not all ways can be looked at."""


@dataclass(frozen=True)
class _Way:
    """A split of the first Blocks: ``worst`` of the IPUs that are done, and the stages so far."""

    worst: int
    parts: tuple[Part, ...]


def least_bottleneck_revisiting(
    costs: Costs,
    ipus: Sequence[int],
    choices: Sequence[Choice],
    most: int,
    together: Sequence[Sequence[int]] = (),
    memory: bool = True,
) -> tuple[int, Assignment] | None:
    """The least cycles of the busiest IPU per micro-batch, at most ``most``, and a split with them.

    ``ipus``: of each stage. ``together``: groups of Blocks for one IPU. None where there is none.
    Raises `TooManyWays`.
    """
    search = _Search(
        costs, tuple(ipus), tuple(choices), most, tuple(map(frozenset, together)), memory
    )
    ways: dict[_Key, _Way] = {(0, ()): _Way(0, ())}
    for k in range(len(ipus)):
        ways = search.stage(k, ways)
    best = ways.get((len(costs), ()))
    if best is None:
        return None
    chosen = costs.named_choices(tuple(part.choice for part in best.parts))
    return best.worst, Assignment(tuple(part.first for part in best.parts), tuple(ipus), chosen)


class _Search:
    """Adds stages one by one; their cycles, and whether IPUs hold them, are computed once."""

    def __init__(
        self,
        costs: Costs,
        ipus: tuple[int, ...],
        choices: tuple[Choice, ...],
        most: int,
        together: tuple[frozenset[int], ...],
        memory: bool,
    ) -> None:
        self.costs, self.ipus, self.choices = costs, ipus, choices
        self.most, self.together, self.memory = most, together, memory
        # whether an IPU holds stages does not depend on how long a search lets them be
        key = "fit together", costs.machine.bytes_per_tile, costs.machine.region0_bytes
        self._fits: dict[tuple[tuple[Part, ...], int | None], bool] = costs.tables.setdefault(
            key, {}
        )
        self._tables: dict[tuple[Choice, bool], IntervalMemory] = {}
        passing = surely_passing(costs, ipus)
        self._passing = {ipu: passing[np.array(ipus) == ipu].sum(axis=0) for ipu in ipus}
        self._kind = {ipu: hash(nbytes.tobytes()) for ipu, nbytes in self._passing.items()}
        self._length = _lengths(costs, choices)
        # a stage takes at least the work of its Blocks
        self._work_from = [*np.cumsum(costs.cycles.work[::-1])[::-1].tolist(), 0]

    def stage(self, k: int, ways: dict[_Key, _Way]) -> dict[_Key, _Way]:
        """The best ways with stage k, from those without it."""
        after: dict[_Key, _Way] = {}
        for (begin, opened), way in ways.items():
            for choice in self.choices:
                self._lengthen(k, (begin, opened), way, choice, after)
            if len(after) > _MOST_WAYS:
                raise TooManyWays
        return after

    def _lengthen(
        self, k: int, key: _Key, way: _Way, choice: Choice, after: dict[_Key, _Way]
    ) -> None:
        """Add to ``after`` the ways that continue with a stage from the next Block on."""
        (begin, opened), ipu, final = key, self.ipus[k], k == len(self.ipus) - 1
        comes_again = ipu in self.ipus[k + 1 :]
        earlier = next((parts for where, parts in opened if where == ipu), ())
        spent = self._spent(earlier)
        others = tuple(item for item in opened if item[0] != ipu)
        room = len({*self.ipus[k + 1 :]}) * self.most - sum(self._spent(one) for _, one in others)
        depth = depth_of(self.costs, len(self.ipus), k)
        choice = at_the_end(self.costs, choice) if final else choice
        for last in self._ends(k, begin):
            part = Part(begin, last, depth, choice)
            total = spent + self._cycles(part, final)
            if total > self.most:
                return
            if self._work_from[last + 1] > room - (total if comes_again else 0):
                continue  # the IPUs that follow cannot take all that is left
            stages_there = (*earlier, part)
            worst, left_open = way.worst, others
            if comes_again:
                left_open = tuple(sorted((*others, (ipu, stages_there)), key=lambda item: item[0]))
            else:
                worst = max(worst, total)
            before = after.get((last + 1, left_open))
            if (
                (before is None or worst < before.worst)
                and (comes_again or self._whole(stages_there))
                and self._holds(stages_there, None if comes_again else ipu)
            ):
                after[last + 1, left_open] = _Way(worst, (*way.parts, part))

    def _ends(self, k: int, begin: int) -> Sequence[int]:
        """Blocks with which stage k may end, leaving at least one for each stage after it."""
        count, behind = len(self.costs), len(self.ipus) - 1 - k
        return range(begin, count - behind) if behind else [count - 1]

    def _cycles(self, part: Part, final: bool) -> int:
        return self._length[None if final else part.choice][part.first][part.last - part.first]

    def _spent(self, parts: tuple[Part, ...]) -> int:
        """Cycles of an IPU's stages so far."""
        return sum(self._cycles(part, False) for part in parts)

    def _holds(self, parts: tuple[Part, ...], ipu: int | None) -> bool:
        """Whether this IPU holds these stages; None: one may hold them with others that follow."""
        if not self.memory:
            return True
        if ipu is not None and stages_of(parts) in self.costs.too_full:
            return False
        key = parts, None if ipu is None else self._kind[ipu]
        if key not in self._fits:
            fullest = self._fullest(parts, ipu)
            self._fits[key] = fullest <= self.costs.machine.bytes_per_tile
        return self._fits[key]

    def _fullest(self, parts: tuple[Part, ...], ipu: int | None) -> int:
        """Bytes of the fullest tile; for IPUs with a single stage all are known together."""
        (part, *others) = parts
        passing = self._passing[ipu] if ipu is not None else None
        if others and passing is None:
            return int(at_least(self.costs, parts).max())
        if others:
            return int(ipu_bytes(self.costs, parts, passing).max())
        key = part.choice, passing is None
        if key not in self._tables:
            table = memory_of_all(self.costs, part.choice, self.most, in_company=passing is None)
            self._tables[key] = table
        passed = passing is not None and bool(passing.any())
        return self._tables[key].fullest_of(part.first, part.last, part.depth, passed)

    def _whole(self, parts: tuple[Part, ...]) -> bool:
        """Whether each group is on this IPU with all of its Blocks, or with none."""
        here = {block for part in parts for block in range(part.first, part.last + 1)}
        return all(not group & here or group <= here for group in self.together)


def _lengths(costs: Costs, choices: tuple[Choice, ...]) -> dict[Choice | None, list[list[int]]]:
    """Cycles of a stage by choice (None: the last stage), first Block and number of more Blocks."""
    key = "lengths of stages", choices
    if key not in costs.tables:
        early, final = cycles_of_intervals(costs, choices, len(costs))
        tables = zip((*choices, None), (*early, final), strict=True)
        costs.tables[key] = {choice: table.tolist() for choice, table in tables}
    return costs.tables[key]


# -- Readers of tied weights, moved to the IPU that has the weight ---


def back_home(costs: Costs, present: Assignment) -> Iterator[Assignment]:
    """For each tied weight that travels, the split that reads it on the IPU that has it."""
    for blocks in costs.cuts.ties.blocks:
        together = with_reader_home(present, costs.stage.tolist(), blocks[0], blocks[-1])
        if together is not None:
            yield together


def with_reader_home(
    present: Assignment, stage: list[int], home: int, reader: int
) -> Assignment | None:
    """The split with a stage from ``reader`` on at ``home``; None: it is there, or not last."""
    ipu = present.ipus[stage[home]]
    if stage[reader] != len(present.starts) - 1 or present.ipus[-1] == ipu:
        return None
    if reader == present.starts[-1]:
        return replace(present, ipus=(*present.ipus[:-1], ipu), choices=())
    starts, ipus = (*present.starts, reader), (*present.ipus, ipu)
    return replace(present, starts=starts, ipus=ipus, choices=())
