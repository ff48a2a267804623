"""How long zooms of the trace take, and with an older viewer.

``python -m benchmarks.viewer.zooms --against COMMIT`` asks this checkout's viewer and the one of a
commit for the same windows of the same profile (10^6 slices), one process each, and then turns the
wheel over both in a browser. It writes the server's CPU time, and the time until the refined
picture is there, to docs/viewer-performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MICRO_BATCHES, ITERATIONS = 1000, 10  # about 10^6 slices
ZOOMS, MOVES = 64, 32  # that the server is asked for
TURNS = 48  # of the wheel, in a browser
TITLE = "## Zooms and moves: how long they take"
_UPDATE = "/_dash-update-component"
_HERE = {"path": "/timeline", "search": "?level=steps&span=call", "theme": "light", "width": 1148}


def windows(end: float) -> Iterator[tuple[float, float]]:
    """Windows as a wheel and drags make them: five turns in, three out, about a moving point."""
    low, high = 0.0, end
    for number in range(ZOOMS):
        factor = 0.6 if number % 8 < 5 else 1 / 0.6
        middle = low + (high - low) * (0.35 + 0.3 * ((number * 7) % 10) / 10)
        low, high = (middle + (edge - middle) * factor for edge in (low, high))
        low, high = max(0.0, low), min(end, high)
        yield low, high
    low, high = 0.4 * end, 0.41 * end
    for _ in range(MOVES):
        low, high = (edge + 0.3 * (0.01 * end) for edge in (low, high))
        yield low, high


def measured(path: str) -> list[float]:
    """CPU milliseconds of the server for each window, the first figure before them left out.

    Imports whichever viewer is on the path: it asks as a browser does, with nothing of this one.
    """
    from ipuscope.profiler import open_report
    from ipuscope.viewer.app import create_app

    report = open_report(path)
    client = create_app(report).server.test_client()
    frame = client.get("/_dash-layout").json
    specs = client.get("/_dash-dependencies").json
    held = {_key(node["id"]): node for node in _nodes(frame) if "id" in node}
    held["where"] = {"id": "where", "data": _HERE}
    page = next(one for one in specs if "page.children" in one["output"])
    shown = client.post(_UPDATE, json=_request(page, held, [])).json
    tree = shown["response"]["page"]["children"]
    held |= {_key(node["id"]): node for node in _nodes(tree) if "id" in node}
    figure = next(one for one in specs if "timeline-rows.figure" in one["output"])
    client.post(_UPDATE, json=_request(figure, held, []))
    ends = [_key({"page": "trace", "param": name}) for name in ("from", "to")]
    steps = report.steps(0)
    took = []
    for window in windows(float(steps["end"].max() - steps["start"].min())):
        for key, edge in zip(ends, window, strict=True):
            held[key] = {**held[key], "value": str(round(edge))}
        request = _request(figure, held, [f"{key}.value" for key in ends])
        start = time.process_time()
        answer = client.post(_UPDATE, json=request)
        took.append((time.process_time() - start) * 1e3)
        if answer.status_code != 200 or "timeline-rows" not in answer.text:
            raise SystemExit(f"no figure for {window}: {answer.status_code}")
    return took


def _request(spec: Any, held: dict[str, Any], changed: Sequence[str]) -> dict[str, Any]:
    """A callback's request with the values of the components that are held."""

    def values(parts: Any) -> list[Any]:
        return [_value(one, held) for one in parts]

    names = [name.rpartition(".") for name in spec["output"].strip(".").split("...")]
    outputs = [_output(_id(key), prop.split("@")[0], held) for key, _, prop in names]
    return {
        "output": spec["output"],
        "outputs": outputs if spec["output"].startswith("..") else outputs[0],
        "inputs": values(spec["inputs"]),
        "state": values(spec["state"]),
        "changedPropIds": list(changed),
    }


def _output(id: Any, name: str, held: dict[str, Any]) -> Any:
    if not isinstance(id, dict) or ["ALL"] not in id.values():
        return {"id": id, "property": name}
    return [{"id": one["id"], "property": name} for one in _all(id, name, held)]


