"""Answers that take more than one frame: a weight update's cost, what operators add up to, two reports compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Pace:
    """A device iteration: its cycles, its micro-batches, and samples a second over all replicas (predicted)."""

    cycles: int
    micro_batches: int
    samples_per_second: float


def pace(report: Report, run: int = 0) -> Pace:
    """Of a run's device iteration (a weight update, in training); zeros where no run was profiled."""
    runs = report.runs
    if run >= len(runs) or not runs["iterations"].iloc[run]:
        return Pace(0, 0, 0.0)
    cycles = int(runs["cycles"].iloc[run] // runs["iterations"].iloc[run])
    batches = int(report.tasks(run, iteration=0)["micro_batch"].max()) + 1
    samples = batches * int(report.meta["micro_batch"]) * report.target.num_replicas
    return Pace(cycles, batches, samples * report.target.clock_hz / cycles if cycles else 0.0)


def fullest_tiles(report: Report) -> np.ndarray:
    """Bytes of each IPU's fullest tile, gaps included: int64[ipu]."""
    return np.array([report.tiles(ipu)["total"].max() for ipu in range(report.target.num_ipus)], dtype=np.int64)


def waiting(report: Report, run: int = 0) -> float:
    """Share of all IPUs' cycles that are spent waiting for another IPU."""
    if run >= len(report.runs):
        return 0.0
    tasks = report.tasks(run, iteration=0)  # waits are tasks: the steps need not be unrolled
    cycles = tasks["cycles"].groupby(tasks["kind"]).sum()
    return float(cycles.get("idle", 0) / max(1, cycles.sum()))


def operators(report: Report) -> pd.DataFrame:
    """`Report.ops` with what their steps add, the most cycles first.

    ``share`` (of all operators' cycles, each once), ``flops_per_cycle``, ``exchanged`` (bytes received, all tiles),
    ``balance`` (mean over slowest tile of its compute steps, weighted by cycles; None without any), ``tiles`` (at
    work in its widest step), ``lost_cycles`` (compute cycles beyond an even share over all tiles), ``source``.
    """
    ops, steps = report.ops, report.program_steps()
    steps = steps[(steps["op"] >= 0) & (steps["direction"] != "recompute")]
    compute = steps[steps["kind"] == "compute"]
    even = (compute["tile_balance"] * compute["cycles"]).groupby(compute["op"]).sum()
    spent = compute["cycles"].groupby(compute["op"]).sum()
    balance = (even / spent.clip(lower=1)).reindex(ops.index)
    frame = ops.assign(
        id=ops.index,
        share=ops["cycles"] / max(1, int(ops["cycles"].sum())),
        flops_per_cycle=ops["flops"] / ops["cycles"].clip(lower=1),
        exchanged=steps.groupby("op")["bytes_in"].sum().reindex(ops.index).fillna(0),
        balance=balance.astype(object).where(balance.notna(), None),
        tiles=steps.groupby("op")["active_tiles"].max().reindex(ops.index).fillna(0),
        lost_cycles=(spent - even).reindex(ops.index).fillna(0),
        source=[f"{file}:{line}" if file else "" for file, line in zip(ops["file"], ops["line"], strict=True)],
    )
    return frame.sort_values("cycles", ascending=False, kind="stable")


def compare_ops(a: Report, b: Report) -> pd.DataFrame:
    """Operators of two reports matched by name and direction: ``name, direction, stage_a, stage_b, cycles_a,
    cycles_b, difference, ratio``, the largest differences first; -1 and 0 where a report has none."""
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
    """What matters of two reports: ``what, unit, a, b, difference, ratio`` (None where it makes no sense)."""
    import pandas as pd

    rows = []
    for what, unit, function in _MEASURES:
        one, two = float(function(a)), float(function(b))
        rows.append((what, unit, one, two, two - one, two / one if one else None))
    return pd.DataFrame(rows, columns=pd.Index(["what", "unit", "a", "b", "difference", "ratio"]))


_MEASURES = (
    ("a weight update", "cycles", lambda r: pace(r).cycles),
    ("samples a second", "1/s", lambda r: pace(r).samples_per_second),
    ("slowest stage", "cycles", lambda r: r.stages["cycles"].max() if len(r.stages) else 0),
    ("mean stage", "cycles", lambda r: r.stages["cycles"].mean() if len(r.stages) else 0),
    ("waiting", "share", waiting),
    ("fullest tile", "bytes", lambda r: fullest_tiles(r).max(initial=0)),
    ("operators' cycles, each once", "cycles", lambda r: r.ops["cycles"].sum()),
    ("IPUs", "count", lambda r: r.target.num_ipus),
    ("program steps", "count", lambda r: len(r.program_steps())),
    ("variables", "count", lambda r: len(r.variables)),
)
