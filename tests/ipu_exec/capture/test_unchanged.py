"""A model that was run once more than its user asked is left unchanged."""

import copy
from typing import Any

import pytest
import torch

import ipu_exec
from ipu_exec.capture.recording.unchanged import unchanged
from tests.models import model_of


class Remembers(torch.nn.Module):
    """Keeps what it saw in every way that a module can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.seen: list[torch.Tensor] = []
        self.by_name: dict[str, list[int]] = {"calls": []}
        self.total = torch.zeros(())
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.layer(x))
        self.seen.append(y.detach())
        self.by_name["calls"].append(self.count)
        self.total += 1
        self.count += 1
        self.last = y
        return y


def state(model: Remembers) -> tuple[Any, ...]:
    buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
    values = (len(model.seen), copy.deepcopy(model.by_name), float(model.total), model.count)
    return buffers, values, hasattr(model, "last")


def test_everything_is_put_back() -> None:
    model = Remembers()
    model(torch.randn(4, 3))
    del model.last
    buffers, before, last = state(model)
    seen = model.seen
    with unchanged(model):
        model(torch.randn(4, 3))
        assert model.count == 2
    buffers_after, after, last_after = state(model)
    assert before == after and last == last_after and model.seen is seen
    assert all(torch.equal(buffers[name], buffers_after[name]) for name in buffers)


def test_weights_stay_the_same_tensors() -> None:
    model = Remembers()
    before = dict(model.named_parameters())
    with unchanged(model):
        model(torch.randn(4, 3))
    assert all(before[name] is parameter for name, parameter in model.named_parameters())


class Branches(torch.nn.Module):
    """Cannot be copied, and branches on data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.calls = 0

    def __deepcopy__(self, memo: object) -> "Branches":
        raise RuntimeError("cannot be copied")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_a_model_that_cannot_be_copied_may_branch() -> None:
    module = Branches()
    options = ipu_exec.Options().showCompilationProgressBar(False)
    model = ipu_exec.inferenceModel(module, options)
    x = torch.ones(4, 3)
    assert torch.equal(model(x), module.layer(x))


@pytest.mark.parametrize("call", range(3))
def test_a_tensor_may_be_copied_in_forward(call: int) -> None:
    def add_copies(self, x: torch.Tensor) -> torch.Tensor:
        return x + copy.deepcopy(torch.tensor(1.0)) + copy.deepcopy(x)

    options = ipu_exec.Options().showCompilationProgressBar(False)
    x = torch.randn(4, 3)
    assert torch.equal(ipu_exec.inferenceModel(model_of(add_copies), options)(x), x + 1 + x)
