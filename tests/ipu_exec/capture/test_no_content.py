"""Python in a forward: copies, pickles, prints, metrics, NumPy. It never ends the process."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn

import ipu_exec as poptorch
from ipu_exec import Error


class Doing(nn.Module):
    """A linear layer whose forward has a side effect."""

    def __init__(self, what: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(4, 4), what
        self.mean = torchmetrics.MeanMetric()
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=4)
        self.kept: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        self.what(self, y)
        return y


def through_a_file(y: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(y.detach(), file)
    file.seek(0)
    return torch.load(file, weights_only=False)  # type: ignore[no-any-return]


def same(one: Any, other: Any) -> None:
    assert one == other


WORK = [
    lambda m, y: copy.deepcopy(torch.tensor(0.0)),
    lambda m, y: copy.deepcopy({"a": [y.detach(), torch.ones(2)]}),
    lambda m, y: copy.deepcopy(m.linear),
    lambda m, y: copy.deepcopy(m.state_dict()),
    lambda m, y: same(pickle.loads(pickle.dumps(torch.tensor([1, 2]))).tolist(), [1, 2]),
    lambda m, y: same(pickle.loads(pickle.dumps(y.detach())).shape, y.shape),
    lambda m, y: same(through_a_file(y).dtype, torch.float32),
    lambda m, y: m.mean.update(y.detach().mean()),
    lambda m, y: m.accuracy(y.softmax(-1), y.argmax(-1)),
    lambda m, y: same(torch.tensor([1.0, 2.0]).numpy().sum(), 3),
    lambda m, y: same(int(np.asarray(torch.tensor(3))), 3),
    lambda m, y: same(torch.tensor([1, 2]).tolist(), [1, 2]),
    lambda m, y: (repr(y), str(y), f"{y.mean():.3f}", f"{y}"),
    lambda m, y: same(f"{torch.tensor(0.5):.2f}", "0.50"),
    lambda m, y: logging.getLogger("a script's").warning("loss %s", y.mean()),
    lambda m, y: m.kept.append((y.mean().item(), float(y.sum()))),
]


@pytest.mark.parametrize("work", WORK)
def test_python_in_a_forward_is_taken(work: Callable[..., Any]) -> None:
    model = Doing(work).eval()
    quiet = poptorch.Options().showCompilationProgressBar(False)
    wrapped = poptorch.inferenceModel(model, quiet)
    x = torch.ones(2, 4)
    for _ in range(6):
        out = wrapped(x)
    assert torch.equal(out, model.linear(x))


@pytest.mark.parametrize(
    "work",
    [lambda m, y: y.detach().numpy(), lambda m, y: np.asarray(y.data), lambda m, y: y.tolist()],
)
def test_what_cannot_be_known_is_an_error_with_its_line(work: Callable[..., Any]) -> None:
    quiet = poptorch.Options().showCompilationProgressBar(False)
    with pytest.raises(Error, match=r"hands a tensor's content to the host.*test_no_content\.py:"):
        poptorch.inferenceModel(Doing(work), quiet).compile(torch.ones(2, 4))


def test_a_constant_that_was_written_to_is_none() -> None:
    def written(model: nn.Module, y: torch.Tensor) -> None:
        constant = torch.tensor([1, 2])
        constant.add_(1)
        constant.numpy()

    quiet = poptorch.Options().showCompilationProgressBar(False)
    with pytest.raises(Error, match="content to the host"):
        poptorch.inferenceModel(Doing(written), quiet).compile(torch.ones(2, 4))


def test_a_tensor_beside_the_model_counts_each_call_once() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = torch.zeros(1)

        def forward(self) -> torch.Tensor:
            self.calls += 1
            return self.calls

    wrapped = poptorch.inferenceModel(
        Counter(), poptorch.Options().showCompilationProgressBar(False)
    )
    assert [wrapped().item(), wrapped().item()] == [1, 2]


def test_metrics_count_each_call_once() -> None:
    model = Doing(lambda m, y: m.mean.update(y.detach().mean())).eval()
    quiet = poptorch.Options().showCompilationProgressBar(False)
    wrapped = poptorch.inferenceModel(model, quiet)
    for _ in range(3):
        out = wrapped(torch.ones(2, 4))
    assert wrapped.mean.weight.item() == 3
    torch.testing.assert_close(wrapped.mean.compute(), out.mean())
