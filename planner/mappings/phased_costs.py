"""What Blocks cost in phases that are pipelines, and what any cut into phases costs by that.

All micro-batches of an update go through a phase before the next
(`ipuscope.profiler.timeline.phased_schedules.pipelined_phases`). Tensors of another stage of the
phase come over links; those of another phase, or for the backward, are stored in streaming memory
and loaded. Weights come once a phase and direction, in parts from the replicas where each keeps
one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ipuscope.planner.costs.all_reduce import Rings
from ipuscope.planner.costs.machine_costs import MachineCosts
from ipuscope.planner.mappings.mapping import Key
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.links import ring_cycles
from ipuscope.profiler.timeline.phased_schedules import Phases, pipelined_phases
from ipuscope.profiler.timeline.tile_usage import including_gaps

FORWARD, BACKWARD = 0, 1
# rows of `PhasedCosts.once`: what comes before the forward, before the backward and, where the
# weights are there already, before that of the last phase; what goes behind it; the update
ENTERS, RETURNS, TURNS, LEAVES, UPDATED = range(5)


@dataclass(frozen=True)
class Reads:
    """Tensors of a micro-batch that a Block reads and another made, int64[read] each."""

    tensor: np.ndarray
    made_in: np.ndarray  # `FORWARD` or `BACKWARD`
    maker: np.ndarray
    read_in: np.ndarray  # `FORWARD` or `BACKWARD`
    reader: np.ndarray
    keeper: np.ndarray  # the Block whose forward stores what a backward reads
    nbytes: np.ndarray  # in streaming memory: of what the IPUs that share it store in parts, one's
    whole: np.ndarray  # bytes over links
    again: np.ndarray  # 1 if a stage that makes and reads it recomputes it and stores nothing


@dataclass(frozen=True)
class CodePieces:
    """Code in pieces, and which programs have each."""

    code: np.ndarray  # int64[piece, tile]
    users: np.ndarray  # bool[piece, program]
    vertices: np.ndarray  # bool[type, program, tile]: where a type's vertices run
    sizes: np.ndarray  # bytes of the types' code
    others: np.ndarray  # int64[IPU, tile]: what else the compiled IPUs have, with the stack

    def of(self, programs: set[int], ipu: int) -> np.ndarray:
        """Bytes on each tile of an IPU with these programs: int64[tile]."""
        here = sorted(programs)
        of_steps = self.code[self.users[:, here].any(axis=1)].sum(axis=0)
        of_vertices = self.sizes @ self.vertices[:, here].any(axis=1)
        return of_steps + of_vertices + self.others[min(ipu, len(self.others) - 1)]


@dataclass(frozen=True)
class BlockTiles:
    """Bytes of kinds of Blocks on each tile, int64[kind, tile]; ``kind`` of each Block.

    ``resident``, int64[when, pass, kind, tile]: weights and accumulators before (0) and behind (1)
    the Block in the passes of its stage: forward, again, backward. ``peak``: the most while the
    Block runs, in each pass; ``peak_interleaved``: in region 1, in any. ``always``: all the time.
    ``update``, int64[kind, share, tile]: the most in the update: whole tensors, what is in parts
    where state is, and parts taken of whole tensors, as on ``replicas``. ``program`` of each Block,
    equal with the same ``code``.
    """

    kind: np.ndarray
    resident: np.ndarray
    peak: np.ndarray
    peak_interleaved: np.ndarray
    always: np.ndarray
    update: np.ndarray
    replicas: int
    program: np.ndarray
    code: CodePieces


@dataclass(frozen=True)
class PhasedCosts:
    """Costs of Blocks for one key, read off a compile with one Block a stage.

    ``once``: int64[row, Block, column], what moves once for all micro-batches: transfers, bytes
    that are whole, bytes of which each replica has a part, rounds of exchanges between replicas and
    bytes gathered or scattered in them. ``update``: on whole tensors and on parts, as if a replica
    had all.
    """

    key: Key
    names: tuple[str, ...]
    machine: MachineCosts
    work: np.ndarray  # cycles of a micro-batch, int64[direction, Block], without transfers
    again: np.ndarray  # those of it that recompute
    if_joined: np.ndarray  # more cycles that recompute if its stage has the next Block, too
    reads: Reads
    once: np.ndarray
    update: np.ndarray  # cycles of the update's operators: int64[2, Block]
    reduce: int
    stream_in: np.ndarray  # with the host
    stream_out: np.ndarray  # with the host
    outputs_once: bool  # at the end of a weight update
    tiles: BlockTiles
    in_parts: bool  # optimiser state, as the script says
    off_chip: bool  # optimiser state, as the script says
    exchange: float = 0.0
    flops: int = 0
    doubt: str = ""

    def __len__(self) -> int:
        return len(self.names)

    def saved_bytes(self) -> int:
        """Bytes of a micro-batch that wait in streaming memory, whatever the cut."""
        reads = self.reads
        waits = (reads.made_in == FORWARD) & (reads.read_in == BACKWARD) & (reads.again == 0)
        _, first = np.unique(reads.tensor[waits], return_index=True)
        return int(reads.nbytes[waits][first].sum())


@dataclass(frozen=True)
class Cut:
    """``starts`` of stages and the ``phase`` of each; a phase's stages are on IPUs 0, 1, 2 ..."""

    starts: tuple[int, ...]
    phase: tuple[int, ...]

    @property
    def ipus(self) -> np.ndarray:
        """The IPU of each stage: int64[stage]."""
        return np.arange(len(self.phase)) - np.searchsorted(self.phase, self.phase)

    @property
    def phases(self) -> int:
        """Their number."""
        return self.phase[-1] + 1

    def stage_of(self, blocks: int) -> np.ndarray:
        """The stage of each Block: int64[Block]."""
        return np.searchsorted(self.starts, np.arange(blocks), side="right") - 1


