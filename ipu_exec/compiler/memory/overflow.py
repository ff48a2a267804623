"""Whether the program fits: the peak bytes of each tile, and the worst tile over a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipu_exec.machine import Target
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import liveness
from ipuscope.profiler.timeline.tile_usage import (
    CODE,
    Overflow,
    WorstTile,
    contents,
    including_gaps,
    worst_tile,
)


@dataclass(frozen=True, slots=True)
class TileBytes:
    """The peak bytes of each tile of an IPU, and the first step with that many, over tiles."""

    ipu: int
    variables: Sequence[records.Variable]
    used: np.ndarray  # of both regions together
    used_at: np.ndarray
    always: np.ndarray  # of it always live
    total: np.ndarray  # the extent, including gaps (`ipuscope.profiler.timeline.tile_usage`)


def tile_bytes(variables: Sequence[records.Variable], target: Target) -> list[TileBytes]:
    """Peak bytes by IPU that has variables."""
    per_ipu = []
    for ipu in sorted({variable.ipu for variable in variables}):
        here = [variable for variable in variables if variable.ipu == ipu]
        used, used_at, always = _peaks(here, target.tiles)
        interleaved = _peaks([v for v in here if v.interleaved], target.tiles)[0]
        total = including_gaps(used, interleaved, target.region0_bytes)
        per_ipu.append(TileBytes(ipu, here, used, used_at, always, total))
    return per_ipu


def tile_rows(tiles: list[TileBytes], target: Target) -> records.Rows:
    """The profile's rows for the tiles of all IPUs."""
    ipus = np.repeat([one.ipu for one in tiles], target.tiles)
    numbers = np.tile(np.arange(target.tiles), len(tiles))
    of_tiles = [(one.total, one.used, one.always) for one in tiles]
    total, used, always = map(np.concatenate, zip(*of_tiles, strict=True))
    over = np.maximum(total - target.bytes_per_tile, 0)
    columns = (column.tolist() for column in (ipus, numbers, total, used, always, over))
    names = records.TileMemory.__slots__
    return records.Rows(records.TileMemory, dict(zip(names, columns, strict=True)))


def find_overflow(tiles: list[TileBytes], target: Target) -> Overflow | None:
    """The worst tile over a limit, or None (`ipuscope.profiler.timeline.tile_usage` decides)."""
    overflowing = []
    for one in tiles:
        code = _peaks([v for v in one.variables if v.category in CODE], target.tiles)[:2]
        columns = {"total": one.total, "peak": one.used, "peak_step": one.used_at}
        worst = worst_tile(columns, code, target.bytes_per_tile, target.region0_bytes)
        if worst is not None:
            overflowing.append(_with_contents(one, worst))
    return max(overflowing, key=lambda over: over.bytes_over, default=None)


def block_bytes(
    variables: Sequence[records.Variable], names: Sequence[str], ipu: int
) -> list[tuple[str, int]]:
    """(name, bytes over all tiles) of each Block of this IPU by itself, the largest first.

    Its own always-live variables, and the most of its others that are live at one step.
    """
    always: dict[int, int] = {}
    changes: dict[int, list[tuple[int, int]]] = {}
    for one in variables:
        if one.ipu != ipu or not 0 <= one.block < len(names):
            continue
        if one.always_live:
            always[one.block] = always.get(one.block, 0) + one.bytes
        else:
            edges = [(one.start, one.bytes), (one.stop, -one.bytes)]
            changes.setdefault(one.block, []).extend(edges)
    for block, edges in changes.items():
        live = np.cumsum([nbytes for _, nbytes in sorted(edges)])  # ends first
        always[block] = always.get(block, 0) + max(0, int(live.max()))
    sizes = [(names[block], nbytes) for block, nbytes in always.items()]
    return sorted(sizes, key=lambda one: -one[1])


def _with_contents(ipu: TileBytes, worst: WorstTile) -> Overflow:
    """The worst tile's overflow, with what is live there then."""
    tile, at = worst.tile, worst.position
    counted = [v for v in ipu.variables if not worst.of_code or v.category in CODE]
    live = [v for v in counted if v.start <= at < v.stop and v.tile_bytes[tile]]
    live_contents = contents(
        [v.name for v in live],
        [v.category for v in live],
        [v.role for v in live],
        [int(v.tile_bytes[tile]) for v in live],
        sum(int(v.tile_bytes[tile]) for v in live if v.always_live),
    )
    return Overflow(tile, at, worst.what, worst.limit, worst.bytes_over, ipu.ipu, live_contents)


def _peaks(
    variables: Sequence[records.Variable], tiles: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per tile, the most bytes live at one step, the first such step, and the always-live bytes."""
    vectors = {id(one.tile_bytes): one.tile_bytes for one in variables}
    always = np.zeros(tiles, np.int64)
    for key, times in Counter(id(v.tile_bytes) for v in variables if v.always_live).items():
        always += times * vectors[key]
    passing = [one for one in variables if not one.always_live]
    if not passing:
        return always, np.zeros(tiles, np.int64), always
    row = {key: at for at, key in enumerate(dict.fromkeys(id(v.tile_bytes) for v in passing))}
    lives = [(one.start, one.stop, row[id(one.tile_bytes)]) for one in passing]
    start, stop, vector = np.array(lives).T
    intervals = liveness.Intervals(start, stop, vector, [vectors[key] for key in row])
    changes = liveness.changes_of(intervals, -1, stop.max())
    peak, position = liveness.tile_peaks(intervals.vectors, *changes)
    return always + peak, position, always
