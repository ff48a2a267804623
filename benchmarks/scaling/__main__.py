"""Predicted throughput of pods, beside the published one, and where the time goes.

``python -m benchmarks.scaling`` compiles each configuration of ``benchmarks/scaling/cases.py``,
writes its profile, and takes an update apart by its critical path (what `ipu-report why` prints).
It writes docs/scaling.md and, with ``--html FILE``, the sweep over replicas as a chart that a
browser opens.

python -m benchmarks.scaling                      # pods, sweep and page: some ten minutes
python -m benchmarks.scaling --only BERT          # models whose name has this; no page
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.dated import dated
from benchmarks.fidelity.cases import compiled
from benchmarks.profile.__main__ import write
from benchmarks.scaling import page
from benchmarks.scaling.cases import PUBLISHED, System, row, sweep
from benchmarks.scaling.page import BETWEEN, COLLECTIVE, WITHIN
from ipuscope import profiler
from ipuscope.profiler.analysis.critical_path import critical_path
from ipuscope.profiler.timeline import links


@dataclass(frozen=True)
class Result:
    """The prediction for a system: samples/s, and the cycles of an update by cause (`CAUSES`)."""

    model: str
    system: System
    throughput: float
    causes: dict[str, int]
    note: str


def predict(model: str, system: System) -> Result:
    """Compile the model for the system, write the profile, and read the prediction from it."""
    case = compiled(row(system))
    executable = case.executable
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.pop"
        write(executable, path)
        with profiler.open_report(path) as report:
            waits = critical_path(report)
            moved = report.program_steps()["bytes_in"]
    rate = case.samples * executable.target.clock_hz / executable.cycles_per_call
    waited: pd.Series = waits.groupby("cause")["cycles"].sum()
    causes = {str(cause): int(cycles) for cause, cycles in waited.items()}
    between = int(_between_racks(waits, moved, executable))
    causes[WITHIN] = causes.pop(COLLECTIVE, 0) - between
    causes[BETWEEN] = between
    return Result(model, system, rate, causes, case.note)


def _between_racks(waits: pd.DataFrame, moved: pd.Series, executable: Any) -> float:
    """Cycles of the critical path that global collectives spend on links between racks."""
    replicas, target = executable.options.replicas, executable.target
    apart = 1 << (executable.placement.num_ipus - 1).bit_length()
    everywhere = waits[(waits["cause"] == COLLECTIVE) & ~waits["name"].str.contains("groups")]
    total = 0.0
    for step in everywhere.itertuples():
        rounds = 2 if "AllReduce" in step.name else 1
        nbytes = int(moved[step.step]) * replicas / (rounds * (replicas - 1))
        ring = links.Span(int(step.ipu), apart, replicas)
        each = links.cycles_of_levels(target.links, ring, nbytes, rounds)
        total += step.cycles * sum(each[1:]) / sum(each)
    return total


def main() -> int:
    """Predict, print, and write the page and the chart."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose name has TEXT")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the sweep's chart there")
    args = parser.parse_args()
    pods = [(name, s) for name, systems in PUBLISHED.items() for s in systems]

    def results(cases: list[tuple[str, System]]) -> list[Result]:
        rows = []
        for model, system in cases:
            if args.only not in model:
                continue
            rows.append(predict(model, system))
            print(page.line(rows[-1]), file=sys.stderr, flush=True)
        return rows

    published, swept = results(pods), results(list(sweep()))
    text = page.whole(published, swept)
    print(text)
    if not args.only:
        page.PAGE.write_text(dated(text))
    if args.html:
        page.chart(swept).write_html(args.html, include_plotlyjs=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
