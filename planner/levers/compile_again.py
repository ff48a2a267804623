"""Compile a script as for its profile, with changes: what a check of advice runs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ipuscope.profiler import open_report
from ipuscope.profiler.provenance import Provenance

_PROFILES = "*/profile.pop"  # a folder a model: its kind, or Options.modelName
PLACEMENT = "placement.json"  # beside the profile, where the stages are not the script's
_IPU_RUN = "import sys; from ipu_exec.commands.run import main; sys.exit(main(sys.argv[1:]))"
PROMISES = ("promise", "planned")  # of a placement file: its prediction
_PRECISIONS = ("half", "float")
# a new placement lacks these: Blocks of a model without any, and a plan's t, r and samples
_BESIDE_STAGES = ("proposed", "mapping", "memory_proportion")


def compile_again(
    script: Sequence[str],
    folder: Path,
    made: Provenance,
    kind: str = "training",
    levers: str = "",
    placement: Mapping[str, Any] | None = None,
) -> tuple[Path | None, str]:
    """The profile of the compile, or None and the last line of the error.

    ``script``: the user's path and arguments; ``made``: how the profile was made, whose settings
    are repeated. ``levers``, as ``ipu-run --with`` takes them, and the stages of ``placement``
    replace those. ``folder`` gets the profile and the placement file; ``kind``: "training",
    "inference", or "" for either.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for before in folder.glob(_PROFILES):  # of a check in the same place
        before.unlink()
    command = [sys.executable, "-c", _IPU_RUN, *_options(folder, made, levers, placement), *script]
    # The child imports what this process imports, wherever it was started.
    here = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": here}, capture_output=True, text=True
    )
    for profile in sorted(folder.glob(_PROFILES), reverse=True):  # of training first
        with open_report(profile) as report:
            if kind in ("", report.meta["kind"]):
                return profile, ""
    lines = process.stderr.strip().splitlines()
    return None, lines[-1] if lines else f"no {kind or 'wrapped'} model was compiled"


def _options(
    folder: Path, made: Provenance, levers: str, placement: Mapping[str, Any] | None
) -> list[str]:
    options = ["--profile-dir", str(folder)]
    options += ["--target", made.target] if made.target else []
    options += ["--lenient"] if made.lenient else []
    merged_levers = merged(made.levers, levers)
    options += ["--with", merged_levers] if merged_levers else ["--compile-only"]
    stages = merged_placement(made.placement, placement)
    if placement is None and levers:  # the prediction for the old stages was without these levers
        stages = {name: value for name, value in stages.items() if name not in PROMISES}
    if stages:
        file = folder / PLACEMENT
        file.write_text(json.dumps(stages, indent=1), encoding="utf-8")
        options += ["--placement", str(file)]
    return options


def command_line(made: Provenance, levers: str, ipus: int = 0, script: Sequence[str] = ()) -> str:
    """The command that compiles it again with these levers, onto so many IPUs (0: as it was).

    ``script``: its path and arguments, where they are not the profile's.
    """
    number, both = ipus or made.num_ipus, merged(made.levers, levers)
    words = ["ipu-run", *(["--num-ipus", str(number)] if number else [])]
    words += ["--with", both] if both else []
    return shlex.join([*words, *(script or made.program)])


def merged(before: str, after: str) -> str:
    """Levers of both, for ``ipu-run --with``: ``after`` replaces those of the same kind."""
    words: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in f"{before},{after}".split(","))):
        name = "precision" if word in _PRECISIONS else word.partition("=")[0]
        words[name] = word
    return ",".join(words.values())


def merged_placement(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> dict[str, Any]:
    """The placement of ``after``, with what only ``before`` has beside its stages."""
    if after is None:
        return dict(before)
    beside = {name: before[name] for name in _BESIDE_STAGES if name in before}
    return {**beside, **after}
