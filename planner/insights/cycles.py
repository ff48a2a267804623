"""Insights on cycles: an uneven split, travelling weights, ramps, the update, host I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights.finding import Insight, fewer, other_samples
from ipuscope.planner.levers.script_lines import stages_line
from ipuscope.planner.levers.waits import WORK, Waits
from ipuscope.planner.predict.split_text import in_address
from ipuscope.planner.predict.what_if import Assignment, Prediction, what_if
from ipuscope.planner.search.returning_stages import with_reader_home
from ipuscope.planner.search.split_search import quickest
from ipuscope.profiler import analysis, units
from ipuscope.profiler.enums import Direction, PipelinePhase
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline import closed_forms
from ipuscope.profiler.units import sentence

LEAST_SHARE = 0.005  # of a weight update: smaller gains are not mentioned
_MORE_MICRO_BATCHES = 4
_MUCH = 0.05  # of a stage: smaller operators are not named
_MOST_MOVES = 3  # to name


def split(
    report: Report, costs: Costs, present: Prediction, travelling: list[Insight]
) -> list[Insight]:
    """The slowest stage, and the split that shortens it.

    ``travelling``: what `travelling_weights` found. If the split ends that too, the text says how
    much of its gain comes from there.
    """
    if not costs.pipelined:
        return _fewer_copies(costs, present)
    slowest = analysis.slowest(report)
    if slowest is None:
        return []
    name, _, _, times = slowest
    stages = _paced_by(report)
    title = f"{name} takes {times:.2f} × the mean {name.split()[0]}"
    waited = f"The others wait for it.{_largest_operator(report, stages)}"
    waits = Waits(causes=WORK, stages=stages)
    try:
        best = quickest(costs)
    except ValueError:
        best = None
    gain = present.total - best.prediction.total if best is not None else 0
    if best is None or gain <= 0:
        return _only_if_even(costs, present, Insight(title, waited, "", "", waits=waits), times)
    assignment = best.prediction.assignment
    fewer, less = _in_words(costs, present, best.prediction)
    detail = f"{waited} The quickest split{fewer} {less}."
    parted = costs.cuts.ties.parted(np.array(assignment.ipus)[assignment.stage_of(len(costs))])
    ended = 0 if parted else sum(one.gain_cycles for one in travelling)
    if ended >= gain:
        return []  # `travelling` says it
    if 2 * ended > gain:  # the uneven stages are not what costs most
        title = f"another split takes {gain / present.total:.0%} off {turn(costs)}"
        detail = (
            f"It {less}, {ended:,} of these {gain:,} because no tied weight travels then."
            f" {sentence(name)} takes {times:.2f} × the mean, and the others wait"
            " for it."
        )
    return [_other_split(title, detail, assignment, gain, waits)]


def _in_words(costs: Costs, present: Prediction, best: Prediction) -> tuple[str, str]:
    """The number of IPUs of a split, if fewer; what it moves and gains."""
    used = len(set(best.assignment.ipus))
    fewer = f" on {units.count(used, 'IPU')}" if used < len(set(costs.ipus)) else ""
    share = (present.total - best.total) / present.total
    return fewer, f"moves {_moves(costs, best.assignment)}: {share:.1%} fewer cycles"


def _other_split(
    title: str, detail: str, assignment: Assignment, gain: int, waits: Waits
) -> Insight:
    action = "to use that split: ipu-report rebalance PROFILE -o new.json writes its placement file"
    where = f"/rebalance?starts={in_address(assignment)}"
    change = {"starts": list(assignment.starts), "ipus": list(assignment.ipus)}
    return Insight(title, detail, action, where, gain, change=change, waits=waits)


def _fewer_copies(costs: Costs, present: Prediction) -> list[Insight]:
    """For sharded execution: the split that copies less; an even split gains nothing there."""
    try:
        best = quickest(costs).prediction
    except ValueError:
        return []
    gain = present.total - best.total
    if gain <= 0:
        return []
    fewer, less = _in_words(costs, present, best)
    detail = (
        "IPUs take turns: the work of all stages counts, however even they are, and the copies"
        f" between them. The quickest split{fewer} {less}."
    )
    title = f"another split takes {gain / present.total:.0%} off {turn(costs)}"
    waits = Waits(causes=("copy between IPUs",))
    return [_other_split(title, detail, best.assignment, gain, waits)]


def taking_turns(report: Report, costs: Costs, present: Prediction) -> list[Insight]:
    """The gain of a pipeline over IPUs that work one after another."""
    stages = len(present.assignment.starts)
    if costs.pipelined or len(set(costs.ipus)) == 1 or costs.streams.overlapped:
        return []  # PopTorch refuses overlapped I/O in a pipeline
    many = max(costs.micro_batches, closed_forms.pipeline_stages(stages, costs.training))
    again = costs.training and bool(report.options.get("_Popart.autoRecomputation", True))
    pipeline = replace(costs.of_micro_batches(many), pipelined=True, recompute=again)
    then = what_if(pipeline, present.assignment)
    gain = present.total - then.total * costs.micro_batches // many
    if gain <= 0 or then.problems:
        return []
    code = [stages_line(pipeline, present.assignment)]
    change: dict[str, Any] = {"strategy": "pipelined"}
    if many > costs.micro_batches:
        name = "gradientAccumulation" if costs.training else "deviceIterations"
        change[name] = many
        code.append(f"options.{'Training.' if costs.training else ''}{name}({many})")
    detail = (
        f"In sharded execution one IPU works at a time: {turn(costs)} lasts as long as all stages"
        " and the copies between them together. In a pipeline each stage works on another"
        f" micro-batch: {gain:,} cycles less for the same samples."
    )
    return [
        Insight(
            f"IPUs take turns: they wait {analysis.waiting(report):.0%} of the time",
            detail,
            "write this",
            "/timeline",
            gain,
            change=change,
            estimate=pipeline.accumulating is not costs.accumulating,
            waits=Waits(causes=WORK),
            code=tuple(code),
            changes_batch="gradientAccumulation" in change,
        )
    ]


def _largest_operator(report: Report, stages: tuple[int, ...]) -> str:
    """A sentence on the operator that takes most of the stages' time; empty if none stands out."""
    ops = report.ops[
        report.ops["stage"].isin(stages) & (report.ops["direction"] != Direction.UPDATE)
    ]
    if not len(ops):
        return ""
    largest = ops.iloc[int(ops["cycles"].to_numpy().argmax())]
    share = largest["cycles"] / max(1, ops["cycles"].sum())
    return f" {share:.0%} of it is {largest['name']}." if share >= _MUCH else ""


