"""CPU time of the viewer's server for the layout of every page and the callbacks that fill it.

Measured without a browser (`tests.viewer.page_requests`), in a separate process for each
opening: the first computes everything, the second finds it in the cache.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

TITLE = "## Real models: what the server takes for each page"
WANTED = 1.5  # times what the demo takes
_ROUNDS = 2  # all profiles in turn
_SHORT = 0.02  # seconds: what is quicker than a frame or two is as quick as the demo
Times = dict[str, tuple[float, int]]  # "page: callback" -> CPU seconds, bytes of the answer


def with_section(page: str, lines: list[str]) -> str:
    """A Markdown page with a section in place of the one of the same title, or at its end."""
    title = lines[0]
    before, _, after = page.partition(f"{title}\n")
    _, heading, behind = after.partition("\n## ")
    return "\n".join([before.rstrip(), "", *lines]) + (f"## {behind}" if heading else "")


def opening(path: Path, cache: Path) -> Times:
    """Measure a viewer that is started now, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.viewer.pages", str(path)]
    # one thread for numpy's products, as `ipu-report view` sets it: theirs spin, and count as CPU
    environment = {**os.environ, "IPUSCOPE_CACHE": str(cache), "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return {name: (seconds, size) for name, seconds, size in json.loads(done.stdout)}


def least(measured: Iterable[Times]) -> Times:
    """Of several openings the quickest time of each callback: what else the machine did is off."""
    first, *others = measured
    return {
        what: (min([seconds, *(one[what][0] for one in others if what in one)]), size)
        for what, (seconds, size) in first.items()
    }


def section(profiles: dict[str, Path]) -> list[str]:
    """Lines of the page, a row per callback; the other profiles are compared with the first.

    Callbacks that take less than a millisecond everywhere are left out.
    """
    rounds: dict[str, list[tuple[Times, Times]]] = {name: [] for name in profiles}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(_ROUNDS):
            for at, (name, path) in enumerate(profiles.items()):
                cache = Path(folder, f"cache {number} {at}")
                rounds[name].append((opening(path, cache), opening(path, cache)))
    times_of = {
        name: (least(first for first, _ in of), least(kept for _, kept in of))
        for name, of in rounds.items()
    }
    heads = [f"{name}: first / kept | answer" for name in profiles]
    lines = [
        TITLE,
        "",
        "By `python -m benchmarks.viewer --pages NAME=PROFILE ...`: milliseconds of CPU that the"
        " server takes, where the cache is empty and in a viewer that is started"
        f" after that, the least of {_ROUNDS} rounds, and the kilobytes of the answer. In bold: a"
        f" first time over {WANTED} times that of the first profile; times up to"
        f" {_SHORT * 1e3:.0f} ms are the process's noise, and compare with nothing. Slow"
        " answers are stored in the user's cache (`ipuscope.profiler.answers`) by the first one."
        " What is over the demo's time is mostly the reading of more: there are"
        f" {_sizes(profiles)}.",
        "",
        f"| page: what | {' | '.join(heads)} |",
        f"| --- |{' ---: | ---: |' * len(profiles)}",
    ]
    small = next(iter(times_of.values()))[0]
    every = dict.fromkeys(what for first, _ in times_of.values() for what in first)
    for what in every:
        cells = []
        for first, shown in times_of.values():
            if what not in first or what not in shown:  # a page without it, as without a pipeline
                cells += ["", ""]
                continue
            times = first[what][0], shown[what][0]
            cells.append(_cell(times, small.get(what, (math.inf, 0))[0]))
            cells.append(f"{shown[what][1] / 1e3:.0f}")
        if any(first.get(what, (0.0, 0))[0] >= 1e-3 for first, _ in times_of.values()):
            lines.append(f"| {what} | {' | '.join(cells)} |")
    sums = []
    demo = sum(seconds for seconds, _ in small.values())
    for first, shown in times_of.values():
        totals = [sum(seconds for seconds, _ in times.values()) for times in (first, shown)]
        sums += [_cell((totals[0], totals[1]), demo), ""]
    lines.append(f"| all of them | {' | '.join(sums)} |")
    return [*lines, ""]


def _sizes(profiles: dict[str, Path]) -> str:
    """How much there is to read in each of the profiles, in words."""
    from ipuscope.profiler import open_report
    from ipuscope.profiler.file import records

    said = []
    for name, path in profiles.items():
        with open_report(path) as report:
            steps, variables = (
                report.file.table(record).rows for record in (records.Step, records.Variable)
            )
            tasks = len(report.tasks(0, iteration=0)) if len(report.runs) else 0
        said.append(f"{steps:,} program steps, {variables:,} variables, {tasks:,} tasks ({name})")
    return "; ".join(said)


def _cell(times: tuple[float, float], small: float) -> str:
    """First and kept, in milliseconds; ``small``: the first profile's first, in seconds."""
    first, kept = (f"{seconds * 1e3:.0f}" for seconds in times)
    slow = times[0] > max(WANTED * small, _SHORT)
    return f"**{first}** / {kept}" if slow else f"{first} / {kept}"


def _measure(path: Path) -> list[tuple[str, float, int]]:
    from ipuscope.profiler import open_report
    from ipuscope.viewer.app import PAGES, create_app, settle
    from tests.viewer.page_requests import PageRequests

    app = create_app(open_report(path))
    settle()  # as `ipu-report view` does
    first = PageRequests(app)
    answers = []
    for page in PAGES:
        asked = first.of_page(page, {"theme": "light", "width": 1148})
        start = time.process_time()
        for what, request in asked:
            if what != "layout":
                start = time.process_time()
            answer = first.ask(request)
            seconds = time.process_time() - start
            answers.append((f"{page.name}: {what}", seconds, len(answer)))
    return answers


if __name__ == "__main__":
    print(json.dumps(_measure(Path(sys.argv[1]))))
