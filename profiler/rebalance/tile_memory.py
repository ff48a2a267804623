"""Whether stages fit their tiles: of one IPU exactly, and of all intervals of Blocks at once.

A stage holds what its Blocks always hold, the code that they run (once, where they share it), the
stash, what its Blocks have saved up to the one that runs, and what that one holds while it runs.
Blocks keep the tiles they were profiled on; the stash is spread evenly (both are estimates).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from profiler.memory import including_gaps
from profiler.rebalance.costs import Costs

_CHUNK = 64  # first Blocks at a time: their vectors over tiles stay in the processor's cache
_FULL = np.iinfo(np.int64).max // 8


@dataclass(frozen=True)
class Choice:
    """How a stage saves memory.

    By running its forward again, by keeping optimiser state off the chip.
    """

    recompute: bool
    offload: bool

    @classmethod
    def profiled(cls, costs: Costs) -> Choice:
        """The choice with which the profile was made."""
        return cls(costs.recompute, costs.offload)


@dataclass(frozen=True)
class Part:
    """A stage of Blocks ``first .. last`` that stashes ``depth`` micro-batches."""

    first: int
    last: int
    depth: int
    choice: Choice


def stash_bytes(costs: Costs, part: Part) -> int:
    """Of a stage, all tiles, all the micro-batches it keeps."""
    return waiting(costs, part.depth, part.choice) * int(
        costs.stash_bytes(part.first, part.last, part.choice.recompute)
    )


def waiting(costs: Costs, depth: int, choice: Choice) -> int:
    """Micro-batches whose kept tensors a stage holds.

    The last stage has no stash, but its own checkpoints live from its forward to its backward (what
    enters it is counted with them: an estimate).
    """
    return max(depth, 1) if choice.recompute and bool(costs.cycles.closed.any()) else depth


def ipu_bytes(costs: Costs, parts: Sequence[Part]) -> np.ndarray:
    """Bytes on each tile of an IPU that runs these stages, gaps included: int64[tile]."""
    plain = costs.memory.shared.copy()
    running = np.zeros_like(plain)
    interleaved = np.zeros_like(plain)
    plain += -(-sum(stash_bytes(costs, part) for part in parts) // costs.machine.tiles)
    runs = np.zeros(len(costs), dtype=bool)
    for part in parts:
        runs[part.first : part.last + 1] = True
        some = slice(part.first, part.last + 1)
        plain += costs.memory.always[some].sum(axis=0)
        own = costs.memory.peak[some]
        if part.choice.offload:
            own = np.maximum(own, costs.memory.state_once[some])
        else:
            plain += costs.memory.state[some].sum(axis=0)
        running = np.maximum(running, (own + _held(costs, part)).max(axis=0))
        interleaved = np.maximum(interleaved, costs.memory.peak_interleaved[some].max(axis=0))
    plain += (
        costs.memory.code[(costs.memory.code_users & runs).any(axis=1)].sum(axis=0)
        if len(costs.memory.code)
        else 0
    )
    return including_gaps(plain + running, interleaved, costs.machine.region0_bytes)


def _held(costs: Costs, part: Part) -> np.ndarray:
    """What a stage's Blocks have saved, on each tile, when each of them runs.

    Int64[Block of the stage, tile].

    With recomputation a segment's, from the last closed Block on.
    """
    saved = costs.memory.saved[part.first : part.last + 1]
    total = np.cumsum(saved, axis=0)
    if not part.choice.recompute:
        return total
    begins = np.where(costs.cycles.closed[part.first : part.last + 1], np.arange(len(saved)), 0)
    begins = np.maximum.accumulate(begins)
    return total - (total - saved)[begins]


@dataclass(frozen=True)
class IntervalMemory:
    """The fullest tile of every stage of Blocks ``first .. first + width``, as int64[first, width].

    It holds max(``plain`` + its part of the stash, ``gapped``): bytes on a tile, and what one takes
    that uses region 1, whose gap the stash fills. ``stash`` is a micro-batch's, all tiles.
    """

    plain: np.ndarray
    gapped: np.ndarray
    stash: np.ndarray
    tiles: int
    least: int = 0  # micro-batches that it keeps even without a stash (`waiting`)

    def fullest(self, depth: int) -> np.ndarray:
        """Bytes of the fullest tile with so many micro-batches stashed."""
        depth = max(depth, self.least)
        return np.maximum(self.plain - (-depth * self.stash // self.tiles), self.gapped)


def interval_memory(
    costs: Costs, width: int, choice: Choice, enough: int | None = None
) -> IntervalMemory:
    """Of all stages of at most ``width`` Blocks; those that reach over the end are full.

    ``enough``: bytes that every depth of stash adds to a tile at most. Where all stages then fit
    for certain, ``plain`` is only an upper bound of itself, which spares the vectors over tiles.
    """
    count = len(costs)
    width = min(width, count)
    first = np.arange(count)[:, None]
    last = first + np.arange(width)[None, :]
    inside = last < count
    last = np.minimum(last, count - 1)
    always = costs.memory.always if choice.offload else costs.memory.always + costs.memory.state
    own = (
        np.maximum(costs.memory.peak, costs.memory.state_once)
        if choice.offload
        else costs.memory.peak
    )
    region1 = _running_maximum(costs.memory.peak_interleaved.max(axis=1), first, last)
    gapped = np.where(region1 > 0, costs.machine.region0_bytes + region1, 0)
    stash = costs.stash_bytes(first, last, choice.recompute)
    bound = _upper_bound(costs, always, own, first, last) if enough is not None else None
    if bound is not None and bool((bound + enough <= costs.machine.bytes_per_tile)[inside].all()):
        plain = bound
    else:
        plain = _exactly(costs, always, own, width, choice.recompute)
    return IntervalMemory(
        np.where(inside, plain, _FULL),
        np.where(inside, gapped, _FULL),
        stash,
        costs.machine.tiles,
        waiting(costs, 0, choice),
    )


def _running_maximum(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Maximum of ``values[first .. last]``, where ``last`` grows along the second axis."""
    maximum: np.ndarray = np.maximum.accumulate(values[last], axis=1)
    return np.maximum(maximum, values[first])


