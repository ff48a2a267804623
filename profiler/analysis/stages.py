"""The cost of a micro-batch on each IPU, which paces a pipeline whose IPUs have several stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
