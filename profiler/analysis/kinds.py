"""Cycles of IPUs by kind: `Report.trace.spent` in short."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipuscope.profiler.analysis.movement import streaming_steps
from ipuscope.profiler.answers import stored
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline.executed_steps import Spent

STREAMING = "streaming memory"  # the host I/O of `streaming_steps`
_COLUMNS = ("kind", "ipu", "streams", "cycles", "count", "first", "last")


def spent_by_kind(
    report: Report,
    run: int,
    ipus: Sequence[int],
    iteration: int | None,
    window: tuple[float, float],
) -> Spent:
    """`Report.trace.spent` with one step for each kind: -1, or one of `streaming_steps` for these.

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
    streaming = streaming_steps(report)
    kinds = tuple(dict.fromkeys(columns["kind"].tolist()))
    numbers = {kind: number for number, kind in enumerate(kinds)}
    kind = np.array([numbers[word] for word in columns["kind"][wanted]], dtype=np.int64)
    streams = (columns["streams"][wanted] != 0) & bool(len(streaming))
    step = np.where(streams, streaming[:1].sum(), -1)
    return Spent(step, kind, columns["cycles"][wanted], columns["count"][wanted], kinds)


def cycles_of_ipus(report: Report) -> tuple[tuple[str, ...], np.ndarray]:
    """Kinds, and cycles of each on each IPU in the first device iteration: int64[ipu, kind].

    From `spent_by_kind`; streaming memory is a kind of its own.
    """
    columns = _by_kind(report)
    kind = np.where(columns["streams"] != 0, STREAMING, columns["kind"])
    kinds, at = np.unique(kind.astype(str), return_inverse=True)
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
    streaming = streaming_steps(report)
    for ipu, of_ipu, (first, last) in zip(ipus.tolist(), parts, spans.to_numpy(), strict=True):
        streams = np.isin(of_ipu.step, streaming)
        for flag in (False, True):
            chosen = of_ipu.kind[streams == flag]
            cycles, count = (
                np.bincount(chosen, weights=values[streams == flag], minlength=len(of_ipu.kinds))
                for values in (of_ipu.cycles, of_ipu.count)
            )
            rows += [
                (of_ipu.kinds[at], ipu, flag, int(cycles[at]), int(count[at]), first, last)
                for at in np.flatnonzero(count).tolist()
            ]
    columns = zip(*rows, strict=True) if rows else ((),) * len(_COLUMNS)
    return {
        name: np.array(values, dtype=object if name == "kind" else np.int64)
        for name, values in zip(_COLUMNS, columns, strict=True)
    }
