"""How fast a model runs: cycles of a weight update, waits, and the tiles' work."""

from __future__ import annotations

from dataclasses import dataclass

from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report, number

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
    if run >= len(report.trace.columns["id"]):
        return 0.0
    tasks, body = report.trace.tasks(run, None, 0), report.file.table(records.Body)
    cycles = (tasks.end - tasks.start) * ~body.equals("kind", records.BESIDE)[tasks.body]
    idle = cycles[body.equals("kind", "idle")[tasks.body]]  # the steps need not be unrolled
    return float(idle.sum() / max(1, cycles.sum()))
