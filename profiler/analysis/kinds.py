"""Cycles of IPUs by kind: `Report.trace.spent` in short."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipuscope.profiler.answers import stored
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline.executed_steps import Spent

_COLUMNS = ("kind", "ipu", "cycles", "count", "first", "last")


def spent_by_kind(
    report: Report,
    run: int,
    ipus: Sequence[int],
    iteration: int | None,
    window: tuple[float, float],
) -> Spent:
    """`Report.trace.spent` with one step, -1, for each kind.

    Device iterations are alike: windows that contain a whole one use the first run's sums.
    """
    if iteration is None or run:
        return report.trace.spent(run, ipus, iteration, window)
    columns = _by_kind(report)
    runs = report.runs
    length = int(runs["cycles"].iloc[run]) // max(1, int(runs["iterations"].iloc[run]))
    begin = int(runs["start"].iloc[run]) + iteration * length
    wanted = np.isin(columns["ipu"], ipus)
    first, last = (columns[name][wanted] + begin for name in ("first", "last"))
    if (first < window[0]).any() or (last > window[1]).any():
        return report.trace.spent(run, ipus, iteration, window)
    kinds = tuple(dict.fromkeys(columns["kind"].tolist()))
    numbers = {kind: number for number, kind in enumerate(kinds)}
    kind = np.array([numbers[word] for word in columns["kind"][wanted]], dtype=np.int64)
    cycles, count = columns["cycles"][wanted], columns["count"][wanted]
    return Spent(np.full(len(kind), -1), kind, cycles, count, kinds)


def cycles_of_ipus(report: Report) -> tuple[tuple[str, ...], np.ndarray]:
    """Kinds, and cycles of each on each IPU in the first device iteration: int64[ipu, kind]."""
    columns = _by_kind(report)
    kinds, at = np.unique(columns["kind"].astype(str), return_inverse=True)
    cycles = np.zeros((report.target.num_ipus, len(kinds)), dtype=np.int64)
    np.add.at(cycles, (columns["ipu"].astype(np.int64), at), columns["cycles"].astype(np.int64))
    return tuple(kinds.tolist()), cycles


@stored
def _by_kind(report: Report) -> dict[str, np.ndarray]:
    """A row for each IPU and kind of the first run's device iteration, without I/O tiles' work.

    ``first`` and ``last``: the cycles, from its start, between which all of the IPU's tasks lie.
    """
    tasks = report.tasks(0, iteration=0)
    start = int(report.runs["start"].iloc[0])
    spans = tasks.groupby("ipu").agg(first=("start", "min"), last=("end", "max")) - start
    ipus = spans.index.to_numpy()
    parts = [report.trace.spent(0, [int(ipu)], 0) for ipu in ipus]
    rows = []
    for ipu, of_ipu, (first, last) in zip(ipus.tolist(), parts, spans.to_numpy(), strict=True):
        rows += [(kind, ipu, *sums, first, last) for kind, *sums in of_ipu.by_kind()]
    columns = zip(*rows, strict=True) if rows else ((),) * len(_COLUMNS)
    return {
        name: np.array(values, dtype=object if name == "kind" else np.int64)
        for name, values in zip(_COLUMNS, columns, strict=True)
    }
