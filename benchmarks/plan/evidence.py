"""What a user gets from an unchanged script by itself, from --num-ipus and from --tune.

``python -m benchmarks.plan --evidence NAME ...`` runs the commands for the named models and puts
their rows into docs/plan.md; the other rows stay. All figures are compiled; samples of a weight
update and precision are the script's in all columns.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.dated import dated
from ipuscope.profiler import open_report
from ipuscope.profiler.analysis.facts import facts

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plan.md"
HEADING, END = "## What a script gets", "\n## "
ZOO = "benchmarks/plan/unannotated.py"
# name: IPUs, and the script with its arguments
SCRIPTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "the demo": (4, ("examples/mnist_pipeline.py",)),
    "GPT, 50 M": (4, ("benchmarks/advise/gpt.py",)),
    "LSTM": (4, (ZOO, "lstm")),
    "GNN": (4, (ZOO, "gnn")),
    "ResNet-50": (4, (ZOO, "resnet-50")),
    "EfficientNet-B0": (4, (ZOO, "efficientnet-b0")),
    "ViT-B/16": (4, (ZOO, "vit-b16")),
    "BERT-Base": (4, (ZOO, "bert-base")),
    "BERT-Large": (16, (ZOO, "bert-large")),
}
_ROW = re.compile(r"^\| (.+?) \| \d+ \|.*\|$", re.MULTILINE)


def run(*words: str, folder: str) -> tuple[str, float]:
    """Run ``ipu-run`` with a cache of its own; its error's last line, and CPU seconds."""
    before = os.times()
    command = [sys.executable, "-m", "ipuscope.commands", "ipu-run", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "IPUSCOPE_CACHE": f"{folder}/cache"}
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


def row(name: str) -> str:
    """The row of a model."""
    ipus, script = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        plan = place / "tuned.json"

        def rate(which: str, *words: str) -> str:
            profile = ("--compile-only", "--profile-dir", str(place / which))
            run(*profile, *words, *script, folder=folder)
            return compiled(place / which)

        # the tune first, with nothing on the disk
        error, seconds = run("--tune", str(ipus), "--write", str(plan), *script, folder=folder)
        if error:
            raise SystemExit(f"{name}: {error}")
        made = json.loads(plan.read_text())
        mapping = made["mapping"]
        shape = f"t={mapping['shards']} p={len({one['ipu'] for one in made['stages']})}"
        shape += f" r={mapping['replicas']}"
        shape += f", micro-batch {mapping['micro_batch']} x {mapping['accumulation']}"
        cells = [rate("alone"), rate("num", "--num-ipus", str(ipus))]
        cells += [f"**{rate('best', '--placement', str(plan))}**", shape]
        cells += [f"{mapping['script_samples']:,}", str(made["plan"]["compiles"])]
    return f"| {name} | {ipus} | {' | '.join(cells)} | {seconds:,.0f} |"


def write(names: Iterable[str]) -> None:
    """Make the rows of some models and put them into the page."""
    page = PAGE.read_text()
    before, heading, rest = page.partition(HEADING)
    section, end, after = rest.partition(END)
    rows = {match[1]: match[0] for match in _ROW.finditer(section)}
    for name in names:
        rows[name] = row(name)
        print(rows[name], flush=True)
        head = heading + section.partition("| --- |")[0]
        order = [rows[name] for name in SCRIPTS if name in rows]
        rule = "| --- |" + " ---: |" * 4 + " --- |" + " ---: |" * 3
        PAGE.write_text(dated(before + "\n".join([head.rstrip(), rule, *order, ""]) + end + after))
