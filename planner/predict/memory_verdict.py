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

    @property
    def free(self) -> int:
        """Free bytes of the tile; negative where it has too little."""
        return self.limit - self.nbytes

    @property
    def answer(self) -> Answer:
        """One of the three."""
        if not self.exact and -ABOVE * self.limit <= self.free <= BELOW * self.limit:
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
        fullest = _fullest(usage_of_each(costs, parts, passing))
        for k in alone:
            answers[ipus[k]] = _verdict(ipus[k], limit, fullest[k], exact)
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
    limit = costs.machine.bytes_per_tile
    if not parts:
        return Verdict(ipu, 0, 0, limit, "nothing", 0, exact=True)
    (fullest,) = _fullest(usage_of(costs, parts, passing))
    return _verdict(ipu, limit, fullest, exact)


def _verdict(ipu: int, limit: int, fullest: tuple[int, int, str, int], exact: bool) -> Verdict:
    tile, nbytes, largest, most = fullest
    return Verdict(ipu, tile, nbytes, limit, largest, most, exact, largest == _CODE)


def _fullest(usage: Usage) -> list[tuple[int, int, str, int]]:
    """Each IPU's fullest tile: its number, its bytes, what most of them are, and how many."""
    total = usage.total
    tiles, rows = total.argmax(axis=1), np.arange(len(total))
    words = list(usage.contents)
    there = np.array([nbytes[rows, tiles] for nbytes in usage.contents.values()])
    region0 = usage.costs.machine.region0_bytes
    code = usage.code_beyond[rows, tiles]
    words.append(_CODE)
    there = np.vstack([there, np.where(code > 0, region0 + code, 0)])
    largest = np.where(code > 0, len(there) - 1, there.argmax(axis=0))
    return [
        (int(tile), int(total[row, tile]), words[which], int(there[which, row]))
        for row, tile, which in zip(rows.tolist(), tiles, largest.tolist(), strict=True)
    ]


def summary(verdicts: Sequence[Verdict]) -> str:
    """All IPUs of a split together: the worst answer, with the fullest IPU that has it."""
    over = [one for one in verdicts if one.answer is Answer.OVER]
    close = [one for one in verdicts if one.answer is Answer.CLOSE]
    if not over and not close:
        return Answer.FITS.value
    worst = min(over or close, key=lambda one: one.free)
    return f"IPU {worst.ipu}: {worst}"