def _only_if_even(
    costs: Costs, present: Prediction, uneven: Insight, times: float
) -> list[Insight]:
    """The bound if no split of these Blocks is better; nothing if stages are even."""
    if len(set(costs.ipus)) == 1 or times <= 1.1:
        return []
    of_stage = np.bincount(costs.stage, costs.cycles.work)
    scale = (of_stage.mean() / np.maximum(1, of_stage))[costs.stage]
    even = replace(costs, cycles=costs.cycles.scaled(scale, np.floor))
    if_even = present.total - what_if(even, present.assignment).total
    detail = (
        f"{uneven.detail} No better split of these Blocks was found. With smaller ones and all"
        f" stages even {turn(costs)} would take about {if_even:,} cycles less."
    )
    action = "Cut its Blocks into smaller ones: ipu-report ops PROFILE has their longest operators"
    return [
        replace(
            uneven,
            detail=detail,
            action=action,
            where="/rebalance",
            gain_cycles=if_even,
            at_most=True,
        )
    ]


def _paced_by(report: Report) -> tuple[int, ...]:
    """The stages of the IPU that works longest on a micro-batch."""
    table = analysis.ipu_costs(report)
    ipu = table["ipu"].iloc[int(table["cycles"].to_numpy().argmax())]
    return tuple(report.stages.loc[report.stages["ipu"] == ipu, "stage"].tolist())


def _moves(costs: Costs, assignment: Assignment) -> str:
    """The first few Blocks that change stage, in words."""
    stages = assignment.stage_of(len(costs))
    moves = [
        f"{name} to stage {there}"
        for name, here, there in zip(costs.names, costs.stage.tolist(), stages, strict=True)
        if here != there
    ]
    return units.listed(moves, _MOST_MOVES, "Block")


