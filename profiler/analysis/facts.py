"""The facts of a profile for a first look: the numbers once, and one wording of them.

`ipu-report summary`, the viewer's Summary, the HTML report and a notebook show these. Cycles are of
the first profiled device iteration (all are alike), times are those of the modelled machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ipuscope.profiler import confidence, units
from ipuscope.profiler.analysis.memory_hot_spots import CLOSE, fullest_tiles, overflows
from ipuscope.profiler.analysis.pace import pace, turn, waiting
from ipuscope.profiler.analysis.peak import Peak, peak
from ipuscope.profiler.analysis.pod import shards_of
from ipuscope.profiler.analysis.stages import slowest
from ipuscope.profiler.analysis.waits import computing, in_short
from ipuscope.profiler.enums import OUT_OF_MEMORY
from ipuscope.profiler.file import records
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report, number
from ipuscope.profiler.report.frames import summed
from ipuscope.profiler.timeline.tile_usage import Overflow
from ipuscope.profiler.units import Fact, count

MOST_WAITS = 3
_WAITS = ("longest_wait", "second_wait", "third_wait")


@dataclass(frozen=True, slots=True)
class Speed:
    """A device iteration: ``cycles``, micro-batches, seconds and samples a second of all replicas.

    ``waiting``: share of all IPUs' cycles. ``error``: the likely error of the cycles, as a share;
    ``likely``: the range of the rate with it; None if the profile does not say. ``unmeasured``: the
    share of cycles that no published measurement judges.
    """

    cycles: int
    micro_batches: int
    seconds: float
    samples_per_second: float
    waiting: float
    error: float | None
    likely: tuple[float, float] | None
    unmeasured: float


@dataclass(frozen=True, slots=True)
class Slowest:
    """What computes longest: its name, its IPU, its Blocks; and the longest ``stage`` of all.

    ``cycles`` of a micro-batch, their ``ratio`` to the mean, and ``on_path``: the share of the
    critical path on which it computes.
    """

    name: str
    ipu: int
    stage: int
    blocks: str
    cycles: int
    ratio: float
    on_path: float


@dataclass(frozen=True, slots=True)
class Fullest:
    """The fullest tile: its IPU, the bytes used, and the bytes it has.

    ``extent``: the largest of that IPU's tiles, gaps included, which decides whether it fits.
    """

    ipu: int
    used: int
    extent: int
    limit: int

    @classmethod
    def of(cls, report: Report, tiles: np.ndarray) -> Fullest:
        """From the bytes of each IPU's fullest tile (`fullest_tiles`), of one IPU or more."""
        ipu, limit = int(tiles.argmax()), report.target.bytes_per_tile
        extent = int(report.usage.tile_columns(ipu)["total"].max())
        return cls(ipu, int(tiles.max()), extent, limit)

    @property
    def share(self) -> float:
        """Share of the tile, over 1 if it does not fit."""
        return self.used / self.limit

    @property
    def doubt(self) -> str:
        """What is uncertain: empty if far enough from the limit, or if it does not fit."""
        close = 0 <= self.limit - self.extent <= CLOSE * self.limit
        return f"within {CLOSE:.0%} of the limit: compile to know" if close else ""


