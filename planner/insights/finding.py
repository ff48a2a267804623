"""Insights, and the cycles of the critical path that each accounts for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ipuscope.planner.levers.waits import Waits
from ipuscope.profiler.units import in_three_digits, sentence, size

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler.report import Report


MOST_IN = "The line with the largest share is"


@dataclass(frozen=True)
class Insight:
    """One finding.

    ``gain_cycles`` a weight update and ``gain_bytes`` on the fullest tile are 0 if unknown;
    ``at_most``: the cycles are a bound that no known change reaches (``remainder``: nor is there
    one, but for general advice on such cycles); ``estimate``: they rest on estimated costs
    (`ipuscope.planner.costs.estimates`). ``where``: a page of the viewer with its
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
    remainder: bool = False
    change: Mapping[str, int | str | list[int]] = field(default_factory=dict)
    estimate: bool = False
    waits: Waits | None = None
    code: tuple[str, ...] = ()
    changes_batch: bool = False
    file: str = ""
    line: int = 0

    def with_paths(self, with_path: Callable[[str], str]) -> Insight:
        """The finding whose commands name its profile."""
        detail, action, *code = map(with_path, (self.detail, self.action, *self.code))
        return replace(self, detail=detail, action=action, code=tuple(code))

    @property
    def headline(self) -> str:
        """``title``, and whether a weight update then has other samples."""
        return f"{self.title} (another batch)" if self.changes_batch else self.title

    @property
    def why(self) -> str:
        """``detail``, and the source line to look at."""
        return f"{self.detail} {MOST_IN} {self.file}:{self.line}." if self.file else self.detail

    @property
    def gain_in_words(self) -> str:
        """Cycles, or bytes with their unit, '<=' a bound and '~' an estimate; "": not known."""
        mark = "<= " if self.at_most else "~" if self.estimate else ""
        if self.gain_cycles:
            return mark + _digits(self.gain_cycles, self.estimate)
        return f"{mark}{size(self.gain_bytes)}" if self.gain_bytes else ""

    @property
    def change_in_words(self) -> str:
        """``action`` as a sentence that ends, or introduces ``code``."""
        return f"{sentence(self.action)}{':' if self.code else '.'}"


def fewer(cycles: int, estimate: bool, error: str = "") -> str:
    """Cycles that are saved, of an estimate with its ``error``."""
    if not estimate:
        return f"{_digits(cycles, estimate)} cycles less"
    off = f": the rate {error}" if error else ""
    return f"about {_digits(cycles, estimate)} cycles less (an estimate{off})"


def _digits(cycles: int, estimate: bool) -> str:
    return in_three_digits(cycles) if estimate else f"{cycles:,}"


def other_samples(now: int, then: int) -> str:
    """Of the training, what another number of samples an update changes."""
    return f"{then:,} samples an update instead of {now:,}"


def with_line(report: Report, one: Insight, most: Callable[[], pd.DataFrame]) -> Insight:
    """The finding with the line whose operators have most of it; as it is if it changes options.

    ``most``: operators (``op``, -1: none) and, in the next column, their cycles or bytes.
    """
    if one.code or (one.change and "starts" not in one.change):
        return one
    rows = most()
    rows = rows[rows["op"] >= 0]
    places = report.ops.loc[rows["op"], ["file", "line"]].assign(size=rows.iloc[:, 1].to_numpy())
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
