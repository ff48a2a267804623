"""The model's graph as drawn: Cytoscape.js's elements for the viewer, and a figure of the same.

`elements` says what is shown; dagre lays it out in the browser, `static` in a row a rank for
notebooks and the HTML report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from plotly.colors import sample_colorscale

from ipuscope.planner.costs.without_blocks import blocks_to_begin
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.profiler import Report
from ipuscope.profiler.analysis import model_graph
from ipuscope.profiler.analysis.model_graph import Edge, Graph, Node
from ipuscope.profiler.confidence import span
from ipuscope.profiler.report.frames import looked_up
from ipuscope.viewer.figures import flame, units
from ipuscope.viewer.figures.drawing import Drawing, note
from ipuscope.viewer.figures.theme import Theme, text_on

_MOST_NODES = 1500
_MOST_STATIC = 60  # nodes of a figure
_PITCH = 78  # pixels from one row of a figure to the next
_SMALL = 0.01  # of the largest edge: smaller ones are pale, without label
_MOST_PALE = 8  # smaller ones: more are left out, or the rest would have no room
_TURNS = 4  # edges beside each other in a figure
_DASHES = {"tied": "dash"}
_WHAT = {
    "cycles": "cycles of an update",
    "bytes": "bytes at the fullest steps",
    "waiting": "how long its IPUs wait",
    "uncertainty": "how far cycles may be off on hardware",
}
COLOURS = ("stage", *_WHAT)
_HUES = 8  # colours of consecutive stages before they repeat


def _ranks(ends: Sequence[tuple[int, int]], nodes: int) -> np.ndarray:
    """The most edges that lead to each node; ``ends`` are in the order of their sources."""
    rank = np.zeros(nodes, dtype=np.int64)
    for source, target in ends:
        rank[target] = max(rank[target], rank[source] + 1)
    return rank


def static(
    report: Report, theme: Theme, direction: str = "forward", colour: str = "cycles"
) -> Drawing:
    """The model's Blocks or modules, equal ones together: a row a rank.

    ``colour``: of `COLOURS`. Raises ValueError of another, and where the graph has no operator.
    """
    if colour not in COLOURS:
        raise ValueError(f"colour is {', '.join(COLOURS)}, not {colour!r}")
    graph = report.file.once(
        f"model_graph.static {direction}",
        lambda: model_graph.graph(report, (), direction, together=True),
    )
    if not graph.nodes:
        raise ValueError(f"{report.path}: no operator of the {direction}")
    made, _, words = elements(report, graph, None, colour, theme)
    nodes = [one["data"] for one in made if "path" in one["data"]][:_MOST_STATIC]
    place = {one["id"]: at for at, one in enumerate(nodes)}
    edges = [
        (place[one["data"]["source"]], place[one["data"]["target"]], one)
        for one in made
        if {one["data"].get("source"), one["data"].get("target")} <= set(place)
    ]
    rank = _ranks(sorted((a, b) for a, b, _ in edges if a < b), len(nodes))
    beside = np.bincount(rank, minlength=1)
    turn = np.array([(rank[:at] == rank[at]).sum() for at in range(len(nodes))])
    width = np.minimum(0.9 / beside, 0.4)[rank]
    x = (turn + 0.5) / beside[rank]
    shapes, notes, before = [], [], Counter[Any]()
    for a, b, one in edges:
        colour, thick = (theme.accent, 4) if one["classes"] == "copy" else (theme.muted, 1)
        line = {"color": colour, "width": thick, "dash": _DASHES.get(one["classes"], "solid")}
        (x0, y0), (x1, y1) = (x[a], rank[a] + 0.2), (x[b], rank[b] - 0.2)
        side = 0 if rank[b] == rank[a] + 1 else 1 if rank[b] > rank[a] else -1
        side = -abs(side) if one["classes"] == "tied" else side  # beside tensors that go on
        halfway = _around(a, b, side, rank, x, width, before)
        bend = (halfway - (x0 + x1) / 2) / 0.75
        way = f"M {x0},{y0} C {x0 + bend},{y0 + 0.3} {x1 + bend},{y1 - 0.3} {x1},{y1}"
        shapes.append({"type": "path", "path": way, "line": line, "layer": "below"})
        label = units.plain(one["data"]["label"]).replace("\n", "<br>")
        # of edges beside each other one behind the other
        at = 0.3 + 0.13 * ((before[side] - 1) % _TURNS) if side else 0.5
        there = (
            _on_curve(at, x0, x0 + bend, x1 + bend, x1),
            _on_curve(at, y0, y0 + 0.3, y1 - 0.3, y1),
        )
        notes += [note(*there, label, theme.muted, 10, bgcolor=theme.card)] if label else []
    for at, one in enumerate(nodes):
        ends = {"x0": x[at] - width[at] / 2, "x1": x[at] + width[at] / 2}
        ends |= {"y0": rank[at] - 0.2, "y1": rank[at] + 0.2}
        shapes.append({"type": "rect", **ends, "fillcolor": one["colour"], "line": {"width": 0}})
        text = units.plain(units.shortened(one["label"].replace("\n", " · "), int(150 * width[at])))
        notes.append(note(x[at], int(rank[at]), text, one["text"]))
    if more := len(graph.nodes) - len(nodes):
        words = f"and {units.count(more, 'node')}"
        notes.append(note(0.5, rank.max() + 0.4, words, theme.muted))
    hidden = {"visible": False, "fixedrange": True}
    rows = len(beside)
    legend = units.plain(words.rpartition(". ")[2]).replace(", from", ",<br>from")
    below: Any = {"xref": "paper", "yref": "paper", "yanchor": "top"}
    notes.append(note(0.5, 0, legend, theme.muted, **below))
    layout = theme.frame(
        _PITCH * rows + 52,
        margin={"l": 8, "r": 8, "t": 8, "b": 44},
        xaxis={**hidden, "range": [0, 1]},
        yaxis={**hidden, "range": [rows - 0.5, -0.5]},
        shapes=shapes,
        annotations=notes,
    )
    hover = units.as_array([units.plain(one["label"]).replace("\n", "<br>") for one in nodes])
    points = {"type": "scatter", "mode": "markers", "x": x, "y": rank, "marker": {"opacity": 0}}
    points |= {"customdata": hover, "hovertemplate": "%{customdata}<extra></extra>"}
    return Drawing([points], layout)


def _on_curve(at: float, *points: float) -> float:
    """A coordinate of a cubic curve, 0..1 of the way."""
    a, b, c, d = points
    rest = 1 - at
    return a * rest**3 + 3 * b * rest**2 * at + 3 * c * rest * at**2 + d * at**3


def _around(
    a: int,
    b: int,
    side: int,
    rank: np.ndarray,
    x: np.ndarray,
    width: np.ndarray,
    before: Counter[Any],
) -> float:
    """Where an edge of `static` passes halfway: beside the rows between its ends, and others.

    ``side``: -1 left, 1 right of these rows; 0 has none between.
    """
    key = side or (a, b)
    turn, before[key] = before[key] % _TURNS, before[key] + 1
    if not side:
        return float((x[a] + x[b]) / 2 + 0.15 * turn)
    low, high = sorted((rank[a], rank[b]))
    passed = np.flatnonzero((rank > low) & (rank < high)) if high > low + 1 else np.array([a, b])
    edge = (side * x[passed] + width[passed] / 2).max()
    return float(np.clip(side * (edge + 0.1 + 0.05 * turn), 0.1, 0.9))


def elements(
    report: Report, graph: Graph, split: Assignment | None, colour: str, theme: Theme
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Nodes and edges for Cytoscape.js, their styles, and a sentence for below.

    ``split``: the stage of each Block, and its IPU; None without Blocks: the profile's stages.
    """
    stage_of = None if split is None else split.stage_of(len(report.blocks))
    profiled = dict(zip(report.stages["stage"], report.stages["ipu"], strict=True))
    ipu_of = profiled if split is None else dict(enumerate(split.ipus))
    nodes: Sequence[Node] = graph.nodes[:_MOST_NODES]
    if colour == "waiting":
        nodes = model_graph.with_waiting(report, nodes)
    stages = [_stages(one, stage_of) for one in nodes]
    position = {one.path: at for at, one in enumerate(nodes)}
    fills, begins = _fills(nodes, stages, colour), blocks_to_begin(report)
    made = []
    for at, (one, of) in enumerate(zip(nodes, stages, strict=True)):
        above = position.get(one.path[:-1])
        data = {
            "id": f"n{at}",
            "label": _label(one, of, colour),
            "path": flame.id_of(one.path),
            "opens": one.opens,
            "first": one.blocks[0] if len(one.path) == 1 else -1,
            "colour": fills[at],
            "text": text_on(fills[at]),
            **({"parent": f"n{above}"} if above is not None else {}),
        }
        kind = "begins " * (".".join(one.path) in begins) + "opened" * (one.opened and one.opens)
        made.append({"data": data, "classes": kind})
    moved, copies = _moved(report), 0
    small, hidden = _small(graph), _hidden(graph)
    edges = {
        at: edge
        for at, edge in enumerate(graph.edges)
        if max(edge.source, edge.target) < len(nodes) and at not in hidden
    }
    cuts = _cuts(edges, nodes)
    for at, edge in edges.items():
        ends = [ipu_of.get(stages[end][k]) for end, k in ((edge.source, 1), (edge.target, 0))]
        across = ends[0] != ends[1] and edge.kind == model_graph.TENSOR
        copies += across
        data = {
            "id": f"e{at}",
            "source": f"n{edge.source}",
            "target": f"n{edge.target}",
            "label": _edge_label(edge, across, moved),
            "cut": cuts.get(at, -1),
        }
        kind = "copy" if across else "tied" if edge.kind == model_graph.TIED else ""
        if at in small:
            data["label"], kind = "", "small"
        made.append({"data": data, "classes": kind})
    summary = f"{units.count(len(nodes), 'node')}, {units.count(copies, 'edge')} between IPUs"
    inside = {} if split is None else set(split.starts[1:]) - {one.blocks[0] for one in nodes}
    if inside:
        summary += f"; {units.count(len(inside), 'border')} of stages within equal layers"
    if not nodes:
        summary = "No operator of that direction is in this profile"
    if len(nodes) < len(graph.nodes):
        summary += f"; {len(graph.nodes) - len(nodes):,} nodes more are left out: close some"
    if hidden:
        summary += f"; {len(hidden):,} edges of under {_SMALL:.0%} of the largest are left out"
    return made, _styles(theme), f"{summary}. {_legend(nodes, colour)}"


