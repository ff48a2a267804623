"""What the tiles hold while a Block's passes run, counting only what these passes touch.

Passes with equal contents step by step, such as those of equal layers, are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ipuscope.planner.costs.passes import Pass, Passes
from ipuscope.planner.costs.profile_columns import Steps, Variables
from ipuscope.planner.costs.tied_weights import SharedWeight, TiedGradients
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.timeline import liveness

_Peak = tuple[np.ndarray, np.ndarray]  # all that is live, and region 1 alone: int64[tile]
# Of variables: start, stop, row in a table of vectors (int64[row, tile]), whether in region 1.
_Lives = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class PassMemory:
    """The fields of `ipuscope.planner.costs.block_memory.BlockMemory`, under the same names."""

    peak: np.ndarray
    peak_of_backward: np.ndarray
    ran_again: np.ndarray
    peak_of_copies: np.ndarray
    updating: np.ndarray
    peak_interleaved: np.ndarray
    peak_if_again: np.ndarray

    @classmethod
    def none(cls, blocks: int, tiles: int) -> PassMemory:
        """The memory of Blocks that hold nothing."""
        each = np.zeros((5, blocks, tiles), dtype=np.int64)
        peak = np.zeros((len(Pass), blocks, tiles), dtype=np.int64)
        return cls(peak, each[0], np.zeros(blocks, dtype=bool), *each[1:])


@dataclass(frozen=True)
class Touched:
    """The variables that are not always live, and the passes that touch them."""

    variables: Variables
    saved: np.ndarray  # bool[variable]: left by a forward for its backward
    steps: Steps
    passes: Passes
    by: dict[int, np.ndarray]  # rows of the variables that each pass touches
    uses: tuple[np.ndarray, np.ndarray]  # operators, and ids of variables
    shared_weights: Sequence[SharedWeight]
    tied: TiedGradients = field(default_factory=TiedGradients)
    _peaks: dict[bytes, _Peak] = field(default_factory=dict, repr=False)

    def peak(
        self,
        rows: np.ndarray,
        spots: np.ndarray,
        arrived: Sequence[_Arrived] = (),
        there: np.ndarray | None = None,
    ) -> _Peak:
        """Peak live bytes by tile, with arrivals; ``there``, bool[row]: from the first spot on."""
        first = int(spots[0])
        offset = self.steps.begin[self.steps.ipu[first]]
        start = self.variables.start[rows] + offset - first
        stop = self.variables.stop[rows] + offset - first
        if there is not None:
            start = np.where(there, np.minimum(start, 0), start)
        region1 = self.variables.interleaved[rows]
        spots = spots - first
        alive = (stop > 0) & (start <= spots[-1])
        columns = (np.maximum(start, 0), stop, self.variables.vector[rows], region1)
        start, stop, vector, region1 = (column[alive] for column in columns)
        here, vectors = (start, stop, vector, region1), self.variables.vectors
        if arrived:
            return _most_live(*_with_arrived(here, arrived, vectors), spots)
        key = b" ".join(one.tobytes() for one in (start, stop, vector, region1, spots))
        if key not in self._peaks:
            self._peaks[key] = _most_live(here, vectors, spots)
        return self._peaks[key]


@dataclass(frozen=True)
class _Arrived:
    """What is live besides where a weight is on another IPU, in steps from a pass's first."""

    start: int
    stop: int
    nbytes: np.ndarray


def memory_of_passes(touched: Touched, tiles: int) -> PassMemory:
    """The pass memory of all Blocks."""
    blocks = touched.passes.blocks
    memory = PassMemory.none(blocks, tiles)
    rows_of_passes = touched.passes.rows()
    nothing = np.zeros(0, dtype=np.int64)
    for number, spots in rows_of_passes.items():
        kind, block = divmod(number, blocks)
        rows = touched.by.get(number, nothing)
        if kind == Pass.AGAIN:
            memory.ran_again[block] = True
            rows = np.union1d(rows, touched.by.get(Pass.BACKWARD * blocks + block, nothing))
        used, region1 = touched.peak(rows, spots)
        np.maximum(memory.peak_interleaved[block], region1, out=memory.peak_interleaved[block])
        if kind != Pass.BACKWARD:
            memory.peak[kind, block] = used
            continue
        memory.peak_of_backward[block] = used
        made_here = touched.saved[rows] & (touched.variables.block[rows] == block)
        memory.peak[kind, block] = touched.peak(rows[~made_here], spots)[0]
        memory.peak_if_again[block] = touched.peak(rows, spots, there=made_here)[0]
        memory.peak_of_copies[block] = _more_with_copies(touched, block, rows, spots, used)
    _add_updating(memory, touched, rows_of_passes)
    return memory


