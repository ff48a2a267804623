"""Libraries made for PopTorch replace functions while a model compiles and runs."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import ipu_exec as poptorch
from ipu_exec.base import context
from tests.models import model_of


class Doubled:
    """Has torch.neg double instead, while it is entered."""

    entered = 0

    def __enter__(self) -> None:
        type(self).entered += 1
        self.before = torch.neg
        torch.neg = lambda x: x * 2

    def __exit__(self, *error: object) -> None:
        torch.neg = self.before


def test_models_compile_and_run_inside_what_a_library_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context, "substitutions", [])
    spec = importlib.util.find_spec("ipu_exec._poplar_executor")
    assert spec is not None and spec.loader is not None
    executor = spec.loader.load_module("ipu_exec._poplar_executor")  # as poptorch_geometric does
    executor._OverwriteContextManager.registerSubsitutionManager(Doubled)
    executor._OverwriteContextManager.registerSubsitutionManager(Doubled)
    monkeypatch.setattr(context, "substitutions", executor.substitutions)
    quiet = poptorch.Options().showCompilationProgressBar(False)
    model = poptorch.inferenceModel(model_of(lambda self, x: torch.neg(x)), quiet)
    assert model(torch.ones(2)).tolist() == [2, 2]
    assert [op.aten for op in model.executable.graph.ops] == ["aten.mul.Tensor"]
    assert Doubled.entered == 2, "once to compile and once to run"
    assert torch.neg(torch.ones(1)).item() == -1
