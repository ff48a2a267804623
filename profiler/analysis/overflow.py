"""Tiles that hold more than fits, and their contents, as the compiler's error reports them."""

from __future__ import annotations

import numpy as np

from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline.tile_usage import CODE, Overflow, WorstTile, contents, worst_tile


def overflows(report: Report) -> list[Overflow]:
    """The worst tile of each IPU of a replica that does not fit (`tile_usage.worst_tile`)."""
    overflowing = []
    target = report.target
    for ipu in range(target.ipus_per_replica):
        is_code = _is_code(report, ipu)
        worst = worst_tile(
            report.tile_columns(ipu),
            _code_peaks(report, ipu, is_code),
            target.bytes_per_tile,
            target.region0_bytes,
        )
        if worst is not None:
            overflowing.append(_with_contents(report, ipu, worst, is_code))
    return overflowing


def _is_code(report: Report, ipu: int) -> np.ndarray:
    """Which of an IPU's variables are code: bool[variable]."""
    category = report.ipu_variables(ipu).category
    code: np.ndarray = np.logical_or.reduce([category == one for one in CODE])
    return code


def _code_peaks(report: Report, ipu: int, is_code: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most bytes of code on each tile, and at which step: int64[tile] each.

    Where all code together is within region 0, whenever it is live, that is what is returned.
    """
    variables = report.ipu_variables(ipu)
    together = variables.totals.of(variables.vector[is_code])
    if together.max() <= report.target.region0_bytes:
        return together, np.zeros_like(together)
    peaks = report.peaks_of(ipu, is_code)
    return peaks.tile_peak, peaks.tile_peak_step


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
