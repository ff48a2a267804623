"""Analysis and insights, held against the frames and the schedule they are made from."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from profiler import Report, analysis, open_report
from profiler.insights import insights
from profiler.rebalance import Assignment, Costs, what_if
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def report(demo: Path) -> Report:
    return open_report(demo / "training")


def test_the_pace_is_the_runs(report: Report) -> None:
    pace = analysis.pace(report)
    run = report.runs.iloc[0]
    assert pace.cycles * run["iterations"] == run["cycles"]
    assert pace.micro_batches == report.options["Training.gradientAccumulation"]
    samples = pace.micro_batches * report.meta["micro_batch"]
    assert pace.samples_per_second == pytest.approx(samples / (pace.cycles / report.target.clock_hz))
    assert analysis.pace(report, 99).cycles == 0


def test_operators_add_up_to_their_steps(report: Report) -> None:
    ops = analysis.operators(report)
    steps = report.program_steps()
    assert ops["share"].sum() == pytest.approx(1)
    assert ops["cycles"].is_monotonic_decreasing
    exchanged = steps.loc[(steps["op"] >= 0) & (steps["direction"] != "recompute"), "bytes_in"].sum()
    assert ops["exchanged"].sum() == exchanged
    assert ops["balance"].dropna().between(0, 1).all()
    assert (ops["lost_cycles"] >= 0).all()


def test_a_report_compared_with_itself_does_not_differ(report: Report) -> None:
    assert (analysis.compare(report, report)["difference"] == 0).all()
    ops = analysis.compare_ops(report, report)
    assert len(ops) == len(report.ops)
    assert (ops["difference"] == 0).all()
    assert (ops["ratio"].dropna() == 1).all()


def test_operators_of_two_reports_are_matched_by_name(report: Report, demo: Path) -> None:
    other = open_report(demo / "inference")
    ops = analysis.compare_ops(report, other)
    assert ops["cycles_a"].sum() == report.ops["cycles"].sum()
    assert ops["cycles_b"].sum() == other.ops["cycles"].sum()
    only = ops[ops["stage_b"] == -1]
    assert len(only) == len(ops) - len(other.ops)
    assert ops["difference"].abs().is_monotonic_decreasing


def test_insights_are_ordered_by_gain_and_lead_somewhere(report: Report) -> None:
    found = insights(report)
    assert len(found) >= 3
    gains = [one.gain_cycles for one in found]
    assert gains == sorted(gains, reverse=True)
    for one in found:
        assert one.where.startswith("/")
        assert any(character.isdigit() for character in one.title + one.detail)
        assert one.action


def test_the_gain_of_a_split_is_what_the_schedule_says(report: Report) -> None:
    found = next(one for one in insights(report) if one.where.startswith("/rebalance?"))
    starts = tuple(int(first) for first in found.where.split("=")[1].split(","))
    costs = Costs.from_report(report)
    now = what_if(costs, Assignment.of(costs.stage.tolist(), costs.ipus))
    then = what_if(costs, Assignment(starts, tuple(range(len(starts)))))
    assert found.gain_cycles == now.total - then.total


def test_an_overflow_comes_first_and_names_the_tile(tmp_path: Path) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with closing(sqlite3.connect(path)) as file:
        file.execute("update target set bytes_per_tile = 100000, region0_bytes = 50000")
        file.commit()
    report = open_report(path)
    first = insights(report)[0]
    assert "overflows" in first.title
    worst = max(int(report.tiles(ipu)["overflow"].max()) for ipu in range(4))
    assert worst in {one.gain_bytes for one in insights(report)}


def test_a_profile_without_runs_has_insights_of_its_memory(tmp_path: Path) -> None:
    report = open_report(synthetic_profile(tmp_path / "profile.pop", runs=0))
    found = insights(report)
    assert all(one.gain_cycles == 0 for one in found)
    assert any("tile" in one.title for one in found)
    assert analysis.waiting(report) == 0


def test_vertices_on_a_tile_are_those_of_its_steps(report: Report) -> None:
    found = report.tile_vertices(1, 20)
    steps = report.program_steps(1)
    sets = steps[steps["kind"] == "compute"]
    assert found["compute_sets"].max() <= len(sets)
    assert set(found["vertex_type"]) <= {
        name for step in sets["step"] for name in report.vertices(int(step))["vertex_type"]
    }
    assert (found["count"] > 0).all()
    assert np.issubdtype(found["count"].dtype, np.integer)
    with pytest.raises(IndexError, match="tiles 0 to"):
        report.tile_vertices(0, 5000)
