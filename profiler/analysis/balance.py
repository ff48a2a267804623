"""How evenly work is spread over tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd


def step_balance(report: Report, ipu: int | None = None) -> pd.DataFrame:
    """Compute steps, those that lose most to uneven work first.

    ``step, ipu, position, name, op, cycles, active_tiles, tile_balance`` (mean over slowest tile),
    ``slowest_tile``, ``mean_cycles`` (over all tiles) and ``lost_cycles``: the cycles beyond an
    even share of the same work, of all turns where the step is in a loop.
    """
    steps = report.program_steps(ipu)
    steps = steps[(steps["kind"] == "compute") & steps["tile_balance"].notna()]
    slowest: list[int] = []
    for step in steps["step"].tolist():
        cycles = report.step_tiles(step)["cycles"]
        slowest.append(-1 if cycles is None else int(np.argmax(cycles)))
    mean = steps["tile_balance"] * steps["cycles"]
    shown = steps[
        ["step", "ipu", "position", "name", "op", "cycles", "active_tiles", "tile_balance"]
    ]
    balance = shown.assign(
        slowest_tile=slowest,
        mean_cycles=mean,
        lost_cycles=(steps["cycles"] - mean) * steps["times"],
    )
    return balance.sort_values("lost_cycles", ascending=False, kind="stable", ignore_index=True)
