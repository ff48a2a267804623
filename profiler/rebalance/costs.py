"""What each Block costs, read off one profile: cycles, bytes over a cut behind it, bytes on each tile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiler.memory import including_gaps
from profiler.report import Report

_STASHED = ("stash",)


@dataclass(frozen=True)
class Costs:
    """Blocks in the order of the model; arrays have an entry a Block, or [Block, tile]. Cycles are a micro-batch's,
    but ``update``'s. Units: cycles, bytes.

    A stage that recomputes runs its forward again but for ``not_again`` cycles at its end, which only the next stage
    needs (a mean over the profiled ones: an estimate). A stage that stashes what enters it pays ``stash_base +
    stash_rate x bytes`` cycles in its forward, and again where it recomputes: fitted to the cuts that the profile has
    (an estimate for the others).
    """

    names: tuple[str, ...]
    stage: np.ndarray  # of each Block, as profiled
    ipus: tuple[int, ...]  # of each stage, as profiled
    forward: np.ndarray
    backward: np.ndarray  # without recomputation
    update: np.ndarray
    recompute: bool
    not_again: int
    inputs: np.ndarray  # bytes from the host that the Block is the first to read
    copy: np.ndarray  # bytes forward over a cut behind the Block
    copy_back: np.ndarray
    stream_in: np.ndarray  # cycles of host input
    stream_out: np.ndarray
    stream_out_once: bool
    always: np.ndarray  # bytes on each tile whatever runs, without the stash
    peak: np.ndarray  # bytes on each tile while the Block runs, besides
    peak_interleaved: np.ndarray  # of them, in region 1
    shared: np.ndarray  # bytes on each tile that belong to no Block, an IPU: stack, control code (the largest IPU's)
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
    rounds: bool = False  # Options.autoRoundNumIPUs: a number of IPUs that is no power of two is rounded up

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_report(cls, report: Report) -> Costs:
        """ValueError where the profile has no Blocks: there is nothing to move."""
        blocks = report.blocks.sort_values("block")
        if not len(blocks):
            raise ValueError(
                f"{report.path} has no Blocks: there is nothing to move. Name parts of the model as Blocks"
            )
        target, training = report.target, report.meta["kind"] == "training"
        count, tiles = len(blocks), target.tiles_per_ipu
        stage, stage_ipu = blocks["stage"].to_numpy(), tuple(report.stages["ipu"].tolist())
        steps = report.program_steps()
        own = stage[steps["block"].to_numpy().clip(0)]
        mine = steps[(steps["block"] >= 0) & (steps["stage"].to_numpy() == own)]
        by_block = mine.groupby(["direction", "block"])["cycles"].sum()

        def cycles(direction: str) -> np.ndarray:
            return np.array([int(by_block.get((direction, b), 0)) for b in range(count)], dtype=np.int64)

        forward = cycles("forward")
        updates = blocks["update_cycles"].to_numpy()
        copy, copy_back = blocks["copy_bytes"].to_numpy(), blocks["copy_back_bytes"].to_numpy()
        entering = np.concatenate([[blocks["input_bytes"].iloc[0]], copy[:-1]])
        base, rate = _stash_fit(report, stage, forward, entering)
        bodies = report.bodies
        inputs = bodies[bodies["name"].str.contains("inputs from host", regex=False)].groupby("stage")["cycles"].sum()
        outputs = bodies[bodies["name"].str.contains("outputs to host", regex=False)].groupby("stage")["cycles"].sum()
        syncs = bodies.loc[bodies["kind"] == "external sync", "cycles"]
        reduces = bodies.loc[bodies["name"].str.contains("reduce", case=False, regex=False), "cycles"]
        always, peak, interleaved, shared = _memory(report, count)
        options = report.options
        accumulation = int(options.get("Training.gradientAccumulation", 1) or 1)
        pipelined = report.meta.get("strategy", "pipelined") == "pipelined"
        if len(stage_ipu) == 1:  # one stage is no pipeline, but more of them would be
            pipelined = str(options.get("executionStrategy", "Pipelined")).startswith(("Pipelined", "pipelined"))
        return cls(
            names=tuple(blocks["name"]),
            stage=stage,
            ipus=stage_ipu,
            forward=forward,
            backward=cycles("backward"),
            update=updates,
            recompute=_recomputes(report, pipelined and training),
            not_again=_not_again(report),
            inputs=blocks["input_bytes"].to_numpy(),
            copy=copy,
            copy_back=copy_back,
            stream_in=_streams(inputs, stage, blocks["input_bytes"].to_numpy()),
            stream_out=_streams(outputs, stage, np.arange(count) + 1 == count),
            stream_out_once=_outputs_once(report),
            always=always,
            peak=peak,
            peak_interleaved=interleaved,
            shared=shared,
            stash_base=base,
            stash_rate=rate,
            sync=int(syncs.max()) if len(syncs) else 0,
            reduce=int(reduces.max()) if len(reduces) else 0,
            link_latency=int(report.meta.get("link_latency", 0) or 0),
            link_bytes_per_cycle=float(report.meta.get("link_bytes_per_cycle", 0) or 1.0),
            micro_batches=accumulation if training else int(options.get("deviceIterations", 1) or 1),
            samples=int(report.meta["micro_batch"]) * target.num_replicas,
            training=training,
            pipelined=pipelined,
            tiles=tiles,
            bytes_per_tile=target.bytes_per_tile,
            region0_bytes=target.region0_bytes,
            clock_hz=target.clock_hz,
            rounds=bool(options.get("autoRoundNumIpus", False)),
        )

    def stash_cycles(self, first: int) -> int:
        """Of a stage that begins with Block ``first``, for keeping what enters it."""
        return round(self.stash_base + self.stash_rate * self.entering(first)) if self.training else 0

    def entering(self, first: int) -> int:
        """Bytes that a stage beginning with Block ``first`` takes in, a micro-batch."""
        return int(self.copy[first - 1] if first else self.inputs[0])

    def tile_bytes(self, first: int, last: int, depth: int) -> np.ndarray:
        """Bytes on each tile of a stage of Blocks ``first .. last``, gaps included; ``depth`` micro-batches stashed.

        Blocks keep the tiles they were profiled on; the stash is spread evenly (both are estimates).
        """
        some = slice(first, last + 1)
        stash = -(-depth * self.entering(first) // self.tiles)
        plain = self.shared + self.always[some].sum(axis=0) + stash
        plain = plain + (self.peak[some] - self.peak_interleaved[some]).max(axis=0)
        return including_gaps(plain, self.peak_interleaved[some].max(axis=0), self.region0_bytes)


def _stash_fit(report: Report, stage: np.ndarray, forward: np.ndarray, entering: np.ndarray) -> tuple[float, float]:
    """Base and rate of the cycles that stages spend on their stash, from those that have one."""
    rows = report.stages
    own = np.array([forward[stage == k].sum() for k in rows["stage"]], dtype=np.int64)
    extra = rows["forward_cycles"].to_numpy() - own
    known = np.array([k for k in range(len(rows)) if extra[k] > 0 and (stage == k).any()], dtype=np.int64)
    if not len(known):
        return 0.0, 0.0
    size = np.array([entering[np.flatnonzero(stage == k)[0]] for k in known], dtype=np.float64)
    if len(known) > 1 and np.ptp(size) > 0:
        rate, base = np.polyfit(size, extra[known], 1)
        if rate >= 0 and base >= 0:
            return float(base), float(rate)
    return float(extra[known].mean()), 0.0


def _recomputes(report: Report, pipelined_training: bool) -> bool:
    """Whether stages run their forward again: as profiled, or where there is one stage, as the options say of more."""
    if len(report.stages) == 1:
        return pipelined_training and bool(report.options.get("_Popart.autoRecomputation", True))
    return bool((report.stages["recompute_cycles"] > 0).any())


def _not_again(report: Report) -> int:
    """Mean cycles of forward that recomputing stages do not run again."""
    stages = report.stages[report.stages["recompute_cycles"] > 0]
    return round(float((stages["forward_cycles"] - stages["recompute_cycles"]).mean())) if len(stages) else 0


def _streams(measured: object, stage: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """A stage's host cycles on its Blocks, by ``weight`` (on the first where nothing weighs)."""
    found = np.zeros(len(stage), dtype=np.int64)
    for k, cycles in dict(measured).items():  # type: ignore[call-overload]
        here = np.flatnonzero(stage == k)
        if len(here):
            share = weight[here].astype(np.float64)
            share = share / share.sum() if share.sum() else (np.arange(len(here)) == 0).astype(np.float64)
            found[here] = np.rint(cycles * share)
    return found


