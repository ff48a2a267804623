"""Two reports compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from profiler.analysis.memory import fullest_tiles
from profiler.analysis.pace import pace, waiting
from profiler.report import Report, number

if TYPE_CHECKING:
    import pandas as pd


def compare_ops(a: Report, b: Report) -> pd.DataFrame:
    """Operators of two reports matched by name and direction.

    ``name, direction, stage_a, stage_b, cycles_a, cycles_b, difference, ratio``, the largest
    differences first; -1 and 0 where a report has none.
    """
    import pandas as pd

    keys = ["name", "direction"]
    sides = []
    for report in (a, b):
        ops = report.ops.assign(number=report.ops.groupby(keys).cumcount())
        sides.append(ops[[*keys, "number", "stage", "cycles"]])
    both = pd.merge(sides[0], sides[1], on=[*keys, "number"], how="outer", suffixes=("_a", "_b"))
    both = both.fillna({"stage_a": -1, "stage_b": -1, "cycles_a": 0, "cycles_b": 0})
    both = both.astype(dict.fromkeys(("stage_a", "stage_b", "cycles_a", "cycles_b"), np.int64))
    both["difference"] = both["cycles_b"] - both["cycles_a"]
    ratio = both["cycles_b"] / both["cycles_a"].where(both["cycles_a"] > 0)
    both["ratio"] = ratio.astype(object).where(ratio.notna(), None)
    order = np.argsort(-both["difference"].abs().to_numpy(), kind="stable")
    return both.drop(columns="number").iloc[order].reset_index(drop=True)


def compare(a: Report, b: Report) -> pd.DataFrame:
    """What matters of two reports: ``what, unit, a, b, difference, ratio``.

    NaN where a report has no such thing, ``ratio`` None where it makes no sense. Times of a model
    that was only compiled are those of its schedule, as of one that ran.
    """
    import pandas as pd

    rows = []
    for what, unit, function in _MEASURES:
        one, two = function(a), function(b)
        ratio = two / one if one > 0 and math.isfinite(two) else None
        rows.append((what, unit, one, two, two - one, ratio))
    return pd.DataFrame(rows, columns=pd.Index(["what", "unit", "a", "b", "difference", "ratio"]))


def not_comparable(a: Report, b: Report) -> dict[str, str]:
    """Measures of `compare` that say nothing of which of the two is better, and why.

    Nothing here means that they do.
    """
    kinds = a.meta["kind"], b.meta["kind"]
    samples = [_samples(report) for report in (a, b)]
    reasons: dict[str, str] = {}
    if len(a.ops) and len(b.ops) and not _in_common(a, b):
        reasons = dict.fromkeys(_OF_A_MODEL, "A and B have no operator in common: two other models")
    if kinds[0] != kinds[1]:
        reasons = dict.fromkeys(_OF_A_MODEL, f"A is {kinds[0]} and B is {kinds[1]}")
    if samples[0] != samples[1]:
        words = f"it is of {samples[0]:,} samples in A and of {samples[1]:,} in B"
        reasons.setdefault(UPDATE, f"{words}; {SAMPLE!r} compares them")
    for what, _, measure in _MEASURES:
        for name, report in zip("AB", (a, b), strict=True):
            if what in _OF_A_MODEL and not measure(report) > 0:
                reasons[what] = f"{name} has none ({report.path}: it is {report.meta['state']})"
    return reasons


def _in_common(a: Report, b: Report) -> bool:
    return not set(a.ops["name"]).isdisjoint(b.ops["name"])


def _samples(report: Report) -> int:
    """Of a weight update, or of a device iteration, over all replicas."""
    micro_batch = int(number(report.meta, "micro_batch", 0))
    return pace(report).micro_batches * micro_batch * report.target.num_replicas


def _cycles(report: Report) -> float:
    return float(pace(report).cycles) or math.nan


def _cycles_a_sample(report: Report) -> float:
    samples = _samples(report)
    return _cycles(report) / samples if samples else math.nan


def _rate(report: Report) -> float:
    return pace(report).samples_per_second or math.nan


def _stage(report: Report, which: str) -> float:
    cycles = report.stages["cycles"]
    return float(getattr(cycles, which)()) if len(cycles) else math.nan


def _waiting(report: Report) -> float:
    return waiting(report) if len(report.runs) else math.nan


UPDATE, SAMPLE, STAGE, TILE = "a weight update", "a sample", "slowest stage", "fullest tile"
_OF_A_MODEL = (UPDATE, SAMPLE, STAGE, TILE)
_MEASURES: tuple[tuple[str, str, Callable[[Report], float]], ...] = (
    (UPDATE, "cycles", _cycles),
    (SAMPLE, "cycles", _cycles_a_sample),
    ("samples a second", "1/s", _rate),
    (STAGE, "cycles", lambda r: _stage(r, "max")),
    ("mean stage", "cycles", lambda r: _stage(r, "mean")),
    ("waiting", "share", _waiting),
    (TILE, "bytes", lambda r: float(fullest_tiles(r).max(initial=0))),
    ("operators' cycles, each once", "cycles", lambda r: float(r.ops["cycles"].sum())),
    ("IPUs", "count", lambda r: float(r.target.num_ipus)),
    ("program steps", "count", lambda r: float(len(r.program_steps()))),
    ("variables", "count", lambda r: float(len(r.variables))),
)
