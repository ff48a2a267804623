"""How the CPU seconds of a compile with its profile grow: docs/growth.md.

``python -m benchmarks.growth`` compiles each size in a process of its own, without weights, fits an
exponent to the seconds (least squares over the logarithms, of the sizes above the smallest) and
writes the page. ``--only NAME`` prints a row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import ipu_exec
from benchmarks.compile.growth import cpu, imported, measured
from benchmarks.dated import dated
from benchmarks.memory import configure, optimiser
from examples.models import bert, split

PAGE = Path(__file__).parents[2] / "docs" / "growth.md"
LINEAR = 1.1  # an exponent above needs an explanation


def of_bert(accumulation: int = 64, **config: int) -> dict[str, float]:
    """BERT-Large with other numbers, on 4 IPUs in half precision."""
    began = cpu()
    with ipu_exec.no_weights():
        example = bert.example(replace(bert.LARGE, **config))  # type: ignore[arg-type]
        module = example.module.half()
    return compiled(began, example, module, 4, accumulation)


class Chain(torch.nn.Module):
    """Layers one after another, all of one size, or each of its own."""

    def __init__(self, layers: int, distinct: bool) -> None:
        super().__init__()
        own = [164 + at // 2 % 100 if at % 2 else 64 + at // 200 for at in range(1, layers)]
        widths = [64, *(own if distinct else [64] * (layers - 1)), 64]
        self.layers = torch.nn.ModuleList(itertools.starmap(torch.nn.Linear, pairwise(widths)))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and loss."""
        for layer in self.layers:
            x = layer(x)
        return x, torch.nn.functional.mse_loss(x, y)


def of_chain(layers: int, ipus: int, replicas: int, distinct: bool) -> dict[str, float]:
    """A chain of linear layers, each a Block, on ``ipus`` IPUs with 512 micro-batches."""
    began = cpu()
    with ipu_exec.no_weights():
        module = Chain(layers, distinct)
    bounds = [round(layers * at / ipus) for at in range(ipus + 1)]
    for ipu, first in enumerate(bounds[:-1]):
        for at in range(first, bounds[ipu + 1]):
            ipu_exec.BeginBlock(module.layers[at], f"B{at}", ipu_id=ipu)
    with tempfile.TemporaryDirectory() as folder:
        options = ipu_exec.Options(profile_dir=folder).showCompilationProgressBar(False)
        options.replicationFactor(replicas).Training.gradientAccumulation(512)
        options.setExecutionStrategy(ipu_exec.PipelinedExecution(ipu_exec.AutoStage.SameAsIpu))
        model = ipu_exec.trainingModel(module, options, optimiser(module, False))
        samples = torch.zeros(512 * replicas, 64)
        model.compile(samples, samples)
        return measured(cpu() - began, folder)


def compiled(
    began: float, example: object, module: torch.nn.Module, ipus: int, accumulation: int
) -> dict[str, float]:
    """The seconds until the profile of an example is written."""
    with tempfile.TemporaryDirectory() as folder:
        options = ipu_exec.Options(profile_dir=folder).showCompilationProgressBar(False)
        options.Training.gradientAccumulation(accumulation)
        options.setExecutionStrategy(split(example, ipus))  # type: ignore[arg-type]
        configure(options, "bert-large", ipus)
        model = ipu_exec.trainingModel(module, options, optimiser(module, True))
        inputs = example.inputs(example.micro_batch * accumulation)  # type: ignore[attr-defined]
        try:
            model.compile(*(x.half() if x.is_floating_point() else x for x in inputs))
        except ipu_exec.OutOfMemoryError:
            pass  # its profile is written all the same
        return measured(cpu() - began, folder)


@dataclass(frozen=True)
class Axis:
    """What grows, its sizes, what is compiled, and why an exponent is above `LINEAR`."""

    words: str
    sizes: tuple[int, ...]
    case: Callable[[int], dict[str, float]]
    why: str = ""


AXES = {
    "layers": Axis(
        "layers of BERT-Large on 4 IPUs",
        (6, 12, 24, 48, 96),
        lambda n: of_bert(layers=n),
    ),
    "ipus": Axis(
        "IPUs, a linear layer each (1,024: 4 replicas of 256)",
        (4, 16, 64, 256, 1024),
        lambda n: of_chain(min(n, 256), min(n, 256), max(1, n // 256), False),
    ),
    "sequence": Axis(
        "tokens a sequence, 2 layers of BERT-Large",
        (128, 512, 2048, 8192),
        lambda n: of_bert(8, layers=2, sequence=n, positions=max(512, n)),
    ),
    "micro-batch": Axis(
        "samples a micro-batch, 2 layers of BERT-Large",
        (1, 4, 16, 64),
        lambda n: of_bert(8, layers=2, micro_batch=n),
    ),
    "blocks": Axis(
        "distinct Blocks, a linear layer each, on 16 IPUs (10,000: 256)",
        (30, 100, 300, 1000, 10_000),  # the code of about 60 fits on an IPU
        lambda n: of_chain(n, 16 if n <= 1000 else 256, 1, True),
    ),
}


def alone(name: str, size: int) -> dict[str, float]:
    """A size in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.growth", "--one", name, str(size)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    answer: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return answer


def exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """The fitted exponent, without the smallest size, whose seconds are a constant's."""
    slope, _ = np.polyfit(np.log(sizes[1:]), np.log(seconds[1:]), 1)
    return float(slope)


def row(name: str) -> str:
    """A row of the page."""
    axis = AXES[name]
    points = [alone(name, size) for size in axis.sizes]
    cells = ", ".join(
        f"{size:,}: {point['seconds']:.1f}" for size, point in zip(axis.sizes, points, strict=True)
    )
    fitted = exponent(axis.sizes, [point["seconds"] for point in points])
    last = points[-1]
    most = f"{last['gib']:.2f} GiB, {last['mb']:.1f} MB"
    note = axis.why if fitted > LINEAR else ""
    return f"| {axis.words} | {cells} | {fitted:.2f} | {most} | {note} |"


def main() -> None:
    """Measure and write the page, or do what is asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=AXES, help="print one row")
    args = parser.parse_args()
    if args.one:
        imported()
        print(json.dumps(AXES[args.one[0]].case(int(args.one[1]))))
        return
    lines = [
        "# How a compile grows",
        "",
        "CPU seconds from building the model without weights to the written profile, each size in a"
        " process of its own (`python -m benchmarks.growth`); imports are left out. The exponent is"
        " fitted to the logarithms of all sizes but the smallest: 1 is linear.",
        "",
        "| growing | CPU seconds | exponent | most memory and profile of the largest | why above"
        f" {LINEAR} |",
        "| --- | --- | ---: | --- | --- |",
    ]
    for name in [args.only] if args.only else AXES:
        lines.append(row(name))
        print(lines[-1], flush=True)
    if not args.only:
        PAGE.write_text(dated("\n".join([*lines, ""])))


if __name__ == "__main__":
    main()
