"""What stages of all intervals of Blocks hold, each on an IPU of its own or in company.

`ipuscope.planner.costs.tile_memory` for many first Blocks at once: the search's tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np

from ipuscope.planner.costs.block_costs import BlockCosts
from ipuscope.planner.costs.code_memory import shared_again
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.passes import Pass
from ipuscope.planner.costs.running_memory import Growing, Own, sums_of
from ipuscope.planner.costs.tile_memory import (
    Part,
    at_the_end,
    carried_residuals,
    ipu_bytes,
    passing_alone,
    waiting,
)
from ipuscope.planner.predict.memory_verdict import ABOVE

_CHUNK = 64  # first Blocks at a time: their vectors over tiles stay in the processor's cache
FULL = np.iinfo(np.int64).max // 8

Tables = tuple[np.ndarray, ...]  # int64[Block, tile], which together are always there


@dataclass(frozen=True)
class IntervalMemory:
    """The fullest tile of every stage of Blocks ``first .. first + width``, as int64[first, width].

    It holds max(``used`` + the stash, ``gapped``).
    """

    used: np.ndarray  # bytes on a tile
    passing: np.ndarray  # while IPUs exchange, each with one stage, with tied weights passing; or 0
    gapped: np.ndarray  # bytes on a tile that uses region 1, where the stash fills the gap
    stash: np.ndarray  # of one micro-batch
    least: int = 0  # micro-batches that it keeps even without a stash (`waiting`)
    exact: bool = True  # else ``used`` is an upper bound of itself

    def fullest(self, depth: int) -> np.ndarray:
        """Bytes of the fullest tile with this many stashed micro-batches."""
        depth = max(depth, self.least)
        most = np.maximum(self.used, self.passing)
        return np.maximum(most + depth * self.stash, self.gapped)

    def deepest(self, limit: int) -> np.ndarray:
        """Micro-batches that tiles of this size can stash; -1: never fits; 2^31 - 1: no end."""
        room = limit - np.maximum(self.used, self.passing)
        fits = (room >= 0) & (self.gapped <= limit)
        endless = np.iinfo(np.int32).max
        most = np.minimum(np.maximum(room, 0) // np.maximum(self.stash, 1), endless)
        most = np.where(self.stash > 0, most, endless)
        return np.where(fits & (most >= self.least), most, -1)

    def fullest_of(self, first: int, last: int, depth: int, passed: bool) -> int:
        """`fullest` for one stage; ``passed``: with what passes it."""
        at = first, last - first
        stash = max(depth, self.least) * self.stash[at]
        most = max(self.used[at], self.passing[at]) if passed else self.used[at]
        return int(max(most + stash, self.gapped[at]))

    def narrowed(self, width: int) -> IntervalMemory:
        """Of stages of at most ``width`` Blocks."""
        tables = (getattr(self, name)[:, :width] for name in _TABLES)
        return replace(self, **dict(zip(_TABLES, tables, strict=True)))


_TABLES = ("used", "passing", "gapped", "stash")


def intervals(count: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First and last Blocks of stages of up to ``width``, and which there are: [first, width]."""
    first = np.arange(count)[:, None]
    last = first + np.arange(width)
    return first, np.minimum(last, count - 1), last < count


def with_margin(nbytes: int) -> int:
    """Bytes of a tile up to which a table for tiles of ``nbytes`` is exact."""
    return int(nbytes * (1 + ABOVE))


def interval_memory(
    costs: BlockCosts,
    width: int,
    choice: Choice,
    enough: int | None = None,
    in_company: bool = False,
) -> IntervalMemory:
    """Memory of all stages of at most ``width`` Blocks; those beyond the last Block count as full.

    ``enough``: the most bytes that any depth of stash adds to a tile. If all stages then certainly
    fit, ``used`` is only an upper bound, which needs no vectors over tiles. ``in_company``: of IPUs
    that may run further stages, which hold no less (`at_least`).
    """
    count, memory = len(costs), costs.memory
    width = min(width, count)
    first, last, inside = intervals(count, width)
    always = (memory.always,) if choice.offload else (memory.always, memory.state)
    own = Own.of(costs, choice, False)
    region1 = _running_maximum(memory.peak_interleaved.max(axis=1), first, last)
    gapped = np.where(region1 > 0, costs.machine.region0_bytes + region1, 0)
    enough_of_it = with_margin(costs.machine.bytes_per_tile)
    code = memory.region0.of_intervals(width, costs.machine, enough_of_it)
    gapped = np.maximum(gapped, code)
    stash = costs.stash_on_tile(first, last, choice.recompute)
    final = at_the_end(costs, choice)
    if final.recompute != choice.recompute:
        behind_all = costs.stash_on_tile(first, last, final.recompute)
        stash = np.where(last == count - 1, behind_all, stash)
    grown: _Grown | None = None
    if enough is not None:
        bound = _upper_bound(costs, always, own, first, last)
        if bool((bound + enough <= costs.machine.bytes_per_tile)[inside].all()):
            grown = _Grown(bound, np.zeros_like(bound))
    exact = grown is None
    if grown is None:
        grown = _exactly(costs, always, own, width, in_company)
        _with_readers(costs, always, own, grown, in_company)
        if own.waits:
            ends = Own.of(costs, final, True, slice(count - width, count))
            _at_the_end(costs, always, ends, grown, in_company)
        if final.recompute and not costs.recompute_alone and width == count:
            stash = _write_the_whole(costs, final, grown, stash)
    return IntervalMemory(
        np.where(inside, grown.used, FULL),
        np.where(inside, grown.passing, 0),
        np.where(inside, gapped, FULL),
        stash,
        waiting(costs, 0, final),
        exact,
    )


