"""Cycles of the nodes of the program tree in a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiler import records
from profiler.enums import Purpose
from profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd


def subtree_ends(parents: np.ndarray) -> np.ndarray:
    """The end of the subtree of each node of a tree that is listed depth-first.

    ``parents``: row of each node's parent, -1 for a root. int64, exclusive.
    """
    size = [1] * len(parents)
    above = parents.tolist()
    for row in range(len(size) - 1, -1, -1):
        if above[row] >= 0:
            size[above[row]] += size[row]
    return np.arange(len(size), dtype=np.int64) + np.array(size, dtype=np.int64)


def parents_of(tree: pd.DataFrame) -> np.ndarray:
    """Row of each node's parent in `Report.program`, -1 for a root: int64[node]."""
    import pandas as pd

    parents: np.ndarray = pd.Index(tree["id"]).get_indexer(tree["parent"])
    return parents


def program_cycles(report: Report) -> np.ndarray:
    """Cycles of one call for each node of `Report.program`, int64 in its order.

    Steps count as often as the schedule runs them. IPUs that work at once do not add up: a node
    takes as long as on its slowest IPU. Waiting counts as time of the IPU's external syncs, so that
    the root of a pipeline takes as long as a call.
    """
    import pandas as pd

    tree, steps = report.program, report.columns_of(records.Step)
    ends = subtree_ends(parents_of(tree))
    spent = _step_cycles(report)
    leaf = pd.Index(tree["id"]).get_indexer(steps["program"])
    order = np.argsort(leaf, kind="stable")
    order = order[leaf[order] >= 0]
    return _longest_of_ipus(leaf[order], steps["ipu"][order], spent[order], ends)


def _longest_of_ipus(
    leaf: np.ndarray, ipu: np.ndarray, spent: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Cycles of each node on its slowest IPU, int64[node].

    ``leaf``: rows of nodes that take ``spent`` cycles on ``ipu``, ascending; ``ends``: of each
    node, the row after its last descendant. Only nodes with steps of several IPUs are computed IPU
    by IPU.
    """
    nodes = np.arange(len(ends))
    first, last = np.searchsorted(leaf, nodes), np.searchsorted(leaf, ends)
    total = np.append(0, np.cumsum(spent))
    cycles = total[last] - total[first]
    changes = np.append(0, np.cumsum(np.diff(ipu) != 0)) if len(ipu) else np.zeros(1, dtype=int)
    some = last > first
    at = (np.where(some, first, 0), np.where(some, last - 1, 0))
    several = np.flatnonzero(some & (changes[at[0]] != changes[at[1]]))
    cycles[several] = 0
    for one in np.unique(ipu).tolist():
        on_ipu = ipu == one
        of_ipu, running = leaf[on_ipu], np.append(0, np.cumsum(spent[on_ipu]))
        low, high = np.searchsorted(of_ipu, several), np.searchsorted(of_ipu, ends[several])
        cycles[several] = np.maximum(cycles[several], running[high] - running[low])
    return cycles


def _step_cycles(report: Report) -> np.ndarray:
    """Cycles of one call for each row of the steps' table; all 0 without a schedule."""
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
    syncs = np.flatnonzero(
        (steps["type"] == records.SYNC) & (steps["purpose"] == Purpose.EXTERNAL_SYNC)
    )
    ipus, first = np.unique(steps["ipu"][syncs], return_index=True)
    return dict(zip(ipus.tolist(), syncs[first].tolist(), strict=True))
