"""Whether stages fit their tiles: exactly for one IPU, or for all intervals of Blocks at once.

A stage holds what is always live for its Blocks, their code (once, if they share it), the stash,
what its Blocks have saved up to the running one, and what the running Block needs. Blocks keep the
tiles they were profiled on; the stash is spread evenly (both are estimates). The error of this
estimate is known for the IPUs of the profile (`BlockMemory.residual`) and is added, so the profiled
split is reproduced exactly, and other splits are more accurate the more they resemble it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from profiler.memory import including_gaps
from profiler.rebalance.block_costs import BlockCosts
from profiler.rebalance.choice import Choice
from profiler.rebalance.passes import Pass
from profiler.rebalance.running import Edges, Growing, Own
from profiler.schedules import stash_depth

_CHUNK = 64  # first Blocks at a time: their vectors over tiles stay in the processor's cache
FULL = np.iinfo(np.int64).max // 8


@dataclass(frozen=True)
class Part:
    """A stage of Blocks ``first .. last`` that stashes ``depth`` micro-batches."""

    first: int
    last: int
    depth: int
    choice: Choice


def stage_parts(
    costs: BlockCosts, starts: Sequence[int], choices: Sequence[Choice] = ()
) -> list[Part]:
    """Stages that begin with the Blocks ``starts``, each with what determines its memory.

    ``choices``: how each saves memory (empty: all as profiled).
    """
    count = len(starts)
    ways = tuple(choices) or Choice.as_profiled(costs, starts)
    stashing = costs.training and costs.pipelined
    alone = count == 1 and not costs.recompute_alone
    ways = (
        *ways[:-1],
        replace(ways[-1], recompute=False) if alone else at_the_end(costs, ways[-1]),
    )
    ends = [*(start - 1 for start in starts[1:]), len(costs) - 1]
    return [
        Part(first, last, stash_depth(count, k) if stashing else 0, way)
        for k, (first, last, way) in enumerate(zip(starts, ends, ways, strict=True))
    ]


def at_the_end(costs: BlockCosts, choice: Choice) -> Choice:
    """The choice of a stage that no other follows: it recomputes as it was profiled."""
    return replace(choice, recompute=costs.recompute)


def stash_bytes(costs: BlockCosts, part: Part) -> int:
    """Stash bytes of a stage, over all tiles, for all the micro-batches it stashes."""
    return waiting(costs, part.depth, part.choice) * int(
        costs.stash_bytes(part.first, part.last, part.choice.recompute)
    )


def waiting(costs: BlockCosts, depth: int, choice: Choice) -> int:
    """Number of micro-batches whose saved tensors a stage holds.

    The last stage has no stash, but its own checkpoints are live from its forward to its backward
    (its inputs are counted with them: an estimate).
    """
    return max(depth, 1) if choice.recompute and bool(costs.cycles.closed.any()) else depth


def ipu_bytes(costs: BlockCosts, parts: Sequence[Part]) -> np.ndarray:
    """Bytes on each tile of an IPU that runs these stages, including gaps: int64[tile]."""
    return held_by(costs, parts).total[0]


@dataclass(frozen=True)
class Held:
    """Bytes that IPUs hold, int64[IPU, tile] each: always live by kind, and live while Blocks run.

    The latter are split into region 0 and region 1, and include what the profile holds beyond the
    estimate (`residuals`).
    """

    always: Mapping[str, np.ndarray]
    running: np.ndarray
    interleaved: np.ndarray
    residual: np.ndarray
    region0_bytes: int

    @property
    def total(self) -> np.ndarray:
        """All bytes, including gaps."""
        plain = sum(self.always.values(), start=self.running) + self.residual
        return including_gaps(plain, self.interleaved, self.region0_bytes)

    @property
    def contents(self) -> dict[str, np.ndarray]:
        """Bytes by kind, in words, without gaps."""
        return {
            **self.always,
            "what a Block holds while it runs": self.running + self.interleaved,
            "what the profile holds besides": self.residual,
        }


def held_by(costs: BlockCosts, parts: Sequence[Part], passing: np.ndarray | None = None) -> Held:
    """Bytes held by one IPU that runs these stages.

    ``passing``, int64[tile]: of what other IPUs send each other through it (`passing_through`).
    """
    always, running, interleaved = _held_and_running(costs, parts, passing)
    return Held(
        {words: nbytes[None] for words, nbytes in always.items()},
        running[None],
        interleaved[None],
        _residual(costs, parts)[None],
        costs.machine.region0_bytes,
    )


def held_by_each(
    costs: BlockCosts, parts: Sequence[Part], passing: np.ndarray | None = None
) -> Held:
    """Bytes held by IPUs that run one stage each; together the stages have all Blocks in order.

    ``passing``: as in `held_by`, int64[IPU, tile].
    """
    memory, tiles = costs.memory, costs.machine.tiles
    first = np.array([part.first for part in parts])
    runs = np.zeros((len(parts), len(costs)), dtype=bool)
    for runs_here, part in zip(runs, parts, strict=True):
        runs_here[part.first : part.last + 1] = True
    stays = np.array([not part.choice.offload for part in parts])
    stash = np.array([-(-stash_bytes(costs, part) // tiles) for part in parts])
    always = {
        "weights, accumulators and their code": np.add.reduceat(memory.always, first, axis=0),
        "optimiser state": np.add.reduceat(memory.state, first, axis=0) * stays[:, None],
        "code that Blocks share, and the stack": _shared_code(costs, runs),
        "the stash": np.repeat(stash[:, None], tiles, axis=1),
    }
    return Held(
        always,
        _running_alone(costs, parts, passing),
        np.maximum.reduceat(memory.peak_interleaved, first, axis=0),
        _residual_of(costs, runs),
        costs.machine.region0_bytes,
    )


def _shared_code(costs: BlockCosts, runs: np.ndarray) -> np.ndarray:
    """Shared code of Blocks, and the stack, for IPUs that run some of the Blocks: int64[IPU, tile].

    ``runs``: bool[IPU, Block]. IPUs with the same code are added up once.
    """
    memory = costs.memory
    code = np.repeat(memory.shared[None], len(runs), axis=0)
    if not len(memory.code):
        return code
    pieces = runs @ memory.code_users.T
    known: dict[bytes, np.ndarray] = {}
    for selected, into in zip(pieces, code, strict=True):
        key = selected.tobytes()
        if key not in known:
            known[key] = memory.code[selected].sum(axis=0)
        into += known[key]
    return code


def _residual_of(costs: BlockCosts, runs: np.ndarray) -> np.ndarray:
    """`_residual` for IPUs that run a subset of Blocks, bool[IPU, Block]: int64[IPU, tile]."""
    if not len(costs.memory.residual):
        return np.zeros((len(runs), costs.machine.tiles), dtype=np.int64)
    ran_by = np.arange(len(costs.memory.residual))[:, None] == costs.memory.residual_of
    common = runs.astype(np.int64) @ ran_by.T
    return _carried(costs, common, runs.sum(axis=1, keepdims=True))


def _running_alone(
    costs: BlockCosts, parts: Sequence[Part], passing: np.ndarray | None
) -> np.ndarray:
    """`_running` for stages with an IPU each: int64[stage, tile]; those of equal length at once."""
    most = np.zeros((len(parts), costs.machine.tiles), dtype=np.int64)
    alike: dict[tuple[Choice, bool, int], list[int]] = {}
    for k, part in enumerate(parts):
        key = part.choice, part.last == len(costs) - 1, part.last - part.first
        alike.setdefault(key, []).append(k)
    for (choice, final, more), stages in alike.items():
        first = np.array([parts[k].first for k in stages])
        own = Own.of(costs, choice, final, slice(int(first[0]), int(first[-1]) + more + 1))
        growing = Growing(costs, own, first, more=more)
        for _ in range(more + 1):
            growing.add(len(first))
        edges = growing.edges()
        most[stages] = growing.most(edges)
        if passing is not None:
            exchanging = edges.in_exchange + passing[stages]
            most[stages] = np.maximum(most[stages], exchanging)
    return most


def packed(
    costs: BlockCosts, parts: Sequence[Part], passing: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of these stages on each tile, by the costs of their Blocks alone.

    int64[tile] of region 0 and of region 1, without the Blocks' residual. ``passing``: as in
    `held_by`.
    """
    held, running, interleaved = _held_and_running(costs, parts, passing)
    return sum(held.values(), start=running), interleaved