def _running_maximum(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Maximum of ``values[first .. last]``, where ``last`` grows along the second axis."""
    maximum: np.ndarray = np.maximum.accumulate(values[last], axis=1)
    return np.maximum(maximum, values[first])


def _upper_bound(
    costs: BlockCosts, always: Tables, own: Own, first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """An upper bound: no tile holds more than the sum of the parts' fullest tiles."""
    memory, on_all = costs.memory, _fullest(*always)
    if len(memory.code):
        on_all = on_all + memory.code_users.T @ memory.code.max(axis=1)
    saved = _fullest(memory.saved) + _fullest(memory.updating)
    sums = np.concatenate([[0], np.cumsum(on_all + saved)])
    again = (memory.peak_if_again,) if len(memory.peak_if_again) else ()
    alone = map(_fullest, (memory.peak[Pass.FORWARD], memory.peak_of_backward, *again))
    backward = _fullest(memory.peak[Pass.BACKWARD], memory.saved)
    most = _running_maximum(np.maximum.reduce([own.most, backward, *alone]), first, last)
    most = most + int(memory.carried.nbytes.max(axis=1, initial=0).sum())
    most = most + 2 * int(costs.tied_bytes.max(axis=1, initial=0).sum())
    shared = int(memory.shared.max()) + max(0, int(memory.residual.max(initial=0)))
    return shared + sums[last + 1] - sums[first] + most


def _fullest(*tables: np.ndarray) -> np.ndarray:
    """The most of their sum on any tile, int64[Block]; no table of that sum is made."""
    some = (slice(at, at + _CHUNK) for at in range(0, len(tables[0]), _CHUNK))
    return np.concatenate([_together(tables, rows).max(axis=1) for rows in some])


def _together(tables: Tables, rows: slice) -> np.ndarray:
    return reduce(np.add, (one[rows] for one in tables))


@dataclass(frozen=True)
class _Grown:
    """``used`` and ``passing`` of `IntervalMemory`, of some first Blocks."""

    used: np.ndarray
    passing: np.ndarray

    @classmethod
    def full(cls, rows: int, width: int) -> _Grown:
        used = np.full((rows, width), FULL, dtype=np.int64)
        return cls(used, np.zeros_like(used))

    def rows(self, begin: int, size: int) -> _Grown:
        """Some of the first Blocks; what is written to it is written here."""
        some = slice(begin, begin + size)
        return _Grown(self.used[some], self.passing[some])

    def take(self, other: _Grown, where: np.ndarray) -> None:
        """Take the other's stages ``where``, bool[first, width]; it may have fewer, from 0 on."""
        rows, width = other.used.shape
        chosen = where[:rows, :width]
        for mine, theirs in ((self.used, other.used), (self.passing, other.passing)):
            mine[:rows, :width][chosen] = theirs[chosen]


def _exactly(costs: BlockCosts, always: Tables, own: Own, width: int, in_company: bool) -> _Grown:
    """Bytes of the fullest tile, no stash; stages longer than a too full one count as full."""
    count = len(costs)
    own, code = own.some(_kind(costs, always, own)), shared_again(costs.memory.code_users)
    grown = _Grown.full(count, width)
    for begin in range(0, count, _CHUNK):
        _grow(costs, always, own, code, begin, grown.rows(begin, _CHUNK), in_company)
    return grown


def _at_the_end(
    costs: BlockCosts, always: Tables, own: Own, grown: _Grown, in_company: bool
) -> None:
    """Write the stages that no other stage follows into ``grown``."""
    count, width = grown.used.shape
    begin = count - width
    small = own.some(_kind(costs, always, own))
    final, code = _Grown.full(width, width), shared_again(costs.memory.code_users)
    _grow(costs, always, small, code, begin, final, in_company, ends=True)
    _with_readers(costs, always, own, final, in_company, begin)
    at_the_end = np.flip(np.eye(width, dtype=bool), axis=1)
    grown.rows(begin, width).take(final, at_the_end)


def _write_the_whole(
    costs: BlockCosts, choice: Choice, grown: _Grown, stash: np.ndarray
) -> np.ndarray:
    """Write the stage of all Blocks, which keeps what others recompute; ``stash`` without it."""
    end = len(costs) - 1
    alone = Part(0, end, 0, replace(choice, recompute=False))
    grown.used[0, end] = ipu_bytes(costs, [alone]).max()
    closing = np.array(stash)
    closing[0, end] = 0
    return closing


def _with_readers(
    costs: BlockCosts, always: Tables, own: Own, grown: _Grown, in_company: bool, begin: int = 0
) -> None:
    """Write the stages that have tied weights with Blocks that read them into ``grown``.

    They add gradients where these are made, which a growing stage does not know yet. Its rows are
    stages from ``begin`` on.
    """
    ties = costs.cuts.ties.blocks if not in_company else ()
    rows = min(max((home for home, *_ in ties), default=-1) + 1 - begin, len(grown.used))
    if rows <= 0:
        return
    small, code = own.some(_kind(costs, always, own)), shared_again(costs.memory.code_users)
    width = grown.used.shape[1]
    first = begin + np.arange(rows)[:, None]
    last = first + np.arange(width)
    ends = sorted({reader for _, *readers in ties for reader in readers})
    for end, following in pairwise([*ends, len(costs)]):
        some = (end <= last) & (last < following)
        if not some.any():
            continue
        together = _Grown.full(rows, min(width, following - begin))
        _grow(costs, always, small, code, begin, together, last=end)
        grown.take(together, some)


def _kind(costs: BlockCosts, always: Tables, own: Own) -> type[np.integer]:
    """An integer type that is wide enough for all the bytes of a tile."""
    memory = costs.memory
    total = int(
        sum(one.sum(axis=0) for one in always).max()
        + 2 * memory.saved.sum(axis=0).max()
        + own.most.max()
        + memory.updating.sum(axis=0).max()
        + memory.carried.nbytes.sum(axis=0).max(initial=0)
        + memory.code.sum(axis=0).max(initial=0) * max(1, len(costs))
        + np.abs(memory.residual).max(initial=0)
        + memory.shared.max()
    )
    return np.int32 if total < 2**31 else np.int64


def _with_blocks(
    costs: BlockCosts, common: np.ndarray, here: slice, count: int, rows: slice
) -> np.ndarray:
    """`carried_residuals` of ``rows`` of sets that each get one more Block (``here``).

    It is added to ``common``.
    """
    if not len(costs.memory.residual):
        return np.zeros((1, 1))
    common[np.arange(len(common)), costs.memory.residual_of[here]] += 1
    return carried_residuals(costs, common[rows], count)


def _grow(
    costs: BlockCosts,
    always: Tables,
    own: Own,
    apart: dict[int, list[tuple[int, int]]],
    begin: int,
    grown: _Grown,
    in_company: bool = False,
    last: int | None = None,
    ends: bool = False,
) -> None:
    """Write fullest tiles from ``begin`` on into ``grown``; stages before ``last`` all have it.

    ``ends``: only of stages that end with the last Block.
    """
    count, (size, width) = len(costs), grown.used.shape
    kind = own.forward.dtype
    pieces = costs.memory.code
    residual = costs.memory.residual
    shared = costs.memory.shared.astype(kind)
    # Another residual, or other tensors at its edges, may make a longer stage that much smaller.
    smaller = 2 * int(np.abs(residual).max(initial=0))
    smaller += int(costs.memory.carried.nbytes.max(axis=1, initial=0).sum())
    enough = with_margin(costs.machine.bytes_per_tile) + smaller
    always_there = np.tile(shared, (size, 1))
    some = slice(begin, begin + size + width)  # the Blocks that come into it
    new_code = sums_of(costs.memory.code_users[:, some], pieces)
    new = _together(always, some).astype(kind, copy=False)
    first = np.arange(begin, begin + size)
    growing = Growing(
        costs,
        own,
        first,
        here=np.ones(count, dtype=bool) if in_company else None,
        last=np.full(size, last) if last is not None else None,
    )
    travels = not in_company and bool(len(costs.cuts.ties) or costs.memory.carried.is_tied.any())
    least_residual = costs.memory.least_residual.astype(kind)
    common = np.zeros((size, len(residual)), dtype=np.int64)
    for step in range(width):
        size = min(size, count - begin - step)
        if size <= 0:
            break
        here = slice(begin + step, begin + step + size)
        always_there = always_there[:size]
        always_there += new[step : step + size]
        if len(costs.memory.code):
            for block, piece in apart.get(step, ()):
                if begin <= block < begin + len(new_code):
                    new_code[block - begin] -= pieces[piece]
            always_there += new_code[step : step + size]
        growing.add(size)
        rows = slice(size - 1 if ends else 0, size)
        edges, besides = growing.edges(rows), always_there[rows]
        common = common[:size]
        if in_company:
            besides = besides + least_residual
        else:
            besides = besides + _with_blocks(costs, common, here, step + 1, rows).astype(kind)
        together = besides + growing.most(edges, rows)
        grown.used[rows, step] = fullest = together.max(axis=1)
        if travels:
            passing = passing_alone(costs, first[rows], first[rows] + step)
            through = (besides + edges.in_exchange + passing).max(axis=1)
            grown.passing[rows, step] = np.where(passing.any(axis=1), through, 0)
        if int(fullest.min()) > enough:
            break
