"""Bytes on an IPU's tiles while its Blocks run, in addition to what is always live.

Stages grow Block by block: for many first Blocks at once, `Growing` tracks the most that their
stages have held in each pass. A waiting tensor is assumed to wait for all Blocks for which it may
(an estimate, never too low; most tensors go from one Block to the next).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from ipuscope.planner.costs.block_costs import BlockCosts
from ipuscope.planner.costs.memory_choice import Choice


@dataclass(frozen=True)
class Own:
    """Bytes of each Block in its passes, int64[Block, tile], and what waits for its backward."""

    forward: np.ndarray
    again: np.ndarray
    backward: np.ndarray
    update: np.ndarray
    runs_again: np.ndarray  # bool[Block]: its forward is recomputed
    waits: bool  # other micro-batches run before its backward: saved tensors are stashed
    begin: int  # the first Block of these arrays, but for ``runs_again``, which has all

    @classmethod
    def of(cls, costs: BlockCosts, choice: Choice, final: bool, some: slice = slice(None)) -> Own:
        """For stages that save memory in this way; ``final``: for those that no other follows."""
        memory, cycles = costs.memory, costs.cycles
        waits = costs.pipelined and costs.training and not final
        is_chosen = choice.recompute if waits else choice.recompute and costs.recompute
        runs_again = is_chosen & ((cycles.again if waits else cycles.again_final) > 0)
        forward, again, backward, update = memory.peak[:, some]
        recomputes, ran_again = runs_again[some], memory.ran_again[some]
        again = _chosen(recomputes & ~ran_again, forward, again)
        again = _chosen(recomputes, again, np.broadcast_to(forward.dtype.type(0), forward.shape))
        as_profiled = recomputes == ran_again
        otherwise = memory.peak_of_backward[some]
        if not as_profiled.all():
            otherwise = backward + memory.saved[some]
        if len(memory.peak_if_again):
            otherwise = _chosen(recomputes, memory.peak_if_again[some], otherwise)
        backward = _chosen(as_profiled, memory.peak_of_backward[some], otherwise)
        if choice.offload:
            update = update + memory.state_once[some]
        return cls(forward, again, backward, update, runs_again, waits, some.start or 0)

    @property
    def most(self) -> np.ndarray:
        """The most of any pass on any tile: int64[Block]; no array over tiles is made for it."""
        passes = (self.forward, self.again, self.backward, self.update)
        return reduce(np.maximum, (one.max(axis=1) for one in passes))

    def some(self, kind: type[np.integer]) -> Own:
        """The same in a smaller integer type."""
        passes = (self.forward, self.again, self.backward, self.update)
        forward, again, backward, update = (np.ascontiguousarray(one, dtype=kind) for one in passes)
        return replace(self, forward=forward, again=again, backward=backward, update=update)


def _chosen(rows: np.ndarray, these: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Some Blocks' rows of these, bool[Block], and the others' of those; no copy of all of one."""
    if rows.all():
        return these
    return np.where(rows[:, None], these, others) if rows.any() else others


