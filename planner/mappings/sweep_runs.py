"""The runs of a sweep as a table (`ipu-run --sweep`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from ipuscope.profiler import open_report
from ipuscope.profiler.analysis import pace
from ipuscope.profiler.analysis.runs import run_of

TABLE = "runs.csv"
_MOST_BYTES = 16 << 20
_MOST_LETTERS = 24  # of a problem in a terminal's table


def measured(folder: Path, last: str) -> dict[str, Any]:
    """Measures from the profile below a folder; ``last``: why, where there is none."""
    for kind in ("training", "inference"):
        path = folder / kind / "profile.pop"
        if not path.exists():
            continue
        with open_report(path) as report:
            run = run_of(report)
            rate = round(pace(report).samples_per_second, 2)
            problem = "" if run["fits"] else "out of memory"
            return {
                **{name: run[name] for name in MEASURES if name in run},
                "samples_per_second": rate,
                "problem": problem,
            }
    nothing = dict.fromkeys(("ipus", "cycles", "samples_per_second", "fullest_bytes"), 0)
    return {**nothing, "problem": last, "profile": ""}


MEASURES = ("ipus", "cycles", "samples_per_second", "fullest_bytes", "problem", "profile")


_MOST_COLUMNS = 1000  # pandas takes the square of their number to name them
_LONGEST_LINE = 1 << 20


class RunsError(Exception):
    """A file that is no table of runs: says which, and how to make one."""


def read(folder: str | os.PathLike[str]) -> pd.DataFrame:
    """The table of a sweep's folder, or of its runs.csv. RunsError where it is none.

    Profiles outside of the folder are left out: the file may be a stranger's.
    """
    path = Path(folder)
    path = path / TABLE if path.is_dir() else path
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
        with open(path, "rb") as file:
            if file.readline(_LONGEST_LINE).count(b",") > _MOST_COLUMNS:
                raise ValueError(f"it has more than {_MOST_COLUMNS} columns")
        runs = pd.read_csv(path, keep_default_na=False)
        for name in MEASURES[:4]:
            runs[name] = pd.to_numeric(runs[name])
        runs["problem"] = runs["problem"].astype(str)
        runs["profile"] = [_within(path.parent, str(one)) for one in runs["profile"]]
    except (OSError, ValueError, KeyError) as error:
        raise RunsError(
            f"{path} is no table of runs ({error}). Make one with:"
            " ipu-run --sweep micro_batch=1,2 --profile-dir out SCRIPT"
        ) from error
    return runs


def _within(folder: Path, profile: str) -> str:
    """A run's profile, wherever its folder was moved; "" where it lies outside of it."""
    parts = Path(profile).parts
    if len(parts) < 3 or parts[-1] != "profile.pop" or ".." in parts[-3:]:
        return ""
    here = folder.joinpath(*parts[-3:])
    return str(here) if here.is_file() else ""


def settings_of(runs: pd.DataFrame) -> list[str]:
    """The columns that the sweep set."""
    return [name for name in runs.columns if name not in MEASURES]


def write(rows: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write ``runs.csv``, one row a run, and ``runs.parquet`` where pyarrow is installed."""
    table = pd.DataFrame(rows)
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / TABLE, index=False)
    if find_spec("pyarrow") is not None:
        table.to_parquet(folder / "runs.parquet", index=False)


def said(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as shown in a terminal; behind them, once each, why some failed."""
    table = pd.DataFrame(rows).drop(columns=["profile"])
    table["problem"] = [_short(words) for words in table["problem"]]
    failed = dict.fromkeys(row["problem"] for row in rows if row["problem"])
    formats = {"cycles": "{:,}".format, "samples_per_second": "{:,.2f}".format}
    formats["fullest_bytes"] = "{:,}".format
    lines = table.to_string(index=False, formatters=formats, justify="right")
    return "\n".join([lines, *(words for words in failed if words != _short(words))])


def _short(words: str) -> str:
    """A problem in as many letters as a table has room for."""
    return words if len(words) <= _MOST_LETTERS else f"{words[: _MOST_LETTERS - 1]}…"
