"""What each of `ipu-report`'s reports takes: CPU seconds and memory of its whole process.

Each with a cache of its own, where nothing is kept; and once more with what was stored then. The
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

PROFILE, OUT = "PROFILE", "OUT"
SQL = "SELECT ipu, count(*), sum(cycles) FROM program_steps GROUP BY ipu"
REPORTS = (
    *((name, PROFILE) for name in ("summary", "insights", "advise", "why", "stages")),
    *((name, PROFILE) for name in ("pipeline", "pod", "memory", "tile", "liveness", "ops")),
    *((name, PROFILE) for name in ("program", "variables", "rebalance", "whatif", "doctor")),
    ("compare", PROFILE, PROFILE),
    ("query", SQL, PROFILE),
    ("html", PROFILE, "-o", OUT),
)
WANTED = 2.0  # times the demo's
TIMES = 3
TITLE = "## What reports take"


class Refused(RuntimeError):
    """A report that a profile has no answer for, with its first sentence."""


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
    """The median of some runs, each a process of its own, after one that is not counted."""
    runs, again = [], []
    with tempfile.TemporaryDirectory() as cache:  # leaves byte code
        _one(report, path, cache)
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
    known = {PROFILE: str(path), OUT: os.path.join(cache, "out")}
    command = [
        sys.executable,
        "-m",
        "ipuscope.reports.cli",
        *(known.get(word, word) for word in report),
    ]
    environment = {**os.environ, "IPUSCOPE_CACHE": os.path.join(cache, "kept")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr:
        words = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # it was waited for just now
    if process.returncode:
        said = words.partition("error: ")[2].strip() or f"it ended with {process.returncode}"
        raise Refused(said.replace(f"{path} ", "it ").partition(". ")[0])
    return Taken(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3)


def section(profiles: dict[str, Path], times: int = TIMES) -> list[str]:
    """Lines of the page: a row a report, the profiles side by side, the smallest first."""
    from ipuscope.profiler import open_report
    from ipuscope.profiler.analysis import shards_of

    opened = {name: open_report(path) for name, path in profiles.items()}
    ipus = {name: one.target.num_ipus * shards_of(one) for name, one in opened.items()}
    names = sorted(profiles, key=ipus.__getitem__)
    small, large = names[0], names[-1]
    heads = [f"{name}, {ipus[name]} IPUs" for name in names]
    said = f"the median of {times}" if times > 1 else "run once"
    lines = [
        TITLE,
        "",
        "By `python -m benchmarks.profile --reports NAME=PROFILE ...`: CPU seconds and memory of"
        f" `ipu-report`'s process, imports included, {said}, with an empty cache"
        " and, where that is a fifth less, a second time; the ratio and the exponent are of the"
        f" largest over the smallest, nothing kept; in bold where it is over {WANTED:.0f}."
        " A profile holds no answers: slow ones are stored in the user's cache once they were asked"
        " for (`ipuscope.profiler.answers`)."
        f" `rebalance` searches over all stages; `query` is `{SQL}`.",
        "",
        f"| report | {' | '.join(heads)} | ratio | exponent over IPUs |",
        f"| --- |{' ---: |' * (len(names) + 2)}",
    ]
    reasons = dict[str, list[str]]()
    for report in REPORTS:
        seconds, cells = dict[str, float](), list[str]()
        for name in names:
            try:
                one = taken(report, profiles[name], times)
            except Refused as error:
                reasons.setdefault(f"{name}: {error}.", []).append(f"`{report[0]}`")
                cells.append("-")
            else:
                seconds[name] = one.seconds
                cells.append(str(one))
        both = "- | -"
        if small in seconds and large in seconds:
            ratio = seconds[large] / max(1e-9, seconds[small])
            exponent = math.log(ratio) / math.log(ipus[large] / ipus[small])
            both = f"{f'**{ratio:.2f}**' if ratio > WANTED else f'{ratio:.2f}'} | {exponent:.2f}"
        lines.append(f"| `{report[0]}` | {' | '.join(cells)} | {both} |")
        print(lines[-1], file=sys.stderr, flush=True)
    for why, which in reasons.items():
        lines += ["", f"No answer of {' and '.join(which)} for {why}"]
    return [*lines, ""]
