"""What of `profiler.rebalance.costs.Costs` decides the memory of stages.

A protocol, so that the costs can be made with the memory that was measured.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from profiler.rebalance.block_cycles import BlockCycles
from profiler.rebalance.block_memory import BlockMemory
from profiler.rebalance.cuts import Cuts
from profiler.rebalance.machine_costs import MachineCosts


class HeldCosts(Protocol):
    """`Costs` by its own names, as far as tiles are concerned."""

    def __len__(self) -> int:
        """Blocks."""

    def stash_bytes(
        self, first: int | np.ndarray, last: int | np.ndarray, recompute: bool
    ) -> np.ndarray:
        """Of a micro-batch, all tiles."""

    @property
    def stage(self) -> np.ndarray:
        """As in `Costs`."""

    @property
    def ipus(self) -> tuple[int, ...]:
        """As in `Costs`."""

    @property
    def machine(self) -> MachineCosts:
        """As in `Costs`."""

    @property
    def cycles(self) -> BlockCycles:
        """As in `Costs`."""

    @property
    def memory(self) -> BlockMemory:
        """As in `Costs`."""

    @property
    def cuts(self) -> Cuts:
        """As in `Costs`."""

    @property
    def training(self) -> bool:
        """As in `Costs`."""

    @property
    def pipelined(self) -> bool:
        """As in `Costs`."""

    @property
    def recompute(self) -> bool:
        """As in `Costs`."""

    @property
    def recompute_alone(self) -> bool:
        """As in `Costs`."""

    @property
    def offload(self) -> bool:
        """As in `Costs`."""

    @property
    def choices(self) -> tuple[Any, ...]:
        """As in `Costs`."""
