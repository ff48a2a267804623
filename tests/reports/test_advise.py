"""`ipu-report advise`: what it prints, and what it compiles."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ipuscope.planner import advice
from ipuscope.planner.advice import Advised, Basis, Levers, predicted, search
from ipuscope.planner.levers.script_lines import LINE, in_lightning, stages_line
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.profiler import open_report
from ipuscope.reports.cli import advise, main
from tests.ipu_exec.test_levers import GPT
from tests.ipu_exec.test_run import ipu_run


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt")
    process = ipu_run("--compile-only", "--profile-dir", "out", GPT, "--tiny", cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder / "out" / "training"


def test_each_advice_has_its_lines(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "--allow", "half,samples", str(profile)]) == 0
    out = capsys.readouterr().out
    assert "model.half()" in out
    assert "1. " in out
    assert main(["advise", "--json", str(profile)]) == 0
    (page,) = json.loads(capsys.readouterr().out)
    rates = [one["samples_per_second"] for one in page["advice"]]
    assert rates[0] == max(rates)
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert all(one["code"] for one in page["advice"])
    assert not any("half" in one["argument"] for one in page["advice"])


def test_what_is_not_allowed_is_named_with_its_gain(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", "--top", "1", str(profile)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "This leaves the training as it is. If it may change (half precision" in out
    assert main(["advise", "--allow", "double", str(profile)]) == 2
    assert "--allow 'double': there are half and samples" in capsys.readouterr().err


def test_check_compiles_the_script_with_each_advice(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--top", "1", "-o", str(tmp_path), "--json", str(profile)]
    assert main(["advise", *words, "--check", GPT, "--tiny"]) == 0
    (page,) = json.loads(capsys.readouterr().out)
    (one,) = page["advice"]
    assert one["compiled"] == pytest.approx(one["samples_per_second"], rel=0.7)  # an estimate
    assert (tmp_path / "advice1" / "training" / "profile.pop").is_file()


@pytest.mark.parametrize("kept", [True, False])
def test_the_fastest_is_said_with_its_split(
    kept: bool,
    profile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A split is no ``--with``."""
    with open_report(profile / "profile.pop") as report:
        basis = Basis.of(report)
        fastest = predicted(basis, Levers(outputs="loss", split=basis.present), 1.0)
        advised = Advised(predicted(basis, Levers()), (fastest,), None)
    monkeypatch.setattr(advice, "advise_on", lambda *_: advised)
    monkeypatch.setattr(advise, "compiled", lambda *_: advise.Outcome(1e9, 1000, True))
    monkeypatch.setenv("COLUMNS", "600")  # a long path is not broken
    folder = ["-o", str(tmp_path)] if kept else []
    assert main(["advise", *folder, str(profile), "--check", GPT, "--tiny"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    last = out[out.index("The fastest compile reaches") :]
    file = tmp_path / "advice1" / "placement.json"
    command = f"ipu-run --placement {file} --with outputs=loss {GPT} --tiny"
    assert (command in last) == kept
    assert ("-o DIR keeps its placement file" in last) != kept
    assert "ipu-run --tune 2 " in last


def test_a_check_without_a_script_is_refused(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["advise", str(profile), "--check"]) == 2
    assert "--check takes the script" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["advise", "--check", str(profile), GPT])
    assert f"--check took {profile} {GPT}" in capsys.readouterr().err
    assert main(["advise", str(profile), "--check", "-o", "tried", GPT]) == 2
    assert "there is no script -o to compile" in capsys.readouterr().err


def test_a_script_that_is_not_there_is_refused_before_anything_is_compiled(
    profile: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(advise, "compiled", None)  # a call would be an error
    assert main(["advise", str(profile), "--check", "nowhere.py"]) == 2
    assert capsys.readouterr().err.count("nowhere.py") == 1


def test_a_place_that_cannot_be_made_is_refused_before_anything_is_compiled(
    profile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(advise, "compiled", None)  # a call would be an error
    taken = tmp_path / "file"
    taken.write_text("")
    assert main(["advise", "-o", str(taken / "tried"), str(profile), "--check", GPT]) == 2
    assert "no folder can be made there: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["advise", "insights"])
def test_code_fits_a_terminal_of_80_columns(
    form: str,
    profile: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No word is broken across lines: joined again, the lines are the statement."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main([form, "--top", "0", str(profile)]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert main([form, "--top", "0", "--json", str(profile)]) == 0
    (page,) = json.loads(capsys.readouterr().out)
    rows = page["advice" if form == "advise" else "insights"]
    statements = [statement for row in rows for statement in row["code"]]
    assert statements
    for statement in statements:
        assert textwrap.indent(statement, 5 * " ") in out


def test_a_long_list_of_stages_is_laid_out_and_is_python(profile: Path) -> None:
    with open_report(profile) as report:
        basis = Basis.of(report)
    names = tuple(f"transformer.layer_{number}.output" for number in range(24))
    costs = replace(basis.costs, names=names)
    assignment = Assignment((0, 12), (0, 1))
    statement = stages_line(costs, assignment)
    assert max(map(len, statement.splitlines())) <= LINE
    ast.parse(statement)
    assert re.findall(r"'([^']+)'", statement) == list(names)


@pytest.mark.parametrize("trainer", ["", "lightning"])
def test_a_loaders_batches_are_cut_by_no_tune(trainer: str) -> None:
    """A Trainer joins them: a micro-batch below the profile's takes another batch_size."""
    basis: Any = SimpleNamespace(
        one_size="",
        micro_batch=16,
        costs=SimpleNamespace(micro_batches=4),
        report=SimpleNamespace(meta={"made": {"trainer": trainer}}),
    )
    (note,) = search._notes(basis)
    how = "--with micro-batch=1,micro-batches=64; --tune only joins the loader's batches"
    assert note.endswith(f"(ipu-run {how if trainer else '--tune'}).")


def test_lightnings_scripts_get_its_own_options() -> None:
    lines = (
        "poptorch.DataLoader(options, dataset, batch_size=64)",
        "options.Training.gradientAccumulation(2)",
        "model.half()  # and inputs.half() where they are floats",
    )
    theirs = (
        "DataLoader(dataset, batch_size=64)",
        "Trainer(accumulate_grad_batches=2)",
        'Trainer(precision="16-true")',
    )
    assert in_lightning(lines) == theirs
    *same, options = in_lightning(["options.replicationFactor(4)"])
    assert same == ["options.replicationFactor(4)"] and "training_opts=options" in options


@dataclass(frozen=True)
class _Stage:
    """What a statement says of a stage."""

    blocks: tuple[str, ...]
    on: int = -1

    def ipu(self, ipu: int) -> _Stage:
        return replace(self, on=ipu)


@pytest.mark.parametrize("stages", [20, 64, 300])
def test_numbered_stages_are_one_line_that_says_the_same(profile: Path, stages: int) -> None:
    """A list of 256 IPUs fits a terminal's page, and each stage is the one that was meant."""
    with open_report(profile) as report:
        basis = Basis.of(report)
    layers = [f"enc{{0}}.layer{number}.v2" for number in range(stages + 2)]
    names = ("embed'ding", *layers[:9], "pad_007", *layers[9:], "head")
    starts = (0, *range(1, 10), *range(12, stages + 2), stages + 3)
    ipus = (*range(len(starts) - 1), 0)
    costs = replace(basis.costs, names=names)
    assignment = Assignment(starts, ipus)
    statement = stages_line(costs, assignment)
    given: list[_Stage] = []
    poptorch = SimpleNamespace(
        Stage=lambda *blocks: _Stage(blocks),
        PipelinedExecution=lambda *found: given.extend(found),
        ShardedExecution=lambda *found: given.extend(found),
    )
    options = SimpleNamespace(setExecutionStrategy=lambda _: None)
    exec(statement, {"poptorch": poptorch, "options": options})
    spans = assignment.spans(len(names))
    assert given == [
        _Stage(names[first : last + 1], ipu) for (first, last), ipu in zip(spans, ipus, strict=True)
    ]
    assert len(statement.splitlines()) < 18
    assert max(map(len, statement.splitlines())) <= LINE


def test_a_script_that_does_not_compile_is_said_so(
    profile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("")

    failed = advise.Outcome(0.0, 0, False, "ValueError: no data")
    monkeypatch.setattr(advise, "compiled", lambda *_: failed)
    assert main(["advise", "--top", "1", str(profile), "--check", str(broken)]) == 1
    out = capsys.readouterr().out
    assert "does not compile" in out
    assert "ValueError: no data" in out
    assert "None of the compiles in the table is faster" in out
