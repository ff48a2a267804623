"""The part of the critical path that a finding is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.enums import PipelinePhase

if TYPE_CHECKING:
    import pandas as pd

WORK = ("compute", "exchange on chip", "sync", "stash")  # causes of a stage's own cycles


@dataclass(frozen=True)
class Waits:
    """Rows of `critical_path.critical_path` whose values are all among these; () matches any."""

    causes: tuple[str, ...] = ()
    phases: tuple[PipelinePhase, ...] = ()
    directions: tuple[str, ...] = ()
    stages: tuple[int, ...] = ()
    ops: tuple[int, ...] = ()

    def of(self, path: pd.DataFrame) -> np.ndarray:
        """The rows that match: bool[row]."""
        chosen = np.ones(len(path), dtype=bool)
        for column, values in (
            ("cause", self.causes),
            ("phase", self.phases),
            ("direction", self.directions),
            ("stage", self.stages),
            ("op", self.ops),
        ):
            if values:
                chosen &= path[column].isin(values).to_numpy()
        return chosen
