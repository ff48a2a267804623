"""Write and read profiles of real models, beside the same content as plain dense arrays.

``python -m benchmarks.profile`` prints its tables and writes them to docs/profile-performance.md.
Each model is compiled once (not measured) and its profile written with one run in it. The
alternative is one ``.npz`` with the same content and no cleverness: a row for each executed step,
cycles and bytes on every tile for each program step, bytes on every tile for each variable, and the
bytes live at each step on each tile. Every reading is of a file just opened (the disk's cache is
warm), the median of five; numbers of one run are comparable with each other only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dated import dated
from benchmarks.profile import reports
from ipuscope.profiler.report import MAX_SLICES

PAGE = Path(__file__).parents[2] / "docs" / "profile-performance.md"
TIMES = 5
HEAT = (480, 1472)  # cells of the heat map that the viewer asks for


@dataclass(frozen=True)
class Case:
    """A model with its number of IPUs, accumulation and device iterations.

    ``layers`` is that of BERT-Large if not 0.
    """

    model: str
    ipus: int
    accumulation: int
    iterations: int = 1
    layers: int = 0
    replicas: int = 1
    dense: bool = True


CASES = (
    Case("mnist", 4, 10, iterations=3),
    Case("bert-base", 4, 16),
    Case("bert-large", 4, 64),
    Case("bert-large", 64, 128, layers=64, replicas=4, dense=False),
)


def compiled(case: Case) -> Any:
    """The executable of a case; nothing is computed."""
    import torch

    import ipu_exec
    from examples.models import bert, build, split
    from ipu_exec.session.compilation import compile_step
    from tests.models import Mnist, mnist_batch

    options = ipu_exec.Options().showCompilationProgressBar(False).deviceIterations(case.iterations)
    options.replicationFactor(case.replicas).Training.gradientAccumulation(case.accumulation)
    if case.model == "mnist":
        options.setExecutionStrategy(ipu_exec.PipelinedExecution("B1", "B2", "B3", "B4"))
        module: torch.nn.Module = Mnist()
        inputs: tuple[torch.Tensor, ...] = mnist_batch(40)
    else:
        size = replace(bert.LARGE, layers=case.layers)
        example = bert.example(size) if case.layers else build(case.model)
        options.setExecutionStrategy(split(example, case.ipus))
        module, inputs = example.module.half(), example.inputs(example.micro_batch)
        inputs = tuple(x.half() if x.is_floating_point() else x for x in inputs)
    optimizer = ipu_exec.optim.AdamW(module.parameters(), lr=1e-4)
    return compile_step(module, inputs, {}, options, optimizer, True)


def write(executable: Any, path: Path) -> float:
    """Seconds to write the profile with one run."""
    from ipu_exec.compiler.rows.profile_header import header
    from ipu_exec.compiler.rows.profile_rows import rows
    from ipuscope.profiler import ProfileWriter
    from ipuscope.profiler.file.records import Run

    start = time.perf_counter()
    with ProfileWriter(path) as writer:
        writer.meta(**header(executable))
        for batch in rows(executable):
            writer.add(batch)
        writer.meta(state="executed")
        writer.add([Run(0, "run 0", 0, 0, 0, 1)])
        writer.publish()
    return time.perf_counter() - start


def dense(path: Path, target: Path) -> tuple[float, int]:
    """Seconds to write the same content as plain arrays, and bytes of the file."""
    from ipuscope import profiler

    report = profiler.open_report(path)
    tiles, steps, trace = report.target.tiles_per_ipu, report.program_steps(), report.steps(0)
    arrays: dict[str, np.ndarray] = {}
    for name in (
        "iteration",
        "pipeline_cycle",
        "ipu",
        "stage",
        "micro_batch",
        "step",
        "op",
        "start",
        "end",
    ):
        arrays[f"trace_{name}"] = trace[name].to_numpy()
    for name in ("cycles", "bytes_in", "bytes_out"):
        rows = [report.step_tiles(step)[name] for step in steps["step"].tolist()]
        arrays[f"step_{name}"] = np.array(
            [np.zeros(tiles) if row is None else row for row in rows], dtype=np.int32
        )
    held = [report.usage.variable_tiles(id) for id in report.variables.index.tolist()]
    arrays["variable_bytes"] = np.array(held, dtype=np.int32)
    for ipu in range(report.target.ipus_per_replica):
        arrays[f"live_{ipu}"] = report.liveness_map(ipu).astype(np.int32)
    start = time.perf_counter()
    np.savez(target, **arrays)  # type: ignore[arg-type]
    return time.perf_counter() - start, target.stat().st_size


def median(measured: Callable[[], Any]) -> float:
    """The median of five timings, in seconds."""
    seconds = []
    for _ in range(TIMES):
        start = time.perf_counter()
        measured()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def readings(path: Path) -> dict[str, float]:
    """Seconds for the usual first queries, each on a report that has read nothing else."""
    from ipuscope import profiler
    from ipuscope.profiler import pva

    def heat() -> None:
        report = profiler.open_report(path)
        report.liveness_map(int(report.variables["ipu"].mode()[0]), shape=HEAT)

    def heat_again() -> Callable[[], Any]:
        report = profiler.open_report(path)
        report.liveness_map(0, shape=(1, 1))
        steps = len(report.program_steps(0))
        size = iter(range(1, TIMES + 1))
        return lambda: report.liveness_map(0, steps=slice(next(size), steps), shape=HEAT)

    def peak() -> None:
        steps = pva.openReport(path).compilation.livenessProgramSteps
        max(step.notAlwaysLiveMemory.bytes for step in steps)

    return {
        "open": median(lambda: profiler.open_report(path)),
        "first table": median(lambda: profiler.open_report(path).stages),
        "heat map, cold": median(heat),
        "heat map, warm": median(heat_again()),
        "whole trace to pandas": median(lambda: whole_trace(profiler.open_report(path))),
        "libpva: peak of liveness": median(peak),
    }


def dense_readings(path: Path) -> dict[str, float]:
    """The same for the dense file, where it makes sense."""
    import pandas as pd

    def heat() -> None:
        with np.load(path) as file:
            live = file["live_0"]
        edges = np.arange(HEAT[0]) * len(live) // HEAT[0]
        np.maximum.reduceat(live, np.unique(edges), axis=0)

    def trace() -> None:
        with np.load(path) as file:
            pd.DataFrame({name: file[name] for name in file.files if name.startswith("trace_")})

    return {"heat map, cold": median(heat), "whole trace to pandas": median(trace)}


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def whole_trace(report: Any) -> list[Any]:
    """Frames of all executed steps: one, or batches where they are too many for it."""
    if report.trace.step_count() <= MAX_SLICES:
        return [report.steps(0)]
    return [batch.to_pandas() for batch in report.iter_steps()]


def measure(case: Case, folder: Path) -> list[str]:
    """Lines of the page about one case."""
    from ipuscope import profiler

    executable = compiled(case)
    path = folder / f"{case.model}-{case.ipus}.pop"
    write_seconds = write(executable, path)
    del executable
    report = profiler.open_report(path)
    slices = report.trace.step_count()
    name = f"{case.model}{f', {case.layers} layers' if case.layers else ''}"
    title = f"{name}, {case.ipus} IPUs" + (
        f" x {case.replicas} replicas" if case.replicas > 1 else ""
    )
    lines = [f"## {title}, accumulation {case.accumulation}: {slices:,} executed steps", ""]
    lines += [
        f"{len(report.program_steps()):,} program steps, {len(report.variables):,} variables.",
        "",
    ]
    figures = {"write": write_seconds, **readings(path)}
    size = path.stat().st_size
    plain: dict[str, float] = {}
    plain_size = 0
    if case.dense:
        other = path.with_suffix(".npz")
        plain["write"], plain_size = dense(path, other)
        plain.update(dense_readings(other))
        other.unlink()
    rows = [("size", f"{size / 1e6:.1f} MB", f"{plain_size / 1e6:,.1f} MB", plain_size / size)]
    rows += [
        (
            name,
            seconds(value),
            seconds(plain[name]) if name in plain else "",
            plain.get(name, 0) / value,
        )
        for name, value in figures.items()
    ]
    lines += [
        "| | profile.pop | dense .npz | dense / profile.pop |",
        "| --- | ---: | ---: | ---: |",
    ]
    for what, own, its, ratio in rows:
        shown = (its, f"{ratio:.2f}") if ratio else ("", "")
        lines.append(f"| {what} | {own} | {shown[0]} | {shown[1]} |")
    return [*lines, ""]


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument(
        "--only", metavar="WORDS", help="only models with this in their name; writes no page"
    )
    parser.add_argument(
        "--reports",
        nargs="+",
        metavar="NAME=PROFILE",
        help="write only what reports take, on profiles that are there",
    )
    parser.add_argument(
        "--times",
        type=int,
        default=reports.TIMES,
        metavar="N",
        help="runs of each report, whose median counts (default: %(default)s)",
    )
    args = parser.parse_args()
    if args.reports:
        profiles = {
            name: Path(path) for name, _, path in (word.partition("=") for word in args.reports)
        }
        section = reports.section(profiles, args.times)
        print("\n".join(section))
        before = PAGE.read_text().split(reports.TITLE)[0].rstrip()
        PAGE.write_text(dated("\n".join([before, "", *section])))
        return
    lines = ["# How fast profiles are written and read", ""]
    lines += [
        "Made by `python -m benchmarks.profile`. "
        + str(__doc__).split("\n\n")[1].strip().replace(".\n", ". ").split(". ", 1)[1],
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        profiles = {}
        for case in CASES:
            if args.only and args.only not in case.model:
                continue
            section = measure(case, Path(folder))
            print("\n".join(section), flush=True)
            lines += section
            profiles[case.model] = Path(folder) / f"{case.model}-{case.ipus}.pop"
        if not args.only:
            lines += reports.section(profiles, args.times)
    if not args.only:
        PAGE.write_text(dated("\n".join(lines)))


if __name__ == "__main__":
    main()
