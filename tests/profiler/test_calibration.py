"""Factors of a machine: made from pairs, read as a stranger's data, used by predictions."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import what_if
from ipuscope.profiler import (
    ProfileError,
    Report,
    analysis,
    answers,
    calibration,
    confidence,
    open_report,
    pva,
)
from ipuscope.profiler.pva.import_profile import import_profile
from ipuscope.reports.cli import main
from tests.synthetic import synthetic_profile

SLOWER = {"aten.addmm": 1.5, "aten.relu": 0.8}


def measured(folder: Path, seed: int, noise: float = 0.0) -> tuple[Report, Report]:
    """A profile with bars, and an imported one whose classes take as many times as long."""
    path = synthetic_profile(folder / f"{seed}.pop", seed=seed)
    error = {"likely": 0.2, "low": 1 / 1.2, "high": 1.2, "unmeasured": 0.0}
    with sqlite3.connect(path) as file:
        file.execute(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", ("cycle_error", json.dumps(error))
        )
    import_profile(pva, path, folder / f"{seed}-imported.pop")
    with sqlite3.connect(folder / f"{seed}-imported.pop") as file:
        for number, (id, aten, cycles) in enumerate(
            file.execute("SELECT id, aten, cycles FROM ops").fetchall()
        ):
            factor = SLOWER.get(".".join(aten.split(".")[:2]), 1.0) * (1 + noise * (-1) ** number)
            file.execute("UPDATE ops SET cycles = ? WHERE id = ?", (round(cycles * factor), id))
    return open_report(path), open_report(folder / f"{seed}-imported.pop")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    modelled, theirs = measured(tmp_path, 0, noise=0.05)
    file = tmp_path / "own.json"
    code = main(["compare", str(theirs.path), str(modelled.path), "--calibrate", str(file)])
    assert code == 0
    monkeypatch.setenv(answers.CALIBRATION, str(file))
    return file


def test_factors_predict_a_model_that_they_were_not_made_from(made: Path, tmp_path: Path) -> None:
    one = calibration.read(made)
    assert one.classes["aten.addmm"].factor == pytest.approx(1.5, rel=0.05)
    modelled, theirs = measured(tmp_path, 1)
    pairs = analysis.paired_ops(theirs, modelled)
    before = (pairs["modelled"] / pairs["measured"] - 1).abs().mean()
    after = (pairs["modelled"] * one.factors(pairs["kind"]) / pairs["measured"] - 1).abs().mean()
    assert after < 0.05 < 0.1 < before
    # the model's error of five in hundred is what the operators' ranges say
    each = one.classes["aten.addmm"]
    assert 0.85 < each.low < 0.97 < 1.03 < each.high < 1.15


def test_predictions_and_bars_use_them_and_say_so(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_report(tmp_path / "0.pop") as report:
        costs = Costs.from_report(report)
        ops = report.ops[report.ops["direction"] == "forward"]
        factors = calibration.read(made).factors(calibration.kinds_of(ops["aten"]))
        more = (ops["cycles"] * (factors - 1)).sum()
        plain = report.blocks["forward_cycles"].sum()
        assert costs.cycles.forward.sum() == pytest.approx(plain + more, abs=len(costs))
        own = confidence.confidence(report, of_costs=True)
        assert own is not None and own.own and own.low > 1 / 1.15 and own.high < 1.15
        whole = confidence.confidence(report)
        assert whole is not None and whole.high < 1  # slower than the model has it
        assert "to" in whole.words and "more, measured on your machine" in whole.words
        total = what_if(costs, profiled(costs)).total
    assert main(["whatif", str(tmp_path / "0.pop")]) == 0
    said = capsys.readouterr().out
    assert "measured on your machine" in said and f"{total:,}" in said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"architecture": "ipu2"}',
        '{"factor": 1e999}',
        '{"factor": -1}',
        '{"factor": "__import__"}',
        '{"low": 2, "high": 1}',
        '{"operators": 0}',
        '{"more": 1}',
        "x" * (1 << 21),
    ],
)
def test_a_broken_file_gets_a_clear_error(text: str, tmp_path: Path) -> None:
    if text.startswith('{"') and "arch" not in text:
        factor = {"factor": 1.0, "low": 1.0, "high": 1.0, "operators": 3}
        change = json.loads(text)
        classes = {"aten.add": {**factor, **change}}
        names = {"architecture": "ipu2", "measured": "", "modelled": "", "format": 1}
        text = json.dumps({**names, "classes": classes})
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(ProfileError, match="not a calibration"):
        calibration.read(tmp_path / "file.json")


def test_profiles_that_are_not_measured_and_modelled_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(synthetic_profile(tmp_path / "own.pop"))
    assert main(["compare", path, path, "--calibrate", str(tmp_path / "f.json")]) == 1
    assert "an imported profile, then a modelled one" in capsys.readouterr().err
    assert not (tmp_path / "f.json").exists()
