"""The Block of each program step, and the variables of each Block's passes.

A Block has up to four passes: forward, recomputed forward, backward and weight update.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ipuscope.planner.costs.profile_columns import Steps, Variables
from ipuscope.profiler.enums import Direction, Purpose


class Pass(IntEnum):
    """The part of a Block's work that runs."""

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
    """The number of each step's pass, and how many Blocks there are."""

    at: np.ndarray  # int64[step]: ``p * blocks + b`` for pass p of Block b, on one IPU; -1: none
    blocks: int

    @classmethod
    def of(cls, steps: Steps, ipu_of: np.ndarray) -> Passes:
        """``ipu_of``: the IPU of each Block.

        A step of none of its IPU's Blocks counts with the preceding one of its direction; a tensor
        from its stash with the following one, for which it is restored.
        """
        blocks = len(ipu_of)
        restored = steps.purpose == Purpose.RESTORE
        of_block = steps.block.clip(0, blocks - 1)
        is_own = (steps.block == of_block) & (ipu_of[of_block] == steps.ipu)
        is_own &= ~restored & (steps.purpose != Purpose.STASH)
        at = np.full(len(steps), _NONE)
        for name, number in _OF_DIRECTION.items():
            here = np.flatnonzero(steps.direction == name)
            block, ipu = np.where(is_own, steps.block, _NONE)[here], steps.ipu[here]
            behind = _last_valid(block, ipu)
            ahead = _last_valid(block[::-1], ipu[::-1])[::-1]
            nearest = np.where(restored[here], ahead, behind)
            nearest = np.where(nearest < 0, ahead, nearest)
            at[here] = np.where(nearest >= 0, number * blocks + nearest, _NONE)
        return cls(at, blocks)

    def rows(self) -> dict[int, np.ndarray]:
        """Rows of the steps of each pass that runs, ascending."""
        order = np.argsort(self.at, kind="stable")
        numbers, first = np.unique(self.at[order], return_index=True)
        rows = np.split(order, first[1:])
        return {n: steps for n, steps in zip(numbers.tolist(), rows, strict=True) if n >= 0}


def _last_valid(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Each entry's own value or the last one before it in its group that is not -1; -1: none."""
    if not len(values):
        return values
    at = np.maximum.accumulate(np.where(values >= 0, np.arange(len(values)), 0))
    return np.where(group[at] == group, values[at], _NONE)


def touches(
    passes: Passes, steps: Steps, living: Variables, uses: tuple[np.ndarray, np.ndarray]
) -> dict[int, np.ndarray]:
    """For each pass, the rows of ``living`` that it touches while they are live, ascending.

    ``uses``: operators, and the ids of variables that each uses. A variable without operators
    counts as touched where it begins and ends (one overwritten in place ends where its last
    operator begins); an output that waits for the host also in its Block's backward, which runs
    meanwhile.
    """
    by_operators = _by_operators(passes, steps, living, uses)
    edges = (living.start, living.stop - 1)
    at_edges = [(np.arange(len(living)), steps.at(living.ipu, edge)) for edge in edges]
    last = at_edges[1][1]
    waits = (last >= 0) & (steps.purpose[last] == Purpose.STREAM_OUT) & (living.block >= 0)
    waiting = np.flatnonzero(waits)
    pairs = [
        by_operators,
        (waiting, Pass.BACKWARD * passes.blocks + living.block[waiting]),
        *((row, np.where(at >= 0, passes.at[at], _NONE)) for row, at in at_edges),
    ]
    row, number = (np.concatenate(column) for column in zip(*pairs, strict=True))
    size = max(1, len(living))
    keys = np.unique((number * size + row)[number >= 0])
    numbers, first = np.unique(keys // size, return_index=True)
    return dict(zip(numbers.tolist(), np.split(keys % size, first[1:]), strict=False))


def _by_operators(
    passes: Passes, steps: Steps, living: Variables, uses: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(row of ``living``, pass number) for each operator of the pass that uses the variable."""
    ops, variables = uses
    row = living.rows_of(variables)
    ops, row = ops[row >= 0], row[row >= 0]
    ran = np.flatnonzero((steps.op >= 0) & (passes.at >= 0))
    # An operator may run on several IPUs and stages, and in several passes: a span each.
    order = np.lexsort((ran, passes.at[ran], steps.stage[ran], steps.ipu[ran], steps.op[ran]))
    ran = ran[order]
    same = (steps.op, steps.ipu, steps.stage, passes.at)
    differs = np.logical_or.reduce([np.diff(one[ran]) != 0 for one in same])
    first = np.flatnonzero(np.concatenate([np.ones(min(1, len(ran)), dtype=bool), differs]))
    last = np.append(first[1:], len(ran))[: len(first)] - 1
    span, ends = ran[first], ran[last]
    low, high = (np.searchsorted(steps.op[span], ops, side=side) for side in ("left", "right"))
    count = high - low
    row = np.repeat(row, count)
    at = np.repeat(low, count) + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    begin, end = span[at], ends[at]
    same_ipu = steps.ipu[begin] == living.ipu[row]
    row, begin, end = row[same_ipu], begin[same_ipu], end[same_ipu]
    offset = steps.begin[living.ipu[row]]
    inside = (begin - offset < living.stop[row]) & (end - offset >= living.start[row])
    # Two stages of an IPU may have a copy each.
    stage, ran_on = living.stage[row], steps.stage[begin]
    inside &= (stage == ran_on) | (stage < 0) | (ran_on < 0)
    return row[inside], passes.at[begin[inside]]
