"""The costs of the program tree's nodes, compared with the run and the stages."""

from __future__ import annotations

import numpy as np
import pytest

from ipuscope.profiler import open_report
from ipuscope.profiler.analysis import program_cycles
from ipuscope.profiler.analysis.program import depths, subtree_ends
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return synthetic_profile(tmp_path_factory.mktemp("program") / "profile.pop", runs=2)


def test_a_call_takes_as_long_as_its_run(path):
    report = open_report(path)
    cycles = program_cycles(report)
    roots = report.program["parent"].to_numpy() < 0
    assert cycles[roots].tolist() == [report.runs["cycles"][0]]


def test_repeats_count_and_ipus_that_work_at_once_do_not_add_up(path):
    report = open_report(path)
    cycles = dict(zip(report.program["id"], program_cycles(report), strict=True))
    tasks = report.tasks(0)
    steps = report.program_steps()
    for ipu in range(report.target.num_ipus):
        forward = tasks[(tasks["ipu"] == ipu) & (tasks["direction"] == "forward")]
        leaves = steps[(steps["ipu"] == ipu) & (steps["direction"] == "forward")]
        assert sum(cycles[leaf] for leaf in leaves["program"]) == forward["cycles"].sum() > 0
    for parent, children in report.program.groupby("parent"):
        if parent >= 0:
            parts = [cycles[id] for id in children["id"]]
            assert max(parts) <= cycles[parent] <= sum(parts)


def test_a_compiled_model_has_the_cycles_of_its_schedule(path, tmp_path):
    compiled = open_report(synthetic_profile(tmp_path / "profile.pop", runs=0))
    assert compiled.predicted
    assert program_cycles(compiled).tolist() == program_cycles(open_report(path)).tolist()


def test_ends_of_subtrees_by_hand():
    parents = np.array([-1, 0, 1, 1, 0, -1])
    assert subtree_ends(parents).tolist() == [5, 4, 3, 4, 5, 6]


def test_depths_by_hand():
    assert depths(np.array([-1, 0, 1, 1, 0, -1])).tolist() == [0, 1, 2, 2, 1, 0]
    assert depths(np.zeros(0, dtype=np.int64)).tolist() == []
    chain = np.arange(-1, 999)
    assert depths(chain).tolist() == list(range(1000))
    assert subtree_ends(chain).tolist() == [1000] * 1000