def passing_through(costs: BlockCosts, parts: Sequence[Part], ipus: Sequence[int]) -> np.ndarray:
    """Bytes that stages hold only while IPUs exchange, to pass them on: int64[stage, tile].

    Tied weights on their way to Blocks on other IPUs, and their gradients on the way back: a copy
    over a cut goes from one stage's IPU to the next one's. ``parts`` have all Blocks, in order;
    ``ipus``: of each.
    """
    passing = np.zeros((len(parts), costs.machine.tiles), dtype=np.int64)
    stage = np.repeat(np.arange(len(parts)), [part.last - part.first + 1 for part in parts])
    where, tensors = np.array(ipus), costs.memory.carried
    for (home, *readers), nbytes in zip(costs.cuts.ties.blocks, costs.tied_bytes, strict=True):
        begin, at = stage[home], stage[readers]
        away = at[where[at] != where[begin]]
        between = np.arange(begin + 1, max(away, default=begin))
        between = between[where[between] != where[begin]]
        passing[np.setdiff1d(between, away)] += nbytes
    for row in np.flatnonzero(tensors.tied):
        begin, end = stage[tensors.first[row]], stage[tensors.maker[row]]
        if where[begin] != where[end]:
            passing[begin + 1 : end] += tensors.nbytes[row]
    return passing


