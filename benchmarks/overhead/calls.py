"""What a call of the engine takes beside the same lines of plain PyTorch.

``python -m benchmarks.overhead.calls`` prints a table and writes it into docs/overhead.md. Plain
PyTorch and the engine take turns, a call each, from the same weights, of a model that multiplies
16 numbers and of an MLP of 1.05 M weights (four layers of 512). Training is with SGD. In inference
a third takes turns too, the thinnest wrapper: one function that cuts the batch, runs the model and
joins copies of its outputs, and looks at nothing. Times are of the processor, of one process with
one thread: medians over calls, and of the differences and ratios of neighbours. Who begins a turn
is drawn, and freed memory stays in the process: else who gives pages back, and who takes new ones,
depends on what ran before (a plain loop then differs from itself by up to 18 %).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable

import torch

import ipu_exec
from benchmarks.dated import dated
from benchmarks.overhead.__main__ import PAGE
from benchmarks.overhead.lightning import HEAD as NEXT
from benchmarks.overhead.lightning import Nothing
from ipu_exec.option_groups.engine_options import ENGINE_OPTIONS_VARIABLE
from tests.models import model_of

HEAD = "## A call"
RUNS = 3000  # in the profile
# of glibc: freed memory stays in the process
STEADY = {f"MALLOC_{name}_THRESHOLD_": str(1 << 30) for name in ("MMAP", "TRIM")}
Call = Callable[[], object]
# (model, rows of a micro-batch, micro-batches of a call, calls)
CASES = [("nothing", 4, 1, 10000), ("nothing", 4, 16, 2000)]
CASES += [("mlp", rows, count, 1600 // count) for rows in (16, 64) for count in (1, 8)]


def made(name: str) -> torch.nn.Module:
    if name == "nothing":
        return Nothing()
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()) for _ in range(4)]
    return model_of(lambda self, x: self.net(x).square().mean(), net=torch.nn.Sequential(*layers))


def plain(module: torch.nn.Module, x: torch.Tensor, count: int, training: bool) -> Call:
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6)

    def infer() -> object:
        with torch.no_grad():
            return [module(part) for part in x.chunk(count)]

    def train() -> object:
        optimizer.zero_grad()
        for part in x.chunk(count):
            loss = module(part)
            loss.backward()
        for parameter in module.parameters() if count > 1 else ():
            parameter.grad.div_(count)
        optimizer.step()
        return loss.detach()

    return train if training else infer


def engine(
    module: torch.nn.Module, x: torch.Tensor, count: int, training: bool, folder: str = ""
) -> Call:
    """``folder``: of a profile that has `RUNS` runs."""
    options = ipu_exec.Options(profile_dir=folder or None).showCompilationProgressBar(False)
    options.setExecutionStrategy(ipu_exec.ShardedExecution())
    if training:
        options.Training.gradientAccumulation(count)
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-6)
        model = ipu_exec.trainingModel(module, options, optimizer)
    else:
        model = ipu_exec.inferenceModel(module, options.deviceIterations(count))
    wanted = {"autoReport.executionProfileProgramRunCount": str(RUNS)} if folder else {}
    os.environ[ENGINE_OPTIONS_VARIABLE] = json.dumps(wanted)
    model.compile(x)
    return lambda: model(x)


def thin(module: torch.nn.Module, x: torch.Tensor, count: int) -> Call:
    """The least that a wrapper of Python can do."""

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            parts = [x.detach()] if count == 1 else x.unsafe_split(len(x) // count)
            outputs = [module(part).clone() for part in parts]
            return outputs[0] if count == 1 else torch.stack(outputs)

    return lambda: call(x)


def timed(loops: list[Call], calls: int) -> list[list[float]]:
    """Microseconds of each loop's calls, which take turns."""
    for loop in loops:
        for _ in range(10):
            loop()
    times: list[list[float]] = [[] for _ in loops]
    turns = [*zip(loops, times, strict=True)]
    for _ in range(calls):
        for loop, taken in random.sample(turns, len(turns)):
            start = time.process_time()
            loop()
            taken.append((time.process_time() - start) * 1e6)
    return times


