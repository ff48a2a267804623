"""Ratios of CPU seconds beside those of before: ``make bench``.

Seconds differ from machine to machine and from hour to hour, so each figure is a ratio of two
things on one machine: a compile over a bare capture, the engine over plain PyTorch, a question to
GPT-3's profile over the same one to the demo's. Each side has ``--rounds``. ``docs/ratios.md``
has the ratios; one that is 20 % worse than there ends the command with status 1. ``--write`` puts
today's there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.compile import growth
from benchmarks.dated import dated
from benchmarks.profile.reports import OUT, PROFILE, SQL, taken

PAGE = Path(__file__).parents[2] / "docs" / "ratios.md"
WORSE = 1.2
REPORTS = {
    "summary": ("summary", PROFILE),
    "stages": ("stages", PROFILE),
    "why": ("why", PROFILE),
    "pipeline": ("pipeline", PROFILE),
    "doctor": ("doctor", PROFILE),
    "query": ("query", SQL, PROFILE),
    "html": ("html", PROFILE, "-o", OUT),
}
_ROW = re.compile(r"^\| (.+?) \| ([\d.]+) \|$", re.MULTILINE)


def compiles(rounds: int) -> Iterator[tuple[str, float]]:
    """What a compile with its profile takes beside a bare capture, in alternating runs."""
    for name, (compiled, bare) in growth.beside_captures(rounds).items():
        yield name, compiled["built"] / bare["built"]


def calls(rounds: int) -> Iterator[tuple[str, float]]:
    """What a call of the engine takes beside the same update in plain PyTorch."""
    from benchmarks.overhead.__main__ import CASES, ratios

    for name, micro_batch, accumulation, _ in CASES:
        engine, profile = ratios(name, micro_batch, accumulation, 4 * rounds)
        yield f"{name}, engine / plain PyTorch", engine
        yield f"{name}, engine with profile / engine", profile


def questions(rounds: int) -> Iterator[tuple[str, float]]:
    """What a report of GPT-3's profile takes beside the demo's, caches empty."""
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "gpt3", Path(folder) / "demo"
        scripts = ("gpt3_175b", "--profile-dir", large), ("mnist_pipeline", "--profile-dir", small)
        for script, *words in scripts:
            command = [sys.executable, f"examples/{script}.py", *map(str, words)]
            subprocess.run(command, check=True, capture_output=True)
        for name, report in REPORTS.items():
            both = [taken(report, path / "training", rounds).seconds for path in (large, small)]
            yield f"{name}, GPT-3 on 256 IPUs / the demo", both[0] / both[1]


PARTS: dict[str, Callable[[int], Iterator[tuple[str, float]]]] = {
    "compiles": compiles,
    "calls": calls,
    "questions": questions,
}


def page(ratios: dict[str, float]) -> str:
    """The page, a row a ratio."""
    about = " ".join(str(__doc__).split("\n\n")[1].split())
    rows = [f"| {name} | {ratio:.2f} |" for name, ratio in ratios.items()]
    head = ["# Ratios that are to stay", "", f"`python -m benchmarks.ratios`. {about}", ""]
    return "\n".join([*head, "| ratio | is |", "| --- | ---: |", *rows, ""])


def main() -> int:
    """Measure, compare, and write the page if that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ratios", description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of each side (3)")
    parser.add_argument("--write", action="store_true", help="put today's ratios into the page")
    args = parser.parse_args()
    before = {name: float(is_) for name, is_ in _ROW.findall(PAGE.read_text())}
    now, worse = dict(before), 0
    for part in [args.only] if args.only else PARTS:
        for name, ratio in PARTS[part](args.rounds):
            then = before.get(name)
            too_much = then is not None and ratio > WORSE * then
            words = "new" if then is None else f"was {then:.2f}{', WORSE' * too_much}"
            print(f"{ratio:6.2f}  {name} ({words})", flush=True)
            now[name], worse = ratio, worse + too_much
    if args.write:
        PAGE.write_text(dated(page(now)))
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
