"""What a large profile holds worked out: what its rows give, and never longer than that."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ipu_exec
from ipuscope.planner import worked_out
from ipuscope.planner.advice import advise, basis_of, search
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import Insight, insights, kept_insights
from ipuscope.planner.insights.kept_insights import known_insights, stored_insights
from ipuscope.planner.search import known_split
from ipuscope.profiler import Report, analysis, kept, open_report
from ipuscope.profiler.analysis import hierarchy, waits_in_short
from ipuscope.profiler.report import SUMS
from ipuscope.reports.cli import main
from tests.models import Mlp

INSIGHTS, TILES = kept_insights.NAME, analysis.memory.FULLEST
WAITS, LEAVES = waits_in_short.NAME, hierarchy.LEAVES


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile with two runs, written by the engine as if it were large."""
    directory = tmp_path_factory.mktemp("worked_out")
    options = ipu_exec.Options(autoreport=True, autoreport_dir=directory)
    options.Training.gradientAccumulation(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worked_out, "LEAST_STEPS", 1)
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


def put(path: Path, name: str, said: Any) -> None:
    alter(path, "UPDATE worked_out SET said = ? WHERE name = ?", kept.as_json(said), name)


def held(path: Path, name: str) -> Any:
    with open_report(path) as report:
        return report.worked_out(name)


def refuse(*_: object) -> Any:
    raise AssertionError("the file has it")


def test_the_file_holds_what_its_rows_give(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_report(path) as report:
        assert len(report.runs) == 2
        assert worked_out.otherwise(report) == []
        fresh = insights(report)
        assert any(one.waits for one in fresh) and any(one.change for one in fresh)
        assert stored_insights(report) == fresh
        monkeypatch.setattr(kept_insights, "insights", refuse)
        assert known_insights(report) == fresh


def test_answers_are_read_as_they_were_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with worked_out._RowsAlone(path) as rows:
        tiles = analysis.fullest_tiles(rows)
        waits, leaves = waits_in_short.of(rows), hierarchy.leaves_of_cycles(rows, "module", True)
        advised, steps, split = advise(rows), rows.program_steps(), known_split.known_split(rows)
    monkeypatch.setattr(Report, "_sums_of", refuse)
    monkeypatch.setattr(search, "_advise_on", refuse)
    monkeypatch.setattr(known_split, "quickest", refuse)
    monkeypatch.setattr(analysis.memory, "_fullest", refuse)
    monkeypatch.setattr(waits_in_short, "_made", refuse)
    monkeypatch.setattr(hierarchy, "_leaves_of_cycles", refuse)
    with open_report(path) as report:
        np.testing.assert_array_equal(analysis.fullest_tiles(report), tiles)
        pd.testing.assert_frame_equal(report.program_steps(), steps)
        assert advise(report) == advised and advised.single
        theirs = known_split.known_split(report)
        assert known_split.plain(theirs) == known_split.plain(split)
        assert theirs.prediction.total == split.prediction.total
        known = waits_in_short.of(report)
        pd.testing.assert_frame_equal(known.waterfall, waits.waterfall)
        pd.testing.assert_frame_equal(known.longest, waits.longest)
        assert known.computing == waits.computing and sum(waits.computing.values()) > 0
        assert hierarchy.tree(hierarchy.leaves_together(report)) == hierarchy.tree(leaves)


def test_a_small_profile_holds_nothing(tmp_path: Path) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
    model(torch.zeros(1, 2))
    model.destroy()
    with sqlite3.connect(tmp_path / "inference" / "profile.pop") as connection:
        names = connection.execute("SELECT name FROM sqlite_master").fetchall()
    connection.close()
    assert not [name for (name,) in names if "worked_out" in name]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE bodies SET cycles = cycles + 1 WHERE id = 1",
        "UPDATE meta SET value = '\"other\"' WHERE key = 'model'",
        "DELETE FROM runs WHERE id = 1",
        "DELETE FROM vectors WHERE id = (SELECT max(id) FROM vectors)",
        "UPDATE worked_out SET code = 'of another version'",
        "DROP TABLE worked_out",
        "UPDATE worked_out SET said = 'text'",
        "UPDATE worked_out SET said = x'28b52ffd'",
        "UPDATE worked_out SET said = substr(said, 1, length(said) - 4)",
        "ALTER TABLE worked_out ADD COLUMN more AS (name || said)",
    ],
)
def test_what_no_longer_holds_is_not_read(path: Path, change: str) -> None:
    alter(path, change)
    for name in (INSIGHTS, TILES, WAITS, LEAVES, SUMS):
        assert held(path, name) is None


def test_a_bomb_is_not_unpacked(path: Path) -> None:
    put(path, LEAVES, "a" * (kept.MOST_OF_ANSWER + 1))
    assert held(path, LEAVES) is None


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
    said = held(path, INSIGHTS)
    put(path, INSIGHTS, [*said[1:], {**said[0], **change}])
    with open_report(path) as report:
        assert report.worked_out(INSIGHTS) is not None
        assert stored_insights(report) is None


