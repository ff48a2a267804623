"""What a user gets from an unchanged script by itself, from --num-ipus and from --tune.

``python -m benchmarks.plan --evidence NAME ... --on 4 --jobs 2`` runs the commands for the named
models (``all``) and puts their rows into docs/plan.md; the other rows stay. All figures are
compiled; samples of a weight update and precision are the script's in all columns.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from benchmarks.dated import dated
from ipuscope.profiler import open_report
from ipuscope.profiler.analysis.facts import facts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plan.md"
HEADING, END = "## What a script gets", "\n## "
ZOO = "benchmarks/plan/unannotated.py"
# name: the script with its arguments
SCRIPTS: dict[str, tuple[str, ...]] = {
    "the demo": ("examples/mnist_pipeline.py",),
    "GPT, 50 M": ("benchmarks/advise/gpt.py",),
    "LSTM": (ZOO, "lstm"),
    "GNN": (ZOO, "gnn"),
    "ResNet-50": (ZOO, "resnet-50"),
    "ViT-S/16": (ZOO, "vit-s16"),
    "MLP-Mixer": (ZOO, "mlp-mixer"),
    "T5-small": (ZOO, "t5-small"),
    "BERT-Base": (ZOO, "bert-base"),
    "BERT-Large": (ZOO, "bert-large"),
}
IPUS = (1, 4, 16)
_ROW = re.compile(r"^\| (.+?) \| (\d+) \|.*\|$", re.MULTILINE)


def run(*words: str, folder: str) -> tuple[str, float]:
    """Run ``ipu-run`` with a cache of its own; its error's last line, and CPU seconds."""
    before = os.times()
    command = [sys.executable, "-m", "ipuscope.commands", "ipu-run", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "IPUSCOPE_CACHE": f"{folder}/cache"}
    env |= {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    after = os.times()
    took = after.children_user + after.children_system
    took -= before.children_user + before.children_system
    error = (done.stderr.strip().splitlines() or ["?"])[-1] if done.returncode else ""
    return error, took


def compiled(folder: Path) -> str:
    """Samples a second of the profile below a folder; whether it fits."""
    if not (folder / "training" / "profile.pop").exists():
        return "no profile"
    with open_report(folder / "training") as report:
        speed = facts(report).speed
        if report.meta["state"] == "out of memory":
            return "out of memory"
        return "-" if speed is None else f"{speed.samples_per_second:,.0f}"


def row(name: str, ipus: int) -> str:
    """The row of a model on so many IPUs."""
    script = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        plan = place / "tuned.json"

        def rate(which: str, *words: str) -> str:
            profile = ("--compile-only", "--profile-dir", str(place / which))
            run(*profile, *words, *script, folder=folder)
            return compiled(place / which)

        # the tune first, with nothing on the disk
        error, seconds = run("--tune", str(ipus), "--write", str(plan), *script, folder=folder)
        alone = rate("alone")
        if not plan.exists():  # no mapping onto so few IPUs fits
            print(f"{name} on {ipus}: {error}", file=sys.stderr, flush=True)
            return f"| {name} | {ipus} | {alone} | | none | | | | {seconds:,.0f} |"
        made = json.loads(plan.read_text())
        mapping = made["mapping"]
        shape = f"t={mapping['shards']} p={len({one['ipu'] for one in made['stages']})}"
        shape += f" r={mapping['replicas']}"
        shape += f", micro-batch {mapping['micro_batch']} x {mapping['accumulation']}"
        cells = [alone, rate("num", "--num-ipus", str(ipus))]
        cells += [f"**{rate('best', '--placement', str(plan))}**", shape]
        cells += [f"{mapping['script_samples']:,}", str(made["plan"]["compiles"])]
    return f"| {name} | {ipus} | {' | '.join(cells)} | {seconds:,.0f} |"


def write(names: Iterable[str], on: Sequence[int], jobs: int) -> None:
    """Make the rows of some models on so many IPUs, ``jobs`` at a time, and put them into the page.

    A process a row: CPU seconds are of its children.
    """
    page = PAGE.read_text()
    before, heading, rest = page.partition(HEADING)
    section, end, after = rest.partition(END)
    head = heading + section.partition("| --- |")[0]
    rule = "| --- |" + " ---: |" * 4 + " --- |" + " ---: |" * 3
    every = [(name, ipus) for name in SCRIPTS for ipus in IPUS]
    rows = {(match[1], int(match[2])): match[0] for match in _ROW.finditer(section)}
    # the longest rows first
    wanted = [one for one in every[::-1] if one[0] in names and one[1] in on]
    with ProcessPoolExecutor(jobs, max_tasks_per_child=1, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(row, *one): one for one in wanted}
        for done in as_completed(running):
            rows[running[done]] = done.result()
            print(done.result(), flush=True)
            order = [rows[one] for one in every if one in rows]
            table = "\n".join([head.rstrip(), rule, *order, ""])
            PAGE.write_text(dated(before + table + end + after))
