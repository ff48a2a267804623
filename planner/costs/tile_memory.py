"""What the tiles of an IPU hold that runs some stages.

A stage holds what is always live for its Blocks, their code (once, if they share it), the stash,
what its Blocks have saved up to the running one, and what the running Block needs. Blocks keep
their profiled tiles; of the stash each tile has what the fullest has of each tensor (both are
estimates). The error, known for the IPUs of the profile (`BlockMemory.residual`), is added: the
profiled split is reproduced exactly, others the more accurately the more they resemble it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ipuscope.planner.costs.block_costs import BlockCosts
from ipuscope.planner.costs.code_memory import extents
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.running_memory import Edges, Growing, Grown, Own
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.timeline.closed_forms import stash_depth
from ipuscope.profiler.timeline.tile_usage import including_gaps

_MOST_CACHED = 600  # stages, of some six vectors over tiles each


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
    """Stages from the Blocks ``starts``, each saving memory by ``choices`` (empty: as profiled)."""
    count = len(starts)
    ways = tuple(choices) or costs.choices_of(starts)
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


def stages_of(parts: Sequence[Part]) -> tuple[tuple[int, int, Choice], ...]:
    """First and last Block of each stage, and its choice."""
    return tuple((part.first, part.last, part.choice) for part in parts)


def at_the_end(costs: BlockCosts, choice: Choice) -> Choice:
    """The choice of a stage that no other follows: it recomputes as it was profiled."""
    return replace(choice, recompute=costs.recompute)


def stash_bytes(costs: BlockCosts, part: Part, on_tile: bool = False) -> int:
    """Stash bytes of a stage for all the micro-batches it stashes: all tiles, or its fullest."""
    stash = costs.stash_on_tile if on_tile else costs.stash_bytes
    nbytes = int(stash(part.first, part.last, part.choice.recompute))
    return waiting(costs, part.depth, part.choice) * nbytes


def waiting(costs: BlockCosts, depth: int, choice: Choice) -> int:
    """Number of micro-batches whose saved tensors a stage holds.

    The last stage has no stash, but its checkpoints are live from forward to backward (its inputs
    are counted with them: an estimate).
    """
    return max(depth, 1) if choice.recompute and bool(costs.cycles.closed.any()) else depth


def ipu_bytes(
    costs: BlockCosts, parts: Sequence[Part], passing: np.ndarray | None = None
) -> np.ndarray:
    """Bytes on each tile of an IPU that runs these stages, gaps included: int64[tile]."""
    return usage_of(costs, parts, passing).total[0]


def at_least(costs: BlockCosts, parts: Sequence[Part]) -> np.ndarray:
    """Least bytes by tile of an IPU that runs these stages, and maybe others: int64[tile].

    Weights and gradients shared with Blocks elsewhere may then stay where they are, and at most one
    of the profile's residuals is carried over (`carried_residuals`).
    """
    everywhere = np.ones(len(costs), dtype=bool)
    always, running, interleaved = _always_and_running(costs, parts, here=everywhere)
    used = sum(always.values(), start=running) + costs.memory.least_residual
    total = including_gaps(used, interleaved, costs.machine.region0_bytes)
    beyond = costs.memory.region0.beyond(_runs(costs, [parts]), costs.machine)[0]
    return extents(total, beyond, costs.machine)


def _runs(costs: BlockCosts, ipus: Sequence[Sequence[Part]]) -> np.ndarray:
    """Which Blocks IPUs with these stages run: bool[IPU, Block]."""
    runs = np.zeros((len(ipus), len(costs)), dtype=bool)
    for row, parts in zip(runs, ipus, strict=True):
        for part in parts:
            row[part.first : part.last + 1] = True
    return runs


@dataclass(frozen=True)
class Usage:
    """Bytes that IPUs hold, int64[IPU, tile] each."""

    always: Mapping[str, np.ndarray]  # by kind
    running: np.ndarray  # live while Blocks run
    interleaved: np.ndarray  # the most of these in region 1
    residual: np.ndarray  # what the profile holds beyond the estimate (`residuals`)
    runs: np.ndarray  # bool[IPU, Block]
    costs: BlockCosts

    @cached_property
    def used(self) -> np.ndarray:
        """All bytes, without gaps."""
        return sum(self.always.values(), start=self.running) + self.residual

    @cached_property
    def total(self) -> np.ndarray:
        """All bytes, including gaps, and code that is beyond region 0."""
        machine = self.costs.machine
        total = including_gaps(self.used, self.interleaved, machine.region0_bytes)
        return extents(total, self.code_beyond, machine)

    @cached_property
    def code_beyond(self) -> np.ndarray:
        """Code beyond region 0, int64[IPU, tile]."""
        return self.costs.memory.region0.beyond(self.runs, self.costs.machine)

    @property
    def contents(self) -> dict[str, np.ndarray]:
        """Bytes by kind, in words, without gaps."""
        return {
            **self.always,
            "what a Block holds while it runs": self.running,
            "what the profile holds besides": self.residual,
        }


def usage_of(costs: BlockCosts, parts: Sequence[Part], passing: np.ndarray | None = None) -> Usage:
    """Bytes of one IPU with these stages; ``passing``, int64[tile]: of `passing_through`."""
    always, running, interleaved = _always_and_running(costs, parts, passing)
    runs = _runs(costs, [parts])
    return Usage(
        {words: nbytes[None] for words, nbytes in always.items()},
        running[None],
        interleaved[None],
        _residual_of(costs, runs),
        runs,
        costs,
    )


def usage_of_each(
    costs: BlockCosts, parts: Sequence[Part], passing: np.ndarray | None = None
) -> Usage:
    """Bytes of IPUs with a stage each, all Blocks in order; ``passing``: int64[IPU, tile]."""
    memory, tiles = costs.memory, costs.machine.tiles
    first = np.array([part.first for part in parts])
    runs = _runs(costs, [[part] for part in parts])
    stays = np.array([not part.choice.offload for part in parts])
    stash = np.array([stash_bytes(costs, part, on_tile=True) for part in parts])
    always = {
        "weights, accumulators and their code": np.add.reduceat(memory.always, first, axis=0),
        "optimiser state": np.add.reduceat(memory.state, first, axis=0) * stays[:, None],
        "code that Blocks share, and the stack": _shared_code(costs, runs),
        "the stash": np.repeat(stash[:, None], tiles, axis=1),
    }
    return Usage(
        always,
        _running_alone(costs, parts, passing),
        np.maximum.reduceat(memory.peak_interleaved, first, axis=0),
        _residual_of(costs, runs),
        runs,
        costs,
    )


def _shared_code(costs: BlockCosts, runs: np.ndarray) -> np.ndarray:
    """Shared code and stack of IPUs that run Blocks, bool[IPU, Block]: int64[IPU, tile]."""
    memory = costs.memory
    code = np.repeat(memory.shared[None], len(runs), axis=0)
    if not len(memory.code):
        return code
    pieces = runs @ memory.code_users.T
    cached: dict[bytes, np.ndarray] = {}
    for selected, into in zip(pieces, code, strict=True):
        key = selected.tobytes()
        if key not in cached:
            cached[key] = memory.code[selected].sum(axis=0)
        into += cached[key]
    return code


def _residual_of(costs: BlockCosts, runs: np.ndarray) -> np.ndarray:
    """What IPUs that run some Blocks hold beyond their costs, bool[IPU, Block]: int64[IPU, tile].

    Each profiled IPU counts by how similar its Blocks are: exact for its own, else an estimate.
    """
    if not len(costs.memory.residual):
        return np.zeros((len(runs), costs.machine.tiles), dtype=np.int64)
    ran_by = np.arange(len(costs.memory.residual))[:, None] == costs.memory.residual_of
    common = runs.astype(np.int64) @ ran_by.T
    return carried_residuals(costs, common, runs.sum(axis=1, keepdims=True))


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
        growing = Growing(costs, own, first, last=first + more)
        for _ in range(more + 1):
            growing.add(len(first))
        edges = growing.edges()
        most[stages] = growing.most(edges)
        if passing is not None:
            exchanging = edges.in_exchange + passing[stages]
            most[stages] = np.maximum(most[stages], exchanging)
    return most


def passing_through(costs: BlockCosts, parts: Sequence[Part], ipus: Sequence[int]) -> np.ndarray:
    """Bytes that stages hold only while IPUs exchange, to pass them on: int64[stage, tile].

    Tied weights and their gradients on the way: over a cut, a copy goes from one stage's IPU to the
    next one's. ``parts`` have all Blocks, in order; ``ipus``: of each.
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
    for row in np.flatnonzero(tensors.is_tied):
        begin, end = stage[tensors.first[row]], stage[tensors.maker[row]]
        if where[begin] != where[end]:
            passing[begin + 1 : end] += tensors.nbytes[row]
    return passing


