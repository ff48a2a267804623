"""What a large profile holds worked out of its memory: of tiles, steps and kinds.

`Report` asks here before it adds up variables. An answer is taken only where it has as many entries
as there are tiles or steps, and numbers that can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.profiler.held import INT, TEXT

LIVE, KINDS, FULLEST_AT, MAP = "live bytes", "bytes by kind", "fullest tile of steps", "first map"
VARIABLES = "variables of the first IPU"
OF_TILES = ("total", "peak", "always_live", "peak_step")
OF_KINDS = {"ipu": INT, "category": TEXT, "role": TEXT, "bytes": INT, "max_tile_bytes": INT}
OF_VARIABLES = {
    **dict.fromkeys(("id", "op", "block", "always_live", "start", "stop", "interleaved"), INT),
    **dict.fromkeys(("category", "role"), TEXT),
}
ON_TILE = "bytes"  # of each variable, on the fullest tile
FIRST_SHAPE = (560, 300)  # steps x tiles of the map that a page shows first

ByKind = list[tuple[str, str, int, int]]


class Source(Protocol):
    """Where the answers are: a report."""

    @property
    def target(self) -> records.Target:
        """The machine."""

    @property
    def steps_of_ipus(self) -> np.ndarray:
        """Program steps of each IPU."""

    def held_columns(self, name: str, kinds: Mapping[str, str]) -> dict[str, np.ndarray] | None:
        """Columns of an answer that the file holds."""


def live_bytes(report: Source, ipu: int) -> np.ndarray | None:
    """`Report.live_bytes`: int64[step]; None where the file does not hold it."""
    behind = np.cumsum(report.steps_of_ipus)
    columns = report.held_columns(LIVE, {"bytes": INT})
    if columns is None or not _sums(columns["bytes"], int(behind[-1]) if len(behind) else 0):
        return None
    return columns["bytes"][behind[ipu] - report.steps_of_ipus[ipu] : behind[ipu]]


def kinds(report: Source) -> dict[int, ByKind] | None:
    """What is live at the fullest step of each IPU, as `memory.by_kind` gives it."""
    columns = report.held_columns(KINDS, OF_KINDS)
    if columns is None:
        return None
    ipu, size, most = (columns[name] for name in ("ipu", "bytes", "max_tile_bytes"))
    if len(ipu) and (ipu.min() < 0 or ipu.max() >= report.target.ipus_per_replica):
        return None
    if size.min(initial=0) < 0 or most.min(initial=0) < 0:
        return None
    rows: dict[int, ByKind] = {one: [] for one in range(report.target.ipus_per_replica)}
    for one, *row in zip(*(columns[name].tolist() for name in OF_KINDS), strict=True):
        rows[one].append((row[0], row[1], row[2], row[3]))
    return rows


def tiles(report: Source, ipu: int) -> dict[str, np.ndarray] | None:
    """``total``, ``peak``, ``always_live`` and ``peak_step`` of `memory.tile_totals`."""
    columns = report.held_columns(of_tiles(ipu), dict.fromkeys(OF_TILES, INT))
    if columns is None or any(len(one) != report.target.tiles_per_ipu for one in columns.values()):
        return None
    total, peak, always, step = (columns[name] for name in OF_TILES)
    if min(one.min(initial=0) for one in (peak - always, always, step, total)) < 0:
        return None
    steps = max(1, int(report.steps_of_ipus[ipu]))
    return columns if step.max(initial=0) < steps else None


def fullest_of_steps(report: Source, ipu: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The fullest tile at each step, and its bytes: of the IPU that is shown first."""
    if ipu:
        return None
    names = ("max_tile", "max_tile_bytes")
    columns = report.held_columns(FULLEST_AT, dict.fromkeys(names, INT))
    if columns is None:
        return None
    tile, size = (columns[name] for name in names)
    steps, most = int(report.steps_of_ipus[ipu]), report.target.tiles_per_ipu
    if not _sums(tile, steps) or not _sums(size, steps) or tile.max(initial=0) >= most:
        return None
    return tile, size


def first_map(report: Source) -> np.ndarray | None:
    """`Report.liveness_map` of all of the first IPU in `FIRST_SHAPE`."""
    columns = report.held_columns(MAP, {"bytes": INT})
    steps, most = int(report.steps_of_ipus[0]), report.target.tiles_per_ipu
    shape = min(steps, FIRST_SHAPE[0]), min(most, FIRST_SHAPE[1])
    if columns is None or not _sums(columns["bytes"], shape[0] * shape[1]):
        return None
    return columns["bytes"].reshape(shape)


def variables(report: Source, ipu: int) -> dict[str, np.ndarray] | None:
    """`Report.variables_of` the first IPU, and their bytes on its fullest tile."""
    columns = None if ipu else report.held_columns(VARIABLES, {**OF_VARIABLES, ON_TILE: INT})
    if columns is None:
        return None
    most = {"start": int(report.steps_of_ipus[ipu]), "always_live": 1, "interleaved": 1}
    most["stop"] = most["start"]
    counted = [columns[name] for name in ("id", ON_TILE, *most)]
    if min(values.min(initial=0) for values in counted) < 0:
        return None
    fits = all(columns[name].max(initial=0) <= limit for name, limit in most.items())
    return columns if fits else None


def of_tiles(ipu: int) -> str:
    """The name of the answer of an IPU's tiles."""
    return f"tiles of IPU {ipu}"


def _sums(values: np.ndarray, length: int) -> bool:
    """Whether there are as many, and none is below 0."""
    return len(values) == length and int(values.min(initial=0)) >= 0
