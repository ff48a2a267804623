"""The longest waits of an update in words: where the critical path spends most cycles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from profiler.analysis.critical_path import entries
from profiler.enums import BodyTask
from profiler.report import Report
from profiler.units import percent, size

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
_NUMBER = r"(?<=[./_])\d+\b|(?<=[a-z])\d+(?=[./:])"  # of a layer, or of one of its operators


def longest_waits(report: Report, path: pd.DataFrame) -> pd.DataFrame:
    """The `entries` of a critical path with ``what``: a sentence on each. Most cycles first.

    Transfers to or from what all IPUs share, of tensors whose names differ in a layer's number
    only, are one row: that of the longest, with the cycles and ``times`` of all.
    """
    rows = entries(path)
    moved = dict(iter(report.moved_tensors.groupby("step")))
    rows.insert(0, "what", [_words(row, moved) for row in rows.itertuples(index=False)])
    return _together(rows)


def _together(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of transfers alike as one."""
    shared = rows["cause"].isin(_SHARED).to_numpy()
    alike = rows["what"].astype(str).str.replace(_NUMBER, "*", regex=True).to_numpy(dtype=object)
    groups = rows.groupby(np.where(shared, alike, np.arange(len(rows)).astype(str)), sort=False)
    merged, count = groups.first()[rows.columns], groups.size()
    for name in ("cycles", "share", "times"):
        merged[name] = groups[name].sum()
    more = [f", and {others - 1} like it" if others > 1 else "" for others in count]
    merged["what"] = merged["what"] + more
    return merged.sort_values("cycles", ascending=False, kind="stable", ignore_index=True)


def _words(row: Any, moved: dict[Any, pd.DataFrame]) -> str:
    """``row``: an entry; ``moved``: tensors that cross a chip's edge, by step."""
    if row.cause in _WORK:
        return f"{_worker(row)} {_WORK[row.cause]}; {_part(row)}"
    tensors = moved.get(row.step)
    if tensors is None:
        return f"{row.cause}: {row.name}"
    return f"{_edge(row, tensors)}: {_largest(tensors)}"


def _worker(row: Any) -> str:
    if row.task == BodyTask.UPDATE:
        return f"the weight update on IPU {row.ipu}"
    return f"stage {row.stage}" if row.stage >= 0 else f"IPU {row.ipu}"


def _part(row: Any) -> str:
    share = row.of_which / max(1, row.cycles)
    return f"most in {row.name} ({percent(share)} of it)"


def _edge(row: Any, tensors: pd.DataFrame) -> str:
    """The two ends between which the tensors move."""
    if row.cause == "collective over replicas":
        return "replicas exchange"
    if row.cause == "copy between IPUs":
        peers = sorted({*tensors["source"].tolist(), *tensors["target"].tolist()} - {row.ipu})
        others = " and ".join(str(peer) for peer in peers)
        return f"copies between IPU {row.ipu} and IPU{'s' if len(peers) > 1 else ''} {others}"
    where = "the host" if row.cause == "host I/O" else "streaming memory"
    return f"to {where}" if int(tensors["target"].iloc[0]) < 0 else f"from {where}"


def _largest(tensors: pd.DataFrame) -> str:
    """The largest tensors by all bytes that the step moves of them."""
    by_name = tensors.groupby("name", sort=False)["bytes"].sum()
    by_name = by_name.sort_values(ascending=False, kind="stable")
    said = [f"{name} {size(nbytes)}" for name, nbytes in by_name.head(_MOST_TENSORS).items()]
    more = len(by_name) - len(said)
    return ", ".join(said) + (f" and {more} more" if more else "")
