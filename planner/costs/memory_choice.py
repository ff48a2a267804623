"""How a stage saves memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """How a stage saves memory: by recomputation, or by optimiser state off the chip."""

    recompute: bool
    offload: bool