def _value(one: dict[str, Any], held: dict[str, Any]) -> Any:
    id = _id(one["id"])
    if isinstance(id, dict) and ["ALL"] in id.values():
        return _all(id, one["property"], held)
    said = {"id": id, "property": one["property"]}
    node = held.get(one["id"], {})
    name = one["property"]
    return {**said, "value": node[name]} if name in node else said


def _all(id: dict[str, Any], name: str, held: dict[str, Any]) -> list[dict[str, Any]]:
    """The components with the same parts of an id as a pattern."""
    fixed = {key: value for key, value in id.items() if value != ["ALL"]}
    answers = []
    for key, node in held.items():
        other = _id(key)
        if isinstance(other, dict) and set(other) == set(id) and fixed.items() <= other.items():
            value = {"value": node[name]} if name in node else {}
            answers.append({"id": other, "property": name, **value})
    return answers


def _id(words: str) -> Any:
    return json.loads(words) if words.startswith("{") else words


def _key(id: Any) -> str:
    return id if isinstance(id, str) else json.dumps(id, sort_keys=True, separators=(",", ":"))


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, list):
        for one in tree:
            yield from _nodes(one)
    elif isinstance(tree, dict) and "props" in tree:
        yield tree["props"]
        yield from _nodes(tree["props"].get("children"))


def _asked(checkout: Path, profile: Path, cache: Path) -> list[float]:
    """`measured` in a process that imports the viewer of a checkout."""
    file = cache / "zooms.py"  # a copy: beside this one it would import this checkout's packages
    source = Path(__file__).read_text().partition("\n\nif __name__")[0]
    file.write_text(f"{source}\n\n\nprint(json.dumps(measured({str(profile)!r})))\n")
    environment = {**os.environ, "PYTHONPATH": str(checkout), "IPUSCOPE_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-P", str(file)],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both, and print a table."""
    import numpy as np

    from benchmarks.viewer.__main__ import measure
    from benchmarks.viewer.pages import with_section
    from tests.synthetic import synthetic_profile

    parser = argparse.ArgumentParser(prog="python -m benchmarks.viewer.zooms", description=__doc__)
    parser.add_argument("--against", required=True, metavar="COMMIT", help="the older viewer")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        old = folder / "old"
        old.mkdir()
        archive = subprocess.run(
            ["git", "archive", args.against], cwd=ROOT, stdout=subprocess.PIPE, check=True
        )
        subprocess.run(["tar", "x", "-C", str(old)], input=archive.stdout, check=True)
        profile = synthetic_profile(
            folder / "profile.pop",
            micro_batches=MICRO_BATCHES,
            iterations=ITERATIONS,
            steps_per_body=12,
            runs=1,
        )
        rows = []
        for name, checkout in ((f"`{args.against}`", old), ("this viewer", ROOT)):
            cache = folder / f"cache of {checkout.name}"
            cache.mkdir()
            times = _asked(checkout, profile, cache)
            seen = measure(
                name, profile, "/timeline?level=steps&span=call", "timeline-rows", TURNS, checkout
            )
            middle, most = np.median(times), np.percentile(times, 95)
            drawn = " | ".join(f"{time:.0f} ms" for time in seen.zoom)
            rows.append(f"| {name} | {middle:.1f} ms | {most:.1f} ms | {drawn} |")
    lines = [
        TITLE,
        "",
        f"By `python -m benchmarks.viewer.zooms --against {args.against}` (the commit before the"
        f" timeline): CPU that the server takes for the figure of each of {ZOOMS} zooms and {MOVES}"
        " moves of the trace of 10^6 slices, and the time from a turn of the wheel until the"
        f" refined picture is there, of {TURNS} turns in headless chromium, in one run. What the"
        " browser shows meanwhile is what is there, stretched, in its next frame.",
        "",
        "| viewer | server, median | p95 | refined picture, median | p95 |",
        "| --- | ---: | ---: | ---: | ---: |",
        *rows,
        "",
    ]
    print("\n".join(lines))
    page = ROOT / "docs" / "viewer-performance.md"
    page.write_text(with_section(page.read_text(), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
