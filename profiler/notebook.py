"""A report's facts in a notebook, as self-contained HTML; every name in the file is escaped."""

from __future__ import annotations

import html

from ipuscope.profiler.analysis import turn, waits
from ipuscope.profiler.analysis.facts import in_words
from ipuscope.profiler.report import PREDICTED_NOTE, Report
from ipuscope.profiler.units import percent

_BAR = 160  # pixels of a bar that is everything
_LEFT = "style='text-align:left'"


def summary_html(report: Report) -> str:
    """`facts.in_words`, and what an update waits for."""
    rows = "".join(
        f"<tr><th {_LEFT}>{html.escape(label)}</th><td {_LEFT}>{html.escape(words)}</td></tr>"
        for label, words in in_words(report)
    )
    title = html.escape(str(report.meta["model"] or report.path.parent.name))
    return f"<div><b>{title}</b><table>{rows}</table>{_waits(report)}{_notes(report)}</div>"


def _waits(report: Report) -> str:
    """The critical path by cause, as bars."""
    if not len(report.runs):
        return ""
    rows = "".join(
        f"<tr><td {_LEFT}>{html.escape(str(row['cause']))}</td><td>{percent(row['share'])}</td>"
        f"<td {_LEFT}><div style='background:#0072b2;height:10px;"
        f"width:{round(_BAR * row['share'])}px'></div></td></tr>"
        for row in waits.of(report).waterfall.to_dict("records")
    )
    return f"<p>What {turn(report)} waits for:</p><table>{rows}</table>"


def _notes(report: Report) -> str:
    words = [*report.notes, *([PREDICTED_NOTE] if report.predicted else [])]
    return "".join(f"<p><i>{html.escape(one)}</i></p>" for one in words)
