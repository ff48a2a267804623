"""Sentences with numbers.

What limits a run, what acting on it would gain, where to look and what to change.

A gain is what the engine's schedule says after the change (`profiler.rebalance.what_if` over the
profile's own costs), cycles a weight update unless said; tests compile the changed model and hold
it against that. Where no change is known that gains it, it is marked as a bound (``at_most``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from profiler import analysis, units
from profiler.enums import Direction, Role
from profiler.memory import what_fills, what_it_needs
from profiler.rebalance import Assignment, Costs, Prediction, Split, what_if
from profiler.rebalance.choice import Choice
from profiler.rebalance.host_streams import HostStreams
from profiler.rebalance.split import one_an_ipu, quickest_split
from profiler.report import Report

__all__ = ["Insight", "insights"]

if TYPE_CHECKING:
    import pandas as pd

_LEAST_SHARE = 0.005  # of a weight update: what gains less is not said
_MORE_MICRO_BATCHES = 4
_MUCH = 0.05  # of a stage: an operator with less is not named
_LEAST_SHARDED = 8192  # elements: PopART shards no smaller tensor unless it is told to
_DEAR = 0.1  # of a weight update: memory that costs more is no advice while there is room
_ROOMY = 0.7  # of a tile: below it a larger micro-batch may fit
_LEAST_RETURNED = 64  # bytes: a loss is not worth a word


@dataclass(frozen=True)
class Insight:
    """One finding.

    ``gain_cycles`` a weight update and ``gain_bytes`` on the fullest tile are 0 where unknown;
    ``at_most``: the cycles are a bound, and no change is known that gains them.

    ``where`` is a page of the viewer with its parameters; ``action`` what to change, and ``change``
    the same for programs (empty: nothing that has a name).
    """

    title: str
    detail: str
    action: str
    where: str
    gain_cycles: int = 0
    gain_bytes: int = 0
    at_most: bool = False
    change: dict[str, Any] = field(default_factory=dict)


def insights(report: Report) -> list[Insight]:
    """What there is to say, what gains most cycles first, then bytes, then the rest."""
    findings: list[Insight] = [*_overflow(report)]
    pace, costs = analysis.pace(report), _costs(report)
    if pace.cycles:
        of_cycles: list[Insight] = []
        if costs is not None:
            present = what_if(costs, Assignment.of(costs.stage.tolist(), costs.ipus))
            of_cycles += _split(report, costs, present, pace.cycles)
            of_cycles += _travelling_weights(costs, present)
            of_cycles += _more_micro_batches(costs, present)
            of_cycles += _host(report, costs, present)
            of_cycles += _balance(report, costs, present)
        findings += [one for one in of_cycles if one.gain_cycles >= int(_LEAST_SHARE * pace.cycles)]
    findings += _memory(report, costs)
    return sorted(findings, key=lambda i: (-("overflow" in i.title), -i.gain_cycles, -i.gain_bytes))


def _costs(report: Report) -> Costs | None:
    try:
        costs = Costs.from_report(report)
        Assignment.of(costs.stage.tolist())
    except ValueError:
        return None
    return costs


def _overflow(report: Report) -> list[Insight]:
    findings = []
    for over in analysis.overflows(report):
        tiles = int((report.tiles(over.ipu)["overflow"] > 0).sum())
        count = f"{units.count(tiles, 'tile')} of" if tiles else "the code of a tile of"
        parts = " or in parts on the replicas" if report.target.num_replicas > 1 else ""
        findings.append(
            Insight(
                f"IPU {over.ipu} overflows: {count} it hold more than they have",
                f"Tile {over.tile} {what_it_needs(over.bytes_over, over.limit, over.what)};"
                f" {what_fills(over.largest, over.always_live)}.",
                f"Give the stage fewer Blocks, or keep its optimiser state off the chip{parts}",
                f"/liveness?ipu={over.ipu}&tile={over.tile}",
                gain_bytes=over.bytes_over,
            )
        )
    return findings


def _split(report: Report, costs: Costs, present: Prediction, now: int) -> list[Insight]:
    stages = report.stages
    slowest = stages.iloc[int(stages["cycles"].to_numpy().argmax())]
    mean = float(stages["cycles"].mean())
    ops = report.ops[
        (report.ops["stage"] == slowest["stage"]) & (report.ops["direction"] != Direction.UPDATE)
    ]
    largest = ops.loc[ops["cycles"].idxmax()] if len(ops) else None
    share = largest["cycles"] / max(1, ops["cycles"].sum()) if largest is not None else 0.0
    most = (
        f" {share:.0%} of it is {largest['name']}."
        if largest is not None and share >= _MUCH
        else ""
    )
    try:
        best: Split | None = quickest_split(costs, one_an_ipu(len(costs.ipus)))
    except ValueError:
        best = None
    gain = present.total - best.prediction.total if best is not None else 0
    title = (
        f"stage {slowest['stage']} takes {slowest['cycles'] / max(1.0, mean):.2f} × the mean stage"
    )
    if best is None or gain <= 0:
        if len(costs.ipus) == 1 or int(slowest["cycles"]) <= 1.1 * mean:
            return []
        if_even = present.total - what_if(_even(costs), present.assignment).total
        detail = (
            f"The others wait for it.{most} No better split of these Blocks was found. With"
            f" smaller ones and all stages even {_turn(costs)} would take about {if_even:,} cycles"
            " less."
        )
        action = "Cut its Blocks into smaller ones: ipu-report rebalance --inside says where"
        return [Insight(title, detail, action, "/rebalance", if_even, at_most=True)]
    moves = best.why[-1]
    used = len(best.prediction.assignment.ipus)
    fewer = f" on {units.count(used, 'IPU')}" if used < len(costs.ipus) else ""
    detail = (
        f"The others wait for it.{most} The quickest split{fewer} {moves}: {gain / now:.1%} fewer"
        " cycles."
    )
    assignment = best.prediction.assignment
    starts = ",".join(str(first) for first in assignment.starts)
    where = f"/rebalance?starts={starts}"
    change = {"starts": list(assignment.starts), "ipus": list(assignment.ipus)}
    return [Insight(title, detail, "Change the Stage list so", where, gain, change=change)]


def _travelling_weights(costs: Costs, present: Prediction) -> list[Insight]:
    """Weights that Blocks on two IPUs share, and what it gains to read them where they are."""
    findings = []
    ties = costs.cuts.ties
    for name, blocks, nbytes in zip(ties.names, ties.blocks, ties.nbytes, strict=True):
        home, reader = blocks[0], blocks[-1]
        together = _back_home(present.assignment, costs.stage.tolist(), home, reader)
        if together is None:
            continue
        prediction = what_if(costs, together)
        gain = present.total - prediction.total
        if gain <= 0 or prediction.problems:
            continue
        ipu, other = together.ipus[-1], present.assignment.ipus[-1]
        detail = (
            f"{costs.names[home]} has it on IPU {ipu}, {costs.names[reader]} reads it on IPU"
            f" {other}: {units.size(nbytes)} and its gradient go through every stage between them,"
            f" in every pipeline cycle. With both on IPU {ipu} {_turn(costs)} takes {gain:,} cycles"
            " less."
        )
        action = (
            f"Begin {costs.names[reader]} as a stage of its own on IPU {ipu}, behind the others:"
            f" BeginBlock(..., ipu_id={ipu}) with AutoStage.AutoIncrement, or Stage(...).ipu({ipu})"
        )
        change = {"starts": list(together.starts), "ipus": list(together.ipus)}
        title = f"the tied weight {name} travels between IPU {ipu} and IPU {other}"
        findings.append(Insight(title, detail, action, "/rebalance", gain, change=change))
    return findings


def _back_home(present: Assignment, stage: list[int], home: int, reader: int) -> Assignment | None:
    """The split with the Blocks from ``reader`` on as a stage on the IPU of ``home``.

    None where they are there already, or where the reader is not in the last stage.
    """
    ipu = present.ipus[stage[home]]
    if stage[reader] != len(present.starts) - 1 or present.ipus[-1] == ipu:
        return None
    if reader == present.starts[-1]:
        return replace(present, ipus=(*present.ipus[:-1], ipu), choices=())
    starts, ipus = (*present.starts, reader), (*present.ipus, ipu)
    return replace(present, starts=starts, ipus=ipus, choices=())


def _even(costs: Costs) -> Costs:
    """The same work, as much of it in every stage."""
    of_stage = np.bincount(costs.stage, costs.cycles.work)
    scale = (of_stage.mean() / np.maximum(1, of_stage))[costs.stage]
    return replace(costs, cycles=costs.cycles.scaled(scale, np.floor))


def _more_micro_batches(costs: Costs, present: Prediction) -> list[Insight]:
    """What more micro-batches a weight update gain, a sample.

    Fewer ramps, and an update that more share: one change with two causes, whose gains add up.
    """
    many = costs.micro_batches * _MORE_MICRO_BATCHES
    longer = what_if(replace(costs, micro_batches=many), present.assignment)
    ramps, update = _ramps_and_update(present)
    _, later = _ramps_and_update(longer)
    of_update = update - later // _MORE_MICRO_BATCHES
    of_ramps = present.total - longer.total // _MORE_MICRO_BATCHES - of_update
    name = "gradientAccumulation" if costs.training else "deviceIterations"
    spoken = "gradient accumulation" if costs.training else "device iterations"
    instead = f"{spoken} of {many} instead of {costs.micro_batches}"
    change = {name: many}
    findings = []
    if ramps:
        findings.append(
            Insight(
                f"ramp-up and ramp-down take {ramps / max(1, present.total):.0%} of {_turn(costs)}",
                f"In them IPUs wait for the pipeline to fill and to drain, {ramps:,} cycles each"
                " time.",
                f"{instead} has them less often: {of_ramps:,} cycles less for as many samples",
                "/pipeline",
                of_ramps,
                change=change,
            )
        )
    if update and costs.training:
        findings.append(
            Insight(
                f"the weight update at its end takes {update / max(1, present.total):.0%} of"
                f" {_turn(costs)}",
                f"All-reduce, optimiser and its state take {update:,} cycles, however many"
                " micro-batches share them.",
                f"{instead} has it less often: {of_update:,} cycles less for as many samples",
                "/pipeline",
                of_update,
                change=change,
            )
        )
    return findings


def _ramps_and_update(prediction: Prediction) -> tuple[int, int]:
    """Cycles of ramp-up and ramp-down, and of what comes after the last pipeline cycle."""
    schedule = prediction.schedule
    phases, lengths = np.array(schedule.phases), schedule.cycle_end - schedule.cycle_start
    ramps = int(lengths[np.isin(phases, ["ramp-up", "ramp-down"])].sum())
    return ramps, int(lengths[phases == "update"].sum())


def _host(report: Report, costs: Costs, present: Prediction) -> list[Insight]:
    none, now = np.zeros(len(costs), dtype=np.int64), present.total
    streams = costs.streams
    silent = replace(streams, stream_in=none, stream_out=none, load=none, unload=none)
    waits = now - what_if(replace(costs, streams=silent), present.assignment).total
    overlapped = bool(len(streams.load) and (streams.load.any() or streams.unload.any()))
    if overlapped:
        detail = (
            "What I/O tiles move takes longer than the work beside it, or comes before the first"
            " and after the last."
        )
    elif streams.out_once:
        detail = (
            "Inputs move at the start of each pipeline cycle, outputs once at the end of"
            f" {_turn(costs)}, while nobody computes."
        )
    else:
        detail = (
            "Inputs and outputs move at the start and end of each pipeline cycle, while nobody"
            " computes."
        )
    title = (
        f"host I/O keeps all IPUs waiting for {waits:,} cycles of {_turn(costs)},"
        f" {waits / max(1, now):.0%} of it"
    )
    changes = sorted(_less_to_host(report, costs, present), key=lambda one: -one[0])
    saved, action, change = changes[0] if changes else (0, "", {})
    overlap = _overlap(costs, present, overlapped)
    said = " ".join(words for words in (detail, _largest_transfers(report)) if words)
    if saved < int(_LEAST_SHARE * now):
        less = "Make inputs smaller (dtypes, sizes), or on the device"
        words = f"{overlap}. {less}" if overlap else less
        return [Insight(title, said, words, "/pipeline", waits, at_most=True)]
    words = f"{action}: {saved:,} cycles less" + (f". {overlap}" if overlap else "")
    return [Insight(title, said, words, "/pipeline", saved, change=change)]


def _largest_transfers(report: Report) -> str:
    """The largest tensor each way, in words."""
    tensors = analysis.host_tensors(report)
    parts = []
    for way, words in (("in", "comes in"), ("out", "goes back")):
        mine = tensors[tensors["way"] == way]
        if len(mine):
            first = mine.iloc[0]
            parts.append(
                f"{first['share']:.0%} of what {words} is {first['name']}"
                f" ({units.size(int(first['bytes']))} a micro-batch)"
            )
    return f"{'; '.join(parts)}." if parts else ""


def _less_to_host(
    report: Report, costs: Costs, present: Prediction
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Changes that send the host less: cycles that they save, in words, and for programs."""
    mode = str(report.options.get("outputMode", "Default"))
    streams = costs.streams

    def saves(less: HostStreams) -> int:
        return present.total - what_if(replace(costs, streams=less), present.assignment).total

    often = costs.training and not streams.out_once and costs.micro_batches > 1
    if often and streams.stream_out.any():
        saved = saves(replace(streams, out_once=True))
        yield saved, f"OutputMode.Final instead of {mode}", {"outputMode": "Final"}
    tensors = analysis.host_tensors(report)
    returned = tensors[(tensors["way"] == "out") & (tensors["bytes"] >= _LEAST_RETURNED)]
    if costs.training and len(returned):
        first = returned.iloc[0]
        left = (streams.stream_out * (1 - first["share"])).astype(np.int64)
        left = np.maximum(left, streams.stream_out > 0)  # the loss still goes: a transfer stays
        saved = saves(replace(streams, stream_out=left))
        words = f"Do not return {first['name']} from the model where only the loss is needed"
        yield saved, words, {"not_returned": str(first["name"])}


