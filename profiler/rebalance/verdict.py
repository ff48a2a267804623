"""Whether an IPU holds what it would run, in one of three answers.

A profile says what its own split holds. Of any other, tiles are an estimate: what is
within `MARGIN` of a tile's end is for a compile to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from profiler.rebalance.costs import Costs
from profiler.rebalance.tile_memory import Held, Part, held_by, held_by_each

MARGIN = 0.03  # of a tile: a convention; the tables of docs/rebalance.md have larger errors too


class Answer(StrEnum):
    """What is said of an IPU's memory."""

    FITS = "fits"
    CLOSE = "within 3 %: compile to know"
    OVER = "does not fit"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one IPU: the bytes on its fullest tile, gaps included, and what most of them are.

    ``exact``: the profile holds just this. ``free`` is below 0 where the tile has too little.
    """

    ipu: int
    tile: int
    nbytes: int
    limit: int
    largest: str
    largest_bytes: int
    exact: bool = False

    @property
    def free(self) -> int:
        """Bytes of the tile that are left."""
        return self.limit - self.nbytes

    @property
    def answer(self) -> Answer:
        """One of the three."""
        if not self.exact and abs(self.free) <= MARGIN * self.limit:
            return Answer.CLOSE
        return Answer.FITS if self.free >= 0 else Answer.OVER

    def __str__(self) -> str:
        """The answer in words; one that is no has its numbers."""
        if self.answer is not Answer.OVER:
            return self.answer.value
        return (
            f"{self.answer.value} by {-self.free:,} bytes, on tile {self.tile}, most of it"
            f" {self.largest} ({self.largest_bytes:,} bytes)"
        )


def verdicts(
    costs: Costs, parts: Sequence[Part], ipus: Sequence[int], exact: bool = False
) -> tuple[Verdict, ...]:
    """Of each IPU up to the last; ``ipus`` is that of each stage. Of one without any, all is free.

    ``parts`` have all Blocks, in order.
    """
    limit = costs.machine.bytes_per_tile
    mine: list[list[Part]] = [[] for _ in range(max(ipus) + 1)]
    for part, ipu in zip(parts, ipus, strict=True):
        mine[ipu].append(part)
    found = [Verdict(ipu, 0, 0, limit, "nothing", 0, exact=True) for ipu in range(len(mine))]
    alone = [k for k, ipu in enumerate(ipus) if len(mine[ipu]) == 1]
    if alone:
        fullest = _fullest(held_by_each(costs, parts))
        for k in alone:
            found[ipus[k]] = Verdict(ipus[k], *fullest[k][:2], limit, *fullest[k][2:], exact)
    for ipu, some in enumerate(mine):
        if len(some) > 1:
            ((tile, nbytes, largest, most),) = _fullest(held_by(costs, some))
            found[ipu] = Verdict(ipu, tile, nbytes, limit, largest, most, exact)
    return tuple(found)


def _fullest(held: Held) -> list[tuple[int, int, str, int]]:
    """Of each IPU its fullest tile, that tile's bytes, what most of them are, and how many."""
    total = held.total
    tiles, rows = total.argmax(axis=1), np.arange(len(total))
    words = list(held.contents)
    there = np.array([nbytes[rows, tiles] for nbytes in held.contents.values()])
    largest = there.argmax(axis=0)
    return [
        (int(tile), int(total[row, tile]), words[which], int(there[which, row]))
        for row, tile, which in zip(rows.tolist(), tiles, largest.tolist(), strict=True)
    ]


def summary(found: Sequence[Verdict]) -> str:
    """Of all IPUs of a split together: the worst answer, with the IPU where it is not all of them.

    The fullest speaks for those with the same answer.
    """
    over = [one for one in found if one.answer is Answer.OVER]
    close = [one for one in found if one.answer is Answer.CLOSE]
    if not over and not close:
        return Answer.FITS.value
    worst = min(over or close, key=lambda one: one.free)
    return f"IPU {worst.ipu}: {worst}"
