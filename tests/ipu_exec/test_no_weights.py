"""Models without memory for their weights compile as those with it, and cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ipu_exec
from examples.models import bert, split
from ipuscope.profiler import open_report


def compiled(folder: Path, example: object) -> ipu_exec.PoplarExecutor:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=str(folder)).randomSeed(0)
    options.showCompilationProgressBar(False).setExecutionStrategy(split(example, 2))
    options.Training.gradientAccumulation(4)
    optimizer = ipu_exec.optim.LAMB(example.module.parameters(), lr=0.1)
    model = ipu_exec.trainingModel(example.module, options, optimizer)
    model.compile(*example.inputs(4))
    return model


def test_a_profile_without_weights_is_the_same(tmp_path: Path) -> None:
    with ipu_exec.no_weights():
        without = bert.example(bert.TINY)
    assert {p.device.type for p in without.module.parameters()} == {"meta"}
    compiled(tmp_path / "none", without).destroy()
    compiled(tmp_path / "all", bert.example(bert.TINY)).destroy()
    none, every = (
        open_report(tmp_path / folder / "training" / "profile.pop") for folder in ("none", "all")
    )
    for frame in ("ops", "variables", "stages"):
        assert getattr(none, frame).equals(getattr(every, frame))
    assert none.steps().equals(every.steps())


def test_it_cannot_run(tmp_path: Path) -> None:
    with ipu_exec.no_weights():
        model = ipu_exec.inferenceModel(torch.nn.Linear(4, 4))
    model.compile(torch.zeros(2, 4))
    with pytest.raises(ipu_exec.Error, match=r"'weight' of Linear has no memory.*compile"):
        model(torch.zeros(2, 4))
