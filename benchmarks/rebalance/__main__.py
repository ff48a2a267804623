"""Split models naively, take the best split from that profile, compile again, and compare.

``python -m benchmarks.rebalance`` prints tables and writes them to docs/rebalance.md. Naive is as
many Blocks a stage everywhere. Other ways to split are held against the same costs: as many
parameters a stage, greedy by memory (fill a stage until its share of the bytes is reached, as
PopLiner is described), halving the cost, torchgpipe's block partition and DeepSpeed's
partition_balanced (benchmarks/rebalance/others.py: written anew from their description, over a
Block's forward and backward cycles or its parameters). Where a model does not fit its tiles at this
micro-batch in any split, the memory is left out of the choice, and the table says so. The last
table is of models that nobody wrote, with random cycles, copies and bytes on 1,472 tiles, to time
the search. Where ways to split are too many to keep apart, every answer says how far a bound that
no split is below lies under it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import ipu_exec
from benchmarks.dated import commit, dated
from benchmarks.memory import configure, optimiser
from benchmarks.rebalance import others
from examples.models import Example, build, split
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.rows.profile_header import header
from ipu_exec.compiler.rows.profile_rows import rows
from ipu_exec.session.compilation import compile_step
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.split_search import best_split
from ipuscope.profiler import ProfileWriter, Report, open_report

PAGE = Path(__file__).parents[2] / "docs" / "rebalance.md"
PUBLISHED = "## Splits that people published"
CASES = (("resnet-50", 4, 16), ("bert-large", 4, 64), ("gpt2-small", 8, 64), ("vit-b16", 4, 64))

TIMED = (  # Blocks, stages, accumulation, whether stages choose how to save memory
    *((100, 8, 32, False), (100, 8, 32, True)),
    *((1000, 64, 256, False), (1000, 64, 256, True), (1000, 64, 127, False)),
    *((3000, 128, 512, False), (10_000, 256, 1024, False)),
)
SEARCH = "Time to find the best split, memory of every tile included"


@dataclass(frozen=True)
class Settings:
    """What a configuration sets beyond `configure`: the memory proportion of each IPU, partials.

    ``state_on_chip``: the optimiser's; ``inference``: sharded, without an optimiser.
    """

    proportion: tuple[float, ...] = ()
    half_partials: bool = False
    state_on_chip: bool = False
    inference: bool = False


DEFAULT = Settings()


def compiled(
    example: Example,
    strategy: ipu_exec.PipelinedExecution | ipu_exec.ShardedExecution,
    ipus: int,
    accumulation: int,
    settings: Settings = DEFAULT,
    placement: Path | None = None,
) -> Executable:
    """Compile a model as a training step in fp16 with AdamW, or its inference in fp16.

    ``accumulation``: micro-batches, which in inference are device iterations. ``placement``: a file
    whose stages go before those of the ``strategy``.
    """
    options = ipu_exec.Options().showCompilationProgressBar(False).setExecutionStrategy(strategy)
    options.autoRoundNumIPUs(True)
    if settings.inference:
        options.deviceIterations(accumulation)
    else:
        options.Training.gradientAccumulation(accumulation)
    inputs = tuple(
        x.half() if x.is_floating_point() else x for x in example.inputs(example.micro_batch)
    )
    configure(options, example.name.lower(), ipus)
    if settings.proportion:
        each = {f"IPU{ipu}": share for ipu, share in enumerate(settings.proportion)}
        options.setAvailableMemoryProportion(each)
    if settings.half_partials:
        options.Precision.setPartialsType(torch.half)
    if settings.state_on_chip:
        on_chip = ipu_exec.TensorLocationSettings().useOnChipStorage(True)
        options.TensorLocations.setOptimizerLocation(on_chip)
    if placement is not None:
        options.loadPlacement(placement)
    training = not settings.inference
    updated = optimiser(example.module, True) if training else None
    return compile_step(example.module, inputs, {}, options, updated, training)


def profile(executable: Executable, folder: Path) -> Report:
    """The profile of the compile, without runs."""
    folder.mkdir()
    with ProfileWriter(folder / "profile.pop") as writer:
        writer.meta(**header(executable))
        for batch in rows(executable):
            writer.add(batch)
        writer.publish()
    return open_report(folder)


def work(costs: Costs) -> np.ndarray:
    return costs.cycles.work


WAYS: dict[str, Callable[[Costs, Report, int], Assignment]] = {
    "as many Blocks": lambda c, r, k: others.uniform(len(c), k),
    "as many parameters": lambda c, r, k: others.by_share(r.blocks["weight_bytes"].to_numpy(), k),
    "greedy by memory": lambda c, r, k: others.by_share(
        c.memory.always.sum(axis=1) + c.memory.state.sum(axis=1), k
    ),
    "halving by time": lambda c, r, k: others.halved(work(c), k),
    "torchgpipe's block partition, time": lambda c, r, k: others.block_partition(work(c), k),
    "DeepSpeed's partition_balanced, parameters": lambda c, r, k: others.partition_balanced(
        r.blocks["weight_bytes"].to_numpy(), k
    ),
    "DeepSpeed's partition_balanced, time": lambda c, r, k: others.partition_balanced(work(c), k),
}


def measure(name: str, stages: int, accumulation: int, folder: Path) -> tuple[str, str]:
    """Measure a row of either table."""
    example = build(name)
    example.module.half()
    naive = compiled(example, split(example, stages), stages, accumulation)
    report = profile(naive, folder / name)
    costs = Costs.from_report(report)
    fits = True
    try:
        start = time.perf_counter()
        best = best_split(costs, stages)
        took = time.perf_counter() - start
    except ValueError:
        fits, costs = False, costs.with_tile_bytes(1 << 40)
        start = time.perf_counter()
        best = best_split(costs, stages)
        took = time.perf_counter() - start
    chosen = best.prediction.assignment
    strategy = ipu_exec.PipelinedExecution(
        *(
            ipu_exec.Stage(*costs.names[a : b + 1]).ipu(k)
            for k, (a, b) in enumerate(chosen.spans(len(costs)))
        )
    )
    second_compile = compiled(example, strategy, stages, accumulation)
    obtained = second_compile.cycles_per_call
    fullest = max(best.prediction.fullest)
    after = profile(second_compile, folder / f"{name} again")
    obtained_fullest = max(int(after.tiles(ipu)["total"].max()) for ipu in range(stages))
    predicted = best.prediction.total
    gain = 1 - obtained / naive.cycles_per_call
    first = (
        f"| {name} | {stages} | {naive.cycles_per_call:,} | {chosen.sizes(len(costs))} |"
        f" {predicted:,} | {obtained:,}"
        f" | {predicted / obtained - 1:+.2%} | {gain:.1%} | {fullest / 1024:,.0f} |"
        f" {obtained_fullest / 1024:,.0f} | {'yes' if fits else 'no'} |"
    )
    ratios = []
    for way in WAYS.values():
        other = what_if(costs, way(costs, report, stages))
        ratios.append(f"{other.total / predicted:.3f}")
    second = f"| {name} | {stages} | {' | '.join(ratios)} | 1.000 | {took * 1e3:.0f} ms |"
    return first, second


def searches() -> list[str]:
    """The table of times, made and printed row by row, each in a process of its own."""
    lines = [
        f"{SEARCH}, on one core and without PyTorch (by `python -m benchmarks.rebalance --search`"
        f" alone, at commit {commit()}):",
        "",
        (
            "| Blocks | stages | accumulation | a stage's memory | CPU time | most MB, costs"
            " included | a quicker one takes at most so much less | bottleneck above that with"
            " endless memory |"
        ),
        "| ---: | ---: | ---: | --- |" + " ---: |" * 4,
    ]
    for *numbers, all_choices in TIMED:
        command = [sys.executable, "-m", "benchmarks.rebalance.timed", *map(str, numbers)]
        command += ["all"] * all_choices
        row = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        lines.append(row.strip())
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, print, and write the page."""
    table = searches()
    if "--search" in sys.argv[1:]:
        before, _, rest = PAGE.read_text().partition(SEARCH)
        _, title, behind = rest.partition("\n## ")
        PAGE.write_text(before + "\n".join(table) + f"\n{title}{behind}")
        return
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
        (
            "| model | IPUs | naive, cycles an update | best split, Blocks a stage | predicted |"
            " second compile | off by | fewer cycles | fullest tile predicted, KiB | obtained |"
            " fits |"
        ),
        "| --- |" + " ---: |" * 10,
        *firsts,
        "",
        "Cycles an update over those of the best split, all predicted from the naive profile:",
        "",
        f"| model | IPUs | {' | '.join(WAYS)} | best | time for it |",
        "| --- |" + " ---: |" * (len(WAYS) + 3),
        *seconds,
        "",
        *table,
        "",
    ]
    _, title, rest = PAGE.read_text().partition(PUBLISHED)  # another command's
    PAGE.write_text(dated("\n".join(lines) + (f"\n{title}{rest}" if title else "")))


if __name__ == "__main__":
    main()
