"""What the nodes of the program tree cost in a call."""

from __future__ import annotations

import numpy as np

from profiler import records, trace
from profiler.report import Report


def subtree_ends(parents: np.ndarray) -> np.ndarray:
    """Of each node of a tree that is listed depth-first, where what is under it ends.

    ``parents``: row of each node's parent, -1 for a root. int64, exclusive.
    """
    size = [1] * len(parents)
    above = parents.tolist()
    for row in range(len(size) - 1, -1, -1):
        if above[row] >= 0:
            size[above[row]] += size[row]
    return np.arange(len(size), dtype=np.int64) + np.array(size, dtype=np.int64)


def program_cycles(report: Report) -> np.ndarray:
    """Cycles of one call that each node of `Report.program` takes, int64 in its order.

    Steps count as often as the schedule runs them. IPUs that work at once do not add up: a node
    takes what it takes on the IPU that it takes longest on. Waiting is time of the IPU's external
    syncs, so that the root of a pipeline takes as long as a call.
    """
    tree, steps = report.program, report.columns_of(records.Step)
    row_of = {id: row for row, id in enumerate(tree["id"].tolist())}
    parents = np.array([row_of.get(id, -1) for id in tree["parent"].tolist()], dtype=np.int64)
    ends = subtree_ends(parents)
    spent = _step_cycles(report)
    leaf = np.array([row_of.get(id, -1) for id in steps["program"].tolist()], dtype=np.int64)
    cycles = np.zeros(len(tree), dtype=np.int64)
    for ipu in np.unique(steps["ipu"]).tolist():
        here = (steps["ipu"] == ipu) & (leaf >= 0)
        own = np.zeros(len(tree), dtype=np.int64)
        np.add.at(own, leaf[here], spent[here])
        running = np.append(0, np.cumsum(own))
        cycles = np.maximum(cycles, running[ends] - running[:-1])
    return cycles


def _step_cycles(report: Report) -> np.ndarray:
    """Cycles of one call that each row of the steps' table takes; all 0 without a schedule."""
    steps = report.columns_of(records.Step)
    spent = np.zeros(len(steps["id"]), dtype=np.int64)
    schedule = report.schedule()
    if schedule is None:
        return spent
    tasks, slices, times = schedule
    length = (slices.end - slices.start) * times[slices.task]
    ipu = tasks.ipu[slices.task]
    order = np.argsort(steps["id"], kind="stable")
    runs = slices.step >= 0
    at = order[np.searchsorted(steps["id"], slices.step[runs], sorter=order)]
    np.add.at(spent, at, length[runs])
    sync = _external_syncs(report)
    waits = ~runs & np.isin(ipu, list(sync))
    np.add.at(spent, [sync[i] for i in ipu[waits].tolist()], length[waits])
    return spent


def _external_syncs(report: Report) -> dict[int, int]:
    """IPU -> row of its first external sync, for those that have one."""
    steps = report.columns_of(records.Step)
    syncs: dict[int, int] = {}
    columns = zip(steps["type"], steps["purpose"], steps["ipu"].tolist(), strict=True)
    for row, (kind, purpose, ipu) in enumerate(columns):
        if trace.step_kind(kind, purpose) == "external sync":
            syncs.setdefault(ipu, row)
    return syncs