@dataclass(frozen=True)
class PhasedPrediction:
    """What a cut costs: ``costs`` of stages and ``phases``, as the schedule takes them."""

    costs: schedule_types.Costs
    phases: Phases
    micro_batches: int
    moved: tuple[int, int]  # by streaming memory and links: cycles of a micro-batch on all stages

    def schedule(self) -> schedule_types.Schedule:
        """The schedule of a weight update (of a device iteration in inference)."""
        return pipelined_phases(self.costs, self.micro_batches, self.phases)

    def at_least(self) -> int:
        """Cycles that it takes at the least: the pipelines' own, and the update."""
        of_stage = np.array(self.phases.of_stage)
        firsts = np.flatnonzero(np.diff(of_stage, prepend=-1))
        total = max(self.costs.update, default=0)
        for each in filter(len, (self.costs.forward, self.costs.backward)):
            cycles = np.array(each)
            slowest = np.maximum.reduceat(cycles, firsts).sum()
            total += int(cycles.sum() + (self.micro_batches - 1) * slowest)
        return total


def predict(
    costs: PhasedCosts, cut: Cut, replicas: int, micro_batches: int, rings: Rings
) -> PhasedPrediction:
    """What a cut costs with so many replicas. ``rings``: the all-reduce of these (two rounds)."""
    stage_of, ipus = cut.stage_of(len(costs)), cut.ipus
    stages = len(cut.starts)
    streamed, received = transfers(costs, cut)
    work = np.stack([np.bincount(stage_of, row, stages).astype(np.int64) for row in costs.work])
    joined = np.flatnonzero(stage_of[1:] == stage_of[:-1])
    work[BACKWARD] += np.bincount(stage_of[joined], costs.if_joined[joined], stages).astype(int)
    body = work + streamed + received
    once_of = _once(costs, ipus[stage_of], replicas, rings)
    by_stage = np.stack([np.bincount(stage_of, row, stages).astype(np.int64) for row in once_of])
    enters, returns, turns, leaves, updated = by_stage
    last = np.array(cut.phase) == cut.phase[-1]  # its weights are still there for the backward
    training = bool(costs.work[BACKWARD].any())
    once = {
        schedule_types.ENTER: tuple(enters.tolist()),
        schedule_types.RETURN: tuple(np.where(last, turns, returns).tolist()),
        schedule_types.LEAVE: tuple(leaves.tolist()),
    }
    count = int(ipus.max()) + 1
    none = (0,) * stages
    stage_costs = schedule_types.Costs(
        ipus=tuple(ipus.tolist()),
        forward=tuple(body[FORWARD].tolist()),
        backward=tuple(body[BACKWARD].tolist()) if training else (),
        update=tuple(np.bincount(ipus, updated, count).astype(np.int64).tolist()),
        reduce=(costs.reduce,) * count if costs.reduce and replicas > 1 else (),
        stream_in=_streams(costs.stream_in, stage_of),
        stream_out=_streams(costs.stream_out, stage_of),
        stream_out_once=costs.outputs_once,
        sync=costs.machine.sync,
    )
    moves = dict.fromkeys((schedule_types.FORWARD, schedule_types.BACKWARD), none)
    phases = Phases(cut.phase, moves, moves, once=once)
    moved = int(streamed.sum()), int(received.sum())
    return PhasedPrediction(stage_costs, phases, micro_batches, moved)