def travelling_weights(costs: Costs, present: Prediction) -> list[Insight]:
    """Weights that Blocks on two IPUs share, and the gain of reading them on one."""
    findings = []
    ties = costs.cuts.ties
    for name, blocks, nbytes in zip(ties.names, ties.blocks, ties.nbytes, strict=True):
        home, reader = blocks[0], blocks[-1]
        together = with_reader_home(present.assignment, costs.stage.tolist(), home, reader)
        if together is None:
            continue
        prediction = what_if(costs, together)
        gain = present.total - prediction.total
        if gain <= 0 or prediction.problems:
            continue
        ipu, former = together.ipus[-1], present.assignment.ipus[-1]
        detail = (
            f"{costs.names[home]} keeps it on IPU {ipu} and {costs.names[reader]} reads it on IPU"
            f" {former}: its {units.size(nbytes)} and its gradient pass through every stage between"
            f" them in every {'pipeline cycle' if costs.pipelined else 'micro-batch'}. With both"
            f" Blocks on IPU {ipu}, {turn(costs)} takes {gain:,} cycles less."
        )
        action = (
            f"Make {costs.names[reader]} a stage of its own on IPU {ipu}, after the others:"
            f" BeginBlock(..., ipu_id={ipu}) with AutoStage.AutoIncrement, or Stage(...).ipu({ipu})"
        )
        change = {"starts": list(together.starts), "ipus": list(together.ipus)}
        title = f"the tied weight {name} travels between IPU {ipu} and IPU {former}"
        waits = Waits(causes=("copy between IPUs",))
        finding = Insight(title, detail, action, "/rebalance", gain, change=change, waits=waits)
        findings.append(finding)
    return findings


def more_micro_batches(costs: Costs, present: Prediction) -> list[Insight]:
    """The gain per sample of more micro-batches an update: rarer ramps plus a shared update."""
    many = costs.micro_batches * _MORE_MICRO_BATCHES
    longer = what_if(costs.of_micro_batches(many), present.assignment)
    ramps, update = present.ramps, present.update
    gain = present.total - longer.total // _MORE_MICRO_BATCHES
    if costs.streams.across:  # beside the update are waits for the next inputs
        update = gain * _MORE_MICRO_BATCHES // (_MORE_MICRO_BATCHES - 1)
    of_update = update - longer.update // _MORE_MICRO_BATCHES if ramps else gain
    of_ramps = gain - of_update
    name = "gradientAccumulation" if costs.training else "deviceIterations"
    spoken = "gradient accumulation" if costs.training else "device iterations"
    instead = f"{spoken} of {many} instead of {costs.micro_batches}"
    samples, is_estimate = costs.samples * costs.micro_batches, costs.accumulates_otherwise(many)
    if costs.training:
        instead += f" ({other_samples(samples, samples * _MORE_MICRO_BATCHES)})"
    parts: list[tuple[str, int, str, str, int, tuple[PipelinePhase, ...]]] = []
    if ramps:
        why = f"The pipeline fills or drains for {ramps:,} cycles, and some IPUs have no work then."
        phases = (PipelinePhase.RAMP_UP, PipelinePhase.RAMP_DOWN)
        parts.append(("ramp-up and ramp-down take", ramps, why, "them", of_ramps, phases))
    if update and of_update > 0 and costs.training:
        why = f"All-reduce, the optimiser and its state take {update:,} cycles, however many"
        why = f"{why} micro-batches there are."
        phase = (PipelinePhase.UPDATE,)
        parts.append(("the update phase takes", update, why, "it", of_update, phase))
    return [
        Insight(
            f"{title} {taken / max(1, present.total):.0%} of {turn(costs)}",
            why,
            f"{instead} makes {what} rarer: {fewer(cycles, is_estimate)} for the same samples",
            "/timeline",
            cycles,
            change={name: many},
            estimate=is_estimate,
            waits=Waits(phases=phases),
            changes_batch=costs.training,
        )
        for title, taken, why, what, cycles, phases in parts
    ]


def host(report: Report, costs: Costs, present: Prediction) -> list[Insight]:
    """Waits of all IPUs for the host, and what reduces the data sent to it."""
    none, now = np.zeros(len(costs), dtype=np.int64), present.total
    streams = costs.streams
    silent = replace(streams, stream_in=none, stream_out=none, load=none, unload=none)
    cycles = now - what_if(replace(costs, streams=silent), present.assignment).total
    each = "with each micro-batch"
    if streams.overlapped:
        detail = (
            "The I/O tiles take longer than the work that they run beside, or move data before the"
            " first work and after the last."
        )
    elif streams.out_once:
        detail = (
            f"Inputs move {'at the start of each pipeline cycle' if costs.pipelined else each},"
            f" outputs once at the end of {turn(costs)}, while no IPU computes."
        )
    else:
        detail = (
            "Inputs and outputs move"
            f" {'at the start and end of each pipeline cycle' if costs.pipelined else each}, while"
            " no IPU computes."
        )
    title = (
        f"host I/O keeps all IPUs waiting for {cycles:,} cycles of {turn(costs)},"
        f" {cycles / max(1, now):.0%} of it"
    )
    waits, detail = Waits(causes=("host I/O",)), f"{detail} {_largest_transfers(report)}".strip()
    less = "Make inputs smaller (dtypes, sizes), or create them on the device"
    return [Insight(title, detail, less, "/timeline", cycles, at_most=True, waits=waits)]


