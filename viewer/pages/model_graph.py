"""The model as a graph on Rebalance: Blocks, modules and operators, and the borders of stages.

Cytoscape.js lays it out (dagre) and draws it in the browser (dash-cytoscape). A click on a node
opens or closes it; one on an edge between Blocks moves the nearest border of a stage there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dash_cytoscape as cyto
import numpy as np
from dash import ALL, Dash, Input, Output, ctx, html, no_update
from plotly.colors import sample_colorscale

from ipuscope.planner.predict.split_text import in_address
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.profiler import Report
from ipuscope.profiler.analysis import model_graph
from ipuscope.profiler.analysis.model_graph import Edge, Graph, Node
from ipuscope.profiler.enums import Direction
from ipuscope.viewer.figures import flame, units
from ipuscope.viewer.figures.theme import Theme, text_on
from ipuscope.viewer.pages import common, refused
from ipuscope.viewer.pages.common import View
from ipuscope.viewer.profiles import Profiles

SplitOf = Callable[[Any, Any], tuple[Any, Assignment, Any]]
cyto.load_extra_layouts()  # includes dagre, served by Dash itself

COLOURS = (("stage", "stage"), ("cycles", "cycles"), ("bytes", "bytes"))
_NAMED: Any = {"aria-label": "The model as a graph. The table of Blocks moves them by keys."}
_LAYOUT = {"name": "dagre", "rankDir": "LR", "rankSep": 140, "nodeSep": 20, "fit": False}
PARAMS = ("for", "layers", "colour", "open")
_FOR = tuple((one.value, one.value) for one in (Direction.FORWARD, Direction.BACKWARD))
_HIGHEST = 420  # pixels
_MANY = 60  # Blocks: beyond so many, equal ones are grouped at first
_MOST_OPENED = 40
_MOST_NODES = 1500
_SMALL = 0.01  # of the largest edge: smaller ones are pale, without label
_MOST_PALE = 8  # smaller ones: more are left out, or the rest would have no room
_HUES = 8  # colours of consecutive stages before they repeat


def card(view: View, borders: bool = True) -> Any:
    """The card; callbacks fill it (`elements`). ``borders``: borders of stages may move."""
    moves = ", an edge between Blocks to move the nearest border of a stage there" * borders
    many = len(view.report.blocks) > _MANY
    both = (("each", "each"), ("together", "together"))
    return common.card(
        "The model",
        html.Div(
            [
                *_listed(common.switch(view, "for", "for", _FOR, _FOR[0][0])),
                *_listed(
                    common.switch(view, "layers", "layers", both, both[many][0]),
                ),
                *_listed(common.switch(view, "colour", "colour", COLOURS, "stage")),
                common.hidden(view, "open", check=_no_group(view.report)),
            ],
            className="controls",
        ),
        html.Div(
            cyto.Cytoscape(
                id="model-graph",
                layout=_LAYOUT,
                style={"width": "100%", "height": f"{_HIGHEST}px"},
                responsive=True,
                zoom=0.9,
                minZoom=0.05,
                maxZoom=3,
                elements=[],
            ),
            id="model-graph-frame",  # a canvas of another height would be redrawn elsewhere
            role="img",
            **_NAMED,
        ),
        common.filled("model-graph-said"),
        note=f"Click a node to open it{moves}. Thick: between IPUs; dashed: a tied weight; pale:"
        " under 1% of the largest.",
    )


def register(app: Dash, profiles: Profiles, split_of: SplitOf, page: str) -> None:
    """Register the callbacks. ``split_of``: what the page shows; ValueError if nothing."""

    @app.callback(
        Output(common.param_id(page, "open"), "value"),
        Input("model-graph", "tapNodeData"),
        common.param_state(page, "open"),
        prevent_initial_call=True,
    )
    def opened(node: Any, there: Any) -> Any:
        opens = isinstance(node, dict) and node.get("opens")
        return toggled(there, str(node["path"])) if opens else no_update

    @app.callback(
        Output(common.param_id(page, "starts"), "value", allow_duplicate=True),
        Input("model-graph", "tapEdgeData"),
        common.param_state(page, "starts"),
        common.param_state(page, "profile"),
        prevent_initial_call=True,
    )
    def border(edge: Any, starts: Any, profile: Any) -> Any:
        if not isinstance(edge, dict):
            return no_update
        costs, split, _ = split_of(profile, starts)
        block = common.whole(str(edge.get("before")), -1, 0, len(costs) - 1)
        return in_address(cut_before(split, block))

    @app.callback(
        Output("model-graph", "elements"),
        Output("model-graph-frame", "style"),
        Output("model-graph", "stylesheet"),
        Output("model-graph-said", "children"),
        Input({"page": page, "param": ALL}, "value"),  # *starts* is not there without a split
        common.theme_state(),
    )
    def draw(_: Any, where: Any) -> Any:
        values = {one["id"]["param"]: one.get("value") for one in ctx.inputs_list[0]}
        direction, layers, colour, there = (values.get(name) for name in PARAMS)
        report = profiles.get(values.get("profile"))
        try:
            split = split_of(values.get("profile"), values.get("starts"))[1]
        except ValueError:  # of a model without Blocks, or in phases
            split = None
        key = ("graph", direction, layers, there)
        graph = profiles.made(report, key, lambda: shown(report, direction, layers, there))
        drawn = elements(report, graph, split, str(colour), common.theme_of(where))
        return drawn[0], {"height": f"{height(graph)}px", "overflow": "hidden"}, *drawn[1:]


def _listed(one: Any) -> list[Any]:
    return one if isinstance(one, list) else [one]


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


def cut_before(split: Assignment, block: int) -> Assignment:
    """The split with the nearest border of a stage moved to before ``block``.

    The number of stages stays; so does a split that has a border there, or one stage.
    """
    borders = split.starts[1:]
    if not borders or block in split.starts or block <= 0:
        return split
    nearest = min(borders, key=lambda one: (abs(one - block), one))
    starts = tuple(sorted({*split.starts} - {nearest} | {block}))
    return Assignment(starts, split.ipus)


def shown(report: Report, direction: Any, layers: Any, opened: Any) -> Graph:
    """The graph that an address asks for."""
    paths = [flame.path_of(one) for one in str(opened or "").split("|")[:_MOST_OPENED] if one]
    way = direction if direction in dict(_FOR) else _FOR[0][0]
    return model_graph.graph(report, paths, way, layers == "together")


def height(graph: Graph) -> int:
    """Pixels of the canvas, by the nodes and passing edges on top of each other."""
    rank = np.zeros(len(graph.nodes), dtype=np.int64)
    small = _small(graph)
    shown = [
        one for at, one in enumerate(graph.edges) if len(small) <= _MOST_PALE or at not in small
    ]
    ends = sorted({(one.source, one.target) for one in shown if one.source < one.target})
    for source, target in ends:
        rank[target] = max(rank[target], rank[source] + 1)
    beside = np.bincount(rank, minlength=1)
    for source, target in ends:
        beside[rank[source] + 1 : rank[target]] += 1
    return int(np.clip(70 + 50 * beside.max(), 110, _HIGHEST))


def elements(
    report: Report, graph: Graph, split: Assignment | None, colour: str, theme: Theme
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Nodes and edges for Cytoscape.js, their styles, and a sentence for below.

    ``split``: the stage of each Block, and its IPU; None without Blocks: the profile's stages.
    """
    stage_of = None if split is None else split.stage_of(len(report.blocks))
    profiled = dict(zip(report.stages["stage"], report.stages["ipu"], strict=True))
    ipu_of = profiled if split is None else dict(enumerate(split.ipus))
    nodes = graph.nodes[:_MOST_NODES]
    stages = [_stages(one, stage_of) for one in nodes]
    position = {one.path: at for at, one in enumerate(nodes)}
    fills = _fills(nodes, stages, colour)
    made = []
    for at, (one, of) in enumerate(zip(nodes, stages, strict=True)):
        above = position.get(one.path[:-1])
        data = {
            "id": f"n{at}",
            "label": _label(one, of),
            "path": flame.id_of(one.path),
            "opens": one.opens,
            "colour": fills[at],
            "text": text_on(fills[at]),
            **({"parent": f"n{above}"} if above is not None else {}),
        }
        made.append({"data": data, "classes": "opened" if one.opened and one.opens else ""})
    moved, copies = _moved(report), 0
    small = _small(graph)
    hidden = small if len(small) > _MOST_PALE else set()
    for at, edge in enumerate(graph.edges):
        if max(edge.source, edge.target) >= len(nodes) or at in hidden:
            continue
        ends = [ipu_of.get(stages[end][k]) for end, k in ((edge.source, 1), (edge.target, 0))]
        across = ends[0] != ends[1] and edge.kind == model_graph.TENSOR
        copies += across
        data = {
            "id": f"e{at}",
            "source": f"n{edge.source}",
            "target": f"n{edge.target}",
            "label": _edge_label(edge, across, moved),
            "before": nodes[edge.target].blocks[0],
        }
        if at in small:
            data["label"] = ""
            made.append({"data": data, "classes": "small"})
            continue
        kind = "copy" if across else "tied" if edge.kind == model_graph.TIED else ""
        made.append({"data": data, "classes": kind})
    edges = units.count(copies, "edge")
    summary = f"{units.count(len(nodes), 'node')}, {edges} between IPUs"
    if len(nodes) < len(graph.nodes):
        summary += f"; {len(graph.nodes) - len(nodes):,} nodes more are left out: close some"
    if hidden:
        summary += f"; {len(hidden):,} edges of under {_SMALL:.0%} of the largest are left out"
    fixed = [{"selector": "edge", "style": {"events": "no"}}] if split is None else []
    return made, [*_styles(theme), *fixed], f"{summary}."


