"""Where memory is fullest, what is stored there, and how much is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.report import Report
from ipuscope.profiler.report.frames import frame_of
from ipuscope.profiler.timeline.tile_usage import fullest_tile

if TYPE_CHECKING:
    import pandas as pd


CLOSE = 0.03  # of a tile: so near to its end only a compile says whether something fits


def fullest_tiles(report: Report) -> np.ndarray:
    """Bytes that each IPU's fullest tile uses, in one replica: int64[ipu].

    The extent for an IPU that overflows.
    """
    tiles = []
    for ipu in range(report.target.ipus_per_replica):
        of, tile = report.tile_columns(ipu), fullest(report, ipu)
        tiles.append(int(of["total" if of["overflow"][tile] else "peak"][tile]))
    return np.array(tiles, dtype=np.int64)


def largest_extents(report: Report) -> np.ndarray:
    """Bytes of each IPU's largest extent of a tile, gaps included, in one replica: int64[ipu]."""
    ipus = range(report.target.ipus_per_replica)
    return np.array([report.tile_columns(ipu)["total"].max() for ipu in ipus], dtype=np.int64)


def live_at_peaks(report: Report) -> pd.DataFrame:
    """``variable, bytes`` (over all tiles) at the step at which each IPU of a replica holds most.

    IPU by IPU, the largest first.
    """
    parts = []
    for ipu in range(report.target.ipus_per_replica):
        total = report.live_bytes(ipu)
        which, size = report.live_at(ipu, int(total.argmax()) if len(total) else 0)
        parts.append((report.variables_of(ipu)["id"][which], size))
    variable, size = (np.concatenate(column) for column in zip(*parts, strict=True))
    return frame_of({"variable": variable, "bytes": size})


def fullest(report: Report, ipu: int) -> int:
    """The fullest tile of an IPU, as `profiler.timeline.tile_usage.fullest_tile` ranks them."""
    tiles = report.tile_columns(ipu)
    return fullest_tile(tiles["peak"], tiles["overflow"])


def memory_peaks(report: Report) -> pd.DataFrame:
    """The fullest tile of each IPU of a replica.

    ``ipu, tile, bytes`` (used, or the extent where that overflows), ``free`` (negative: it does not
    fit), ``full`` (share of the tile), ``always_live``, ``step`` (position at which the tile holds
    most) with its ``name``, and ``largest`` with ``largest_bytes``: the largest item there.
    """
    import pandas as pd

    rows = []
    for ipu in range(report.target.ipus_per_replica):
        columns, steps = report.tile_columns(ipu), report.program_steps(ipu)
        tile = fullest(report, ipu)
        row = {name: values[tile] for name, values in columns.items()}
        step = int(row["peak_step"])
        name = str(steps["name"].iloc[step]) if step < len(steps) else ""
        held = report.live_variables(ipu, step, tile)
        largest = (str(held["name"].iloc[0]), int(held["bytes"].iloc[0])) if len(held) else ("", 0)
        total = int(row["total"] if row["overflow"] else row["peak"])
        limit = report.target.bytes_per_tile
        rows.append(
            (
                ipu,
                tile,
                total,
                limit - total,
                total / limit,
                int(row["always_live"]),
                step,
                name,
                *largest,
            )
        )
    names = [
        "ipu",
        "tile",
        "bytes",
        "free",
        "full",
        "always_live",
        "step",
        "name",
        "largest",
        "largest_bytes",
    ]
    return pd.DataFrame(rows, columns=pd.Index(names))


def held_at_peak(report: Report, ipu: int) -> pd.DataFrame:
    """Variables live on the fullest tile of an IPU when it holds most.

    `Report.live_variables` of that step and tile.
    """
    tile = fullest(report, ipu)
    return report.live_variables(ipu, int(report.tile_columns(ipu)["peak_step"][tile]), tile)
