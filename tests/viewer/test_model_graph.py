"""The model as a graph: nodes add up, edges are the tensors, its figure is the viewer's graph."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec.json import decode as json_of

import ipu_exec
from ipuscope.planner.costs import without_blocks
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.profiler import Report, analysis, open_report
from ipuscope.profiler.analysis import model_graph
from ipuscope.profiler.analysis.model_graph import TENSOR, TIED
from ipuscope.reports.cli import main
from ipuscope.viewer.figures import model_graph as figures
from ipuscope.viewer.figures.theme import LIGHT
from ipuscope.viewer.pages import model_graph as page
from ipuscope.viewer.pages.common import View
from ipuscope.viewer.profiles import Profiles
from tests import model_explorer
from tests.compiling import compiled
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def report(demo: Path) -> Report:
    return open_report(demo / "training")


def test_nodes_add_up_and_edges_have_the_tensors(report: Report) -> None:
    graph, ops = model_graph.graph(report), analysis.operators(report)
    forward = ops[ops["direction"] == "forward"]
    assert [one.path for one in graph.nodes] == [("B1",), ("B2",), ("B3",), ("B4",)]
    assert sum(one.cycles for one in graph.nodes) == forward["total_cycles"].sum()
    assert [(e.source, e.target, e.shapes) for e in graph.edges] == [
        (0, 1, ("[40, 10, 12, 12]",)),
        (1, 2, ("[40, 20, 4, 4]",)),
        (2, 3, ("[40, 256]",)),
    ]
    assert [edge.bytes for edge in graph.edges] == [40 * 1440 * 4, 40 * 320 * 4, 40 * 256 * 4]
    backward = model_graph.graph(report, direction="backward")
    assert {(edge.source, edge.target) for edge in backward.edges} >= {(1, 0), (2, 1)} or {
        (backward.nodes[e.source].path, backward.nodes[e.target].path) for e in backward.edges
    } >= {(("B2",), ("B1",)), (("B3",), ("B2",))}


def test_an_opened_node_has_its_parts(report: Report) -> None:
    graph = model_graph.graph(report, [("B1",)])
    inside = [one for one in graph.nodes if one.path[:1] == ("B1",) and len(one.path) > 1]
    leaves = [
        one
        for one in inside
        if not one.opened and (*one.path,) not in {other.path[:-1] for other in inside}
    ]
    assert graph.nodes[0].opened and sum(one.cycles for one in leaves) == graph.nodes[0].cycles
    assert len(leaves) > 1
    again = model_graph.graph(report, [("gone",)])
    assert again == model_graph.graph(report)


def test_an_update_has_its_operators_and_waiting_is_that_of_the_ipus(report: Report) -> None:
    ops = analysis.operators(report)
    graph = model_graph.graph(report, [("B1",)], "update")
    own = ops[(ops["direction"] == "update") & (ops["block"] == 0)]
    assert graph.nodes[0].cycles == own["total_cycles"].sum() > 0
    table = report.cycle_proportions()
    shares = (table["idle"] / table["total"]).tolist()
    of_block = [shares[ipu] for ipu in report.blocks["ipu"]]
    graph = model_graph.graph(report)
    waits = [one.waiting for one in model_graph.with_waiting(report, graph.nodes)]
    assert waits == pytest.approx(of_block)
    drawn = figures.elements(report, graph, None, "waiting", LIGHT)[0]
    nodes = [one["data"] for one in drawn if "path" in one["data"]]
    labels = [f"{share:.0%} waiting" for share in of_block]
    assert [one["label"].rpartition("\n")[2] for one in nodes] == labels
    least, most = (of_block.index(one) for one in (min(of_block), max(of_block)))
    assert nodes[least]["colour"] != nodes[most]["colour"]


def test_uncertainty_is_the_same_in_sql_the_cli_the_viewer_and_notebooks(
    report: Report, demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Block's is that of its operators' cycles, each with the factors of its class."""
    asked = "SELECT c.value ->> '$.class', c.value ->> '$.low', c.value ->> '$.high' FROM meta m,"
    asked += " json_each(m.value, '$.operators') o JOIN json_each(m.value, '$.classes') c"
    asked += " ON c.key = o.value WHERE m.key = 'cycle_error' ORDER BY o.key"
    with sqlite3.connect(demo / "training" / "profile.pop") as file:
        of_sql = file.execute(asked).fetchall()
    assert main(["ops", "--json", str(report.path)]) == 0
    (page_of,) = json.loads(capsys.readouterr().out)
    ops = {one["op"]: one for one in page_of["ops"] if one["class"]}
    assert [(ops[k]["class"], ops[k]["low"], ops[k]["high"]) for k in sorted(ops)] == of_sql
    drawn, _, legend = figures.elements(
        report, model_graph.graph(report), None, "uncertainty", LIGHT
    )
    shown = [one["data"]["label"].rpartition("\n")[2] for one in drawn if "path" in one["data"]]
    for block, words in enumerate(shown):
        own = [o for o in ops.values() if o["block"] == block and o["direction"] == "forward"]
        cycles, most, least = (
            sum(one["total_cycles"] / by(one) for one in own)
            for by in (lambda _: 1, lambda one: one["low"], lambda one: one["high"])
        )
        assert words == f"−{1 - least / cycles:.0%} to +{most / cycles - 1:.0%}".replace(
            "% to", " to"
        )
    assert len(set(shown)) > 1 and "may be off on hardware, from none (dark) to −" in legend
    notes = [one.text for one in report.figures.graph(colour="uncertainty").layout.annotations]
    assert all(any(one.endswith(words) for one in notes) for words in shown)
    assert legend.endswith(notes[-1].replace("<br>", " "))