def transfers(costs: PhasedCosts, cut: Cut) -> tuple[np.ndarray, np.ndarray]:
    """Cycles of a micro-batch's loads and stores, and of its receipts: int64[direction, stage].

    What the IPUs that share a stage's tensors gather counts as received.
    """
    reads, ipus, phase = costs.reads, cut.ipus, np.array(cut.phase)
    stage_of, stages = cut.stage_of(len(costs)), len(cut.starts)
    reader = stage_of[reads.reader]
    again = (reads.again > 0) & (stage_of[reads.maker] == reader)
    waits = (reads.made_in == FORWARD) & (reads.read_in == BACKWARD) & ~again
    source = stage_of[np.where(waits, reads.keeper, reads.maker)]
    apart = phase[source] != phase[reader]
    through = waits | apart  # by streaming memory
    over = (ipus[source] != ipus[reader]) & ~again
    load = _distinct(stages, reads.read_in[through], reader[through], reads.tensor[through])
    store = _distinct(stages, reads.made_in[through], source[through], reads.tensor[through])
    cycles = np.zeros(2 * stages, dtype=np.int64)
    for rows in (load, store):
        first, where = rows
        nbytes = np.bincount(where, reads.nbytes[through][first], 2 * stages)
        cycles += remote_cycles(costs.machine, nbytes, np.bincount(where, minlength=2 * stages) > 0)
    first, where = _distinct(stages, reads.read_in[over], reader[over], reads.tensor[over])
    received = _received(costs.machine, ipus, source[over][first], where, reads.whole[over][first])
    parts = np.where(reads.nbytes < reads.whole, reads.whole, 0)[through]
    received += _gathered(costs.machine, ipus, np.bincount(load[1], parts[load[0]], 2 * stages))
    return cycles.reshape(2, stages), received.reshape(2, stages)