def _outputs_once(report: Report) -> bool:
    """Whether outputs leave once, at the end, rather than in every pipeline cycle: as it ran, or as the mode says."""
    if len(report.runs):
        tasks = report.tasks(0, iteration=0)
        out = tasks[tasks["name"].str.contains("outputs to host", regex=False)]
        return out["stage"].nunique() == len(out)
    mode = report.options.get("outputMode", "Default")
    return mode in ("Final", "Sum") or (mode == "Default" and report.meta["kind"] == "training")


def _memory(report: Report, blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(always, peak, interleaved peak) as [Block, tile] and what belongs to none [tile], all in bytes."""
    tiles = report.target.tiles_per_ipu
    always, peak = np.zeros((blocks, tiles), dtype=np.int64), np.zeros((blocks, tiles), dtype=np.int64)
    interleaved = np.zeros((blocks, tiles), dtype=np.int64)
    shared = np.zeros((report.target.num_ipus, tiles), dtype=np.int64)
    frame = report.variables
    for ipu in range(report.target.num_ipus):
        here = frame[(frame["ipu"] == ipu) & ~frame["role"].isin(_STASHED)]
        vectors = {int(id): report.variable_tiles(int(id)) for id in here.index}
        for id, block in zip(here.index[here["always_live"] != 0], here.loc[here["always_live"] != 0, "block"],
                             strict=True):  # fmt: skip
            if 0 <= block < blocks:
                always[block] += vectors[int(id)]
            else:
                shared[ipu] += vectors[int(id)]
        steps = report.program_steps(ipu)
        for block in sorted(set(steps["block"].tolist()) - {-1}):
            spots = steps.loc[steps["block"] == block, "position"].to_numpy()
            _peak_of(here[here["always_live"] == 0], vectors, spots, peak[block], interleaved[block])
    return always, peak, interleaved, shared.max(axis=0)


def _peak_of(
    variables: object, vectors: dict[int, np.ndarray], spots: np.ndarray, peak: np.ndarray, interleaved: np.ndarray
) -> None:
    """Raise ``peak`` and ``interleaved`` to the most that is live on each tile at one of the steps ``spots``."""
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
    for at in sorted(changes):
        if at > high:
            break
        for id, sign, region1 in changes[at]:
            level += sign * vectors[id]
            if region1:
                level1 += sign * vectors[id]
        np.maximum(peak, level, out=peak)
        np.maximum(interleaved, level1, out=interleaved)