def test_older_profiles_say_that_uncertainty_is_not_in_them(tmp_path: Path) -> None:
    with open_report(synthetic_profile(tmp_path / "profile.pop")) as old:
        graph = model_graph.graph(old)
        drawn, _, legend = figures.elements(old, graph, None, "uncertainty", LIGHT)
    assert legend.endswith(
        "No colour: how far cycles may be off on hardware is not in this profile."
    )
    assert {one["data"]["label"].rpartition(" ")[2] for one in drawn if "path" in one["data"]} == {
        "cycles"
    }


class _Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, 16)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(6))
        self.head = torch.nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x).square().mean() + tokens.flatten().float().mean()


def test_a_model_without_blocks_is_told_where_they_could_begin(tmp_path: Path) -> None:
    """The lines, written into the script, make that many stages of like cycles."""
    tokens = torch.zeros(2, 8, dtype=torch.long)
    options = ipu_exec.Options().enableProfiling(tmp_path / "one")
    compiled(_Layers(), tokens, options=options)
    report = open_report(tmp_path / "one" / "training")
    begins = without_blocks.blocks_to_begin(report)
    assert len(begins) == 4 and begins[0] == "embed" and begins[1].startswith("layers.")
    shown = str(page.card(View(Profiles([report]), "rebalance", {}, LIGHT), borders=False))
    model = _Layers()
    for ipu, name in enumerate(begins):
        line = without_blocks.block_line(name, ipu)
        assert line in shown
        exec(line, {"poptorch": ipu_exec, "model": model})
    options = ipu_exec.Options().enableProfiling(tmp_path / "four")
    options.Training.gradientAccumulation(8)
    compiled(model, tokens.repeat(8, 1), options=options)
    split = open_report(tmp_path / "four" / "training")
    assert split.blocks["name"].tolist() == [*begins] and len(split.stages) == 4
    assert without_blocks.blocks_to_begin(split) == ()
    flows = model_graph.flows(split, "forward")  # the last stage's view makes no tokens
    assert len(flows) and (flows["source"] < flows["target"]).all()
    graph = model_graph.graph(report, [("embed",)])
    drawn = figures.elements(report, graph, None, "stage", LIGHT)[0]
    bold = {n["data"]["label"].split("\n")[0] for n in drawn if "begins" in n.get("classes", "")}
    assert bold == {*begins}


def test_equal_blocks_are_one_and_repeats_are_found() -> None:
    assert model_graph._repeats(["a", "b", "b", "b", "c"], 1) == (1, 3)
    assert model_graph._repeats(["a", "b", "a", "b", "a", "b", "c"], 0) == (2, 3)
    assert model_graph._repeats(["a", "b", "c"], 0) == (1, 1)


