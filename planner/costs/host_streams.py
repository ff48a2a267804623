"""What moves between the host and each Block, a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ipuscope.planner.costs.machine_costs import published_parameters
from ipuscope.planner.costs.profile_columns import none, sum_by
from ipuscope.profiler.enums import BodyTask
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report, number

_HOST_SYNC = {"SinglePipeline": "alone", "ReplicaAndLadder": "sides"}


@dataclass(frozen=True)
class HostStreams:
    """Cycles of host transfers, int64[Block].

    A stage with input pays ``latency`` too, once for all of its Blocks, and one with output.
    """

    input_bytes: np.ndarray  # that the Block is the first to read: int64[Block]
    stream_in: np.ndarray
    stream_out: np.ndarray
    out_once: bool  # outputs leave once, at the end
    latency: int = 0  # cycles until the first byte, of the begin of a copy and of its end
    load: np.ndarray = field(default_factory=none)  # over I/O tiles
    unload: np.ndarray = field(default_factory=none)  # over I/O tiles
    # ... from one device iteration into the next (`schedule_types.Costs`)
    across: bool = False
    # with whom an IPU waits for the host: "alone", "sides" of the ladder, "" all together
    sync: str = ""

    @property
    def overlapped(self) -> bool:
        """Whether some of it goes over I/O tiles."""
        return bool(self.load.any() or self.unload.any())

    @property
    def waited_for(self) -> bool:
        """Whether IPUs wait for all that moves."""
        return bool(self.stream_in.any() or self.stream_out.any()) and not self.overlapped

    def beside_compute(self, training: bool) -> HostStreams:
        """All over I/O tiles, beside the compute of other device iterations (docs/host-io.md)."""
        none = np.zeros(len(self.stream_in), dtype=np.int64)
        waits = replace(self, stream_in=none, stream_out=none, out_once=False)
        # of inference all are in the schedule: the first load and the last unload are alone
        return replace(waits, load=self.stream_in, unload=self.stream_out, across=training)

    @classmethod
    def from_report(cls, report: Report, stage: np.ndarray, input_bytes: np.ndarray) -> HostStreams:
        """Cycles of the streams' bodies, on the Blocks of their stages.

        Inputs are those of the Blocks that first read them, outputs the last Block's.
        """
        bodies = report.file.table(records.Body)

        def spent(task: BodyTask) -> dict[int, int]:
            of_task = bodies.equals("task", task)
            stages, which = np.unique(bodies["stage"][of_task], return_inverse=True)
            cycles = sum_by(which, bodies["cycles"][of_task], len(stages))
            return dict(zip(stages.tolist(), cycles.tolist(), strict=True))

        inputs, outputs = spent(BodyTask.STREAM_IN), spent(BodyTask.STREAM_OUT)
        loads, unloads = spent(BodyTask.LOAD), spent(BodyTask.UNLOAD)
        every = [
            cycles for of_stage in (inputs, outputs, loads, unloads) for cycles in of_stage.values()
        ]
        before = published_parameters(report.target.clock_hz)
        latency = int(number(report.meta, "host_latency", before["host_latency"]))
        latency += 2 * int(number(report.meta, "stream_step", before["stream_step"]))
        latency = min(latency, max(0, min(every, default=0) - len(stage)))
        is_last = np.arange(len(stage)) + 1 == len(stage)
        return cls(
            input_bytes,
            _on_blocks(inputs, stage, input_bytes, latency),
            _on_blocks(outputs, stage, is_last, latency),
            _outputs_once(report),
            latency,
            _on_blocks(loads, stage, input_bytes, latency),
            _on_blocks(unloads, stage, is_last, latency),
            report.meta.get("across") is True,
            _HOST_SYNC.get(str(report.options.get("syncPattern", "")), ""),
        )


def _on_blocks(
    measured: dict[int, int], stage: np.ndarray, weight: np.ndarray, latency: int
) -> np.ndarray:
    """A stage's host cycles on its Blocks, by ``weight``, without the latency.

    The first Block has them where nothing weighs. What weighs anything has at least one cycle: its
    stage has a transfer.
    """
    cycles_of = np.zeros(len(stage), dtype=np.int64)
    for k, cycles in measured.items():
        here = np.flatnonzero(stage == k)
        if not len(here):
            continue
        share = weight[here].astype(np.float64)
        first = (np.arange(len(here)) == 0).astype(np.float64)
        share = share / share.sum() if share.sum() else first
        some = here[share > 0]
        parts = np.floor((cycles - latency - len(some)) * share[share > 0]).astype(np.int64)
        cycles_of[some] = 1 + parts
        cycles_of[some[0]] += cycles - latency - cycles_of[some].sum()
    return cycles_of


def _outputs_once(report: Report) -> bool:
    """Whether outputs leave once, at the end, not each pipeline cycle: as it ran or by the mode."""
    if len(report.runs):
        tasks = report.tasks(0, iteration=0)
        out = tasks[tasks["task"].isin((BodyTask.STREAM_OUT, BodyTask.UNLOAD))]
        once = out["stage"].nunique() == len(out)
        if not once or tasks["micro_batch"].max() > 0:  # of one micro-batch the mode decides
            return once
    mode = report.options.get("outputMode", "Default")
    return mode in ("Final", "Sum") or (mode == "Default" and report.meta["kind"] == "training")
