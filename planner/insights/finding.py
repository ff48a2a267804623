"""Insights, and the cycles of the critical path that each accounts for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.planner.levers.waits import Waits
from ipuscope.profiler.units import sentence

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Insight:
    """One finding.

    ``gain_cycles`` a weight update and ``gain_bytes`` on the fullest tile are 0 where unknown;
    ``at_most``: the cycles are a bound, and no change is known that gains them; ``estimate``: they
    rest on estimated costs (`ipuscope.planner.costs.estimates`).

    ``where`` is a page of the viewer with its parameters; ``action`` what to change, ``code`` the
    statements to write or the commands to ask (none: `action` says it all), and ``change`` the same
    for programs (empty: nothing that has a name). ``waits``: the cycles of the critical path that
    it is about (None: none). ``changes_batch``: a weight update then has other samples than now.
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

    @property
    def change_in_words(self) -> str:
        """``action`` as a sentence that ends, or leads to ``code``."""
        return f"{sentence(self.action)}{':' if self.code else '.'}"


def accounted(path: pd.DataFrame, waits: list[Waits]) -> float:
    """Share of the critical path's cycles that these speak of, each cycle once: 0..1."""
    known = np.zeros(len(path), dtype=bool)
    for one in waits:
        known |= one.of(path)
    cycles = path["cycles"].to_numpy()
    return float(cycles[known].sum() / max(1, cycles.sum()))
