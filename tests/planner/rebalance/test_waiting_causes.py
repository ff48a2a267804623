"""Which work it is that IPUs wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipuscope.planner.search.waiting_causes import CAUSES, waiting_causes
from ipuscope.profiler import Report, open_report
from tests.synthetic import synthetic_profile


@pytest.mark.parametrize("seed", [0, 1])
def test_blame_adds_up_to_all_waiting(tmp_path: Path, seed: int) -> None:
    report = open_report(synthetic_profile(tmp_path / "profile.pop", seed=seed))
    table = waiting_causes(report)
    tasks = report.tasks(0, iteration=0)
    assert table["total"].sum() == pytest.approx(
        tasks.loc[tasks["kind"] == "idle", "cycles"].sum(), abs=40
    )
    assert table["total"].idxmax() == 2  # the synthetic profile's slow stage
    assert (table[list(CAUSES)].sum(axis=1) == table["total"]).all()
    assert (
        table.loc[2, "compute"] > 0
        and table.loc[2, "exchange"] > 0
        and table.loc[2, "tile imbalance"] > 0
    )
    assert table["host"].sum() > 0


def test_blame_of_a_worked_pipeline_is_by_hand(two: Report) -> None:
    table = waiting_causes(two)
    tasks = two.tasks(0, iteration=0)
    waits = tasks[tasks["kind"] == "idle"]
    assert table["total"].sum() == pytest.approx(waits["cycles"].sum(), abs=20)
    # Two IPUs: while one waits the other works, so that whom it waits for is no question.
    for stage in (0, 1):
        assert table.loc[stage, "total"] == pytest.approx(
            waits.loc[waits["ipu"] == 1 - stage, "cycles"].sum(), abs=10
        )
    assert table.loc[0, "recompute"] > 0
    assert table.loc[1, "recompute"] == 0  # the last stage does not recompute
