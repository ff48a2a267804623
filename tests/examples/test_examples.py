"""The example scripts at toy size: they train, and leave profiles that are well."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from examples import bert_finetuning, bert_pretraining, lstm
from ipuscope import profiler
from ipuscope.reports.cli import main as report
from tests.paths import ROOT

SCRIPTS = ("resnet50_synthetic", "bert_pretraining", "bert_finetuning", "gpt2_small", "vit", "lstm")
EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains_a_toy_and_leaves_a_profile(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module(f"examples.{name}")
    words = [
        "--tiny",
        "--steps",
        "2",
        "--stages",
        "2",
        "--accumulation",
        "4",
        "--profile-dir",
        str(tmp_path),
    ]
    script.main(words)
    said = capsys.readouterr().out
    assert "call 1: loss" in said
    assert "samples/s" in said
    with profiler.open_report(tmp_path / "training") as profile:
        assert profile.meta["state"] == "executed"
    assert report(["doctor", str(tmp_path / "training")]) == 0


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_only_compiles_where_that_is_asked(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module(f"examples.{name}")
    script.main(["--tiny", "--compile-only", "--stages", "2", "--accumulation", "4"])
    said = capsys.readouterr().out
    assert "samples/s" in said and "loss" not in said


@pytest.mark.parametrize(
    "path", [EXAMPLES / f"{name}.py" for name in SCRIPTS], ids=lambda path: path.stem
)
def test_a_script_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 150


def test_what_is_learned_is_learned(tmp_path: Path) -> None:
    """Pretraining learns its batch by heart; fine-tuning from its weights tells classes apart."""
    torch.manual_seed(0)
    saved = tmp_path / "bert.pt"
    words = ["--tiny", "--stages", "2", "--accumulation", "4"]
    losses = bert_pretraining.main(
        [*words, "--micro-batch", "4", "--steps", "10", "--save", str(saved)]
    )
    assert losses[-1] < losses[0]
    accuracy = bert_finetuning.main(
        [*words, "--micro-batch", "8", "--steps", "40", "--weights", str(saved)]
    )
    assert accuracy > 0.7, "0.5 is chance"
    losses = lstm.main(["--tiny", "--steps", "20"])
    assert losses[-1] < losses[0]


def test_two_groups_of_ipus_in_turn_are_faster(capsys: pytest.CaptureFixture[str]) -> None:
    cycles = []
    for words in ([], ["--parallel"]):
        lstm.main(["--tiny", "--compile-only", *words])
        said = capsys.readouterr().out
        cycles.append(int(said.split(" cycles a call")[0].split()[-1].replace(",", "")))
    assert cycles[1] < cycles[0]
