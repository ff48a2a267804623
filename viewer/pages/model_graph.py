"""The model as a graph on Rebalance: Blocks, modules and operators, and the borders of stages.

Cytoscape.js lays it out (dagre) and draws it in the browser (dash-cytoscape). A click on a node
opens or closes it. The borders of stages are elements of the page over the canvas, which has no
focus: assets/viewer.js puts each on the edge that it cuts, and moves it as it does those of the row
of Blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dash_cytoscape as cyto
from dash import ALL, Dash, Input, Output, ctx, html, no_update

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.without_blocks import block_line, blocks_to_begin
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.profiler import Report
from ipuscope.profiler.analysis import model_graph
from ipuscope.profiler.analysis.model_graph import Graph
from ipuscope.viewer.figures import flame
from ipuscope.viewer.figures.model_graph import COLOURS, elements
from ipuscope.viewer.pages import common, refused
from ipuscope.viewer.pages.common import View
from ipuscope.viewer.profiles import Profiles

SplitOf = Callable[[Any, Any], tuple[Costs, Assignment, Any]]
cyto.load_extra_layouts()  # includes dagre, served by Dash itself

_HIGHEST = 600  # pixels of the canvas; assets/pages.js shows as much of it as the graph needs
_NAMED: Any = {"aria-label": "The model as a graph"}
# edges that pass nodes are straight: so far apart that they and their labels are beside these
_APART = {"rankSep": 120, "nodeSep": 20, "edgeSep": 130}
_LAYOUT = {"name": "dagre", "rankDir": "LR", "fit": False, **_APART}
PARAMS = ("for", "layers", "colour", "open")
_FOR = tuple((one, one) for one in ("forward", "backward", "update"))
_MANY = 60  # Blocks: beyond so many, equal ones are grouped at first
_MOST_OPENED = 40


def card(view: View, borders: bool = True) -> Any:
    """The card; callbacks fill it (`elements`). ``borders``: borders of stages may move."""
    moves = "; drag a border of stages to another edge, or move it with ← and →" * borders
    many = len(view.report.blocks) > _MANY
    proposed = [block_line(name, ipu) for ipu, name in enumerate(blocks_to_begin(view.report))]
    of_about = f"{len(proposed)} Blocks of about equal cycles could begin at these modules:"
    where = [html.P(of_about), common.statements(proposed)] if proposed else []
    both = (("each", "each"), ("together", "together"))
    canvas = cyto.Cytoscape(
        id="model-graph",
        layout=_LAYOUT,
        style={"width": "100%", "height": f"{_HIGHEST}px"},
        responsive=True,
        minZoom=0.05,
        maxZoom=3,
        elements=[],
    )
    return common.card(
        "The model",
        html.Div(
            [
                common.switch(view, "for", "for", _FOR, _FOR[0][0]),
                common.switch(view, "layers", "layers", both, both[many][0]),
                common.switch(
                    view, "colour", "colour", [(one, one) for one in COLOURS], COLOURS[0]
                ),
                common.hidden(view, "open", check=_no_group(view.report)),
            ],
            className="controls",
        ),
        html.Div(
            [
                html.Div(canvas, role="img", **_NAMED),
                html.Div(id="model-graph-borders", role="group"),
            ],
            id="model-graph-frame",  # a canvas of another height would be redrawn elsewhere
        ),
        common.filled("model-graph-said"),
        *where,
        note=f"Click a node to open it{moves}; double click: all of it. Thick: between IPUs;"
        " dashed: a tied weight; pale: under 1% of the largest.",
    )


def register(app: Dash, profiles: Profiles, split_of: SplitOf, page: str) -> None:
    """Register the callbacks. ``split_of``: what the page shows; ValueError if nothing."""

    @app.callback(
        Output(common.param_id(page, "open"), "value"),
        Input("model-graph", "tapNodeData"),
        *common.param_state(page, "open"),
        prevent_initial_call=True,
    )
    def opened(node: Any, there: Any) -> Any:
        opens = isinstance(node, dict) and node.get("opens")
        return toggled(there, str(node["path"])) if opens else no_update

    @app.callback(
        Output("model-graph", "elements"),
        Output("model-graph", "stylesheet"),
        Output("model-graph-said", "children"),
        Output("model-graph-borders", "children"),
        Input({"page": page, "param": ALL}, "value"),  # *starts* is not there without a split
        common.theme_state(),
    )
    def draw(_: Any, where: Any) -> Any:
        values = {one["id"]["param"]: one.get("value") for one in ctx.inputs_list[0]}
        direction, layers, colour, there = (values.get(name) for name in PARAMS)
        report = profiles.get(values.get("profile"))
        split, borders = None, []
        try:
            costs, split, _ = split_of(values.get("profile"), values.get("starts"))
            borders = [
                border(costs, split, stage, wide=True) for stage in range(1, len(split.starts))
            ]
        except ValueError:  # of a model without Blocks, or in phases
            pass
        key = ("graph", direction, layers, there)
        graph = profiles.made(report, key, lambda: shown(report, direction, layers, there))
        return *elements(report, graph, split, str(colour), common.theme_of(where)), borders

    app.clientside_callback(
        common.script("borders"),
        Input("model-graph-borders", "children"),
        Input("rebalance-blocks", "children", allow_optional=True),  # without a split
    )


def border(costs: Costs, split: Assignment, stage: int, wide: bool = False, **look: Any) -> Any:
    """The border at which a stage begins, which assets/viewer.js moves. ``wide``: with its word."""
    first, last = split.spans(len(costs))[stage]
    limits = (split.starts[stage - 1] + 1, last) if stage else (0, 0)
    ends = dict(zip(("aria-valuemin", "aria-valuemax"), map(str, limits), strict=True))
    said = f"stage {stage}, on IPU {split.ipus[stage]}, begins with {costs.names[first]}"
    value: Any = {"aria-label": f"border of stage {stage}", "aria-valuetext": said, **ends}
    value |= {"aria-valuenow": str(first), "data-stage": str(stage), **look}
    name = html.Span([*([html.I("stage ")] if wide else []), str(stage)])
    return html.Div(name, className="border", role="slider", tabIndex="0", **value)


def _no_group(report: Report) -> refused.Check:
    """Checks the groups of the model that are open, each a path."""

    def check(value: str) -> str:
        asked = [one for one in value.split("|") if one]
        there = model_graph.groups(report) if asked else set()
        bad = [one for one in asked if flame.path_of(one) not in there]
        words = f"there are {len(there):,} groups, as Costs' tree has them"
        return refused.refused("group", bad[0], words, "Click a node to open it.") if bad else ""

    return check


def toggled(opened: Any, path: str) -> str:
    """The parameter *open* after a click on a node."""
    there = [one for one in str(opened or "").split("|") if one]
    rest = [one for one in there if one != path and not one.startswith(path + flame.SEPARATOR)]
    return "|".join(rest if len(rest) < len(there) else [*there, path][-_MOST_OPENED:])


def shown(report: Report, direction: Any, layers: Any, opened: Any) -> Graph:
    """The graph that an address asks for."""
    paths = [flame.path_of(one) for one in str(opened or "").split("|")[:_MOST_OPENED] if one]
    way = direction if direction in dict(_FOR) else _FOR[0][0]
    return model_graph.graph(report, paths, way, layers == "together")
