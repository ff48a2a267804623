"""What stages keep of a micro-batch between its forward and its backward, and the cycles for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ipuscope.planner.costs.block_cycles import written_recomputation
from ipuscope.planner.costs.block_memory import BlockMemory
from ipuscope.planner.costs.machine_costs import MachineCosts
from ipuscope.planner.costs.profile_columns import none, sum_by
from ipuscope.profiler.enums import Purpose
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report

Index = int | np.ndarray
# what a tile has of a tensor that is mapped linearly at the least: 128 bytes, which take 36 cycles
_LEAST = np.array([0, 0, 36, 128])


@dataclass(frozen=True)
class StashCosts:
    """What stages stash, and the cycles it costs in the forward, and again before the backward.

    ``start``: cycles of a tensor's way into its stash, whatever its size.

    ``recomputing``, int64[row, 7]: a recomputing stage that begins with one of the first two Blocks
    (or between them) and contains the third stashes its inputs and checkpoints: bytes, tensors,
    cycles, and bytes on the fullest tile. ``keeping``: the same without recomputation; of what its
    Blocks save only tensors and cycles, and bytes below 0 where these save too much. ``beyond``,
    int64[Block]: cycles that the profiled stage which begins with a Block took beyond these;
    empty: unknown.
    """

    blocks: int
    start: float
    recomputing: np.ndarray
    keeping: np.ndarray
    beyond: np.ndarray = field(default_factory=none)

    @classmethod
    def from_report(
        cls,
        report: Report,
        stage: np.ndarray,
        entering: np.ndarray,
        machine: MachineCosts,
        memory: BlockMemory,
    ) -> StashCosts:
        """``entering``, int64[Block]: bytes that enter it, as one tensor if no stash is written."""
        written = written_recomputation(report, len(stage))
        block = np.arange(len(stage))
        if written is None:
            enters = np.stack([block, block, block, entering, *[0 * block - 1] * 3], axis=1)
            tables = enters, enters
        else:
            tables = written["stashes"], _with_handed_on(written, stage)
        start, rate = machine.slice_cycles, 1 / (machine.slice_bytes_per_cycle * machine.tiles)
        if any((rows[:, 4] < 0).any() for rows in tables):  # of before: as if spread evenly
            number, nbytes = memory.saved_tensors, memory.saved.sum(axis=1)
            spent = np.rint(start * number + rate * nbytes).astype(np.int64)
            saved = np.stack([0 * block, block, block, 0 * block, number, spent, 0 * block], axis=1)
            again, kept = (_even(rows, start, rate, machine.tiles) for rows in tables)
            tables = again, np.concatenate([kept, saved])
        return cls(len(stage), start, *tables)

    def most_cycles(self) -> int:
        """No stage's stash costs more, once."""
        most = max(int(np.maximum(0, one[:, 5]).sum()) for one in (self.recomputing, self.keeping))
        return most + int(self.beyond.max(initial=0))

    def measured(self, report: Report, first: np.ndarray, fitted: np.ndarray) -> StashCosts:
        """With what profiled stages, by their ``first`` Block, took beyond ``fitted`` cycles."""
        stage, cycles = map(report.sequence.steps_in_order, ("stage", "cycles"))
        stashing = report.sequence.steps_with("purpose", Purpose.STASH)
        spent = sum_by(stage[stashing], cycles[stashing], len(first))
        beyond = np.zeros(self.blocks, dtype=np.int64)
        beyond[first[:-1]] = (spent - fitted)[:-1]
        return replace(self, beyond=beyond)

    def scaled(self, factor: float) -> StashCosts:
        """With tensors ``factor`` times as large, of which a tile has not less than the least."""

        def times(rows: np.ndarray) -> np.ndarray:
            tensors, grows = rows[:, 4:5], rows[:, 3:] - rows[:, 4:5] * [0, 1, self.start, 0]
            grown = np.maximum(grows * factor, np.minimum(grows, tensors * _LEAST))
            grown = np.ceil(rows[:, 3:] - grows + grown).astype(np.int64)
            return np.column_stack([rows[:, :3], grown])

        return replace(self, recomputing=times(self.recomputing), keeping=times(self.keeping))

    @property
    def free(self) -> StashCosts:
        """The same bytes, in no time."""
        but_cycles = np.array([1, 1, 1, 1, 1, 0, 1])
        again, kept = self.recomputing * but_cycles, self.keeping * but_cycles
        return StashCosts(self.blocks, 0.0, again, kept)

    def stashed(self, first: Index, last: Index, recompute: bool) -> tuple[np.ndarray, ...]:
        """Bytes that stages stash, cycles, and bytes on a tile; arrays broadcast.

        Bytes are without what their Blocks save.
        """
        more = np.asarray(last) - np.asarray(first)
        tables = self._tables(int(more.max(initial=0)), recompute)
        return tuple(table[first, more] for table in tables)

    def _tables(self, longest: int, recompute: bool) -> tuple[np.ndarray, ...]:
        """`stashed`, int64[first, more], of stages of up to ``longest`` more Blocks."""
        cached = self._cache.get(recompute)
        if cached is not None and cached[0].shape[1] > longest:
            return cached
        width = min(self.blocks, 2 * longest + 2)
        begin, end, inside, nbytes, _, cycles, on_tile = (
            self.recomputing if recompute else self.keeping
        ).T
        begin = np.maximum(begin, inside - width + 1)
        times = np.maximum(0, end - begin + 1)
        row = np.repeat(np.arange(len(times)), times)
        first = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times) + begin[row]
        at = first * width + np.maximum(0, inside[row] - first)

        def table(values: np.ndarray) -> np.ndarray:
            added = np.zeros(self.blocks * width, dtype=np.int64)
            np.add.at(added, at, values[row])
            return added.reshape(self.blocks, width).cumsum(axis=1)

        self._cache[recompute] = table(nbytes), table(cycles), table(on_tile)
        return self._cache[recompute]

    @cached_property
    def _cache(self) -> dict[bool, tuple[np.ndarray, ...]]:
        return {}


def _with_handed_on(written: dict[str, np.ndarray], stage: np.ndarray) -> np.ndarray:
    """``keeping``, with what Blocks hand on to others that read it back.

    A stage with both keeps it. Its bytes count as saved by a Block if its profiled stage had both:
    less for a stage that has not, and more for one that has if the profile's had not.
    """
    home, least, *spent = written["handed_on"].T
    together, from_start = stage[home] == stage[least], np.zeros_like(home)
    added = np.stack([from_start, home, least, *spent], axis=1)
    nbytes, _, _, on_tile = -written["handed_on"][:, 2:].T
    spared = np.stack([from_start, home, home, nbytes, *[from_start] * 2, on_tile], axis=1)
    return np.concatenate([written["stashes_kept"], added, spared[together]])


def _even(rows: np.ndarray, start: float, rate: float, tiles: int) -> np.ndarray:
    """Rows of which only the bytes are known, as if each tensor were spread evenly over tiles."""
    nbytes = rows[:, 3]
    tensors, on_tile = (nbytes > 0).astype(np.int64), -(-nbytes // tiles)
    cycles = np.rint(start + rate * nbytes).astype(np.int64) * tensors
    return np.column_stack([rows[:, :4], tensors, cycles, on_tile])
