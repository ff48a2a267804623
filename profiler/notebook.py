"""A report's display in a notebook: its summary, as self-contained HTML.

Every name comes out of a file and is escaped. `Report` loads this by name when it is shown.
"""

from __future__ import annotations

import html

from ipuscope.profiler import analysis
from ipuscope.profiler.analysis.critical_path import critical_path, waterfall
from ipuscope.profiler.report import PREDICTED_NOTE, Report
from ipuscope.profiler.units import per_second, percent, size

_BAR = 160  # pixels of a bar that is everything


def summary_html(report: Report) -> str:
    """Machine, speed, the slowest stage, the fullest tile, and what an update waits for."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(words)}</td></tr>"
        for name, words in facts(report)
    )
    title = html.escape(str(report.meta["model"] or report.path.parent.name))
    return f"<div><b>{title}</b><table>{rows}</table>{_waits(report)}{_notes(report)}</div>"


def facts(report: Report) -> list[tuple[str, str]]:
    """Names and words of the summary."""
    target, pace = report.target, analysis.pace(report)
    said = [
        ("profile", f"{report.path}: {report.meta['kind']}, {report.meta['state']}"),
        (
            "machine",
            f"{target.num_ipus} × {target.name}, {target.tiles_per_ipu:,} tiles with"
            f" {size(target.bytes_per_tile)} each",
        ),
    ]
    if pace.cycles:
        said += [
            (analysis.turn(report), f"{pace.cycles:,} cycles, {pace.micro_batches} micro-batches"),
            ("speed", f"{per_second(pace.samples_per_second)} samples a second (predicted)"),
            ("waiting", f"{percent(analysis.waiting(report))} of the cycles of all IPUs"),
        ]
    slowest = analysis.slowest(report)
    if slowest is not None and len(report.stages) > 1:
        name, _, cycles, times = slowest
        said.append(("slowest", f"{name}: {cycles:,} cycles a micro-batch, {times:.2f} × the mean"))
    tiles = analysis.fullest_tiles(report)
    if len(tiles):
        share = percent(float(tiles.max()) / target.bytes_per_tile)
        said.append(("fullest tile", f"{size(int(tiles.max()))} on IPU {tiles.argmax()}, {share}"))
    return said


def _waits(report: Report) -> str:
    """The critical path by cause, as bars."""
    if not len(report.runs):
        return ""
    rows = "".join(
        f"<tr><td style='text-align:left'>{html.escape(str(row['cause']))}</td>"
        f"<td>{percent(float(row['share']))}</td><td style='text-align:left'>"
        f"<div style='background:#0072b2;height:10px;width:{round(_BAR * row['share'])}px'></div>"
        "</td></tr>"
        for row in waterfall(critical_path(report)).to_dict("records")
    )
    return f"<p>What {analysis.turn(report)} waits for:</p><table>{rows}</table>"


def _notes(report: Report) -> str:
    words = [*map(str, report.meta["warnings"]), *([PREDICTED_NOTE] if report.predicted else [])]
    return "".join(f"<p><i>{html.escape(one)}</i></p>" for one in words)
