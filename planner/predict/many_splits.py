"""Cycles of many splits at once: `what_if` without laying out a schedule for each.

Arrays are int64[split, stage] unless noted. A million splits take about a second if each stage has
an IPU (a closed form). If stages share one, or transfers overlap with work, each split's few
distinct pipeline cycles are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_columns import sums_between
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, counted_micro_batches, what_if
from ipuscope.profiler.timeline import closed_forms

_CELLS = 200_000  # of split x pipeline cycle x IPU, at a time


@dataclass(frozen=True)
class ManySplits:
    """Contiguous splits onto the same list of IPUs: first Blocks, and indices into ``choices``."""

    starts: np.ndarray
    choice: np.ndarray
    ipus: tuple[int, ...]
    choices: tuple[Choice, ...]

    def last(self, blocks: int) -> np.ndarray:
        """Last Block of each stage."""
        end = np.full((len(self.starts), 1), blocks - 1)
        return np.concatenate([self.starts[:, 1:] - 1, end], axis=1)

    def part(self, some: slice) -> ManySplits:
        """A subset of the splits."""
        return ManySplits(self.starts[some], self.choice[some], self.ipus, self.choices)


def total_cycles(costs: Costs, splits: ManySplits) -> np.ndarray:
    """Cycles of a weight update (a device iteration in inference): int64[split].

    As in `what_if`; at most that if I/O continues into the next device iteration, as loads beside
    the weight update are left out.
    """
    stages = splits.starts.shape[1]
    micro_batches = counted_micro_batches(costs, stages)
    cycles = 1 if _has_closed_form(costs, splits.ipus) else 4 * stages  # that are laid out
    at_once = max(1, _CELLS // (cycles * (max(splits.ipus) + 1) * 2))
    pieces = [
        _Turn(costs, splits.part(slice(at, at + at_once)), micro_batches).total()
        for at in range(0, len(splits.starts), at_once)
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)


def _has_closed_form(costs: Costs, ipus: tuple[int, ...]) -> bool:
    """Whether stages have an IPU each, and all IPUs wait for the host together."""
    together = costs.streams.sync not in ("alone", "sides") or max(ipus) == 0
    beside = np.any(costs.streams.load) or np.any(costs.streams.unload)
    return costs.pipelined and len(set(ipus)) == len(ipus) and together and not beside


def assignment_cycles(costs: Costs, assignment: Assignment) -> int:
    """``what_if(costs, assignment).total``, mostly without its schedule."""
    return int(cycles_of_assignments(costs, [assignment])[0])


def cycles_of_assignments(costs: Costs, assignments: Sequence[Assignment]) -> np.ndarray:
    """`assignment_cycles` of some splits onto the same list of IPUs: int64[split]."""
    if costs.streams.across or not assignments:
        return np.array([what_if(costs, one).total for one in assignments], dtype=np.int64)
    chosen = [[part.choice for part in one.parts(costs)] for one in assignments]
    number = {choice: at for at, choice in enumerate(dict.fromkeys(chain.from_iterable(chosen)))}
    which = np.array([[number[choice] for choice in ways] for ways in chosen])
    starts = np.array([one.starts for one in assignments])
    return total_cycles(costs, ManySplits(starts, which, assignments[0].ipus, tuple(number)))


def cycles_of_starts(costs: Costs, like: Assignment, starts: np.ndarray) -> np.ndarray:
    """`cycles_of_assignments` of splits that differ in where stages start: int64[split, stage]."""
    if costs.streams.across or not len(starts):
        every = [replace(like, starts=tuple(row)) for row in starts.tolist()]
        return cycles_of_assignments(costs, every)
    chosen = [part.choice for part in like.parts(costs)]
    number = {choice: at for at, choice in enumerate(dict.fromkeys(chosen))}
    which = np.broadcast_to([number[choice] for choice in chosen], starts.shape)
    return total_cycles(costs, ManySplits(starts, which, like.ipus, tuple(number)))


def copies_bound(costs: Costs, nbytes: np.ndarray) -> np.ndarray:
    """A lower bound, in cycles, on an exchange whose busiest link moves this many bytes one way."""
    machine = costs.machine
    rate = max(machine.link_bytes_per_cycle, machine.board_link_bytes_per_cycle)
    return np.where(nbytes > 0, np.ceil(machine.link_latency + nbytes / rate), 0).astype(np.int64)


class _Turn:
    """One weight update for each of several splits."""

    def __init__(self, costs: Costs, splits: ManySplits, micro_batches: int) -> None:
        self.costs, self.splits, self.micro_batches = costs, splits, micro_batches
        self.first, self.last = splits.starts, splits.last(len(costs))
        self.num_ipus = max(splits.ipus) + 1
        self.forward, self.backward = self._stage_cycles()
        streams = costs.streams
        self.stream_in = self._streams(streams.stream_in)
        self.stream_out = self._streams(streams.stream_out)
        self.load, self.unload = self._streams(streams.load), self._streams(streams.unload)
        self.sync = costs.machine.sync if self.num_ipus > 1 else 0

    def total(self) -> np.ndarray:
        """Total cycles of each split."""
        if not self.costs.pipelined:
            work = self._sharded()
        elif _has_closed_form(self.costs, self.splits.ipus):
            work = self._closed_form()
        else:
            work = self._cycle_by_cycle()
        return work + self._update()

    def _stage_cycles(self) -> tuple[np.ndarray, np.ndarray]:
        """Forward and backward cycles of each stage, as in `what_if.stage_cycles`."""
        costs, stages = self.costs, self.first.shape[1]
        forward, backward = self._sums(costs.cycles.forward), self._sums(costs.cycles.backward)
        if not costs.pipelined or not costs.training:
            backward = backward + costs.again_at_once(self.first, self.last)
            return forward, backward if costs.training else np.zeros_like(backward)
        backward[:, -1] += costs.again_at_once(self.first[:, -1], self.last[:, -1])
        alone = costs.alone_cycles(self.first[:, -1], self.last[:, -1])
        forward[:, -1] += alone
        backward[:, -1] += alone
        early = slice(0, stages - 1)
        first, last = self.first[:, early], self.last[:, early]
        for number, choice in enumerate(self.splits.choices):
            chosen = self.splits.choice[:, early] == number
            if not chosen.any():
                continue
            stash = costs.stash_cycles(first, last, choice.recompute)
            again = costs.again_cycles(first, last) if choice.recompute else 0
            forward[:, early] += np.where(chosen, stash, 0)
            backward[:, early] += np.where(chosen, stash + again, 0)
        return forward, backward

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Of each stage's Blocks."""
        return sums_between(values, self.first, self.last)

    def _streams(self, cycles: np.ndarray) -> np.ndarray:
        if not len(cycles) or not cycles.any():
            return np.zeros_like(self.first)
        of_stage = self._sums(cycles)
        return np.where(of_stage > 0, of_stage + self.costs.streams.latency, 0)

    def _copies(self) -> np.ndarray:
        """Longest exchange of an IPU, by split."""
        cuts, ipus, behind = self.costs.cuts, self.splits.ipus, self.last[:, :-1]
        over = cuts.over(self.first, ipus, behind)
        longest: np.ndarray = cuts.exchange(self.costs.machine, ipus, behind, over).max(axis=1)
        return longest

    # -- the pipeline ---

    def _overhead(self) -> np.ndarray:
        return self.sync + self._copies()

    def _closed_form(self) -> np.ndarray:
        """Cycles with one stage per IPU, if all IPUs wait for the host together."""
        stages, count = self.first.shape[1], self.micro_batches
        forward, backward = self.forward, self.backward
        outputs = np.zeros_like(forward) if self.costs.streams.out_once else self.stream_out
        hosts = _inference(self.stream_in, count) + _inference(outputs, count)
        cycles = closed_forms.pipeline_cycles(stages, count, self.costs.training)
        if self.costs.training:
            work = _training(forward, backward, count)
        else:
            work = _inference(forward, count)
        return work + hosts + cycles * self._overhead()

    def _cycle_by_cycle(self) -> np.ndarray:
        """Cycles as in `schedules.pipelined`; each distinct pipeline cycle is computed once."""
        costs, stages = self.costs, self.first.shape[1]
        depth = closed_forms.pipeline_stages(stages, costs.training)
        shown = min(self.micro_batches, depth + 4)
        cycles = np.arange(shown + depth - 1)
        forward = _active(cycles, np.arange(stages), shown)
        backward = _active(cycles, 2 * (stages - 1) - np.arange(stages), shown)
        outputs = np.zeros_like(self.stream_out) if costs.streams.out_once else self.stream_out
        none = np.zeros_like(forward[:1])
        ends = (0, cycles[-1])
        earliest, latest = (forward & (cycles == one)[:, None] for one in ends)
        behind = np.vstack([latest[-1:] if costs.streams.across else none, forward[:-1]])
        before = np.vstack([forward[1:], none])
        work = [(forward, self.forward), *([(backward, self.backward)] * costs.training)]
        beside = [(before, self.load), (behind, self.unload)]
        groups, length = np.array(self._groups()), np.zeros((1, 1), dtype=np.int64)
        for one in set(groups.tolist()):  # until all its IPUs have met and their outputs are out
            ipus = np.flatnonzero(groups == one).tolist()
            busy = np.maximum(self._longest(ipus, *work), self._longest(ipus, *beside))
            begin = self._longest(ipus, (forward, self.stream_in))
            length = np.maximum(length, begin + busy + self._longest(ipus, (forward, outputs)))
        if not costs.streams.across:
            length += self._longest(range(self.num_ipus), (earliest, self.load))
            length += self._longest(range(self.num_ipus), (latest, self.unload))
        more = self.micro_batches - shown
        middle = length[:, len(cycles) // 2]
        every = closed_forms.pipeline_cycles(stages, self.micro_batches, costs.training)
        return length.sum(axis=1) + more * middle + every * self._overhead()

    def _on_ipus(self, of_stages: np.ndarray) -> np.ndarray:
        """Cycles, or bytes, of stages on their IPUs: int64[split, IPU]."""
        sums = np.zeros((len(of_stages), self.num_ipus), dtype=np.int64)
        for k, ipu in enumerate(self.splits.ipus):
            sums[:, ipu] += of_stages[:, k]
        return sums

    def _longest(self, ipus: Iterable[int], *spent: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """The most that one of the IPUs takes for its active stages: int64[split, cycle].

        ``spent``: whether each stage is active, bool[cycle, stage], and its cycles.
        """
        longest = np.zeros((len(self.first), len(spent[0][0])), dtype=np.int64)
        some = [one for one in spent if one[1].any()]
        for ipu in ipus if some else ():
            mine = [k for k, other in enumerate(self.splits.ipus) if other == ipu]
            of_ipu = sum(taken[:, k, None] * active[:, k] for active, taken in some for k in mine)
            np.maximum(longest, of_ipu, out=longest)
        return longest

    def _groups(self) -> tuple[int, ...]:
        sync = self.costs.streams.sync
        if sync == "alone":
            return tuple(range(self.num_ipus))
        return tuple(ipu % 2 if sync == "sides" else 0 for ipu in range(self.num_ipus))

    # -- no pipeline ---

    def _sharded(self) -> np.ndarray:
        """Cycles as in `schedules.sharded`."""
        costs, stages, ipus = self.costs, self.first.shape[1], self.splits.ipus
        before = self._on_ipus(self.stream_in)
        outputs = np.zeros_like(self.stream_out) if costs.streams.out_once else self.stream_out
        begin, overhead = before.max(axis=1), self._overhead()
        group = [ipu for ipu, one in enumerate(self._groups()) if one == self._groups()[ipus[0]]]
        at = before[:, group].max(axis=1)
        order = [(k, self.forward[:, k]) for k in range(stages)]
        if costs.training:
            order += [(k, self.backward[:, k]) for k in reversed(range(stages))]
        previous = order[0][0]
        for k, cycles in order:
            if ipus[previous] != ipus[k]:
                at = np.maximum(at, begin) + overhead
            at = at + cycles
            previous = k
        load, unload = self._on_ipus(self.load), self._on_ipus(self.unload)
        count, across = self.micro_batches, costs.streams.across
        done = np.maximum(at, begin)
        after = self._on_ipus(outputs).max(axis=1)
        total = np.zeros(len(at), dtype=np.int64)
        # The first, the last, and those between, which are alike.
        kinds = [(0, 1)] if count == 1 else [(0, 1), (1, count - 2), (count - 1, 1)]
        for number, times in kinds:
            loads = load if number < count - 1 else 0 * load
            unloads = unload if number > 0 or across else 0 * unload
            longest = np.maximum(done, begin + (loads + unloads).max(axis=1))
            edge = 0
            if number == 0 and not across:
                edge = edge + load.max(axis=1)
            if number == count - 1 and not across:
                edge = edge + unload.max(axis=1)
            total += times * (longest + after + edge)
        return total

    # -- once a weight update ---

    def _update(self) -> np.ndarray:
        """Cycles of the weight update, the all-reduce and outputs that leave once."""
        costs = self.costs
        update = self._sums(costs.cycles.update)
        offloads = np.array([choice.offload for choice in self.splits.choices])
        if offloads.any():
            moved = self._sums(costs.moves)
            update = update + np.where(offloads[self.splits.choice], moved, 0)
        if not costs.training:
            update = np.zeros_like(update)
        once = self.stream_out if costs.streams.out_once else np.zeros_like(self.stream_out)
        longest, leaves = self._on_ipus(update).max(axis=1), self._on_ipus(once).max(axis=1)
        any_of_it = (longest > 0) | (leaves > 0)
        return np.where(any_of_it, self._reduce(), 0) + longest + leaves

    def _reduce(self) -> np.ndarray | int:
        """The longest exchange of gradients, between replicas and IPUs, for each split."""
        costs = self.costs
        if costs.rings is None:
            return costs.least_reduce(self.num_ipus)
        return costs.reduces(self._on_ipus(self._sums(costs.gradients))).max(axis=1)


def _active(cycles: np.ndarray, slot: np.ndarray, micro_batches: int) -> np.ndarray:
    """Whether each stage runs in each pipeline cycle: bool[pipeline cycle, stage]."""
    micro = cycles[:, None] - slot[None, :]
    return (micro >= 0) & (micro < micro_batches)


def _training(forward: np.ndarray, backward: np.ndarray, micro_batches: int) -> np.ndarray:
    """`closed_forms.training_cycles` of each split, without overhead."""
    stages = forward.shape[1]
    work = forward + backward
    longest_forward, longest_backward = forward.max(axis=1), backward.max(axis=1)
    total = (micro_batches - 2 * stages + 2) * work.max(axis=1)
    ahead, back = np.zeros_like(total), np.zeros_like(total)
    behind = np.zeros_like(total)
    for k in range(stages - 1):
        ahead, back = np.maximum(ahead, forward[:, k]), np.maximum(back, backward[:, k])
        behind = np.maximum(behind, work[:, stages - 1 - k])
        total += ahead + back
        total += np.maximum(longest_forward, behind) + np.maximum(longest_backward, behind)
    return total


def _inference(cycles: np.ndarray, micro_batches: int) -> np.ndarray:
    """The sum, over pipeline cycles, of the longest stage that runs its forward."""
    stages = cycles.shape[1]
    if not cycles.any():
        return np.zeros(len(cycles), dtype=np.int64)
    if micro_batches < stages:
        active = _active(np.arange(micro_batches + stages - 1), np.arange(stages), micro_batches)
        return np.where(active[None], cycles[:, None, :], 0).max(axis=2).sum(axis=1)
    total = (micro_batches - stages + 1) * cycles.max(axis=1)
    ahead, behind = np.zeros_like(total), np.zeros_like(total)
    for k in range(stages - 1):
        ahead = np.maximum(ahead, cycles[:, k])
        behind = np.maximum(behind, cycles[:, stages - 1 - k])
        total += ahead + behind
    return total
