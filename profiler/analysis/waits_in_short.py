"""The critical path of an update in short: what a first look shows of it.

A large profile has it worked out, since following the path takes all tasks of a device iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.analysis.critical_path import (
    CAUSES,
    WAITING,
    chain_of,
    critical_path,
    waterfall,
)
from ipuscope.profiler.analysis.waits import longest_waits
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

NAME = "waits in short"
MOST = 12  # of the longest waits
_NUMBERS = ("ipu", "step", "cycles", "begin", "end")
_LONGEST = ("what", "share", *_NUMBERS)
_PHASES = (*records.PHASES, WAITING)


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

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "waterfall": self.waterfall.to_dict("list"),
            "longest": self.longest.to_dict("list"),
            "computing": [[ipu, cycles] for ipu, cycles in self.computing.items()],
        }


def of(report: Report) -> WaitsInShort:
    """The waits of a report that has a run."""
    return report.answered(NAME, _read, lambda: _made(report))


def _made(report: Report) -> WaitsInShort:
    path = critical_path(report)
    longest = longest_waits(report, path).head(MOST)
    begin, end = np.array(_places(report, path, longest), dtype=np.int64).reshape(-1, 2).T
    computes = path[(path["cause"] == "compute") & (path["stage"] >= 0)]
    by_ipu = computes["cycles"].groupby(computes["ipu"] % report.target.ipus_per_replica).sum()
    return WaitsInShort(
        waterfall(path),
        longest.assign(begin=begin, end=end)[[*_LONGEST]],
        dict(zip(by_ipu.index.tolist(), by_ipu.tolist(), strict=True)),
    )


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


# -- from JSON ---


def _read(said: Any) -> WaitsInShort | None:
    """None where it is not what was written."""
    try:
        drop, longest = said["waterfall"], said["longest"]
        computing = dict(said["computing"])
    except (TypeError, LookupError, ValueError):
        return None
    if not isinstance(drop, dict) or not isinstance(longest, dict):
        return None
    phases = [phase for phase in _PHASES if phase in drop]
    numbers = dict.fromkeys((*phases, "cycles"), int)
    whole = (
        all(map(_is_number, (*computing, *computing.values())))
        and _fits(drop, {"cause": str, **numbers, "share": float})
        and _fits(longest, {"what": str, "share": float, **dict.fromkeys(_NUMBERS, int)})
        and set(drop["cause"]) <= set(CAUSES)
    )
    return WaitsInShort(_frame(drop), _frame(longest), computing) if whole else None


def _fits(columns: dict[str, Any], kinds: dict[str, type]) -> bool:
    """Whether these are the columns, in this order, as long as each other and of these kinds."""
    if list(columns) != list(kinds) or not all(isinstance(one, list) for one in columns.values()):
        return False
    alike = len({len(cells) for cells in columns.values()}) == 1
    return alike and all(
        _is_number(cell) if kind is int else type(cell) is kind
        for name, kind in kinds.items()
        for cell in columns[name]
    )


def _is_number(value: Any) -> bool:
    return type(value) is int and -1 <= value < 1 << 62


def _frame(columns: dict[str, list[Any]]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(columns)
