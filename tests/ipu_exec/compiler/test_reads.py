"""The stash of a pipeline for operators of which the backward reads only a shape."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import ipu_exec
from ipu_exec import PipelinedExecution
from ipu_exec.compiler.executable import Executable
from ipu_exec.lowering import info
from ipu_exec.session.compilation import compile_step
from tests.models import model_of


def pool_and_head(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The pooling reads its input in the forward only, alone with what it reads in a Block."""
    with ipu_exec.Block("pool"):
        x = self.pool(self.first(x)).flatten(1)
    with ipu_exec.Block("head"):
        return nn.functional.cross_entropy(self.head(x), target)


def compiled(pool: nn.Module, rank: int) -> Executable:
    torch.manual_seed(0)
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    first = conv(1, 4, 3, padding=1)
    model = model_of(pool_and_head, first=first, pool=pool, head=nn.LazyLinear(3))
    batch = torch.randn(2, 1, *(8,) * rank), torch.tensor([0, 2])
    model(*batch)
    options = ipu_exec.Options().showCompilationProgressBar(False)
    options.setExecutionStrategy(PipelinedExecution("pool", "head"))
    options.Training.gradientAccumulation(4)
    options._Popart.set("autoRecomputation", 0)  # all that the backward reads is stashed
    return compile_step(
        model, batch, {}, options, torch.optim.SGD(model.parameters(), lr=0.1), True
    )


POOLS = [
    (nn.AvgPool1d(2), 1),
    (nn.AvgPool2d(2), 2),
    (nn.AvgPool3d(2), 3),
    (nn.AdaptiveAvgPool1d(2), 1),
    (nn.AdaptiveAvgPool2d(2), 2),
    (nn.AdaptiveAvgPool3d(2), 3),
    (nn.ReflectionPad1d(1), 1),
    (nn.ReflectionPad3d(1), 3),
    (nn.ReplicationPad2d(1), 2),
]


@pytest.mark.parametrize(("pool", "rank"), POOLS, ids=lambda item: type(item).__name__)
def test_an_input_of_which_only_the_shape_is_read_is_not_stashed(
    pool: nn.Module, rank: int
) -> None:
    stashed = {v.name: v for v in compiled(pool, rank).variables if v.role == "stash"}
    assert "input.0/stash" in stashed  # the convolution's, whose weight's gradient needs it
    assert not any("convolution" in name for name in stashed), sorted(stashed)


MAXIMA = [
    (nn.MaxPool1d(2), 1),
    (nn.MaxPool2d(2), 2),
    (nn.MaxPool3d(2), 3),
    (nn.AdaptiveMaxPool1d(2), 1),
    (nn.AdaptiveMaxPool2d(2), 2),
    (nn.AdaptiveMaxPool3d(2), 3),
    (nn.FractionalMaxPool2d(2, 4), 2),
    (nn.FractionalMaxPool3d(2, 4), 3),
]


@pytest.mark.parametrize(("pool", "rank"), MAXIMA, ids=lambda item: type(item).__name__)
def test_a_maximums_gradient_reads_input_and_output(pool: nn.Module, rank: int) -> None:
    """It has no indices, as PopART's MaxPoolGradOp has none."""
    stashed = {v.name: v for v in compiled(pool, rank).variables if v.role == "stash"}
    kinds = {name.split("/")[-2] for name in stashed if name != "input.0/stash"}
    assert len(kinds) == 2
    assert "convolution:0" in kinds
    assert any("max_pool" in name and name.endswith(":0") for name in kinds), kinds
    assert {v.dtype for v in stashed.values()} == {"float32"}


def test_an_input_that_the_backward_reads_is_stashed() -> None:
    stashed = [v.name for v in compiled(nn.Softplus(), 3).variables if v.role == "stash"]
    assert any("convolution" in name for name in stashed)


class Blinded(TorchDispatchMode):
    """Gives every operator NaN for inputs that `OperatorInfo` says it does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.blinded: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = list(args)
        for position in info(str(func)).unread_operands(args):
            operands[position] = torch.full_like(args[position], torch.nan)
            self.blinded.append(str(func))
        return func(*operands, **(kwargs or {}))


@pytest.mark.parametrize(("pool", "rank"), POOLS, ids=lambda item: type(item).__name__)
def test_gradients_do_not_depend_on_what_is_not_read(pool: nn.Module, rank: int) -> None:
    def gradient(mode: TorchDispatchMode | None) -> torch.Tensor:
        torch.manual_seed(0)
        x = torch.randn(2, 4, *(8,) * rank, requires_grad=True)
        loss = nn.functional.cross_entropy(pool(x).flatten(1), torch.tensor([0, 2]))
        if mode is None:
            loss.backward()
        else:
            with mode:
                loss.backward()
        assert x.grad is not None
        return x.grad

    mode = Blinded()
    assert torch.equal(gradient(None), gradient(mode))
    assert any("pool" in name or "pad" in name for name in mode.blinded)
    assert any("nll_loss" in name for name in mode.blinded)


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)])
def test_a_convolutions_gradients_do_not_depend_on_what_is_not_read(
    wanted: tuple[bool, bool],
) -> None:
    def gradients(mode: TorchDispatchMode | None) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        x = torch.randn(2, 3, 8, requires_grad=wanted[0])
        weight = torch.randn(4, 3, 3, requires_grad=wanted[1])
        out = nn.functional.conv1d(x, weight).sum()
        if mode is None:
            out.backward()
        else:
            with mode:
                out.backward()
        return [x.grad, weight.grad]

    mode = Blinded()
    for plain, blinded in zip(gradients(None), gradients(mode), strict=True):
        assert (plain is None) == (blinded is None)
        assert plain is None or torch.equal(plain, blinded)  # type: ignore[arg-type]
    assert any("convolution_backward" in name for name in mode.blinded) == (wanted != (True, True))
