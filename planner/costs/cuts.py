"""What crosses a cut between two stages, and what ties Blocks together that are further apart."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from ipuscope.planner.costs.machine_costs import MachineCosts
from ipuscope.planner.costs.profile_columns import rows_of_uses
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report

Ways = tuple[np.ndarray, np.ndarray]  # forward and back


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

    def spared(self, starts: np.ndarray, ipus: np.ndarray, cuts: np.ndarray) -> np.ndarray:
        """Bytes that need not cross each of the ``cuts``: those of `Cuts.over`.

        All readers behind it are on the IPU that has it, or in a stage that received it.
        """
        home, *reading = (np.count_nonzero(starts <= one, axis=1) - 1 for one in self.blocks)
        furthest = np.full(len(cuts), self.blocks[0])
        for at, (reader, stage) in enumerate(zip(self.blocks[1:], reading, strict=True)):
            there = ipus[stage] == ipus[home]
            for before in reading[:at]:
                there |= before == stage
            furthest = np.where(there, furthest, reader)
        low, high = np.sort([furthest, np.full(len(cuts), self.blocks[-1])], axis=0)
        behind = (cuts >= low[:, None]) & (cuts < high[:, None])
        return np.where(behind, self.nbytes, 0)


@dataclass(frozen=True)
class Cuts:
    """Bytes a micro-batch over a cut behind each Block, if each has its own IPU: int64[Block]."""

    ahead: np.ndarray
    back: np.ndarray
    ties: Ties = Ties()
    skips: tuple[tuple[Shared, ...], tuple[Shared, ...]] = ((), ())  # activations, gradients
    # cycles of the tile that sends, or receives, most over each cut: float64[2, Block]; empty: none
    tiles: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))

    def exchange(
        self, machine: MachineCosts, ipus: Sequence[int], cuts: np.ndarray, over: Ways
    ) -> np.ndarray:
        """Cycles of each IPU's exchange: the farthest one's latency, plus the busier direction.

        Each neighbour's bytes go at the rate of the link to it [JIA], or of the fullest tile. Of
        splits onto the same IPUs: int64[split, IPU]. ``cuts``, int64[split, cut]: the Block before
        each; ``over``: bytes over it, forward and back.
        """
        size, count = len(cuts), max(ipus) + 1
        ways = np.zeros((2, 2, size, count))  # over links and of tiles, sent and received
        latency = np.zeros((size, count))
        whole = self.ahead, self.back
        for k, (here, there) in enumerate(pairwise(ipus)):
            if here == there:
                continue
            moved = [way[:, k] for way in over]
            rate, hops = machine.link_rate(here, there), machine.hop_latency(here, there)
            links = [nbytes / rate for nbytes in moved]
            tiles = [np.zeros(size)] * 2
            if self.tiles.size:
                at = cuts[:, k]
                tiles = [
                    cycles[at] * nbytes / np.maximum(1, every[at])
                    for cycles, nbytes, every in zip(self.tiles, moved, whole, strict=True)
                ]
            for kind, (ahead, back) in zip(ways, (links, tiles), strict=True):
                kind[:, :, here] += ahead, back
                kind[:, :, there] += back, ahead
            waits = np.where(moved[0] + moved[1] > 0, hops, 0)
            for ipu in (here, there):
                latency[:, ipu] = np.maximum(latency[:, ipu], waits)
        busiest = ways.max(axis=(0, 1))
        return np.where(latency > 0, np.ceil(latency + busiest), 0).astype(np.int64)

    @cached_property
    def shared(self) -> tuple[tuple[Shared, ...], tuple[Shared, ...]]:
        """All that goes beyond the next Block; tied gradients return over their weight's cuts."""
        ties = tuple(map(Shared, self.ties.blocks, self.ties.nbytes))
        return ties + self.skips[0], ties + self.skips[1]

    def over(self, starts: np.ndarray, ipus: Sequence[int], cuts: np.ndarray) -> Ways:
        """Bytes over cuts, but for what is spared: int64[split, cut], of splits onto these IPUs.

        ``starts``, int64[split, stage]: their first Blocks; ``cuts``: the Block before each.
        """
        spared = np.zeros((2, *cuts.shape), dtype=np.int64)
        if len(set(ipus)) < len(ipus):
            ties, where = len(self.ties), np.array(ipus)
            for one in self.shared[0][:ties]:
                spared += one.spared(starts, where, cuts)
            for way, every in zip(spared, self.shared, strict=True):
                for one in every[ties:]:
                    way += one.spared(starts, where, cuts)
        ahead, back = np.maximum(0, [self.ahead[cuts], self.back[cuts]] - spared)
        return ahead, back

    def crossing(self, starts: Sequence[int], ipus: Sequence[int]) -> Ways:
        """`over` a cut after each Block, of one split."""
        ahead, back = self.over(np.array([starts]), ipus, np.arange(len(self.ahead))[None])
        return ahead[0], back[0]

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
        raise ValueError(f"{count} stages need {count} Blocks; the model has {len(work)}")

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
