"""The rebalancer from the shell: from a profile to a placement, a second profile, and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ipu_exec
from ipu_exec.placement_file import load_stages
from ipuscope.profiler import open_report
from ipuscope.reports.cli import main
from tests import forked
from tests.paths import ROOT
from tests.reports.test_cli import complain, say


def script(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the example with ipu-run for one epoch."""
    code = "import sys; from ipu_exec.commands.run import main; sys.exit(main(sys.argv[1:]))"
    command = [
        sys.executable,
        "-c",
        code,
        *map(str, words),
        "examples/mnist_pipeline.py",
        "--epochs",
        "1",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return forked.run(command, cwd=ROOT, env=environment)


def test_a_proposal_is_written_run_and_verified(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placement = tmp_path / "placement.json"
    out = say(capsys, "rebalance", demo / "training", "--stages", 3, "-o", placement)
    assert "Predicted: " in out
    assert [stage.blocks for stage in load_stages(placement)] == [("B1",), ("B2",), ("B3", "B4")]
    assert "accumulation" not in json.loads(placement.read_text())  # the script's own stays
    process = script("--placement", placement, "--autoreport", tmp_path / "after")
    assert process.returncode == 0, process.stderr
    with open_report(tmp_path / "after" / "training") as after:
        assert after.stages["blocks"].tolist() == ["B1", "B2", "B3, B4"]
        assert after.options["placement"] == str(placement)
    (row,) = json.loads(say(capsys, "runs", "--json", tmp_path / "after" / "training"))[0]["runs"]
    assert row["predicted_cycles"] == pytest.approx(row["cycles"], rel=0.005)


def test_compile_only_leaves_the_whole_profile_and_no_training(tmp_path: Path) -> None:
    process = script("--compile-only", "--autoreport", tmp_path)
    assert process.returncode == 0
    assert "epoch" not in process.stdout.replace("an epoch is", "")
    with open_report(tmp_path / "training") as report:
        assert report.meta["complete"]
        assert report.meta["state"] == "compiled"
        assert len(report.stages) == 4
        assert report.predicted


def test_so_many_stages_as_asked(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(say(capsys, "rebalance", "--stages", 2, "--json", demo / "training"))[0][
        "rebalance"
    ]
    assert len(rows) == 2
    assert "cannot fill 9 stages" in complain(
        capsys, 1, "rebalance", "--stages", 9, demo / "training"
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "no JSON"),
        ("[]", "not a placement"),
        ('{"format": "ipuscope placement", "version": 9}', "version 9"),
        ('{"format": "ipuscope placement", "version": 1, "stages": []}', "no stages"),
        ('{"format": "ipuscope placement", "version": 1, "stages": [{"ipu": 0}]}', "stage 0 needs"),
        (
            (
                '{"format": "ipuscope placement", "version": 1, "stages": '
                '[{"ipu": 0, "blocks": ["A"]}, {"ipu": 1, "blocks": ["B", "A"]}]}'
            ),
            "'A' in stage 0 and in stage 1",
        ),
        (
            (
                '{"format": "ipuscope placement", "version": 1, "stages": [{"ipu": -1, "blocks":'
                ' ["A"]}]}'
            ),
            "0 or more",
        ),
    ],
)
def test_what_is_no_placement_is_said(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "placement.json"
    path.write_text(content)
    with pytest.raises(ipu_exec.Error, match=says):
        ipu_exec.Options().loadPlacement(path)
    with pytest.raises(ipu_exec.Error, match="cannot be read"):
        ipu_exec.Options().loadPlacement(tmp_path / "none")


def test_a_placement_wins_over_the_scripts_stages(tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    stages = [{"ipu": 0, "blocks": ["A"]}, {"ipu": 1, "blocks": ["B"]}]
    path.write_text(json.dumps({"format": "ipuscope placement", "version": 1, "stages": stages}))
    options = ipu_exec.Options().loadPlacement(path)
    options.setExecutionStrategy(ipu_exec.ShardedExecution(ipu_exec.Stage("A", "B").ipu(0)))
    assert isinstance(options.execution_strategy, ipu_exec.ShardedExecution)
    assert [stage.blocks for stage in options.execution_strategy.stages] == [("A",), ("B",)]


def test_insights_name_what_to_do(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    insights = json.loads(say(capsys, "insights", "--json", demo / "training"))[0]["insights"]
    gains = [(one["changes_batch"], -one["gain_cycles"]) for one in insights if one["gain_cycles"]]
    assert gains == sorted(gains) and {batch for batch, _ in gains} == {False, True}
    page = " ".join(say(capsys, "insights", demo / "training").split())
    assert " ".join(insights[0]["action"].split()).lower() in page.lower()  # as a sentence there


def test_a_comparison_fails_where_a_rule_is_broken(
    demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = str(demo / "training"), str(demo / "inference")
    say(capsys, "compare", a, a, "--fail-if", "cycles>+0%")
    assert main(["compare", b, a, "--fail-if", "cycles>+3%"]) == 1
    assert "cycles cannot be compared: A is inference and B is training" in capsys.readouterr().err
    assert "is not a rule" in complain(capsys, 2, "compare", a, b, "--fail-if", "speed>3")
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, say(capsys, "compare", a, b).splitlines())) <= 80


def test_stages_that_come_back_and_blocks_kept_together(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--stage-ipus", "0,1,2,0", "--together", "B1,B4", "--json", demo / "training")
    rows = json.loads(say(capsys, "rebalance", *words))[0]["rebalance"]
    assert [row["ipu"] for row in rows] == [0, 1, 2, 0]
    rows = json.loads(say(capsys, "rebalance", "--together", "B2,B4", "--json", demo / "training"))[
        0
    ]["rebalance"]
    assert any("B2, B3, B4" in row["blocks"] for row in rows)
    assert "'B9' is not a Block" in complain(
        capsys, 1, "rebalance", "--together", "B1,B9", demo / "training"
    )
    assert "give one" in complain(
        capsys, 2, "rebalance", "--fewest", "--stages", 2, demo / "training"
    )


def test_the_fewest_ipus_of_a_small_model_is_one(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(say(capsys, "rebalance", "--fewest", "--json", demo / "training"))[0][
        "rebalance"
    ]
    assert [row["blocks"] for row in rows] == ["B1, B2, B3, B4"]


def test_stages_choose_how_to_save_memory(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(
        say(capsys, "rebalance", "--recompute", "never", "--json", demo / "training")
    )[0]["rebalance"]
    assert {row["saves"] for row in rows} == {"-"}
    out = say(capsys, "rebalance", "--recompute", "never", demo / "training")
    assert "how stages save memory" in " ".join(out.split())
