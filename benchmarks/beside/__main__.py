"""The same task by IPUscope and by other tools, in CPU seconds of one process: docs/beside.md.

``python -m benchmarks.beside PROFILE`` writes the page; PROFILE is BERT-Large's over eight IPUs,
from which splits onto 16 are planned. Seconds are the least of three. Reading with DuckDB needs
pyarrow and duckdb.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compile.growth import cpu
from benchmarks.dated import dated
from ipuscope.profiler import open_report

PAGE = Path(__file__).parents[2] / "docs" / "beside.md"
ROUNDS = 3
NOTES = """- torch's tracers give a graph for a compiler, with less of the step in it: `make_fx`
  without the update, `torch.export` the forward alone.
- torch's simulator counts steps of actions and copies; it has no cycles.
- DuckDB asks an exported file quicker than our frame is made; our own sums go through each body
  once and take less than either. HolisticTraceAnalysis reads GPU traces and is not compared.
- Splits are all weighed by our costs, of one profile, without ways of saving memory. PipeDream's
  slowest stage or copy is the copy of the tied embedding, below which it balances no stage.
"""
Row = tuple[str, str, float, str]  # task, tool, seconds, what came out


def least(run: Callable[[], Any]) -> tuple[float, Any]:
    """The least CPU seconds of some rounds, and the last answer."""
    seconds = []
    for _ in range(ROUNDS):
        began = cpu()
        answer = run()
        seconds.append(cpu() - began)
    return min(seconds), answer


def captures() -> Iterator[Row]:
    """What records the operators of a training step of BERT-Large."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    import ipu_exec
    from examples.models import bert
    from ipu_exec.capture.loss import find_final_loss
    from ipu_exec.capture.step import capture

    with ipu_exec.no_weights():
        example = bert.example(bert.LARGE)
    inputs = example.inputs(example.micro_batch)
    optimiser = torch.optim.AdamW(example.module.parameters(), foreach=False)
    task = "capture of BERT-Large"

    def ours(repeats: bool) -> Any:
        more = {"optimizer": optimiser, "find_loss": find_final_loss, "repeats": repeats}
        return capture(example.module, inputs, {}, **more)

    for words, repeats in (("equal layers once", True), ("every layer", False)):
        seconds, graph = least(lambda repeats=repeats: ours(repeats))
        count = f"{len(graph.ops):,} operators of forward, backward and update"
        yield task, f"IPUscope, {words}", seconds, count

    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = bert.example(bert.LARGE)
        weights = dict(fake.module.named_parameters())
        some = fake.inputs(1)

    def step(weights: dict[str, torch.Tensor], *some: torch.Tensor) -> Any:
        loss = torch.func.functional_call(fake.module, weights, some)[-1].sum()
        return torch.autograd.grad(loss, list(weights.values()), allow_unused=True)

    seconds, traced = least(lambda: make_fx(step)(weights, *some))
    count = f"{len(traced.graph.nodes):,} nodes of forward and backward"
    yield task, "`torch.fx` `make_fx`, fake tensors", seconds, count
    seconds, exported = least(lambda: torch.export.export(fake.module, some))
    yield task, "`torch.export`", seconds, f"{len(exported.graph.nodes):,} nodes of the forward"


def simulations() -> Iterator[Row]:
    """How long it takes to simulate 1F1B of 32 ranks with 256 micro-batches."""
    import torch.distributed.pipelining.schedules as theirs

    from ipuscope.planner.schedules.generators import KINDS
    from ipuscope.planner.schedules.simulation import Work, free, in_steps
    from ipuscope.profiler.timeline.schedule_types import Costs

    ranks, count = 32, 256
    schedule = KINDS["1f1b"].make(ranks, count)
    ones = (1,) * ranks
    work = Work(Costs(schedule.ipus, ones, ones), ones, ones, ones)
    task = f"simulation of 1F1B, {ranks} ranks, {count} micro-batches"
    for words, layout in (("each IPU by itself, copies", free), ("in steps, as PopART", in_steps)):
        seconds, laid_out = least(lambda layout=layout: layout(schedule, work))
        yield task, f"IPUscope, {words}", seconds, f"cycles of every action: {laid_out.total:,}"
    order = {
        rank: [theirs._Action.from_str(f"{one.stage}{one.work}{one.micro_batch}") for one in row]
        for rank, row in enumerate(schedule.ranks)
    }
    order = theirs._add_send_recv(order, lambda at: at, ranks)
    seconds, steps = least(lambda: theirs._simulate_comms_compute(order, lambda at: at, ranks))
    many = f"{len(next(iter(steps.values()))):,} steps, without costs"
    yield task, "`torch.distributed.pipelining`", seconds, many


