"""What fills the tiles of an IPU, each number under one name.

*Live* at a step: always-live variables, and those of the others whose life spans the step. *Used*:
the most that is live on a tile at one step; *free*: what the tile has beyond it. Tiles are ranked
by what they use (`fullest_tile`). None of these counts gaps. The *extent* ("including gaps"): the
highest address that a tile needs; each of its two regions is packed by itself, and region 1 lies
above the whole of region 0. A model fits if no extent is beyond the tile; the rest is the
*overflow*. Units: bytes; arrays are int64 over tiles unless stated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from ipuscope.profiler import units
from ipuscope.profiler.enums import Role
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.timeline import liveness
from ipuscope.profiler.timeline.liveness import Intervals

CODE = (  # categories of what must lie in region 0
    "vertexCode",
    "controlCode",
    "internalExchangeCode",
    "globalExchangeCode",
    "hostExchangeCode",
)
CODE_REGION = "region 0 (the only place for code)"
MOST_NAMED = 5  # things named on a tile that does not fit

# What bytes are for, from the model's own to the machine's: (name, roles or categories)
KINDS = (
    ("weights and buffers", (Role.WEIGHT, Role.BUFFER)),
    ("optimiser state", (Role.OPTIMISER_STATE,)),
    ("accumulators and gradients", (Role.ACCUMULATOR, Role.GRADIENT)),
    ("activations and inputs", (Role.ACTIVATION, Role.INPUT)),
    ("stash", (Role.STASH,)),
    ("temporaries", (Role.TEMPORARY,)),
    ("constants", ("constant",)),
    ("vertex code and state", ("vertexCode", "vertexInstanceState", "vertexFieldData")),
    ("control code and stack", ("controlCode", "controlId", "controlTable", "stack")),
    ("exchange code", ("internalExchangeCode", "globalExchangeCode", "hostExchangeCode")),
    ("streams", ("stream buffer", "hostExchangePacketHeader", "globalExchangePacketHeader")),
    ("other", ()),
)
_KIND_OF = {word: at for at, (_, words) in enumerate(KINDS) for word in words}


def kind_of(category: str, role: str) -> int:
    """The index into ``KINDS`` of a variable of this category and role."""
    return _KIND_OF.get(role, _KIND_OF.get(category, len(KINDS) - 1))


@dataclass(frozen=True, slots=True)
class Contents:
    """What is live on a tile at one step, the largest first. Units: bytes."""

    always_live: int
    kinds: tuple[tuple[str, int], ...]  # (name of ``KINDS``, bytes), all of them
    largest: tuple[tuple[str, int], ...]  # (variable's name, bytes), `MOST_NAMED` at the most

    def in_words(self) -> str:
        """Three sentences for an error of memory."""
        kinds = "; ".join(f"{name} {units.size(size)}" for name, size in self.kinds)
        things = "; ".join(f"{name} {units.size(size)}" for name, size in self.largest)
        count = "five largest things" if len(self.largest) == MOST_NAMED else "largest things"
        return (
            f"{_kib(self.always_live)} are always live. By kind: {kinds}. The {count} there:"
            f" {things}"
        )


def contents(
    names: Sequence[str],
    categories: Sequence[str],
    roles: Sequence[str],
    sizes: Sequence[int],
    always_live: int,
) -> Contents:
    """The contents of a tile from its variables that are live then. Units: bytes."""
    by_kind = [0] * len(KINDS)
    for category, role, size in zip(categories, roles, sizes, strict=True):
        by_kind[kind_of(category, role)] += size
    kinds = ((name, size) for (name, _), size in zip(KINDS, by_kind, strict=True) if size)
    named = _falling(zip(names, sizes, strict=True))[:MOST_NAMED]
    return Contents(always_live, _falling(kinds), named)


def _falling(sizes: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """(name, bytes), the largest first; of equal ones, by name."""
    return tuple(sorted(sizes, key=lambda one: (-one[1], one[0])))


def what_it_needs(bytes_over: int, limit: int, what: str) -> str:
    """How much more a tile needs than it has, "needs 1,277 of 624 KiB of tile memory"."""
    if bytes_over < 1024:  # both would read alike
        return f"needs {units.count(bytes_over, 'byte')} more than the {_kib(limit)} of {what}"
    needed = _kib(limit + bytes_over).removesuffix(" KiB")
    return f"needs {needed} of {_kib(limit)} of {what}"


def _kib(size: int) -> str:
    """KiB with a decimal unless it is whole."""
    return f"{size / 1024:,.1f}".removesuffix(".0") + " KiB"


@dataclass(frozen=True, slots=True)
class WorstTile:
    """The tile of an IPU that is furthest beyond a limit, and when. Units: bytes."""

    tile: int
    position: int  # of the step among those of the IPU
    what: str  # "tile memory", or the region that is too small
    limit: int
    bytes_over: int

    @property
    def of_code(self) -> bool:
        """Whether code alone exceeds the memory."""
        return self.what == CODE_REGION


@dataclass(frozen=True, slots=True)
class Overflow(WorstTile):
    """A tile with more than fits, at its worst step (``position`` among its IPU's)."""

    ipu: int
    contents: Contents  # of what counts there

    def __str__(self) -> str:
        """``tile 266 of IPU 0 needs 214.6 of 208 KiB of region 0 (the only place for code)``."""
        needs = what_it_needs(self.bytes_over, self.limit, self.what)
        return f"tile {self.tile} of IPU {self.ipu} {needs}"


def worst_tile(
    tiles: Mapping[str, np.ndarray],
    code: tuple[np.ndarray, np.ndarray],
    bytes_per_tile: int,
    region0_bytes: int,
) -> WorstTile | None:
    """The tile of an IPU that is furthest beyond its limit; None if everything fits.

    There are two limits (docs/memory-model.md#gaps): the whole tile for the extent, gaps included,
    and region 0, the only place for code. ``tiles`` has ``total``, ``peak`` and ``peak_step`` of
    `tile_totals`; ``code`` the most bytes of code on each tile, and at which step.
    """
    extent, used, at = tiles["total"], tiles["peak"], tiles["peak_step"]
    worst: WorstTile | None = None
    for what, nbytes, when, limit in (
        ("tile memory", extent, at, bytes_per_tile),
        (CODE_REGION, *code, region0_bytes),
    ):
        tile = int(nbytes.argmax())
        over = int(nbytes[tile]) - limit
        if over > 0 and (worst is None or over > worst.bytes_over):
            gaps = ", gaps included" if nbytes is extent and extent[tile] > used[tile] else ""
            worst = WorstTile(tile, int(when[tile]), what + gaps, limit, over)
    return worst


@dataclass(frozen=True, kw_only=True)
class IpuVariables(Intervals):
    """The variables of one IPU as columns."""

    ipu: int
    steps: int  # program steps of the IPU
    id: np.ndarray
    category: np.ndarray
    role: np.ndarray
    interleaved: np.ndarray  # bool
    always_live: np.ndarray  # bool
    totals: liveness.Totals

    @cached_property
    def alike(self) -> bytes:
        """A digest, equal for IPUs with the same contents at each step, as with equal layers."""
        parts = (self.interleaved, self.always_live, self.start, self.stop, self.vector)
        digest = blake2b(f"{self.steps} {len(self.id)}".encode(), digest_size=16)
        for part in parts:
            digest.update(part.tobytes())
        return digest.digest()

    @property
    def intervals(self) -> Intervals:
        """The intervals of variables that are not always live."""
        return self.where(~self.always_live)

    def intervals_of(self, mask: np.ndarray) -> Intervals:
        """The intervals of those selected by ``mask`` that are not always live."""
        return self.where(~self.always_live & mask)

    def always(self, mask: np.ndarray | None = None) -> np.ndarray:
        """Always-live bytes over tiles, of the variables selected by ``mask``."""
        chosen = self.always_live if mask is None else self.always_live & mask
        return self.totals.of(self.vector[chosen])

    def live(self, step: int) -> np.ndarray:
        """Mask of the variables live at a step, always-live ones included."""
        return self.always_live | super().live(step)

    def peaks(self, region: bool | None = None) -> liveness.Peaks:
        """Peaks over all variables, or over those of one region (True: the interleaved one)."""
        mask = np.ones(len(self.id), dtype=bool) if region is None else self.interleaved == region
        return liveness.peaks(self.intervals_of(mask), self.steps, self.always(mask))


def including_gaps(used: np.ndarray, interleaved: np.ndarray, region0_bytes: int) -> np.ndarray:
    """Bytes a tile takes with gaps: one that uses region 1 counts all of region 0 below it.

    ``used``: the most that is live at one step; ``interleaved``: the most of that in region 1.
    [TUT4]: 1,400 tiles x (212,992 + 6,400) where 36 kB and 6,400 B were in use. What does not fit
    into region 0 goes on above it, among what is interleaved: variables that are not live at one
    time share addresses, whichever region they need (docs/memory-model.md#gaps).
    """
    return np.maximum(used, np.where(interleaved > 0, region0_bytes + interleaved, 0))


def tile_totals(
    variables: IpuVariables,
    region0_bytes: int,
    bytes_per_tile: int,
    peaks: Callable[[bool | None], liveness.Peaks] | None = None,
) -> dict[str, np.ndarray]:
    """The columns of ``Report.tiles``.

    ``total_excluding_gaps`` and ``peak``: what the tile uses, first reached at ``peak_step``;
    ``total``: its extent; ``overflow``: the extent beyond the tile; ``free``: the tile beyond what
    it uses. ``peaks``: `IpuVariables.peaks`, if already computed.
    """
    peaks = peaks or variables.peaks
    both, interleaved = peaks(None), peaks(True)
    always = variables.always()
    total = including_gaps(both.tile_peak, interleaved.tile_peak, region0_bytes)
    return columns_of_tiles(total, both.tile_peak, always, both.tile_peak_step, bytes_per_tile)


def columns_of_tiles(
    total: np.ndarray,
    peak: np.ndarray,
    always_live: np.ndarray,
    peak_step: np.ndarray,
    bytes_per_tile: int,
) -> dict[str, np.ndarray]:
    """The columns of ``Report.tiles`` from those that the others follow from."""
    return {
        "tile": np.arange(len(total)),
        "total": total,
        "total_excluding_gaps": peak,
        "always_live": always_live,
        "not_always_live_peak": peak - always_live,
        "peak": peak,
        "peak_step": peak_step,
        "free": np.maximum(bytes_per_tile - peak, 0),
        "overflow": np.maximum(total - bytes_per_tile, 0),
    }


def fullest_tile(used: np.ndarray, overflow: np.ndarray) -> int:
    """The tile that uses most (on overflow: with the largest overflow); the first of several."""
    ranked = overflow if overflow.any() else used
    return int(ranked.argmax())


def by_kind(variables: IpuVariables, step: int) -> list[tuple[str, str, int, int]]:
    """What is live at a step, largest first: (category, role, bytes, bytes on the fullest tile)."""
    import pandas as pd

    live = variables.live(step)
    (category, categories), (role, roles) = (
        pd.factorize(names[live]) for names in (variables.category, variables.role)
    )
    vector, kind = variables.vector[live], category * len(roles) + role
    rows = []
    for one in np.unique(kind).tolist():
        tiles = liveness.total(variables.vectors, vector[kind == one])
        names = str(categories[one // len(roles)]), str(roles[one % len(roles)])
        rows.append((*names, int(tiles.sum()), int(tiles.max(initial=0))))
    rows.sort()
    return sorted(rows, key=lambda row: -row[2])