def _largest_transfers(report: Report) -> str:
    """The largest tensor in each direction, in words."""
    tensors = analysis.host_tensors(report)
    parts = []
    for way, words in (("in", "comes in"), ("out", "goes back")):
        same_way = tensors[tensors["way"] == way]
        if len(same_way):
            first = same_way.iloc[0]
            parts.append(
                f"{first['share']:.0%} of what {words} is {first['name']}"
                f" ({units.size(int(first['bytes']))} a micro-batch)"
            )
    return f"{'; '.join(parts)}." if parts else ""


def turn(costs: Costs) -> str:
    """A device iteration, in words."""
    return "a weight update" if costs.training else "a device iteration"


def balance(report: Report, costs: Costs, present: Prediction) -> list[Insight]:
    """Operators whose tiles work unevenly: in a pipeline, those of the slowest stage.

    The gain is bounded by an even share of the same work.
    """
    if not len(report.stages):
        return []
    paced = _paced_by(report) if costs.pipelined else tuple(report.stages["stage"].tolist())
    ops = analysis.operators(report, stages=paced)
    ops = ops[ops["direction"].isin([Direction.FORWARD, Direction.BACKWARD])]
    ops = ops[ops["balance"].notna()]  # one that computes nothing has none
    findings = []
    worst: list[Any] = list(ops.sort_values("lost_cycles", ascending=False).head(2).itertuples())
    for row in worst:
        if not 0 <= int(row.block) < len(costs):
            continue
        findings.append(
            Insight(
                f"{row.name} uses its tiles unevenly{', in the slowest stage' * costs.pipelined}",
                f"{int(row.tiles):,} of {report.target.tiles_per_ipu:,} tiles work in its widest"
                f" step; its compute is {row.balance:.0%} balanced, which costs"
                f" {int(row.lost_cycles):,} cycles a micro-batch.",
                "Change its sizes towards multiples of the tiles"
                f"{', or give it more memory (availableMemoryProportion)' if row.plan else ''}",
                f"/costs?op={row.id}",
                _gained(costs, present, row, int(row.lost_cycles)),
                at_most=True,
                waits=Waits(causes=WORK, ops=(int(row.id),)),
            )
        )
    return findings


def _gained(costs: Costs, present: Prediction, op: Any, cycles: int) -> int:
    """Cycles less of a weight update if an operator took ``cycles`` less a micro-batch."""
    way = "forward" if op.direction == Direction.FORWARD else "backward"
    spent = np.array(getattr(costs.cycles, way))
    spent[int(op.block)] -= min(cycles, int(spent[int(op.block)]))
    less = replace(costs, cycles=replace(costs.cycles, **{way: spent}))
    return present.total - what_if(less, present.assignment).total


def padding(report: Report, costs: Costs, present: Prediction) -> list[Insight]:
    """Products with channels that are no whole groups, which are copied with their padding."""
    name, op, taken = map(report.sequence.steps_in_order, ("name", "op", "cycles"))
    copies = pd.Series(name).str.endswith("/pad inputs").to_numpy(bool)
    spent = pd.Series(taken[copies]).groupby(op[copies]).max().nlargest(2)
    findings = []
    for op_id, cycles in zip(spent.index.tolist(), spent.tolist(), strict=True):
        row = report.ops.loc[op_id]
        if not 0 <= int(row.block) < len(costs) or row.direction == Direction.UPDATE:
            continue
        findings.append(
            Insight(
                f"{row['name']} copies channels with their padding",
                "It sums channels that do not fill groups of 16 (fp32: 8). The copy of the last"
                f" group takes {cycles:,} cycles a micro-batch.",
                "Pad them to a multiple of 16 in the model: tokens, words or features",
                f"/costs?op={op_id}",
                _gained(costs, present, row, cycles),
                at_most=True,
                waits=Waits(causes=WORK, ops=(op_id,)),
            )
        )
    return findings
