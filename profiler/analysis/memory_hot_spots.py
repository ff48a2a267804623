"""Where memory is fullest, what is stored there, and how much is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.report import Report
from ipuscope.profiler.report.frames import frame_of
from ipuscope.profiler.timeline.tile_usage import (
    CODE,
    Overflow,
    WorstTile,
    contents,
    fullest_tile,
    worst_tile,
)

if TYPE_CHECKING:
    import pandas as pd

CLOSE = 0.03  # of a tile: this near to the limit only a compile tells whether something fits


def fullest_tiles(report: Report) -> np.ndarray:
    """Bytes used on each IPU's fullest tile in one replica, its extent on overflow: int64[ipu]."""
    tiles = []
    for ipu in range(report.target.ipus_per_replica):
        of, tile = report.usage.tile_columns(ipu), fullest(report, ipu)
        tiles.append(int(of["total" if of["overflow"][tile] else "peak"][tile]))
    return np.array(tiles, dtype=np.int64)


def largest_extents(report: Report) -> np.ndarray:
    """Bytes of each IPU's largest extent of a tile, gaps included, in one replica: int64[ipu]."""
    ipus = range(report.target.ipus_per_replica)
    return np.array([report.usage.tile_columns(ipu)["total"].max() for ipu in ipus], dtype=np.int64)


def live_at_peaks(report: Report) -> pd.DataFrame:
    """``variable, bytes`` (all tiles) at each IPU's fullest step, IPU by IPU, largest first."""
    parts = []
    for ipu in range(report.target.ipus_per_replica):
        total = report.usage.live_bytes(ipu)
        which, size = report.usage.live_at(ipu, int(total.argmax()) if len(total) else 0)
        parts.append((report.usage.variables_of(ipu)["id"][which], size))
    variable, size = (np.concatenate(column) for column in zip(*parts, strict=True))
    return frame_of({"variable": variable, "bytes": size})


def fullest(report: Report, ipu: int) -> int:
    """The fullest tile of an IPU, as `profiler.timeline.tile_usage.fullest_tile` ranks them."""
    tiles = report.usage.tile_columns(ipu)
    return fullest_tile(tiles["peak"], tiles["overflow"])


def held_at_peak(report: Report, ipu: int) -> pd.DataFrame:
    """Variables live on the fullest tile of an IPU when it is fullest (`Report.live_variables`)."""
    tile = fullest(report, ipu)
    return report.live_variables(ipu, int(report.usage.tile_columns(ipu)["peak_step"][tile]), tile)


def overflows(report: Report) -> list[Overflow]:
    """The worst tile of each IPU of a replica that does not fit (`tile_usage.worst_tile`)."""
    overflowing = []
    target = report.target
    for ipu in range(target.ipus_per_replica):
        is_code = _is_code(report, ipu)
        worst = worst_tile(
            report.usage.tile_columns(ipu),
            _code_peaks(report, ipu, is_code),
            target.bytes_per_tile,
            target.region0_bytes,
        )
        if worst is not None:
            overflowing.append(_with_contents(report, ipu, worst, is_code))
    return overflowing


def most_code(report: Report, ipu: int) -> int:
    """Bytes of code on the tile of an IPU that has most."""
    return int(_code_peaks(report, ipu, _is_code(report, ipu))[0].max())


def _is_code(report: Report, ipu: int) -> np.ndarray:
    """Which of an IPU's variables are code: bool[variable]."""
    category = report.usage.ipu_variables(ipu).category
    return np.logical_or.reduce([category == one for one in CODE])


def _code_peaks(report: Report, ipu: int, is_code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most bytes of code on each tile, and at which step: int64[tile] each.

    If all code together fits region 0, whenever it is live, that sum is returned.
    """
    variables = report.usage.ipu_variables(ipu)
    together = variables.totals.of(variables.vector[is_code])
    if together.max() <= report.target.region0_bytes:
        return together, np.zeros_like(together)
    peaks = report.usage.peaks_of(ipu, is_code)
    return peaks.tile_peak, peaks.tile_peak_step


def _with_contents(report: Report, ipu: int, worst: WorstTile, is_code: np.ndarray) -> Overflow:
    """The overflow with what is live there then."""
    variables = report.usage.ipu_variables(ipu)
    counted = is_code if worst.of_code else np.ones(len(variables.id), dtype=bool)
    size = np.where(counted, variables.vectors[variables.vector, worst.tile], 0)
    rows = np.flatnonzero(variables.live(worst.position) & (size > 0))
    live = report.variables.loc[variables.id[rows]]
    return Overflow(
        worst.tile,
        worst.position,
        worst.what,
        worst.limit,
        worst.bytes_over,
        ipu,
        contents(
            live["name"].tolist(),
            live["category"].tolist(),
            live["role"].tolist(),
            size[rows].tolist(),
            int(size[variables.always_live].sum()),
        ),
    )
