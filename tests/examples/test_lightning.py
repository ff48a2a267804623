"""The tutorial's pipeline under Lightning trains, and leaves a profile of each stage of its run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ipuscope import profiler
from tests import forked
from tests.paths import ROOT


def test_the_tutorial_under_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    command = [sys.executable, "examples/lightning_mnist.py", "--epochs", "2"]
    command += ["--profile-dir", str(tmp_path)]
    process = forked.run(command, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    (said,) = [line for line in process.stdout.splitlines() if line.startswith("accuracy")]
    assert float(said.split()[1].rstrip("%")) > 30  # a guess is right in 10 of 100
    with profiler.open_report(tmp_path / "training") as report:
        assert report.meta["model"] == "Digits"
        assert len(report.stages) == 4
    assert (tmp_path / "validation" / "profile.pop").is_file()
