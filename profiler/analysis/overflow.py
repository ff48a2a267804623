"""Which tile holds more than it has, and with what: the compiler's error says the same of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profiler import liveness
from profiler.memory import CODE, CODE_REGION, IpuVariables, largest
from profiler.report import Report

WHOLE = "tile memory"


@dataclass(frozen=True, slots=True)
class Overflow:
    """A tile beyond what it has, at its worst step. Units: bytes."""

    ipu: int
    tile: int
    position: int
    what: str  # "tile memory", or the region that is too small
    limit: int
    bytes_over: int
    always_live: int  # of what counts there
    largest: tuple[tuple[str, int], ...]  # (name, bytes) of the largest things live there


def overflows(report: Report) -> list[Overflow]:
    """Of each IPU of a replica that does not fit, its worst tile.

    As `ipu_exec.compiler.overflow.find_overflow` finds it: over the whole tile, or over region 0,
    the only place for code.
    """
    overflowing = []
    for ipu in range(report.target.ipus_per_replica):
        over = list(_of_ipu(report, ipu))
        if over:
            overflowing.append(max(over, key=lambda one: one.bytes_over))
    return overflowing


def _of_ipu(report: Report, ipu: int) -> Iterator[Overflow]:
    target, variables = report.target, report.ipu_variables(ipu)
    everything = np.ones(len(variables.id), dtype=bool)
    tiles = report.tiles(ipu)
    tile = int(tiles["overflow"].to_numpy().argmax())
    step, over = int(tiles["peak_step"].iloc[tile]), int(tiles["overflow"].iloc[tile])
    if over > 0:
        place = (ipu, tile, step, WHOLE, target.bytes_per_tile, over)
        yield Overflow(*place, *_live(report, variables, everything, tile, step))
    is_code = np.isin(variables.category, CODE)
    code = liveness.peaks(
        variables.intervals_of(is_code), variables.steps, variables.always(is_code)
    )
    tile = int(code.tile_peak.argmax())
    over = int(code.tile_peak[tile]) - target.region0_bytes
    if over > 0:
        step = int(code.tile_peak_step[tile])
        place = (ipu, tile, step, CODE_REGION, target.region0_bytes, over)
        yield Overflow(*place, *_live(report, variables, is_code, tile, step))


def _live(
    report: Report, variables: IpuVariables, counted: np.ndarray, tile: int, step: int
) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Bytes that are always live, and the largest things that are live."""
    size = np.where(counted, variables.vectors[variables.vector, tile], 0)
    rows = np.flatnonzero(variables.live(step) & (size > 0))
    names = report.variables.loc[variables.id[rows], "name"].tolist()
    always = int(size[variables.always_live].sum())
    return always, largest(zip(names, size[rows].tolist(), strict=True))
