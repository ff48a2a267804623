"""`ipu-report advise`: what it prints, and what it compiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler.advise import Levers
from reports import checks
from reports.cli import main
from tests.ipu_exec.test_levers import GPT
from tests.ipu_exec.test_run import ipu_run


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt")
    process = ipu_run("--compile-only", "--profile-dir", "out", GPT, "--tiny", cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder / "out" / "training"


def test_each_advice_has_its_lines(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(profile)]) == 0
    out = capsys.readouterr().out
    assert "model.half()" in out
    assert "1. " in out
    assert main(["advise", "--json", str(profile)]) == 0
    (page,) = json.loads(capsys.readouterr().out)
    rates = [one["samples_per_second"] for one in page["advice"]]
    assert rates[0] == max(rates)
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert all(one["code"] for one in page["advice"])


def test_check_compiles_the_script_with_each_advice(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--top", "1", "--rounds", "0", "-o", str(tmp_path), "--json", str(profile)]
    assert main(["advise", *words, "--check", GPT, "--tiny"]) == 0
    (page,) = json.loads(capsys.readouterr().out)
    (advice,) = page["advice"]
    assert advice["compiled"] == pytest.approx(advice["samples_per_second"], rel=0.6)
    assert (tmp_path / "advice1" / "training" / "profile.pop").is_file()


def outcome(rate: float, path: Path | None = None) -> checks.Outcome:
    return checks.Outcome(rate, 1000, bool(rate), "", path)


def test_a_search_goes_on_from_what_was_compiled_until_nothing_gains(
    profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is advised on the last one's profile, and adds to its levers."""
    asked: list[Levers] = []

    def compiled(self: object, name: str, levers: Levers, basis: object) -> checks.Outcome:
        asked.append(levers)
        return outcome(1e9, profile / "profile.pop")

    monkeypatch.setattr(checks.Script, "compiled", compiled)
    script = checks.Script("train.py", (), tmp_path, "training")
    first = checks.Step(
        Levers(outputs="loss"), "the loss only", 1.0, outcome(1.0, profile / "profile.pop")
    )
    steps = checks.search(script, first, 0, rounds=5)
    assert len(steps) == 2  # nothing is predicted to be quicker than what the second took
    assert asked[0].outputs == "loss"
    assert set(asked[0].pulled) > {"outputs"}


def test_a_check_without_a_script_is_refused(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(profile), "--check"]) == 2
    assert "--check takes the script" in capsys.readouterr().err


def test_a_script_that_does_not_compile_is_said_so(
    profile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compiled(self: object, *_: object) -> checks.Outcome:
        return checks.Outcome(0.0, 0, False, "ValueError: no data", None)

    monkeypatch.setattr(checks.Script, "compiled", compiled)
    assert main(["advise", "--top", "1", str(profile), "--check", "broken.py"]) == 1
    out = capsys.readouterr().out
    assert "does not compile" in out
    assert "ValueError: no data" in out
    assert "Nothing that was compiled is faster" in out
