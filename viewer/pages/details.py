"""Details of what is clicked in time: a task, a program step, the tensors it moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from dash import html

from ipuscope.profiler import Report
from ipuscope.viewer.figures import memory as memory_figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.lanes import Lanes, task_at
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, tables, timespan
from ipuscope.viewer.pages.tables import Column

_VERTICES = (
    Column("vertex_type", "vertex"),
    Column("count", "count", ",.0f", width=100),
    Column("tiles", "tiles", ",.0f", width=90),
    Column("code_bytes", "code, bytes", ",.0f", width=120),
    Column("state_bytes", "state, bytes", ",.0f", width=120),
)

_MOVED = (
    Column("name", "tensor it moves"),
    Column("source", "from", width=92),
    Column("target", "to", width=92),
    Column("bytes", "bytes", ",.0f", width=118),
)
_FEW_TENSORS = 8
_FEW_TILES = 6


def task_details(
    report: Report,
    lanes: Lanes,
    point: tuple[float, float] | None,
    clock: Clock,
    meanwhile: Callable[[int, int], list[tuple[str, Any]]] = lambda begin, end: [],
    asked: Any = None,
) -> Any:
    """The task at a point of the lanes, with links to its steps, operators and memory.

    ``meanwhile`` explains a wait between two cycles; ``asked``: the point as in the address.
    """
    position = None if point is None else task_at(lanes, *point)
    if point is None or position is None:
        return timespan.nothing_at(asked, lanes.end, len(lanes.shown), "anything in the timeline")
    task: Any = lanes.tasks.iloc[position]
    ipu, begin, end = (int(task[name]) for name in ("ipu", "start", "end"))
    begin, end = begin - lanes.origin, end - lanes.origin
    in_replica = ipu % report.target.ipus_per_replica
    rows: list[tuple[str, Any]] = [
        ("task", str(task["name"])),
        ("IPU", str(ipu)),
        ("from, for", f"{begin:,}, {clock.both(end - begin)}"),
    ]
    if task["micro_batch"] >= 0:
        rows.append(("micro-batch", str(task["micro_batch"])))
    if task["kind"] == "idle":
        rows += meanwhile(begin, end)
    if task["phase"]:
        rows.append(("pipeline cycle", f"{task['pipeline_cycle']}, {task['phase']}"))
    margin = max(1, (end - begin) // 20)
    window_of = {"from": max(0, begin - margin), "to": min(lanes.end, end + margin)}
    links = [common.link("its steps", "timeline", ipu=in_replica, **window_of)]
    if task["stage"] >= 0:
        stage = task["stage"]
        links.append(common.link(f"operators of stage {stage}", "costs", stage=stage))
    pin = timespan.pin_button(begin, end)
    return [common.facts(rows), html.P(common.separated(links)), pin]


def step_row(report: Report, column: str, number: int) -> Any:
    """A row of `Report.program_steps`, by "step" or "program"; None where there is none."""
    if number < 0:  # reading the steps in vain takes as long as finding one
        return None
    at = np.flatnonzero(report.sequence.steps_in_order(column) == number)
    return report.program_steps().iloc[int(at[0])] if len(at) else None


def step_details(report: Report, step: Any, clock: Clock, theme: Theme) -> list[Any]:
    """Details of a program step: a row of `Report.program_steps`."""
    op = report.ops.loc[step["op"]] if step["op"] in report.ops.index else None
    rows: list[tuple[str, Any]] = [
        ("name", step["name"]),
        ("kind", f"{step['kind']} ({step['type']})"),
        ("cycles", clock.both(step["cycles"])),
        ("IPU, position", f"{step['ipu']}, {step['position']}"),
        ("for", step["direction"] or "copies and waits"),
    ]
    if op is not None:
        rows += [
            ("operator", common.link(f"{op['name']} ({op['aten']})", "costs", op=step["op"])),
            ("Block", op["block_name"] or "none"),
            ("source", common.source_link(op["file"], op["line"])),
        ]
        if op["estimated"]:
            rows.append(("note", "its cycles are an estimate: this operator has no lowering yet"))
    if step["bytes_in"] or step["bytes_out"]:
        sent, received = units.size(step["bytes_out"]), units.size(step["bytes_in"])
        rows.append(("exchanged", f"{sent} sent, {received} received"))
    tiles = report.target.tiles_per_ipu
    rows.append(("tiles at work", f"{step['active_tiles']:,} of {tiles:,}"))
    if step["kind"] == "compute" and step["tile_balance"] == step["tile_balance"]:
        rows.append(("tile balance", f"{units.percent(step['tile_balance'])} (mean over slowest)"))
    vectors = report.step_tiles(int(step["step"]))
    links = html.P(common.separated(_links(step, op, vectors)))
    children: list[Any] = [common.facts(rows), links, *_moved(report, int(step["step"]), theme)]
    children += _busiest(int(step["ipu"]), vectors)
    measures = [("cycles", "cycles"), ("bytes_in", "bytes received"), ("bytes_out", "bytes sent")]
    for name, label in measures if step["kind"] == "compute" else [*measures[1:], measures[0]]:
        values = vectors[name]
        if values is not None and values.any():
            chip = memory_figures.chip(values.astype(np.float32), float(values.max()), theme, label)
            children.append(common.graph({"chip": name}, chip, scrollZoom=False))
            break
    vertices = report.vertices(int(step["step"]))
    if len(vertices):
        children.append(tables.table("trace-vertices", vertices, _VERTICES, theme))
    return children


def _links(step: Any, op: Any, vectors: dict[str, np.ndarray | None]) -> list[Any]:
    """Links from a step to its operator, source, busiest tile, and liveness at the step."""
    ipu, links = int(step["ipu"]), []
    if op is not None:
        links.append(common.link("operator", "costs", op=step["op"]))
    busy = next((one for one in vectors.values() if one is not None and one.any()), None)
    if busy is not None:
        tile = int(busy.argmax())
        links.append(common.link(f"tile {tile}, the busiest", "memory", ipu=ipu, tile=tile))
    return [
        *links,
        common.link("variables live then", "memory", ipu=ipu, step=step["position"]),
        common.link("in the timeline", "timeline", ipu=ipu, step=step["step"]),
    ]


def _busiest(ipu: int, vectors: dict[str, np.ndarray | None]) -> list[Any]:
    """The tiles that send and receive most in a step, largest first; nothing if none does."""
    received, sent = vectors["bytes_in"], vectors["bytes_out"]
    if received is None or sent is None or not (received.any() or sent.any()):
        return []
    most = np.lexsort((np.arange(len(sent)), -(received + sent)))[:_FEW_TILES].tolist()
    rows = [
        (
            common.link(f"tile {tile}", "memory", ipu=ipu, tile=tile),
            *(units.size(int(of[tile])) for of in (received, sent)),
        )
        for tile in most
    ]
    return [tables.small(rows, ("busiest tiles", "received", "sent"), words=())]


def _moved(report: Report, step: int, theme: Theme) -> list[Any]:
    """The tensors that a step moves on or off a chip, with sources and targets."""
    moved = report.sequence.moved_tensors
    tensors = moved[moved["step"] == step].sort_values("bytes", ascending=False, kind="stable")
    if not len(tensors):
        return []
    ends = {
        name: [f"IPU {ipu}" if ipu >= 0 else "off chip" for ipu in tensors[name]]
        for name in ("source", "target")
    }
    height = None if len(tensors) <= _FEW_TENSORS else 320
    return [tables.table("trace-moved", tensors.assign(**ends), _MOVED, theme, height)]