def _small(graph: Graph) -> set[int]:
    """The edges that move next to nothing, as an attention mask for every layer."""
    sizes = [edge.bytes for edge in graph.edges if edge.kind == model_graph.TENSOR]
    least = _SMALL * max(sizes, default=0)
    return {at for at, edge in enumerate(graph.edges) if edge.bytes < least}


def _hidden(graph: Graph) -> set[int]:
    """Small edges that are left out, where they are many: not the largest of a node."""
    small, joined = _small(graph), set[int]()
    if len(small) <= _MOST_PALE:
        return joined
    hidden = set()
    for at, edge in sorted(
        enumerate(graph.edges), key=lambda one: (one[0] in small, -one[1].bytes)
    ):
        ends = {edge.source, edge.target}
        hidden |= {at} if at in small and ends <= joined else set()
        joined |= ends
    return hidden


def _cuts(edges: Mapping[int, Edge], nodes: Sequence[Node]) -> dict[int, int]:
    """The Block before which a border of stages cuts an edge, for the edges that show borders.

    Of those into a Block it is the one from the last Block before it, and of these the largest.
    """
    best: dict[int, tuple[int, int, int]] = {}
    for at, edge in edges.items():
        early, late = sorted((nodes[edge.source].blocks, nodes[edge.target].blocks))
        if edge.kind == model_graph.TENSOR and 0 <= early[1] < late[0]:
            best[late[0]] = max(best.get(late[0], (-1, 0, 0)), (early[1], edge.bytes, at))
    return {at: block for block, (_, _, at) in best.items()}


