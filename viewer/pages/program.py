"""The program tree: what the machine runs, in order, linked to liveness and to the trace.

The visible rows are built on the server, from the nodes that are open: a page of thousands of
nested elements would take the browser seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from dash import Dash, Input, Output, State, dcc, html

from ipuscope.profiler import Report
from ipuscope.profiler.analysis.program import (
    MOST_OPENED,
    OPENED,
    Nodes,
    nodes,
    parents_of,
    top_nodes,
)
from ipuscope.profiler.file import records
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, refused
from ipuscope.viewer.pages.common import Column, Page, View
from ipuscope.viewer.pages.trace import step_details
from ipuscope.viewer.profiles import Profiles

NAME = "program"
MOST = MOST_OPENED  # rows
_COLUMNS = (
    Column("label", "program"),
    Column("type", "type", width=160),
    Column("repeat", "runs", ",.0f", width=80, tip="how often the node's body runs"),
    Column("below", "nodes below", ",.0f", width=120),
    Column("ipu", "IPU", ",.0f", width=80),
    Column("position", "step", ",.0f", width=90, tip="position in the IPU's program"),
    Column(
        "cycles",
        "cycles",
        ",.0f",
        width=160,
        tip="of a call, on the IPU that takes longest; an external sync's with its waiting",
    ),
)


def layout(view: View) -> Any:
    """The page."""
    node = refused.no_row(view.report, records.Program, "node", "Click one in the tree.")

    def no_nodes(value: str) -> str:
        return next(filter(None, map(node, filter(None, value.split(",")))), "")

    def no_step(value: str) -> str:
        if (words := node(value)) or int(value) in view.report.steps_in_order("program"):
            return words
        return refused.refused("step at node", value, "it has others in it", "Click a step.")

    ipus = [
        ("all", "all"),
        *((str(ipu), str(ipu)) for ipu in range(view.report.target.ipus_per_replica)),
    ]
    return [
        common.controls(
            view,
            common.choice(view, "ipu", "IPU", ipus, "all"),
            common.search(view, "find", "find by name"),
            common.hidden(view, "toggled", check=no_nodes),
            common.hidden(view, "node", check=no_step),
        ),
        common.card(
            "Program tree",
            common.filled("program-found"),
            common.table(
                "program-grid",
                _rows([]),
                _COLUMNS,
                view.theme,
                height=560,
                row_id="id",
                sortable=False,
                filled_later=True,
            ),
            note="Click a node to open or close it, or a step to see it below.",
        ),
        common.card("The chosen step", common.filled("program-step")),
    ]


_CLICK = """
function(click, toggled, rows) {
    const none = [window.dash_clientside.no_update, window.dash_clientside.no_update];
    if (!click) { return none; }
    const row = (rows || []).find((one) => String(one.id) === String(click.rowId));
    if (!row) { return none; }
    if (!row.below) { return [none[0], String(row.id)]; }
    const set = new Set((toggled || '').split(',').filter((id) => id));
    const id = String(row.id);
    if (!set.delete(id)) { set.add(id); }
    return [Array.from(set).join(','), none[1]];
}
"""


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    app.clientside_callback(
        _CLICK,
        Output(common.param_id(NAME, "toggled"), "value"),
        Output(common.param_id(NAME, "node"), "value"),
        Input("program-grid", "cellClicked"),
        State(common.param_id(NAME, "toggled"), "value"),
        State("program-grid", "rowData"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("program-grid", "rowData"),
        Output("program-found", "children"),
        *common.param_input(NAME, "profile", "ipu", "find", "toggled"),
    )
    def rows(profile: Any, ipu: Any, find: Any, toggled: Any) -> Any:
        report = profiles.get(common.whole(profile, 0))
        chip = common.whole(ipu, -1, 0, report.target.ipus_per_replica - 1)
        flipped = {common.whole(id, -1) for id in str(toggled or "").split(",")[:MOST]} - {-1}
        words = str(find or "").strip().lower()
        if not (words or flipped or chip >= 0):
            top = top_nodes(report)
            shown, hits = rows_of(top, top.depth < OPENED), None
            return shown, _said(shown, hits, top.count)
        tree = profiles.made(report, "program tree", lambda: Tree(report))
        shown, hits = tree.shown(words, chip, flipped)
        return shown, _said(shown, hits, tree.nodes.count)

    @app.callback(
        Output("program-step", "children"),
        *common.param_input(NAME, "profile", "node"),
        common.theme_state(),
    )
    def chosen(profile: Any, node: Any, where: Any) -> Any:
        report = profiles.get(common.whole(profile, 0))
        number = common.whole(node, -1)
        known = number >= 0  # without one, the steps need not be read
        at = np.flatnonzero(report.steps_in_order("program") == number) if known else np.zeros(0)
        if not len(at):
            return common.message("Click a step in the tree.")
        step = report.program_steps().iloc[int(at[0])]
        links = html.P(
            [
                dcc.Link(
                    "its liveness", href=f"/liveness?ipu={step['ipu']}&step={step['position']}"
                ),
                " · ",
                dcc.Link(
                    "its place in the trace", href=f"/trace?ipu={step['ipu']}&step={step['step']}"
                ),
            ]
        )
        return [
            links,
            *step_details(report, step, Clock(report.target.clock_hz), common.theme_of(where)),
        ]


def _said(shown: list[dict[str, Any]], found: int | None, nodes: int) -> Any:
    words = (
        f"{nodes:,} nodes"
        if found is None
        else f"{found:,} of {nodes:,} nodes found, with what they are in"
    )
    if not nodes:
        return common.message("The profile has no program tree.")
    return html.P(
        words + (f"; the first {MOST:,} are shown" if len(shown) == MOST else ""), className="note"
    )


def _rows(rows: list[dict[str, Any]]) -> pd.DataFrame:
    names = ["id", *(column.name for column in _COLUMNS)]
    return pd.DataFrame(rows, columns=pd.Index(names)).astype(object)


def rows_of(shown: Nodes, opened: np.ndarray) -> list[dict[str, Any]]:
    """The rows of the table; ``opened``: whether each node is."""
    columns = ("id", "depth", "below", "ipu", "position", "cycles", "repeat", "name", "type")
    return [
        {
            "id": str(id),
            "label": " " * 5 * depth
            + (("▾ " if is_open else "▸ ") if below else "   ")
            + (name or kind),
            "type": kind,
            "repeat": repeat if repeat != 1 else None,
            "below": below or None,
            "ipu": ipu if ipu >= 0 else None,
            "position": position if ipu >= 0 else None,
            "cycles": cycles or None,
        }
        for is_open, id, depth, below, ipu, position, cycles, repeat, name, kind in zip(
            opened.tolist(), *(getattr(shown, name).tolist() for name in columns), strict=True
        )
    ]


class Tree:
    """The program tree, to be searched, opened and closed."""

    def __init__(self, report: Report) -> None:
        self.nodes = nodes(report)
        self.names = report.program["name"]
        self.parent: list[int] = parents_of(report.program).tolist()

    def shown(
        self, find: str, ipu: int, toggled: set[int]
    ) -> tuple[list[dict[str, Any]], int | None]:
        """The visible rows, and the number of search hits (None without a search)."""
        count = self.nodes.count
        hit = np.ones(count, dtype=bool)
        if find:
            hit &= self.names.str.contains(find, case=False, regex=False).to_numpy(dtype=bool)
        if ipu >= 0:
            hit &= self.nodes.ipu == ipu
        looking = bool(find) or ipu >= 0
        inside = hit.tolist()
        if looking:
            for row in range(count - 1, -1, -1):  # what contains a found node
                if inside[row] and self.parent[row] >= 0:
                    inside[self.parent[row]] = True
        deep = OPENED if not find else count
        opened = (self.nodes.depth < deep) != np.isin(self.nodes.id, list(toggled))
        is_open = opened.tolist()
        seen = [False] * count
        for row, above in enumerate(self.parent):
            seen[row] = inside[row] and (above < 0 or (seen[above] and is_open[above]))
        rows = np.flatnonzero(seen)[:MOST]
        return rows_of(self.nodes.where(rows), opened[rows]), int(hit.sum()) if looking else None


PAGE = Page("/program", "Program", layout, register, "What the machine runs, in order")
