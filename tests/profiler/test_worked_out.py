"""A large profile's stored insights: what a fresh computation gives, never longer than that."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

import ipu_exec
from profiler import Report, open_report
from profiler.insights import Insight, insights, kept_insights
from profiler.insights.kept_insights import known_insights, stored_insights
from profiler.reader import MAX_ANSWER
from reports.cli import main
from tests.models import Mlp


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile with two runs, written by the engine as if it were large."""
    directory = tmp_path_factory.mktemp("worked_out")
    options = ipu_exec.Options(autoreport=True, autoreport_dir=directory)
    options.Training.gradientAccumulation(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_insights, "LEAST_STEPS", 1)
        torch.manual_seed(0)
        model = ipu_exec.trainingModel(Mlp([64, 256, 64]), options)
        model(torch.zeros(4, 64), torch.zeros(4, 64))
        model(torch.zeros(4, 64), torch.zeros(4, 64))
        model.destroy()
    return directory / "training" / "profile.pop"


@pytest.fixture
def path(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that may be changed."""
    monkeypatch.setenv("IPUSCOPE_CACHE", str(tmp_path / "cache"))
    copy = tmp_path / "profile.pop"
    copy.write_bytes(written.read_bytes())
    return copy


def alter(path: Path, sql: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(sql, values)
    connection.close()


def put(path: Path, said: object) -> None:
    alter(path, "UPDATE worked_out SET said = ?", said)


def refuse(report: Report) -> list[Insight]:
    raise AssertionError("the file has them")


def test_the_file_holds_what_a_fresh_computation_gives(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_report(path) as report:
        assert len(report.runs) == 2
        fresh = insights(report)
        assert any(one.waits for one in fresh) and any(one.change for one in fresh)
        assert stored_insights(report) == fresh
        monkeypatch.setattr(kept_insights, "insights", refuse)
        assert known_insights(report) == fresh


def test_a_small_profile_holds_none(tmp_path: Path) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
    model(torch.zeros(1, 2))
    model.destroy()
    with open_report(tmp_path / "inference") as report:
        assert stored_insights(report) is None


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE bodies SET cycles = cycles + 1 WHERE id = 1",
        "UPDATE meta SET value = '\"other\"' WHERE key = 'model'",
        "DELETE FROM runs WHERE id = 1",
        "UPDATE worked_out SET code = 'of another version'",
        "DROP TABLE worked_out",
        "UPDATE worked_out SET said = CAST(x'ff' AS TEXT)",
        f"UPDATE worked_out SET said = '[]' || zeroblob({MAX_ANSWER})",
        "ALTER TABLE worked_out ADD COLUMN more AS (name || said)",
    ],
)
def test_what_no_longer_holds_is_not_read(path: Path, change: str) -> None:
    alter(path, change)
    with open_report(path) as report:
        assert stored_insights(report) is None


@pytest.mark.parametrize(
    "change",
    [
        {"title": 1},
        {"where": "https://example.org"},
        {"where": "//example.org"},
        {"where": "javascript:alert(1)"},
        {"gain_cycles": "many"},
        {"gain_bytes": True},
        {"at_most": 1},
        {"change": []},
        {"code": [1]},
        {"code": 1},
        {"waits": {"stages": ["0"]}},
        {"waits": {"causes": [0]}},
        {"waits": {"others": []}},
        {"waits": 1},
        {"more": 1},
    ],
)
def test_an_insight_of_a_stranger_is_checked(path: Path, change: dict[str, Any]) -> None:
    with open_report(path) as report:
        said = json.loads(report.worked_out("insights") or "")
    put(path, json.dumps([*said[1:], {**said[0], **change}]))
    with open_report(path) as report:
        assert report.worked_out("insights") is not None
        assert stored_insights(report) is None


@pytest.mark.parametrize("said", ["", "{", "[1]", '[{"title": "a"}]', "[" * 10_000])
def test_what_is_no_insight_is_not_taken_for_one(path: Path, said: str) -> None:
    put(path, said)
    with open_report(path) as report:
        assert stored_insights(report) is None


def test_others_are_worked_out_anew(path: Path) -> None:
    put(path, "{")
    with open_report(path) as report:
        assert known_insights(report) == insights(report)


def test_doctor_says_where_they_are_not_what_the_rows_say(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(path)]) == 0
    put(path, "[]")
    assert main(["doctor", str(path)]) == 1
    words = " ".join(capsys.readouterr().out.split())
    assert "insights that it holds are what rows say they say something else" in words.lower()


def test_insights_that_fail_cost_no_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(report: Report) -> list[Insight]:
        raise ArithmeticError

    monkeypatch.setattr(kept_insights, "insights", fail)
    monkeypatch.setattr(kept_insights, "LEAST_STEPS", 1)
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
    model(torch.zeros(1, 2))
    model.destroy()
    with open_report(tmp_path / "inference") as report:
        assert len(report.runs) == 1 and stored_insights(report) is None
