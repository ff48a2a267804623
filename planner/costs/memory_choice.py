"""How a stage saves memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class AsProfiled(Protocol):
    """What the costs know of how the profile saved memory."""

    @property
    def recompute(self) -> bool:
        """Whether stages recompute."""

    @property
    def offload(self) -> bool:
        """Whether optimiser state is off the chip."""

    @property
    def stage(self) -> np.ndarray:
        """The stage of each Block."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choice of each stage if they differ; otherwise empty."""


@dataclass(frozen=True)
class Choice:
    """How a stage saves memory: by recomputation, or by optimiser state off the chip."""

    recompute: bool
    offload: bool

    @classmethod
    def profiled(cls, costs: AsProfiled) -> Choice:
        """The choice with which the profile was made."""
        return cls(costs.recompute, costs.offload)

    @classmethod
    def as_profiled(cls, costs: AsProfiled, starts: Sequence[int]) -> tuple[Choice, ...]:
        """The choices of stages with these first Blocks: their own if just these were profiled."""
        if costs.choices:
            _, own = np.unique(costs.stage, return_index=True)
            if own.tolist() == list(starts):
                return costs.choices
        return (cls.profiled(costs),) * len(starts)
