"""The runs of a sweep as a table (`ipu-run --sweep`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from profiler import open_report
from profiler.analysis import pace

TABLE = "runs.csv"


def measured(folder: Path, last: str) -> dict[str, Any]:
    """Measures from the profile below a folder; ``last``: why, where there is none."""
    for kind in ("training", "inference"):
        path = folder / kind / "profile.pop"
        if not path.exists():
            continue
        with open_report(path) as report:
            now = pace(report)
            ipus = range(report.target.ipus_per_replica)
            fullest = max(int(report.tiles(ipu)["total"].max()) for ipu in ipus)
            fits = report.meta.get("state") != "out of memory"
            return {
                "ipus": report.target.num_ipus,
                "cycles": int(now.cycles),
                "samples_per_second": round(now.samples_per_second, 2),
                "fullest_bytes": fullest,
                "problem": "" if fits else "out of memory",
                "profile": str(path),
            }
    nothing = dict.fromkeys(("ipus", "cycles", "samples_per_second", "fullest_bytes"), 0)
    return {**nothing, "problem": last, "profile": ""}


def write(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write ``runs.csv``, one row a run, and ``runs.parquet`` where pyarrow is installed."""
    table = pd.DataFrame(rows)
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / TABLE, index=False)
    if find_spec("pyarrow") is not None:
        table.to_parquet(folder / "runs.parquet", index=False)


def said(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as shown in a terminal."""
    return str(pd.DataFrame(rows).drop(columns=["profile"]).to_string(index=False))
