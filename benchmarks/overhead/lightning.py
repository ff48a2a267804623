"""What Lightning's loop costs over PopTorch's: the same weight updates of the same model.

``python -m benchmarks.overhead.lightning`` prints a table and writes it into docs/overhead.md.
Four loops run in turns from the same weights: plain PyTorch, ``Trainer(accelerator="cpu")``, a call
of the engine for each weight update (PopTorch's loop) and ``Trainer(accelerator="ipu")``. The first
two say what Lightning costs by itself, wherever it runs: hooks, data and logging, once a
micro-batch. Ours is what ``accelerator="ipu"`` adds to ``"cpu"``. A turn is one epoch; its first
updates, which compile, are left out. Times are of the processor, medians over turns of a turn's
median, of one process with one thread; the Trainers' losses must be equal.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import ipu_exec
import ipu_exec.lightning
from benchmarks.dated import dated
from benchmarks.overhead.__main__ import CASES, made

PAGE = Path(__file__).parents[2] / "docs" / "overhead.md"
HEAD = "## Under Lightning"
SKIPPED = 2  # updates at the start of a turn
Turn = Callable[[], tuple[float, list[float]]]  # seconds of a weight update, and the losses


class Wrapped(LightningModule):
    """The model as a LightningModule that returns and logs its loss."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        outputs = self.module(*batch)
        loss = outputs[-1] if isinstance(outputs, tuple) else outputs
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Times(Callback):
    """The time at which each weight update finished, and the last loss."""

    def __init__(self) -> None:
        self.done: list[float] = []
        self.losses: list[float] = []

    def on_train_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self.done.append(time.process_time())
            self.losses.append(float(outputs["loss"]) * trainer.accumulate_grad_batches)


def _middle(done: list[float]) -> float:
    gaps = [after - before for before, after in itertools.pairwise(done)]
    return statistics.median(gaps[SKIPPED:])