def _stages(one: Node, stage_of: Sequence[int] | None) -> tuple[int, int]:
    """The first and the last stage of a node, in the split that is shown."""
    if stage_of is None or one.blocks[0] < 0:
        return one.stages
    return stage_of[one.blocks[0]], stage_of[one.blocks[1]]


def _fills(nodes: Sequence[Node], stages: Sequence[tuple[int, int]], colour: str) -> list[str]:
    if colour == "stage":
        share = np.array([first % _HUES / (_HUES - 1) for first, _ in stages])
    else:
        values = _values(nodes, colour)
        share = values / (values.max(initial=0) or 1.0)
    names = sample_colorscale("Viridis", (0.15 + 0.8 * share).tolist(), colortype="tuple")
    return ["#" + "".join(f"{round(255 * part):02x}" for part in one) for one in names]


def _values(nodes: Sequence[Node], colour: str) -> np.ndarray:
    """What nodes are coloured by; of equal layers together, what each has."""
    each = [one.count if colour in ("cycles", "bytes") else 1 for one in nodes]
    return np.array([float(getattr(one, colour, 0)) for one in nodes]) / each


def _legend(nodes: Sequence[Node], colour: str) -> str:
    """What the colours mean, in words."""
    if colour == "stage":
        return f"Colour: the first stage, {_HUES} colours in turn."
    values = _values(nodes, colour)
    if not values.any():
        return f"No colour: {_WHAT[colour]} is not in this profile."
    one = nodes[int(values.argmax())]
    name = units.shortened(one.path[-1], 18)
    most = {
        "cycles": f"{units.cycles(round(values.max()))} cycles",
        "bytes": units.size(round(values.max())),
        "waiting": f"{values.max():.0%} of the run",
        "uncertainty": _off(one),
    }
    return f"Colour: {_WHAT[colour]}, from none (dark) to {most[colour]} (bright, {name})."


