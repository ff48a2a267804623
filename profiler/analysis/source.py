"""The user's lines of code: the cost of the operators that each line makes, and its text.

The text comes from the profile's header, stored by the compile: the files may have changed since.
It is a stranger's data: it is never run, and no file that it names is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ipuscope.profiler.analysis.memory_hot_spots import live_at_peaks
from ipuscope.profiler.analysis.operators import executed_ops
from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

META = "sources"  # the entry of a profile's header: text by file
CALLERS = "callers"  # the entry with call stacks
_MOST_IPUS = 3  # to name
_CYCLES = {
    Direction.FORWARD: "forward_cycles",
    Direction.BACKWARD: "backward_cycles",
    Direction.UPDATE: "update_cycles",
}


class Margin(NamedTuple):
    """A line of a file: its number, text, and the row of `lines`; None if it has no costs."""

    number: int
    text: str
    costs: Any


@stored
def lines(report: Report) -> pd.DataFrame:
    """The cost of each of the user's lines in a weight update, the most cycles first.

    ``file, line, forward_cycles, backward_cycles, update_cycles`` (of operators, all executions),
    ``recompute_cycles`` (beside these), ``cycles`` (of the four), ``share`` (of all operators'),
    ``bytes`` (outputs of the line's operators live at the fullest step of an IPU, summed over
    IPUs), ``operators``, ``ipus`` ("0, 3", or how many) and ``largest`` (the name of its operator
    with the most cycles). Operators without a line have file "".
    """
    ops = report.ops[["file", "line", "ipu", "direction", "name"]].join(executed_ops(report))
    for direction, name in _CYCLES.items():
        own = (ops["direction"] == direction).to_numpy()
        ops[name] = np.where(own, ops["total_cycles"], 0)
    ops["cycles"] = ops["total_cycles"] + ops["recompute_cycles"]
    ops["bytes"] = bytes_at_peak(report).reindex(ops.index).fillna(0).astype(np.int64)
    ops = ops.sort_values("cycles", ascending=False, kind="stable")
    summed = [*_CYCLES.values(), "recompute_cycles", "cycles", "bytes"]
    groups = ops.groupby(["file", "line"], sort=False)
    table = groups[summed].sum()
    table["share"] = table["cycles"] / max(1, int(table["cycles"].sum()))
    table["operators"] = groups.size()
    table["ipus"] = groups["ipu"].agg(_ipus)
    table["largest"] = groups["name"].first()
    table = table.reset_index().sort_values("cycles", ascending=False, kind="stable")
    names = ["file", "line", *_CYCLES.values(), "recompute_cycles", "cycles", "share", "bytes"]
    return table[[*names, "operators", "ipus", "largest"]].reset_index(drop=True)


def _ipus(ipus: pd.Series[int]) -> str:
    there = sorted(set(ipus.tolist()))
    return ", ".join(map(str, there)) if len(there) <= _MOST_IPUS else f"{len(there)} IPUs"


def callers(report: Report) -> list[tuple[str, ...]]:
    """The lines that lead to each operator's own, "file:line", outermost first, in their order.

    () for operators of older profiles, and where the header's entry has none that is sound.
    """
    count, entry = len(report.ops), report.meta.get(CALLERS)
    none: list[tuple[str, ...]] = [()] * count
    if not isinstance(entry, dict):
        return none
    texts, of = entry.get("texts"), entry.get("of")
    if not isinstance(texts, list) or not isinstance(of, list) or len(of) != count:
        return none
    stacks = [tuple(str(text).split("\n")) if text else () for text in texts]
    sound = all(isinstance(one, int) and 0 <= one < len(stacks) for one in of)
    return [stacks[one] for one in of] if sound else none


def bytes_at_peak(report: Report) -> pd.Series[int]:
    """Bytes live at the fullest step of each IPU of a replica, by the operator that made them."""
    live = live_at_peaks(report)
    op = report.usage.variables_with("op")["op"].reindex(live["variable"]).to_numpy()
    return live["bytes"].groupby(op).sum()


def texts(report: Report) -> dict[str, str]:
    """Text by file, as the compile saw it; empty if the profile has none."""
    sources = report.meta.get(META)
    if not isinstance(sources, dict):
        return {}
    return {file: text for file, text in sources.items() if isinstance(text, str)}


def listing(report: Report, file: str) -> list[Margin]:
    """A file line by line with the costs; only the lines with costs if it has no text."""
    rows = lines(report)
    of_file: Any = rows[rows["file"] == file].itertuples(index=False)
    costs = {int(row.line): row for row in of_file}
    text = texts(report).get(file)
    if text is None:
        return [Margin(number, "", costs[number]) for number in sorted(costs)]
    return [Margin(at, words, costs.get(at)) for at, words in enumerate(text.splitlines(), 1)]


def line_of(report: Report, file: str, number: int) -> str:
    """The text of a line, without its indent; "" if the profile does not have it."""
    text = texts(report).get(file, "").splitlines()
    return text[number - 1].strip() if 0 < number <= len(text) else ""