def trained(module: torch.nn.Module, batches: list[Any], accumulation: int, on: str) -> Turn:
    """Run one epoch under Lightning."""
    wrapped = Wrapped(module)

    def turn() -> tuple[float, list[float]]:
        times = Times()
        trainer = Trainer(
            accelerator=on,
            devices=1,
            max_epochs=1,
            accumulate_grad_batches=accumulation,
            callbacks=[times],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(wrapped, torch.utils.data.DataLoader(batches, batch_size=None))
        return _middle(times.done), times.losses

    return turn


def called(module: torch.nn.Module, batches: list[Any], accumulation: int) -> Turn:
    """Run one epoch of PopTorch's loop."""
    options = ipu_exec.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    options.setExecutionStrategy(ipu_exec.ShardedExecution())
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    groups = [batches[i : i + accumulation] for i in range(0, len(batches), accumulation)]

    def turn() -> tuple[float, list[float]]:
        model = ipu_exec.trainingModel(module, options, optimizer)
        done, losses = [], []
        for group in groups:
            inputs = [torch.cat(column) for column in zip(*group, strict=True)]
            outputs = model(*inputs)
            loss = outputs[-1] if isinstance(outputs, tuple) else outputs
            losses.append(float(loss.reshape(-1)[-1]))
            done.append(time.process_time())
        model.destroy()
        return _middle(done), losses

    return turn


def looped(module: torch.nn.Module, batches: list[Any], accumulation: int) -> Turn:
    """Run one epoch of plain PyTorch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    groups = [batches[i : i + accumulation] for i in range(0, len(batches), accumulation)]

    def turn() -> tuple[float, list[float]]:
        done, losses = [], []
        for group in groups:
            optimizer.zero_grad()
            for batch in group:
                output = module(*batch)
                loss = output[-1] if isinstance(output, tuple) else output
                (loss / accumulation).backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            done.append(time.process_time())
        return _middle(done), losses

    return turn


def _over(taken: dict[str, list[float]], what: str, other: str) -> str:
    """How much longer ``what`` takes than ``other``, comparing adjacent turns."""
    ratios = [b / a for a, b in zip(taken[other], taken[what], strict=True)]
    return f"{statistics.median(ratios) - 1:+.1%}"


def measure(name: str, micro_batch: int, accumulation: int, updates: int, turns: int) -> str:
    """A row of the table."""
    module, inputs = made(name, micro_batch * accumulation)
    one = list(zip(*(tensor.chunk(accumulation) for tensor in inputs), strict=True))
    batches = [list(batch) for batch in one] * updates
    loops = {
        "plain PyTorch": looped(copy.deepcopy(module), batches, accumulation),
        "Trainer, cpu": trained(copy.deepcopy(module), batches, accumulation, "cpu"),
        "PopTorch's loop": called(copy.deepcopy(module), batches, accumulation),
        "Trainer, ipu": trained(copy.deepcopy(module), batches, accumulation, "ipu"),
    }
    times_of: dict[str, list[float]] = {what: [] for what in loops}
    for _ in range(turns):
        losses = {}
        for what, loop in loops.items():
            seconds, losses[what] = loop()
            times_of[what].append(seconds)
        if losses["Trainer, ipu"] != losses["Trainer, cpu"]:
            raise SystemExit(f"{name}: the Trainers do not compute the same losses: {losses}")
        if len(losses["PopTorch's loop"]) != len(losses["Trainer, ipu"]):
            raise SystemExit(f"{name}: the loops do not make the same number of weight updates")
    middle = {what: statistics.median(times) for what, times in times_of.items()}
    cells = (
        name,
        str(micro_batch),
        str(accumulation),
        *(f"{middle[w] * 1e3:,.1f} ms" for w in loops),
        _over(times_of, "Trainer, cpu", "plain PyTorch"),
        _over(times_of, "Trainer, ipu", "Trainer, cpu"),
        _over(times_of, "Trainer, ipu", "PopTorch's loop"),
    )
    return f"| {' | '.join(cells)} |"


class Nothing(torch.nn.Module):
    """A step with next to no numbers: what is left is the loops' own time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.weight * batch).sum()


def alone() -> str:
    """What each loop takes for a micro-batch by itself, and from when on that is within 5 %."""
    accumulation, updates, turns = 16, 20, 5
    batches = [[torch.ones(4, 4)] for _ in range(accumulation * updates)]
    loops = {
        "plain PyTorch": looped(Nothing(), batches, accumulation),
        "Trainer, cpu": trained(Nothing(), batches, accumulation, "cpu"),
        "PopTorch's loop": called(Nothing(), batches, accumulation),
        "Trainer, ipu": trained(Nothing(), batches, accumulation, "ipu"),
    }
    times_of: dict[str, list[float]] = {what: [] for what in loops}
    for _ in range(turns):
        for what, loop in loops.items():
            times_of[what].append(loop()[0] / accumulation)
    plain, on_cpu, call, on_ipu = (min(times_of[what]) * 1e6 for what in times_of)
    over = on_ipu - call
    return (
        "Of a step that multiplies 16 numbers and logs their sum, a micro-batch takes at the least"
        f" {plain:,.0f} us in plain PyTorch, {on_cpu:,.0f} us under `Trainer(accelerator='cpu')`,"
        f" {call:,.0f} us in PopTorch's loop and {on_ipu:,.0f} us under"
        f" `Trainer(accelerator='ipu')`. The {over:,.0f} us between the last two are 5 % of"
        f" {over / 0.05 / 1e3:,.1f} ms: a model whose micro-batch takes the host less is not"
        " within 5 % of PopTorch's loop."
    )


def section(only: str | None = None) -> list[str]:
    """The part of the page."""
    heads = (
        "model",
        "micro-batch",
        "accumulation",
        "plain PyTorch",
        "Trainer, cpu",
        "PopTorch's loop",
        "Trainer, ipu",
        "Lightning's own",
        "ours",
        "Trainer, ipu, over PopTorch's",
    )
    about = " ".join(str(__doc__).split("\n\n")[1].split()).split(". ", 1)[1]
    made_by = f"Made by `python -m benchmarks.overhead.lightning`. {about.replace('``', '`')}"
    lines = [HEAD, "", *textwrap.wrap(made_by, 120), ""]
    lines += [f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for name, micro_batch, accumulation, rounds in CASES:
        if only in (None, name):
            lines.append(measure(name, micro_batch, accumulation, max(5, rounds // 5), 4))
            print(lines[-1], flush=True)
    if only in (None, "nothing"):
        lines += ["", *textwrap.wrap(alone(), 120)]
        print("\n".join(lines[-4:]), flush=True)
    return lines


def main() -> None:
    """Measure, print, and write the part of the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead.lightning")
    parser.add_argument("--only", metavar="NAME", help="only this model, or nothing; no page")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = section(args.only)
    if args.only is None:
        page = PAGE.read_text().split(HEAD)[0].rstrip()
        PAGE.write_text(dated("\n".join([page, "", *lines, ""])))


if __name__ == "__main__":
    main()
