"""The stages that other stages wait for.

Every waiting cycle of a device iteration, by the stage that is waited for and the cause.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

CAUSES = ("compute", "tile imbalance", "exchange", "recompute", "copies", "host", "update")


def waiting_causes(report: Report, run: int = 0, iteration: int = 0) -> pd.DataFrame:
    """Cycles that all IPUs together wait for each stage, by `CAUSES`.

    A row a stage: ``stage, ipu, blocks``, the causes and their ``total``.

    The rows and causes add up to all waiting tasks of the iteration. In a pipeline cycle, IPUs wait
    for the slowest one's work (shared out by what its program steps are: compute as if its tiles
    were equally busy, what they are not, exchanges with their syncs, recomputation), then for the
    longest copy between IPUs and for host transfers. A wait counts for the IPU whose task it
    overlaps: the busiest in work, else the one that is still moving data.
    """
    import pandas as pd

    tasks = report.tasks(run, iteration=iteration)
    stages = report.stages
    shares = _shares(report)
    waits: dict[tuple[int, str], float] = {}
    first_stage = {
        int(ipu): int(k)
        for k, ipu in reversed(list(zip(stages["stage"], stages["ipu"], strict=True)))
    }
    columns = ("pipeline_cycle", "ipu", "kind", "direction", "stage", "start", "end")
    for _, of_cycle in tasks.groupby("pipeline_cycle"):
        rows = list(zip(*(of_cycle[name].tolist() for name in columns), strict=True))
        busy = [row for row in rows if row[2] != "idle"]
        load: dict[int, int] = {}
        for _, ipu, _, direction, _, start, end in busy:
            load[ipu] = load.get(ipu, 0) + (end - start) * (direction != "")
        slowest = max(load, key=lambda ipu: (load[ipu], -ipu), default=-1)
        for _, ipu, kind, _, _, start, end in rows:
            if kind == "idle":
                _share_out(waits, (ipu, start, end), busy, slowest, shares, first_stage)
    names = list(CAUSES)
    table = np.zeros((len(stages), len(names)))
    at = {int(k): row for row, k in enumerate(stages["stage"])}
    for (stage, cause), cycles in waits.items():
        if stage in at:
            table[at[stage], names.index(cause)] += cycles
    frame = pd.DataFrame(np.rint(table).astype(np.int64), columns=pd.Index(names))
    frame.insert(0, "stage", stages["stage"].to_numpy())
    frame.insert(1, "ipu", stages["ipu"].to_numpy())
    frame.insert(2, "blocks", stages["blocks"].tolist())
    frame["total"] = frame[names].sum(axis=1)
    return frame


Row = tuple[
    int, int, str, str, int, int, int
]  # pipeline cycle, IPU, kind, direction, stage, start, end


def _share_out(
    waits: dict[tuple[int, str], float],
    wait: tuple[int, int, int],
    busy: list[Row],
    slowest: int,
    shares: dict[tuple[int, str], dict[str, float]],
    first_stage: dict[int, int],
) -> None:
    """Attribute the cycles of one wait (IPU, start, end) to the stages that cause it."""
    ipu, start, end = wait
    others = [
        row
        for row in busy
        if (row[1] != ipu or row[2] == records.BESIDE) and row[5] < end and row[6] > start
    ]
    edges = sorted({start, end, *(t for row in others for t in row[5:7] if start < t < end)})
    for begin, stop in pairwise(edges):
        there = [row for row in others if row[5] <= begin and row[6] >= stop]
        if not there:
            there = [row for row in busy if row[1] == slowest][:1] or busy[:1]
        working = [row for row in there if row[3]]
        # The slowest IPU is waited for while it works; else whoever works or moves data last.
        by_end = sorted(working or there, key=lambda row: (row[1] == slowest, row[6]))
        _, where, kind, direction, stage, _, _ = by_end[-1]
        stage = stage if stage >= 0 else first_stage.get(where, 0)
        for cause, share in _causes(kind, direction, stage, shares).items():
            waits[stage, cause] = waits.get((stage, cause), 0.0) + share * (stop - begin)


def _causes(
    kind: str, direction: str, stage: int, shares: dict[tuple[int, str], dict[str, float]]
) -> dict[str, float]:
    if direction == Direction.UPDATE:
        return {"update": 1.0}
    if direction:
        return shares.get((stage, direction), {"compute": 1.0})
    if kind in ("host I/O", records.BESIDE):
        return {"host": 1.0}
    return {"copies": 1.0}


def _shares(report: Report) -> dict[tuple[int, str], dict[str, float]]:
    """The composition of a stage's forward, backward or recomputation.

    Shares of its cycles, which add up to 1.
    """
    steps = report.steps_as_run()
    steps = steps[
        steps["direction"].isin([Direction.FORWARD, Direction.BACKWARD, Direction.RECOMPUTE])
    ]
    compute = steps["kind"] == "compute"
    even = np.where(compute, steps["cycles"] * steps["tile_balance"].fillna(1.0), 0.0)
    shares: dict[tuple[int, str], dict[str, float]] = {}
    parts = steps.assign(even=even, uneven=np.where(compute, steps["cycles"] - even, 0.0))
    for key, of_task in parts.groupby(["stage", "direction"]):
        stage, direction = int(str(key[0])), str(key[1])
        total = float(of_task["cycles"].sum())
        if not total:
            continue
        if direction == Direction.RECOMPUTE:
            shares[stage, direction] = {"recompute": 1.0}
            continue
        balanced, lost = (
            float(of_task["even"].sum()) / total,
            float(of_task["uneven"].sum()) / total,
        )
        shares[stage, direction] = {
            "compute": balanced,
            "tile imbalance": lost,
            "exchange": 1.0 - balanced - lost,
        }
    return shares
