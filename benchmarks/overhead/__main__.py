"""What the engine adds to plain PyTorch, and what a profile adds to the engine.

``python -m benchmarks.overhead`` prints a table and writes it to docs/overhead.md. Three loops do
the same weight updates of the same model from the same weights, one after the other in turns, so
that what else the machine does meets all three: plain PyTorch with gradient accumulation, the
engine, and the engine with autoreport. Compiling and the first call are left out. Times are of the
processor, medians over rounds, of one process with one thread; the three losses must be equal.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import ipu_exec
from benchmarks.dated import dated
from examples.models import build
from tests.models import Mnist, mnist_batch

PAGE = Path(__file__).parents[2] / "docs" / "overhead.md"
Loop = Callable[[], float]
# (name, micro-batch, accumulation, rounds)
CASES = (("mnist", 40, 16, 60), ("resnet-18", 2, 8, 9), ("bert-base, tiny", 4, 16, 60))


def made(name: str, samples: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    if name == "mnist":
        return Mnist(), mnist_batch(samples)
    name, _, tiny = name.partition(", ")
    example = build(name, bool(tiny))
    for part in example.module.modules():  # each loop would draw other numbers
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return example.module, example.inputs(samples)


def plain(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], accumulation: int) -> Loop:
    """One weight update in plain PyTorch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    parts = list(zip(*(tensor.chunk(accumulation) for tensor in inputs), strict=True))

    def update() -> float:
        optimizer.zero_grad()
        for part in parts:
            outputs = module(*part)
            loss = outputs[-1] if isinstance(outputs, tuple) else outputs
            (loss / accumulation).backward()
        optimizer.step()
        return float(loss.detach())

    return update


def engine(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], accumulation: int, folder: str | None
) -> Loop:
    """One call of the engine; ``folder`` is where a profile goes, or None for none."""
    options = ipu_exec.Options(profile_dir=folder)
    options.showCompilationProgressBar(False).Training.gradientAccumulation(accumulation)
    options.setExecutionStrategy(ipu_exec.ShardedExecution())
    model = ipu_exec.trainingModel(
        module, options, ipu_exec.optim.SGD(module.parameters(), lr=1e-3)
    )

    def update() -> float:
        outputs = model(*inputs)
        return float((outputs[-1] if isinstance(outputs, tuple) else outputs).reshape(-1)[-1])

    return update


@contextmanager
def loops(name: str, micro_batch: int, accumulation: int) -> Iterator[dict[str, Loop]]:
    """The three loops of a model, each on its own copy of the same weights."""
    module, inputs = made(name, micro_batch * accumulation)
    copies = [copy.deepcopy(module) for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        yield {
            "plain PyTorch": plain(copies[0], inputs, accumulation),
            "engine": engine(copies[1], inputs, accumulation, None),
            "engine and profile": engine(copies[2], inputs, accumulation, folder),
        }


def timed(name: str, micro_batch: int, accumulation: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of the updates of each loop, in turns."""
    with loops(name, micro_batch, accumulation) as updates:
        losses = {
            what: [loop(), loop()] for what, loop in updates.items()
        }  # compiles; and the second run is profiled
        seconds: dict[str, list[float]] = {what: [] for what in updates}
        for _ in range(rounds):
            for what, loop in updates.items():
                start = time.process_time()
                losses[what].append(loop())
                seconds[what].append(time.process_time() - start)
    if len({tuple(values) for values in losses.values()}) > 1:
        raise SystemExit(f"{name}: the three loops do not compute the same losses: {losses}")
    return seconds


def ratios(name: str, micro_batch: int, accumulation: int, rounds: int) -> tuple[float, float]:
    """The engine over plain PyTorch, and the engine with a profile over it without."""
    return _ratios(timed(name, micro_batch, accumulation, rounds))


def _ratios(seconds: dict[str, list[float]]) -> tuple[float, float]:
    # A round's three times are neighbours: the median of their ratios is steadier than the ratio of
    # medians.
    plain, alone, profiled = seconds.values()
    return (
        statistics.median(b / a for a, b in zip(plain, alone, strict=True)),
        statistics.median(b / a for a, b in zip(alone, profiled, strict=True)),
    )


def measure(name: str, micro_batch: int, accumulation: int, rounds: int) -> str:
    """Measure one row of the table."""
    seconds = timed(name, micro_batch, accumulation, rounds)
    middle = {what: statistics.median(values) for what, values in seconds.items()}
    added, traced = (ratio - 1 for ratio in _ratios(seconds))
    cells = (
        name,
        str(micro_batch),
        str(accumulation),
        *(f"{value * 1e3:,.1f} ms" for value in middle.values()),
    )
    return f"| {' | '.join(cells)} | {added:+.1%} | {traced:+.1%} |"


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="only this model; writes no page")
    args = parser.parse_args()
    heads = (
        "model",
        "micro-batch",
        "accumulation",
        "plain PyTorch",
        "engine",
        "engine and profile",
    )
    torch.set_num_threads(1)
    lines = ["# What the engine and the profile cost", ""]
    about = " ".join(str(__doc__).split("\n\n")[1].split()).split(". ", 1)[1]
    lines += [*textwrap.wrap(f"Made by `python -m benchmarks.overhead`. {about}", 120), ""]
    lines += [
        f"| {' | '.join(heads)} | engine over plain | profile over engine |",
        "| --- |" + " ---: |" * 7,
    ]
    for case in CASES:
        if args.only in (None, case[0]):
            lines.append(measure(*case))
            print(lines[-1], flush=True)
    if args.only is None:
        _, head, others = PAGE.read_text().partition("\n## ")  # of benchmarks.overhead.lightning
        PAGE.write_text(dated("\n".join([*lines, ""]) + head + others))


if __name__ == "__main__":
    main()
