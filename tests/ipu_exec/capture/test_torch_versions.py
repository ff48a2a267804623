"""Differences between releases of PyTorch do not change the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ipu_exec.capture.recording import fake_tensors
from tests.ipu_exec.capture.test_step import training_graph
from tests.models import Mnist, mnist_batch


def of_adagrad() -> tuple[list[Any], list[Any]]:
    """Operators with their inputs and outputs, and the storages."""
    model = Mnist()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1, initial_accumulator_value=0.5)
    graph = training_graph(model, *mnist_batch(4), optimizer=optimizer)
    ops = [(op.aten, op.direction) for op in graph.ops]
    storages = [(one.name, one.role, one.elements, one.dtype) for one in graph.storages.values()]
    return ops, storages


def test_an_adagrad_that_begins_with_its_state_is_captured_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_it_is = of_adagrad()
    monkeypatch.setattr(fake_tensors, "adagrad_begins_with_state", lambda: True)
    assert of_adagrad() == as_it_is
    assert any(str(name).endswith("/sum") for name, *_ in as_it_is[1])
