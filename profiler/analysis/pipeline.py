"""A device iteration, pipeline cycle by pipeline cycle: what determines the length of each.

Two bubbles must not be confused (docs/pipeline-schedules.md#bubbles): the *time* bubble is the
share of the IPUs' cycles in which they compute for no micro-batch; the *slot* bubble is the share
of a stage's pipeline cycles in which it has no micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.enums import Direction, PipelinePhase
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline import closed_forms

if TYPE_CHECKING:
    import pandas as pd

_WORK = (Direction.FORWARD, Direction.BACKWARD, Direction.RECOMPUTE)


@dataclass(frozen=True)
class Bubble:
    """Shares 0..1 of a device iteration without its weight update.

    ``*_measured``: read off the trace. ``time_balanced``: (K-1)/(G+K-1), with equally long stages
    and nothing else. ``time_of_stages``: the exact closed form for the stages' own cycles and
    nothing else: ramps and imbalance; NaN where it does not hold (a stage list that returns to an
    IPU, inference, G under 2K-1). The closed forms are 0 if nothing is pipelined. What
    ``time_measured`` has beyond it are copies, syncs and host I/O.
    """

    stages: int
    micro_batches: int
    time_measured: float
    time_of_stages: float
    time_balanced: float
    slot_measured: float
    slot_closed_form: float


def bubble(report: Report, run: int = 0, iteration: int = 0) -> Bubble:
    """The bubble of one device iteration of a run."""
    tasks, cycles = report.tasks(run, iteration=iteration), report.pipeline_cycles(run, iteration)
    in_pipeline = cycles[cycles["phase"] != PipelinePhase.UPDATE]
    work = tasks[
        tasks["direction"].isin(_WORK) & tasks["pipeline_cycle"].isin(in_pipeline["position"])
    ]
    stages, used = report.stages, max(1, int(work["ipu"].nunique()))
    count, batches = max(1, len(stages)), int(work["micro_batch"].max()) + 1 if len(work) else 0
    training = report.meta["kind"] == "training"
    time = 1 - int(work["cycles"].sum()) / max(1, used * int(in_pipeline["cycles"].sum()))
    pipelined = report.meta.get("strategy", "pipelined") == "pipelined" and count > 1
    # A stage's slots are its pipeline cycles, forward and backward apart: a cycle may have both.
    filled = work[work["direction"] != Direction.RECOMPUTE].drop_duplicates(
        ["stage", "direction", "pipeline_cycle"]
    )
    slots = (2 if training else 1) * count * len(in_pipeline)
    balanced = exact = closed = 0.0
    if pipelined and batches:
        balanced = closed_forms.time_bubble(count, batches)
        closed = closed_forms.slot_bubble(count, batches, training)
        exact = _of_stages(stages, batches) if training else float("nan")
    return Bubble(count, batches, time, exact, balanced, 1 - len(filled) / max(1, slots), closed)


def _of_stages(stages: pd.DataFrame, micro_batches: int) -> float:
    count = len(stages)
    if stages["ipu"].nunique() < count or micro_batches < 2 * count - 1:
        return float("nan")
    forward, backward = stages["forward_cycles"].to_numpy(), stages["backward_cycles"].to_numpy()
    total = closed_forms.training_cycles(forward.tolist(), backward.tolist(), micro_batches)
    return 1 - micro_batches * int((forward + backward).sum()) / max(1, count * total)


def cycle_table(report: Report, run: int = 0, iteration: int = 0) -> pd.DataFrame:
    """`Report.pipeline_cycles` and what sets the length of each.

    ``stage`` (of the slowest IPU's longest task; -1: none), ``work`` (its tasks, longest first:
    "backward of stage 1, forward of stage 1"), ``work_cycles`` (of all of them; if stages take
    turns, of all IPUs), ``copy_cycles`` and ``sync_cycles`` between IPUs, ``host_cycles`` (the
    rest), ``operator`` (the one with the most cycles in the longest task) with ``operator_cycles``,
    and ``busy`` (share of all used IPUs' cycles in which they compute).
    """
    cycles = report.pipeline_cycles(run, iteration)
    tasks = report.tasks(run, iteration=iteration)
    between = {
        kind: _longest(tasks, kind, cycles["position"])
        for kind in ("global exchange", "external sync")
    }
    tasks = tasks[tasks["direction"] != ""]
    used = max(1, int(tasks["ipu"].nunique()))
    busy = (
        tasks.groupby("pipeline_cycle")["cycles"]
        .sum()
        .reindex(cycles["position"], fill_value=0)
        .to_numpy()
    )
    slowest = cycles[["position", "slowest_ipu"]].rename(
        columns={"position": "pipeline_cycle", "slowest_ipu": "ipu"}
    )
    slowest_tasks = tasks.merge(slowest, on=["pipeline_cycle", "ipu"])
    # a backward that switches to recomputation and back is several tasks
    of_task = slowest_tasks.groupby(["pipeline_cycle", "ipu", "direction", "stage"], sort=False)[
        "cycles"
    ].sum()
    slowest_tasks = of_task.reset_index().sort_values("cycles", ascending=False, kind="stable")
    rows = _rows(cycles["position"].tolist(), slowest_tasks, _largest_operators(report))
    stage, work, length, operator, operator_cycles = zip(*rows, strict=True) if rows else ((),) * 5
    turns = report.meta.get("strategy", "pipelined") != "pipelined"
    at_work = np.minimum(busy, cycles["cycles"].to_numpy())  # in phases two IPUs may be
    in_turn = (cycles["phase"] != PipelinePhase.UPDATE).to_numpy() & turns
    spent = np.where(in_turn, at_work, np.array(length, dtype=np.int64))
    copies, syncs = between["global exchange"], between["external sync"]
    return cycles.assign(
        stage=np.array(stage, dtype=np.int64),
        work=list(work),
        work_cycles=spent,
        copy_cycles=copies,
        sync_cycles=syncs,
        host_cycles=np.maximum(0, cycles["cycles"].to_numpy() - spent - copies - syncs),
        operator=list(operator),
        operator_cycles=np.array(operator_cycles, dtype=np.int64),
        busy=busy / np.maximum(1, used * cycles["cycles"].to_numpy()),
    )


def _rows(
    positions: list[int], tasks: pd.DataFrame, largest: dict[tuple[int, int, str], tuple[str, int]]
) -> list[tuple[int, str, int, str, int]]:
    """The stage, the work and its cycles, and the largest operator, of each pipeline cycle.

    ``tasks``: of the slowest IPUs, the longest first; ``largest``: `_largest_operators`.
    """
    of_cycle: dict[int, list[Any]] = {}
    names = ("pipeline_cycle", "ipu", "direction", "stage", "cycles")
    for at, *task in zip(*(tasks[name].tolist() for name in names), strict=True):
        of_cycle.setdefault(at, []).append(task)
    rows = []
    for position in positions:
        if (part := of_cycle.get(position)) is None:
            rows.append((-1, "", 0, "", 0))
            continue
        ipu, direction, stage, _ = part[0]
        key = (-1 if direction == Direction.UPDATE else stage, ipu, str(direction))
        words = ", ".join(
            f"{direction} of stage {k}" if k >= 0 else f"weight {direction}"
            for _, direction, k, _ in part
        )
        rows.append((stage, words, sum(one[3] for one in part), *largest.get(key, ("", 0))))
    return rows


def _longest(tasks: pd.DataFrame, kind: str, positions: pd.Series[int]) -> np.ndarray:
    """Cycles of a kind of task in each pipeline cycle, on the IPU with most: the others wait."""
    spent = tasks[tasks["kind"] == kind].groupby(["pipeline_cycle", "ipu"])["cycles"].sum()
    return spent.groupby(level=0).max().reindex(positions, fill_value=0).to_numpy()


def _largest_operators(report: Report) -> dict[tuple[int, int, str], tuple[str, int]]:
    """Name and cycles of the longest operator by (stage, IPU, direction); stage -1: the update."""
    import pandas as pd

    names = ("stage", "ipu", "direction", "op", "spent")
    steps = pd.DataFrame({name: report.sequence.steps_in_order(name) for name in names})
    steps = steps[steps["op"] >= 0]
    stage = steps["stage"].where(steps["direction"] != Direction.UPDATE, -1)
    of_ops = steps.assign(stage=stage).groupby([*names[:-1]], as_index=False)[["spent"]].sum()
    of_ops = of_ops.sort_values("spent", ascending=False, kind="stable")
    most = of_ops.drop_duplicates(["stage", "ipu", "direction"])
    keys = zip(*(most[name].tolist() for name in names[:3]), strict=True)
    named = zip(report.file.op_names(most["op"].to_numpy()), most["spent"].tolist(), strict=True)
    return dict(zip(keys, named, strict=True))


def repeated(table: pd.DataFrame) -> pd.DataFrame:
    """`cycle_table` with equal neighbours as one row, ``first`` to ``last``; ``cycles`` of one."""
    same = ["phase", "cycles", "slowest_ipu", "work", "operator"]
    changes = (table[same] != table[same].shift()).any(axis=1).cumsum()
    groups = table.groupby(changes, sort=False)
    rows = groups.first()
    rows.insert(0, "first", groups["position"].first())
    rows.insert(1, "last", groups["position"].last())
    return rows.drop(columns="position").reset_index(drop=True)
