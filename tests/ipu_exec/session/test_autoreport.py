"""A run whose directory another process is writing in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ipu_exec
from ipuscope.profiler import open_report
from tests.profiler.test_lock import another


def test_a_run_beside_another_has_a_directory_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    with another(tmp_path / "inference" / "profile.pop") as other:
        model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
        model(torch.zeros(1, 2))
        model.destroy()
        other.communicate()
    assert "inference-2" in caplog.text and "another process" in caplog.text
    with (
        open_report(tmp_path / "inference-2") as second,
        open_report(tmp_path / "inference") as its,
    ):
        assert len(second.runs) == 1
        assert its.options == {"whose": "other"}


def test_a_nul_in_the_directory_costs_the_run_nothing(tmp_path: Path) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=f"{tmp_path}/a\0b")
    model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
    with pytest.warns(UserWarning, match="no profile is written.*NUL"):
        assert model(torch.zeros(1, 2)).shape == (1, 2)
