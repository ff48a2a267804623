"""Drive the viewer in headless chromium on synthetic profiles, and say how long a zoom takes.

``python -m benchmarks.viewer`` prints a table and writes it to docs/viewer-performance.md. A zoom
is a turn of the wheel over the execution trace; its time runs from the wheel's event to the first
frame after the figure was redrawn with the answer of the server. The server is a process of its
own, started cold.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dated import dated
from benchmarks.viewer import pages
from ipuscope.profiler import open_report
from ipuscope.profiler.file.reader import find_profile
from tests.synthetic import synthetic_profile
from tools.screenshots import FLAGS, SIZE, find_browser, settled

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "viewer-performance.md"
SIZES = {
    "10^4": 10,
    "10^5": 100,
    "10^6": 1000,
}  # micro-batches of 10 iterations: about so many slices
HEAT = 1_660  # steps a body: three bodies make a program of 5,000 steps an IPU
ZOOMS = 24

# Resolves when the figure has been drawn with a window it did not have before, and that frame is on
# its way.
_REDRAWN = """
(id) => new Promise((done) => {
  const plot = document.querySelector('#' + id + ' .js-plotly-plot');
  const start = performance.now();
  const query = window.location.search;
  let answered = false;
  const watch = () => {
    const now = new URLSearchParams(window.location.search);
    const range = plot.layout.xaxis.range, meta = plot.layout.meta || {};
    const from = Number(now.get((meta.x || ['from'])[0]));
    const near = Math.abs(range[0] / (meta.scale || 1) - from) < 2;
    if (window.location.search !== query && near) { answered = true; }
  };
  plot.on('plotly_afterplot', () => {
    watch();
    if (answered) { requestAnimationFrame(() => done(performance.now() - start)); }
  });
  setTimeout(() => done(-1), 10000);
})
"""


@dataclass(frozen=True)
class Result:
    """What was measured for one page, in milliseconds unless the name gives another unit."""

    what: str
    slices: int
    file_mb: float
    first_words_s: float
    first_page_s: float
    zoom: tuple[float, float]  # median, 95th percentile
    server: tuple[float, float]
    payload_kb: tuple[float, float]
    memory_mb: float


def measure(
    name: str, path: Path, page_path: str, graph: str, zooms: int, checkout: Path = ROOT
) -> Result:
    """Measure one page of the viewer (of a checkout) on one profile."""
    from playwright.sync_api import sync_playwright

    browser = find_browser()
    if browser is None:
        raise SystemExit("no chromium: make browser")
    with open_report(path) as report:
        slices = sum(len(report.steps(run)) for run in range(len(report.runs)))
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=list(FLAGS))
        tab = chromium.new_page(viewport=SIZE)
        start = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "ipuscope.reports.cli",
            "view",
            "--no-browser",
            "--port",
            "0",
            str(path),
        ]
        server = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout)},
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split(" is at ")[1].split(" ")[0]
            _open(tab, address)
            address = address.split("/?")[0]  # a cookie has the token from now on
            words = time.perf_counter() - start
            settled(tab, 60_000, pause=0)
            first = time.perf_counter() - start
            tab.goto(address + page_path)
            settled(tab, 120_000)
            times, answers, sizes = _zooms(tab, graph, zooms)
            memory = _peak_memory(server.pid)
        finally:
            server.terminate()
            server.wait()
            chromium.close()
    return Result(
        name,
        slices,
        path.stat().st_size / 1e6,
        words,
        first,
        _both(times),
        _both(answers),
        _both(sizes),
        memory,
    )


def _open(tab: Any, address: str) -> None:
    """Open a page as soon as the server listens, and wait until its text is there."""
    for _ in range(1000):
        try:
            urllib.request.urlopen(address, timeout=10).close()
            break
        except urllib.error.HTTPError:  # it listens, and wants a cookie
            break
        except urllib.error.URLError:
            time.sleep(0.01)
    tab.goto(address, wait_until="commit")
    tab.wait_for_selector("#page .card", timeout=60_000)


def _zooms(tab: Any, graph: str, zooms: int) -> tuple[list[float], list[float], list[float]]:
    """Zoom repeatedly; returns the times to redraw, the server's times and its kilobytes."""
    answers: list[tuple[float, float]] = []

    def answered(request: Any) -> None:
        if "_dash-update-component" not in request.url:
            return
        body = request.post_data or ""
        if f"{graph}.figure" in body:
            timing = request.timing
            size = request.sizes()["responseBodySize"]
            answers.append((timing["responseEnd"] - timing["requestStart"], size / 1e3))

    tab.on("requestfinished", answered)
    box = tab.locator(f"#{graph} .nsewdrag").first.bounding_box()
    times = []
    for number in range(zooms):
        inward = number % 8 < 5  # in, and part of the way out again
        x = box["x"] + box["width"] * (0.35 + 0.3 * ((number * 7) % 10) / 10)
        tab.mouse.move(x, box["y"] + box["height"] / 2)
        waiting = tab.evaluate_handle(f"() => ({{ promise: ({_REDRAWN})('{graph}') }})")
        tab.mouse.wheel(0, -260 if inward else 260)
        took = tab.evaluate("(held) => held.promise", waiting)
        if took > 0:
            times.append(float(took))
        tab.wait_for_timeout(250)
    return times, [time for time, _ in answers], [size for _, size in answers]


