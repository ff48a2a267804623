"""Sums over a range of time and of lanes: by kind, operator, ATen and the like."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from dash import html

from profiler import Report
from viewer.figures import trace as figures
from viewer.figures import units
from viewer.figures.marks import Selection
from viewer.figures.trace import Trace
from viewer.figures.units import Clock
from viewer.pages import common
from viewer.pages.common import View

BY = (
    ("kind", "kind"),
    ("operator", "operator"),
    ("aten", "ATen"),
    ("module", "module"),
    ("block", "Block"),
    ("stage", "stage"),
)
_MOST_ROWS = 40


def card(view: View, id: str) -> Any:
    """The card that a callback fills with `table`."""
    return common.card(
        "In sum",
        common.choice(view, "by", "by", BY, "kind"),
        common.filled(id, awaited=True),
        note="Exact, however coarse the figure. Drag with Shift to select a range and lanes.",
    )


def aggregated(
    report: Report,
    rows: Trace,
    window: tuple[float, float] | None,
    by: str,
    lanes: Collection[int] | None = None,
) -> list[tuple[str, int, int]]:
    """(name, cycles, slices) of the visible part by operator, ATen, module, Block or stage.

    Largest first; waits, copies and whatever belongs to no operator are named by their kind.
    ``lanes``: only these IPUs.
    """
    step, cycles, count = figures.by_step(rows, window, lanes)
    frame = report.program_steps().set_index("step").reindex(step)
    if by == "stage":
        stage = frame["stage"].fillna(-1).astype(int).tolist()
        names = [f"stage {one}" if one >= 0 else "no stage" for one in stage]
    else:
        column = {"operator": "name", "block": "block_name"}.get(by, by)
        said = report.ops[column].reindex(frame["op"].fillna(-1).astype(int)).tolist()
        kinds = frame["kind"].fillna("waiting").tolist()
        names = [
            (name or "none") if isinstance(name, str) else f"no operator: {kind}"
            for name, kind in zip(said, kinds, strict=True)
        ]
    unique, at = np.unique(np.array(names, dtype=str), return_inverse=True)
    total = np.bincount(at, weights=cycles, minlength=len(unique)).astype(np.int64)
    slices = np.bincount(at, weights=count, minlength=len(unique)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return [(str(unique[i]), int(total[i]), int(slices[i])) for i in order]


def table(
    report: Report,
    rows: Trace,
    shown: tuple[float, float] | None,
    selection: Selection | None,
    lanes: Collection[int] | None,
    by: Any,
    clock: Clock,
) -> Any:
    """Sums over what is selected, or else shown. ``lanes``: the IPUs selected, None: all."""
    count = units.count(int(rows.of_steps.sum()), "lane")
    window, words = shown, f"Of what is shown, {count}"
    if selection is not None:
        window = (float(selection.low), float(selection.high))
        named = [f"IPU {ipu}" for ipu in lanes or ()]
        many = f"all, {count}" if lanes is None else ", ".join(named[:6])
        more = f" and {len(lanes) - 6} more" if lanes is not None and len(lanes) > 6 else ""
        words = f"Of the selection: {clock.both(selection.high - selection.low)} on {many}{more}"
    if by in dict(BY[1:]):
        sums = aggregated(report, rows, window, str(by), lanes)
    else:
        sums = figures.by_kind(rows, window, lanes)
    return [html.P(words, className="note"), _table(sums, clock)]


def _table(found: list[tuple[str, int, int]], clock: Clock) -> Any:
    total = max(1, sum(cycles for _, cycles, _ in found))
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
        for name, cycles, count in found[:_MOST_ROWS]
    ]
    if len(found) > _MOST_ROWS:
        body.append(html.Tr([html.Td(f"and {len(found) - _MOST_ROWS:,} more", colSpan=5)]))
    return html.Table([html.Thead(html.Tr(heads)), html.Tbody(body)], className="plain")
