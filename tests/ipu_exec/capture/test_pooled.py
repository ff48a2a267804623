"""The gradient of a maximum reads the pooled output; indices exist only where they are wanted."""

from __future__ import annotations

import torch
from torch import nn

import ipu_exec
from tests.compiling import compiled, operators


class Pooled(nn.Module):
    def __init__(self, wants_indices: bool = False) -> None:
        super().__init__()
        self.before = nn.Conv2d(4, 8, 3, padding=1)
        self.pool = nn.MaxPool2d(2, return_indices=wants_indices)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        pooled = self.pool(self.before(image))
        if isinstance(pooled, tuple):
            return ipu_exec.identity_loss(pooled[0] * pooled[1], reduction="mean")
        return ipu_exec.identity_loss(pooled, reduction="mean")


def test_the_gradient_reads_the_pooled_output_and_no_indices_are_made():
    executable = compiled(Pooled(), torch.zeros(1, 4, 8, 8))
    forward = operators(executable, "max_pool2d_with_indices")[0]
    backward = operators(executable, "max_pool2d_with_indices_backward")[0]
    assert forward.outputs[1] is None and forward.outputs[0] in backward.inputs
    assert all(value in executable.graph.values for value in backward.inputs)
    assert "int64" not in {v.dtype for v in executable.variables if v.role == "activation"}


def test_indices_that_the_model_reads_remain():
    executable = compiled(Pooled(wants_indices=True), torch.zeros(1, 4, 8, 8))
    forward = operators(executable, "max_pool2d_with_indices")[0]
    backward = operators(executable, "max_pool2d_with_indices_backward")[0]
    assert forward.outputs[1] is not None and forward.outputs[1] in backward.inputs
