"""Whether an IPU holds what it would run, as one of three answers.

Of any split but the profile's, tiles are an estimate: only a compile can decide what is nearer to a
tile's end than predictions were off, `BELOW` it or `ABOVE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import Part, Usage, passing_through, usage_of, usage_of_each

# Shares of a tile by which bytes of another split were predicted too few, and too many, at most:
# 2.0 % and 4.9 % on 71 IPUs (docs/rebalance.md#how-far-predicted-bytes-are-off), and 5.8 % too few
# in a case that an outside judge reported.
BELOW = 0.06
ABOVE = 0.05
_CODE = "code, for which only region 0 has room"


class Answer(StrEnum):
    """The verdict on an IPU's memory."""

    FITS = "fits"
    CLOSE = "too close to call: compile to know"
    OVER = "does not fit"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of an IPU: bytes on its fullest tile, gaps included, and what most of them are."""

    ipu: int
    tile: int
    nbytes: int
    limit: int
    largest: str
    largest_bytes: int
    exact: bool = False  # the profile holds exactly this
    of_code: bool = False  # code is beyond region 0: ``nbytes`` counts as much beyond the tile
    open_code: bool = False  # of operators that were not compiled, code may have no room

    @property
    def free(self) -> int:
        """Free bytes of the tile; negative where it has too little."""
        return self.limit - self.nbytes

    @property
    def answer(self) -> Answer:
        """One of the three."""
        close = -ABOVE * self.limit <= self.free <= BELOW * self.limit
        if not self.exact and (close or (self.open_code and self.free > 0)):
            return Answer.CLOSE
        return Answer.FITS if self.free >= 0 else Answer.OVER

    def __str__(self) -> str:
        """The answer in words, with numbers if it does not fit."""
        if self.answer is not Answer.OVER:
            return self.answer.value
        return (
            f"{self.answer.value} by {-self.free:,} bytes, on tile {self.tile}, most of it"
            f" {self.largest} ({self.largest_bytes:,} bytes)"
        )


def verdicts(
    costs: Costs, parts: Sequence[Part], ipus: Sequence[int], exact: bool = False
) -> tuple[Verdict, ...]:
    """The verdict on each IPU, all free without a stage; ``parts`` have all Blocks, in order."""
    limit = costs.machine.bytes_per_tile
    stages: list[list[Part]] = [[] for _ in range(max(ipus) + 1)]
    for part, ipu in zip(parts, ipus, strict=True):
        stages[ipu].append(part)
    answers = [Verdict(ipu, 0, 0, limit, "nothing", 0, exact=True) for ipu in range(len(stages))]
    alone = [k for k, ipu in enumerate(ipus) if len(stages[ipu]) == 1]
    passing = passing_through(costs, parts, ipus)
    if alone:
        each = _of_fullest_tiles(usage_of_each(costs, parts, passing), ipus, exact)
        for k in alone:
            answers[ipus[k]] = each[k]
    for ipu, some in enumerate(stages):
        if len(some) > 1:
            through = passing[np.array(ipus) == ipu].sum(axis=0)
            answers[ipu] = verdict_on(costs, some, ipu, exact, through)
    return tuple(answers)


def verdict_on(
    costs: Costs,
    parts: Sequence[Part],
    ipu: int,
    exact: bool = False,
    passing: np.ndarray | None = None,
) -> Verdict:
    """The verdict on an IPU with these stages, all free without any; ``passing``: `passing_of`."""
    if not parts:
        return Verdict(ipu, 0, 0, costs.machine.bytes_per_tile, "nothing", 0, exact=True)
    return _of_fullest_tiles(usage_of(costs, parts, passing), [ipu], exact)[0]


def _of_fullest_tiles(usage: Usage, ipus: Sequence[int], exact: bool) -> list[Verdict]:
    """The verdict on each IPU, from its fullest tile and what most of that is."""
    machine, region0 = usage.costs.machine, usage.costs.memory.region0
    total = usage.total
    tiles, rows = total.argmax(axis=1), np.arange(len(total))
    words = [*usage.contents, _CODE]
    there = np.array([nbytes[rows, tiles] for nbytes in usage.contents.values()])
    code = usage.code_beyond[rows, tiles]
    there = np.vstack([there, np.where(code > 0, machine.region0_bytes + code, 0)])
    largest = np.where(code > 0, len(there) - 1, there.argmax(axis=0))
    grow = region0.may_outgrow(usage.runs, machine.bytes_per_tile - usage.used, machine)
    of_each = zip(ipus, tiles.tolist(), largest.tolist(), grow.tolist(), strict=True)
    return [
        Verdict(
            ipu,
            tile,
            int(total[row, tile]),
            machine.bytes_per_tile,
            words[which],
            int(there[which, row]),
            exact,
            of_code=words[which] == _CODE,
            open_code=grows,
        )
        for row, (ipu, tile, which, grows) in enumerate(of_each)
    ]


def summary(verdicts: Sequence[Verdict]) -> str:
    """All IPUs of a split together: the worst answer, with the fullest IPU that has it."""
    over = [one for one in verdicts if one.answer is Answer.OVER]
    close = [one for one in verdicts if one.answer is Answer.CLOSE]
    if not over and not close:
        return Answer.FITS.value
    worst = min(over or close, key=lambda one: one.free)
    return f"IPU {worst.ipu}: {worst}"