@dataclass(frozen=True)
class Facts:
    """The numbers of a profile. ``runs``: name, device iterations and cycles of each call.

    ``peak``, ``slowest`` and ``waits`` go through the executed steps, and are found when asked for.
    """

    report: Report
    path: Path
    model: str
    kind: str
    state: str
    complete: bool
    predicted: bool
    created: str
    writer: str
    warnings: tuple[str, ...]
    target: records.Target
    shards: int
    shared: Shared
    stages: int
    blocks: int
    operators: int
    steps: int
    micro_batch: int
    accumulation: int
    device_iterations: int
    strategy: str
    turn: str
    runs: tuple[tuple[str, int, int], ...]
    speed: Speed | None

    @cached_property
    def peak(self) -> Peak | None:
        """MFU, HFU and the way from the peak; None without a schedule."""
        return peak(self.report)

    @cached_property
    def overflow(self) -> Overflow | None:
        """The tile furthest beyond a limit, of a model that does not fit."""
        if self.state != OUT_OF_MEMORY:
            return None
        return max(overflows(self.report), key=lambda one: one.bytes_over, default=None)

    @cached_property
    def slowest(self) -> Slowest | None:
        """What computes longest; None without a stage."""
        return slowest_of(self.report)

    @cached_property
    def waits(self) -> tuple[tuple[float, str], ...]:
        """Share and words of what an update waits for longest."""
        if not self.runs:
            return ()
        _, longest, _ = in_short(self.report)
        columns = (longest[name][:MOST_WAITS].tolist() for name in ("share", "what"))
        return tuple(zip(*columns, strict=True))

    @property
    def ipus(self) -> int:
        """IPUs of the whole machine."""
        return self.target.num_ipus * self.shards


def facts(report: Report) -> Facts:
    """The facts of a profile; without ``speed`` if it has no schedule."""
    meta, options, table = report.meta, report.options, report.file.table
    columns = (report.run_columns[name].tolist() for name in ("name", "iterations", "cycles"))
    return Facts(
        report=report,
        path=report.path,
        model=str(meta["model"]),
        kind=str(meta["kind"]),
        state=str(meta["state"]),
        complete=bool(meta["complete"]),
        predicted=report.predicted,
        created=str(meta["created"]),
        writer=str(meta["writer"]),
        warnings=tuple(map(str, meta["warnings"])),
        target=report.target,
        shards=shards_of(report),
        shared=shared(report),
        stages=table(records.Stage).rows,
        blocks=table(records.Block).rows,
        operators=table(records.Op).rows,
        steps=table(records.Step).rows,
        micro_batch=int(number(meta, "micro_batch", 0)),
        accumulation=options.get("Training.gradientAccumulation", 1),
        device_iterations=options.get("deviceIterations", 1),
        strategy=meta.get("strategy", options.get("executionStrategy", "")),
        turn=turn(report),
        runs=tuple(zip(*columns, strict=True)),
        speed=_speed(report),
    )


def set_options(report: Report) -> list[tuple[str, Any]]:
    """(dotted name, value) of each option that the script set, by name.

    Empty for older profiles, which do not say which of their options are the defaults.
    """
    changed = report.meta.get("changed", [])
    return [(name, report.options[name]) for name in changed if name in report.options]


def fullest(report: Report) -> Fullest | None:
    """The fullest tile of all IPUs; None if the profile has no tiles."""
    tiles = fullest_tiles(report)
    return Fullest.of(report, tiles) if len(tiles) else None


def _speed(report: Report) -> Speed | None:
    one = pace(report)
    if not one.cycles:
        return None
    error, rate = confidence.confidence(report), one.samples_per_second
    return Speed(
        one.cycles,
        one.micro_batches,
        one.cycles / report.target.clock_hz,
        rate,
        waiting(report),
        None if error is None else error.likely,
        None if error is None else error.rates(rate),
        confidence.unmeasured(report),
    )


def slowest_of(report: Report) -> Slowest | None:
    """What computes longest; None without a stage."""
    one = slowest(report)
    if one is None:
        return None
    name, blocks, cycles, ratio = one
    stages, on_path = report.stage_columns, 0.0
    ipus, which = np.unique(stages["ipu"], return_inverse=True)
    ipu = int(ipus[summed(stages["cycles"], which, len(ipus)).argmax()])
    longest = int(stages["stage"][stages["cycles"].argmax()])
    if len(report.trace.columns["id"]):
        computes, total = computing(report)
        on_path = computes.get(ipu, 0) / max(1, total)
    return Slowest(name, ipu, longest, blocks, cycles, ratio, on_path)


