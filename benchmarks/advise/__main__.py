"""Hold what `ipu-report advise` predicts of a 50 M-parameter GPT against compiles of it.

``python -m benchmarks.advise`` prints the tables of docs/advice.md: each change, the samples a
second that the profile of the script as it is predicts of it, and those of a compile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from profiler import analysis, open_report
from profiler.advise import Basis, Levers, advise_on, predicted
from reports.checks import Script

GPT = Path(__file__).with_name("gpt.py")
# Changes that are estimates, besides those that are advised.
ESTIMATES = (
    Levers(half=True),
    Levers(micro_batch=2),
    Levers(micro_batch=8),
    Levers(half=True, micro_batch=8),
)


def rows(folder: Path) -> Iterator[tuple[str, float, float, int, int]]:
    """Of each change its words, samples a second and bytes of the fullest tile.

    First what is predicted, then what a compile has.
    """
    _compiled_as_it_is(folder / "before")
    with open_report(folder / "before" / "training") as report:
        basis = Basis.of(report)
        advised = advise_on(basis)
        advices = [*advised.single, *([advised.together] if advised.together else [])]
        levers = dict.fromkeys([*ESTIMATES, *(one.levers for one in advices)])
        now = analysis.pace(report).samples_per_second
        script = Script(str(GPT), (), folder, "training")
        for number, one in enumerate(levers):
            said = predicted(basis, one, now)
            outcome = script.compiled(str(number), one, basis)
            yield (
                said.title,
                said.samples_per_second,
                outcome.samples_per_second,
                said.fullest,
                outcome.fullest,
            )


def _compiled_as_it_is(folder: Path) -> None:
    command = [sys.executable, "-m", "ipu_exec.run", "--compile-only", "--profile-dir", str(folder)]
    subprocess.run([*command, str(GPT)], check=True, env=dict(os.environ), capture_output=True)


def main() -> None:
    """Print the table."""
    print("| change | predicted, samples/s | compiled | off by | fullest tile | compiled |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for title, said, came, fullest, held in rows(Path(folder)):
            off = f"{said / came - 1:+.0%}" if came else "out of memory"
            print(
                f"| {title} | {said:,.0f} | {came:,.0f} | {off} | {fullest:,} | {held:,} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
