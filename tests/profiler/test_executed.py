"""Executed steps as numbers, and sums over them, against the frame of the same steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ipuscope.profiler import Report, open_report
from ipuscope.profiler.file import records, trace
from ipuscope.profiler.report import report as report_module
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return open_report(synthetic_profile(tmp_path_factory.mktemp("executed") / "profile.pop"))


@pytest.mark.parametrize("ipus", [None, [2], [0, 3]])
def test_executed_steps_are_those_of_the_frame(report: Report, ipus: list[int] | None) -> None:
    frame = report.steps(0, iteration=0)
    frame = frame if ipus is None else frame[frame["ipu"].isin(ipus)]
    steps = report.trace.executed(0, ipus, 0)
    for name in ("ipu", "step", "start", "end"):
        assert np.array_equal(getattr(steps, name), frame[name])
    assert steps.named.name[steps.what].tolist() == frame["name"].tolist()
    assert [steps.named.kinds[kind] for kind in steps.kind] == frame["kind"].tolist()


def test_a_window_has_the_steps_of_the_tasks_that_it_cuts(report: Report) -> None:
    frame = report.steps(0, iteration=0)
    low, high = int(frame["start"].quantile(0.3)), int(frame["start"].quantile(0.4))
    steps = report.trace.executed(0, None, 0, (low, high))
    assert len(steps) == report.trace.executed_count(0, None, 0, (low, high)) < len(frame)
    inside = frame[(frame["end"] > low) & (frame["start"] < high)]
    there = (steps.end > low) & (steps.start < high)
    assert np.array_equal(steps.step[there], inside["step"])
    assert np.array_equal(steps.start[there], inside["start"])


@pytest.mark.parametrize("part", [(0.0, 1.0), (0.2, 0.6), (0.41, 0.42), (2.0, 3.0)])
def test_what_is_spent_is_what_the_slices_take(report: Report, part: tuple[float, float]) -> None:
    frame = report.steps(0, iteration=None)
    frame = frame[frame["kind"] != records.BESIDE]
    first, last = report.trace.extent(0)
    low, high = (first + round(share * (last - first)) for share in part)
    cut = frame[(frame["end"] > low) & (frame["start"] < high)]
    cycles = cut["end"].clip(upper=high) - cut["start"].clip(lower=low)
    spent = report.trace.spent(0, None, None, (low, high))
    by_step = cycles.groupby(cut["step"]).agg(["sum", "size"])
    steps, at = np.unique(spent.step, return_inverse=True)
    assert steps.tolist() == by_step.index.tolist()
    assert np.array_equal(np.bincount(at, spent.cycles, len(steps)), by_step["sum"])
    assert np.array_equal(np.bincount(at, spent.count, len(steps)), by_step["size"])
    by_kind = cycles.groupby(cut["kind"]).agg(["sum", "size"])
    assert {kind: (took, count) for kind, took, count in spent.by_kind()} == {
        str(kind): (int(row["sum"]), int(row["size"])) for kind, row in by_kind.iterrows()
    }


def test_slices_late_in_a_long_run_begin_when_their_steps_do() -> None:
    bodies = trace.Bodies.make(
        [np.array([4, 7]), np.zeros(0, dtype=np.int64)], [np.array([0, 10]), np.zeros(0, np.int64)]
    )
    late, none = 1 << 40, np.zeros(3, dtype=np.int64)
    start = np.array([late, late + 30, late + 31])
    tasks = trace.Tasks(
        none, none, none, np.array([0, 1, 0]), none, start, start + np.array([30, 1, 15])
    )
    slices = trace.slices(tasks, bodies)
    assert (slices.start - late).tolist() == [0, 10, 30, 31, 41]
    assert (slices.end - late).tolist() == [10, 30, 31, 41, 46]
    assert slices.step.tolist() == [4, 7, -1, 4, 7]
    assert (slices.task.tolist(), slices.entry.tolist()) == ([0, 0, 1, 2, 2], [0, 1, 2, 0, 1])
    with pytest.raises(ValueError, match="before its last step"):
        trace.slices(
            trace.Tasks(*(none,) * 3, none, none, start, start + np.array([30, 9, 15])), bodies
        )


@pytest.mark.parametrize("iteration", [0, None])
def test_tasks_in_place_of_steps_are_those_of_the_frame(
    report: Report, iteration: int | None
) -> None:
    frame = report.tasks(1, iteration=iteration)
    frame = frame[frame["ipu"].isin([1, 3])]
    tasks = report.trace.executed_tasks(1, [1, 3], iteration)
    for name in ("ipu", "start", "end"):
        assert np.array_equal(getattr(tasks, name), frame[name])
    assert tasks.named.name[tasks.what].tolist() == frame["name"].tolist()
    assert [tasks.named.kinds[kind] for kind in tasks.kind] == frame["kind"].tolist()
    assert (tasks.step == -1).all()


def test_executed_steps_of_any_number_come_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = synthetic_profile(tmp_path / "profile.pop", iterations=3)
    with open_report(path) as report:
        whole = report.steps()
        monkeypatch.setattr(report_module, "BATCH", len(whole) // 20)
        batches = list(report.iter_steps())
        assert len(batches) > 15 and max(one.num_rows for one in batches) < len(whole) // 10
        assert {len(np.unique(one["iteration"])) for one in batches} == {1}
        pd.testing.assert_frame_equal(pyarrow.Table.from_batches(batches).to_pandas(), whole)