def about(of: Facts) -> list[Fact]:
    """The model and the machine."""
    target = of.target
    counts = {"stage": of.stages, "Block": of.blocks, "operator": of.operators}
    parts = {**counts, "program step": of.steps}
    state = of.state if of.complete else f"{of.state}, not finished"
    state += f": {of.overflow}" if of.overflow is not None else ""
    machine = (
        f"{units.count(of.ipus, 'IPU')}{_replicas(of)}, {target.name}: {target.tiles_per_ipu:,}"
        f" tiles with {target.bytes_per_tile / 1024:,.0f} KiB each, {target.clock_hz / 1e9:.2f} GHz"
    )
    on_it = ", ".join(units.count(many, noun) for noun, many in parts.items())
    return [
        Fact("model", of.model, "model", f"{of.model or 'unnamed'}, {of.kind}"),
        Fact("kind", of.kind),
        Fact("state", of.state, "state", state),
        Fact("predicted", of.predicted),
        Fact("complete", of.complete),
        Fact("created", of.created, "written", f"{of.created} by {of.writer}"),
        Fact("target", target.name, "machine", machine),
        Fact("ipus", of.ipus),
        Fact("tensor_sharding", of.shards),
        Fact("replicas", target.num_replicas),
        Fact("instances", of.shared.instances),
        Fact("hosts", of.shared.hosts),
        Fact("tiles_per_ipu", target.tiles_per_ipu),
        Fact("clock_hz", target.clock_hz),
        Fact("strategy", of.strategy),
        Fact("stages", of.stages, "compiled to", on_it),
        Fact("micro_batch", of.micro_batch, "batch", _batch(of)),
        Fact("gradient_accumulation", of.accumulation),
    ]


def speed(of: Facts) -> list[Fact]:
    """How fast it is, how certain that is, and what takes longest."""
    if of.speed is None:
        return [Fact("runs", 0, "runs", "none, and no schedule: the compile did not get so far")]
    one = of.speed
    fits = of.state != OUT_OF_MEMORY
    low, high = (fits and one.likely) or (None, None)
    iteration = f"{one.cycles:,} cycles, {units.seconds(one.seconds)}"
    if one.micro_batches:
        iteration += f", with {units.count(one.micro_batches, 'micro-batch')}"
    slow, samples = of.slowest, one.micro_batches > 0  # not of an imported profile
    words = slowest_words(slow) if slow and of.stages > 1 else ""
    waits = [f"{units.percent(share)} {what}" for share, what in of.waits]
    waits += [""] * (len(_WAITS) - len(waits))  # with --csv all profiles have the same columns
    labels, top = ["waits for", "", ""], of.peak if fits else None
    quick = one.samples_per_second if fits else None
    said = rate(one) if fits else "none: it does not fit"
    return [
        Fact("runs", 0 if of.predicted else len(of.runs), "runs", _runs(of)),
        Fact("iteration_cycles", one.cycles, of.turn, iteration),
        *_doubt(one),
        Fact("samples_per_second", quick, "speed", said if samples else ""),
        Fact("samples_per_second_low", low),
        Fact("samples_per_second_high", high),
        Fact("idle_share", one.waiting, "waiting", f"{one.waiting:.1%} of the cycles of all IPUs"),
        Fact("mfu", top.mfu if top else None, "of the peak", top.words if top else ""),
        Fact("hfu", top.hfu if top else None, "the rest is", top.lost if top else ""),
        Fact("slowest_stage", slow.stage if slow else -1, "slowest", words),
        Fact("slowest_ipu", slow.ipu if slow else -1),
        *map(Fact, _WAITS, waits, labels, waits),
    ]


def rate(of: Speed) -> str:
    """``126 samples a second (predicted; likely 114 to 142)``."""
    words = "predicted"
    if of.likely is not None:
        words += f"; likely {' to '.join(map(units.per_second, of.likely))}"
    return f"{units.per_second(of.samples_per_second)} samples a second ({words})"


