"""`ipu-run --sweep`: a script compiled with every combination of settings, and a table of them.

Each combination is a process of its own (``ipu-run --with``), with a profile of its own.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from ipu_exec.errors import Error
from ipu_exec.script_levers import parse

_IPU_RUN = "import sys; from ipu_exec.commands.run import main; sys.exit(main(sys.argv[1:]))"


def sweep(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Compile every combination; 1 where one failed. Error where a combination makes no sense."""
    settings = [_values(said) for said in args.sweep]
    combinations = [dict(chosen) for chosen in product(*settings)]
    for one in combinations:
        parse(_levers(one), "--sweep")
    folder = Path(args.profile_dir or "sweep")
    with ThreadPoolExecutor(args.workers or 1) as pool:
        rows = []
        for row in pool.map(lambda one: _compiled(one, folder, words), combinations):
            rows.append(row)
            done = row["problem"] or f"{row['samples_per_second']:,.2f} samples/s"
            name = _levers(combinations[len(rows) - 1])
            print(f"{len(rows)} of {len(combinations)}: {name}: {done}", file=sys.stderr)
    from ipuscope.planner.mappings import (
        sweep_runs,  # with pandas, which ipu-run needs for nothing else
    )

    sweep_runs.write(rows, folder)
    print(sweep_runs.said(rows))
    made = sum(bool(row["profile"]) for row in rows)
    print(
        f"{made} profiles and runs.csv are in {folder}: ipu-report view {shlex.quote(str(folder))}"
        " draws them",
        file=sys.stderr,
    )
    return int(any(row["problem"] for row in rows))


def _values(said: str) -> list[tuple[str, str]]:
    name, _, values = said.partition("=")
    name = name.replace("_", "-") if "." not in name else name
    if not values:
        raise Error(f"--sweep {said!r}: say NAME=VALUE,VALUE, as micro-batch=1,2,4")
    return [(name, value) for value in values.split(",")]


def _levers(one: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in one.items())


def _compiled(one: dict[str, str], folder: Path, words: Sequence[str]) -> dict[str, Any]:
    """Compile one combination and return its row."""
    profile_dir = folder / _levers(one).replace("/", "_")
    # What this process imports from where, its child does too, wherever it was started.
    here = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.run(
        [
            *(sys.executable, "-c", _IPU_RUN, "--with", _levers(one)),
            *("--profile-dir", str(profile_dir), *words),
        ],
        env={**os.environ, "PYTHONPATH": here},
        capture_output=True,
        text=True,
    )
    last = (process.stderr.strip().splitlines() or ["no model was compiled"])[-1]
    from ipuscope.planner.mappings.sweep_runs import measured

    return {**one, **measured(profile_dir, last)}
