"""Long or rough use, by hand: ``python -m tools.trials viewer|compiles|flips PROFILE``.

docs/reliability.md has what came of each. CI has no time for them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

PAGES = ("/", "/pipeline", "/memory", "/rebalance", "/compare", "/query", "/pod")
COMMANDS = (
    *("summary", "stages", "ops", "memory", "variables", "liveness", "runs", "pipeline"),
    *("program", "pipeline", "rebalance", "insights", "why", "whatif", "compare", "doctor"),
)


def main() -> None:
    """Run one trial."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trial", choices=("viewer", "compiles", "flips"))
    parser.add_argument("profile", nargs="?", type=Path, help="a profile.pop, or a folder")
    parser.add_argument("--seconds", type=float, default=120)
    args = parser.parse_args()
    if args.trial == "compiles":
        compiles(args.seconds)
    else:
        {"viewer": viewer, "flips": flips}[args.trial](args.profile, args.seconds)


def resident(process: int) -> int:
    """MiB of memory that a process has."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") >> 20


# -- a viewer that many ask, some of them badly ---


def viewer(profile: Path, seconds: float) -> None:
    """A port scanner without the token, 400 half-sent requests, then every callback in turn."""
    shown = ["--follow", str(profile)] if profile.is_dir() else [str(profile)]
    words = ["ipu-report", "view", "--no-browser", "--port", "0", *shown]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split(" is at ")[1].split(" ")[0]
    base = address.split("/?")[0]
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    for _ in range(300):
        with contextlib.suppress(OSError):
            browser.open(address, timeout=30).close()
            break
        time.sleep(0.2)

    def say(what: str) -> None:
        status = Path(f"/proc/{server.pid}/status").read_text()
        threads = re.search(r"Threads:\s+(\d+)", status)
        assert threads is not None
        files = len(os.listdir(f"/proc/{server.pid}/fd"))
        print(
            f"{what}: {threads[1]} threads, {files} files, {resident(server.pid)} MiB", flush=True
        )

    say("start")
    paths = (*PAGES, "/_dash-layout", "/_dash-dependencies", "/assets/viewer.js", "/?token=guess")
    scanned = Counter(
        _status(urllib.request.build_opener(), base + path, method)
        for path in paths
        for method in ("GET", "POST", "PUT", "OPTIONS", "HEAD", "DELETE")
    )
    say(f"scanned without the token, statuses {dict(scanned)}")
    port = int(base.rsplit(":", 1)[1])
    half_sent = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
    for one in half_sent:
        one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    time.sleep(3)
    say("3 s after 400 half-sent requests")
    time.sleep(22)
    say("22 s later")
    for one in half_sent:
        one.close()
    _poll(browser, base, say)
    _ask_all(browser, base, seconds, say)
    server.send_signal(signal.SIGINT)
    print(f"Ctrl-C: exit code {server.wait(20)}")


def _status(browser: Any, address: str, method: str, body: bytes | None = None) -> int:
    request = urllib.request.Request(address, body, method=method)
    request.add_header("Content-Type", "application/json")
    try:
        with browser.open(request, timeout=60) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _poll(browser: Any, base: str, say: Any, hours: int = 8) -> None:
    """The requests of a page that is open for so many hours: its polls, and a load each quarter."""
    from ipuscope.viewer.app import LOOK_MILLISECONDS

    dependencies = json.loads(browser.open(f"{base}/_dash-dependencies").read())
    looks = [one for one in dependencies if any(i["id"] == "look" for i in one["inputs"])]
    if not looks:  # only a directory that is followed is asked again
        return
    quarter = 15 * 60_000 // LOOK_MILLISECONDS
    statuses = Counter[int]()
    for number in range(4 * hours):
        statuses[_status(browser, base + PAGES[number % len(PAGES)], "GET")] += 1
        body = json.dumps(_request(looks[0], PAGES[number % len(PAGES)])).encode()
        for _ in range(quarter):
            statuses[_status(browser, f"{base}/_dash-update-component", "POST", body)] += 1
        if number % 4 == 3:
            say(f"hour {number // 4 + 1}, statuses {dict(statuses)}")


def _ask_all(browser: Any, base: str, seconds: float, say: Any) -> None:
    """Each page and each callback of the server, again and again."""
    callbacks = [
        one
        for one in json.loads(browser.open(f"{base}/_dash-dependencies").read())
        if not one.get("clientside_function") and "{" not in one["output"]
    ]
    begin, told, statuses = time.monotonic(), 0, Counter[int]()
    while (past := time.monotonic() - begin) < seconds:
        page = PAGES[sum(statuses.values()) % len(PAGES)]
        for path in PAGES:
            statuses[_status(browser, base + path, "GET")] += 1
        for one in callbacks:
            body = json.dumps(_request(one, page)).encode()
            statuses[_status(browser, f"{base}/_dash-update-component", "POST", body)] += 1
        if past > told * seconds / 6:
            told += 1
            say(f"{sum(statuses.values()):,} requests, statuses {dict(statuses)}")


def _request(callback: dict[str, Any], page: str) -> dict[str, Any]:
    several = callback["output"].startswith("..")
    names = callback["output"].strip(".").split("...") if several else [callback["output"]]
    outputs = [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in names]
    for output in outputs:
        output["property"] = output["property"].split("@")[0]
    values = {"pathname": page, "search": "", "href": ""}

    def known(of: dict[str, Any]) -> Any:
        """What a fresh page has there; of a pattern, which it may match or not, nothing."""
        if '["' in of["id"]:
            return []
        name = json.loads(of["id"]) if of["id"].startswith("{") else of["id"]
        return {**of, "id": name, "value": values.get(of["property"])}

    return {
        "output": callback["output"],
        "outputs": outputs if several else outputs[0],
        "inputs": [known(one) for one in callback["inputs"]],
        "state": [known(one) for one in callback.get("state", [])],
        "changedPropIds": [
            f"{one['id']}.{one['property']}" for one in callback["inputs"] if '["' not in one["id"]
        ][:1],
    }


# -- many compiles in one process ---


def compiles(seconds: float, most: int = 500) -> None:
    """Small training models, each of another shape; memory and open files after."""
    import torch
    from torch import nn

    import ipu_exec

    class Model(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            layers = (nn.TransformerEncoderLayer(width, 4, 2 * width) for _ in range(2))
            self.layers, self.head = nn.ModuleList(layers), nn.Linear(width, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number, layer in enumerate(self.layers):
                with ipu_exec.Block(f"L{number}", ipu_id=number):
                    x = layer(x)
            with ipu_exec.Block("head", ipu_id=1):
                return ipu_exec.identity_loss(self.head(x).square(), "mean")

    begin = time.monotonic()
    for number in range(most):
        width = 16 + 4 * (number % 25)
        options = ipu_exec.Options().showCompilationProgressBar(False)
        options.Training.gradientAccumulation(8)
        wrapped = ipu_exec.trainingModel(Model(width), options)
        wrapped.compile(torch.zeros(8, 4 + number // 25, width))
        wrapped.destroy()
        past = time.monotonic() - begin
        if number % 20 == 0 or number + 1 == most or past > seconds:
            gc.collect()
            files, memory = len(os.listdir("/proc/self/fd")), resident(os.getpid())
            print(f"{number + 1} compiles, {past:.0f} s: {memory} MiB, {files} files", flush=True)
        if past > seconds:
            break


# -- single bits of a profile ---


def flips(profile: Path, seconds: float) -> None:
    """After each single flipped bit, whether commands say that the file is damaged."""
    generator, data = random.Random(0), profile.read_bytes()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile.pop")
        os.environ["IPUSCOPE_CACHE"] = str(Path(folder, "cache"))
        path.write_bytes(data)
        sound = {command: _said(command, profile, path)[1] for command in COMMANDS}
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            flipped, at = bytearray(data), generator.randrange(len(data))
            flipped[at] ^= 1 << generator.randrange(8)
            path.write_bytes(flipped)
            counts["flips"] += 1
            for command in generator.sample(COMMANDS, 4):
                code, out, error = _said(command, profile, path)
                said = " ".join((out + error).split())
                counts["answers"] += 1
                counts["that differ"] += out != sound[command]
                counts["tracebacks"] += "Traceback" in error
                if code != 3 and "have changed since" not in said:
                    counts["silent"] += 1
                    print(f"silent: {command} with byte {at} flipped", file=sys.stderr)
    print(dict(counts))


def _said(command: str, profile: Path, path: Path) -> tuple[int, str, str]:
    from ipuscope.reports.cli import main as report

    paths = [str(profile), str(path)] if command == "compare" else [str(path)]
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as error,
    ):
        code = report([command, *paths])
    return int(code), out.getvalue(), error.getvalue()


if __name__ == "__main__":
    main()
