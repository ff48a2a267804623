"""What each Block costs, wherever it was read; each group of costs has its own module."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from itertools import product
from typing import Any, Self

import numpy as np

from ipuscope.planner.costs.accumulating import Accumulating
from ipuscope.planner.costs.all_reduce import Rings
from ipuscope.planner.costs.block_cycles import BlockCycles
from ipuscope.planner.costs.block_memory import BlockMemory
from ipuscope.planner.costs.cuts import Cuts
from ipuscope.planner.costs.host_streams import HostStreams
from ipuscope.planner.costs.machine_costs import MachineCosts
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_columns import none, sums_between
from ipuscope.planner.costs.stash_costs import StashCosts
from ipuscope.planner.costs.tied_weights import TiedGradients
from ipuscope.profiler.lazy import cached_property

Index = int | np.ndarray
_MOST_KEPT = 8  # sets of `BlockCosts.tables`
# what these do not depend on, or say in their keys, and the memory, which has them
_BESIDE = {
    *("micro_batches", "samples", "replicas", "reduce", "rings", "too_full"),
    *("machine", "memory", "streams", "accumulating"),
}


@dataclass(frozen=True)
class BlockCosts:
    """Blocks in the order of the model, and how the profile ran them. Units: cycles, bytes.

    A stage stashes what enters it and, if it recomputes, its checkpoints, else what its Blocks
    save.
    """

    names: tuple[str, ...]
    stage: np.ndarray  # of each Block, as profiled
    ipus: tuple[int, ...]  # of each stage, as profiled
    machine: MachineCosts
    cycles: BlockCycles
    memory: BlockMemory
    stash: StashCosts
    streams: HostStreams
    cuts: Cuts
    reduce: int  # cycles of a weight update that replicas exchange gradients and weights
    micro_batches: int
    samples: int  # a micro-batch, over all replicas
    training: bool
    pipelined: bool
    recompute: bool
    # one stage of all Blocks recomputes too: only where autoRecomputation says so
    recompute_alone: bool = True
    # one stage of all Blocks sends its activations off the chip, which no pipeline does: unpriced
    alone_off_chip: bool = False
    # ... priced by what the Blocks save: cycles of a pass, int64[Block]; empty: they stay
    moved_alone: np.ndarray = field(default_factory=none)
    offload: bool = False  # optimiser state was profiled off the chip
    # how each stage saved memory as profiled (`Choice`); empty: all as the two above say
    choices: tuple[Choice, ...] = ()
    # the share of its memory that an IPU's products may use, where options say it
    proportions: tuple[tuple[str, float], ...] = ()
    # what the tiles held as profiled is known (`BlockMemory.residual`)
    measured: bool = False
    replicas: int = 1
    # the stages (first Block, last Block, choice) of IPUs that a compile has shown to be too full
    too_full: frozenset[tuple[tuple[int, int, Choice], ...]] = frozenset()
    # Options.autoRoundNumIPUs: a number of IPUs that is not a power of two is rounded up
    rounds: bool = False

    # ... of Blocks that had one of their own
    block_proportions: tuple[tuple[str, float], ...] = ()
    usual_proportion: float = 0.6  # where nothing says it: Poplar's availableMemoryProportion
    # bytes of each Block's gradients; `rings`, for other numbers of replicas, goes before `reduce`
    gradients: np.ndarray = field(default_factory=none)
    rings: Rings | None = None
    # `all_reduce.reduced_alone`
    reduced_alone: np.ndarray = field(default_factory=none)
    # extra cycles of a weight update on several IPUs, which exchange what is made of all gradients
    # (the norm that clips them) and wait for it; None: nothing is
    meeting: int | None = None

    # cycles of ``cycles.backward`` are counted with additions in the weights' Blocks
    tied_gradients: TiedGradients = field(default_factory=TiedGradients)

    # cycles of state in the profile beyond the estimate, on a Block of each IPU; empty: unknown
    moves_beyond: np.ndarray = field(default_factory=none)

    # what accumulators take, from one micro-batch on or back to one; None: no training
    accumulating: Accumulating | None = None

    def of_micro_batches(self, count: int) -> Self:
        """With so many a weight update; where `accumulates_otherwise`, an estimate."""
        more, cycles, memory = self.accumulating, self.cycles, self.memory
        if more is None or not self.accumulates_otherwise(count):
            return replace(self, micro_batches=count)
        return replace(
            self,
            micro_batches=count,
            cycles=replace(
                cycles,
                backward=np.maximum(0, cycles.backward + more.backward),
                update=np.maximum(0, cycles.update + more.update),
            ),
            memory=replace(memory, always=memory.always + more.nbytes),
            accumulating=None,
            measured=False,
        )

    def accumulates_otherwise(self, count: int) -> bool:
        """Whether so many micro-batches have accumulators, and the profile's none, or reverse."""
        return self.accumulating is not None and (count > 1) != self.accumulating.has

    def block_proportion(self, block: int) -> float:
        """The share of an IPU's memory that a Block's products may use, as it was profiled."""
        own = dict(self.block_proportions).get(self.names[block])
        if own is not None:
            return own
        ipu = str(self.ipus[int(self.stage[block])])
        return dict(self.proportions).get(ipu, self.usual_proportion)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def own_choice(self) -> Choice:
        """The choice with which the profile was made."""
        return Choice(self.recompute, self.offload)

    @property
    def own_choices(self) -> tuple[Choice, ...]:
        """What the profile's stages do, in any combination, cheapest first."""
        ways = self.choices or (self.own_choice,)
        again, off = (sorted(set(way)) for way in zip(*map(astuple, ways), strict=True))
        return tuple(Choice(*way) for way in product(again, off))

    def choices_of(self, starts: Sequence[int]) -> tuple[Choice, ...]:
        """The choices of stages with these first Blocks: each that of most of its Blocks."""
        if not self.choices:
            return (self.own_choice,) * len(starts)
        most = (np.bincount(one).argmax() for one in np.split(self.stage, starts[1:]))
        return tuple(self.choices[k] for k in most)

    def named_choices(self, chosen: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """The choices of stages as an assignment names them: empty where no profile's differ."""
        usual = all(choice == self.own_choice for choice in chosen)
        return () if usual and not self.choices else chosen

    def reduces(self, of_ipus: np.ndarray) -> np.ndarray:
        """Cycles of the exchanges of replicas and of `meeting`: int64, IPUs along the last axis.

        ``of_ipus``: the bytes of `gradients` on each.
        """
        meeting = self.meeting_of(of_ipus.shape[-1])
        if self.rings is None:
            return np.full(of_ipus.shape, self.reduce + meeting, dtype=np.int64)
        return self.rings.cycles(of_ipus) + meeting

    def least_reduce(self, ipus: int) -> int:
        """Cycles of these exchanges, which no split onto so many IPUs is below."""
        least = self.reduce if self.rings is None else self.rings.least(self.gradients, ipus)
        return least + self.meeting_of(ipus)

    def meeting_of(self, ipus: int) -> int:
        """Cycles of `meeting` on so many IPUs."""
        return self.meeting or 0 if ipus > 1 else 0

    def with_tile_bytes(self, nbytes: int) -> Self:
        """The same on tiles of so many bytes."""
        return replace(self, machine=replace(self.machine, bytes_per_tile=nbytes))

    def stash_cycles(self, first: Index, last: Index, recompute: bool) -> np.ndarray:
        """Cycles to fill, or empty, the stash of stages of Blocks ``first .. last``."""
        if not self.training:
            return np.zeros(np.broadcast(first, last).shape, dtype=np.int64)
        fitted = self.goes_back[last] * self.stash.stashed(first, last, recompute)[1]
        if not len(self.stash.beyond):
            return fitted
        measured: np.ndarray = np.maximum(0, fitted + self.stash.beyond[first])
        return np.where(fitted > 0, measured, 0)

    def stash_bytes(self, first: Index, last: Index, recompute: bool) -> np.ndarray:
        """Bytes a micro-batch of the same stages' stash, all tiles."""
        return self._with_saved(0, self.saved_bytes, first, last, recompute)

    def stash_on_tile(self, first: Index, last: Index, recompute: bool) -> np.ndarray:
        """... of the tile with most of each tensor."""
        return self._with_saved(2, self._saved_on_tile, first, last, recompute)

    def _with_saved(
        self, which: int, saved: np.ndarray, first: Index, last: Index, recompute: bool
    ) -> np.ndarray:
        nbytes = self.stash.stashed(first, last, recompute)[which] * self.goes_back[last]
        return nbytes if recompute else nbytes + sums_between(saved, first, last)

    def again_cycles(self, first: Index, last: Index) -> np.ndarray:
        """Forward cycles recomputed by stages of Blocks ``first .. last`` that others follow."""
        before = sums_between(self.cycles.again, first, np.asarray(last) - 1)
        cycles: np.ndarray = before + self.cycles.again_end[last]
        for block, least, more in self.cycles.again_far.tolist():
            cycles = cycles + more * ((first <= block) & (np.asarray(last) >= least))
        return cycles * self.goes_back[last]

    def again_at_once(self, first: Index, last: Index) -> np.ndarray:
        """The same for stages whose backward follows their forward at once.

        That is the last stage of a pipeline, and every stage without one. A stage of all Blocks is
        none: by default only pipelines recompute.
        """
        again = self.cycles.again_final if self.recompute else np.zeros(len(self), dtype=np.int64)
        cycles = sums_between(again, first, last)
        if not self.recompute_alone:
            alone = (np.asarray(first) == 0) & (np.asarray(last) == len(self) - 1)
            cycles = np.where(alone, 0, cycles)
        return cycles

    def alone_cycles(self, first: Index, last: Index) -> np.ndarray:
        """Cycles of a pass that `moved_alone` takes in stages of Blocks ``first .. last``."""
        alone = (np.asarray(first) == 0) & (np.asarray(last) == len(self) - 1)
        return alone * self.moved_alone.sum(dtype=np.int64)

    @cached_property
    def goes_back(self) -> np.ndarray:
        """Whether a stage that ends with each Block has a backward: bool[Block].

        It has none where nothing up to there trains, as in a frozen feature extractor: it stashes
        nothing and recomputes nothing.
        """
        some: np.ndarray = np.maximum.accumulate(self.cycles.backward > 0)
        return some

    @cached_property
    def tied_bytes(self) -> np.ndarray:
        """Bytes of each tied weight: int64[tie, tile]; spread evenly if the layout is unknown."""
        ties = self.cuts.ties
        if len(self.memory.copies) == len(ties):
            return self.memory.copies
        even = [-(-nbytes // self.machine.tiles) for nbytes in ties.nbytes]
        return np.repeat(np.array(even, dtype=np.int64)[:, None], self.machine.tiles, axis=1)

    @cached_property
    def sharing(self) -> np.ndarray:
        """The Blocks that share a weight, ascending."""
        carried = self.memory.carried
        blocks = {block for readers in self.cuts.ties.blocks for block in readers}
        for ends in (carried.first, carried.maker):
            blocks.update(ends[carried.is_tied].tolist())
        return np.array(sorted(blocks), dtype=np.int64)

    @cached_property
    def ties_alike(self) -> tuple[np.ndarray, ...]:
        """Rows of the shared weights that the same Blocks read: where one is, all of them are."""
        rows: dict[tuple[int, ...], list[int]] = {}
        for row, blocks in enumerate(self.cuts.ties.blocks):
            rows.setdefault(blocks, []).append(row)
        return tuple(map(np.array, rows.values()))

    @cached_property
    def bytes_that_travel(self) -> np.ndarray:
        """The most a Block holds of travelling weights: int64[`ties_alike`, Block, tile].

        Where it reads another's weight, the weight and the gradient that it makes of it; where it
        has the weight, all the gradients.
        """
        carried, ties = self.memory.carried, self.cuts.ties.blocks
        most = np.zeros((len(self.ties_alike), len(self), self.machine.tiles), dtype=np.int64)
        tied = np.flatnonzero(carried.is_tied)
        for nbytes, rows in zip(most, self.ties_alike, strict=True):
            home, *readers = ties[rows[0]]
            nbytes[readers] += self.tied_bytes[rows].sum(axis=0)
            for row in tied[(carried.first[tied] == home) & np.isin(carried.maker[tied], readers)]:
                nbytes[[home, carried.maker[row]]] += carried.nbytes[row]
        return most

    @cached_property
    def saved_bytes(self) -> np.ndarray:
        """What each Block saves for its backward, all tiles: int64[Block]."""
        nbytes: np.ndarray = self.memory.saved.sum(axis=1)
        return nbytes

    @cached_property
    def _saved_on_tile(self) -> np.ndarray:
        nbytes: np.ndarray = self.memory.saved.max(axis=1, initial=0)
        return nbytes

    @cached_property
    def cache(self) -> dict[object, Any]:
        """Results already computed from these costs, by the function and its arguments."""
        return {}

    @property
    def tables(self) -> dict[object, Any]:
        """Results that depend on none of `_BESIDE`, for all costs with this memory.

        Every place of a plan has costs of its own, most of which differ in nothing else.
        """
        mine = [getattr(self, one.name) for one in fields(self) if one.name not in _BESIDE]
        for theirs, tables in self.memory.kept:
            if all(map(operator.is_, mine, theirs)):
                return tables
        tables = dict[object, Any]()
        del self.memory.kept[: 1 - _MOST_KEPT]
        self.memory.kept.append((mine, tables))
        return tables

    @cached_property
    def moves(self) -> np.ndarray:
        """Cycles of a weight update for off-chip optimiser state to come and go: int64[Block]."""
        state = self.memory.state.sum(axis=1)
        cycles = self.machine.offload_cycles(state, self.memory.state_weights)
        estimated: np.ndarray = np.ceil(cycles).astype(np.int64)
        if not len(self.moves_beyond):
            return estimated
        return np.where(estimated > 0, np.maximum(0, estimated + self.moves_beyond), 0)
