"""What the tiles hold while a Block's passes run, of what these touch.

Passes that hold the same from step to step, as those of equal layers do, are worked out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from profiler.rebalance.passes import Pass, Passes
from profiler.rebalance.profile_columns import Steps, Variables
from profiler.rebalance.shared_weights import SharedWeight

_Peak = tuple[np.ndarray, np.ndarray]  # of region 0 and of region 1, int64[tile]
# Of variables: start, stop, bytes on each tile (int64[variable, tile]), whether in region 1.
_Lives = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class PassMemory:
    """Fields of `profiler.rebalance.block_memory.BlockMemory`, by its names."""

    peak: np.ndarray
    peak_of_backward: np.ndarray
    ran_again: np.ndarray
    peak_of_copies: np.ndarray
    updating: np.ndarray
    peak_interleaved: np.ndarray

    @classmethod
    def none(cls, blocks: int, tiles: int) -> PassMemory:
        """Of Blocks that hold nothing."""
        backward, copies, updating, interleaved = np.zeros((4, blocks, tiles), dtype=np.int64)
        return cls(
            np.zeros((len(Pass), blocks, tiles), dtype=np.int64),
            backward,
            np.zeros(blocks, dtype=bool),
            copies,
            updating,
            interleaved,
        )


@dataclass(frozen=True)
class Touched:
    """What is not always there and who touches it.

    ``saved``, bool[variable]: that a forward leaves for its backward. ``by``: rows of the variables
    that each pass touches; ``uses`` are operators, and ids of variables.
    """

    variables: Variables
    saved: np.ndarray
    steps: Steps
    passes: Passes
    by: dict[int, np.ndarray]
    uses: tuple[np.ndarray, np.ndarray]
    shared_weights: Sequence[SharedWeight]
    _peaks: dict[bytes, _Peak] = field(default_factory=dict, repr=False)

    def peak(self, rows: np.ndarray, spots: np.ndarray, arrived: Sequence[_Arrived] = ()) -> _Peak:
        """The most that is live of some variables on each tile at steps, with what arrived."""
        first = int(spots[0])
        offset = self.steps.begin[self.steps.ipu[first]]
        start = self.variables.start[rows] + offset - first
        stop = self.variables.stop[rows] + offset - first
        region1 = self.variables.interleaved[rows]
        spots = spots - first
        alive = (stop > 0) & (start <= spots[-1])
        columns = (np.maximum(start, 0), stop, self.variables.vector[rows], region1)
        start, stop, vector, region1 = (column[alive] for column in columns)
        if arrived:
            here = (start, stop, self.variables.vectors[vector], region1)
            return _most_live(_with_arrived(here, arrived), spots)
        key = b" ".join(one.tobytes() for one in (start, stop, vector, region1, spots))
        if key not in self._peaks:
            here = (start, stop, self.variables.vectors[vector], region1)
            self._peaks[key] = _most_live(here, spots)
        return self._peaks[key]


@dataclass(frozen=True)
class _Arrived:
    """A weight that came from another IPU: live from a pass's first step till ``stop``."""

    stop: int
    nbytes: np.ndarray


def memory_of_passes(touched: Touched, tiles: int) -> PassMemory:
    """Of all Blocks."""
    blocks = touched.passes.blocks
    memory = PassMemory.none(blocks, tiles)
    rows_of_passes = touched.passes.rows()
    nothing = np.zeros(0, dtype=np.int64)
    for number, spots in rows_of_passes.items():
        kind, block = divmod(number, blocks)
        mine = touched.by.get(number, nothing)
        if kind == Pass.AGAIN:
            memory.ran_again[block] = True
            mine = np.union1d(mine, touched.by.get(Pass.BACKWARD * blocks + block, nothing))
        plain, region1 = touched.peak(mine, spots)
        np.maximum(memory.peak_interleaved[block], region1, out=memory.peak_interleaved[block])
        if kind != Pass.BACKWARD:
            memory.peak[kind, block] = plain
            continue
        memory.peak_of_backward[block] = plain
        made_here = touched.saved[mine] & (touched.variables.block[mine] == block)
        memory.peak[kind, block] = touched.peak(mine[~made_here], spots)[0]
        memory.peak_of_copies[block] = _more_with_copies(touched, block, mine, spots, plain)
    _add_updating(memory, touched, rows_of_passes)
    return memory