def _overlap(costs: Costs, present: Prediction, overlapped: bool) -> str:
    """How to move them beside computing, where PopTorch can."""
    alone = len(costs.ipus) == 1 or not costs.pipelined  # it refuses it in a pipeline
    if not alone or overlapped or costs.micro_batches == 1:
        return ""
    none = np.zeros(len(costs), dtype=np.int64)
    beside = replace(costs.streams, stream_in=none, load=costs.streams.stream_in, unload=none)
    if not costs.streams.out_once:
        beside = replace(beside, stream_out=none, unload=costs.streams.stream_out)
    saved = present.total - what_if(replace(costs, streams=beside), present.assignment).total
    return (
        f"Have I/O tiles move them beside computing, which saves at most {saved:,}:"
        " ShardedExecution, TensorLocations.numIOTiles(32), set_overlap_for_input and"
        " OutputMode.Sum or All"
    )


def _turn(costs: Costs) -> str:
    return "a weight update" if costs.training else "a device iteration"


def _balance(report: Report, costs: Costs, present: Prediction) -> list[Insight]:
    """Operators of the slowest stage whose tiles work unevenly.

    They gain at most what an even share of the same work would.
    """
    ops, stages = analysis.operators(report), report.stages
    if not len(stages):
        return []
    slow = stages.iloc[int(stages["cycles"].to_numpy().argmax())]["stage"]
    ops = ops[
        (ops["stage"] == slow) & ops["direction"].isin([Direction.FORWARD, Direction.BACKWARD])
    ]
    findings = []
    worst: list[Any] = list(ops.sort_values("lost_cycles", ascending=False).head(2).itertuples())
    for row in worst:
        if not 0 <= int(row.block) < len(costs):
            continue
        forward = row.direction == Direction.FORWARD
        spent = np.array(costs.cycles.forward if forward else costs.cycles.backward)
        spent[int(row.block)] -= min(int(row.lost_cycles), int(spent[int(row.block)]))
        less = (
            replace(costs.cycles, forward=spent)
            if forward
            else replace(costs.cycles, backward=spent)
        )
        even = what_if(replace(costs, cycles=less), present.assignment)
        findings.append(
            Insight(
                f"{row.name} uses its tiles unevenly, in the slowest stage",
                f"{int(row.tiles):,} of {report.target.tiles_per_ipu:,} tiles work in its widest"
                f" step; its compute is {row.balance:.0%} balanced, which costs"
                f" {int(row.lost_cycles):,} cycles a micro-batch.",
                "Change its sizes towards multiples of the tiles, or give it more memory"
                " (availableMemoryProportion)",
                f"/operations?op={row.id}",
                present.total - even.total,
                at_most=True,
            )
        )
    return findings