@pytest.mark.parametrize("said", [None, 1, "a", {}, [1], [{"title": "a"}], [[0], [0], ["0"]]])
def test_what_is_no_answer_is_not_taken_for_one(path: Path, said: Any) -> None:
    for name in (INSIGHTS, TILES, WAITS, LEAVES, SUMS):
        put(path, name, said)
    with open_report(path) as report, worked_out._RowsAlone(path) as rows:
        if said != {}:  # no insights at all, which a profile may have
            assert stored_insights(report) is None
        np.testing.assert_array_equal(analysis.fullest_tiles(report), analysis.fullest_tiles(rows))
        pd.testing.assert_frame_equal(report.program_steps(), rows.program_steps())
        assert waits_in_short.of(report).computing == waits_in_short.of(rows).computing
        assert len(hierarchy.leaves_together(report)) == len(hierarchy.leaves_together(rows))


@pytest.mark.parametrize(
    ("name", "read", "wrong"),
    [
        (
            WAITS,
            waits_in_short._read,
            {"waterfall": {"cause": ["a"], "cycles": [1], "share": [1.0]}},
        ),
        (WAITS, waits_in_short._read, {"longest": {}}),
        (WAITS, waits_in_short._read, {"computing": [["0", 1]]}),
        (WAITS, waits_in_short._read, {"computing": [[[], 1]]}),
        (LEAVES, hierarchy._read_leaves, {"value": [1]}),
        (LEAVES, hierarchy._read_leaves, {"kind": 1}),
        (LEAVES, hierarchy._read_leaves, {"more": 1}),
    ],
)
def test_frames_of_a_stranger_are_checked(path: Path, name: str, read: Any, wrong: Any) -> None:
    said = held(path, name)
    assert read(said) is not None
    assert read({**said, **wrong}) is None


@pytest.mark.parametrize("cell", [1, "a", -2, 0.5, True, None, [], 2**63])
def test_each_cell_of_a_stranger_is_of_its_kind(path: Path, cell: Any) -> None:
    leaves, waits = held(path, LEAVES), held(path, WAITS)
    for name, kind in (("value", int), ("kind", str), ("path", list)):
        same = type(cell) is kind and cell not in (-2, 2**63, [])
        changed = {**leaves, name: [cell, *leaves[name][1:]]}
        assert same == (hierarchy._read_leaves(changed) is not None)
    for table, name, kind in (
        ("waterfall", "cause", str),
        ("waterfall", "cycles", int),
        ("longest", "what", str),
        ("longest", "step", int),
        ("longest", "share", float),
    ):
        same = type(cell) is kind and cell not in (-2, 2**63) and name != "cause"
        cells = [cell, *waits[table][name][1:]]
        changed = {**waits, table: {**waits[table], name: cells}}
        assert same == (waits_in_short._read(changed) is not None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"single": 1},
        {"single": [1]},
        {"present": None},
        {"together": {}},
        {"more": 1},
    ],
)
def test_advice_of_a_stranger_is_checked(path: Path, wrong: dict[str, Any]) -> None:
    with worked_out._RowsAlone(path) as rows:
        ((name, _),) = search.worked_out(basis_of(rows)).items()
    said = held(path, name)
    assert search._read(said) is not None
    assert search._read({**said, **wrong}) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"why": [1]},
        {"least_total": 1.5},
        {"more": 1},
        {"assignment": {"starts": [1, 2], "ipus": [0, 1], "choices": []}},
        {"assignment": {"starts": [0, 2], "ipus": [0, 1], "choices": []}},
        {"assignment": {"starts": [0, 1], "ipus": [0, 2], "choices": []}},
        {"assignment": {"starts": [0, 1], "ipus": [0, -1], "choices": []}},
        {"assignment": {"starts": [0, 1], "ipus": [0], "choices": []}},
        {"assignment": {"starts": [], "ipus": [], "choices": []}},
        {"assignment": {"starts": [0, 1], "ipus": [0, 1], "choices": [1, 2]}},
    ],
)
def test_a_split_of_a_stranger_is_checked(path: Path, wrong: dict[str, Any]) -> None:
    said = held(path, known_split.NAME)
    with open_report(path) as report:
        costs = Costs.from_report(report)
    assert known_split._read(costs, said) is not None
    assert known_split._read(costs, {**said, **wrong}) is None


def test_doctor_says_what_the_rows_answer_otherwise(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(path)]) == 0
    assert main(["doctor", "--rows", str(path)]) == 0
    capsys.readouterr()
    put(path, TILES, [1, 2])
    assert main(["doctor", str(path)]) == 1
    words = " ".join(capsys.readouterr().out.split())
    assert f"of its {TILES} the rows say something else" in words.lower()


def test_insights_that_fail_cost_no_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(report: Report) -> list[Insight]:
        raise ArithmeticError

    monkeypatch.setattr(worked_out, "insights", fail)
    monkeypatch.setattr(worked_out, "LEAST_STEPS", 1)
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
    model(torch.zeros(1, 2))
    model.destroy()
    assert held(tmp_path / "inference", INSIGHTS) is None
    with open_report(tmp_path / "inference") as report:
        assert len(report.runs) == 1