def measure(name: str, rows: int, count: int, calls: int, training: bool) -> str:
    """A row of the table."""
    module = made(name)
    x = torch.randn(rows * count, 4 if name == "nothing" else 512)
    loops = [make(copy.deepcopy(module), x, count, training) for make in (plain, engine)]
    loops += [] if training else [thin(copy.deepcopy(module), x, count)]
    alone, ours, *least = timed(loops, calls)
    over = statistics.median(b - a for a, b in zip(alone, ours, strict=True))
    ratio = statistics.median(b / a for a, b in zip(alone, ours, strict=True))
    use = "training" if training else "inference"
    took = [f"{value:,.0f} us" for value in (*map(statistics.median, (alone, ours)), over)]
    ratios = [statistics.median(b / a for a, b in zip(alone, one, strict=True)) for one in least]
    cells = [
        name,
        use,
        str(rows),
        str(count),
        *took,
        f"{ratio:.3f}",
        *([f"{one:.3f}" for one in ratios] or ["-"]),
    ]
    return f"| {' | '.join(cells)} |"


def profiled() -> str:
    """What recording adds to the first and to the last of many calls."""
    module, x = made("mlp"), torch.randn(16, 512)
    with tempfile.TemporaryDirectory() as folder:
        loops = [engine(copy.deepcopy(module), x, 1, True, to) for to in ("", folder)]
        alone, ours = timed(loops, RUNS - 10)
        over = [b - a for a, b in zip(alone, ours, strict=True)]
        nbytes = os.path.getsize(os.path.join(folder, "training", "profile.pop"))
    first, last = (
        (statistics.median(one), statistics.fmean(one)) for one in (over[:500], over[-500:])
    )
    return (
        f"Of {RUNS:,} calls of the MLP's training (micro-batch 16), all recorded, one of the first"
        f" 500 takes {first[0]:,.0f} us more than without a profile ({first[1]:,.0f} in the"
        f" mean, which has the copies of the file), one of the last 500 {last[0]:,.0f} us"
        f" ({last[1]:,.0f}). The file then has {nbytes / 1e3:,.0f} kB."
    )


def section(only: str | None) -> list[str]:
    """The part of the page."""
    heads = ("model", "use", "micro-batch", "of them", "plain PyTorch", "engine", "over", "ratio")
    heads += ("the thinnest wrapper's",)
    about = " ".join(str(__doc__).split("\n\n")[1].split()).split(". ", 1)[1]
    lines = [
        HEAD,
        "",
        *textwrap.wrap(f"Made by `python -m benchmarks.overhead.calls`. {about}", 120),
    ]
    lines += ["", f"| {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * (len(heads) - 2)]
    for training in (False, True):
        for case in CASES:
            if only in (None, case[0]):
                lines.append(measure(*case, training))
                print(lines[-1], flush=True)
    if only in (None, "profile"):
        lines += ["", *textwrap.wrap(profiled(), 120)]
        print("\n".join(lines[-4:]), flush=True)
    return [*lines, ""]


def main() -> None:
    """Measure, print, and write the part of the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead.calls")
    parser.add_argument("--only", metavar="NAME", help="nothing, mlp or profile; writes no page")
    args = parser.parse_args()
    if not STEADY.items() <= os.environ.items():
        command = [sys.executable, "-m", "benchmarks.overhead.calls", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | STEADY)
    torch.set_num_threads(1)
    lines = section(args.only)
    if args.only is None:
        before, after, rest = PAGE.read_text().partition(NEXT)
        page = before.partition(HEAD)[0].rstrip()
        PAGE.write_text(dated("\n".join([page, "", *lines, ""])[:-1] + "\n" + after + rest))


if __name__ == "__main__":
    main()
