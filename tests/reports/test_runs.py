"""`ipu-report runs`: many profiles as one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipuscope.profiler import open_report
from ipuscope.profiler.analysis import pace
from ipuscope.profiler.analysis.runs import run_of
from ipuscope.reports.cli import main
from tests.synthetic import synthetic_profile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / name / "training").mkdir(parents=True)
        synthetic_profile(tmp_path / name / "training" / "profile.pop")
    return tmp_path


def test_every_profile_below_a_directory_is_a_row(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--json", str(folder)]) == 0
    (page,) = json.loads(capsys.readouterr().out)
    rows = page["runs"]
    assert [row["place"] for row in rows] == ["one/training", "two/training"]
    with open_report(rows[0]["profile"]) as report:
        assert rows[0]["samples_per_second"] == pace(report).samples_per_second
        assert rows[0]["cycles"] == pace(report).cycles
        assert rows[0]["fullest_bytes"] == max(
            report.tiles(ipu)["total"].max() for ipu in range(report.target.ipus_per_replica)
        )
    assert main(["runs", str(folder)]) == 0
    assert "two/training" in capsys.readouterr().out


def test_a_broken_profile_costs_a_line_and_not_the_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "two" / "training" / "profile.pop").write_bytes(b"nonsense")
    assert main(["runs", str(folder)]) == 0
    assert "two/training/profile.pop" in capsys.readouterr().out.replace("\n", "")
    (folder / "one" / "training" / "profile.pop").write_bytes(b"nonsense")
    assert main(["runs", str(folder)]) == 3


def test_a_prediction_stands_beside_what_came(tmp_path: Path) -> None:
    with open_report(synthetic_profile(tmp_path / "profile.pop")) as report:
        assert run_of(report)["predicted_cycles"] == 0
        report.meta["made"] = {"placement": {"promise": {"cycles": 7}}, "levers": "half"}
        row = run_of(report)
        assert (row["predicted_cycles"], row["levers"], row["placed"]) == (7, "half", True)
        report.meta["made"] = {"placement": {"promise": ["cycles"], "planned": {"cycles": 8}}}
        assert run_of(report)["predicted_cycles"] == 0
