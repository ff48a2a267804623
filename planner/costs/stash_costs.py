"""What stages keep of a micro-batch between its forward and its backward, and the cycles for it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ipuscope.planner.costs.block_cycles import written_recomputation
from ipuscope.planner.costs.machine_costs import MachineCosts
from ipuscope.planner.costs.profile_columns import none, sum_by
from ipuscope.profiler.enums import Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report

Index = int | np.ndarray


@dataclass(frozen=True)
class StashCosts:
    """What stages stash, and the cycles it costs.

    A stash costs ``base + rate x bytes`` cycles a tensor in the forward, and again before the
    backward, fitted to the tensors that the profile stashes (an estimate for others).

    ``recomputing``, int64[tensor, 4]: a recomputing stage that begins with one of the first two
    Blocks (or between them) and contains the third stashes the fourth's bytes of the tensor: its
    inputs and checkpoints. ``keeping``: the same without recomputation and without what its Blocks
    save; below 0 where these save too much. ``beyond``, int64[Block]: cycles that the profiled
    stage which begins with a Block took beyond these; empty: unknown.
    """

    blocks: int
    base: float
    rate: float
    recomputing: np.ndarray
    keeping: np.ndarray
    beyond: np.ndarray = field(default_factory=none)

    @classmethod
    def from_report(
        cls, report: Report, stage: np.ndarray, entering: np.ndarray, machine: MachineCosts
    ) -> StashCosts:
        """``entering``, int64[Block]: bytes that enter it, as one tensor if no stash is written."""
        base, rate = _fit(report, machine)
        written = written_recomputation(report, len(stage))
        if written is not None:
            keeping = _with_handed_on(written, stage)
            return cls(len(stage), base, rate, written["stashes"], keeping)
        block = np.arange(len(stage))
        enters = np.stack([block, block, block, entering], axis=1)
        return cls(len(stage), base, rate, enters, enters)

    def cycles(self, nbytes: np.ndarray, tensors: np.ndarray) -> np.ndarray:
        """Cycles to stash this many tensors, with this many bytes together, once: rounded."""
        return np.rint(self.base * tensors + self.rate * nbytes).astype(np.int64)

    def most_cycles(self, saved: np.ndarray, tensors: np.ndarray) -> int:
        """No stage's stash costs more, once; ``saved``: bytes that Blocks save, in ``tensors``."""
        nbytes = [np.maximum(0, one[:, 3]) for one in (self.recomputing, self.keeping)]
        number = max(np.count_nonzero(one) for one in nbytes) + int(tensors.sum())
        most = max(int(one.sum()) for one in nbytes) + int(saved.sum())
        return int(self.cycles(np.array(most), np.array(number))) + int(self.beyond.max(initial=0))

    def measured(self, report: Report, first: np.ndarray, fitted: np.ndarray) -> StashCosts:
        """With what profiled stages, by their ``first`` Block, took beyond ``fitted`` cycles."""
        stage, cycles = map(report.sequence.steps_in_order, ("stage", "cycles"))
        stashing = report.sequence.steps_with("purpose", Purpose.STASH)
        spent = sum_by(stage[stashing], cycles[stashing], len(first))
        beyond = np.zeros(self.blocks, dtype=np.int64)
        beyond[first[:-1]] = (spent - fitted)[:-1]
        return replace(self, beyond=beyond)

    def stashed(self, first: Index, last: Index, recompute: bool) -> tuple[np.ndarray, np.ndarray]:
        """Bytes and tensors that stages stash, without what their Blocks save; arrays broadcast."""
        more = np.asarray(last) - np.asarray(first)
        nbytes, tensors = self._tables(int(more.max(initial=0)), recompute)
        return nbytes[first, more], tensors[first, more]

    def _tables(self, longest: int, recompute: bool) -> tuple[np.ndarray, np.ndarray]:
        """Bytes and tensors, int64[first, more], of stages of up to ``longest`` more Blocks."""
        cached = self._cache.get(recompute)
        if cached is not None and cached[0].shape[1] > longest:
            return cached
        width = min(self.blocks, 2 * longest + 2)
        begin, end, inside, nbytes = (self.recomputing if recompute else self.keeping).T
        begin = np.maximum(begin, inside - width + 1)
        times = np.maximum(0, end - begin + 1)
        row = np.repeat(np.arange(len(times)), times)
        first = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times) + begin[row]
        at = first * width + np.maximum(0, inside[row] - first)

        def table(values: np.ndarray) -> np.ndarray:
            added = np.zeros(self.blocks * width, dtype=np.int64)
            np.add.at(added, at, values[row])
            return added.reshape(self.blocks, width).cumsum(axis=1)

        self._cache[recompute] = table(nbytes), table(np.sign(nbytes))
        return self._cache[recompute]

    @cached_property
    def _cache(self) -> dict[bool, tuple[np.ndarray, np.ndarray]]:
        return {}


def _with_handed_on(written: dict[str, np.ndarray], stage: np.ndarray) -> np.ndarray:
    """``keeping``, with what Blocks hand on to others that read it back.

    A stage with both keeps it. A Block saved it if its profiled stage had both: it counts less for
    a stage that has not, and more for one that has if the profile's had not.
    """
    home, least, nbytes = written["handed_on"].T
    together, from_start = stage[home] == stage[least], np.zeros_like(home)
    added = np.stack([from_start, home, least, nbytes], axis=1)
    spared = np.stack([from_start, home, home, -nbytes], axis=1)
    return np.concatenate([written["stashes_kept"], added, spared[together]])


def _fit(report: Report, machine: MachineCosts) -> tuple[float, float]:
    """Base and rate (per byte) of the cycles to stash a tensor, fitted to the profile's stashes."""
    tensor, stage, cycles = map(report.sequence.steps_in_order, ("tensor", "stage", "cycles"))
    stashing = report.sequence.steps_with("purpose", Purpose.STASH)
    stashes = report.file.table(records.Variable)
    is_stash = stashes.equals("role", Role.STASH)
    depth = dict(zip(report.stages["stage"], report.stages["stash_depth"], strict=True))
    size = {
        (tensor, stage): total / max(1, depth.get(stage, 1))
        for tensor, stage, total in zip(
            *(stashes[name][is_stash].tolist() for name in ("tensor", "stage", "bytes")),
            strict=True,
        )
    }
    rows = zip(*(one[stashing].tolist() for one in (tensor, stage, cycles)), strict=True)
    points = [(size[what, where], length) for what, where, length in rows if (what, where) in size]
    if not points:
        return machine.slice_cycles, 1 / (machine.slice_bytes_per_cycle * machine.tiles)
    nbytes, spent = np.array(points, dtype=np.float64).T
    if np.ptp(nbytes) > 0:
        rate, base = np.polyfit(nbytes, spent, 1)
        if rate >= 0 and base >= 0:
            return float(base), float(rate)
    return float(spent.mean()), 0.0