def passing_alone(costs: BlockCosts, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """int64[stage, tile]: `passing_through` of stages ``first .. last``, each with its own IPU."""
    tensors, passing = costs.memory.carried, np.zeros((len(first), costs.machine.tiles), np.int64)
    before = costs.cuts.ties.reads_before(len(costs))
    for row, (home, *readers) in enumerate(costs.cuts.ties.blocks):
        reads = before[row, last + 1] > before[row, first]
        passing[(home < first) & (readers[-1] > last) & ~reads] += costs.tied_bytes[row]
    for tied in np.flatnonzero(tensors.is_tied):
        passes = (tensors.first[tied] < first) & (tensors.maker[tied] > last)
        passing[passes] += tensors.nbytes[tied]
    return passing


def surely_passing(costs: BlockCosts, ipus: Sequence[int]) -> np.ndarray:
    """`passing_through` that stages on these IPUs surely have: int64[stage, tile].

    All of it where only the first and the last Block share weights: their stages are known; else
    none.
    """
    tensors, last = costs.memory.carried, len(costs) - 1
    tied = tensors.is_tied
    ends = all(blocks == (0, last) for blocks in costs.cuts.ties.blocks)
    if ends and bool(((tensors.first == 0) & (tensors.maker == last))[tied].all()):
        return passing_through(costs, stage_parts(costs, range(len(ipus))), ipus)
    return np.zeros((len(ipus), costs.machine.tiles), dtype=np.int64)


def passing_of(
    costs: BlockCosts, parts: Sequence[Part], ipus: Sequence[int], ipu: int
) -> np.ndarray:
    """`passing_through` of one IPU's stages together: int64[tile]."""
    return passing_through(costs, parts, ipus)[np.array(ipus) == ipu].sum(axis=0)


def _always_and_running(
    costs: BlockCosts,
    parts: Sequence[Part],
    passing: np.ndarray | None = None,
    here: np.ndarray | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Bytes always, by kind; while Blocks run (``here``: the IPU's); most of these in region 1."""
    memory, tiles = costs.memory, costs.machine.tiles
    always, state, interleaved = np.zeros((3, tiles), dtype=np.int64)
    runs = _runs(costs, [parts])[0]
    for part in parts:
        some = slice(part.first, part.last + 1)
        always += memory.always[some].sum(axis=0)
        if not part.choice.offload:
            state += memory.state[some].sum(axis=0)
        interleaved = np.maximum(interleaved, memory.peak_interleaved[some].max(axis=0))
    running = _running(costs, parts, runs if here is None else here, passing)
    code = memory.shared
    if len(memory.code):
        code = code + memory.code[(memory.code_users & runs).any(axis=1)].sum(axis=0)
    stash = sum(stash_bytes(costs, part, on_tile=True) for part in parts)
    contents = {
        "weights, accumulators and their code": always,
        "optimiser state": state,
        "code that Blocks share, and the stack": code,
        "the stash": np.full(tiles, stash),
    }
    return contents, running, interleaved


def carried_residuals(costs: BlockCosts, common: np.ndarray, count: int | np.ndarray) -> np.ndarray:
    """Residuals of sets of ``count`` Blocks (int64[set, 1] where they differ), int64[set, tile].

    ``common``, int64[set, IPU]: how many of these Blocks each IPU ran in the profile. An IPU's
    residual is weighted by the square of the ratio of common Blocks to those that either set has:
    in full for its own Blocks, by almost nothing for all the model's, whose packing owes little to
    any one IPU.
    """
    profiled = np.bincount(costs.memory.residual_of, minlength=len(costs.memory.residual))
    alike = common / (count + profiled[None, :] - common)
    return np.rint(alike**2 @ costs.memory.residual_as_float).astype(np.int64)


def residuals(
    costs: BlockCosts, *measured: Mapping[int, np.ndarray]
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Bytes in region 0 that each IPU held beyond its costs, and the IPU that ran each Block.

    int64[IPU, tile] for each of ``measured``, and int64[Block]. ``measured``: the bytes in region 0
    of each profiled IPU's tiles, and maybe those without copies of tied weights. Empty if the
    stages do not follow the order of the Blocks.
    """
    stage = costs.stage.tolist()
    if stage != sorted(stage) or sorted(set(stage)) != list(range(len(costs.ipus))):
        none = np.zeros((0, 0), dtype=np.int64)
        return (none,) * len(measured), np.zeros(0, dtype=np.int64)
    parts = stage_parts(costs, [stage.index(k) for k in range(len(costs.ipus))])
    ipus = list(measured[0])
    row = {ipu: number for number, ipu in enumerate(ipus)}
    passing = passing_through(costs, parts, costs.ipus)
    off = []
    for by_ipu, passes in zip(measured, (passing, None), strict=False):
        used = _used_by_each(costs, parts, ipus, passes)
        off.append(np.array([by_ipu[ipu] for ipu in ipus]) - used)
    return tuple(off), np.array([row[costs.ipus[k]] for k in stage])


def _used_by_each(
    costs: BlockCosts, parts: Sequence[Part], ipus: Sequence[int], passing: np.ndarray | None
) -> np.ndarray:
    """Bytes of IPUs by their Blocks' costs alone: int64[IPU, tile]; ``passing``: of stages."""
    if len(set(costs.ipus)) == len(costs.ipus):
        used = usage_of_each(costs, parts, passing).used  # no residuals are known yet
        return used[[costs.ipus.index(ipu) for ipu in ipus]]
    nbytes = []
    for ipu in ipus:
        own = [k for k, where in enumerate(costs.ipus) if where == ipu]
        through = passing[own].sum(axis=0) if passing is not None else None
        nbytes.append(usage_of(costs, [parts[k] for k in own], through).used[0])
    return np.array(nbytes)


def _running(
    costs: BlockCosts, parts: Sequence[Part], runs: np.ndarray, passing: np.ndarray | None = None
) -> np.ndarray:
    """The most that stages hold while they run, forwards in order, then backwards in reverse.

    int64[tile]. ``runs``, bool[Block]: whether a Block is in one of them.
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
    return np.maximum(most, update + left)[0]


def _grown(costs: BlockCosts, part: Part, runs: np.ndarray) -> Grown:
    """What a stage holds in its passes; once for all searches with the same sharing Blocks."""
    cached = costs.cache.setdefault("grown stages", {})
    shares = runs[costs.sharing].tobytes()
    key = part.first, part.last, part.choice, shares
    grown: Grown | None = cached.get(key)
    if grown is None:
        if len(cached) >= _MOST_CACHED:
            cached.clear()
        some, final = slice(part.first, part.last + 1), part.last == len(costs) - 1
        own = Own.of(costs, part.choice, final, some)
        cached[key] = grown = Growing.whole(costs, own, part.first, part.last, runs).passes()
    return grown
