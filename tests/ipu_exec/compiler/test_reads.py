"""What a pipeline stashes of operators of which the backward reads only a shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ipu_exec
from ipu_exec import PipelinedExecution
from ipu_exec.compiler.executable import Executable
from ipu_exec.session.compilation import compile_step


class Pooled(nn.Module):
    """An operator that reads its input in the forward only, alone with what it reads in a Block."""

    def __init__(self, pool: nn.Module, rank: int) -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
        self.first, self.pool, self.head = conv(1, 4, 3, padding=1), pool, nn.LazyLinear(3)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("pool"):
            x = self.pool(self.first(x)).flatten(1)
        with ipu_exec.Block("head"):
            return nn.functional.cross_entropy(self.head(x), target)


def compiled(pool: nn.Module, rank: int) -> Executable:
    torch.manual_seed(0)
    model = Pooled(pool, rank)
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
    (nn.MaxPool1d(2), 1),
    (nn.MaxPool2d(2), 2),
    (nn.MaxPool3d(2), 3),
    (nn.AdaptiveMaxPool1d(2), 1),
    (nn.AdaptiveMaxPool2d(2), 2),
    (nn.AdaptiveMaxPool3d(2), 3),
    (nn.FractionalMaxPool2d(2, 4), 2),
    (nn.FractionalMaxPool3d(2, 4), 3),
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


def test_an_input_that_the_backward_reads_is_stashed() -> None:
    stashed = [v.name for v in compiled(nn.Softplus(), 3).variables if v.role == "stash"]
    assert any("convolution" in name for name in stashed)