def _off(one: Node) -> str:
    return units.minus(span(one.low, one.high))


def _label(one: Node, stages: tuple[int, int], colour: str) -> str:
    name = one.path[-1] + (f" × {one.count}" if one.count > 1 else "")
    first, last = stages
    where = f"stage {first}" if first == last else f"stages {first} to {last}"
    cost = f"{units.cycles(one.cycles)} cycles"
    shown = {"waiting": f"{one.waiting:.0%} waiting", "bytes": units.size(one.bytes)}
    shown["uncertainty"] = _off(one) or cost
    return f"{name}\n{where}\n{shown.get(colour, cost)}"


def _edge_label(edge: Edge, across: bool, moved: dict[int, int]) -> str:
    shapes = "\n".join(edge.shapes[:2]) + (f" + {len(edge.shapes) - 2}" * (len(edge.shapes) > 2))
    if edge.kind == model_graph.TIED:
        return f"tied weight {shapes}"
    if not across:
        return shapes
    cycles = sum(moved.get(one, 0) for one in edge.tensors)
    took = f", {units.cycles(cycles)} cycles" if cycles else ""
    return f"{shapes}\n{units.size(edge.bytes)}{took}"


def _moved(report: Report) -> dict[int, int]:
    """Cycles of one step that copies a tensor between IPUs, as profiled, by tensor."""
    moves = report.sequence.moved_tensors
    moves = moves[(moves["source"] >= 0) & (moves["target"] >= 0)]
    first = moves.drop_duplicates("tensor")
    steps, spent = map(report.sequence.steps_in_order, ("step", "cycles"))
    cycles = looked_up(first["step"].to_numpy(), steps, spent, 0)
    return dict(zip(first["tensor"].tolist(), cycles.tolist(), strict=True))


def _styles(theme: Theme) -> list[dict[str, Any]]:
    rules = {
        "node": "label: data(label); text-wrap: wrap; text-valign: center; shape: round-rectangle;"
        "width: 120; height: 54; font-size: 12; background-color: data(colour); color: data(text)",
        ":parent, .opened": f"background-color: {theme.page}; color: {theme.text};"
        f"text-valign: top; border-width: 1; border-color: {theme.muted}",
        "edge": f"label: data(label); text-wrap: wrap; font-size: 10; color: {theme.muted};"
        "text-margin-y: -14; events: no;"
        f"text-background-color: {theme.card}; text-background-opacity: 1; curve-style: bezier;"
        f"target-arrow-shape: triangle; width: 1; line-color: {theme.muted};"
        f"target-arrow-color: {theme.muted}",
        ".begins": f"border-width: 4; border-color: {theme.accent}",
        ".small": "opacity: 0.25",
        ".copy": f"width: 5; line-color: {theme.accent}; target-arrow-color: {theme.accent}",
        ".tied": "line-style: dashed; target-arrow-shape: none",
    }
    styles = []
    for of, rule in rules.items():
        parts = (one.partition(":") for one in rule.split(";"))
        styles.append({"selector": of, "style": {a.strip(): b.strip() for a, _, b in parts}})
    return styles
