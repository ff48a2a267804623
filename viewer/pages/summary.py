"""Summary: what ran on what, how fast, what the cycles and the memory went to, and what to do about it."""

from __future__ import annotations

from typing import Any

import numpy as np
from dash import dcc, html

from profiler import Report
from viewer.figures import memory as memory_figures
from viewer.figures import pipeline as pipeline_figures
from viewer.figures import units
from viewer.figures.units import Clock
from viewer.pages import common
from viewer.pages.common import Column, Page, View
from viewer.pages.pipeline import lanes_of


def layout(view: View) -> Any:
    """The page."""
    report = view.report
    clock = Clock(report.target.clock_hz)
    children: list[Any] = [common.controls(view)] if len(view.profiles) > 1 else []
    children.append(_numbers(report, clock))
    if len(report.stages):
        children.append(
            common.figure_card(
                "Stages: cycles of a micro-batch",
                "stage-costs",
                pipeline_figures.stage_costs(report.stages, clock, view.theme),
                note="The slowest stage sets the pace. Even them out by moving Blocks.",
            )
        )
    left = _cycles(view)
    right = common.figure_card(
        "Memory of the fullest tile",
        "headroom",
        memory_figures.headroom(fullest_tiles(report), report.target.bytes_per_tile, view.theme),
        note="Including gaps. A tile that overflows stops the compile.",
    )
    children.append(html.Div([child for child in (left, right) if child is not None], className="row"))
    children.append(
        html.Div(
            [
                common.card("Machine and program", common.facts(machine(report))),
                common.card("Options", _options(view), note="as the run had them"),
            ],
            className="row",
        )
    )
    return children


def fullest_tiles(report: Report) -> np.ndarray:
    """Bytes of each IPU's fullest tile, including gaps: int64[ipu]."""
    return np.array([report.tiles(ipu)["total"].max() for ipu in range(report.target.num_ipus)], dtype=np.int64)


def machine(report: Report) -> list[tuple[str, Any]]:
    """What the model was compiled for, and what it became."""
    target, meta = report.target, report.meta
    size = report.path.stat().st_size
    return [
        ("machine", f"{target.num_ipus} × {target.name} ({target.architecture}), {target.num_replicas} replica(s)"),
        ("a tile", f"{units.size(target.bytes_per_tile)}, {target.workers_per_tile} workers"),
        ("clock", f"{target.clock_hz / 1e9:.3g} GHz"),
        ("stages, Blocks", f"{len(report.stages)}, {len(report.blocks)}"),
        ("operators", f"{len(report.ops):,}"),
        ("program steps", f"{len(report.program_steps()):,}"),
        ("variables", f"{len(report.variables):,}"),
        ("profiled calls", ", ".join(f"{row.name}: {row.iterations} iterations" for row in report.runs.itertuples())),
        ("written", f"{meta['created']} by {meta['writer']}"),
        ("file", f"{report.path} ({units.size(size)})"),
    ]


def throughput(report: Report) -> tuple[int, int, float]:
    """(cycles of a device iteration, micro-batches in it, samples a second over all replicas)."""
    runs = report.runs
    if not len(runs) or not runs["iterations"].iloc[0]:
        return 0, 0, 0.0
    cycles = int(runs["cycles"].iloc[0] // runs["iterations"].iloc[0])
    batches = int(report.tasks(0, iteration=0)["micro_batch"].max()) + 1
    samples = batches * int(report.meta["micro_batch"]) * report.target.num_replicas
    return cycles, batches, samples * report.target.clock_hz / cycles if cycles else 0.0


def _numbers(report: Report, clock: Clock) -> Any:
    cycles, batches, speed = throughput(report)
    stages = report.stages
    tiles = fullest_tiles(report)
    limit = report.target.bytes_per_tile
    boxes = []
    if cycles:
        what = "a weight update" if report.meta["kind"] == "training" else "a device iteration"
        boxes += [
            (units.cycles(cycles) + " cycles", f"{what}, {units.seconds(cycles / clock.hz)}, {batches} micro-batches"),
            (f"{speed:,.0f} / s", "samples, predicted"),
        ]
        proportions = report.cycle_proportions(0)
        waiting = proportions["idle"].sum() / max(1, proportions["total"].sum())
        boxes.append((units.percent(waiting), "of all IPUs' cycles are spent waiting"))
    if len(stages):
        slowest = stages.iloc[int(stages["cycles"].to_numpy().argmax())]
        ratio = slowest["cycles"] / max(1.0, stages["cycles"].mean())
        boxes.append((f"stage {slowest['stage']}", f"is the slowest: {ratio:.2f} × the mean"))
    if len(tiles):
        at = int(tiles.argmax())
        words = f"on the fullest tile, of IPU {at} ({units.percent(tiles[at] / limit)} of it)"
        boxes.append((units.size(int(tiles[at])), words))
    return html.Div([html.Div([html.B(value), html.Span(words)]) for value, words in boxes], className="big")


def _cycles(view: View) -> Any:
    report = view.report
    if not len(report.runs):
        return common.card("Where the cycles go", common.message("No call was profiled: compiled only."))
    lanes = lanes_of(view.profiles, report, 0, 0)
    figure = pipeline_figures.busy(lanes, Clock(report.target.clock_hz), view.theme)
    return common.card(
        "Where the cycles go",
        common.graph("proportions", figure, scrollZoom=False),
        html.P(["In time: ", dcc.Link("the pipeline", href="/pipeline")], className="note"),
        note="A device iteration, each IPU.",
        tools=True,
    )


def _options(view: View) -> Any:
    import pandas as pd

    options = view.report.options
    frame = pd.DataFrame({"name": list(options), "value": [str(value) for value in options.values()]})
    columns = (Column("name", "option"), Column("value", "value"))
    return common.table("options", frame, columns, view.theme, height=320)


PAGE = Page("/", "Summary", layout, help="What ran, how fast, and what limits it")
