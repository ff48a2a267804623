"""Whoever compiles for a plan: the engine (`ipu_exec.planning`), seen from here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from planner.mapping import Key, Mapping
from planner.plan import Obtained
from planner.priced import Priced, RingsOf


@dataclass(frozen=True)
class Settled:
    """A mapping compiled in full: what came, and the costs of its Blocks as they are there."""

    mapping: Mapping
    obtained: Obtained
    priced: Priced | None


class Engine(Protocol):
    """Whoever compiles (`ipu_exec.planning`)."""

    @property
    def rings(self) -> RingsOf:
        """What a ring of replicas costs."""

    @property
    def peak(self) -> float:
        """Floating-point operations a second of one IPU, at the most."""

    def price(self, keys: Sequence[Key]) -> Iterator[Priced | str]:
        """The costs for each key in order; or why there are none, in words."""

    def settle(self, mappings: Sequence[Mapping]) -> Iterator[Settled]:
        """Each mapping compiled in full, in order."""
