"""Compiles a script with levers applied, using `ipu-run`: the outcome of following advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipuscope.planner.levers.compile_again import compile_again
from ipuscope.planner.levers.registry import argument
from ipuscope.planner.predict.what_if import placement_file
from ipuscope.profiler.analysis.memory_hot_spots import largest_extents
from ipuscope.profiler.enums import OUT_OF_MEMORY
from ipuscope.profiler.provenance import Provenance

if TYPE_CHECKING:
    from ipuscope.planner.advice import Basis, Levers


@dataclass(frozen=True)
class Outcome:
    """The outcome of a compile: samples per second and bytes of the fullest tile, or ``error``.

    ``error`` is one line; ``fits``: not out of memory; ``path``: the profile, or None.
    """

    samples_per_second: float
    fullest: int
    fits: bool
    error: str
    path: Path | None


@dataclass(frozen=True)
class Script:
    """A script with its arguments; each compile leaves its profile below ``folder``."""

    path: str
    arguments: Sequence[str]
    folder: Path
    kind: str  # "training" or "inference"

    def compiled(self, name: str, levers: Levers, basis: Basis) -> Outcome:
        """Compile with the profile's settings and the levers applied, into subfolder ``name``."""
        made = Provenance.of(basis.report)
        stages = None if levers.split is None else _placement(levers, basis)
        script, folder = (self.path, *self.arguments), self.folder / name
        profile, why = compile_again(script, folder, made, self.kind, argument(levers), stages)
        return _outcome(profile) if profile else Outcome(0.0, 0, False, why, None)


def _placement(levers: Levers, basis: Basis) -> dict[str, Any]:
    """The placement of the split, with the memory levers of each stage."""
    costs, assignment = basis.costs_with(levers), basis.assignment_with(levers)
    return placement_file(costs, assignment, sets_accumulation=False)


def _outcome(path: Path) -> Outcome:
    from ipuscope.profiler import analysis, open_report

    with open_report(path) as report:
        rate = analysis.pace(report).samples_per_second
        fits = report.meta["state"] != OUT_OF_MEMORY
        fullest = int(largest_extents(report).max())
    return Outcome(rate if fits else 0.0, fullest, fits, "", path)
