"""What each Block costs, read off one profile.

Cycles, bytes over a cut behind it, bytes on each tile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from profiler import records
from profiler.enums import BodyTask, Purpose
from profiler.report import Report, number

if TYPE_CHECKING:
    import pandas as pd

Index = int | np.ndarray
_STASHING = (Purpose.STASH, Purpose.RESTORE)
_REMOTE = (Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE)
_WRITTEN = ("forward", "recompute")
# Where a profile of one stage has neither: a sync between IPUs (the vendor's constant), and a
# tensor's way into its stash, 25 + 6 (39 + 24 + 2 n / 6 / v) cycles for n elements on a tile, v to
# 8 bytes (docs/cycles.md#gather).
EXTERNAL_SYNC_CYCLES = 600
STASH_CYCLES, STASH_BYTES_PER_CYCLE = 403.0, 4
# Of a transfer from or to the host, whatever its size: 8.8 us to a tile, 9.9 us to all [JIA].
HOST_LATENCY_SECONDS = 9e-6
LINK_HOP_SECONDS = 0.16e-6  # each further hop [JIA]
_HOST_SYNC = {"SinglePipeline": "alone", "ReplicaAndLadder": "sides"}
STREAM_STEPS = 2 * 257  # cycles: begin and end of a stream copy [TUT4]
# An IPU's part of about 20 GB/s a machine (docs/machine.md#host-and-streaming-memory).
STREAMING_BYTES_PER_SECOND = 5e9


@dataclass(frozen=True)
class Costs:
    """Blocks in the order of the model; arrays have an entry a Block, or [Block, tile].

    Cycles are a micro-batch's, but ``update``'s. Units: cycles, bytes.

    A stage that recomputes runs ``again`` of each of its Blocks but the last, of which it runs
    ``again_end``: what only the next stage needs is left out. The last stage runs ``again_final``
    (nothing where there are no checkpoints). A stash costs ``stash_base + stash_rate x bytes``
    cycles a tensor in the forward, and again before the backward: fitted to the tensors that the
    profile stashes (an estimate for others). A stage that recomputes stashes what enters it and its
    checkpoints, one that does not what enters it and what its Blocks save.
    """

    names: tuple[str, ...]
    stage: np.ndarray  # of each Block, as profiled
    ipus: tuple[int, ...]  # of each stage, as profiled
    forward: np.ndarray
    backward: np.ndarray  # without recomputation
    update: np.ndarray
    recompute: bool
    again: np.ndarray
    again_end: np.ndarray
    again_final: np.ndarray
    closed: (
        np.ndarray
    )  # bool: what earlier Blocks save is made again only after the Block's backward has run
    inputs: np.ndarray  # bytes from the host that the Block is the first to read
    copy: np.ndarray  # bytes forward over a cut behind the Block, if every Block were an IPU's own
    copy_back: np.ndarray
    # int64[tensor, 4]: a stage that begins with one of the first two Blocks (or between them) and
    stashes: np.ndarray
    # has the third stashes so many bytes of it (the fourth), if it recomputes
    stashes_kept: np.ndarray  # the same if it does not, without what its Blocks save
    stream_in: np.ndarray  # cycles of host input, besides the latency
    stream_out: np.ndarray
    stream_out_once: bool
    always: (
        np.ndarray
    )  # bytes on each tile whatever runs, without stash, optimiser state and ``code``
    peak: (
        np.ndarray
    )  # bytes on each tile in region 0 while the Block runs, besides; without what is saved
    peak_interleaved: np.ndarray  # the same in region 1
    saved: np.ndarray  # bytes on each tile that the Block's forward leaves for its backward
    saved_tensors: np.ndarray  # how many tensors those are
    state: np.ndarray  # bytes on each tile of optimiser state
    state_once: (
        np.ndarray
    )  # the same of the weight with most: what an update holds of it where it is off the chip
    state_weights: np.ndarray  # how many weights have any
    shared: (
        np.ndarray
    )  # bytes on each tile that belong to no Block, an IPU: stack, control code (the largest IPU's)
    stash_base: float
    stash_rate: float
    sync: int
    reduce: int
    link_latency: int
    link_bytes_per_cycle: float
    micro_batches: int
    samples: int  # a micro-batch, over all replicas
    training: bool
    pipelined: bool
    tiles: int
    bytes_per_tile: int
    region0_bytes: int
    clock_hz: float
    rounds: bool = False  # Options.autoRoundNumIPUs: round a number of IPUs up to a power of two
    stream_latency: int = (
        0  # cycles, of each stage that has host input, and of each that has output
    )
    offload: bool = False  # optimiser state was profiled off the chip
    streaming_bytes_per_cycle: float = STREAMING_BYTES_PER_SECOND / 1.33e9
    ipus_per_board: int = 1 << 30
    board_link_bytes_per_cycle: float = 1.0  # between boards
    load: np.ndarray = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )  # as stream_in, over I/O tiles
    unload: np.ndarray = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )  # as stream_out, over I/O tiles
    across: bool = False  # ... from one device iteration into the next (`profiler.schedules.Costs`)
    host_sync: str = (
        ""  # with whom an IPU waits for the host: "alone", "sides" of the ladder, "" all together
    )
    tied: tuple[
        tuple[str, tuple[int, ...]], ...
    ] = ()  # weights that several Blocks read, and which Blocks
    tied_bytes: tuple[int, ...] = ()  # of each of them
    # Code that Blocks share: an IPU has it once, whichever of them it runs
    code_users: np.ndarray = field(
        default_factory=lambda: np.zeros((0, 0), dtype=bool)
    )  # bool[piece, Block]
    code: np.ndarray = field(
        default_factory=lambda: np.zeros((0, 0), dtype=np.int64)
    )  # bytes of it: int64[piece, tile]
    recompute_alone: bool = (
        True  # one stage of all Blocks recomputes too: only where autoRecomputation says so
    )

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_report(cls, report: Report) -> Costs:
        """ValueError where the profile has no Blocks, or was of phased execution.

        There is nothing to move.
        """
        blocks = report.blocks.sort_values("block")
        if not len(blocks):
            raise ValueError(
                f"{report.path} has no Blocks: there is nothing to move. Name parts of the model as"
                " Blocks"
            )
        if report.meta.get("strategy") == "phased":
            raise ValueError(
                f"{report.path} was phased: how Blocks share IPUs is predicted for pipelines and"
                " sharded execution only. Profile the model with PipelinedExecution"
            )
        target, training = report.target, report.meta["kind"] == "training"
        count, tiles = len(blocks), target.tiles_per_ipu
        stage, stage_ipu = blocks["stage"].to_numpy(), tuple(report.stages["ipu"].tolist())
        steps = report.program_steps()
        own = stage[steps["block"].to_numpy().clip(0)]
        moves = steps["purpose"].isin(_STASHING)
        mine = steps[(steps["block"] >= 0) & (steps["stage"].to_numpy() == own) & ~moves]
        # a weight from off the chip or the replicas comes once for recomputation and backward,
        # whichever begins (of a stage that would recompute no longer an estimate: biases then need
        # not come)
        brought = (mine["direction"] == "recompute") & mine["kind"].isin(
            ("host I/O", "global exchange")
        )
        by_block = (
            mine["cycles"]
            .groupby([mine["direction"].mask(brought, "backward"), mine["block"]])
            .sum()
        )

        def cycles(direction: str) -> np.ndarray:
            return np.array(
                [int(by_block.get((direction, b), 0)) for b in range(count)], dtype=np.int64
            )

        forward = cycles("forward")
        updates = blocks["update_cycles"].to_numpy()
        copy, copy_back = blocks["copy_bytes"].to_numpy(), blocks["copy_back_bytes"].to_numpy()
        into = np.concatenate([[blocks["input_bytes"].iloc[0]], copy[:-1]])
        base, rate = _stash_fit(report)
        bodies = report.bodies

        def host(task: BodyTask) -> pd.Series[int]:
            return bodies[bodies["task"] == task].groupby("stage")["cycles"].sum()

        inputs, outputs = host(BodyTask.STREAM_IN), host(BodyTask.STREAM_OUT)
        loads, unloads = host(BodyTask.LOAD), host(BodyTask.UNLOAD)
        shortest = min(
            [c for found in (inputs, outputs, loads, unloads) for c in found.tolist()], default=0
        )
        latency = int(
            number(report.meta, "host_latency", round(HOST_LATENCY_SECONDS * target.clock_hz))
        )
        latency = min(latency, max(0, shortest - count))
        syncs = bodies.loc[bodies["kind"] == "external sync", "cycles"]
        reduces = bodies[bodies["task"] == BodyTask.REDUCE].groupby("ipu")["cycles"].sum()
        gathered = (
            (steps["purpose"] == Purpose.ALL_GATHER)
            & (steps["direction"] == "update")
            & (steps["block"] < 0)
        )
        gathers = steps[gathered].groupby("ipu")["cycles"].sum()
        reduces = reduces.add(gathers, fill_value=0)  # of weights, behind an update in parts
        memory, tied = _memory(report, stage), _tied(report)
        options = report.options
        rate_on_board = number(report.meta, "link_bytes_per_cycle", 0) or 1.0
        accumulation = int(number(options, "Training.gradientAccumulation", 1)) or 1
        pipelined = report.meta.get("strategy", "pipelined") == "pipelined"
        if len(stage_ipu) == 1:  # one stage is no pipeline, but more of them would be
            pipelined = str(options.get("executionStrategy", "Pipelined")).startswith(
                ("Pipelined", "pipelined")
            )
        costs = cls(
            names=tuple(blocks["name"]),
            stage=stage,
            ipus=stage_ipu,
            forward=forward,
            backward=cycles("backward"),
            update=updates,
            recompute=_recomputes(report, pipelined and training),
            **_recomputation(report, forward, lambda: _stashed(report, stage, into)),
            inputs=blocks["input_bytes"].to_numpy(),
            copy=copy,
            copy_back=copy_back,
            stream_in=_streams(inputs, stage, blocks["input_bytes"].to_numpy(), latency),
            stream_out=_streams(outputs, stage, np.arange(count) + 1 == count, latency),
            stream_latency=latency,
            load=_streams(loads, stage, blocks["input_bytes"].to_numpy(), latency),
            unload=_streams(unloads, stage, np.arange(count) + 1 == count, latency),
            across=report.meta.get("across") is True,
            host_sync=_HOST_SYNC.get(str(options.get("syncPattern", "")), ""),
            stream_out_once=_outputs_once(report),
            always=memory.always,
            code_users=memory.code_users,
            code=memory.code,
            peak=memory.peak,
            peak_interleaved=memory.interleaved,
            saved=memory.saved,
            saved_tensors=memory.saved_tensors,
            state=memory.state,
            state_once=memory.state_once,
            state_weights=memory.state_weights,
            shared=memory.shared,
            stash_base=base,
            stash_rate=rate,
            sync=int(syncs.max()) if len(syncs) else EXTERNAL_SYNC_CYCLES,
            reduce=int(reduces.max()) if len(reduces) else 0,
            link_latency=int(number(report.meta, "link_latency", 0)),
            link_bytes_per_cycle=rate_on_board,
            ipus_per_board=int(number(report.meta, "ipus_per_board", 0)) or 1 << 30,
            board_link_bytes_per_cycle=number(report.meta, "link_bytes_per_cycle_between_boards", 0)
            or rate_on_board,
            micro_batches=(
                accumulation if training else int(number(options, "deviceIterations", 1)) or 1
            ),
            samples=int(number(report.meta, "micro_batch", 0)) * target.num_replicas,
            training=training,
            pipelined=pipelined,
            tiles=tiles,
            bytes_per_tile=target.bytes_per_tile,
            region0_bytes=target.region0_bytes,
            clock_hz=target.clock_hz,
            rounds=bool(options.get("autoRoundNumIpus", False)),
            tied=tuple((name, blocks) for name, blocks, _ in tied),
            tied_bytes=tuple(nbytes for _, _, nbytes in tied),
            recompute_alone=not pipelined or options.get("_Popart.autoRecomputation") is not None,
            offload=options.get("TensorLocations.locationOptimizer.onChipStorage") is False,
            streaming_bytes_per_cycle=streaming_bytes_per_cycle(report),
        )
        if not costs.offload:
            return costs
        # state that moves together with its weight or accumulator is in the operators' cycles, and
        # in `moves` too
        with_others = (
            (steps["direction"] == "update") & steps["purpose"].isin(_REMOTE) & (steps["op"] >= 0)
        )
        by_block = (
            steps[with_others].groupby("block")["cycles"].sum().reindex(range(count), fill_value=0)
        )
        return replace(costs, update=updates - np.minimum(costs.moves, by_block.to_numpy()))

    def crossing(self, starts: Sequence[int], ipus: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Bytes forward and back over a cut behind each Block.

        ``starts`` are the Blocks with which stages begin.

        ``copy`` and ``copy_back`` without the tied weights that do not travel: the Block that reads
        one is on the IPU that has it, or in a stage that got it already.
        """
        ahead, back = self.copy, self.copy_back
        for (_, (home, *readers)), nbytes in zip(self.tied, self.tied_bytes, strict=False):
            own = ipus[bisect_right(starts, home) - 1]
            there = {k for k, ipu in enumerate(ipus) if ipu == own}
            for reader in readers:
                stage = bisect_right(starts, reader) - 1
                if stage in there:
                    spared = np.zeros_like(ahead)
                    spared[home:reader] = nbytes
                    ahead, back = np.maximum(0, ahead - spared), np.maximum(0, back - spared)
                there.add(stage)
        return ahead, back

    def link_rate(self, a: int, b: int) -> float:
        """Bytes a cycle, one way, between two IPUs of a replica.

        Less where they are on different boards.
        """
        same = a // self.ipus_per_board == b // self.ipus_per_board
        return self.link_bytes_per_cycle if same else self.board_link_bytes_per_cycle

    def hop_latency(self, a: int, b: int) -> int:
        """Cycles before the first byte arrives.

        A ladder with two IPUs to a rung, 0.16 us a rung [JIA].
        """
        rungs = max(1, abs(a // 2 - b // 2))
        return round(self.link_latency + (rungs - 1) * LINK_HOP_SECONDS * self.clock_hz)

    def stash_cycles(self, first: Index, last: Index, recompute: bool) -> np.ndarray:
        """Cycles in which stages of Blocks ``first .. last`` fill their stash, and empty it.

        Ints or arrays that broadcast.
        """
        if not self.training:
            return np.zeros(np.broadcast(first, last).shape, dtype=np.int64)
        nbytes, tensors = self._stash(first, last, recompute)
        return np.rint(self.stash_base * tensors + self.stash_rate * nbytes).astype(np.int64)

    def stash_bytes(self, first: Index, last: Index, recompute: bool) -> np.ndarray:
        """Bytes a micro-batch of the same stages' stash, all tiles."""
        return self._stash(first, last, recompute)[0]

    def again_cycles(self, first: Index, last: Index) -> np.ndarray:
        """Forward cycles that stages of Blocks ``first .. last`` run again.

        They do so if other stages follow them.
        """
        total = np.concatenate([[0], np.cumsum(self.again)])
        found: np.ndarray = total[last] - total[first] + self.again_end[last]
        return found

    def again_at_once(self, first: Index, last: Index) -> np.ndarray:
        """The same of stages whose backward follows their forward at once.

        The last one's, and all in no pipeline.

        One stage of all Blocks is none: by default only pipelines recompute.
        """
        total = np.concatenate(
            [
                [0],
                np.cumsum(self.again_final if self.recompute else np.zeros_like(self.again_final)),
            ]
        )
        found: np.ndarray = total[np.asarray(last) + 1] - total[first]
        if not self.recompute_alone:
            found = np.where(
                (np.asarray(first) == 0) & (np.asarray(last) == len(self) - 1), 0, found
            )
        return found

    def _stash(self, first: Index, last: Index, recompute: bool) -> tuple[np.ndarray, np.ndarray]:
        """(bytes, tensors) of stages' stash."""
        nbytes, tensors = (table[first, last] for table in self._stash_tables[not recompute])
        if recompute:
            return nbytes, tensors
        saved, number = (
            np.concatenate([[0], np.cumsum(each)])
            for each in (self.saved_bytes, self.saved_tensors)
        )
        behind = np.asarray(last) + 1
        return nbytes + saved[behind] - saved[first], tensors + number[behind] - number[first]

    @cached_property
    def _stash_tables(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Bytes and tensors that stages [first, last] stash.

        With recomputation, and without what Blocks save.
        """

        def table(stashes: np.ndarray, values: np.ndarray) -> np.ndarray:
            made = np.zeros((len(self) + 1, len(self)), dtype=np.int64)
            np.add.at(made, (stashes[:, 0], stashes[:, 2]), values)
            np.add.at(made, (stashes[:, 1] + 1, stashes[:, 2]), -values)
            return made.cumsum(axis=0)[:-1].cumsum(axis=1)

        one, other = (
            (table(s, s[:, 3]), table(s, np.ones_like(s[:, 3])))
            for s in (self.stashes, self.stashes_kept)
        )
        return one, other

    @cached_property
    def saved_bytes(self) -> np.ndarray:
        """What each Block saves for its backward, all tiles: int64[Block]."""
        found: np.ndarray = self.saved.sum(axis=1)
        return found

    @cached_property
    def moves(self) -> np.ndarray:
        """Cycles of a weight update to move each Block's optimiser state: int64[Block]."""
        state = self.state.sum(axis=1)
        return np.ceil(
            offload_cycles(state, self.state_weights, self.streaming_bytes_per_cycle)
        ).astype(np.int64)


def streaming_bytes_per_cycle(report: Report) -> float:
    """What an IPU moves to or from streaming memory, its part of its machine's.

    Older profiles do not say it.
    """
    said = number(report.meta, "streaming_bytes_per_cycle", 0)
    return said or STREAMING_BYTES_PER_SECOND / report.target.clock_hz


def offload_cycles(
    nbytes: np.ndarray | int, weights: np.ndarray | int, bytes_per_cycle: float
) -> np.ndarray | float:
    """Cycles of a weight update to load and store an IPU's optimiser state.

    It takes one transfer each way for each weight.
    """
    return 2 * (STREAM_STEPS * weights + nbytes / bytes_per_cycle)


def _tied(report: Report) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """Weights that forward operators of more than one Block read, and their bytes.

    Profiles of format 1 do not know.
    """
    if report.format < 2:
        return ()
    uses, ops, variables = report.columns_of(records.Use), report.ops, report.variables
    known = np.isin(uses["variable"], variables.index) & np.isin(uses["op"], ops.index)
    used, by = variables.loc[uses["variable"][known]], ops.loc[uses["op"][known]]
    here = (used["role"] == "weight").to_numpy() & (by["direction"] == "forward").to_numpy()
    here &= (by["block"] >= 0).to_numpy()
    found: dict[int, set[int]] = {}
    tensors = used["tensor"][here].tolist()
    for tensor, block in zip(tensors, by["block"][here].tolist(), strict=True):
        found.setdefault(tensor, set()).add(block)
    size = used[here].groupby("tensor")["bytes"].max().to_dict()
    name = dict(zip(tensors, used["name"][here].tolist(), strict=True))
    return tuple(
        (name[tensor], tuple(sorted(blocks)), int(size[tensor]))
        for tensor, blocks in sorted(found.items())
        if len(blocks) > 1
    )


def _stash_fit(report: Report) -> tuple[float, float]:
    """Base and cycles per byte of copying a tensor into its stash, fitted to those that do."""
    steps = report.program_steps()
    steps = steps[steps["purpose"] == Purpose.STASH]
    kept = report.variables
    kept = kept[kept["role"] == "stash"]
    depth = dict(zip(report.stages["stage"], report.stages["stash_depth"], strict=True))
    size = {
        (tensor, stage): total / max(1, depth.get(stage, 1))
        for tensor, stage, total in zip(kept["tensor"], kept["stage"], kept["bytes"], strict=True)
    }
    rows = zip(steps["tensor"], steps["stage"], steps["cycles"], strict=True)
    found = [
        (size[tensor, stage], cycles) for tensor, stage, cycles in rows if (tensor, stage) in size
    ]
    if not found:
        return STASH_CYCLES, 1 / (STASH_BYTES_PER_CYCLE * report.target.tiles_per_ipu)
    nbytes, cycles = np.array(found, dtype=np.float64).T
    if np.ptp(nbytes) > 0:
        rate, base = np.polyfit(nbytes, cycles, 1)
        if rate >= 0 and base >= 0:
            return float(base), float(rate)
    return float(cycles.mean()), 0.0


def _stashed(report: Report, stage: np.ndarray, entering: np.ndarray) -> np.ndarray:
    """What a stage beginning with each Block would stash of the bytes that enter it.

    Some only pass through, as a weight does that a later stage shares. How much is known where
    stages begin in the profile; elsewhere it is taken for the less of the next such cuts (an
    estimate).
    """
    kept = report.variables
    kept = kept[kept["role"] == "stash"]
    made = kept["block"].to_numpy()
    from_before = (made < 0) | (stage[made.clip(0)] != kept["stage"].to_numpy())
    total = kept["bytes"][from_before].groupby(kept["stage"][from_before]).sum()
    known: dict[int, int] = {}
    for k, depth in zip(
        report.stages["stage"].tolist(), report.stages["stash_depth"].tolist(), strict=True
    ):
        first = np.flatnonzero(stage == k)
        if depth and len(first):
            begins = int(first[0])
            known[begins] = max(0, int(entering[begins]) - int(total.get(k, 0)) // depth)
    through = np.zeros_like(entering)
    cuts = sorted(set(known) - {0})
    for block in range(len(entering)):
        if block in known:
            through[block] = known[block]
        elif block and cuts:
            at = int(np.searchsorted(cuts, block))
            through[block] = min(known[cut] for cut in cuts[max(0, at - 1) : at + 1])
    return np.maximum(0, entering - through)


def _recomputes(report: Report, pipelined_training: bool) -> bool:
    """Whether stages run their forward again.

    As profiled, or where there is one stage, as the options say of more.
    """
    if len(report.stages) == 1:
        return pipelined_training and bool(report.options.get("_Popart.autoRecomputation", True))
    return bool((report.stages["recompute_cycles"] > 0).any())


def _recomputation(
    report: Report, forward: np.ndarray, entering: Callable[[], np.ndarray]
) -> dict[str, Any]:
    """What the compiler wrote of it (`ipu_exec.compiler.recompute.by_block`).

    Of profiles without that, estimates.

    Those are: no checkpoints, one tensor that enters a stage, and a mean over the profiled stages
    of what a stage does not run again at its end.
    """
    count = len(forward)
    said: Any = report.meta.get("recomputation")
    try:
        blocks = {
            n: np.array(said[n], dtype=np.int64)
            for n in ("again", "again_end", "again_final", "closed")
        }
        stashes = {
            n: np.array(said[n], dtype=np.int64).reshape(-1, 4) for n in ("stashes", "stashes_kept")
        }
        named = np.concatenate([each[:, :3].ravel() for each in stashes.values()])
        if (
            all(each.shape == (count,) for each in blocks.values())
            and np.isin(named, np.arange(count)).all()
        ):
            return {**blocks, **stashes, "closed": blocks["closed"] > 0}
    except (KeyError, TypeError, ValueError, OverflowError):
        pass  # an older profile, or a stranger's
    stages = report.stages[report.stages["recompute_cycles"] > 0]
    less = (
        round(float((stages["forward_cycles"] - stages["recompute_cycles"]).mean()))
        if len(stages)
        else 0
    )
    block, none = np.arange(count), np.zeros(count, dtype=np.int64)
    enters = np.stack([block, block, block, entering()], axis=1)
    return {
        "again": forward,
        "again_end": np.maximum(0, forward - less),
        "again_final": none,
        "closed": none.astype(bool),
        "stashes": enters,
        "stashes_kept": enters,
    }


def _streams(measured: object, stage: np.ndarray, weight: np.ndarray, latency: int) -> np.ndarray:
    """A stage's host cycles divided among its Blocks by ``weight``, without the latency.

    The first Block gets all where nothing has weight. A Block with weight gets at least one cycle,
    because its stage has a transfer.
    """
    found = np.zeros(len(stage), dtype=np.int64)
    for k, cycles in dict(measured).items():  # type: ignore[call-overload]
        here = np.flatnonzero(stage == k)
        if len(here):
            share = weight[here].astype(np.float64)
            share = (
                share / share.sum()
                if share.sum()
                else (np.arange(len(here)) == 0).astype(np.float64)
            )
            some = here[share > 0]
            found[some] = 1 + np.floor((cycles - latency - len(some)) * share[share > 0]).astype(
                np.int64
            )
            found[some[0]] += cycles - latency - found[some].sum()
    return found


def _outputs_once(report: Report) -> bool:
    """Whether outputs leave once, at the end, rather than in every pipeline cycle.

    As it ran, or as the mode says.
    """
    if len(report.runs):
        tasks = report.tasks(0, iteration=0)
        out = tasks[tasks["task"].isin((BodyTask.STREAM_OUT, BodyTask.UNLOAD))]
        return out["stage"].nunique() == len(out)
    mode = report.options.get("outputMode", "Default")
    return mode in ("Final", "Sum") or (mode == "Default" and report.meta["kind"] == "training")


@dataclass(frozen=True)
class _Memory:
    """Bytes of Blocks, as `Costs` has them."""

    always: np.ndarray
    code_users: np.ndarray
    code: np.ndarray
    peak: np.ndarray
    interleaved: np.ndarray
    saved: np.ndarray
    saved_tensors: np.ndarray
    state: np.ndarray
    state_once: np.ndarray
    state_weights: np.ndarray
    shared: np.ndarray


def _memory(report: Report, stage: np.ndarray) -> _Memory:
    """Bytes of each Block by tile: always, while it runs, between forward and backward."""
    blocks, tiles = len(stage), report.target.tiles_per_ipu
    where = report.stages["ipu"].to_numpy()  # of each stage
    always, peak, interleaved, saved, state, once = np.zeros((6, blocks, tiles), dtype=np.int64)
    saved_tensors, state_weights = np.zeros((2, blocks), dtype=np.int64)
    shared = np.zeros((report.target.num_ipus, tiles), dtype=np.int64)
    frame = report.variables
    frame = frame[frame["role"] != "stash"]
    kept = _saved(report, frame, stage)
    calls, pieces = code_of_blocks(report, blocks)
    users = np.array(
        [np.isin(np.arange(blocks), piece[0]) for piece in pieces], dtype=bool
    ).reshape(-1, blocks)
    code = np.zeros((len(pieces), tiles), dtype=np.int64)
    piece_of = {id: number for number, (_, once, _) in enumerate(pieces) for id in once}
    piece_of |= {id: -1 for _, _, again in pieces for id in again}
    of_weight: dict[tuple[int, int], np.ndarray] = {}
    weights = frame[frame["role"] == "weight"]
    keys = zip(weights["ipu"].tolist(), weights["tensor"].tolist(), strict=True)
    owners = dict(
        zip(keys, zip(weights["block"].tolist(), weights["op"].tolist(), strict=True), strict=True)
    )
    for ipu in range(report.target.num_ipus):
        here = frame[frame["ipu"] == ipu]
        vectors = {int(id): report.variable_tiles(int(id)) for id in here.index}
        states = here[here["role"] == "optimiser state"].drop_duplicates("tensor")
        for id, weight, block, op in zip(
            states.index, states["parameter"], states["block"], states["op"], strict=True
        ):
            block, op = owners.get(
                (ipu, weight), (block, op)
            )  # the weight's: one off the chip has none
            if 0 <= block < blocks:
                state[block] += vectors[int(id)]
                of_weight[block, op] = of_weight.get((block, op), 0) + vectors[int(id)]
        rest = here[(here["always_live"] != 0)]
        for id, block, role in zip(rest.index, rest["block"], rest["role"], strict=True):
            if id in piece_of:
                if piece_of[id] >= 0:
                    code[piece_of[id]] += vectors[int(id)]
            elif not 0 <= block < blocks:
                shared[ipu] += vectors[int(id)]
            elif role != "optimiser state":
                always[block] += vectors[int(id)]
        block_of = dict(zip(here.index.tolist(), here["block"].tolist(), strict=True))
        for id, is_first in kept.items():
            if id in vectors and is_first:
                block = block_of[id]
                saved[block] += vectors[id]
                saved_tensors[block] += 1
        steps = report.program_steps(ipu)
        living = here[
            (here["always_live"] == 0)
            & (here["role"] != "optimiser state")
            & ~here.index.isin(list(kept))
        ]
        at_work = _at_work(steps["block"].to_numpy(), np.flatnonzero(where[stage] == ipu))
        for block in np.unique(at_work[at_work >= 0]).tolist():
            spots = steps["position"].to_numpy()[at_work == block]
            _peak_of(living, vectors, spots, peak[block], interleaved[block])
    if not (
        len(where) and (np.bincount(where[stage], calls, len(shared)) <= shared.min(axis=1)).all()
    ):
        calls = np.zeros_like(calls)  # a stranger's
    np.subtract.at(shared, where[stage], calls[:, None])
    always += calls[:, None]
    for (block, _), total in of_weight.items():
        once[block] = np.maximum(once[block], total)
        state_weights[block] += 1
    return _Memory(
        always,
        users,
        code,
        peak,
        interleaved,
        saved,
        saved_tensors,
        state,
        once,
        state_weights,
        shared.max(axis=0),
    )


def code_of_blocks(
    report: Report, blocks: int
) -> tuple[np.ndarray, list[tuple[list[int], list[int], list[int]]]]:
    """What the compiler wrote of it (`ipu_exec.compiler.memory.Code`).

    Bytes of calls on each tile, int64[Block]; and code that Blocks have in common: which Blocks,
    the ids of its variables, of those with the same on further IPUs.

    An older profile has neither, nor has a stranger's that makes no sense: code then is the Block's
    that ran it first.
    """
    nothing = np.zeros(blocks, dtype=np.int64)
    frame = report.variables
    known = frame.index[(frame["role"] == "program") & (frame["always_live"] != 0)]
    said: Any = report.meta.get("code")
    try:
        calls = np.array(said["calls"], dtype=np.int64)
        pieces = [
            tuple([int(number) for number in numbers] for numbers in piece)
            for piece in said["shared"]
        ]
        named = [id for _, once, again in pieces for id in (*once, *again)]
        users = [block for mine, _, _ in pieces for block in mine]
    except (KeyError, TypeError, ValueError, OverflowError):
        return nothing, []
    ours = (
        len(set(named)) == len(named)
        and known.isin(named).sum() == len(named)
        and calls.shape == nothing.shape
    )
    if not ours or calls.min(initial=0) < 0 or not all(0 <= block < blocks for block in users):
        return nothing, []
    return calls, [(users, once, again) for users, once, again in pieces]


def _at_work(block: np.ndarray, here: np.ndarray) -> np.ndarray:
    """For each step of an IPU the Block of it (of those ``here``) that it belongs to.

    Its own, else, for copies, the stash and the weight update, the one that ran last (at the begin:
    that runs first). -1 where there is none.
    """
    own = np.isin(block, here)
    if not own.any():
        return np.full_like(block, -1)
    last = np.maximum.accumulate(np.where(own, np.arange(len(block)), -1))
    found: np.ndarray = block[np.where(last >= 0, last, own.argmax())]
    return found


def _saved(report: Report, variables: pd.DataFrame, stage: np.ndarray) -> dict[int, bool]:
    """Ids of the variables that hold what a Block's forward leaves for its backward.

    With each, whether it is the one to count: a tensor that is stashed or recomputed appears twice,
    in the forward and before the backward.
    """
    op = variables["op"].to_numpy()
    ops = report.ops
    direction = ops["direction"].reindex(op).fillna("").to_numpy()
    block = variables["block"].to_numpy()
    mine = (direction == "forward") & (block >= 0) & (variables["always_live"] == 0).to_numpy()
    mine &= (variables["role"] == "activation").to_numpy()
    mine[mine] = stage[block[mine]] == variables["stage"].to_numpy()[mine]
    rows = variables[mine]
    steps = report.program_steps()
    at = zip(steps["ipu"], steps["position"], strict=True)
    of_step = dict(zip(at, steps["direction"], strict=True))
    last = [
        of_step.get((ipu, stop - 1), "")
        for ipu, stop in zip(rows["ipu"], rows["stop"], strict=True)
    ]
    tensors = set()
    kept: dict[int, bool] = {}
    keys = list(zip(rows["ipu"].tolist(), rows["tensor"].tolist(), strict=True))
    for id, key, words in zip(rows.index.tolist(), keys, last, strict=True):
        if words == "backward":
            kept[id] = key not in tensors
            tensors.add(key)
    for id, key, words in zip(rows.index.tolist(), keys, last, strict=True):
        if key in tensors and words in _WRITTEN and id not in kept:
            kept[id] = False
    return kept


def _peak_of(
    variables: object,
    vectors: dict[int, np.ndarray],
    spots: np.ndarray,
    peak: np.ndarray,
    interleaved: np.ndarray,
) -> None:
    """Raise ``peak`` and ``interleaved`` to the most that is live on each tile.

    They are for regions 0 and 1, at the positions ``spots``.
    """
    frame: object = variables
    columns = frame[["start", "stop", "interleaved"]]  # type: ignore[index]
    changes: dict[int, list[tuple[int, int, bool]]] = {}
    low, high = int(spots.min()), int(spots.max())
    for id, start, stop, region1 in zip(
        columns.index, columns["start"], columns["stop"], columns["interleaved"], strict=True
    ):
        if stop > low and start <= high:
            changes.setdefault(max(int(start), low), []).append((int(id), 1, bool(region1)))
            changes.setdefault(int(stop), []).append((int(id), -1, bool(region1)))
    level, level1 = np.zeros_like(peak), np.zeros_like(peak)
    times = [at for at in sorted(changes) if at <= high]
    # Other Blocks run between this one's forward and backward: what only they hold is none of its
    # peak.
    spots = np.sort(spots)
    runs = np.searchsorted(spots, [*times[1:], high + 1]) > np.searchsorted(spots, times)
    for at, here in zip(times, runs.tolist(), strict=True):
        for id, sign, region1 in changes[at]:
            level += sign * vectors[id]
            if region1:
                level1 += sign * vectors[id]
        if here:
            np.maximum(peak, level - level1, out=peak)
            np.maximum(interleaved, level1, out=interleaved)