def _memory(report: Report, costs: Costs | None) -> list[Insight]:
    fullest = analysis.fullest_tiles(report)
    limit = report.target.bytes_per_tile
    if not len(fullest) or fullest.max() > limit:
        return []
    ipu = int(fullest.argmax())
    free = limit - int(fullest[ipu])
    roomy = fullest[ipu] < _ROOMY * limit
    findings = [
        Insight(
            f"the fullest tile is on IPU {ipu}, {fullest[ipu] / limit:.0%} full",
            f"{free:,} bytes of it are free."
            + (" A micro-batch may grow until it is full." if roomy else ""),
            (
                "A larger micro-batch uses the tiles better"
                if roomy
                else "Leave the micro-batch as it is: little room is left"
            ),
            f"/memory?ipu={ipu}",
        )
    ]
    memory = report.memory(ipu)
    state = memory[memory["role"] == Role.OPTIMISER_STATE]
    size = int(state["max_tile_bytes"].sum())
    if size > 0.05 * limit:
        findings += [*_off_chip(report, costs, ipu, size), *_in_parts(report, ipu, size)]
    return findings


def _off_chip(report: Report, costs: Costs | None, ipu: int, size: int) -> list[Insight]:
    """What it would take to keep optimiser state in streaming memory.

    It is advised only where that is cheap.
    """
    if costs is None or costs.offload or not costs.training:
        return []
    stages = Assignment.of(costs.stage.tolist(), costs.ipus)
    present = what_if(costs, stages)
    choices = tuple(Choice(costs.recompute, True) for _ in stages.ipus)
    after = what_if(costs, replace(stages, choices=choices))
    freed = present.fullest[ipu] - after.fullest[ipu]
    cost = after.total - present.total
    share = cost / max(1, present.total)
    total = int(_states(report).groupby("ipu")["bytes"].sum().max())
    title = f"optimiser state takes {size:,} bytes of a tile of IPU {ipu}"
    detail = (
        "It is needed once a weight update. Off the chip, to read and write"
        f" {total:,} bytes of the IPU with most would cost {cost:,} cycles an update,"
        f" {share:.1%} of one, and free {freed:,} bytes of the fullest tile."
    )
    if share > _DEAR:
        action = "Leave it on the chip while the model fits"
        return [Insight(title, detail, action, f"/memory?ipu={ipu}")]
    return [
        Insight(
            title,
            detail,
            "Keep it off the chip where a larger micro-batch needs the room:"
            " TensorLocations.setOptimizerLocation(... useOnChipStorage(False))",
            f"/memory?ipu={ipu}",
            gain_bytes=freed,
            change={"optimiser": "off chip"},
        )
    ]


