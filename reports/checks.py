"""Compiles a script with levers applied, using `ipu-run`: the outcome of following advice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipuscope.planner.advice import Basis, Levers


PLACEMENT = "placement.json"  # beside a compile's profiles, where its split is another


@dataclass(frozen=True)
class Outcome:
    """The outcome of one compile: samples per second and bytes of the fullest tile, or ``error``.

    ``error`` is one line. ``fits`` means not out of memory; ``path`` is the profile (None if none
    was left).
    """

    samples_per_second: float
    fullest: int
    fits: bool
    error: str
    path: Path | None


@dataclass(frozen=True)
class Script:
    """A script with its arguments; its compiles leave their profiles below ``folder``."""

    path: str
    arguments: Sequence[str]
    folder: Path
    kind: str  # "training" or "inference"

    def compiled(self, name: str, levers: Levers, basis: Basis) -> Outcome:
        """Compile with the levers applied; the profile goes to the subfolder ``name``."""
        here = self.folder / name
        here.mkdir(parents=True, exist_ok=True)
        options = ["--with", levers.argument] if levers.argument else ["--compile-only"]
        if levers.split is not None:
            options += ["--placement", str(_placement(here, levers, basis))]
        process = _ipu_run("--profile-dir", str(here), *options, self.path, *self.arguments)
        profile = here / self.kind / "profile.pop"
        if not profile.is_file():
            lines = process.stderr.strip().splitlines()
            return Outcome(0.0, 0, False, lines[-1] if lines else "it compiled no model", None)
        return _outcome(profile)


def _placement(folder: Path, levers: Levers, basis: Basis) -> Path:
    """A placement file of the split, with stages saving memory as the levers say."""
    from ipuscope.planner.predict.what_if import placement_file

    path = folder / PLACEMENT
    content = placement_file(basis.costs_with(levers), basis.assignment_with(levers))
    path.write_text(json.dumps(content, indent=1))
    return path


def _ipu_run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `ipu-run` in a child that imports the same packages as this process."""
    here = os.pathsep.join([path for path in sys.path if path])
    command = [sys.executable, "-m", "ipu_exec.commands.run", *words]
    environment = {**os.environ, "PYTHONPATH": here}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def _outcome(path: Path) -> Outcome:
    from ipuscope.profiler import analysis, open_report

    with open_report(path) as report:
        rate = analysis.pace(report).samples_per_second
        fits = report.meta["state"] != "out of memory"
        ipus = range(report.target.ipus_per_replica)
        fullest = max(int(report.tiles(ipu)["total"].max()) for ipu in ipus)
    return Outcome(rate if fits else 0.0, fullest, fits, "", path)


@dataclass(frozen=True)
class Step:
    """One round of a search: what was compiled, what was predicted for it, and the outcome.

    ``name``: the subfolder of its profile and, where its split is another, its placement file.
    """

    name: str
    levers: Levers
    title: str
    predicted: float
    outcome: Outcome


def search(script: Script, first: Step, samples: int, rounds: int) -> list[Step]:
    """Search onwards from the best compile: advise on its profile, compile the advice, and repeat.

    A profile in another precision or with another micro-batch has the costs that were only
    estimated before. A compile that did not fit is advised on too, since it shows how much memory
    was missing. The search ends when no further gain is predicted.
    """
    from ipuscope.planner.advice import advise_on, basis_of
    from ipuscope.profiler import open_report

    steps = [first]
    tried = {first.levers}
    for number in range(2, rounds + 2):
        last = steps[-1]
        if last.outcome.path is None:
            break
        with open_report(last.outcome.path) as compiled:
            basis = basis_of(compiled)
            advised = advise_on(basis, samples)
            best = advised.together or next(iter(advised.single), None)
            if best is None or best.samples_per_second <= _most(steps):
                break
            levers = best.levers.over(last.levers)
            if levers in tried:
                break
            tried.add(levers)
            name = f"round{number}"
            outcome = script.compiled(name, levers, basis)
            steps.append(Step(name, levers, best.title, best.samples_per_second, outcome))
    return steps


def _most(steps: Sequence[Step]) -> float:
    return max(step.outcome.samples_per_second for step in steps)