def passing_of(
    costs: BlockCosts, parts: Sequence[Part], ipus: Sequence[int], ipu: int
) -> np.ndarray:
    """`passing_through` of one IPU's stages together: int64[tile]."""
    here = np.array(ipus) == ipu
    total: np.ndarray = passing_through(costs, parts, ipus)[here].sum(axis=0)
    return total


def _held_and_running(
    costs: BlockCosts, parts: Sequence[Part], passing: np.ndarray | None = None
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Bytes held always, by kind; while Blocks run, in region 0; and the same in region 1."""
    memory, tiles = costs.memory, costs.machine.tiles
    always, state, interleaved = np.zeros((3, tiles), dtype=np.int64)
    runs = np.zeros(len(costs), dtype=bool)
    for part in parts:
        some = slice(part.first, part.last + 1)
        runs[some] = True
        always += memory.always[some].sum(axis=0)
        if not part.choice.offload:
            state += memory.state[some].sum(axis=0)
        interleaved = np.maximum(interleaved, memory.peak_interleaved[some].max(axis=0))
    running = _running(costs, parts, runs, passing)
    code = memory.shared
    if len(memory.code):
        code = code + memory.code[(memory.code_users & runs).any(axis=1)].sum(axis=0)
    stash = -(-sum(stash_bytes(costs, part) for part in parts) // tiles)
    held = {
        "weights, accumulators and their code": always,
        "optimiser state": state,
        "code that Blocks share, and the stack": code,
        "the stash": np.full(tiles, stash),
    }
    return held, running, interleaved


def _residual(costs: BlockCosts, parts: Sequence[Part]) -> np.ndarray:
    """Bytes that these stages' tiles hold beyond `packed`: int64[tile].

    Each IPU of the profile counts by how similar its Blocks are: the result is exact for its own
    Blocks, an estimate for others.
    """
    if not len(costs.memory.residual):
        return np.zeros(costs.machine.tiles, dtype=np.int64)
    blocks = np.concatenate([np.arange(part.first, part.last + 1) for part in parts])
    common = np.bincount(costs.memory.residual_of[blocks], minlength=len(costs.memory.residual))
    return _carried(costs, common[None, :], len(blocks))[0]


def _carried(costs: BlockCosts, common: np.ndarray, count: int | np.ndarray) -> np.ndarray:
    """Residuals of sets of ``count`` Blocks (int64[set, 1] where they differ), int64[set, tile].

    ``common``, int64[set, IPU]: how many of these Blocks each IPU ran in the profile. Each IPU's
    residual is weighted by the square of the ratio of common Blocks to those that either set
    has: in full for its own Blocks, and by almost nothing for all the model's, whose packing owes
    little to any one IPU.
    """
    profiled = np.bincount(costs.memory.residual_of, minlength=len(costs.memory.residual))
    alike = common / (count + profiled[None, :] - common)
    carried: np.ndarray = np.rint(alike**2 @ costs.memory.residual_as_float).astype(np.int64)
    return carried


def _with_blocks(costs: BlockCosts, common: np.ndarray, here: slice, count: int) -> np.ndarray:
    """`_carried` for sets that each get another Block (``here``), which is added to ``common``."""
    if not len(costs.memory.residual):
        return np.zeros((1, 1))
    common[np.arange(len(common)), costs.memory.residual_of[here]] += 1
    return _carried(costs, common, count)


def residuals(
    costs: BlockCosts, *held: Mapping[int, np.ndarray]
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Bytes in region 0 that each IPU held beyond its costs, and the IPU that ran each Block.

    int64[IPU, tile] for each of ``held``, and int64[Block]. ``held``: for each IPU as profiled, the
    bytes in region 0 of its tiles, and maybe the same without copies of tied weights. Empty if the
    stages do not follow the order of the Blocks.
    """
    stage = costs.stage.tolist()
    if stage != sorted(stage) or sorted(set(stage)) != list(range(len(costs.ipus))):
        none = np.zeros((0, 0), dtype=np.int64)
        return (none,) * len(held), np.zeros(0, dtype=np.int64)
    parts = stage_parts(costs, [stage.index(k) for k in range(len(costs.ipus))])
    ipus = list(held[0])
    row = {ipu: number for number, ipu in enumerate(ipus)}
    passing = passing_through(costs, parts, costs.ipus)
    off = []
    for one, passes in zip(held, (passing, None), strict=False):
        region0 = _region0_of_each(costs, parts, ipus, passes)
        off.append(np.array([one[ipu] for ipu in ipus]) - region0)
    return tuple(off), np.array([row[costs.ipus[k]] for k in stage])


def _region0_of_each(
    costs: BlockCosts, parts: Sequence[Part], ipus: Sequence[int], passing: np.ndarray | None
) -> np.ndarray:
    """Bytes in region 0 of each IPU by the costs of its Blocks alone: int64[IPU, tile].

    ``passing``: of each stage (`passing_through`).
    """
    if len(set(costs.ipus)) == len(costs.ipus):
        every = held_by_each(costs, parts, passing)
        held: np.ndarray = sum(every.always.values(), start=every.running)
        return held[[costs.ipus.index(ipu) for ipu in ipus]]
    held_bytes = []
    for ipu in ipus:
        own = [k for k, where in enumerate(costs.ipus) if where == ipu]
        through = passing[own].sum(axis=0) if passing is not None else None
        held_bytes.append(packed(costs, [parts[k] for k in own], through)[0])
    return np.array(held_bytes)


def _running(
    costs: BlockCosts, parts: Sequence[Part], runs: np.ndarray, passing: np.ndarray | None = None
) -> np.ndarray:
    """The most that these stages together hold while they run: int64[tile].

    The IPU runs their forwards in order, then their backwards in reverse order. ``runs``,
    bool[Block]: whether a Block is in one of them.
    """
    grown = [_grown(costs, part, runs) for part in parts]
    edges = [Edges.of(costs, np.array([part.first]), np.array([part.last]), runs) for part in parts]
    most = np.zeros((1, costs.machine.tiles), dtype=np.int64)
    for k, stage in enumerate(grown):
        own_edges, before, behind = edges[k], edges[:k], edges[k + 1 :]
        waits = sum(one.sent + one.arrived for one in before)
        late = sum(one.entered + one.arrived for one in behind)
        done = sum(one.sent_back for one in behind)
        if not costs.pipelined or not costs.training:
            waits = waits + sum(
                costs.memory.saved[part.first : part.last + 1].sum(axis=0) for part in parts[:k]
            )
        forward = stage.forward + own_edges.in_forward + waits + late
        turns = stage.turns(own_edges) + waits + done
        most = np.maximum(most, np.maximum(forward, turns))
    exchanging = sum(one.in_exchange for one in edges)
    most = np.maximum(most, exchanging if passing is None else exchanging + passing)
    left = sum(stage.left for stage in grown)
    update = np.maximum.reduce([stage.update for stage in grown])
    running: np.ndarray = np.maximum(most, update + left)[0]
    return running


def _grown(costs: BlockCosts, part: Part, runs: np.ndarray) -> Growing:
    some = slice(part.first, part.last + 1)
    final = part.last == len(costs) - 1
    return Growing.whole(
        costs, Own.of(costs, part.choice, final, some), part.first, part.last, runs
    )


@dataclass(frozen=True)
class IntervalMemory:
    """The fullest tile of every stage of Blocks ``first .. first + width``, as int64[first, width].

    It holds max(``plain`` + its part of the stash, ``gapped``): the bytes on a tile, and those of a
    tile that uses region 1, where the stash fills the gap. ``stash`` is for one micro-batch, over
    all tiles.
    """

    plain: np.ndarray
    gapped: np.ndarray
    stash: np.ndarray
    tiles: int
    least: int = 0  # micro-batches that it keeps even without a stash (`waiting`)
    exact: bool = True  # else ``plain`` is an upper bound of itself

    def fullest(self, depth: int) -> np.ndarray:
        """Bytes of the fullest tile with this many stashed micro-batches."""
        depth = max(depth, self.least)
        return np.maximum(self.plain - (-depth * self.stash // self.tiles), self.gapped)

    def fullest_of(self, first: int, last: int, depth: int) -> int:
        """`fullest` for one stage."""
        at = first, last - first
        stash = -(-max(depth, self.least) * self.stash[at] // self.tiles)
        return int(max(self.plain[at] + stash, self.gapped[at]))


def interval_memory(
    costs: BlockCosts, width: int, choice: Choice, enough: int | None = None
) -> IntervalMemory:
    """Memory of all stages of at most ``width`` Blocks; those beyond the last Block count as full.

    ``enough``: the most bytes that any depth of stash adds to a tile. If all stages then certainly
    fit, ``plain`` is only an upper bound, which avoids computing the vectors over tiles.
    """
    count = len(costs)
    width = min(width, count)
    first = np.arange(count)[:, None]
    last = first + np.arange(width)[None, :]
    inside = last < count
    last = np.minimum(last, count - 1)
    always = costs.memory.always if choice.offload else costs.memory.always + costs.memory.state
    own = Own.of(costs, choice, False)
    region1 = _running_maximum(costs.memory.peak_interleaved.max(axis=1), first, last)
    gapped = np.where(region1 > 0, costs.machine.region0_bytes + region1, 0)
    stash = costs.stash_bytes(first, last, choice.recompute)
    final = at_the_end(costs, choice)
    if final.recompute != choice.recompute:
        behind_all = costs.stash_bytes(first, last, final.recompute)
        stash = np.where(last == count - 1, behind_all, stash)
    plain: np.ndarray | None = None
    if enough is not None:
        bound = _upper_bound(costs, always, own, first, last)
        if bool((bound + enough <= costs.machine.bytes_per_tile)[inside].all()):
            plain = bound
    exact = plain is None
    if plain is None:
        plain = _exactly(costs, always, own, width)
        _with_all_readers(costs, always, own, plain)
        ends = Own.of(costs, final, True)
        if own.waits:
            _at_the_end(costs, always, ends, plain)
    return IntervalMemory(
        np.where(inside, plain, FULL),
        np.where(inside, gapped, FULL),
        stash,
        costs.machine.tiles,
        waiting(costs, 0, final),
        exact,
    )


def _running_maximum(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Maximum of ``values[first .. last]``, where ``last`` grows along the second axis."""
    maximum: np.ndarray = np.maximum.accumulate(values[last], axis=1)
    return np.maximum(maximum, values[first])


def _upper_bound(
    costs: BlockCosts, always: np.ndarray, own: Own, first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """An upper bound: no tile holds more than the sum of the parts' fullest tiles."""
    always = always.max(axis=1)
    if len(costs.memory.code):
        always = always + costs.memory.code_users.T @ costs.memory.code.max(axis=1)
    saved = costs.memory.saved.max(axis=1) + costs.memory.updating.max(axis=1)
    held = np.concatenate([[0], np.cumsum(always + saved)])
    passes = np.maximum(own.most, costs.memory.peak[Pass.FORWARD]).max(axis=1)
    backward = (costs.memory.peak[Pass.BACKWARD] + costs.memory.saved).max(axis=1)
    passes = np.maximum(passes, np.maximum(backward, costs.memory.peak_of_backward.max(axis=1)))
    if len(costs.memory.peak_if_again):
        passes = np.maximum(passes, costs.memory.peak_if_again.max(axis=1))
    most = _running_maximum(passes, first, last)
    most = most + int(costs.memory.carried.nbytes.max(axis=1, initial=0).sum())
    most = most + 2 * int(costs.tied_bytes.max(axis=1, initial=0).sum())
    most = most + _running_maximum(costs.memory.peak_interleaved.max(axis=1), first, last)
    shared = int(costs.memory.shared.max()) + max(0, int(costs.memory.residual.max(initial=0)))
    bound: np.ndarray = shared + held[last + 1] - held[first] + most
    return bound


def _exactly(costs: BlockCosts, always: np.ndarray, own: Own, width: int) -> np.ndarray:
    """Bytes of the fullest tile without its stash, int64[first, width].

    If a stage is too full, so are the longer ones with the same first Block: they are not examined
    and count as full.
    """
    count = len(costs)
    kind = _kind(costs, always, own)
    own, always = own.some(kind), np.ascontiguousarray(always, dtype=kind)
    code = _code_of_blocks(costs)
    plain = np.full((count, width), FULL, dtype=np.int64)
    for begin in range(0, count, _CHUNK):
        _grow(costs, always, own, code, begin, plain[begin : begin + _CHUNK])
    return plain


def _at_the_end(costs: BlockCosts, always: np.ndarray, own: Own, plain: np.ndarray) -> None:
    """Write the stages that no other stage follows into ``plain``."""
    count, width = plain.shape
    begin = count - width
    kind = _kind(costs, always, own)
    final = np.full((width, width), FULL, dtype=np.int64)
    _grow(costs, always.astype(kind), own.some(kind), _code_of_blocks(costs), begin, final)
    _with_all_readers(costs, always, own, final, begin)
    rows = np.arange(width)
    plain[begin + rows, width - 1 - rows] = final[rows, width - 1 - rows]


def _with_all_readers(
    costs: BlockCosts, always: np.ndarray, own: Own, plain: np.ndarray, begin: int = 0
) -> None:
    """Write the stages that have tied weights with all Blocks that read them into ``plain``.

    Gradients are added there where they are made; a stage that grows does not know yet that it will
    have these Blocks. Its rows are stages from ``begin`` on.
    """
    ties = costs.cuts.ties.blocks if costs.memory.carried.tied.any() else ()
    rows = min(max((home for home, *_ in ties), default=-1) + 1 - begin, len(plain))
    if rows <= 0:
        return
    kind = _kind(costs, always, own)
    together = np.full((rows, plain.shape[1]), FULL, dtype=np.int64)
    code = _code_of_blocks(costs)
    _grow(costs, always.astype(kind), own.some(kind), code, begin, together, len(costs))
    first = begin + np.arange(rows)[:, None]
    last = first + np.arange(plain.shape[1])
    whole = np.ones(last.shape, dtype=bool)
    for home, *readers in ties:
        whole &= (first > home) | (readers[-1] <= last)
    plain[:rows] = np.where(whole, together, plain[:rows])


def _kind(costs: BlockCosts, always: np.ndarray, own: Own) -> type[np.integer]:
    """An integer type that is wide enough for all the bytes of a tile."""
    memory = costs.memory
    total = int(
        always.sum(axis=0).max()
        + 2 * memory.saved.sum(axis=0).max()
        + own.most.max()
        + memory.updating.sum(axis=0).max()
        + memory.carried.nbytes.sum(axis=0).max(initial=0)
        + memory.peak_interleaved.max()
        + memory.code.sum(axis=0).max(initial=0) * max(1, len(costs))
        + np.abs(memory.residual).max(initial=0)
        + memory.shared.max()
    )
    return np.int32 if total < 2**31 else np.int64


def _grow(
    costs: BlockCosts,
    always: np.ndarray,
    own: Own,
    code_of_blocks: tuple[np.ndarray, dict[int, list[tuple[int, int]]]],
    begin: int,
    plain: np.ndarray,
    more: int | None = None,
) -> None:
    """Write the fullest tiles of stages that begin at ``begin`` or later into ``plain``.

    ``more``: as in `Growing`.
    """
    count, (size, width) = len(costs), plain.shape
    kind = always.dtype
    code, apart = code_of_blocks
    pieces = costs.memory.code.astype(kind)
    residual = costs.memory.residual
    region1, shared = costs.memory.peak_interleaved, costs.memory.shared.astype(kind)
    # Another residual, or other tensors at its edges, may make a longer stage that much smaller.
    smaller = 2 * int(np.abs(residual).max(initial=0))
    smaller += int(costs.memory.carried.nbytes.max(axis=1, initial=0).sum())
    enough = costs.machine.bytes_per_tile + smaller
    held = np.tile(shared, (size, 1))
    some = slice(begin, begin + size + width)  # the Blocks that come into it
    new_code = np.zeros_like(code, dtype=kind)
    new_code[some] = code[some]
    growing = Growing(costs, own, np.arange(begin, begin + size), more=more)
    interleaved, uses_region1 = np.zeros_like(held), bool(region1.any())
    common = np.zeros((size, len(residual)), dtype=np.int64)
    for step in range(width):
        size = min(size, count - begin - step)
        if size <= 0:
            break
        here = slice(begin + step, begin + step + size)
        held = held[:size]
        held += always[here]
        if len(costs.memory.code):
            for block, piece in apart.get(step, ()):
                new_code[block] -= pieces[piece]
            held += new_code[here]
        growing.add(size)
        together = held + growing.most(growing.edges())
        if uses_region1:
            interleaved = interleaved[:size]
            np.maximum(interleaved, region1[here], out=interleaved, casting="unsafe")
            together += interleaved
        common = common[:size]
        together += _with_blocks(costs, common, here, step + 1).astype(kind)
        plain[:size, step] = fullest = together.max(axis=1)
        if int(fullest.min()) > enough:
            break


def _code_of_blocks(costs: BlockCosts) -> tuple[np.ndarray, dict[int, list[tuple[int, int]]]]:
    """The code of each Block, int64[Block, tile].

    Also returns, for each Block, the pieces that it shares with the last earlier Block to have
    them, and how many Blocks earlier that is: a stage with both holds them once.
    """
    if not len(costs.memory.code):
        return np.zeros((0, costs.machine.tiles), dtype=np.int64), {}
    apart: dict[int, list[tuple[int, int]]] = {}
    for piece, users in enumerate(costs.memory.code_users):
        blocks = np.flatnonzero(users).tolist()
        for before, block in pairwise(blocks):
            apart.setdefault(block - before, []).append((block, piece))
    return costs.memory.code_users.T.astype(np.int64) @ costs.memory.code, apart