def _small(graph: Graph) -> set[int]:
    """The edges that move next to nothing, as an attention mask for every layer."""
    sizes = [edge.bytes for edge in graph.edges if edge.kind == model_graph.TENSOR]
    least = _SMALL * max(sizes, default=0)
    return {at for at, edge in enumerate(graph.edges) if edge.bytes < least}


def _stages(one: Node, stage_of: Sequence[int] | None) -> tuple[int, int]:
    """The first and the last stage of a node, in the split that is shown."""
    if stage_of is None or one.blocks[0] < 0:
        return one.stages
    return stage_of[one.blocks[0]], stage_of[one.blocks[1]]


def _fills(nodes: Sequence[Node], stages: Sequence[tuple[int, int]], colour: str) -> list[str]:
    if colour == "stage":
        share = np.array([first % _HUES / (_HUES - 1) for first, _ in stages])
    else:
        values = np.array([float(getattr(one, colour, 0)) / one.count for one in nodes])
        share = values / max(1.0, values.max(initial=0))
    names = sample_colorscale("Viridis", (0.15 + 0.8 * share).tolist(), colortype="tuple")
    return ["#" + "".join(f"{round(255 * part):02x}" for part in one) for one in names]


def _label(one: Node, stages: tuple[int, int]) -> str:
    name = one.path[-1] + (f" × {one.count}" if one.count > 1 else "")
    first, last = stages
    where = f"stage {first}" if first == last else f"stages {first} to {last}"
    return f"{name}\n{where}\n{units.cycles(one.cycles)} cycles"