class Growing:
    """Stages from ``first`` that grow Block by Block, all equally long; arrays: [stage, tile]."""

    def __init__(
        self,
        costs: BlockCosts,
        own: Own,
        first: np.ndarray,
        here: np.ndarray | None = None,
        last: np.ndarray | None = None,
    ) -> None:
        """``here``, bool[Block]: all on the IPU, if more; ``last``: Block of each, if known."""
        kind = own.forward.dtype
        self.costs, self.own, self.first, self.here = costs, own, first, here
        self.last = last
        # Rows of consecutive Blocks are a slice, which copies nothing.
        self.consecutive = bool((np.diff(first) == 1).all())
        self.saved = costs.memory.saved.astype(kind, copy=False)
        self.tensors = costs.memory.carried
        self.saves = costs.memory.any_saved and not (own.waits and not own.runs_again.any())
        self.updating = costs.memory.updating if costs.memory.any_updating else None
        shape = (len(first), self.saved.shape[1])
        self.forward, self.again, self.backward, self.update = np.zeros((4, *shape), dtype=kind)
        # recomputation that comes before any backward, in stages that no other follows
        self.early = np.zeros(shape, dtype=kind)
        self.segment_saved = np.zeros(shape, dtype=kind)  # before the newest Block
        self.last_saved = np.zeros(shape, dtype=kind)  # ... of the last segment that runs again
        self.left = np.zeros(shape, dtype=kind)  # by weight updates
        self.length = 0
        self.last_again = int(np.flatnonzero(own.runs_again).max(initial=-1))
        # the Block with which the last segment that runs again begins
        closed = np.flatnonzero(costs.cycles.closed[: self.last_again + 1])
        self.last_segment = len(costs) if own.waits else int(closed.max(initial=0))

    @classmethod
    def whole(cls, costs: BlockCosts, own: Own, first: int, last: int, here: np.ndarray) -> Growing:
        """A stage of Blocks ``first .. last`` in one go, equal to adding them one by one."""
        stage = cls(costs, own, np.array([first]), here)
        stashes = own.waits or stage.last_again < 0
        if len(stage.tensors) or len(costs.cuts.ties) or not stashes:
            for _ in range(first, last + 1):
                stage.add(1)
            return stage
        some = slice(first - own.begin, last + 1 - own.begin)
        before = np.zeros((1, 1), dtype=np.int64)
        if stage.saves:
            saved = stage.saved[first : last + 1]
            before = np.cumsum(saved, axis=0) - saved
            if own.waits:
                closed = costs.cycles.closed[first : last + 1]
                begins = np.maximum.accumulate(np.where(closed, np.arange(len(saved)), 0))
                before = before - before[begins]
        stage.forward[0] = (own.forward[some] + (0 if own.waits else before)).max(axis=0)
        if own.waits:
            stage.again[0] = (own.again[some] + before).max(axis=0)
        stage.backward[0] = (own.backward[some] + before).max(axis=0)
        stage.update[0] = own.update[some].max(axis=0)
        stage.left[0] = costs.memory.updating[first : last + 1].sum(axis=0)
        stage.length = last + 1 - first
        return stage

    def shrink(self, size: int) -> None:
        """Drop the last stages, for which the model has no more Blocks."""
        passes = ("forward", "again", "early", "backward", "update")
        for name in (*passes, "segment_saved", "last_saved", "left"):
            setattr(self, name, getattr(self, name)[:size])

    def add(self, size: int) -> None:
        """Add the next Block to each of the first ``size`` stages."""
        self.shrink(size)
        own, block = self.own, self.first[:size] + self.length
        here, own_rows = self._rows_of(block), self._rows_of(block - own.begin)
        if self.length and len(self.tensors):
            self._arrive(block)
        np.maximum(self.update, own.update[own_rows], out=self.update)
        if self.updating is not None:
            self.left += self.updating[here]
        passes = (own.forward, own.again, own.backward)
        forward, again, backward = (one[own_rows] for one in passes)
        if len(self.tensors):
            forward = self._and_waiting(block, forward, False)
            again = self._and_waiting(block, again, True)
            backward = self._and_waiting(block, backward, True)
        if len(self.costs.cuts.ties):
            backward = self._and_copies(block, backward)
        if self.saves and own.waits:
            again, backward = self._and_made_again(here, again, backward)
        elif self.saves:
            forward, again, backward = self._and_saved(block, forward, again, backward)
        np.maximum(self.forward, forward, out=self.forward)
        if own.waits:
            np.maximum(self.again, again, out=self.again)
        elif self.last_again >= 0:
            early = (block >= self.last_segment)[:, None]
            np.maximum(self.again, np.where(early, 0, again), out=self.again)
            np.maximum(self.early, np.where(early, again, 0), out=self.early)
        np.maximum(self.backward, backward, out=self.backward)
        self.length += 1

    def _last(self, first: np.ndarray) -> np.ndarray | None:
        """The last Blocks of stages that begin with ``first``, where they are known."""
        return None if self.last is None else self.last[: len(first)]

    def _rows_of(self, block: np.ndarray) -> Any:
        """An index that selects the rows of these Blocks from an array."""
        return slice(block[0], block[0] + len(block)) if self.consecutive else block

    def _and_made_again(
        self, here: Any, again: np.ndarray, backward: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add what earlier Blocks of the segment have recomputed, in a stage that stashes."""
        self.segment_saved[self.costs.cycles.closed[here]] = 0
        again, backward = again + self.segment_saved, backward + self.segment_saved
        self.segment_saved = self.segment_saved + self.saved[here]
        return again, backward

    def _and_saved(
        self, block: np.ndarray, forward: np.ndarray, again: np.ndarray, backward: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same in a stage that no other follows: what is not recomputed is still live there."""
        here = self._rows_of(block)
        behind = (block > self.last_again)[:, None]
        closed = self.costs.cycles.closed[here][:, None]
        begins = np.where(behind, (block == self.last_again + 1)[:, None], closed)
        if self.last_again < 0:
            begins = np.zeros_like(begins)
        begins_behind = begins & behind
        self.last_saved = np.where(begins_behind, self.segment_saved, self.last_saved)
        self.segment_saved[begins[:, 0]] = 0
        again = again + self.segment_saved
        backward = backward + self.segment_saved
        forward = forward + np.where(behind, self.segment_saved, 0)
        backward = backward + np.where(behind, self.last_saved, 0)
        rest = self.saved[self.last_again + 1 :].sum(axis=0)
        again = again + np.where((block >= self.last_segment)[:, None] & ~behind, rest, 0)
        self.segment_saved = self.segment_saved + self.saved[here]
        return forward, again, backward

    # -- tensors that are handed on ---

    def _arrive(self, block: np.ndarray) -> None:
        """Add tensors that the newest Blocks touch first, and for which the others wait."""
        tensors, first = self.tensors, self.first[: len(block)]
        for back in (False, True):
            some = tensors.waiting_ones(back)
            before, maker = tensors.touches_before[some], tensors.maker[some, None]
            alone = before[:, block] == before[:, first]
            if back:
                leaves = (block == maker) & (tensors.first[some, None] < first)
                leaves &= ~tensors.stays(some, self.here, first, self._last(first))
                nbytes = self._together(alone & leaves, some).astype(self.again.dtype)
                self.again += nbytes
                self.backward += nbytes
            else:
                comes = tensors.touched[some][:, block] & (maker < first)
                nbytes = self._together(alone & comes, some)
                self.forward += nbytes.astype(self.forward.dtype)

    def _and_waiting(self, block: np.ndarray, values: np.ndarray, back: bool) -> np.ndarray:
        """Add the tensors that wait while the newest Blocks run, in the forward or the backward."""
        tensors, first = self.tensors, self.first[: len(block)]
        some = tensors.waiting_ones(back)
        before = tensors.touches_before[some]
        between = (tensors.first[some, None] < block) & (block < tensors.last[some, None])
        waiting = between & ~tensors.touched[some][:, block] & (before[:, block] > before[:, first])
        waiting &= ~tensors.stays(some, self.here, first, self._last(first))
        return values + self._together(waiting, some) if waiting.any() else values

    def _together(self, which: np.ndarray, some: np.ndarray) -> np.ndarray:
        """Bytes of those tensors that are ``which``, bool[tensor, stage]: int64[stage, tile]."""
        used = which.any(axis=1)
        return sums_of(which[used], self.tensors.nbytes[some[used]])

    def _and_copies(self, block: np.ndarray, backward: np.ndarray) -> np.ndarray:
        """Add weights from another IPU for the newest or earlier Blocks, and gradients to them."""
        first, costs = self.first[: len(block)], self.costs
        away, before = _away(costs, first, self.here), costs.cuts.ties.reads_before(len(costs))
        reads = away & (before[:, block + 1] > before[:, block])
        waits = away & ~reads & (before[:, block] > before[:, first])
        reads = reads | _lands(costs, block, self.here, self._last(first))
        more = _most_of_copies(costs, block, reads)
        return backward + more + sums_of(waits, costs.tied_bytes)

    def edges(self, rows: slice = slice(None)) -> Edges:
        """What waits for other IPUs or has come from them, of some of the stages."""
        first = self.first[: len(self.forward)][rows]
        return Edges.of(self.costs, first, first + self.length - 1, self.here)

    def passes(self, rows: slice = slice(None)) -> Grown:
        """What some of the stages hold in their passes."""
        arrays = (self.forward, self.again, self.early, self.backward, self.update, self.left)
        forward, again, early, backward, update, left = (one[rows] for one in arrays)
        return Grown(forward, again, early, backward, update, left, self.own.waits)

    def most(self, edges: Edges, rows: slice = slice(None)) -> np.ndarray:
        """Maximum bytes on each tile, including what waits at the edges: [stage, tile]."""
        grown = self.passes(rows)
        running = np.maximum(grown.forward + edges.in_forward, grown.turns(edges))
        running = np.maximum(running, edges.in_exchange)
        return np.maximum(running, grown.update + grown.left)


@dataclass(frozen=True)
class Grown:
    """The most that stages hold in each pass, without what waits at their edges: [stage, tile]."""

    forward: np.ndarray
    again: np.ndarray
    early: np.ndarray  # in recomputation before any backward, in stages that no other follows
    backward: np.ndarray
    update: np.ndarray
    left: np.ndarray  # by weight updates
    waits: bool  # as in `Own`

    def turns(self, edges: Edges) -> np.ndarray:
        """The peak of the backward, recomputation included: [stage, tile]."""
        most: np.ndarray = np.maximum(self.early + edges.copies, self.backward)
        again = self.again if not self.waits else self.again + edges.copies
        return np.maximum(most, again) + edges.in_backward


@dataclass(frozen=True)
class Edges:
    """Bytes [stage, tile] that wait throughout a stage's forward, and throughout its backward."""

    arrived: np.ndarray  # gradients from other IPUs, from the beginning
    sent: np.ndarray  # activations for other IPUs, from the forward to the end
    sent_back: np.ndarray  # gradients for other IPUs, from the backward on
    entered: np.ndarray  # activations from other IPUs
    copies: np.ndarray  # of weights from other IPUs, until the backward's last read

    @property
    def in_forward(self) -> np.ndarray:
        """Live throughout the forward."""
        return self.arrived + self.copies

    @property
    def in_backward(self) -> np.ndarray:
        """Live throughout the backward, recomputation included."""
        return self.sent

    @property
    def in_exchange(self) -> np.ndarray:
        """Live while IPUs exchange: what goes and what comes, without what only passes."""
        return self.arrived + self.sent + self.sent_back + self.entered + self.copies

    @classmethod
    def of(
        cls, costs: BlockCosts, first: np.ndarray, last: np.ndarray, here: np.ndarray | None = None
    ) -> Edges:
        """``here``, bool[Block]: those that run on the IPU, if these stages are not all of them."""
        tensors = costs.memory.carried
        nothing = np.zeros((1, 1), dtype=np.int8)  # leaves the others' types alone
        copies = _copies(costs, first, last, here) if len(costs.cuts.ties) else nothing
        if not len(tensors):
            return cls(nothing, nothing, nothing, nothing, copies)
        ahead, back = tensors.over_each_cut
        into = np.where(first > 0, first - 1, len(costs) - 1)  # over the last cut goes nothing
        arrived, sent, sent_back, entered = back[last], ahead[last], back[into], ahead[into]
        for behind in (False, True):
            some = tensors.waiting_ones(behind)
            maker, before = tensors.maker[some, None], tensors.touches_before[some]
            inside = (first <= maker) & (maker <= last)
            here_too = before[:, last + 1] > before[:, first]
            elsewhere = before[:, -1:] > before[:, last + 1] - before[:, first]
            if here is not None:
                elsewhere = elsewhere & (tensors.touched[some] & ~here).any(axis=1)[:, None]
            here_too = here_too & ~tensors.stays(some, here, first, last)
            nbytes = tensors.nbytes[some]
            leaves, comes = sums_of(inside & elsewhere, nbytes), sums_of(~inside & here_too, nbytes)
            if behind:
                arrived, sent_back = arrived + comes, sent_back + leaves
            else:
                sent, entered = sent + leaves, entered + comes
        return cls(arrived, sent, sent_back, entered, copies)


def _copies(
    costs: BlockCosts, first: np.ndarray, last: np.ndarray, here: np.ndarray | None
) -> np.ndarray:
    """Bytes of the weights that stages receive from another IPU: [stage, tile]."""
    before = costs.cuts.ties.reads_before(len(costs))
    comes = _away(costs, first, here) & (before[:, last + 1] > before[:, first])
    return sums_of(comes, costs.tied_bytes)


def _away(costs: BlockCosts, first: np.ndarray, here: np.ndarray | None) -> np.ndarray:
    """Whether weights are on another IPU than stages behind their home: bool[tie, stage]."""
    homes = np.array([home for home, *_ in costs.cuts.ties.blocks])[:, None]
    there: np.ndarray = first > homes
    return there if here is None else there & ~here[homes]


def _lands(
    costs: BlockCosts, block: np.ndarray, here: np.ndarray | None, last: np.ndarray | None
) -> np.ndarray:
    """Whether gradients of weights come from another IPU, bool[tie, Block]; ``last`` if known."""
    ties = costs.cuts.ties.blocks
    homes = np.array([home for home, *_ in ties])[:, None]
    sent = np.ones((len(ties), 1), dtype=bool)
    if here is not None:
        sent = np.array([not here[readers].all() for _, *readers in ties])[:, None]
    elif last is not None:
        sent = np.array([readers[-1] for _, *readers in ties])[:, None] > last
    return np.asarray((homes == block) & sent)


def _most_of_copies(costs: BlockCosts, block: np.ndarray, travels: np.ndarray) -> np.ndarray:
    """By how much the backward's peak is more for weights that travel: int64[Block, tile].

    ``travels``, bool[tie, Block]: a copy comes to the Block, or gradients to its home. The peak
    with all the Block's weights is known; where some travel, that and their own bytes bound it.
    """
    bundles = costs.ties_alike
    moves = np.stack([travels[rows].any(axis=0) for rows in bundles])
    some = np.logical_or.reduce(moves)
    most: np.ndarray = some[:, None] * costs.memory.peak_of_copies[block]
    if len(bundles) == 1:
        return most
    own = costs.bytes_that_travel[:, block] * moves[:, :, None]
    return np.minimum(most, own.sum(axis=0))


def sums_of(which: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
    """Sum of items' bytes [item, tile] where ``which``, bool[item, stage]: int64[stage, tile]."""
    any_of_them = which.any(axis=1)
    # Products of floats are BLAS's, and exact: sums of bytes are far below 2^53.
    sums = which[any_of_them].T.astype(np.float64) @ nbytes[any_of_them].astype(np.float64)
    return sums.astype(np.int64)
