"""What the advisor foresees of other people's models, and what their compiles give.

python -m benchmarks.unseen swin t5

`benchmarks.unseen.models` has how to get the packages. What compiles gave is stored beside this
file; ``--anew`` compiles again.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.unseen.models import MODELS
from ipuscope.planner.advice.search import Advice, predicted
from ipuscope.planner.levers.levers import Basis
from ipuscope.planner.levers.registry import LEVERS, anything, argument
from ipuscope.planner.levers.settings import Levers
from ipuscope.profiler import ProfileError, Report, analysis, open_report
from ipuscope.profiler.units import per_second

_SECONDS = 600  # of one compile
_COMPILED = "compiled"
# What compiles gave, which the advisor has no part in: model, change, samples a second, bytes of
# the fullest tile, state.
_STORE = Path(__file__).with_name("compiled.csv")


@dataclass(frozen=True)
class Came:
    """What a compile gave: samples a second, bytes of the fullest tile, and whether it fits."""

    rate: float
    nbytes: int
    state: str

    @classmethod
    def of(cls, report: Report) -> Came:
        """From a compile's profile."""
        rate = analysis.pace(report).samples_per_second
        return cls(rate, int(analysis.fullest_tiles(report).max()), str(report.meta["state"]))


@dataclass(frozen=True)
class Row:
    """A change of a model: what was foreseen, of a tile of ``limit`` bytes, and what came."""

    model: str
    change: str
    foreseen: Advice
    came: Came
    limit: int

    @property
    def off(self) -> float:
        """The compile beside the estimate."""
        return self.came.rate / self.foreseen.samples_per_second - 1

    @property
    def is_inside(self) -> bool:
        """Whether the compile is within the error, or a thousandth."""
        rate, doubt = self.foreseen.samples_per_second, self.foreseen
        least, most = min(0.999 * rate, rate - doubt.doubt), max(1.001 * rate, rate + doubt.quicker)
        return least <= self.came.rate <= most

    @property
    def more(self) -> float:
        """Share of a tile by which the compile takes more than was foreseen."""
        return (self.came.nbytes - self.foreseen.fullest) / self.limit

    def __str__(self) -> str:
        inside = "" if self.is_inside else ", outside"
        return (
            f"| {self.model} | {self.change} | {self.foreseen.rate} | {per_second(self.came.rate)}"
            f" | {self.off:+.1%}{inside} | {self.foreseen.memory} | {self.came.state},"
            f" {self.more:+.1%} |"
        )


def rows(model: str, store: dict[tuple[str, str], Came]) -> Iterator[Row]:
    """Each change alone; what is not in the ``store`` is compiled, and put there."""
    with tempfile.TemporaryDirectory(prefix="unseen-") as folder:
        basis = Basis.of(_compiled(model, Path(folder) / "as it is"))
        for levers in _changes(basis):
            change = argument(levers)
            if (model, change) not in store:
                report = _compiled(model, Path(folder) / change, "--with", change)
                store[model, change] = Came.of(report)
            limit = basis.report.target.bytes_per_tile
            yield Row(model, change, predicted(basis, levers), store[model, change], limit)


def _changes(basis: Basis) -> Iterator[Levers]:
    sizes = LEVERS["micro_batch"].settings(basis, anything(basis))
    yield from (Levers(micro_batch=size) for size in sizes if size > basis.micro_batch)
    if basis.sizes.halves:
        yield Levers(half=True)
    yield Levers(micro_batches=4)


def _compiled(model: str, folder: Path, *words: str) -> Report:
    script = ["-m", "benchmarks.unseen.models", model]
    command = ["ipu_exec.commands.run", "--compile-only", "--profile-dir", str(folder), *words]
    process = subprocess.run(
        [sys.executable, "-m", *command, *script],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,  # what does not fit ends with an error, and has its profile
    )
    try:
        return open_report(folder / "training")
    except ProfileError:
        raise SystemExit(f"{model} {' '.join(words)}: {process.stderr.strip()}") from None


def stored() -> dict[tuple[str, str], Came]:
    """What compiles gave, by model and change."""
    if not _STORE.is_file():
        return {}
    with _STORE.open(encoding="utf-8", newline="") as file:
        return {
            (model, change): Came(float(rate), int(nbytes), state)
            for model, change, rate, nbytes, state in csv.reader(file)
        }


def save(store: dict[tuple[str, str], Came]) -> None:
    """Write what compiles gave."""
    with _STORE.open("w", encoding="utf-8", newline="") as file:
        for key, came in store.items():
            csv.writer(file).writerow([*key, f"{came.rate:.1f}", came.nbytes, came.state])


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
    sure = [row for row in rows if row.foreseen.surely]
    right = sum(row.came.state == _COMPILED for row in sure)
    yield f"\nOf {len(sure)} changes that were said to fit, {right} do."


def main() -> None:
    """Print the rows, then what they come to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], help="default: all")
    parser.add_argument("--anew", action="store_true", help="compile what was compiled before")
    asked = parser.parse_args()
    store, every = stored(), list[Row]()
    names = asked.models or [*MODELS]
    if asked.anew:
        store = {key: came for key, came in store.items() if key[0] not in names}
    print("| model | change | predicted, samples/s | compiled | off | memory | came |")
    print("| --- | --- | ---: | ---: | ---: | --- | --- |")
    for name in names:
        for row in rows(name, store):
            print(row, flush=True)
            every.append(row)
        save(store)
    print("", *summary(every), sep="\n")


if __name__ == "__main__":
    main()
