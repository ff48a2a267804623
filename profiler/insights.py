"""Sentences with numbers.

What limits a run, what acting on it would gain, where to look and what to change.

Gains are predictions of the profile's own costs (`profiler.rebalance`), cycles a weight update
unless said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from profiler import analysis, units
from profiler.enums import Direction, Role
from profiler.rebalance import Assignment, Costs, Prediction, Split, best_split, what_if
from profiler.rebalance.machine_costs import MachineCosts
from profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

_LEAST_SHARE = 0.005  # of a weight update: what gains less is not said
_MORE_MICRO_BATCHES = 4
_MUCH = 0.05  # of a stage: an operator with less is not named
_LEAST_SHARDED = 8192  # elements: PopART shards no smaller tensor unless it is told to


@dataclass(frozen=True)
class Insight:
    """One finding.

    ``gain_cycles`` a weight update and ``gain_bytes`` on the fullest tile are 0 where unknown.

    ``where`` is a page of the viewer with its parameters; ``action`` what to change.
    """

    title: str
    detail: str
    action: str
    where: str
    gain_cycles: int = 0
    gain_bytes: int = 0


def insights(report: Report) -> list[Insight]:
    """What there is to say, what gains most cycles first, then bytes, then the rest."""
    found: list[Insight] = [*_overflow(report)]
    pace, costs = analysis.pace(report), _costs(report)
    present = (
        what_if(costs, Assignment.of(costs.stage.tolist(), costs.ipus))
        if costs is not None
        else None
    )
    # compiled only: as the schedule has it
    if not pace.cycles and costs is not None and present is not None:
        pace = analysis.Pace(present.total, costs.micro_batches, present.samples_per_second)
    if pace.cycles:
        of_cycles: list[Insight] = []
        if costs is not None and present is not None:
            of_cycles += _split(report, costs, present, pace.cycles)
            of_cycles += _ramps(report, costs, present)
            of_cycles += _host(costs, present)
        of_cycles += _balance(report, pace)
        found += [one for one in of_cycles if one.gain_cycles >= int(_LEAST_SHARE * pace.cycles)]
    found += _memory(report)
    return sorted(found, key=lambda i: (-("overflow" in i.title), -i.gain_cycles, -i.gain_bytes))


def _costs(report: Report) -> Costs | None:
    try:
        costs = Costs.from_report(report)
        Assignment.of(costs.stage.tolist())
    except ValueError:
        return None
    return costs


def _overflow(report: Report) -> list[Insight]:
    found = []
    for ipu in range(report.target.ipus_per_replica):
        tiles = report.tiles(ipu)
        over = int(tiles["overflow"].max())
        if over:
            tile = int(tiles["overflow"].to_numpy().argmax())
            live = report.live_variables(ipu, int(tiles["peak_step"].iloc[tile]), tile).head(3)
            largest = ", ".join(
                f"{name} ({size:,} B)"
                for name, size in zip(live["name"], live["bytes"], strict=True)
            )
            found.append(
                Insight(
                    f"IPU {ipu} overflows: {int((tiles['overflow'] > 0).sum()):,} tiles hold more"
                    " than they have",
                    f"Tile {tile} is {over:,} bytes over. The largest things there: {largest}.",
                    "Give the stage fewer Blocks, or keep its optimiser state off the chip"
                    + (" or in parts on the replicas" if report.target.num_replicas > 1 else ""),
                    f"/liveness?ipu={ipu}&tile={tile}",
                    gain_bytes=over,
                )
            )
    return found


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
    best: Split | None = None
    for count in range(1, len(costs.ipus) + 1):
        try:
            split = best_split(costs, count)
        except ValueError:
            continue
        if not split.prediction.problems and (
            best is None or split.prediction.total < best.prediction.total
        ):
            best = split
    gain = present.total - best.prediction.total if best is not None else 0
    title = (
        f"stage {slowest['stage']} takes {slowest['cycles'] / max(1.0, mean):.2f} × the mean stage"
    )
    if best is None or gain <= 0:
        if len(costs.ipus) == 1 or int(slowest["cycles"]) <= 1.1 * mean:
            return []
        if_even = present.total - what_if(_even(costs), present.assignment).total
        detail = (
            f"The others wait for it.{most} No split of these Blocks that was found is better. With smaller ones"
            f" and all stages even {_turn(costs)} would take about {if_even:,} cycles less."
        )
        action = "Cut its Blocks into smaller ones: ipu-report rebalance --inside says where"
        return [Insight(title, detail, action, "/rebalance", if_even)]
    moves = best.why[-1]
    used = len(best.prediction.assignment.ipus)
    fewer = f" on {units.count(used, 'IPU')}" if used < len(costs.ipus) else ""
    detail = (
        f"The others wait for it.{most} The quickest split{fewer} {moves}: {gain / now:.1%} fewer"
        " cycles."
    )
    starts = ",".join(str(first) for first in best.prediction.assignment.starts)
    return [Insight(title, detail, "Change the Stage list so", f"/rebalance?starts={starts}", gain)]


def _even(costs: Costs) -> Costs:
    """The same work, as much of it in every stage."""
    of_stage = np.bincount(costs.stage, costs.cycles.work)
    scale = (of_stage.mean() / np.maximum(1, of_stage))[costs.stage]
    return replace(costs, cycles=costs.cycles.scaled(scale, np.floor))


def _ramps(report: Report, costs: Costs, present: Prediction) -> list[Insight]:
    if not costs.pipelined:
        return []
    longer = what_if(
        replace(costs, micro_batches=costs.micro_batches * _MORE_MICRO_BATCHES), present.assignment
    )
    gain = present.total - longer.total // _MORE_MICRO_BATCHES
    if len(report.runs):
        cycles = report.pipeline_cycles(0, 0)
        phases, lengths = cycles["phase"].to_numpy(), cycles["cycles"].to_numpy()
        whole = int(lengths.sum())
    else:
        schedule, whole = present.schedule, present.total
        phases, lengths = np.array(schedule.phases), schedule.cycle_end - schedule.cycle_start
    ramps = int(lengths[np.isin(phases, ["ramp-up", "ramp-down"])].sum())
    more = costs.micro_batches * _MORE_MICRO_BATCHES
    name = "gradient accumulation" if costs.training else "device iterations"
    return [
        Insight(
            f"ramp-up and ramp-down take {ramps / max(1, whole):.0%} of {_turn(costs)}",
            f"In them IPUs wait for the pipeline to fill and to drain, {ramps:,} cycles each time.",
            f"{name} of {more} instead of {costs.micro_batches} would take {gain:,} cycles less for"
            " as many samples",
            "/pipeline",
            gain,
        )
    ]


def _host(costs: Costs, present: Prediction) -> list[Insight]:
    none, now = np.zeros(len(costs), dtype=np.int64), present.total
    silent = replace(costs.streams, stream_in=none, stream_out=none, load=none, unload=none)
    without = replace(costs, streams=silent)
    gain = now - what_if(without, present.assignment).total
    less = (
        "Send less: smaller dtypes, OutputMode.Final instead of All, or inputs made on the device"
    )
    overlapped = bool(
        len(costs.streams.load) and (costs.streams.load.any() or costs.streams.unload.any())
    )
    if overlapped:
        detail = (
            "What I/O tiles move takes longer than the work beside it, or comes before the first"
            " and after the last."
        )
    else:
        detail = (
            "Inputs and outputs move at the start and end of each pipeline cycle, while nobody"
            " computes."
        )
    alone = len(costs.ipus) == 1 or not costs.pipelined  # PopTorch refuses it in a pipeline
    if alone and not overlapped and costs.micro_batches > 1:
        beside = replace(costs.streams, stream_in=none, load=costs.streams.stream_in, unload=none)
        if not costs.streams.out_once:
            beside = replace(beside, stream_out=none, unload=costs.streams.stream_out)
        saved = now - what_if(replace(costs, streams=beside), present.assignment).total
        less = (
            f"Have I/O tiles move them beside computing, which saves at most {saved:,}:"
            " ShardedExecution, TensorLocations.numIOTiles(32), set_overlap_for_input and"
            f" OutputMode.Sum or All. {less}"
        )
    return [
        Insight(
            f"host I/O keeps all IPUs waiting for {gain:,} cycles of {_turn(costs)},"
            f" {gain / max(1, now):.0%} of it",
            detail,
            less,
            "/pipeline",
            gain,
        )
    ]


def _turn(costs: Costs) -> str:
    return "a weight update" if costs.training else "a device iteration"


def _balance(report: Report, pace: analysis.Pace) -> list[Insight]:
    ops = analysis.operators(report)
    slow = (
        report.stages.iloc[int(report.stages["cycles"].to_numpy().argmax())]["stage"]
        if len(report.stages)
        else -1
    )
    ops = ops[
        (ops["stage"] == slow) & (ops["direction"].isin([Direction.FORWARD, Direction.BACKWARD]))
    ]
    found = []
    worst: list[Any] = list(ops.sort_values("lost_cycles", ascending=False).head(2).itertuples())
    for row in worst:
        tiles = report.target.tiles_per_ipu
        found.append(
            Insight(
                f"{row.name} uses its tiles unevenly, in the slowest stage",
                f"{int(row.tiles):,} of {tiles:,} tiles work in its widest step; its compute is"
                f" {row.balance:.0%} balanced, which costs {int(row.lost_cycles):,} cycles a"
                " micro-batch.",
                "Change its sizes towards multiples of the tiles, or give it more memory"
                " (availableMemoryProportion)",
                f"/operations?op={row.id}",
                int(row.lost_cycles) * pace.micro_batches,
            )
        )
    return found


def _memory(report: Report) -> list[Insight]:
    fullest = analysis.fullest_tiles(report)
    limit = report.target.bytes_per_tile
    if not len(fullest) or fullest.max() > limit:
        return []
    ipu = int(fullest.argmax())
    found = [
        Insight(
            f"the fullest tile is on IPU {ipu}, {fullest[ipu] / limit:.0%} full",
            f"{limit - int(fullest[ipu]):,} bytes of it are free: a micro-batch may grow until it"
            " is full.",
            (
                "A larger micro-batch uses the tiles better"
                if fullest[ipu] < 0.7 * limit
                else "Little room is left here"
            ),
            f"/memory?ipu={ipu}",
        )
    ]
    memory = report.memory(ipu)
    state = memory[(memory["role"] == Role.OPTIMISER_STATE)]
    size = int(state["max_tile_bytes"].sum())
    if size > 0.05 * limit:
        found += [*_off_chip(report, ipu, size), *_in_parts(report, ipu, size)]
    return found


def _off_chip(report: Report, ipu: int, size: int) -> list[Insight]:
    """What it would take to keep optimiser state in streaming memory.

    The slowest IPU sets the time.
    """
    if report.options.get("TensorLocations.locationOptimizer.onChipStorage") is False:
        return []
    pace = analysis.pace(report)
    states = _states(report)
    weights = states["parameter"].groupby(states["ipu"]).nunique()
    total = states.groupby("ipu")["bytes"].sum()
    machine = MachineCosts.from_report(report)
    cost = max(machine.offload_cycles(int(total[i]), int(weights[i])) for i in total.index)
    share = f", about {cost / pace.cycles:.1%} of one" if pace.cycles else ""
    return [
        Insight(
            f"optimiser state takes {size:,} bytes of a tile of IPU {ipu}",
            "It is needed once a weight update. Off the chip, to read and write"
            f" {int(total.max()):,} bytes of the IPU with most would cost about {cost:,.0f} cycles"
            f" an update{share}.",
            "Keep it off the chip: TensorLocations.setOptimizerLocation(..."
            " useOnChipStorage(False))",
            f"/memory?ipu={ipu}",
            gain_bytes=size,
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
        )
    ]


def _states(report: Report) -> pd.DataFrame:
    variables = report.variables
    return variables[variables["role"] == Role.OPTIMISER_STATE]
