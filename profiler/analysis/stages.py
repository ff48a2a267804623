"""The cost of a micro-batch on each IPU, which paces a pipeline whose IPUs have several stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler import units
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

_MOST_NAMED = 6  # stages, and Blocks


def ipu_costs(report: Report) -> pd.DataFrame:
    """Cycles of a micro-batch on each IPU that has a stage: the sum of its stages'.

    ``ipu, stages`` (their ids, "0, 3"), ``blocks`` (their names, joined by ", "), ``count`` (of
    stages), ``cycles`` and ``share`` (of the slowest IPU, 0..1), by IPU.
    """
    stages = report.stages
    names = stages.assign(id=stages["stage"].astype(str))
    table = names.groupby("ipu", as_index=False).agg(
        stages=("id", ", ".join),
        blocks=("blocks", lambda blocks: ", ".join(filter(None, blocks))),
        count=("id", "size"),
        cycles=("cycles", "sum"),
    )
    return table.assign(share=table["cycles"] / max(1, table["cycles"].max() if len(table) else 1))


def slowest(report: Report) -> tuple[str, str, int, float] | None:
    """What sets the pace: its name, its Blocks, its cycles, and its cycles over the mean.

    "stage 2", or "IPU 0 (stages 0, 3)" if any IPU has several stages, "IPU 0 (48 stages)" if it has
    many; of many Blocks the first few are named. None without a stage.
    """
    costs = ipu_costs(report)
    if not len(costs):
        return None
    most = costs.iloc[int(costs["cycles"].to_numpy().argmax())]
    name = f"stage {most['stages']}"
    if (costs["count"] > 1).any():
        count, ids = int(most["count"]), most["stages"]
        listed = f"stage{'s' * (count > 1)} {ids}"
        several = listed if count <= _MOST_NAMED else units.count(count, "stage")
        name = f"IPU {most['ipu']} ({several})"
    mean = max(1.0, float(costs["cycles"].mean()))
    blocks = _first_few(str(most["blocks"]))
    return name, blocks, int(most["cycles"]), float(most["cycles"] / mean)


def _first_few(names: str) -> str:
    """As many of the comma-separated names as fit a line beside others."""
    return units.listed(names.split(", "), _MOST_NAMED)


# -- How evenly work is spread over tiles ---


def step_balance(report: Report, ipu: int | None = None) -> pd.DataFrame:
    """Compute steps, those that lose most to uneven work first.

    ``step, ipu, position, name, op, cycles, active_tiles, tile_balance`` (mean over slowest tile),
    ``slowest_tile``, ``mean_cycles`` (over all tiles) and ``lost_cycles``: the cycles beyond an
    even share of the same work, of all turns if the step is in a loop.
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
