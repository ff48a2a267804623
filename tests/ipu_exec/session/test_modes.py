"""Train and eval: settled when a model is wrapped and compiled, as in PopTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import ipu_exec as poptorch


class Branching(nn.Module):
    """Dropout inside, and a forward that asks which mode it is in."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.9)
        self.fc = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> Any:
        dropped = self.dropout(x)
        if self.training:
            return dropped, self.fc(dropped).square().mean()
        return dropped


def quiet() -> poptorch.Options:
    return poptorch.Options().showCompilationProgressBar(False)


def zeros(result: torch.Tensor) -> float:
    return float((result == 0).float().mean())


def test_validation_between_training_calls_leaves_training_in_train_mode() -> None:
    model = Branching()
    training = poptorch.trainingModel(model, quiet())
    validation = poptorch.inferenceModel(model.eval(), quiet())
    model.train()
    batch = torch.ones(8, 64)
    compiled = None
    for _ in range(2):
        model.train()
        assert zeros(training(batch)[0]) > 0.5
        compiled = compiled or training.executable
        assert training.executable is compiled
        model.eval()
        assert zeros(validation(batch)) == 0
        assert zeros(training(batch)[0]) > 0.5  # the script forgot model.train()
        assert not model.training, "the user's module keeps the mode that the user gave it"


def test_modules_inside_are_as_they_are_when_it_compiles() -> None:
    model = Branching()
    training = poptorch.trainingModel(model, quiet())
    model.eval()
    dropped, _ = training(torch.ones(8, 64))  # its own `training` is of when it was wrapped
    assert zeros(dropped) == 0
    model.train()
    assert zeros(training(torch.ones(8, 64))[0]) == 0


def test_destroying_lets_it_be_compiled_in_another_mode() -> None:
    model = Branching().eval()
    wrapped = poptorch.inferenceModel(model, quiet())
    assert zeros(wrapped(torch.ones(8, 64))) == 0
    wrapped.destroy()
    model.dropout.train()
    assert zeros(wrapped(torch.ones(8, 64))) > 0.5


@pytest.mark.parametrize("mode", [True, False])
def test_what_is_loaded_runs_in_the_mode_of_the_model_it_is_loaded_into(
    tmp_path: Any, mode: bool
) -> None:
    model = Branching().eval()
    file = str(tmp_path / "model.poptorch")
    poptorch.inferenceModel(model, quiet()).compileAndExport(file, torch.ones(8, 64))
    loaded = poptorch.load(file)
    loaded.model.train(mode)
    assert zeros(loaded(torch.ones(8, 64))) == 0
