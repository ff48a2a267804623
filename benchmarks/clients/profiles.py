"""The profiles that clients are run on: the demo, its network on one IPU, BERT-Base."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import ipu_exec
from examples.digits import Mnist
from examples.models import build, split
from ipu_exec.compiler.rows.profile_header import header
from ipu_exec.compiler.rows.profile_rows import rows
from ipu_exec.session.compilation import compile_step
from ipuscope.profiler import ProfileWriter
from ipuscope.profiler.file.records import Run
from tests.models import mnist_batch


@dataclass(frozen=True, slots=True)
class Profiles:
    """Paths: ``pipeline`` is inference of the demo's network on four IPUs, with a run;
    ``one_ipu`` its training on one; ``bert`` training of BERT-Base on one, too large for it.
    """

    pipeline: Path
    one_ipu: Path
    bert: Path


def make(folder: Path) -> Profiles:
    """Compile and write the profiles; nothing is computed."""
    blocks = ("B1", "B2", "B3", "B4")
    pipelined = _options(ipu_exec.PipelinedExecution(*blocks)).deviceIterations(10)
    alone = _options(ipu_exec.ShardedExecution(ipu_exec.Stage(*blocks).ipu(0)))
    images, labels = mnist_batch(40)
    bert = build("bert-base")
    half = tuple(x.half() if x.is_floating_point() else x for x in bert.inputs(bert.micro_batch))
    module = bert.module.half()
    return Profiles(
        _write(folder / "pipeline", Mnist().eval(), (images,), pipelined, None),
        _write(folder / "one", Mnist().train(), (images, labels), alone, 1e-3),
        _write(folder / "bert", module, half, _options(split(bert, 1)), 1e-4),
    )


def _options(strategy: Any) -> ipu_exec.Options:
    options = ipu_exec.Options().showCompilationProgressBar(False)
    options.setExecutionStrategy(strategy)
    return options


def _write(
    folder: Path,
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    options: ipu_exec.Options,
    rate: float | None,
) -> Path:
    """A profile with one run in it. ``rate``: of AdamW's learning; None: inference."""
    optimizer = None if rate is None else ipu_exec.optim.AdamW(module.parameters(), lr=rate)
    executable = compile_step(module, inputs, {}, options, optimizer, rate is not None)
    with ProfileWriter(folder / "profile.pop") as writer:
        writer.meta(**header(executable))
        for batch in rows(executable):
            writer.add(batch)
        writer.add([Run(0, "run 0", 0, 0, 0, 1)])
        return writer.publish()
