"""Analyses and insights, compared with the frames and the schedule they are made from."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import ipu_exec
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import insights
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler import Report, analysis, open_report, units
from ipuscope.profiler.analysis.hierarchy import cycles_by_step
from tests.models import Mlp
from tests.planner.rebalance.cases import deep
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
    assert pace.samples_per_second == pytest.approx(
        samples / (pace.cycles / report.target.clock_hz)
    )
    assert analysis.pace(report, 99).cycles == 0


def test_operators_add_up_to_their_steps(report: Report) -> None:
    ops = analysis.operators(report)
    steps = report.program_steps()
    assert ops["share"].sum() == pytest.approx(1)
    assert ops["total_cycles"].is_monotonic_decreasing
    assert (ops["total_cycles"] == ops["cycles"] * ops["executions"]).all()
    exchanged = steps.loc[
        (steps["op"] >= 0) & (steps["direction"] != "recompute"), "bytes_in"
    ].sum()
    assert ops["exchanged"].sum() == exchanged
    assert ops["balance"].dropna().between(0, 1).all()
    assert (ops["lost_cycles"] >= 0).all()


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_operators_add_up_to_the_executed_trace(demo: Path, kind: str) -> None:
    """By operator: its executions, running it again, and the stash that it writes and reads."""
    report = open_report(demo / kind)
    executed = report.steps(0, iteration=0)
    executed = executed[executed["op"] >= 0]
    purpose = report.program_steps().set_index("step")["purpose"].reindex(executed["step"])
    stash = executed[purpose.isin(["stash", "restore"]).to_numpy()]
    ops = analysis.operators(report)
    took = ops["total_cycles"] + ops["recompute_cycles"]
    took = took.add(stash.groupby("op")["cycles"].sum(), fill_value=0)
    of_trace = executed.groupby("op")["cycles"].sum().reindex(ops.index).fillna(0)
    assert (took.reindex(ops.index) == of_trace).all()
    of_flames = cycles_by_step(report)
    assert of_trace.sum() == of_flames.loc[of_flames["op"] >= 0, "cycles"].sum()


def test_operators_of_a_profile_without_a_schedule_have_no_executions(tmp_path: Path) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with closing(sqlite3.connect(path)) as file:
        file.execute("DELETE FROM runs")
        file.execute("DELETE FROM traces")
        file.commit()
    ops = analysis.operators(open_report(path))
    assert not ops["executions"].any() and not ops["total_cycles"].any()
    assert ops["cycles"].is_monotonic_decreasing and ops["cycles"].any()


def test_a_report_compared_with_itself_does_not_differ(report: Report) -> None:
    assert (analysis.compare(report, report)["difference"] == 0).all()
    ops = analysis.compare_ops(report, report)
    assert len(ops) == len(report.ops)
    assert (ops["difference"] == 0).all()
    assert (ops["ratio"].dropna() == 1).all()
    assert ops["total_cycles_a"].is_monotonic_decreasing and ops["total_cycles_a"].any()


def test_operators_of_two_reports_are_matched_by_name(report: Report, demo: Path) -> None:
    other = open_report(demo / "inference")
    ops = analysis.compare_ops(report, other)
    assert ops["cycles_a"].sum() == report.ops["cycles"].sum()
    assert ops["cycles_b"].sum() == other.ops["cycles"].sum()
    only = ops[ops["stage_b"].isna()]
    assert len(only) == len(ops) - len(other.ops)
    assert ops["difference"].abs().is_monotonic_decreasing
    totals = [analysis.operators(one)["total_cycles"].sum() for one in (report, other)]
    assert ops["difference"].sum() == totals[1] - totals[0]


def test_insights_are_ordered_by_gain_and_lead_somewhere(report: Report) -> None:
    ordered = insights(report)
    assert len(ordered) >= 3
    gains = [one.gain_cycles for one in ordered if not one.changes_batch and not one.remainder]
    assert gains == sorted(gains, reverse=True)
    for one in ordered:
        assert one.where.startswith("/")
        assert any(character.isdigit() for character in one.title + one.detail)
        assert one.action


def test_the_gain_of_a_split_is_what_the_schedule_says(tmp_path: Path) -> None:
    report = deep(tmp_path, {"a": 3, "b": 1, "c": 1}, [("a", "b"), ("c",)])
    insight = next(one for one in insights(report) if one.where.startswith("/rebalance?"))
    starts = tuple(int(first) for first in insight.where.split("=")[1].split(","))
    costs = Costs.from_report(report)
    now = what_if(costs, Assignment.of(costs.stage.tolist(), costs.ipus))
    then = what_if(costs, Assignment(starts, tuple(range(len(starts)))))
    assert insight.gain_cycles == now.total - then.total


def test_where_no_split_is_better_the_gain_of_smaller_blocks_is_the_schedules(
    tmp_path: Path,
) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    options.showCompilationProgressBar(False).deviceIterations(16)
    ipu_exec.inferenceModel(Mlp([2048, 2048, 1024]), options)(torch.randn(16 * 64, 2048))
    uneven = open_report(tmp_path / "inference")
    insight = next(one for one in insights(uneven) if "the mean stage" in one.title)
    assert "No better split of these Blocks was found" in insight.detail
    assert "ipu-report ops" in insight.action
    assert f"about {insight.gain_cycles:,} cycles less" in insight.detail
    costs = Costs.from_report(uneven)
    mean = np.full_like(costs.cycles.forward, costs.cycles.forward.mean())
    even = replace(costs, cycles=replace(costs.cycles, forward=mean))
    split = Assignment.of(costs.stage.tolist(), costs.ipus)
    saved = what_if(costs, split).total - what_if(even, split).total
    assert insight.gain_cycles == pytest.approx(saved, rel=0.01)


def test_what_optimiser_state_off_the_chip_costs_is_said(tmp_path: Path) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    with closing(sqlite3.connect(path)) as file:
        file.execute("update target set bytes_per_tile = 300000, region0_bytes = 150000")
        file.execute("update variables set role = 'optimiser state' where role = 'weight'")
        file.commit()
    report = open_report(path)
    about_state = [one for one in insights(report) if one.title.startswith("optimiser state")]
    states = report.variables.query("role == 'optimiser state'").groupby("ipu")
    # each IPU has its part of a machine's 20 GB/s; a transfer a weight each way has a begin and an
    # end of 257 cycles
    held, weights = (
        states["bytes"].sum(),
        states["name"].agg(lambda names: names.str.rpartition("/")[0].nunique()),
    )
    cycles = (2 * held / 5e9 * report.target.clock_hz + 2 * weights * 2 * 257).max()
    about, _, rest = about_state[0].detail.partition(" of the IPU with most would cost ")
    assert about.endswith(f" {units.size(held.max())}")
    assert int(rest.partition(" ")[0].replace(",", "")) == pytest.approx(cycles, rel=1e-3)
    assert about_state[0].action.startswith("Leave it on the chip")


def test_a_profile_without_a_schedule_has_insights_of_its_memory(tmp_path: Path) -> None:
    path = synthetic_profile(tmp_path / "profile.pop", runs=0)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM traces")
    report = open_report(path)
    of_memory = insights(report)
    assert any("tile" in one.title for one in of_memory)
    assert analysis.waiting(report) == 0
    assert not report.predicted
    assert not len(report.runs)


def test_a_model_that_was_only_compiled_has_the_insights_of_its_run(tmp_path: Path) -> None:
    """``ipu-run --compile-only`` is enough: the schedule knows what a run takes."""
    by_page = []
    for name, calls in (("compiled", False), ("ran", True)):
        options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path / name)
        options.showCompilationProgressBar(False).Training.gradientAccumulation(8)
        model = Mlp([1024] * 5, [0, 0, 0, 1])
        executor = ipu_exec.trainingModel(
            model, options, ipu_exec.optim.SGD(model.parameters(), lr=0.1)
        )
        batch = torch.randn(8 * 32, 1024), torch.randn(8 * 32, 1024)
        executor(*batch) if calls else executor.compile(*batch)
        report = open_report(tmp_path / name / "training")
        assert report.predicted != calls
        assert len(report.runs) == 1
        by_page.append({one.where.split("?")[0]: one for one in insights(report)})
    compiled, ran = by_page
    assert compiled.keys() == ran.keys() >= {"/rebalance", "/timeline"}
    for where, one in compiled.items():
        assert one.gain_cycles == pytest.approx(ran[where].gain_cycles, rel=0.02)
        assert one.action == ran[where].action


def test_vertices_on_a_tile_are_those_of_its_steps(report: Report) -> None:
    vertices = report.tile_vertices(1, 20)
    steps = report.program_steps(1)
    sets = steps[steps["kind"] == "compute"]
    assert vertices["compute_sets"].max() <= len(sets)
    assert set(vertices["vertex_type"]) <= {
        name for step in sets["step"] for name in report.vertices(int(step))["vertex_type"]
    }
    assert (vertices["count"] > 0).all()
    assert np.issubdtype(vertices["count"].dtype, np.integer)
    with pytest.raises(IndexError, match="tiles 0 to"):
        report.tile_vertices(0, 5000)


def test_the_roofline_by_hand(report: Report) -> None:
    frame = analysis.roofline(report)
    op = report.ops.index[report.ops["name"] == "layer2/conv/convolution"][0]
    row = frame.loc[op]
    assert row["dtype"] == "float32"
    assert (
        row["peak"] == 2 * 16 * 1472
    )  # 16 multiply-accumulates a tile and cycle in single precision
    assert row["utilisation"] == pytest.approx(
        report.ops.loc[op, "flops"] / report.ops.loc[op, "cycles"] / row["peak"]
    )
    steps = report.program_steps()
    steps = steps[(steps["op"] == op) & (steps["direction"] == "forward")]
    assert row["intensity"] == pytest.approx(report.ops.loc[op, "flops"] / steps["bytes_in"].sum())
    assert row["roof"] == pytest.approx(min(row["peak"], row["intensity"] * 4 * 1472))
    assert row["bound"] == ("compute" if row["intensity"] * 4 * 1472 >= row["peak"] else "exchange")
    spent = row["compute_cycles"] + row["exchange_cycles"] + row["sync_cycles"]
    assert spent == report.ops.loc[op, "cycles"] == steps["cycles"].sum()
    assert (frame["utilisation"].dropna() <= 1).all()


def test_movement_is_what_the_steps_move(report: Report) -> None:
    frame = analysis.movement(report)
    between = frame[frame["kind"] == "global exchange"]
    assert between["bytes_in"].sum() == between["bytes_out"].sum() > 0, (
        "what one IPU sends, another receives"
    )
    micro_batches = analysis.pace(report).micro_batches
    inputs = report.blocks["input_bytes"].sum() * micro_batches
    assert frame[frame["kind"] == "host I/O"]["bytes_in"].sum() == inputs
    cycles = report.cycle_proportions(0).set_index("ipu")
    iterations = report.runs["iterations"].iloc[0]
    for row in frame.itertuples():
        assert row.cycles * iterations == cycles.loc[row.ipu, row.kind]


def test_a_compiled_profile_predicts_what_the_run_then_takes(tmp_path: Path) -> None:
    """Every frame of cycles equals that of the first run; only the run's name differs."""
    compiled = open_report(synthetic_profile(tmp_path / "compiled.pop", runs=0))
    ran = open_report(synthetic_profile(tmp_path / "ran.pop", runs=2))
    assert (compiled.predicted, ran.predicted) == (True, False)
    assert compiled.runs["name"].tolist() == ["one call, predicted"]
    assert compiled.runs["cycles"].tolist() == ran.runs["cycles"].tolist()[:1]
    for name in ("tasks", "steps", "pipeline_cycles", "cycle_proportions"):
        pd.testing.assert_frame_equal(getattr(compiled, name)(0), getattr(ran, name)(0))
    assert analysis.pace(compiled) == analysis.pace(ran)
    assert analysis.waiting(compiled) == analysis.waiting(ran) > 0
    with pytest.raises(IndexError, match="holds runs 0 to 0, not run 1"):
        compiled.tasks(1)


def test_what_of_the_difference_came_from_where_adds_up(tmp_path: Path) -> None:
    """It adds up to the difference of the updates, per sample if they differ in samples."""
    a = open_report(synthetic_profile(tmp_path / "a.pop"))
    b = open_report(synthetic_profile(tmp_path / "b.pop", seed=3))
    waits = analysis.compare_waits(a, b)
    updates = [analysis.pace(report).cycles for report in (a, b)]
    assert waits["cycles_a"].sum() == updates[0]
    assert waits["cycles_b"].sum() == updates[1]
    assert waits["difference"].sum() == updates[1] - updates[0]
    assert waits["share"].sum() == pytest.approx(1)
    assert (waits["difference"].abs().diff().dropna() <= 0).all()
    at: tuple[str, ...] = ()
    for _ in ("cause", "module", "IPU"):  # each level is a part of the one above
        parts = analysis.compare_paths(a, b, at)
        assert parts["difference"].sum() == waits["difference"].sum()
        name, change = parts.loc[0, ["name", "difference"]]
        at, waits = (*at, str(name)), parts.assign(difference=[change] + [0] * (len(parts) - 1))
    same = analysis.compare_waits(a, a)
    assert not same["difference"].any()
    assert same["share"].isna().all()
