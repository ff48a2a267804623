"""What the advisor foresees of other people's models, and what their compiles take.

python -m benchmarks.unseen swin t5 (benchmarks.unseen.models has how to get the packages)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.unseen.models import MODELS
from ipuscope.planner.advice.search import predicted
from ipuscope.planner.levers.levers import Basis
from ipuscope.planner.levers.registry import LEVERS, anything, argument
from ipuscope.planner.levers.settings import Levers
from ipuscope.profiler import Report, analysis, open_report
from ipuscope.profiler.units import per_second

_SECONDS = 600  # of one compile
_COMPILED = "compiled"


@dataclass(frozen=True)
class Row:
    """A change of a model: samples a second and bytes of the fullest tile."""

    model: str
    change: str
    predicted: float
    doubt: float
    compiled: float
    foreseen: str  # of the memory
    foreseen_bytes: int
    taken_bytes: int
    limit: int
    state: str

    @property
    def off(self) -> float:
        """The compile beside the estimate."""
        return self.compiled / self.predicted - 1

    @property
    def is_inside(self) -> bool:
        """Whether the compile is within the doubt, or a thousandth."""
        doubt = max(self.doubt, 0.001 * self.predicted)
        return abs(self.compiled - self.predicted) <= doubt

    @property
    def more(self) -> float:
        """Share of a tile by which the compile takes more than was foreseen."""
        return (self.taken_bytes - self.foreseen_bytes) / self.limit

    def __str__(self) -> str:
        inside = "" if self.is_inside else ", outside"
        return (
            f"| {self.model} | {self.change} | {per_second(self.predicted)}"
            f" ±{self.doubt / self.predicted:.1%} | {per_second(self.compiled)} |"
            f" {self.off:+.1%}{inside} | {self.foreseen} | {self.state}, {self.more:+.1%} |"
        )


def rows(model: str) -> Iterator[Row]:
    """Each change alone."""
    with tempfile.TemporaryDirectory(prefix="unseen-") as folder:
        basis = Basis.of(_compiled(model, Path(folder) / "as it is"))
        for levers in _changes(basis):
            change, advice = argument(levers), predicted(basis, levers)
            report = _compiled(model, Path(folder) / change, "--with", change)
            yield Row(
                model,
                change,
                advice.samples_per_second,
                advice.doubt,
                analysis.pace(report).samples_per_second,
                advice.memory,
                advice.fullest,
                int(analysis.fullest_tiles(report).max()),
                report.target.bytes_per_tile,
                str(report.meta["state"]),
            )


def _changes(basis: Basis) -> Iterator[Levers]:
    sizes = LEVERS["micro_batch"].settings(basis, anything(basis))
    yield from (Levers(micro_batch=size) for size in sizes if size > basis.micro_batch)
    if basis.sizes.halves:
        yield Levers(half=True)
    yield Levers(micro_batches=4)


def _compiled(model: str, folder: Path, *words: str) -> Report:
    script = ["-m", "benchmarks.unseen.models", model]
    command = ["ipu_exec.commands.run", "--compile-only", "--profile-dir", str(folder), *words]
    subprocess.run(
        [sys.executable, "-m", *command, *script],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,  # what does not fit ends with an error, and has its profile
    )
    return open_report(folder / "training")


def summary(rows: list[Row]) -> Iterator[str]:
    """A line for each kind of change, and one for the memory."""
    by_change: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_change[row.change].append(row)
    yield "| change | models | within ± | half of them within | most | memory, more than foreseen |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for change, some in by_change.items():
        off = np.abs([row.off for row in some])
        yield (
            f"| {change} | {len(some)} | {sum(row.is_inside for row in some)} |"
            f" {np.median(off):.1%} | {off.max():.1%} | {max(row.more for row in some):+.1%} |"
        )
    sure = [row for row in rows if row.foreseen == "fits"]
    right = sum(row.state == _COMPILED for row in sure)
    yield f"\nOf {len(sure)} changes that were said to fit, {right} do."


def main() -> None:
    """Print the rows, then what they come to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="default: all")
    names = parser.parse_args().models or [*MODELS]
    every = []
    print("| model | change | predicted, samples/s | compiled | off | memory | came |")
    print("| --- | --- | ---: | ---: | ---: | --- | --- |")
    for name in names:
        for row in rows(name):
            print(row, flush=True)
            every.append(row)
    print("", *summary(every), sep="\n")


if __name__ == "__main__":
    main()
