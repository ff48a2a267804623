"""Tiles that hold more than fits, and their contents, as the compiler's error reports them."""

from __future__ import annotations

import numpy as np

from profiler.memory import CODE, Overflow, WorstTile, contents, worst_tile
from profiler.report import Report


def overflows(report: Report) -> list[Overflow]:
    """The worst tile of each IPU of a replica that does not fit (`profiler.memory.worst_tile`)."""
    overflowing = []
    target = report.target
    for ipu in range(target.ipus_per_replica):
        frame, variables = report.tiles(ipu), report.ipu_variables(ipu)
        tiles = {name: frame[name].to_numpy() for name in ("total", "peak", "peak_step")}
        is_code = np.isin(variables.category, CODE)
        code = report.peaks_of(ipu, is_code)
        code_peaks = (code.tile_peak, code.tile_peak_step)
        worst = worst_tile(tiles, code_peaks, target.bytes_per_tile, target.region0_bytes)
        if worst is not None:
            overflowing.append(_with_contents(report, ipu, worst, is_code))
    return overflowing


def _with_contents(report: Report, ipu: int, worst: WorstTile, is_code: np.ndarray) -> Overflow:
    """The overflow with what is live there then."""
    variables = report.ipu_variables(ipu)
    counted = is_code if worst.of_code else np.ones(len(variables.id), dtype=bool)
    size = np.where(counted, variables.vectors[variables.vector, worst.tile], 0)
    rows = np.flatnonzero(variables.live(worst.position) & (size > 0))
    held = report.variables.loc[variables.id[rows]]
    return Overflow(
        ipu,
        worst.tile,
        worst.position,
        worst.what,
        worst.limit,
        worst.bytes_over,
        contents(
            held["name"].tolist(),
            held["category"].tolist(),
            held["role"].tolist(),
            size[rows].tolist(),
            int(size[variables.always_live].sum()),
        ),
    )
