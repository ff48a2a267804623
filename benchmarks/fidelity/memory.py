"""Memory of the one IPU of a compiled case, as the rows of the vendor's memory report name it.

Total: each tile's always-live bytes and its own peak of the rest, by region, without gaps, over all
tiles. The peak of what is not always live is that of the whole chip at one step, as the liveness
report draws it. Stacks count in none: [TUT4]'s report has no room for them (1.9 kB in all on a tile
without work, where six stacks alone are 3.2 kB).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def read(part: str, executable: Any) -> float:
    """Bytes of ``part``: "total", "always live" or "peak"."""
    variables = [v for v in executable.variables if v.category != "stack"]
    steps = max(v.stop for v in variables)
    always = sum(
        (v.tile_bytes for v in variables if v.always_live),
        np.zeros(executable.target.tiles, np.int64),
    )
    if part == "always live":
        # the liveness report leaves code out ([TUT4]'s list: tensors, vertex state, worklists,
        # descriptors)
        return float(
            sum(v.bytes for v in variables if v.always_live and not v.category.endswith("Code"))
        )
    if part == "peak":
        live = np.zeros(steps + 1, np.int64)
        for v in variables:
            if not v.always_live:
                live[v.start] += v.bytes
                live[v.stop] -= v.bytes
        return float(np.cumsum(live).max())
    peak = np.zeros_like(always)
    for interleaved in (False, True):
        region = [v for v in variables if not v.always_live and bool(v.interleaved) == interleaved]
        highest = np.zeros_like(always)
        for step in range(steps):
            now = sum(
                (v.tile_bytes for v in region if v.start <= step < v.stop), np.zeros_like(always)
            )
            highest = np.maximum(highest, now)
        peak = peak + highest
    return float((always + peak).sum())
