"""The ways to choose each stage of a split: which Blocks, and how it saves memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ipuscope.planner.predict.interval_costs import INFINITE
from ipuscope.profiler.lazy import cached_property


@dataclass(frozen=True)
class StageWays:
    """The ways to choose one stage, sorted by first Block; int64[way].

    ``behind``: the Block after its last one; ``choice``: the number of its way of saving memory;
    ``forward``, ``backward``: cycles a micro-batch; ``link``: bytes over its IPU's busier link;
    ``update``: cycles of its weight update.
    """

    first: np.ndarray
    behind: np.ndarray
    choice: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    link: np.ndarray
    update: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def where(self, rows: np.ndarray) -> StageWays:
        """Some of the ways."""
        return StageWays(*(getattr(self, name)[rows] for name in _FIELDS))

    @cached_property
    def both(self) -> np.ndarray:
        """Cycles a micro-batch."""
        cycles: np.ndarray = self.forward + self.backward
        return cycles

    @cached_property
    def begins(self) -> np.ndarray:
        """The first way of each first Block."""
        new = np.ones(len(self), dtype=bool)
        np.not_equal(self.first[1:], self.first[:-1], out=new[1:])
        return np.flatnonzero(new)

    def least(self, values: np.ndarray, blocks: int) -> np.ndarray:
        """The least of the ways' values for each first Block, INFINITE where there is no way."""
        least = np.full(blocks + 1, INFINITE)
        if len(self):
            least[self.first[self.begins]] = np.minimum.reduceat(values, self.begins)
        return least


_FIELDS = tuple(one.name for one in fields(StageWays))


def connected(stages: Sequence[StageWays], blocks: int) -> tuple[StageWays, ...]:
    """The ways that are part of a split: others lead to where no next stage begins."""
    reached = np.zeros(blocks + 1, dtype=bool)
    reached[0] = True
    ahead = []
    for stage in stages:
        ahead.append(stage.where(np.flatnonzero(reached[stage.first])))
        reached = np.zeros(blocks + 1, dtype=bool)
        reached[ahead[-1].behind] = True
    left = np.zeros(blocks + 1, dtype=bool)
    left[blocks] = True
    kept = []
    for stage in reversed(ahead):
        kept.append(stage.where(np.flatnonzero(left[stage.behind])))
        left = np.zeros(blocks + 1, dtype=bool)
        left[kept[-1].first] = True
    return tuple(reversed(kept))


def least_of_rest(
    stages: Sequence[StageWays], values: Sequence[np.ndarray], blocks: int
) -> list[np.ndarray]:
    """The least maximum of ``values`` over stages k and later, by first Block: [k][Block].

    INFINITE where no split goes on from there.
    """
    end = np.full(blocks + 1, INFINITE)
    end[blocks] = 0
    rest = [end]
    for stage, own in zip(reversed(stages), reversed(values), strict=True):
        rest.insert(0, stage.least(np.maximum(own, rest[0][stage.behind]), blocks))
    return rest
