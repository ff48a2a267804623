"""Pipeline cycles and bubbles read from a trace, compared with the closed forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ipuscope.profiler import Report, open_report
from ipuscope.profiler.analysis import pipeline
from ipuscope.profiler.timeline import closed_forms
from ipuscope.reports.cli.pipeline import _why
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return open_report(synthetic_profile(tmp_path_factory.mktemp("pipeline") / "profile.pop"))


@pytest.mark.parametrize(("ipus", "micro_batches"), [(2, 3), (4, 10), (5, 9)])
def test_the_slot_bubble_is_its_closed_form(tmp_path: Path, ipus: int, micro_batches: int) -> None:
    report = open_report(
        synthetic_profile(tmp_path / "profile.pop", ipus=ipus, micro_batches=micro_batches)
    )
    bubble = pipeline.bubble(report)
    assert bubble.slot_measured == pytest.approx(closed_forms.slot_bubble(ipus, micro_batches))
    assert bubble.slot_closed_form == pytest.approx(bubble.slot_measured)
    assert bubble.micro_batches == micro_batches


def test_the_time_bubble_is_what_stages_ramps_and_transfers_leave(report: Report) -> None:
    bubble, stages = pipeline.bubble(report), report.stages
    cycles = report.pipeline_cycles()
    cycles = cycles[cycles["phase"] != "update"]
    work = 10 * int((stages["forward_cycles"] + stages["backward_cycles"]).sum())
    assert bubble.time_measured == pytest.approx(1 - work / (4 * cycles["cycles"].sum()))
    # Without transfers it would be the closed form's: the worked example's way, from the stages'
    # own cycles.
    exact = closed_forms.training_cycles(
        stages["forward_cycles"].tolist(), stages["backward_cycles"].tolist(), 10
    )
    assert bubble.time_of_stages == pytest.approx(1 - work / (4 * exact))
    assert bubble.time_balanced < bubble.time_of_stages < bubble.time_measured
    assert bubble.time_balanced == pytest.approx(3 / 13)


def test_a_pipeline_cycle_is_its_parts(report: Report) -> None:
    table = pipeline.cycle_table(report)
    parts = table[["work_cycles", "copy_cycles", "sync_cycles", "host_cycles"]].sum(axis=1)
    np.testing.assert_array_equal(parts, table["cycles"])
    pipelined = table[table["phase"] != "update"]
    assert set(pipelined["copy_cycles"]) == {1530}  # the longest of 1500 + 10 x IPU
    assert set(pipelined["sync_cycles"]) == {600}


def test_the_slowest_stage_is_named_with_what_it_does(report: Report) -> None:
    table = pipeline.cycle_table(report)
    steady = table[table["phase"] == "steady"].iloc[0]
    assert steady["slowest_ipu"] == steady["stage"] == 2  # the synthetic profile's slow one
    assert set(steady["work"].split(", ")) == {"forward of stage 2", "backward of stage 2"}
    stage = report.stages.iloc[2]
    assert steady["work_cycles"] == stage["forward_cycles"] + stage["backward_cycles"]
    direction = steady["work"].split(" of ")[0]
    steps = report.program_steps(2)
    spent = (
        steps[(steps["direction"] == direction) & (steps["op"] >= 0)].groupby("op")["cycles"].sum()
    )
    assert steady["operator_cycles"] == spent.max()
    assert steady["operator"] == report.ops.at[spent.idxmax(), "name"]


def test_stages_that_take_turns_have_no_ramps(tmp_path: Path) -> None:
    from ipu_exec import ShardedExecution
    from tests.planner.rebalance.test_what_if import profiled

    report = profiled(tmp_path, (0, 1, 2, 3), 4, ShardedExecution)
    bubble = pipeline.bubble(report)
    assert (bubble.time_balanced, bubble.time_of_stages, bubble.slot_closed_form) == (0, 0, 0)
    assert bubble.time_measured > 0.7  # one of four works at a time
    table = pipeline.cycle_table(report)
    stages = report.stages
    once = int((stages["forward_cycles"] + stages["backward_cycles"]).sum())
    assert set(table.loc[table["phase"] == "steady", "work_cycles"]) == {once}


def test_like_pipeline_cycles_are_one_row(report: Report) -> None:
    table = pipeline.cycle_table(report)
    rows = pipeline.repeated(table)
    assert len(rows) < len(table)
    length = rows["last"] - rows["first"] + 1
    assert (length * rows["cycles"]).sum() == table["cycles"].sum()
    assert rows["first"].tolist()[1:] == (rows["last"] + 1).tolist()[:-1]


def test_the_sentence_is_of_the_pipeline_cycle_that_recurs_most() -> None:
    costs = {
        "work_cycles": 60,
        "host_cycles": [70, 10, 10],
        "copy_cycles": 0,
        "sync_cycles": 0,
        "operator_cycles": 0,
    }
    table = pd.DataFrame(
        {
            "phase": "steady",
            "cycles": [130, 70, 70],
            **costs,
            "slowest_ipu": 0,
            "work": "forward",
            "operator": "",
        }
    )
    assert "Most of the 70 cycles are the work (86%)" in _why(table)
