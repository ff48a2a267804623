"""Random costs of few enough Blocks for brute force, and small models of equal layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import ipu_exec
from benchmarks.rebalance.random_costs import random_costs
from ipu_exec import PipelinedExecution, Stage
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.profiler import Report, open_report
from tests.models import LayersInBlocks


def random_case(random: np.random.Generator, stages: int, most: int = 8, **more: object) -> Costs:
    count = int(random.integers(stages, most))
    full = float(random.uniform(0.8, 1.6))
    return random_costs(random, count, 4, stages=stages, full=full, **more)  # type: ignore[arg-type]


def deep(
    folder: Path,
    sizes: dict[str, int],
    stages: list[tuple[str, ...]],
    frozen: int = 0,
    micro_batches: int = 16,
    micro_batch: int = 16,
) -> Report:
    """The profile of equal layers in these stages; the first ``frozen`` layers do not train."""
    options = ipu_exec.Options(autoreport=True, autoreport_dir=folder).showCompilationProgressBar(
        False
    )
    options.Training.gradientAccumulation(micro_batches)
    options.setExecutionStrategy(
        PipelinedExecution(*(Stage(*names).ipu(k) for k, names in enumerate(stages)))
    )
    model = LayersInBlocks(sizes)
    model.layers[:frozen].requires_grad_(False)
    training = ipu_exec.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    samples = micro_batches * micro_batch
    training(torch.randn(samples, 256), torch.randint(256, (samples,)))
    return open_report(folder)