def memory(of: Fullest | None) -> list[Fact]:
    """How full the fullest tile is, and what of that is uncertain."""
    if of is None:
        return []
    doubt = f"; {of.doubt}" if of.doubt else ""
    words = f"{units.size(of.used)} on IPU {of.ipu}, {units.percent(of.share)} full{doubt}"
    return [Fact("fullest_bytes", of.used, "fullest tile", words), Fact("memory_doubt", of.doubt)]


def in_words(report: Report) -> list[tuple[str, str]]:
    """Label and words of all facts that people read."""
    of = facts(report)
    rows = (*about(of), *speed(of), *memory(fullest(report)))
    return [(one.label, one.words) for one in rows if one.words]


def _replicas(of: Facts) -> str:
    target, each = of.target, of.target.ipus_per_replica
    who = f" ({of.shared})" if of.shared.instances > 1 else ""
    if of.shards > 1:
        count = units.count(target.num_replicas, "replica")
        return (
            f" as {count} of a pipeline of {each}{who}, in which each IPU shown stands for"
            f" {of.shards} that share the tensors of a stage"
        )
    if target.num_replicas > 1:
        return f" as {target.num_replicas} replicas of {each}{who}"
    return who


def _batch(of: Facts) -> str:
    if of.report.imported:
        return "not in this profile"
    parts = [f"micro-batch {of.micro_batch}"]
    if of.kind == "training":
        parts.append(f"gradient accumulation {of.accumulation}")
    parts.append(f"device iterations {of.device_iterations}")
    if of.target.num_replicas > 1:
        parts.append(f"replicas {of.target.num_replicas}")
    return " x ".join(parts)


def _runs(of: Facts) -> str:
    _, iterations, cycles = of.runs[0]
    each = units.count(iterations, "device iteration")
    if of.predicted:
        return f"not run; predicted {cycles:,} cycles for a call of {each}"
    return f"{len(of.runs)} profiled, {each} each"


def _doubt(of: Speed) -> list[Fact]:
    if of.error is None or of.likely is None:
        return []
    low, high = (rate / of.samples_per_second for rate in of.likely)
    words = confidence.Confidence(low, high).words
    if of.unmeasured:
        share = f"{of.unmeasured:.0%}"
        words += f"; {share} are of operators without a measurement, judged by similar ones"
    return [Fact("likely_error", round(of.error, 4), "cycles are", words)]


def slowest_words(slow: Slowest) -> str:
    """``stage 2 (B3): 1,000 cycles a micro-batch, 1.29 x the mean``."""
    where, name = slow.blocks or "no Block", slow.name
    who = f"{name[:-1]}: {where})" if name.endswith(")") else f"{name} ({where})"
    return f"{who}: {slow.cycles:,} cycles a micro-batch, {slow.ratio:.2f} x the mean"


@dataclass(frozen=True, slots=True)
class Shared:
    """``instances`` processes on ``hosts`` machines, each with ``replicas`` of ``ipus`` IPUs."""

    instances: int
    hosts: int
    replicas: int
    ipus: int

    def __str__(self) -> str:
        """On one line, as in "4 instances on 2 hosts x 2 replicas x 1 IPU"."""
        where = f" on {self.hosts} hosts" if self.hosts > 1 else ""
        replicas, ipus = count(self.replicas, "replica"), count(self.ipus, "IPU")
        return f"{count(self.instances, 'instance')}{where} x {replicas} x {ipus}"


def shared(report: Report) -> Shared:
    """The instances that run the replicas of a profile; one if the profile does not say."""
    target = report.target
    instances = max(1, int(number(report.meta, "num_instances", 1)))
    hosts = max(1, int(number(report.meta, "num_hosts", 1)))
    return Shared(instances, hosts, target.num_replicas // instances, target.ipus_per_replica)