def _more_with_copies(
    touched: Touched, block: int, rows: np.ndarray, spots: np.ndarray, without: np.ndarray
) -> np.ndarray:
    """What a Block's backward holds more with weights that come from another IPU, till last read.

    int64[tile]
    """
    ops, variables = touched.uses
    arrived = []
    for weight in touched.shared_weights:
        if block not in weight.blocks[1:]:
            continue
        readers = ops[np.isin(variables, weight.variables)]
        reads = spots[np.isin(touched.steps.op[spots], readers)]
        if len(reads):
            arrived.append(_Arrived(int(reads[-1] + 1 - spots[0]), weight.nbytes))
    if not arrived:
        return np.zeros_like(without)
    more: np.ndarray = np.maximum(0, touched.peak(rows, spots, arrived)[0] - without)
    return more


def _add_updating(memory: PassMemory, touched: Touched, spots: dict[int, np.ndarray]) -> None:
    """What a Block's weight update begins with and others' end with; it is no peak of its own."""
    variables, steps, blocks = touched.variables, touched.steps, touched.passes.blocks
    first = steps.at(variables.ipu, variables.start)
    begun = np.where(first >= 0, touched.passes.at[first], -1)
    last = np.full(blocks, len(steps))  # row of the last step of each Block's update
    for block in range(blocks):
        mine = spots.get(Pass.UPDATE * blocks + block)
        if mine is not None:
            last[block] = mine[-1]
    of_block = begun - Pass.UPDATE * blocks
    in_update = (of_block >= 0) & (of_block < blocks)
    end = steps.begin[variables.ipu] + variables.stop
    chosen = np.flatnonzero(in_update & (end > last[of_block.clip(0, blocks - 1)] + 1))
    left = variables.where(chosen).bytes_by(of_block[chosen], blocks)
    memory.updating[:] += left
    memory.peak[Pass.UPDATE] -= left
    np.maximum(memory.peak, 0, out=memory.peak)


def _with_arrived(here: _Lives, arrived: Sequence[_Arrived]) -> _Lives:
    start, stop, vectors, region1 = here
    none = np.zeros(len(arrived), dtype=np.int64)
    return (
        np.concatenate([start, none]),
        np.concatenate([stop, [one.stop for one in arrived]]),
        np.concatenate([vectors, [one.nbytes for one in arrived]]),
        np.concatenate([region1, none.astype(bool)]),
    )


def _most_live(here: _Lives, spots: np.ndarray) -> _Peak:
    """The most that is live on each tile at ``spots``, of region 0 and of region 1.

    Other Blocks run between this one's forward and backward: what only they hold is none of its
    peak.
    """
    start, stop, vectors, region1 = here
    tiles = vectors.shape[1]
    level, level1, most, most1 = np.zeros((4, tiles), dtype=np.int64)
    times = np.unique(np.concatenate([start, stop]))
    times = times[times <= spots[-1]]
    behind = np.append(times[1:], spots[-1] + 1)
    runs = np.searchsorted(spots, behind) > np.searchsorted(spots, times)
    for at, in_pass in zip(times.tolist(), runs.tolist(), strict=True):
        for sign, chosen in ((1, start == at), (-1, stop == at)):
            rows = np.flatnonzero(chosen)
            level += sign * vectors[rows].sum(axis=0)
            level1 += sign * vectors[rows[region1[rows]]].sum(axis=0)
        if in_pass:
            np.maximum(most, level - level1, out=most)
            np.maximum(most1, level1, out=most1)
    return most, most1
