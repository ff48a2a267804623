"""Compiling a small model for training, and finding operators in what it becomes."""

from __future__ import annotations

import torch
from torch import nn

import ipu_exec
from ipu_exec.compiler.executable import Executable
from ipu_exec.graph import OpNode


def compiled(
    model: nn.Module, *inputs: torch.Tensor, options: ipu_exec.Options | None = None
) -> Executable:
    """A model that returns its loss, compiled for training."""
    options = (options or ipu_exec.Options()).showCompilationProgressBar(False)
    executor = ipu_exec.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(*inputs)
    executable: Executable = executor.executable
    return executable


def operators(executable: Executable, name: str) -> list[OpNode]:
    """Operators by their ATen name, without overload."""
    return [op for op in executable.graph.ops if op.aten.startswith(f"aten.{name}.")]
