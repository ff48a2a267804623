"""What each of `ipu-report`'s reports takes: CPU seconds and memory of its whole process.

Each with a cache of its own, where nothing is kept; and once more with what was kept then. The
demo's imports are a large part of its time; what grows with the model and its IPUs is what is
beyond that. The exponent is of a report's time over the IPUs of all replicas, between the smallest
and the largest profile.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
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
    """CPU seconds, megabytes at the most, and CPU seconds with what was kept the first time."""

    seconds: float
    megabytes: float
    kept: float = 0.0

    def __str__(self) -> str:
        """The cell of the table; what was kept is said where it saves a fifth."""
        again = f", then {self.kept:.2f} s" if self.kept < 0.8 * self.seconds else ""
        return f"{self.seconds:.2f} s{again}, {self.megabytes:.0f} MB"


def taken(report: Sequence[str], path: Path, times: int = TIMES) -> Taken:
    """The median of some runs, each a process of its own."""
    runs, again = [], []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as cache:
            runs.append(_one(report, path, cache))
            again.append(_one(report, path, cache))
    return Taken(
        statistics.median(run.seconds for run in runs),
        statistics.median(run.megabytes for run in runs),
        statistics.median(run.seconds for run in again),
    )


def _one(report: Sequence[str], path: Path, cache: str) -> Taken:
    command = [sys.executable, "-m", "reports.cli", report[0], str(path), *report[1:]]
    process = subprocess.Popen(
        command,
        env={**os.environ, "IPUSCOPE_CACHE": cache},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
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
    said = f"the median of {times}" if times > 1 else "run once"
    lines = [
        TITLE,
        "",
        "By `python -m benchmarks.profile --reports NAME=PROFILE ...`: CPU seconds and memory of"
        f" `ipu-report`'s process, imports included, {said}, with nothing kept of the profile"
        " and, where that is a fifth less, a second time; the ratio and the exponent are of the"
        " largest over the smallest, nothing kept. `rebalance` searches over all stages and"
        " `insights` does so too; `doctor` reads every row of the file, not only packed columns.",
        "",
        f"| report | {' | '.join(heads)} | ratio | exponent over IPUs |",
        f"| --- |{' ---: |' * (len(names) + 2)}",
    ]
    for report in REPORTS:
        times_taken = {name: taken(report, profiles[name], times) for name in names}
        cells = [str(one) for one in times_taken.values()]
        ratio = times_taken[large].seconds / max(1e-9, times_taken[small].seconds)
        exponent = math.log(ratio) / math.log(ipus[large] / ipus[small])
        lines.append(
            f"| `{' '.join(report)}` | {' | '.join(cells)} | {ratio:.2f} | {exponent:.2f} |"
        )
    return [*lines, ""]
