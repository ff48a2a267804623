"""Sums over a range of time and of lanes: by kind, operator, ATen and the like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from dash import html

from ipuscope.profiler import Report
from ipuscope.profiler.analysis.kinds import spent_by_kind
from ipuscope.profiler.analysis.movement import streaming_steps
from ipuscope.profiler.timeline.executed_steps import Spent
from ipuscope.viewer.figures import trace as figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.drawing import Selection
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common
from ipuscope.viewer.pages.common import View

BY = (
    ("kind", "kind"),
    ("operator", "operator"),
    ("aten", "ATen"),
    ("module", "module"),
    ("block", "Block"),
    ("stage", "stage"),
)
_MOST_ROWS = 40


def sums(view: View, id: str) -> Any:
    """A placeholder for `table`, below the choice of what to sum by."""
    return [common.choice(view, "by", "by", BY, "kind"), common.filled(id, awaited=True)]


def aggregated(report: Report, spent: Spent, by: str) -> list[tuple[str, int, int]]:
    """(name, cycles, slices) of executed steps by operator, ATen, module, Block or stage.

    Largest first; waits, copies and steps without an operator are named by their kind.
    """
    step, cycles, count = spent.step, spent.cycles, spent.count
    frame = report.program_steps().set_index("step").reindex(step)
    if by == "stage":
        stage = frame["stage"].fillna(-1).astype(int).tolist()
        names = [f"stage {one}" if one >= 0 else "no stage" for one in stage]
    else:
        column = {"operator": "name", "block": "block_name"}.get(by, by)
        labels = report.ops[column].reindex(frame["op"].fillna(-1).astype(int)).tolist()
        kinds = frame["kind"].fillna("waiting").tolist()
        names = [
            (name or "none") if isinstance(name, str) else f"no operator: {kind}"
            for name, kind in zip(labels, kinds, strict=True)
        ]
    unique, at = np.unique(np.array(names, dtype=str), return_inverse=True)
    total = np.bincount(at, weights=cycles, minlength=len(unique)).astype(np.int64)
    slices = np.bincount(at, weights=count, minlength=len(unique)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return [(str(unique[i]), int(total[i]), int(slices[i])) for i in order]


def table(
    report: Report,
    executed: tuple[int, int | None, int],
    lanes: Sequence[int],
    shown: tuple[float, float],
    selection: Selection | None,
    selected: Sequence[int] | None,
    by: Any,
    clock: Clock,
) -> Any:
    """Sums over the selection, or over all that is shown.

    ``executed``: run, device iteration (None: the whole call), its first cycle; ``lanes``: the IPUs
    shown; ``shown``: cycles from that first; ``selected``: the selected IPUs, None: all.
    """
    count = units.count(len(lanes), "lane")
    window, words = shown, f"Of what is shown, {count}"
    if selection is not None:
        window = (float(selection.low), float(selection.high))
        named = [f"IPU {ipu}" for ipu in selected or ()]
        many = f"all, {count}" if selected is None else ", ".join(named[:6])
        more = f" and {len(named) - 6} more" if len(named) > 6 else ""
        words = f"Of the selection: {clock.both(selection.high - selection.low)} on {many}{more}"
    run, iteration, origin = executed
    between = (window[0] + origin, window[1] + origin)
    of = (report, run, lanes if selected is None else selected, iteration, between)
    if by in dict(BY[1:]):
        sums = aggregated(report, Report.spent(*of), str(by))
    else:
        sums = figures.by_activity(spent_by_kind(*of), streaming_steps(report))
    return [html.P(words, className="note"), _table(sums, clock)]


def _table(rows: list[tuple[str, int, int]], clock: Clock) -> Any:
    total = max(1, sum(cycles for _, cycles, _ in rows))
    heads = [
        html.Td(""),
        *(html.Th(words, className="n") for words in ("cycles", "time", "share", "slices")),
    ]
    body = [
        html.Tr(
            [
                html.Td(name),
                *(
                    html.Td(words, className="n")
                    for words in (
                        f"{cycles:,}",
                        units.seconds(cycles / clock.hz),
                        units.percent(cycles / total),
                        f"{count:,}",
                    )
                ),
            ]
        )
        for name, cycles, count in rows[:_MOST_ROWS]
    ]
    if len(rows) > _MOST_ROWS:
        body.append(html.Tr([html.Td(f"and {len(rows) - _MOST_ROWS:,} more", colSpan=5)]))
    return html.Table([html.Thead(html.Tr(heads)), html.Tbody(body)], className="plain")
