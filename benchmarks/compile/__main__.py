"""Compile each model at its real size in a process of its own, and say how long that took.

``python -m benchmarks.compile`` prints a table and writes it to docs/compile.md: wall seconds from
wrapping the model to the written profile, without building the model itself; the most memory the
process had, with torch and the model's weights; the profile's size. Memory is set as people set it
for these models (benchmarks/memory.py). Models that do not fit their tiles are compiled and written
all the same.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import ipu_exec
from benchmarks.compile import growth
from benchmarks.dated import dated
from benchmarks.memory import configure, optimiser

GROWTH = "## At a pod's size"  # where its part begins
PAGE = Path(__file__).parents[2] / "docs" / "compile.md"
# (model, IPUs, gradient accumulation, half precision)
CASES = (
    ("resnet-18", 1, 16, True),
    ("resnet-50", 1, 16, True),
    ("resnet-50", 4, 16, True),
    ("bert-base", 1, 64, True),
    ("bert-base", 4, 64, True),
    ("bert-large", 4, 64, True),
    ("gpt2-small", 4, 64, True),
    ("gpt2-medium", 8, 64, True),
    ("vit-b16", 4, 64, True),
    ("efficientnet-b0", 2, 16, True),
    ("lstm", 2, 16, False),
    ("gnn", 2, 16, False),
)
LAYERS = (6, 12, 24, 48)


def measure(
    name: str, ipus: int, accumulation: int, half: bool, layers: int = 0, target: str = "mk2"
) -> dict[str, object]:
    """One compile, in this process."""
    from examples.models import bert, build, split

    if layers:
        example = bert.example(replace(bert.LARGE, layers=layers))
    else:
        example = build(name)
    module = example.module.half() if half else example.module
    inputs = example.inputs(example.micro_batch * accumulation)
    if half:
        inputs = tuple(x.half() if x.is_floating_point() else x for x in inputs)
    with tempfile.TemporaryDirectory() as folder:
        options = ipu_exec.Options(profile_dir=folder).showCompilationProgressBar(False)
        options.target(target).Training.gradientAccumulation(accumulation)
        options.setExecutionStrategy(split(example, ipus))
        configure(options, name, ipus)
        model = ipu_exec.trainingModel(module, options, optimiser(module, half))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        fits = True
        try:
            model.compile(*inputs)
        except ipu_exec.OutOfMemoryError:
            fits = False
        took = time.perf_counter() - start
        size = (Path(folder) / "training" / "profile.pop").stat().st_size
    return {
        "seconds": took,
        "before_mb": before / 1e3,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "pop_mb": size / 1e6,
        "fits": fits,
    }


def alone(*words: object) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.compile", "--one", json.dumps(words)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    measured: dict[str, float] = json.loads(output.strip().splitlines()[-1])
    return measured


def row(words: tuple[object, ...], measured: dict[str, float]) -> str:
    cells = (
        *map(str, words),
        f"{measured['seconds']:.1f} s",
        f"{measured['before_mb'] / 1e3:.2f} GB",
        f"{measured['peak_mb'] / 1e3:.2f} GB",
        f"{measured['pop_mb']:.1f} MB",
        "yes" if measured["fits"] else "no",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile", description=__doc__)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--growth", action="store_true", help="only the part on pods and growth")
    args = parser.parse_args()
    if args.growth:
        before, *_ = PAGE.read_text().partition(GROWTH)
        PAGE.write_text(dated("\n".join([before.rstrip(), "", *growth.lines(), ""])))
        print(PAGE.read_text())
        return
    if args.one:
        print(json.dumps(measure(*json.loads(args.one))))
        return
    tail = ["compile", "memory before", "peak memory", "profile", "fits its tiles"]
    rule = "| --- |" + " ---: |" * 8
    lines = [__doc__.split("\n\n")[1].replace("\n", " "), ""]
    lines += [f"| {' | '.join(['model', 'IPUs', 'accumulation', 'precision', *tail])} |", rule]
    for name, ipus, accumulation, half in CASES:
        lines.append(
            row(
                (name, ipus, accumulation, "fp16" if half else "fp32"),
                alone(name, ipus, accumulation, half),
            )
        )
        print(lines[-1], flush=True)
    lines += ["", "How it grows with layers (BERT-Large's, 4 IPUs, fp16) and with tiles:", ""]
    lines += [f"| {' | '.join(['layers', 'machine', 'IPUs', 'accumulation', *tail])} |", rule]
    grows = [(layers, "mk2") for layers in LAYERS] + [(24, "mk1")]
    for layers, target in grows:
        lines.append(row((layers, target, 4, 64), alone("bert-large", 4, 64, True, layers, target)))
        print(lines[-1], flush=True)
    lines += ["", *growth.lines()]
    PAGE.write_text(dated("\n".join(["# How long compiling takes", "", *lines, ""])))


if __name__ == "__main__":
    main()
