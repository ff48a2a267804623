"""The program tree: what the machine runs, in order, linked to liveness and to the trace."""

from __future__ import annotations

from typing import Any

import numpy as np
from dash import Dash, Output, dcc, html

from profiler import Report
from viewer.figures import units
from viewer.pages import common
from viewer.pages.common import Page, View
from viewer.profiles import Profiles

NAME = "program"
MOST = 400  # children of a node that are shown; the search finds the others


def layout(view: View) -> Any:
    """The page."""
    ipus = [("all", "all"), *((str(ipu), str(ipu)) for ipu in range(view.report.target.num_ipus))]
    return [
        common.controls(
            view, common.choice(view, "ipu", "IPU", ipus, "all"), common.search(view, "find", "find by name")
        ),
        common.card(
            "Program tree",
            html.Div(id="program-tree", className="tree"),
            note="Click to open. A step leads to its liveness and to its place in the trace.",
        ),
    ]


def register(app: Dash, profiles: Profiles) -> None:
    """Callbacks of the page."""

    @app.callback(Output("program-tree", "children"), *common.param_input(NAME, "profile", "ipu", "find"))
    def tree(profile: Any, ipu: Any, find: Any) -> Any:
        report = profiles.get(common.whole(profile, 0))
        chip = common.whole(ipu, -1, 0, report.target.num_ipus - 1)
        nodes = Nodes(report, str(find or "").strip().lower(), chip)
        if not len(nodes.frame):
            return common.message("The profile has no program tree.")
        if nodes.wanted is not None and not nodes.wanted.any():
            return common.message("No step is so called.", "warning")
        found = [] if nodes.wanted is None else [html.P(f"{int(nodes.hits):,} found", className="note")]
        return [*found, *nodes.children(-1)]


class Nodes:
    """The tree as nested elements, filtered by name and IPU."""

    def __init__(self, report: Report, find: str, ipu: int) -> None:
        frame = report.program
        self.frame = frame
        self.ids = frame["id"].to_numpy()
        self.row = {int(id): at for at, id in enumerate(self.ids)}
        self.below: dict[int, list[int]] = {}
        for at, parent in enumerate(frame["parent"].tolist()):
            self.below.setdefault(int(parent), []).append(at)
        self.steps = _steps_by_leaf(report)
        self.find = find
        self.wanted, self.hits = self._wanted(find, ipu)

    def _wanted(self, find: str, ipu: int) -> tuple[np.ndarray | None, int]:
        """Nodes to show: found ones, with their ancestors and (of a found sequence) what is below."""
        if not find and ipu < 0:
            return None, 0
        names = self.frame["name"].astype(str).str.lower()
        hit = names.str.contains(find, regex=False).to_numpy() if find else np.ones(len(names), dtype=bool)
        if ipu >= 0:
            here = np.array([self.steps[int(id)]["ipu"] == ipu if int(id) in self.steps else False for id in self.ids])
            hit &= here
        wanted = hit.copy()
        parents = self.frame["parent"].tolist()
        for at in np.flatnonzero(hit).tolist():
            parent = int(parents[at])
            while parent in self.row and not wanted[self.row[parent]]:
                wanted[self.row[parent]] = True
                parent = int(parents[self.row[parent]])
        return wanted, int(hit.sum())

    def children(self, parent: int, depth: int = 0) -> list[Any]:
        """Elements of what is below a node."""
        rows = [at for at in self.below.get(parent, []) if self.wanted is None or self.wanted[at]]
        shown = [self._node(at, depth) for at in rows[:MOST]]
        if len(rows) > MOST:
            shown.append(html.P(f"and {len(rows) - MOST:,} more: find them by name", className="note"))
        return shown

    def _node(self, at: int, depth: int) -> Any:
        row = self.frame.iloc[at]
        words: list[Any] = [html.B(str(row["type"])), " ", str(row["name"])]
        if row["repeat"] != 1:
            words.append(html.Span(f" × {row['repeat']:,}", className="times"))
        step = self.steps.get(int(row["id"]))
        if step is not None:
            words += [html.Span(f" {units.cycles(step['cycles'])} cycles", className="cost"), *_links(step)]
        if int(row["id"]) not in self.below:
            return html.Div(words, className="leaf")
        opened = depth < 3 or self.wanted is not None
        inside = self.children(int(row["id"]), depth + 1)
        count = len(self.below[int(row["id"])])
        summary = html.Summary([*words, html.Span(f" {count:,}", className="count")])
        return html.Details([summary, html.Div(inside, className="below")], open=opened)


def _steps_by_leaf(report: Report) -> dict[int, dict[str, Any]]:
    """The program step that a leaf of the tree is."""
    frame = report.program_steps()
    rows: Any = frame[["program", "step", "ipu", "position", "cycles"]].to_dict("records")
    return {int(row["program"]): row for row in rows}


def _links(step: dict[str, Any]) -> list[Any]:
    live = f"/liveness?ipu={step['ipu']}&step={step['position']}"
    trace = f"/trace?ipu={step['ipu']}&step={step['step']}"
    return [dcc.Link("liveness", href=live, className="to"), dcc.Link("trace", href=trace, className="to")]


PAGE = Page("/program", "Program", layout, register, "What the machine runs, in order")
