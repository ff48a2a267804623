"""Tile memory: its contents, where it overflows, and what frees it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipuscope.planner.advice.relief import in_words, relief_on, way_to_fit
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights.finding import Insight, with_line
from ipuscope.planner.levers.levers import LEAST_SHARDED, Basis, large_enough
from ipuscope.planner.levers.script_lines import location_line
from ipuscope.planner.predict.what_if import Assignment, memory_of_ipu, what_if
from ipuscope.profiler import analysis, units
from ipuscope.profiler.enums import OUT_OF_MEMORY, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline.tile_usage import what_it_needs

if TYPE_CHECKING:
    import pandas as pd

_LESS = "Give the stage fewer Blocks, or keep its optimiser state off the chip"
_LESS_CODE = "Give the stage fewer Blocks"
_DEAR = 0.1  # of a weight update: memory at a higher cost is not advised while there is room
_ROOMY = 0.7  # of a tile: below it a larger micro-batch may fit


def overflow(report: Report, basis: Basis | None) -> list[Insight]:
    """The worst tile of each IPU that holds more than fits."""
    findings = []
    for over in analysis.overflows(report):
        tiles = int((report.usage.tile_columns(over.ipu)["overflow"] > 0).sum())
        what = f"{units.count(tiles, 'tile')} of it hold more than they have"
        what = what if tiles else "a tile has more code than room for it"
        parts = " or in parts on the replicas" if report.target.num_replicas > 1 else ""
        action = _LESS_CODE if over.of_code else f"{_LESS}{parts}"
        ways: tuple[str, ...] = ()
        if basis is not None:  # what frees most of the fullest tile, each command below it
            lines = in_words(relief_on(basis, over.ipu))
            ways = *(line.replace("): ", "):\n    ", 1) for line in lines), way_to_fit(basis.report)
        if len(ways) > 1:
            action = "what frees most of that tile, and what asks for it"
        elif ways:
            action, ways = ways[0], ()
        finding = Insight(
            f"IPU {over.ipu} overflows: {what}",
            f"Tile {over.tile} {what_it_needs(over.bytes_over, over.limit, over.what)};"
            f" {over.contents.in_words()}.",
            action,
            f"/memory?ipu={over.ipu}&tile={over.tile}",
            gain_bytes=over.bytes_over,
            code=ways,
        )
        findings.append(_with_line(report, over.ipu, finding))
    return findings


def _with_line(report: Report, ipu: int, one: Insight) -> Insight:
    """The finding with the line of the largest variable on the IPU's fullest tile."""

    def largest() -> pd.DataFrame:
        live = analysis.held_at_peak(report, ipu)
        return live.loc[live["op"] >= 0, ["op", "bytes"]].head(1)

    return with_line(report, one, largest)


def memory(report: Report, costs: Costs | None) -> list[Insight]:
    """How full the fullest tile is, and what frees some of it."""
    fullest = analysis.fullest_tiles(report)
    limit = report.target.bytes_per_tile
    if not len(fullest) or report.meta["state"] == OUT_OF_MEMORY or fullest.max() > limit:
        return []
    ipu = int(fullest.argmax())
    free = limit - int(fullest[ipu])
    roomy = fullest[ipu] < _ROOMY * limit
    title = f"the fullest tile is on IPU {ipu}, {fullest[ipu] / limit:.0%} full"
    room, where = f"{units.size(free)} of it is free.", f"/memory?ipu={ipu}"
    if roomy:
        room += " A micro-batch may grow until it is full."
        findings = [Insight(title, room, "A larger micro-batch uses the tiles better", where)]
    else:
        where += f"&tile={analysis.fullest(report, ipu)}"
        little = "Little room is left for more: ipu-report advise PROFILE says what fits"
        findings = [_with_line(report, ipu, Insight(title, room, little, where))]
    live = report.memory(ipu)
    state = live[live["role"] == Role.OPTIMISER_STATE]
    size = int(state["max_tile_bytes"].sum())
    if size > 0.05 * limit:
        findings += [*_off_chip(report, costs, ipu, size), *_in_parts(report, ipu, size)]
    return findings


def _off_chip(report: Report, costs: Costs | None, ipu: int, size: int) -> list[Insight]:
    """The cost of keeping optimiser state in streaming memory; advised only if that is cheap."""
    if costs is None or costs.offload or not costs.training:
        return []
    stages = Assignment.of(costs.stage.tolist(), costs.ipus)
    present = what_if(costs, stages)
    choices = costs.choices_of(stages.starts)
    off = tuple(replace(one, offload=True) for one in choices)
    after = what_if(costs, replace(stages, choices=off))
    then = memory_of_ipu(costs, after.assignment, ipu)
    freed = memory_of_ipu(costs, stages, ipu).nbytes - then.nbytes
    cost = after.total - present.total
    share = cost / max(1, present.total)
    total = int(_states(report).groupby("ipu")["bytes"].sum().max())
    title = f"optimiser state takes {units.size(size)} of a tile of IPU {ipu}"
    detail = (
        "It is needed once a weight update. Off the chip, reading and writing the"
        f" {units.size(total)} of the IPU with most would cost {cost:,} cycles an update,"
        f" {share:.1%} of one, and take {units.size(freed)} off its largest extent."
    )
    if share > _DEAR:
        action = "Leave it on the chip while the model fits"
        return [Insight(title, detail, action, f"/memory?ipu={ipu}")]
    return [
        Insight(
            title,
            detail,
            "Keep it off the chip where a larger micro-batch needs the room",
            f"/memory?ipu={ipu}",
            gain_bytes=freed,
            change={"optimiser": "off chip"},
            code=(location_line("off-chip"),),
        )
    ]


def _in_parts(report: Report, ipu: int, size: int) -> list[Insight]:
    """An upper bound of what replicated tensor sharding frees: all but 1/R of each large state."""
    replicas = report.target.num_replicas
    if (
        replicas == 1
        or report.options.get("TensorLocations.locationOptimizer.replicatedTensorSharding") is True
    ):
        return []
    states = _states(report)
    states = states[states["ipu"] == ipu]
    large = states["bytes"][large_enough(states["shape"])].sum() / max(1, states["bytes"].sum())
    gain = int(size * large * (replicas - 1) / replicas)
    if gain == 0:
        return []
    return [
        Insight(
            f"each of {replicas} replicas keeps the same optimiser state,"
            f" {units.size(size)} of a tile of IPU {ipu}",
            f"In parts, a replica keeps and updates 1/{replicas} of each tensor of"
            f" {LEAST_SHARDED:,} elements or more. Gradients are scattered and weights gathered"
            " instead of gradients all-reduced: the same number of bytes. What the update works on"
            " then, parts of gradients and weights, takes some of the room and is not counted.",
            "write this",
            f"/memory?ipu={ipu}",
            gain_bytes=gain,
            at_most=True,
            code=(location_line("in-parts"),),
        )
    ]


def _states(report: Report) -> pd.DataFrame:
    """``ipu, bytes, shape`` of the variables of optimiser state."""
    import pandas as pd

    variables = report.file.table(records.Variable)
    variables.read("role", "ipu", "bytes", "shape")
    states = variables["role"] == Role.OPTIMISER_STATE
    return pd.DataFrame({name: variables[name][states] for name in ("ipu", "bytes", "shape")})
