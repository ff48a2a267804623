"""Many profiles as one table: how each was made, how fast it is and whether it fits."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ipuscope.profiler.analysis.memory_hot_spots import largest_extents
from ipuscope.profiler.analysis.pace import pace
from ipuscope.profiler.analysis.peak import peak
from ipuscope.profiler.analysis.pod import shards_of
from ipuscope.profiler.enums import OUT_OF_MEMORY
from ipuscope.profiler.errors import ProfileError
from ipuscope.profiler.provenance import Provenance
from ipuscope.profiler.report import DAMAGED, Report, number, open_report

if TYPE_CHECKING:
    import pandas as pd

_PROMISES = ("promise", "planned")  # of a placement file: its prediction


def run_of(report: Report) -> dict[str, Any]:
    """A profile's row.

    ``ipus`` of all replicas and shards; ``samples`` of a weight update (a device iteration in
    inference) over all replicas, None (as ``micro_batch``) if it was imported;
    ``samples_per_second``, ``mfu`` and ``hfu`` (`peak`, 0..1): none if it does not fit;
    ``fullest_bytes`` the largest extent of a tile, of ``tile_bytes``; ``predicted_cycles`` by its
    placement file, 0 without.
    """
    made, now = Provenance.of(report), pace(report)
    fits = report.meta.get("state") != OUT_OF_MEMORY
    top = peak(report) if fits else None
    target, batches = report.target, now.micro_batches
    micro_batch = int(number(report.meta, "micro_batch", 0))
    promise: Any = next((made.placement[one] for one in _PROMISES if one in made.placement), {})
    planned: Any = made.placement.get("mapping")  # of the training, or of the inference
    of_this = not isinstance(planned, dict) or planned.get("kind") == report.meta.get("kind")
    predicted = promise.get("cycles", 0) if isinstance(promise, dict) and of_this else 0
    return {
        "profile": str(report.path),
        "model": str(report.meta.get("model", "")),
        "kind": str(report.meta.get("kind", "")),
        "ipus": target.num_ipus * shards_of(report),
        "replicas": target.num_replicas,
        "micro_batch": None if report.imported else micro_batch,
        "samples": None if report.imported else batches * micro_batch * target.num_replicas,
        "levers": made.levers,
        "num_ipus": made.num_ipus,
        "placed": bool(made.placement),
        "cycles": int(now.cycles),
        "predicted_cycles": predicted if isinstance(predicted, int) else 0,
        "samples_per_second": now.samples_per_second if fits and not report.imported else math.nan,
        "mfu": top.mfu if top else None,
        "hfu": top.hfu if top else None,
        "fullest_bytes": int(largest_extents(report).max(initial=0)),
        "tile_bytes": target.bytes_per_tile,
        "fits": fits,
        "command": made.command_line,
        "created": str(report.meta.get("created", "")),
    }


def runs(paths: Iterable[str | os.PathLike[str]]) -> tuple[pd.DataFrame, list[str]]:
    """The rows of profiles, in the order of their paths, and what is wrong with some files.

    ``place``: a profile's directory below the common one.
    """
    import pandas as pd

    rows, problems = [], []
    for path in paths:
        try:
            with open_report(path) as report:
                rows.append(run_of(report))
                if report.file.damaged:
                    problems.append(f"{report.path}: {DAMAGED}")
        except ProfileError as error:
            problems.append(str(error))
    folders = [os.path.dirname(row["profile"]) for row in rows]
    for row, folder in zip(rows, folders, strict=True):
        row["place"] = os.path.relpath(folder, os.path.commonpath(folders))
    return pd.DataFrame(rows), problems


def settings_of(table: pd.DataFrame) -> pd.DataFrame:
    """What differs between runs: a column a lever of ``ipu-run --with``, "" if it is not pulled.

    Then those of model, IPUs, replicas, micro-batch and samples that differ otherwise.
    """
    import pandas as pd

    levers = pd.DataFrame([_words(one) for one in table["levers"]], index=table.index).fillna("")
    for name in levers:
        numbers = pd.to_numeric(levers[name], errors="coerce")
        if numbers.notna().all():
            levers[name] = numbers
    for name in ("model", "ipus", "replicas", "micro_batch", "samples"):
        label = name.replace("_", "-")
        if label not in levers and table[name].nunique() > 1:
            levers[label] = table[name]
    return levers


def _words(levers: str) -> dict[str, str]:
    """``micro-batch=2,half`` by name; a word without a value is its own value."""
    words = (word.partition("=") for word in levers.split(",") if word)
    return {name: value or name for name, _, value in words}