def _more_with_copies(
    touched: Touched, block: int, rows: np.ndarray, spots: np.ndarray, without: np.ndarray
) -> np.ndarray:
    """Extra bytes of a Block's backward where a tied weight is on another IPU: int64[tile].

    The weight, until it is last read; the gradients that the Block makes of it, to its end; and
    those that come to the Block that has it, until they are added.
    """
    ops, variables = touched.uses
    arrived = []
    for weight in touched.shared_weights:
        if block not in weight.blocks[1:]:
            continue
        readers = ops[np.isin(variables, weight.variables)]
        reads = spots[np.isin(touched.steps.op[spots], readers)]
        if len(reads):
            ipu = int(touched.steps.ipu[reads[-1]])
            end = int(reads[-1]) + 1
            if ipu in weight.ends:
                end = min(end, int(touched.steps.begin[ipu]) + weight.ends[ipu])
            arrived.append(_Arrived(0, end - int(spots[0]), weight.nbytes))
    arrived += _gradients_that_travel(touched, block, spots)
    if not arrived:
        return np.zeros_like(without)
    return np.maximum(0, touched.peak(rows, spots, arrived)[0] - without)


def _gradients_that_travel(touched: Touched, block: int, spots: np.ndarray) -> list[_Arrived]:
    """Those that the Block makes, from where they would be added, and those that come to it."""
    tied, variables = touched.tied, touched.variables
    end = int(spots[-1] + 1 - spots[0])
    begin = int(touched.steps.begin[touched.steps.ipu[spots[0]]] - spots[0])
    travelling = []
    rows = np.flatnonzero(np.isin(variables.tensor, tied.tensor))
    part = rows_of(variables.tensor[rows], tied.tensor)
    for row, home, reader in zip(rows, tied.home[part], tied.reader[part], strict=True):
        nbytes = variables.vectors[variables.vector[row]]
        if reader == block:
            added = int(np.clip(variables.stop[row] + begin, 0, end))
            travelling.append(_Arrived(added, end, nbytes))
        elif home == block:
            travelling.append(_Arrived(0, 1, nbytes))
    return travelling


def _add_updating(memory: PassMemory, touched: Touched, spots: dict[int, np.ndarray]) -> None:
    """What a Block's weight update begins with and others' end with; it is no peak of its own."""
    variables, steps, blocks = touched.variables, touched.steps, touched.passes.blocks
    first = steps.at(variables.ipu, variables.start)
    begun = np.where(first >= 0, touched.passes.at[first], -1)
    last = np.full(blocks, len(steps))  # row of the last step of each Block's update
    for block in range(blocks):
        steps_of_update = spots.get(Pass.UPDATE * blocks + block)
        if steps_of_update is not None:
            last[block] = steps_of_update[-1]
    of_block = begun - Pass.UPDATE * blocks
    in_update = (of_block >= 0) & (of_block < blocks)
    end = steps.begin[variables.ipu] + variables.stop
    chosen = np.flatnonzero(in_update & (end > last[of_block.clip(0, blocks - 1)] + 1))
    left = variables.where(chosen).bytes_by(of_block[chosen], blocks)
    memory.updating[:] += left
    memory.peak[Pass.UPDATE] -= left
    np.maximum(memory.peak, 0, out=memory.peak)


def _with_arrived(
    here: _Lives, arrived: Sequence[_Arrived], vectors: np.ndarray
) -> tuple[_Lives, np.ndarray]:
    """The lives and the table of vectors, with those that arrived at the end of both."""
    start, stop, vector, region1 = here
    none = np.zeros(len(arrived), dtype=np.int64)
    with_them = (
        np.concatenate([start, [one.start for one in arrived]]),
        np.concatenate([stop, [one.stop for one in arrived]]),
        np.concatenate([vector, len(vectors) + np.arange(len(arrived))]),
        np.concatenate([region1, none.astype(bool)]),
    )
    return with_them, np.concatenate([vectors, [one.nbytes for one in arrived]])


def _most_live(here: _Lives, vectors: np.ndarray, spots: np.ndarray) -> _Peak:
    """The peak of live bytes on each tile at ``spots``, and of those in region 1.

    What only other Blocks hold, between this one's forward and backward, is not in it.
    """
    start, stop, vector, region1 = here
    used = _most_at(start, stop, vector, vectors, spots)
    return used, _most_at(start[region1], stop[region1], vector[region1], vectors, spots)


def _most_at(
    start: np.ndarray, stop: np.ndarray, vector: np.ndarray, vectors: np.ndarray, spots: np.ndarray
) -> np.ndarray:
    """The most that is live on each tile at any of the ``spots``: int64[tile]."""
    at = np.concatenate([start, stop])
    counted = at <= spots[-1]
    times, when = np.unique(at[counted], return_inverse=True)
    behind = np.append(times[1:], spots[-1] + 1)
    in_pass = np.searchsorted(spots, behind) > np.searchsorted(spots, times)
    if not in_pass.any():
        return np.zeros(vectors.shape[1], dtype=np.int64)
    rows, row = np.unique(vector, return_inverse=True)
    changes = np.zeros((len(times), len(rows)), dtype=np.int32)
    sign = np.repeat([1, -1], len(start))
    np.add.at(changes, (when, np.tile(row, 2)[counted]), sign[counted])
    return liveness.fullest_states(np.cumsum(changes, axis=0)[in_pass], vectors[rows])[0]