def test_notebooks_have_the_same_graph_as_a_figure(report: Report) -> None:
    drawn = report.figures.graph()
    kinds = [one.type for one in drawn.layout.shapes]
    assert (kinds.count("rect"), kinds.count("path")) == (4, 3)
    words = [one.text for one in drawn.layout.annotations]
    assert any(one.startswith("B2 · stage 1 · ") for one in words)
    assert any(one.startswith("[40, 20, 4, 4]<br>50.0 KiB") for one in words)


def test_copies_follow_the_split_that_is_shown(report: Report) -> None:
    graph = model_graph.graph(report)
    two = Assignment((0, 2), (0, 1))
    drawn, _, said = figures.elements(report, graph, two, "cycles", LIGHT)
    edges = [one for one in drawn if "source" in one["data"]]
    assert [one["classes"] for one in edges] == ["", "copy", ""]
    assert "50.0 KiB" in edges[1]["data"]["label"] and "cycles" in edges[1]["data"]["label"]
    assert said.startswith("4 nodes, 1 edge between IPUs. Colour: cycles of an update, from none")
    nodes = [one["data"] for one in drawn if "path" in one["data"]]
    assert ["stage 0" in one["label"] for one in nodes] == [True, True, False, False]
    assert page.toggled(page.toggled("", "B1"), "B1") == ""


def test_edges_of_next_to_nothing_leave_room_for_the_others(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an attention mask that every layer reads."""
    graph, two = model_graph.graph(report), Assignment((0, 2), (0, 1))
    mask = replace(graph.edges[0], source=0, target=3, bytes=1)
    one = replace(graph, edges=(*graph.edges, mask))
    assert len(figures.elements(report, one, two, "cycles", LIGHT)[0]) == 8
    many = replace(graph, edges=(*graph.edges, *[mask] * 9))
    drawn, _, said = figures.elements(report, many, two, "cycles", LIGHT)
    assert len(drawn) == 7 and "; 9 edges of under 1% of the largest are left out. " in said
    alone = replace(graph, edges=(graph.edges[0], *[mask] * 9))  # a node's only one stays
    drawn, _, said = figures.elements(report, alone, two, "cycles", LIGHT)
    assert [one["classes"] for one in drawn if "source" in one["data"]] == ["", "small"]


def test_a_tied_weight_is_an_edge_of_its_own(report: Report) -> None:
    flows = model_graph.flows(report, "forward")
    assert set(flows["kind"]) == {TENSOR}  # the demo has none
    one = flows.iloc[:1].assign(kind=TIED)
    node_of = {int(one["source"].iloc[0]): 0, int(one["target"].iloc[0]): 1}
    assert [edge.kind for edge in model_graph._edges(one, node_of)] == [TIED]


def test_model_explorer_reads_the_graph(report: Report, tmp_path: Path) -> None:
    """Fields, types and references of what it loads."""
    path = tmp_path / "model.json"
    assert main(["export", str(report.path), "--format", "model-explorer", "-o", str(path)]) == 0
    (graph,) = json_of(path.read_bytes(), type=model_explorer.GraphCollection).graphs
    nodes = {node.id: node for node in graph.nodes}
    assert len(nodes) == len(graph.nodes) == len(report.ops)
    for node in graph.nodes:
        assert len({one.key for one in node.attrs}) == len(node.attrs)
        assert [one.targetNodeInputId for one in node.incomingEdges] == [
            str(at) for at in range(len(node.incomingEdges))
        ]
        for edge in node.incomingEdges:
            source = nodes[edge.sourceNodeId]
            assert edge.sourceNodeOutputId in {one.id for one in source.outputsMetadata}
    assert any(node.incomingEdges for node in graph.nodes)
    assert {node.namespace.partition("/")[0] for node in graph.nodes} >= {"B1", "B4"}
    for name in ("total_cycles", "bytes"):
        written = (tmp_path / f"model.{name}.json").read_bytes()
        (data,) = json_of(written, type=dict[str, model_explorer.GraphNodeData]).items()
        assert data[0] == graph.id and data[1].results.keys() == nodes.keys()
        assert [data[1].gradient[at].stop for at in (0, -1)] == [0, 1]
        if name == "total_cycles":
            spent = sum(one.value for one in data[1].results.values())
            assert spent == analysis.operators(report)["total_cycles"].sum()
