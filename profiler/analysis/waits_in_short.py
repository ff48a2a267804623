"""The critical path of an update in short: what a first look shows of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.analysis.critical_path import (
    chain_of,
    critical_path,
    waterfall,
)
from ipuscope.profiler.analysis.waits import longest_waits
from ipuscope.profiler.answers import stored
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

MOST = 12  # of the longest waits
_NUMBERS = ("ipu", "step", "cycles", "begin", "end")
_LONGEST = ("what", "share", *_NUMBERS)


@dataclass(frozen=True)
class WaitsInShort:
    """The first run's first device iteration; all iterations wait for the same.

    ``waterfall``: `critical_path.waterfall`. ``longest``: the first rows of `longest_waits`, of
    their columns ``what, share, ipu, step, cycles``, and where on the path the longest piece of
    each is, from ``begin`` to ``end`` (cycles; -1: nowhere). ``computing``: cycles for which the
    update waits for the stages of each IPU of a replica to compute.
    """

    waterfall: pd.DataFrame
    longest: pd.DataFrame
    computing: dict[int, int]

    @property
    def total(self) -> int:
        """Cycles of the update."""
        return int(self.waterfall["cycles"].sum())


def of(report: Report) -> WaitsInShort:
    """The waits of a report that has a run."""
    return WaitsInShort(*_parts(report))


@stored
def _parts(report: Report) -> tuple[pd.DataFrame, pd.DataFrame, dict[int, int]]:
    path = critical_path(report)
    longest = longest_waits(report, path).head(MOST)
    begin, end = np.array(_places(report, path, longest), dtype=np.int64).reshape(-1, 2).T
    computes = path[(path["cause"] == "compute") & (path["stage"] >= 0)]
    by_ipu = computes["cycles"].groupby(computes["ipu"] % report.target.ipus_per_replica).sum()
    computing = dict(zip(by_ipu.index.tolist(), by_ipu.tolist(), strict=True))
    return waterfall(path), longest.assign(begin=begin, end=end)[[*_LONGEST]], computing


def _places(report: Report, path: pd.DataFrame, rows: pd.DataFrame) -> list[tuple[int, int]]:
    """Where on the path the longest piece of each wait is."""
    tasks, chain = chain_of(report)
    body = tasks["body"].to_numpy()
    on_path = np.where(chain.task >= 0, body[chain.task], -1)
    steps, bodies, ipus = (path[name].to_numpy() for name in ("step", "body", "ipu"))
    places = []
    for step, ipu in zip(rows["step"].tolist(), rows["ipu"].tolist(), strict=True):
        bodies_of_step = bodies[(steps == step) & (ipus == ipu)]
        pieces = np.flatnonzero(np.isin(on_path, bodies_of_step))
        place = -1, -1
        if len(pieces):
            longest = pieces[int((chain.end[pieces] - chain.start[pieces]).argmax())]
            place = int(chain.start[longest]), int(chain.end[longest])
        places.append(place)
    return places
