"""Models that branch on data.

The numbers follow the data, the program the path that it was compiled for.
"""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import pytest
import torch

import ipu_exec
from ipu_exec.errors import ContentError
from ipuscope.profiler import open_report
from tests.models import model_of


class Branching(torch.nn.Module):
    """One of two layers, by the sign of the input's sum; and a number read off a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None):
        y = torch.relu(self.up(x)) if x.sum() > 0 else torch.sigmoid(self.down(x))
        y = y * float(x.abs().mean())
        return y if target is None else (y, torch.nn.functional.mse_loss(y, target))


def options(tmp_path: Path) -> ipu_exec.Options:
    return ipu_exec.Options(
        autoreport=True, autoreport_dir=str(tmp_path)
    ).showCompilationProgressBar(False)


def test_inference_follows_the_data_and_the_profile_the_last_path(tmp_path, caplog) -> None:
    model = Branching()
    executor = ipu_exec.inferenceModel(model, options(tmp_path))
    up, down = torch.rand(2, 4), -torch.rand(2, 4)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(executor(up), model(up))
        assert torch.equal(executor(2 * up), model(2 * up)), "another number, and the same path"
        assert not caplog.records
        names = set(open_report(tmp_path / "inference").ops["name"])
        assert "relu" in names and "sigmoid" not in names
        assert torch.equal(executor(down), model(down))
    assert "this call took another path" in caplog.text
    report = open_report(tmp_path / "inference")
    assert "sigmoid" in set(report.ops["name"]) and "relu" not in set(report.ops["name"])
    assert len(report.runs) == 1, "the run that took this path"


def test_an_input_that_is_changed_in_place_is_changed_once() -> None:
    """Running the forward to find out what it reads uses copies of the inputs."""
    step = torch.tensor(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x[1 :: int(step)] += 1
        return x * 2

    ours, plain = torch.zeros(3), torch.zeros(3)
    opts = ipu_exec.Options().showCompilationProgressBar(False)
    out = ipu_exec.inferenceModel(model_of(forward), opts)(ours)
    assert torch.equal(out, model_of(forward)(plain))
    assert torch.equal(ours, plain)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_training_is_that_of_a_plain_loop_whatever_path_it_takes(tmp_path, accumulation) -> None:
    model = Branching()
    plain = copy.deepcopy(model)
    opts = options(tmp_path)
    opts.Training.gradientAccumulation(accumulation)
    executor = ipu_exec.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        x, target = (torch.randn(2 * accumulation, 4, generator=generator) for _ in range(2))
        executor(x, target)
        optimizer.zero_grad()
        for part, wanted in zip(x.chunk(accumulation), target.chunk(accumulation), strict=True):
            (plain(part, wanted)[1] / accumulation).backward()
        optimizer.step()
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(dict(model.named_parameters())[name], parameter)


def test_a_loop_runs_as_often_as_the_data_says(tmp_path) -> None:
    def double(self, x: torch.Tensor) -> torch.Tensor:
        while x.max() < 100:
            x = x * 2
        return x

    executor = ipu_exec.inferenceModel(model_of(double), options(tmp_path))
    assert executor(torch.tensor([30.0])) == 120
    assert len(open_report(tmp_path / "inference").ops.query("aten == 'aten.mul.Tensor'")) == 2
    assert executor(torch.tensor([7.0])) == 112
    assert len(open_report(tmp_path / "inference").ops.query("aten == 'aten.mul.Tensor'")) == 4


def test_a_mask_that_the_forward_keeps_may_be_read(tmp_path) -> None:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None:  # as in torch's example of a language model
            self.mask = torch.eye(4)
        return x * self.mask if bool(self.mask.all()) else x + self.mask

    model = model_of(forward)
    model.mask = None
    executor = ipu_exec.inferenceModel(model, options(tmp_path))
    assert torch.equal(executor(torch.ones(4, 4)), torch.ones(4, 4) + torch.eye(4))


def test_a_saved_executable_knows_its_path(tmp_path, caplog) -> None:
    model = Branching()
    up, down = torch.rand(2, 4), -torch.rand(2, 4)
    first = ipu_exec.inferenceModel(model, options(tmp_path / "first"))
    first.compile(up)
    first.save(str(tmp_path / "model.poptorch"), export_model=False)
    second = ipu_exec.inferenceModel(model, options(tmp_path / "second"))
    second.loadExecutable(str(tmp_path / "model.poptorch"))
    with caplog.at_level(logging.WARNING):
        assert torch.equal(second(up), model(up))
        assert "another path" not in caplog.text
        assert torch.equal(second(down), model(down))
    assert "another path" in caplog.text


def test_buffers_and_random_numbers_are_untouched_by_looking_for_the_path(tmp_path) -> None:
    def forward(self, x: torch.Tensor, target: torch.Tensor):
        y = torch.nn.functional.dropout(self.norm(x), 0.5)
        return y, torch.nn.functional.mse_loss(y if x.sum() > 0 else -y, target)

    model = model_of(forward, norm=torch.nn.BatchNorm1d(4))
    plain = copy.deepcopy(model)
    executor = ipu_exec.trainingModel(
        model, options(tmp_path), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    x = torch.rand(8, 4)
    torch.manual_seed(5)
    output, _ = executor(x, x)
    torch.manual_seed(5)
    wanted, _ = plain(x, x)
    assert torch.equal(output, wanted)
    assert model.norm.num_batches_tracked == 1
    assert torch.equal(model.norm.running_mean, plain.norm.running_mean)


def test_what_the_backward_reads_is_refused_by_name(tmp_path) -> None:
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 2

        @staticmethod
        def backward(context, gradient):
            return gradient * float(gradient.sum())

    def forward(self, x: torch.Tensor):
        y = Backward.apply(self.layer(x))
        return y, y.sum()

    model = model_of(forward, layer=torch.nn.Linear(2, 2))
    executor = ipu_exec.trainingModel(
        model, options(tmp_path), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    with pytest.raises(ContentError, match=r"content of a tensor.*test_control_flow\.py"):
        executor(torch.ones(1, 2))


def test_equal_tensors_may_choose_the_path() -> None:
    """torch.equal reads a bool off two tensors, unless their shapes answer (gpytorch asks it)."""
    model = model_of(
        lambda self, x, y: self.one(x) if torch.equal(x, y) else self.other(x + y[:, :4]),
        one=torch.nn.Linear(4, 4),
        other=torch.nn.Linear(4, 2),
    )
    x = torch.rand(2, 4)
    for y in (x.clone(), x + 1, torch.rand(2, 5)):
        executor = ipu_exec.inferenceModel(model)
        assert torch.equal(executor(x, y), model(x, y))
        reads = [op.aten for op in executor.executable.graph.ops if "eq" in op.aten]
        assert reads == ["aten.eq.Tensor"] * (y.shape == x.shape)
