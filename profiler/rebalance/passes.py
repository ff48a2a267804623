"""Which Block an IPU is at, step by step, and which variables each Block's passes touch.

A Block runs in up to four passes of a program: its forward, that again, its backward and its weight
update.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pandas as pd

from profiler.enums import Direction, Purpose


class Pass(IntEnum):
    """What of a Block runs."""

    FORWARD = 0
    AGAIN = 1  # its forward, for the backward
    BACKWARD = 2
    UPDATE = 3


_OF_DIRECTION = {
    Direction.FORWARD: Pass.FORWARD,
    Direction.RECOMPUTE: Pass.AGAIN,
    Direction.BACKWARD: Pass.BACKWARD,
    Direction.UPDATE: Pass.UPDATE,
}
_NONE = -1


@dataclass(frozen=True)
class Passes:
    """Of one IPU's steps: number of the pass of each position (-1: none), int64[position].

    Pass p of Block b has the number ``p * blocks + b``.
    """

    at: np.ndarray
    blocks: int

    @classmethod
    def of(cls, steps: pd.DataFrame, own: np.ndarray, blocks: int) -> Passes:
        """``steps``: the IPU's, by position; ``own``: the Blocks that it runs.

        A step that belongs to none of these is counted with the one before it in its direction; a
        tensor that comes back from its stash with the one behind it, for which it comes.
        """
        direction, block = steps["direction"].to_numpy(), steps["block"].to_numpy()
        restored = (steps["purpose"] == Purpose.RESTORE).to_numpy()
        known = np.isin(block, own) & (steps["purpose"] != Purpose.STASH).to_numpy() & ~restored
        at = np.full(len(steps), _NONE)
        for name, number in _OF_DIRECTION.items():
            here = np.flatnonzero(direction == name.value)
            mine = pd.Series(np.where(known[here], block[here], np.nan))
            ahead, behind = mine.bfill(), mine.ffill()
            nearest = behind.mask(restored[here], ahead).fillna(ahead).fillna(_NONE)
            found = nearest.to_numpy().astype(np.int64)
            at[here] = np.where(found >= 0, number * blocks + found, _NONE)
        return cls(at, blocks)

    def spots(self) -> dict[int, np.ndarray]:
        """Positions of each pass that the IPU runs, ascending."""
        numbers = np.unique(self.at)
        return {int(n): np.flatnonzero(self.at == n) for n in numbers if n >= 0}


def touches(
    passes: Passes, steps: pd.DataFrame, living: pd.DataFrame, uses: pd.DataFrame
) -> pd.DataFrame:
    """Columns ``variable`` and ``number``: which passes touch a variable while it is live.

    ``uses`` has ``op`` and ``variable``. One that no operator names is touched where it begins.
    """
    ran = pd.DataFrame({"op": steps["op"].to_numpy(), "ran": steps["stage"].to_numpy()})
    ran["number"], ran["position"] = passes.at, np.arange(len(ran))
    ran = ran[(ran["op"] >= 0) & (ran["number"] >= 0)]
    spans = ran.groupby(["op", "ran", "number"])["position"].agg(["min", "max"]).reset_index()
    mine = uses[uses["variable"].isin(living.index)].merge(spans, on="op")
    lives = living[["start", "stop"]]
    mine = mine.join(living[["start", "stop", "stage"]], on="variable")
    inside = (mine["min"] < mine["stop"]) & (mine["max"] >= mine["start"])
    # Two stages of an IPU may have a copy each.
    inside &= (mine["stage"] == mine["ran"]) | (mine["stage"] < 0) | (mine["ran"] < 0)
    found = mine.loc[inside, ["variable", "number"]]
    # In place, what is overwritten ends where its last operator begins.
    edges = [lives["start"], lives["stop"] - 1]
    at_edges = [
        pd.DataFrame({"variable": living.index, "number": passes.at[edge.to_numpy()]})
        for edge in edges
    ]
    together = pd.concat([found, *at_edges]).drop_duplicates()
    return together[together["number"] >= 0]
