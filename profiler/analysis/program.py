"""Cycles of the nodes of the program tree in a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import Purpose
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

OPENED = 3  # levels of nodes that are open at first
MOST_OPENED = 20_000  # rows of them that are shown
_OF_NODES = ("id", "depth", "below", "ipu", "position", "cycles", "repeat", "name", "type")


def depths(parents: np.ndarray) -> np.ndarray:
    """The depth of each node of a tree listed depth-first, a root 0: int64.

    ``parents``: row of each node's parent, -1 for a root.
    """
    depth, above = (parents >= 0).astype(np.int64), parents
    while (there := above >= 0).any():  # each time, twice as far up
        depth = depth + np.where(there, depth[above], 0)
        above = np.where(there, above[above], -1)
    return depth


def subtree_ends(parents: np.ndarray) -> np.ndarray:
    """The end of the subtree of each node of a tree listed depth-first: int64, exclusive.

    ``parents``: row of each node's parent, -1 for a root.
    """
    depth = depths(parents)
    size = np.ones(len(parents), dtype=np.int64)
    by_depth = np.argsort(depth, kind="stable")
    edges = np.append(0, np.cumsum(np.bincount(depth)))
    for level in range(len(edges) - 2, 0, -1):
        rows = by_depth[edges[level] : edges[level + 1]]
        np.add.at(size, parents[rows], size[rows])
    return np.arange(len(size), dtype=np.int64) + size


def parents_of(tree: pd.DataFrame) -> np.ndarray:
    """Row of each node's parent in `Report.program`, -1 for a root: int64[node]."""
    import pandas as pd

    return pd.Index(tree["id"]).get_indexer(tree["parent"])


def program_cycles(report: Report) -> np.ndarray:
    """Cycles of one call for each node of `Report.program`, int64 in its order.

    Steps count as often as the schedule runs them. IPUs that work at once do not add up: a node
    takes as long as on its slowest IPU. Waiting counts as time of the IPU's external syncs, so that
    the root of a pipeline takes as long as a call.
    """
    import pandas as pd

    tree, steps = report.program, report.file.table(records.Step)
    ends = subtree_ends(parents_of(tree))
    spent = _step_cycles(report)
    leaf = pd.Index(tree["id"]).get_indexer(steps["program"])
    order = np.argsort(leaf, kind="stable")
    order = order[leaf[order] >= 0]
    return _longest_of_ipus(leaf[order], steps["ipu"][order], spent[order], ends)


@dataclass(frozen=True)
class Nodes:
    """Nodes of the program tree, depth-first: some or all of the ``count`` of the whole tree.

    An entry a node: its ``id``, ``depth`` (a root 0), ``below`` (nodes beneath it), ``ipu`` and
    ``position`` of its step (-1: not a step), `program_cycles`, and its ``name, type, repeat``.
    """

    count: int
    id: np.ndarray
    depth: np.ndarray
    below: np.ndarray
    ipu: np.ndarray
    position: np.ndarray
    cycles: np.ndarray
    repeat: np.ndarray
    name: np.ndarray
    type: np.ndarray

    def where(self, rows: np.ndarray) -> Nodes:
        """Some of the nodes."""
        return Nodes(self.count, **{name: getattr(self, name)[rows] for name in _OF_NODES})


def nodes(report: Report) -> Nodes:
    """All nodes of the program tree."""
    import pandas as pd

    tree = report.program
    parents = parents_of(tree)
    rows = np.arange(len(tree))
    node = pd.Index(tree["id"]).get_indexer(report.sequence.steps_in_order("program"))
    ipu, position = np.full((2, len(tree)), -1)
    for values, name in ((ipu, "ipu"), (position, "position")):
        values[node[node >= 0]] = report.sequence.steps_in_order(name)[node >= 0]
    return Nodes(
        count=len(tree),
        id=tree["id"].to_numpy(),
        depth=depths(parents),
        below=subtree_ends(parents) - rows - 1,
        ipu=ipu,
        position=position,
        cycles=program_cycles(report),
        repeat=tree["repeat"].to_numpy(),
        name=tree["name"].to_numpy(),
        type=tree["type"].to_numpy(),
    )


@stored
def top_nodes(report: Report) -> Nodes:
    """The nodes shown at first: up to `MOST_OPENED` with at most `OPENED` above them."""
    every = nodes(report)
    return every.where(np.flatnonzero(every.depth <= OPENED)[:MOST_OPENED])


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
    steps = report.file.table(records.Step)
    spent = np.zeros(len(steps["id"]), dtype=np.int64)
    schedule = report.trace.schedule()
    if schedule is None:
        return spent
    tasks, slices, times = schedule
    task, step = slices.task, slices.step
    length = (slices.end - slices.start) * times[task]
    ipu = tasks.ipu[task]
    runs = step >= 0
    np.add.at(spent, rows_of(step[runs], steps["id"]), length[runs])
    sync = _external_syncs(report)
    waits = ~runs & np.isin(ipu, list(sync))
    np.add.at(spent, [sync[i] for i in ipu[waits].tolist()], length[waits])
    return spent


def _external_syncs(report: Report) -> dict[int, int]:
    """IPU -> row of its first external sync, if it has one."""
    steps = report.file.table(records.Step)
    syncs = np.flatnonzero(
        (steps["type"] == records.SYNC) & (steps["purpose"] == Purpose.EXTERNAL_SYNC)
    )
    ipus, first = np.unique(steps["ipu"][syncs], return_index=True)
    return dict(zip(ipus.tolist(), syncs[first].tolist(), strict=True))
