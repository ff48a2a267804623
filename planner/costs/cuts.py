"""What crosses a cut between two stages, and what ties Blocks together that are further apart."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipuscope.planner.costs.profile_columns import rows_of_uses
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report


@dataclass(frozen=True)
class Ties:
    """Weights that several Blocks read: names, Blocks, bytes; ``tensors``: ids in the profile."""

    names: tuple[str, ...] = ()
    blocks: tuple[tuple[int, ...], ...] = ()
    nbytes: tuple[int, ...] = ()
    tensors: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def parted(self, ipus: Sequence[int] | np.ndarray) -> list[int]:
        """Those whose Blocks are on several IPUs. ``ipus``: the IPU of each Block."""
        return [tie for tie, blocks in enumerate(self.blocks) if len({ipus[b] for b in blocks}) > 1]

    def reads_before(self, blocks: int) -> np.ndarray:
        """How many Blocks before each read a weight that is another's: int64[tie, Block + 1]."""
        if blocks not in self._cached_reads:
            before = np.zeros((len(self), blocks + 1), dtype=np.int64)
            for row, (_, *readers) in zip(before, self.blocks, strict=True):
                row[np.array(readers) + 1] = 1
            self._cached_reads[blocks] = before.cumsum(axis=1)
        return self._cached_reads[blocks]

    @cached_property
    def _cached_reads(self) -> dict[int, np.ndarray]:
        return {}

    @classmethod
    def from_report(cls, report: Report) -> Ties:
        """From the forward operators that read each weight."""
        ops, variables = map(report.file.table, (records.Op, records.Variable))
        variables.read("id", "tensor", "bytes")
        is_weight = variables.equals("role", Role.WEIGHT)
        reads = ops.equals("direction", Direction.FORWARD) & (ops["block"] >= 0)
        rows, by = rows_of_uses(report)
        selected = is_weight[rows] & reads[by]
        rows, by = rows[selected], by[selected]
        readers: dict[int, set[int]] = {}
        size: dict[int, int] = {}
        first: dict[int, int] = {}  # row of the first use: a copy of the weight has a number
        columns = (variables["tensor"][rows], ops["block"][by], rows)
        for tensor, block, row in zip(*(column.tolist() for column in columns), strict=True):
            readers.setdefault(tensor, set()).add(block)
            size[tensor] = max(size.get(tensor, 0), int(variables["bytes"][row]))
            first.setdefault(tensor, row)
        tied = sorted(tensor for tensor, readers_of in readers.items() if len(readers_of) > 1)
        ids = (int(variables["id"][first[tensor]]) for tensor in tied)
        return cls(
            tuple(map(report.usage.variable_name, ids)),
            tuple(tuple(sorted(readers[tensor])) for tensor in tied),
            tuple(size[tensor] for tensor in tied),
            tuple(tied),
        )


@dataclass(frozen=True)
class Shared:
    """What a Block has and Blocks beyond the next one read."""

    blocks: tuple[int, ...]  # away from the first
    nbytes: int  # cross every cut up to the last reader that is on another IPU

    def spared(self, starts: Sequence[int], ipus: Sequence[int]) -> slice:
        """The cuts, by the Block before them, that need not be crossed, for stages from ``starts``.

        Behind these, all readers are on the IPU that has it, or in a stage that received it.
        """
        home, *readers = self.blocks
        own = ipus[bisect_right(starts, home) - 1]
        there = {k for k, ipu in enumerate(ipus) if ipu == own}
        furthest = home
        for reader in readers:
            stage = bisect_right(starts, reader) - 1
            if stage not in there:
                furthest = reader
            there.add(stage)
        return slice(*sorted((furthest, readers[-1])))


@dataclass(frozen=True)
class Cuts:
    """Bytes a micro-batch over a cut behind each Block, if each has its own IPU: int64[Block]."""

    ahead: np.ndarray
    back: np.ndarray
    ties: Ties = Ties()
    skips: tuple[tuple[Shared, ...], tuple[Shared, ...]] = ((), ())  # activations, gradients

    @cached_property
    def shared(self) -> tuple[tuple[Shared, ...], tuple[Shared, ...]]:
        """All that goes beyond the next Block; tied gradients return over their weight's cuts."""
        ties = tuple(map(Shared, self.ties.blocks, self.ties.nbytes))
        return ties + self.skips[0], ties + self.skips[1]

    def crossing(self, starts: Sequence[int], ipus: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Bytes over a cut after each Block, forward and back, but for what is spared."""
        ahead, back = self.ahead, self.back
        if len(set(ipus)) == len(ipus):
            return ahead, back
        spared = np.zeros((2, len(ahead)), dtype=np.int64)
        for way, every in zip(spared, self.shared, strict=True):
            for one in every:
                way[one.spared(starts, ipus)] += one.nbytes
        return np.maximum(0, ahead - spared[0]), np.maximum(0, back - spared[1])

    @cached_property
    def may_stay(self) -> np.ndarray:
        """Bytes that may not have to cross each cut, forward and back: int64[2, Block]."""
        spared = np.zeros((2, len(self.ahead)), dtype=np.int64)
        for way, every in zip(spared, self.shared, strict=True):
            for one in every:
                low, high = sorted((one.blocks[0], one.blocks[-1]))
                way[low:high] += one.nbytes
        return spared


def even_runs(work: np.ndarray, count: int) -> tuple[int, ...]:
    """Where ``count`` runs of Blocks begin whose longest is as short as possible. Exact.

    ``work``: cycles of each Block. ValueError if there are fewer Blocks than runs.
    """
    if count > len(work):
        raise ValueError(f"{count} stages need as many Blocks; the model has {len(work)}")

    def begins(most: int) -> list[int]:
        starts, spent = [0], 0
        for at, cycles in enumerate(work.tolist()):
            needed = len(work) - at == count - len(starts)
            if at and (spent + cycles > most or needed):
                starts.append(at)
                spent = 0
            spent += cycles
        return starts

    low, high = int(work.max()), int(work.sum())
    few = bisect_left(range(low, high), True, key=lambda most: len(begins(most)) <= count)
    return tuple(begins(low + few))
