"""Trees of cycles and bytes: sums are exact at every node, however they are ordered or drawn."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from ipuscope.profiler import Report, open_report
from ipuscope.profiler.analysis import hierarchy
from ipuscope.profiler.analysis.hierarchy import Node
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return open_report(synthetic_profile(tmp_path_factory.mktemp("tree") / "profile.pop"))


def busy(report: Report) -> int:
    """Cycles of a device iteration in which IPUs are not waiting."""
    spent = report.cycle_proportions(0)
    iterations = int(report.runs["iterations"].iloc[0])
    return int((spent["total"] - spent["idle"]).sum()) // iterations


def sums_hold(nodes: dict[hierarchy.Path, Node], leaves: pd.DataFrame) -> bool:
    """Whether each node is the sum of its children and of the leaves that end there."""
    expected = leaves.groupby("path")["value"].sum().to_dict()
    for path, node in nodes.items():
        if path:
            expected[path[:-1]] = expected.get(path[:-1], 0) + node.value
    return {path: node.value for path, node in nodes.items()} == expected


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("order", hierarchy.ORDERS)
def test_cycles_add_up_to_what_the_ipus_are_busy_for(
    report: Report, order: str, together: bool
) -> None:
    leaves = hierarchy.leaves_of_cycles(report, order, together)
    nodes = hierarchy.tree(leaves)
    assert nodes[()].value == leaves["value"].sum() == busy(report)
    assert sums_hold(nodes, leaves)


@pytest.mark.parametrize("order", hierarchy.ORDERS)
def test_bytes_add_up_to_each_ipus_peak(report: Report, order: str) -> None:
    nodes = hierarchy.tree(hierarchy.leaves_of_bytes(report, order))
    peaks = [
        int(report.liveness(ipu)["total"].max()) for ipu in range(report.target.ipus_per_replica)
    ]
    assert nodes[()].value == sum(peaks)


def made(**values: int) -> pd.DataFrame:
    paths = [tuple(name.split("_")) for name in values]
    return pd.DataFrame({"path": paths, "value": list(values.values()), "kind": "forward"})


def test_a_difference_is_as_wide_as_the_larger_of_the_two() -> None:
    nodes = hierarchy.tree(made(a_x=10, a_y=5), made(a_x=4, b=7))
    assert (nodes["a",].value, nodes["a",].before, nodes["a",].width) == (15, 4, 15)
    assert (nodes["b",].value, nodes["b",].before, nodes["b",].width) == (0, 7, 7)
    assert nodes[()].width == 22


def test_what_is_too_narrow_is_summed_up_by_its_parent() -> None:
    nodes = hierarchy.tree(made(a_x=900, a_y=60, b_1=30, b_2=10))
    shown = hierarchy.visible(nodes, (), 0.05)
    assert [one.path for one in shown] == [
        (),
        ("a",),
        ("1 smaller",),
        ("a", "x"),
        ("a", "y"),
    ]
    assert [one.value for one in shown] == [1000, 960, 40, 900, 60]
    inside = hierarchy.visible(nodes, ("b",), 0.05)
    assert [one.path for one in inside] == [(), ("b",), ("b", "1"), ("b", "2")]


def test_layers_are_taken_together_by_their_number_only() -> None:
    assert hierarchy._module("layer.3.attention") == ("layer.3", "attention")
    assert hierarchy._module("layer/3/attention") == ("layer.3", "attention")
    table = pd.DataFrame(
        {
            "module": ["layer.3.dense", "layer.12.dense", "head2"],
            "operator": ["layer.3/dense/mm", "layer/12/dense/mm", "head2/mm_1"],
            "otherwise": "",
            "block": ["layer3", "layer12", "B1"],
        }
    )
    for dimension, names in (
        ("module", [("layer.*", "dense"), ("layer.*", "dense"), ("head2",)]),
        ("operator", [("mm",), ("mm",), ("mm_1",)]),
        ("block", [("layer*",), ("layer*",), ("B1",)]),
    ):
        assert hierarchy._names(dimension, table, together=True) == names


def test_copies_of_stages_are_taken_together_with_their_layers() -> None:
    """They have no operator: GPT-3's 2,082 streams were all narrower than a pixel."""
    table = pd.DataFrame(
        {"operator": ["stage 4 forward/load", "stage 12 forward/load"], "module": ["", ""]}
    )
    assert hierarchy._names("operator", table, together=True) == [("stage * forward/load",)] * 2


def test_a_profile_without_runs_has_its_predicted_cycles(tmp_path: Path) -> None:
    compiled = open_report(synthetic_profile(tmp_path / "compiled.pop", runs=0))
    ran = open_report(synthetic_profile(tmp_path / "ran.pop", runs=1))
    totals = [
        hierarchy.tree(hierarchy.leaves_of_cycles(one, "module"))[()].value
        for one in (compiled, ran)
    ]
    assert totals[0] == totals[1] > 0