def _in_parts(report: Report, ipu: int, size: int) -> list[Insight]:
    """What replicated tensor sharding would free: all but 1/R of each large enough state."""
    replicas = report.target.num_replicas
    if (
        replicas == 1
        or report.options.get("TensorLocations.locationOptimizer.replicatedTensorSharding") is True
    ):
        return []
    states = _states(report)
    states = states[states["ipu"] == ipu]
    elements = states["shape"].map(lambda shape: prod(json.loads(shape)) if shape else 0)
    large = states["bytes"][elements >= _LEAST_SHARDED].sum() / max(1, states["bytes"].sum())
    gain = int(size * large * (replicas - 1) / replicas)
    if gain == 0:
        return []
    return [
        Insight(
            f"each of {replicas} replicas keeps the same optimiser state, {size:,} bytes of a tile"
            f" of IPU {ipu}",
            f"In parts, a replica keeps and updates 1/{replicas} of each tensor of"
            f" {_LEAST_SHARDED:,} elements or more. Gradients are scattered and weights gathered"
            " instead of gradients all-reduced: as many bytes.",
            "Share it out: TensorLocations.setOptimizerLocation(..."
            " useReplicatedTensorSharding(True))",
            f"/memory?ipu={ipu}",
            gain_bytes=gain,
            change={"optimiser": "in parts"},
        )
    ]


def _states(report: Report) -> pd.DataFrame:
    variables = report.variables
    return variables[variables["role"] == Role.OPTIMISER_STATE]
