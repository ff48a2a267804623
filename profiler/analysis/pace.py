"""How fast a model runs: cycles of a weight update, waits, and the tiles' work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report, number

if TYPE_CHECKING:
    import pandas as pd

IMPORTED = (
    "Imported: times are the file's. Not in this profile: samples, flops, pipeline cycles, gaps"
    " between variables, and which Block code belongs to."
)


@dataclass(frozen=True)
class Pace:
    """A device iteration: cycles, micro-batches, and predicted samples a second of all replicas."""

    cycles: int
    micro_batches: int
    samples_per_second: float


def turn(*reports: Report) -> str:
    """What a device iteration is in all of these profiles: 'a weight update' if they train."""
    if any(report.imported for report in reports):
        return "a run"
    training = all(report.meta["kind"] == "training" for report in reports)
    return "a weight update" if training else "a device iteration"


def pace(report: Report, run: int = 0) -> Pace:
    """The pace of a run's device iteration (one weight update); zeros if none was profiled."""
    trace = report.trace
    if run >= len(trace.columns["id"]) or not len(trace.iterations(run, None)):
        return Pace(0, 0, 0.0)
    cycles = int(report.file.table(records.Trace)["iteration_cycles"][trace.trace_of(run)])
    batches = int(trace.tasks(run, None, 0).micro_batch.max()) + 1
    samples = batches * int(number(report.meta, "micro_batch", 0)) * report.target.num_replicas
    return Pace(cycles, batches, samples * report.target.clock_hz / cycles if cycles else 0.0)


def waiting(report: Report, run: int = 0) -> float:
    """Share of all IPUs' cycles spent waiting for another IPU or for the host."""
    if run >= len(report.runs):
        return 0.0
    tasks = report.tasks(run, iteration=0)  # waits are tasks: the steps need not be unrolled
    cycles = tasks["cycles"].groupby(tasks["kind"]).sum().drop(records.BESIDE, errors="ignore")
    return float(cycles.get("idle", 0) / max(1, cycles.sum()))


def efficiency(report: Report, run: int = 0) -> pd.DataFrame:
    """How each IPU spends the cycles of a run, as shares (0..1), and the tiles' balance.

    ``ipu``, a column for each of `records.KINDS`, ``tile_balance`` (mean over slowest tile while
    computing, weighted by cycles) and ``parallel_efficiency``: the share of all tiles' cycles in
    which they compute, ``compute x tile_balance``. No rows if no run was profiled.
    """
    import pandas as pd

    if run >= len(report.runs):
        return pd.DataFrame(
            columns=pd.Index(["ipu", *records.KINDS, "tile_balance", "parallel_efficiency"])
        )
    ipus = range(report.target.ipus_per_replica)
    proportions = report.cycle_proportions(run).set_index("ipu").loc[list(ipus)]
    shares = proportions[list(records.KINDS)].div(proportions["total"].clip(lower=1), axis=0)
    steps = report.steps(run, iteration=0)
    steps = steps[steps["kind"] == "compute"]
    balance = (
        report.program_steps().set_index("step")["tile_balance"].reindex(steps["step"]).to_numpy()
    )
    even = (steps["cycles"] * balance).groupby(steps["ipu"]).sum()
    spent = steps["cycles"].groupby(steps["ipu"]).sum().clip(lower=1)
    shares["tile_balance"] = (even / spent).reindex(shares.index).fillna(0.0)
    shares["parallel_efficiency"] = shares["compute"] * shares["tile_balance"]
    return shares.rename_axis("ipu").reset_index()