def readings() -> Iterator[Row]:
    """Cycles by IPU and kind of a million executed steps."""
    from tests.synthetic import synthetic_profile

    task = "cycles of 10^6 executed steps by IPU and kind"
    with tempfile.TemporaryDirectory() as folder:
        path = synthetic_profile(
            Path(folder) / "profile.pop",
            micro_batches=1000,
            iterations=10,
            steps_per_body=12,
            runs=1,
        )

        def frame() -> Any:
            with open_report(path) as report:
                return report.steps().groupby(["ipu", "kind"], observed=True)["cycles"].sum()

        def answer() -> Any:
            with open_report(path) as report:
                return report.cycle_proportions(0)

        def rows() -> Any:
            with sqlite3.connect(path) as file:
                asked = (
                    "SELECT e.ipu, s.purpose, s.type, sum(e.cycles) FROM execution_steps e"
                    " JOIN program_steps s ON s.id = e.step GROUP BY 1, 2, 3"
                )
                return file.execute(asked).fetchall()

        seconds, spent = least(frame)
        yield task, "IPUscope, the frame `steps()`", seconds, f"{len(spent):,} sums"
        seconds, spent = least(answer)
        yield task, "IPUscope, `cycle_proportions()`", seconds, "the same, each body once"
        seconds, spent = least(rows)
        yield task, "SQLite, the view `execution_steps`", seconds, f"{len(spent):,} sums"
        yield from _parquet(task, path, Path(folder) / "steps.parquet")


def _parquet(task: str, path: Path, parquet: Path) -> Iterator[Row]:
    import duckdb
    from pyarrow import parquet as arrow

    def write() -> int:
        with open_report(path) as report:
            batches = report.iter_steps()
            first = next(batches)
            with arrow.ParquetWriter(parquet, first.schema) as file:
                for batch in (first, *batches):
                    file.write_batch(batch)
        return parquet.stat().st_size

    seconds, size = least(write)
    yield task, "IPUscope, writing Parquet", seconds, f"{size / 1e6:.0f} MB, once"
    asked = f"SELECT ipu, kind, sum(cycles) FROM '{parquet}' GROUP BY ALL"
    seconds, spent = least(lambda: duckdb.sql(asked).fetchall())
    yield task, "DuckDB on that Parquet", seconds, f"{len(spent):,} sums"


def pipedream(weight: np.ndarray, copies: np.ndarray, stages: int) -> list[int]:
    """PipeDream's partition of a chain without replicas (arXiv 1806.03377): stages' first Blocks.

    The slowest of all stages and copies is as quick as possible, by dynamic programming.
    """
    total = np.concatenate([[0], np.cumsum(weight)])
    count = len(weight)
    best = np.full((stages + 1, count + 1), np.inf)
    came = np.zeros((stages + 1, count + 1), dtype=np.int64)
    best[0, 0] = 0
    for stage in range(1, stages + 1):
        for end in range(stage, count + 1):
            cut = np.arange(stage - 1, end)
            copy = np.where(cut > 0, copies[cut - 1], 0)
            slowest = np.maximum(np.maximum(best[stage - 1, cut], total[end] - total[cut]), copy)
            at = int(slowest.argmin())
            best[stage, end], came[stage, end] = slowest[at], cut[at]
    starts, end = [], count
    for stage in range(stages, 0, -1):
        end = int(came[stage, end])
        starts.append(end)
    return starts[::-1]


def plans(path: Path, stages: int = 16) -> Iterator[Row]:
    """Splits of BERT-Large onto 16 IPUs, by the costs of one profile."""
    from benchmarks.rebalance.others import block_partition, filled, partition_balanced
    from ipuscope.planner.costs.profile_costs import Costs
    from ipuscope.planner.predict.what_if import what_if
    from ipuscope.planner.search.split_search import best_split

    task = f"BERT-Large split onto {stages} IPUs"
    with open_report(path) as report:
        costs = Costs.from_report(report)
        work = costs.cycles.work
        moves = (costs.cuts.ahead + costs.cuts.back) / costs.machine.link_bytes_per_cycle
        others: dict[str, Callable[[], Any]] = {
            "IPUscope": lambda: best_split(costs, stages).prediction.assignment,
            "torchgpipe's block partition": lambda: block_partition(work, stages),
            "DeepSpeed's partition_balanced": lambda: partition_balanced(work, stages),
            "PipeDream's partition": lambda: filled(pipedream(work, moves, stages), len(costs)),
        }
        for name, make in others.items():
            seconds, assignment = least(make)
            outcome = what_if(costs, assignment)
            fits = "fits" if not outcome.problems else "; ".join(outcome.problems)[:80]
            yield task, name, seconds, f"{outcome.total:,} cycles an update, {fits}"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.add_argument("profile", type=Path)
    parser.add_argument("--only", choices=("captures", "simulations", "readings", "plans"))
    args = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "captures": captures,
        "simulations": simulations,
        "readings": readings,
        "plans": lambda: plans(args.profile),
    }
    lines = []
    for name, part in parts.items():
        for task, tool, seconds, outcome in part() if args.only in (None, name) else ():
            lines.append(f"| {task} | {tool} | {seconds:.3f} | {outcome} |")
            print(lines[-1], flush=True)
    head = (
        "# Beside other tools\n\nCPU seconds, the least of three in one process, on a machine that"
        f" others used too (`python -m benchmarks.beside PROFILE`).\n\n{NOTES}\n"
        "| task | tool | CPU seconds | what comes out |\n| --- | --- | ---: | --- |\n"
    )
    if not args.only:
        PAGE.write_text(dated(head + "\n".join(lines) + "\n"))


if __name__ == "__main__":
    main()
