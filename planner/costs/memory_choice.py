"""How a stage saves memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import product
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
    def all_profiled(cls, costs: AsProfiled) -> tuple[Choice, ...]:
        """What the profile's stages do, in any combination, cheapest first."""
        ways = costs.choices or (cls.profiled(costs),)
        again, off = (sorted(set(way)) for way in zip(*map(astuple, ways), strict=True))
        return tuple(cls(*way) for way in product(again, off))

    @classmethod
    def as_profiled(cls, costs: AsProfiled, starts: Sequence[int]) -> tuple[Choice, ...]:
        """The choices of stages with these first Blocks: each that of most of its Blocks."""
        if not costs.choices:
            return (cls.profiled(costs),) * len(starts)
        most = (np.bincount(one).argmax() for one in np.split(costs.stage, starts[1:]))
        return tuple(costs.choices[k] for k in most)

    @classmethod
    def named(cls, costs: AsProfiled, chosen: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """The choices of stages as an assignment names them: empty where no profile's differ."""
        usual = all(choice == cls.profiled(costs) for choice in chosen)
        return () if usual and not costs.choices else chosen
