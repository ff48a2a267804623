"""Insights, and the cycles of the critical path that each accounts for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ipuscope.planner.levers.waits import Waits
from ipuscope.profiler.analysis import held_at_peak
from ipuscope.profiler.units import sentence, size

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler.report import Report


MOST_IN = "The line with most of it is"


@dataclass(frozen=True)
class Insight:
    """One finding.

    ``gain_cycles`` a weight update and ``gain_bytes`` on the fullest tile are 0 if unknown;
    ``at_most``: the cycles are a bound that no known change reaches; ``estimate``: they rest on
    estimated costs (`ipuscope.planner.costs.estimates`). ``where``: a page of the viewer with its
    parameters; ``action``: what to change; ``code``: statements to write or commands to run (none:
    `action` is enough); ``change``: the same for programs (empty: it has no name). ``waits``: the
    cycles of the critical path that it is about (None: none). ``changes_batch``: a weight update
    then has other samples. ``file`` and ``line`` have most of what it is about ("": none has).
    """

    title: str
    detail: str
    action: str
    where: str
    gain_cycles: int = 0
    gain_bytes: int = 0
    at_most: bool = False
    change: Mapping[str, int | str | list[int]] = field(default_factory=dict)
    estimate: bool = False
    waits: Waits | None = None
    code: tuple[str, ...] = ()
    changes_batch: bool = False
    file: str = ""
    line: int = 0

    @property
    def why(self) -> str:
        """``detail``, and the source line to look at."""
        return f"{self.detail} {MOST_IN} {self.file}:{self.line}." if self.file else self.detail

    @property
    def gain_in_words(self) -> str:
        """Cycles, or bytes with their unit, '<=' a bound and '~' an estimate; "": not known."""
        mark = "<= " if self.at_most else "~" if self.estimate else ""
        if self.gain_cycles:
            return f"{mark}{self.gain_cycles:,}"
        return f"{mark}{size(self.gain_bytes)}" if self.gain_bytes else ""

    @property
    def change_in_words(self) -> str:
        """``action`` as a sentence that ends, or introduces ``code``."""
        return f"{sentence(self.action)}{':' if self.code else '.'}"


def with_line(report: Report, path: pd.DataFrame | None, one: Insight) -> Insight:
    """The finding with the line whose operators have most of its cycles of the path.

    Without cycles: with that of the largest variable on the fullest tile of its IPU. As it is if
    options are what to change, not the model.
    """
    if one.code or (one.change and "starts" not in one.change):
        return one
    there = re.match(r"/memory\?ipu=(\d+)&tile=", one.where)
    if one.waits is not None and path is not None:
        most = path.loc[one.waits.of(path) & (path["op"] >= 0).to_numpy(), ["op", "cycles"]]
    elif there is not None:
        live = held_at_peak(report, int(there[1]))
        most = live.loc[live["op"] >= 0, ["op", "bytes"]].head(1)
    else:
        return one
    places = report.ops.loc[most["op"], ["file", "line"]].assign(size=most.iloc[:, 1].to_numpy())
    sums = places[places["file"] != ""].groupby(["file", "line"])["size"].sum()
    if not len(sums):
        return one
    file, line = cast("tuple[str, int]", sums.idxmax())
    return replace(one, file=file.replace("\\", "/"), line=line)


def covered(path: pd.DataFrame, waits: list[Waits]) -> np.ndarray:
    """Rows of the critical path that any of these is about: bool[row]."""
    rows = np.zeros(len(path), dtype=bool)
    for wait in waits:
        rows |= wait.of(path)
    return rows


def accounted(path: pd.DataFrame, waits: list[Waits]) -> float:
    """Share (0..1) of the critical path's cycles that these cover."""
    cycles = path["cycles"].to_numpy()
    return float(cycles[covered(path, waits)].sum() / max(1, cycles.sum()))