def _distinct(
    stages: int, direction: np.ndarray, stage: np.ndarray, tensor: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each (direction, stage, tensor), and direction x stages + stage of each."""
    where = direction * stages + stage
    _, first = np.unique(where * (int(tensor.max(initial=0)) + 1) + tensor, return_index=True)
    return first, where[first]


def remote_cycles(machine: MachineCosts, nbytes: np.ndarray, calls: np.ndarray) -> np.ndarray:
    """Cycles of ``calls`` stream copies with streaming memory, of so many bytes together."""
    cycles = np.ceil(nbytes / machine.streaming_bytes_per_cycle)
    return (cycles + 2 * machine.stream_step * calls).astype(np.int64)


@lru_cache(maxsize=256)
def _links(machine: MachineCosts, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rate and latency between each two of so many IPUs: float64[IPU, IPU]."""
    pairs = [(a, b) for a in range(count) for b in range(count)]
    rate = np.array([machine.link_rate(a, b) for a, b in pairs])
    latency = np.array([machine.hop_latency(a, b) for a, b in pairs])
    return rate.reshape(count, count), latency.reshape(count, count)


def _received(
    machine: MachineCosts,
    ipus: np.ndarray,
    source: np.ndarray,
    where: np.ndarray,
    nbytes: np.ndarray,
) -> np.ndarray:
    """Cycles of receipts over the links, by direction x stages + stage."""
    stages = len(ipus)
    rate, latency = _links(machine, int(ipus.max()) + 1)
    here, there = ipus[where % stages], ipus[source]
    spent = np.bincount(where, nbytes / rate[there, here], 2 * stages)
    first_byte = np.zeros(2 * stages)
    np.maximum.at(first_byte, where, latency[there, here])
    cycles = np.ceil(spent + first_byte) + machine.sync
    return np.where(spent > 0, cycles, 0).astype(np.int64)


def _gathered(machine: MachineCosts, ipus: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
    """Cycles in which the IPUs that share a stage's tensors gather what each has loaded a part of.

    By direction x stages + stage, as ``nbytes``.
    """
    places = np.stack([np.tile(ipus, 2), nbytes]).astype(np.int64)
    distinct, at = np.unique(places, axis=1, return_inverse=True)
    cycles = [
        machine.sync + ring_cycles(machine, ipu * machine.shards, 1, machine.shards, count, 1)
        if count
        else 0
        for ipu, count in distinct.T.tolist()
    ]
    return np.array(cycles, dtype=np.int64)[at.reshape(-1)]


def _once(costs: PhasedCosts, ipu_of: np.ndarray, replicas: int, rings: Rings) -> np.ndarray:
    """Cycles of what moves once and of the update, each Block's: int64[row, Block]."""
    calls, whole, in_parts, rounds, gathered = np.moveaxis(costs.once, 2, 0)
    nbytes = whole + np.ceil(in_parts / replicas)
    cycles = remote_cycles(costs.machine, nbytes, calls)
    if replicas > 1:
        base, rate = rings.base[ipu_of] / 2, rings.rate[ipu_of] / 2
        cycles = cycles + np.ceil(rounds * base + gathered * rate).astype(np.int64)
    cycles[UPDATED] += costs.update[0] + costs.update[1] // replicas
    return cycles


def _streams(cycles: np.ndarray, stage_of: np.ndarray) -> tuple[tuple[int, int], ...]:
    of_stage = np.bincount(stage_of, cycles).astype(np.int64)
    return tuple((stage, int(of_stage[stage])) for stage in np.flatnonzero(of_stage).tolist())


# -- memory ---


def fullest_tile(costs: PhasedCosts, cut: Cut, replicas: int) -> int:
    """Bytes of the fullest tile, gaps included, as predicted on so many replicas.

    While each of a stage's Blocks runs, it holds all their weights and accumulators, and what they
    keep of a micro-batch. An IPU has each kind's code once.
    """
    tiles, stage_of, ipus = costs.tiles, cut.stage_of(len(costs)), cut.ipus
    ends = [*cut.starts[1:], len(costs)]
    saved, updates = _saved_by_block(costs), _while_updated(costs, replicas)
    most = 0
    alike: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
    for ipu in range(int(ipus.max()) + 1):
        here = np.flatnonzero(ipus[stage_of] == ipu)
        kinds = tiles.kind[here]
        always = tiles.code.of(set(tiles.program[here].tolist()), ipu)
        counts = np.bincount(kinds, minlength=len(tiles.always))
        always = always + counts @ tiles.always
        running = updates[kinds].max(axis=0)
        interleaved = np.zeros_like(always)
        for stage in np.flatnonzero(ipus == ipu).tolist():
            blocks = np.arange(cut.starts[stage], ends[stage])
            of_kinds = tuple(tiles.kind[blocks].tolist())
            if of_kinds not in alike:
                alike[of_kinds] = _peak(tiles, blocks, saved)
            mine, mine_interleaved = alike[of_kinds]
            running, interleaved = (
                np.maximum(running, mine),
                np.maximum(interleaved, mine_interleaved),
            )
        total = including_gaps(always + running, interleaved, costs.machine.region0_bytes)
        most = max(most, int(total.max()))
    return most


def _peak(
    tiles: BlockTiles, blocks: np.ndarray, saved: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The most that a stage holds, and in region 1: int64[tile] each.

    Blocks that ran hold what they leave behind, the others what they come with.
    """
    kinds = tiles.kind[blocks]
    before, behind = tiles.resident[:, :, kinds]
    earlier, later = (_sums_of_earlier(one) for one in (behind[:2], before[:2]))
    later = later[:, -1:] + before[:2, -1:] - later - before[:2]
    backward = _sums_of_earlier(behind[2:, ::-1])[:, ::-1] + _sums_of_earlier(before[2:])
    waits = saved[blocks].sum() - saved[blocks]
    beside = np.concatenate([earlier + later, backward]) + waits[:, None] // before.shape[2]
    most: np.ndarray = (tiles.peak[:, kinds] + beside).max(axis=(0, 1))
    return most, tiles.peak_interleaved[kinds].max(axis=0)


def _sums_of_earlier(nbytes: np.ndarray) -> np.ndarray:
    """Of [pass, Block, tile]: the sum over the Blocks before each."""
    return np.cumsum(nbytes, axis=1) - nbytes


def _while_updated(costs: PhasedCosts, replicas: int) -> np.ndarray:
    """Bytes while each kind's weights are updated on so many replicas: int64[kind, tile]."""
    whole, in_parts, taken = np.moveaxis(costs.tiles.update, 1, 0)
    if not costs.in_parts or replicas == costs.tiles.replicas:
        return whole + in_parts + taken
    share = costs.tiles.replicas / replicas
    nbytes: np.ndarray = whole + np.ceil((in_parts + taken * (replicas > 1)) * share)
    return nbytes.astype(np.int64)


def _saved_by_block(costs: PhasedCosts) -> np.ndarray:
    """Bytes of a micro-batch that each Block keeps for its backward: int64[Block]."""
    reads = costs.reads
    waits = np.flatnonzero((reads.made_in == FORWARD) & (reads.read_in == BACKWARD))
    pairs = np.stack([reads.keeper[waits], reads.tensor[waits]])
    _, first = np.unique(pairs, axis=1, return_index=True)
    rows = waits[first]
    return np.bincount(reads.keeper[rows], reads.nbytes[rows], len(costs)).astype(np.int64)


def equal_costs(one: PhasedCosts, other: PhasedCosts) -> bool:
    """Whether two memory proportions give the same costs."""
    if replace(one.key, proportion=0.0) != replace(other.key, proportion=0.0):
        return False
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("work", "once", "update")]
    pairs += [(one.tiles.peak, other.tiles.peak), (one.tiles.code.code, other.tiles.code.code)]
    return all(np.array_equal(a, b) for a, b in pairs)


def bytes_of_one_phase(costs: PhasedCosts) -> int:
    """Bytes that one phase with all Blocks would hold on all IPUs of a replica, all tiles."""
    return int(costs.tiles.resident.max(axis=(0, 1)).sum(axis=1)[costs.tiles.kind].sum())


def shares(prediction: PhasedPrediction, costs: PhasedCosts) -> dict[str, float]:
    """What all IPUs' time goes into, by `ipuscope.planner.mappings.plan.SHARES`."""
    schedule, micro_batches = prediction.schedule(), prediction.micro_batches
    spent = np.bincount(
        schedule.kind, weights=schedule.end - schedule.start, minlength=len(schedule_types.TASKS)
    )
    work = float(costs.work.sum()) * micro_batches
    streamed, received = (cycles * micro_batches for cycles in prediction.moved)
    once = (schedule_types.ENTER, schedule_types.RETURN, schedule_types.LEAVE)
    to_host = (schedule_types.STREAM_IN, schedule_types.STREAM_OUT, *once)
    by_name = {
        "compute": work * (1 - costs.exchange),
        "exchange": work * costs.exchange + received,
        "bubble": spent[schedule_types.IDLE],
        "all-reduce": spent[schedule_types.REDUCE],
        "update": spent[schedule_types.UPDATE],
        "host": spent[list(to_host)].sum() + streamed,
    }
    total = sum(by_name.values()) or 1.0
    return {name: float(value / total) for name, value in by_name.items()}
