"""The longest waits of an update in words: where the critical path spends most cycles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler import units
from ipuscope.profiler.analysis.critical_path import (
    NUMBER,
    Path,
    chain_of,
    entries,
    path_columns,
    waterfall_columns,
)
from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import BodyTask
from ipuscope.profiler.file import records
from ipuscope.profiler.lazy import once
from ipuscope.profiler.report import Report
from ipuscope.profiler.report.frames import first_ones, frame_of, some_columns, summed
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


def longest_waits(report: Report) -> pd.DataFrame:
    """The `entries` of the critical path with ``what``: a sentence on each. Most cycles first.

    Transfers to or from what all IPUs share, of tensors whose names differ only in a layer's
    number, are one row: that of the longest, with the cycles and ``times`` of all.
    """
    return frame_of(longest_columns(report))


@once
def longest_columns(report: Report) -> dict[str, np.ndarray]:
    """`longest_waits` as arrays."""
    path = path_columns(report)
    operators = report.file.op_names(path["op"])
    rows = entries(path, np.where(operators != "", operators, path["name"]))
    moved = _moved(report, rows["step"][~np.isin(rows["cause"], [*_WORK])])
    names, each = [*rows], zip(*(values.tolist() for values in rows.values()), strict=True)
    what = [_words(SimpleNamespace(**dict(zip(names, row, strict=True))), moved) for row in each]
    return _together({"what": np.array(what, dtype=object), **rows})


@dataclass(frozen=True, slots=True)
class _Moved:
    """Tensors that one step moves across a chip's edge.

    ``ends``: where they come from and go to, -1 if not an IPU; ``target``: where the first goes;
    ``largest``: the largest of them in words.
    """

    ends: set[int]
    target: int
    largest: str


def _moved(report: Report, steps: np.ndarray) -> dict[int, _Moved]:
    tensors = report.file.table(records.MovedTensor)
    rows = np.flatnonzero(np.isin(tensors["step"], steps))
    rows = rows[np.argsort(tensors["step"][rows], kind="stable")]
    of = (tensors[name][rows] for name in ("step", "source", "target", "name", "bytes"))
    step, source, target, name, nbytes = of
    unique, first = np.unique(step, return_index=True)
    edges = [*first.tolist(), len(step)]
    largest = _largest(step, name, nbytes)
    return {
        one: _Moved(
            {*source[begin:end].tolist(), *target[begin:end].tolist()},
            int(target[begin]),
            largest[one],
        )
        for one, (begin, end) in zip(unique.tolist(), pairwise(edges), strict=True)
    }


def _largest(step: np.ndarray, name: np.ndarray, nbytes: np.ndarray) -> dict[int, str]:
    """The largest tensors of each step, by all bytes that it moves of them."""
    first, which = first_ones(step, name)
    total = summed(nbytes, which, len(first))
    order = np.argsort(-total, kind="stable")
    names: dict[int, list[str]] = {}
    for row, largest in zip(first[order].tolist(), total[order].tolist(), strict=True):
        words = names.setdefault(int(step[row]), [])
        words.append(f"{name[row]} {size(largest)}" if len(words) < _MOST_TENSORS else "")
    return {
        step: ", ".join(words[:_MOST_TENSORS])
        + (f" and {len(words) - _MOST_TENSORS} more" if len(words) > _MOST_TENSORS else "")
        for step, words in names.items()
    }


def _together(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of similar transfers as one."""
    alone = ~np.isin(rows["cause"], _SHARED)
    words = np.array([NUMBER.sub("*", one) for one in rows["what"].tolist()], dtype=object)
    first, which = first_ones(
        np.where(alone, np.arange(len(words)), -1), np.where(alone, "", words)
    )
    merged = {name: values[first] for name, values in rows.items()}
    for name in ("cycles", "times"):
        merged[name] = summed(rows[name], which, len(first))
    merged["share"] = merged["cycles"] / max(1, int(rows["cycles"].sum()))
    for row in np.flatnonzero((count := np.bincount(which)) > 1).tolist():
        merged["what"][row] += f", and {count[row] - 1} like it"
    order = np.argsort(-merged["cycles"], kind="stable")
    return {name: values[order] for name, values in merged.items()}


def _words(row: Any, moved: dict[int, _Moved]) -> str:
    """``row``: an entry; ``moved``: tensors that cross a chip's edge, by step."""
    if row.cause == "sync" and row.stage < 0 and row.task != BodyTask.UPDATE:
        return f"IPU {row.ipu} synchronises with other IPUs"
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
        here = f"IPU {row.ipu}"  # a phase has what one end does
        return f"copies {f'between {here} and {units.ipus(peers)}' if peers else f'of {here}'}"
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
    waterfall, longest, computing = in_short(report)
    return WaitsInShort(frame_of(waterfall), frame_of(longest), computing)


@stored
def in_short(report: Report) -> tuple[Path, Path, dict[int, int]]:
    """`WaitsInShort` with columns for frames: pandas is not imported."""
    path = path_columns(report)
    rows = {name: values[:MOST] for name, values in longest_columns(report).items()}
    places = np.array(_places(report, path, rows), dtype=np.int64).reshape(-1, 2)
    rows |= {"begin": places[:, 0], "end": places[:, 1]}
    return waterfall_columns(path), some_columns(rows, *_LONGEST), computing(report)[0]


@stored
def computing(report: Report) -> tuple[dict[int, int], int]:
    """`WaitsInShort.computing`, and the cycles of the update."""
    path = path_columns(report)
    computes = (path["cause"] == "compute") & (path["stage"] >= 0)
    ipu = path["ipu"][computes] % report.target.ipus_per_replica
    ipus, which = np.unique(ipu, return_inverse=True)
    cycles = summed(path["cycles"][computes], which, len(ipus))
    return dict(zip(ipus.tolist(), cycles.tolist(), strict=True)), int(path["cycles"].sum())


def _places(report: Report, path: Path, rows: Path) -> list[tuple[int, int]]:
    """The place on the path of the longest piece of each wait."""
    tasks, chain = chain_of(report)
    body = report.file.table(records.Body)["id"][tasks.body]
    on_path = np.where(chain.task >= 0, body[chain.task], -1)
    steps, bodies, ipus = (path[name] for name in ("step", "body", "ipu"))
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
