"""The interface to the engine that compiles for a plan (`ipu_exec.planning`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ipuscope.planner.mappings.mapping import Key, Mapping
from ipuscope.planner.mappings.phased_costs import PhasedCosts
from ipuscope.planner.mappings.plan import Obtained
from ipuscope.planner.mappings.priced import Priced


@dataclass(frozen=True)
class Settled:
    """A mapping compiled in full: the result, and the costs of its Blocks there."""

    mapping: Mapping
    obtained: Obtained
    priced: Priced | None
    phased: PhasedCosts | None = None  # of a mapping in phases with one Block a stage


class Engine(Protocol):
    """The engine that compiles (`ipu_exec.planning`)."""

    @property
    def peak(self) -> float:
        """Peak floating-point operations a second of one IPU."""

    def own(self) -> Mapping | None:
        """The script's own mapping; None where it is none that a plan could have."""

    def names(self, key: Key) -> tuple[str, ...]:
        """The model's Blocks for a key, in order. ValueError, in words, where it does not run."""

    def price(self, keys: Sequence[Key]) -> Iterator[Priced | str]:
        """The costs for each key in order, or the reason why there are none, in words."""

    def settle(self, mappings: Sequence[Mapping]) -> Iterator[Settled]:
        """Each mapping compiled in full, in order."""

    def each(self, function: Callable[..., Any], every: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """A pure function on each of these arguments, in order."""

    def ahead(self, keys: Sequence[Key], mappings: Sequence[Mapping]) -> None:
        """What is likely asked for next, to be begun where a worker is idle; no result changes."""