def _edge_label(edge: Edge, across: bool, moved: dict[int, int]) -> str:
    shapes = ", ".join(edge.shapes[:2]) + (f" + {len(edge.shapes) - 2}" * (len(edge.shapes) > 2))
    if edge.kind == model_graph.TIED:
        return f"tied weight {shapes}"
    if not across:
        return shapes
    cycles = sum(moved.get(one, 0) for one in edge.tensors)
    took = f", {units.cycles(cycles)} cycles" if cycles else ""
    return f"{shapes}\n{units.size(edge.bytes)}{took}"


def _moved(report: Report) -> dict[int, int]:
    """Cycles of one step that copies a tensor between IPUs, as profiled, by tensor."""
    moves = report.moved_tensors
    moves = moves[(moves["source"] >= 0) & (moves["target"] >= 0)]
    steps = report.steps_in_order("step")
    cycles = dict(zip(steps.tolist(), report.steps_in_order("cycles").tolist(), strict=True))
    first = moves.drop_duplicates("tensor")
    return {
        tensor: cycles.get(step, 0)
        for tensor, step in zip(first["tensor"].tolist(), first["step"].tolist(), strict=True)
    }


def _styles(theme: Theme) -> list[dict[str, Any]]:
    rules = {
        "node": "label: data(label); text-wrap: wrap; text-valign: center; shape: round-rectangle;"
        "width: 120; height: 54; font-size: 11; background-color: data(colour); color: data(text)",
        ":parent, .opened": f"background-color: {theme.page}; color: {theme.text};"
        f"text-valign: top; border-width: 1; border-color: {theme.muted}",
        "edge": f"label: data(label); text-wrap: wrap; font-size: 10; color: {theme.muted};"
        f"text-background-color: {theme.card}; text-background-opacity: 0.8; curve-style: bezier;"
        f"target-arrow-shape: triangle; width: 1; line-color: {theme.muted};"
        f"target-arrow-color: {theme.muted}",
        ".small": "opacity: 0.25",
        ".copy": f"width: 5; line-color: {theme.accent}; target-arrow-color: {theme.accent}",
        ".tied": "line-style: dashed; target-arrow-shape: none",
    }
    styles = []
    for of, rule in rules.items():
        parts = (one.partition(":") for one in rule.split(";"))
        styles.append({"selector": of, "style": {a.strip(): b.strip() for a, _, b in parts}})
    return styles
