"""The longest waits of an update in words: where the critical path spends most cycles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler import units
from ipuscope.profiler.analysis.critical_path import (
    NUMBER,
    chain_of,
    critical_path,
    entries,
    waterfall,
)
from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import BodyTask
from ipuscope.profiler.report import Report
from ipuscope.profiler.units import percent, size

if TYPE_CHECKING:
    import pandas as pd

_WORK = {
    "compute": "computes",
    "exchange on chip": "exchanges between its tiles",
    "sync": "synchronises its tiles",
    "stash": "stashes and restores activations",
    "collective over shards": "exchanges with the IPUs that share its tensors",
}
_MOST_TENSORS = 2
# What all IPUs share, so that it does not matter which of them waits.
_SHARED = ("host I/O", "streaming memory", "collective over replicas")


def longest_waits(report: Report, path: pd.DataFrame) -> pd.DataFrame:
    """The `entries` of a critical path with ``what``: a sentence on each. Most cycles first.

    Transfers to or from what all IPUs share, of tensors whose names differ only in a layer's
    number, are one row: that of the longest, with the cycles and ``times`` of all.
    """
    rows = entries(path, report.ops["name"])
    across = ~rows["cause"].isin([*_WORK])
    moved = _moved(report.sequence.moved_tensors, rows.loc[across, "step"])
    rows.insert(0, "what", [_words(row, moved) for row in rows.itertuples(index=False)])
    return _together(rows)


@dataclass(frozen=True, slots=True)
class _Moved:
    """Tensors that one step moves across a chip's edge.

    ``ends``: where they come from and go to, -1 if not an IPU; ``target``: where the first goes;
    ``largest``: the largest of them in words.
    """

    ends: set[int]
    target: int
    largest: str


def _moved(tensors: pd.DataFrame, steps: pd.Series) -> dict[int, _Moved]:
    """What each of the steps moves; ``tensors``: `Report.sequence.moved_tensors`."""
    tensors = tensors[tensors["step"].isin(steps)].sort_values("step", kind="stable")
    step, source, target = (tensors[name].to_numpy() for name in ("step", "source", "target"))
    unique, first = np.unique(step, return_index=True)
    edges = [*first.tolist(), len(step)]
    largest = _largest(tensors)
    return {
        one: _Moved(
            {*source[begin:end].tolist(), *target[begin:end].tolist()},
            int(target[begin]),
            largest[one],
        )
        for one, (begin, end) in zip(unique.tolist(), pairwise(edges), strict=True)
    }


def _largest(tensors: pd.DataFrame) -> dict[int, str]:
    """The largest tensors of each step, by all bytes that it moves of them."""
    by_name = tensors.groupby(["step", "name"], sort=False)["bytes"].sum()
    by_name = by_name.sort_values(ascending=False, kind="stable")
    names: dict[int, list[str]] = {}
    for (step, name), nbytes in zip(by_name.index.tolist(), by_name.tolist(), strict=True):
        words = names.setdefault(step, [])
        words.append(f"{name} {size(nbytes)}" if len(words) < _MOST_TENSORS else "")
    return {
        step: ", ".join(words[:_MOST_TENSORS])
        + (f" and {len(words) - _MOST_TENSORS} more" if len(words) > _MOST_TENSORS else "")
        for step, words in names.items()
    }


def _together(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of similar transfers as one."""
    shared = rows["cause"].isin(_SHARED).to_numpy()
    alike = rows["what"].astype(str).str.replace(NUMBER, "*", regex=True).to_numpy(dtype=object)
    groups = rows.groupby(np.where(shared, alike, np.arange(len(rows)).astype(str)), sort=False)
    merged, count = groups.first()[rows.columns], groups.size()
    for name in ("cycles", "share", "times"):
        merged[name] = groups[name].sum()
    more = [f", and {others - 1} like it" if others > 1 else "" for others in count]
    merged["what"] = merged["what"] + more
    return merged.sort_values("cycles", ascending=False, kind="stable", ignore_index=True)


def _words(row: Any, moved: dict[int, _Moved]) -> str:
    """``row``: an entry; ``moved``: tensors that cross a chip's edge, by step."""
    if row.cause in _WORK:
        return f"{worker(row.task, row.stage, row.ipu)} {_WORK[row.cause]}; {_part(row)}"
    tensors = moved.get(row.step)
    if tensors is None:
        return f"{row.cause}: {row.name}"
    return f"{_edge(row, tensors)}: {tensors.largest}"


def worker(task: str, stage: int, ipu: int) -> str:
    """What works: a stage, an IPU without one, or the weight update there."""
    if task == BodyTask.UPDATE:
        return f"the weight update on IPU {ipu}"
    if stage >= 0:
        return f"stage {stage}"
    return f"IPU {ipu}" if ipu >= 0 else "all"


def _part(row: Any) -> str:
    share = row.of_which / max(1, row.cycles)
    like_it = f" and {row.alike - 1} like it" if row.alike > 1 else ""
    return f"most in {row.name}{like_it} ({percent(share)} of it)"


def _edge(row: Any, tensors: _Moved) -> str:
    """The two ends between which the tensors move."""
    if row.cause == "collective over replicas":
        return "replicas exchange"
    if row.cause == "copy between IPUs":
        peers = sorted(tensors.ends - {row.ipu})
        return f"copies between IPU {row.ipu} and {units.ipus(peers)}"
    where = "the host" if row.cause == "host I/O" else "streaming memory"
    return f"to {where}" if tensors.target < 0 else f"from {where}"


MOST = 12  # of the longest waits
_NUMBERS = ("ipu", "step", "cycles", "begin", "end")
_LONGEST = ("what", "share", *_NUMBERS)


@dataclass(frozen=True)
class WaitsInShort:
    """The first run's first device iteration; all iterations wait for the same.

    ``waterfall``: `critical_path.waterfall`. ``longest``: the first rows of `longest_waits`
    (``what, share, ipu, step, cycles``), and the longest piece of each on the path, from ``begin``
    to ``end`` (cycles; -1: none). ``computing``: cycles for which the update waits for the stages
    of each IPU of a replica to compute.
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
    """The place on the path of the longest piece of each wait."""
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
