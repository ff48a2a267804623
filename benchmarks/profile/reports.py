"""What each of `ipu-report`'s reports takes: CPU seconds and memory of its whole process.

The demo's imports are a large part of its time; what grows with the model and its IPUs is what is
beyond that. The exponent is of a report's time over the IPUs of all replicas, between the smallest
and the largest profile.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPORTS = (
    ("summary",),
    ("insights",),
    ("why",),
    ("stages",),
    ("timeline",),
    ("pipeline",),
    ("memory",),
    ("tile",),
    ("liveness",),
    ("ops",),
    ("program",),
    ("variables",),
    ("rebalance",),
    ("whatif",),
    ("doctor",),
)
TIMES = 3
TITLE = "## What reports take"


@dataclass(frozen=True)
class Taken:
    """CPU seconds, and megabytes at the most."""

    seconds: float
    megabytes: float


def taken(report: Sequence[str], path: Path, times: int = TIMES) -> Taken:
    """The median of some runs, each a process of its own."""
    runs = [_one(report, path) for _ in range(times)]
    return Taken(
        statistics.median(run.seconds for run in runs),
        statistics.median(run.megabytes for run in runs),
    )


def _one(report: Sequence[str], path: Path) -> Taken:
    command = [sys.executable, "-m", "reports.cli", report[0], str(path), *report[1:]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0  # it was waited for just now
    return Taken(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3)


def section(profiles: dict[str, Path], times: int = TIMES) -> list[str]:
    """Lines of the page: a row a report, the profiles side by side, the smallest first."""
    from profiler import open_report

    ipus = {name: open_report(path).target.num_ipus for name, path in profiles.items()}
    names = sorted(profiles, key=ipus.__getitem__)
    small, large = names[0], names[-1]
    heads = [f"{name}, {ipus[name]} IPUs" for name in names]
    lines = [
        TITLE,
        "",
        "CPU seconds and memory of `ipu-report`'s process, imports included, the median of"
        f" {times}; the ratio and the exponent are of the largest over the smallest.",
        "",
        f"| report | {' | '.join(heads)} | ratio | exponent over IPUs |",
        f"| --- |{' ---: |' * (len(names) + 2)}",
    ]
    for report in REPORTS:
        seconds = {name: taken(report, profiles[name], times) for name in names}
        cells = [f"{one.seconds:.2f} s, {one.megabytes:.0f} MB" for one in seconds.values()]
        ratio = seconds[large].seconds / max(1e-9, seconds[small].seconds)
        exponent = math.log(ratio) / math.log(ipus[large] / ipus[small])
        lines.append(
            f"| `{' '.join(report)}` | {' | '.join(cells)} | {ratio:.2f} | {exponent:.2f} |"
        )
    return [*lines, ""]