def _both(values: list[float]) -> tuple[float, float]:
    return (
        (float(np.median(values)), float(np.percentile(values, 95)))
        if values
        else (float("nan"), float("nan"))
    )


def _peak_memory(pid: int) -> float:
    """The process's peak memory in megabytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return (
        next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1e3
    )


def table(results: list[Result]) -> str:
    """The results as a Markdown page."""
    heads = (
        "profile",
        "slices",
        "file",
        "first words, cold",
        "first page, cold",
        "zoom, median",
        "zoom, p95",
        "server, median / p95",
        "payload, median / p95",
        "server's memory",
    )
    rows = [
        (
            r.what,
            f"{r.slices:,}",
            f"{r.file_mb:.1f} MB",
            f"{r.first_words_s:.2f} s",
            f"{r.first_page_s:.2f} s",
            f"{r.zoom[0]:.0f} ms",
            f"{r.zoom[1]:.0f} ms",
            f"{r.server[0]:.0f} / {r.server[1]:.0f} ms",
            f"{r.payload_kb[0]:.0f} / {r.payload_kb[1]:.0f} kB",
            f"{r.memory_mb:.0f} MB",
        )
        for r in results
    ]
    lines = [heads, ("---", *["---:"] * (len(heads) - 1)), *rows]
    return "\n".join([_WORDS, *(f"| {' | '.join(line)} |" for line in lines), ""])


_WORDS = """# How fast the viewer answers

Written by `python -m benchmarks.viewer`: synthetic profiles, headless chromium without a GPU, and
the server started cold for each profile. A zoom lasts from the turn of the wheel until the frame
after the figure was redrawn with the server's answer; payloads are counted as sent. "First words"
is the first card of the summary, "first page" all of it with its charts, both from the start of the
command. The heat map has 1,472 tiles and about 5,000 steps; its file and memory are those of a
program in which no two steps are alike.
"""


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.viewer", description=__doc__)
    parser.add_argument("--zooms", type=int, default=ZOOMS)
    parser.add_argument(
        "--only", choices=[*SIZES, "heat"], help="one profile; the page is not written then"
    )
    parser.add_argument(
        "--pages",
        nargs="+",
        metavar="NAME=PROFILE",
        help="write only what the server takes for each page, on profiles that are there",
    )
    args = parser.parse_args()
    if args.pages:
        words = (word.partition("=") for word in args.pages)
        section = pages.section({name: find_profile(path) for name, _, path in words})
        print("\n".join(section))
        PAGE.write_text(dated(pages.with_section(PAGE.read_text(), section)))
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name, micro_batches in SIZES.items():
            if args.only in (None, name):
                path = synthetic_profile(
                    Path(folder) / f"{micro_batches}.pop",
                    micro_batches=micro_batches,
                    iterations=10,
                    steps_per_body=12,
                    runs=1,
                )
                results.append(
                    measure(
                        f"trace, {name}",
                        path,
                        "/timeline?level=steps&span=call",
                        "timeline-rows",
                        args.zooms,
                    )
                )
                print(table(results[-1:]).splitlines()[-1], flush=True)
        if args.only in (None, "heat"):
            path = synthetic_profile(
                Path(folder) / "heat.pop", tiles=1472, steps_per_body=HEAT, iterations=1, runs=1
            )
            results.append(measure("heat map", path, "/memory", "liveness-heat", args.zooms))
            print(table(results[-1:]).splitlines()[-1], flush=True)
    if args.only is None:
        page = PAGE.read_text().partition(pages.TITLE)  # of real models: --pages
        PAGE.write_text(dated(table(results) + "".join(("\n", *page[1:]) if page[1] else ())))
    print(table(results))


if __name__ == "__main__":
    main()
