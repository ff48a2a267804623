"""Split models naively, take the best split from that profile, compile again, and compare.

``python -m benchmarks.rebalance`` prints a table and writes it to docs/rebalance.md. Naive is as many Blocks a stage
everywhere. Other ways to split are held against the same costs: as many parameters a stage, greedy by memory (fill a
stage until its share of the bytes is reached, as PopLiner is described), and recursive halving of the cost (as
torchgpipe's balance by time is described). Where a model does not fit its tiles at this micro-batch in any split, the
memory is left out of the choice, and the table says so.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

import ipu_exec
from examples.models import Example, build, split
from ipu_exec.compile import Executable, compile_step
from profiler import ProfileWriter, Report, open_report
from profiler.rebalance import Assignment, Costs, best_split, what_if

PAGE = Path(__file__).parents[2] / "docs" / "rebalance.md"
CASES = (("resnet-50", 4, 16), ("bert-large", 4, 64), ("gpt2-small", 8, 64), ("vit-b16", 4, 64))


def compiled(example: Example, strategy: ipu_exec.PipelinedExecution, accumulation: int) -> Executable:
    """As a training step in fp16 with AdamW."""
    options = ipu_exec.Options().showCompilationProgressBar(False).setExecutionStrategy(strategy)
    options.autoRoundNumIPUs(True).Training.gradientAccumulation(accumulation)
    inputs = tuple(x.half() if x.is_floating_point() else x for x in example.inputs(example.micro_batch))
    optimiser = ipu_exec.optim.AdamW(example.module.parameters(), lr=1e-4)
    return compile_step(example.module, inputs, {}, options, optimiser, True)


def profile(executable: Executable, folder: Path) -> Report:
    """The compile's profile, without runs."""
    folder.mkdir()
    with ProfileWriter(folder / "profile.pop") as writer:
        target = executable.target
        latency = round(ipu_exec.machine.LINK_LATENCY_SECONDS * target.clock_hz)
        writer.meta(kind="training", micro_batch=executable.micro_batch, strategy="pipelined", link_latency=latency)
        writer.meta(link_bytes_per_cycle=target.link_bytes_per_cycle)
        for rows in executable.rows():
            writer.add(rows)
        writer.publish()
    return open_report(folder)


def by_share(weight: np.ndarray, stages: int) -> Assignment:
    """Cut where the running sum passes each stage's share."""
    total = np.cumsum(weight) - weight / 2
    stage = np.minimum((total * stages / max(1, weight.sum())).astype(int), stages - 1)
    return filled(stage.tolist(), stages)


def halved(weight: np.ndarray, stages: int) -> Assignment:
    """Cut in the middle of the cost, and each half again."""
    parts = [(0, len(weight))]
    while len(parts) < stages:
        at = max((k for k, (a, b) in enumerate(parts) if b - a > 1), key=lambda k: int(weight[slice(*parts[k])].sum()))
        a, b = parts[at]
        running = np.cumsum(weight[a:b])
        middle = a + 1 + int(np.abs(running[:-1] - running[-1] / 2).argmin())
        parts[at : at + 1] = [(a, middle), (middle, b)]
    return Assignment(tuple(a for a, _ in parts), tuple(range(stages)))


def filled(stage: list[int], stages: int) -> Assignment:
    """An assignment in which each stage has a Block."""
    starts = [0]
    for k in range(1, stages):
        wanted = next((block for block, at in enumerate(stage) if at >= k), len(stage))
        starts.append(min(max(wanted, starts[-1] + 1), len(stage) - (stages - k)))
    return Assignment(tuple(starts), tuple(range(stages)))


def uniform(blocks: int, stages: int) -> Assignment:
    return Assignment(tuple(round(k * blocks / stages) for k in range(stages)), tuple(range(stages)))


WAYS: dict[str, Callable[[Costs, Report, int], Assignment]] = {
    "as many Blocks": lambda c, r, k: uniform(len(c), k),
    "as many parameters": lambda c, r, k: by_share(r.blocks["weight_bytes"].to_numpy(), k),
    "greedy by memory": lambda c, r, k: by_share(c.always.sum(axis=1) + c.peak.sum(axis=1), k),
    "halving by time": lambda c, r, k: halved(c.forward + c.backward, k),
}


def measure(name: str, stages: int, accumulation: int, folder: Path) -> tuple[str, str]:
    """A row of either table."""
    example = build(name)
    example.module.half()
    naive = compiled(example, split(example, stages), accumulation)
    report = profile(naive, folder / name)
    costs = Costs.from_report(report)
    fits = True
    try:
        start = time.perf_counter()
        best = best_split(costs, stages)
        took = time.perf_counter() - start
    except ValueError:
        fits, costs = False, replace(costs, bytes_per_tile=1 << 40)
        start = time.perf_counter()
        best = best_split(costs, stages)
        took = time.perf_counter() - start
    chosen = best.prediction.assignment
    strategy = ipu_exec.PipelinedExecution(
        *(ipu_exec.Stage(*costs.names[a : b + 1]).ipu(k) for k, (a, b) in enumerate(chosen.spans(len(costs))))
    )
    obtained = compiled(example, strategy, accumulation).cycles_per_call
    predicted = best.prediction.total
    sizes = "-".join(str(b - a + 1) for a, b in chosen.spans(len(costs)))
    gain = 1 - obtained / naive.cycles_per_call
    first = (
        f"| {name} | {stages} | {naive.cycles_per_call:,} | {sizes} | {predicted:,} | {obtained:,} | "
        f"{predicted / obtained - 1:+.2%} | {gain:.1%} | {'yes' if fits else 'no'} |"
    )
    ratios = []
    for way in WAYS.values():
        other = what_if(costs, way(costs, report, stages))
        ratios.append(f"{other.total / predicted:.3f}")
    second = f"| {name} | {stages} | {' | '.join(ratios)} | 1.000 | {took * 1e3:.0f} ms |"
    return first, second


def main() -> None:
    """Measure, print, and write the page."""
    firsts, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            first, second = measure(*case, Path(folder))
            print(first, second, sep="\n", flush=True)
            firsts.append(first)
            seconds.append(second)
    assert __doc__ is not None
    words = " ".join(__doc__.split("\n\n", 1)[1].split())
    lines = [
        "# What rebalancing gains",
        "",
        words,
        "",
        "| model | IPUs | naive, cycles an update | best split, Blocks a stage | predicted | second compile | off by | "
        "fewer cycles | fits |",
        "| --- |" + " ---: |" * 8,
        *firsts,
        "",
        "Cycles an update over those of the best split, all predicted from the naive profile:",
        "",
        f"| model | IPUs | {' | '.join(WAYS)} | best | time for it |",
        "| --- |" + " ---: |" * (len(WAYS) + 3),
        *seconds,
        "",
    ]
    PAGE.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
