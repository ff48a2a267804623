"""Where memory is fullest, with what, and how much is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd


def fullest_tiles(report: Report) -> np.ndarray:
    """Bytes of each IPU's fullest tile, gaps included, in one replica: int64[ipu]."""
    ipus = range(report.target.ipus_per_replica)
    return np.array([report.tiles(ipu)["total"].max() for ipu in ipus], dtype=np.int64)


def memory_peaks(report: Report) -> pd.DataFrame:
    """Of each IPU of a replica, its fullest tile.

    ``ipu, tile, bytes`` (gaps included), ``free`` (negative: it does not fit), ``full`` (share of
    the tile), ``always_live``, ``step`` (position at which the tile holds most) with its ``name``,
    and ``largest`` with ``largest_bytes``: what takes most of it there.
    """
    import pandas as pd

    rows = []
    for ipu in range(report.target.ipus_per_replica):
        tiles, steps = report.tiles(ipu), report.program_steps(ipu)
        tile = int(tiles["total"].to_numpy().argmax())
        row = tiles.iloc[tile]
        step = int(row["peak_step"])
        name = str(steps["name"].iloc[step]) if step < len(steps) else ""
        held = report.live_variables(ipu, step, tile)
        largest = (str(held["name"].iloc[0]), int(held["bytes"].iloc[0])) if len(held) else ("", 0)
        total, limit = int(row["total"]), report.target.bytes_per_tile
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
    """What is live on the fullest tile of an IPU when it holds most.

    `Report.live_variables` of that step and tile.
    """
    tiles = report.tiles(ipu)
    tile = int(tiles["total"].to_numpy().argmax())
    return report.live_variables(ipu, int(tiles["peak_step"].iloc[tile]), tile)