def _upper_bound(
    costs: Costs, always: np.ndarray, own: np.ndarray, first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """No tile holds more than the fullest tiles of the parts together."""
    always = always.max(axis=1)
    if len(costs.memory.code):
        always = always + costs.memory.code_users.T @ costs.memory.code.max(axis=1)
    held = np.concatenate([[0], np.cumsum(always + costs.memory.saved.max(axis=1))])
    most = _running_maximum(own.max(axis=1), first, last)
    most = most + _running_maximum(costs.memory.peak_interleaved.max(axis=1), first, last)
    bound: np.ndarray = int(costs.memory.shared.max()) + held[last + 1] - held[first] + most
    return bound


def _exactly(
    costs: Costs, always: np.ndarray, own: np.ndarray, width: int, recompute: bool
) -> np.ndarray:
    """Bytes of the fullest tile without its stash, int64[first, width].

    From where a stage of a first Block is too full, so are its longer ones: they are not looked at,
    and are full.
    """
    count = len(costs)
    total = int(
        always.sum(axis=0).max()
        + costs.memory.saved.sum(axis=0).max()
        + own.max()
        + costs.memory.peak_interleaved.max()
    )
    code, apart = _code_of_blocks(costs)
    total += int(code.sum(axis=0).max(initial=0))
    kind = np.int32 if total + int(costs.memory.shared.max()) < 2**31 else np.int64
    always, own, saved = (
        np.ascontiguousarray(part, dtype=kind) for part in (always, own, costs.memory.saved)
    )
    region1, shared = costs.memory.peak_interleaved.astype(kind), costs.memory.shared.astype(kind)
    saves = bool(saved.any())
    uses_region1 = bool(region1.any())
    plain = np.full((count, width), _FULL, dtype=np.int64)
    for begin in range(0, count, _CHUNK):
        rows = slice(begin, min(begin + _CHUNK, count))
        size = rows.stop - begin
        held = np.tile(shared, (size, 1))
        new_code = code.astype(kind)
        saved_here = np.zeros_like(held)
        running = np.zeros_like(held)
        interleaved = np.zeros_like(held)
        for step in range(width):
            size = min(size, count - begin - step)
            if size <= 0:
                break
            here = slice(begin + step, begin + step + size)
            held, running = held[:size], running[:size]
            held += always[here]
            if len(costs.memory.code):
                for block, piece in apart.get(step, ()):
                    new_code[block] -= costs.memory.code[piece].astype(kind)
                held += new_code[here]
            if saves:
                saved_here = saved_here[:size]
                if recompute:
                    saved_here[costs.cycles.closed[here]] = 0
                saved_here += saved[here]
                np.maximum(running, own[here] + saved_here, out=running)
            else:
                np.maximum(running, own[here], out=running)
            together = held + running
            if uses_region1:
                interleaved = interleaved[:size]
                np.maximum(interleaved, region1[here], out=interleaved)
                together += interleaved
            fullest = together.max(axis=1)
            plain[begin : begin + size, step] = fullest
            if int(fullest.min()) > costs.machine.bytes_per_tile:
                break
    return plain


def _code_of_blocks(costs: Costs) -> tuple[np.ndarray, dict[int, list[tuple[int, int]]]]:
    """The code of each Block, int64[Block, tile].

    And of each, the pieces that the last Block to have them, so many Blocks before it, shares with
    it: a stage that has both has them once.
    """
    if not len(costs.memory.code):
        return np.zeros((0, costs.machine.tiles), dtype=np.int64), {}
    apart: dict[int, list[tuple[int, int]]] = {}
    for piece, users in enumerate(costs.memory.code_users):
        blocks = np.flatnonzero(users).tolist()
        for before, block in pairwise(blocks):
            apart.setdefault(block - before, []).append((block, piece))
    return costs.memory.code_users.T.astype(np.int64) @ costs.memory.code, apart
