"""Memory of the one IPU of a compiled case, as the rows of the vendor's memory report name it.

Total: each tile's always-live bytes and its own peak of the rest, by region, without gaps, over all
tiles. The peak of what is not always live is that of the whole chip at one step, as the liveness
report draws it. Stacks count in none: [TUT4]'s report has no room for them (1.9 kB in all on a tile
without work, where six stacks alone are 3.2 kB).

poplibs' benchmarks [PLB, tools/bench.py] add up what the liveness report lists, and the fullest
tile of byTile with gaps: on a tile that uses region 1 all of region 0 lies below it
(docs/memory-model.md#gaps). The vendor's model has vertices' code only where the tool that runs it
asks for that ([PLB, tools/*.cpp], compileIPUCode: products, convolutions and embeddings do; layers,
reductions, pooling, recurrent layers and CTC do not: bert_reduce_0's fullest tile has 888 bytes in
all). It lists no code of exchange, control or stacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def read(part: str, executable: Any) -> float:
    """Bytes of ``part``.

    "total", "without code", "with vertex code", "fullest tile", "always live" or "peak".
    """
    counted = [v for v in executable.variables if v.category != "stack"]
    if part in ("without code", "with vertex code", "fullest tile", "always live"):
        kept = "vertexCode" if part == "with vertex code" else ""
        counted = [v for v in counted if not v.category.endswith("Code") or v.category == kept]
    tiles = executable.target.tiles
    if part == "live with code":
        return float(sum(v.bytes for v in counted if v.always_live))
    if part == "always live":
        # the liveness report leaves code out ([TUT4]'s list: tensors, vertex state, worklists,
        # descriptors)
        return float(sum(v.bytes for v in counted if v.always_live))
    if part == "peak":
        moving = [v for v in counted if not v.always_live]
        return float(_peaks(moving, [np.array([v.bytes]) for v in moving], 1).sum())
    always = sum((v.tile_bytes for v in counted if v.always_live), np.zeros(tiles, np.int64))
    if part in (
        "without code",
        "with vertex code",
    ):  # maxBytesByTile of the report: of both regions at once
        moving = [v for v in counted if not v.always_live]
        return float((always + _peaks(moving, [v.tile_bytes for v in moving], tiles)).sum())
    region0, region1 = (
        _peaks(chosen, [v.tile_bytes for v in chosen], tiles)
        for chosen in (
            [v for v in counted if not v.always_live and bool(v.interleaved) == interleaved]
            for interleaved in (False, True)
        )
    )
    if part == "fullest tile":
        below = np.where(region1 > 0, executable.target.region0_bytes, 0)
        return float((np.maximum(always + region0, below) + region1).max())
    return float((always + region0 + region1).sum())


def _peaks(variables: Sequence[Any], sizes: Sequence[np.ndarray], tiles: int) -> np.ndarray:
    """The largest sum of ``sizes`` that live at once, on each tile: int64[tiles] bytes."""
    events = [(v.start, size) for v, size in zip(variables, sizes, strict=True)]
    events += [(v.stop, -size) for v, size in zip(variables, sizes, strict=True)]
    now, most = np.zeros(tiles, np.int64), np.zeros(tiles, np.int64)
    last = None
    for step, change in sorted(events, key=lambda event: event[0]):
        if step != last:
            most = np.maximum(most, now)
        now, last = now + change, step
    return np.maximum(most, now)
