"""The levers that are pulled: changes of a script's settings, for a prediction or a compile."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from ipuscope.planner.predict.what_if import Assignment

IO_TILES = 32  # that overlapped host I/O gets: the fewest
STATES = ("on-chip", "off-chip", "in-parts")


def divisors(number: int) -> list[int]:
    """All divisors, ascending: the micro-batches of so many samples."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


@dataclass(frozen=True)
class Levers:
    """The settings to change; a default leaves a setting as it is.

    ``half``: the precision, False: float32; ``micro_batch``: samples of one replica's;
    ``micro_batches``: of a weight update (a device iteration in inference); ``outputs``: "all",
    "final" (once an update) or "loss" (only that, once); ``state``: of `STATES`, where optimiser
    state is stored; ``overlap``: host I/O beside the compute of other device iterations;
    ``split``: stages and their IPUs; ``options``: by dotted name, with the number each is set to.
    """

    half: bool | None = None
    micro_batch: int = 0
    micro_batches: int = 0
    replicas: int = 0
    recompute: bool | None = None
    outputs: str = ""
    state: str = ""
    overlap: bool = False
    split: Assignment | None = None
    options: tuple[tuple[str, int], ...] = ()

    def __bool__(self) -> bool:
        return self != Levers()

    @property
    def pulled(self) -> tuple[str, ...]:
        """Names of the levers that are pulled."""
        unset = Levers()
        names = (one.name for one in fields(self))
        return tuple(name for name in names if getattr(self, name) != getattr(unset, name))

    def without(self, name: str) -> Levers:
        """The levers without this one."""
        return replace(self, **{name: getattr(Levers(), name)})

    def over(self, before: Levers) -> Levers:
        """These levers, with the settings of ``before`` for those not pulled."""
        return replace(before, **{name: getattr(self, name) for name in self.pulled})
