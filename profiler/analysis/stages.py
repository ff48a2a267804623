"""The cost of a micro-batch on each IPU, which paces a pipeline whose IPUs have several stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler import units
from ipuscope.profiler.report import Report
from ipuscope.profiler.report.frames import frame_of, summed

if TYPE_CHECKING:
    import pandas as pd

_MOST_NAMED = 6  # stages, and Blocks


def ipu_costs(report: Report) -> pd.DataFrame:
    """Cycles of a micro-batch on each IPU that has a stage: the sum of its stages'.

    ``ipu, stages`` (their ids, "0, 3"), ``blocks`` (their names, joined by ", "), ``count`` (of
    stages), ``cycles`` and ``share`` (of the slowest IPU, 0..1), by IPU.
    """
    return frame_of(_costs(report))


def _costs(report: Report) -> dict[str, np.ndarray]:
    stages = report.stage_columns
    ipus, which = np.unique(stages["ipu"], return_inverse=True)
    members = [np.flatnonzero(which == at) for at in range(len(ipus))]
    ids = [", ".join(map(str, stages["stage"][rows])) for rows in members]
    blocks = [", ".join(filter(None, stages["blocks"][rows])) for rows in members]
    cycles = summed(stages["cycles"], which, len(ipus))
    return {
        "ipu": ipus,
        "stages": np.array(ids, dtype=object),
        "blocks": np.array(blocks, dtype=object),
        "count": np.array([*map(len, members)], dtype=np.int64),
        "cycles": cycles,
        "share": cycles / max(1, cycles.max(initial=1)),
    }


def slowest(report: Report) -> tuple[str, str, int, float] | None:
    """What sets the pace: its name, its Blocks, its cycles, and its cycles over the mean.

    "stage 2", or "IPU 0 (stages 0, 3)" if any IPU has several stages, "IPU 0 (48 stages)" if it has
    many; of many Blocks the first few are named. None without a stage.
    """
    costs = _costs(report)
    if not len(costs["ipu"]):
        return None
    most = {name: values[costs["cycles"].argmax()] for name, values in costs.items()}
    name = f"stage {most['stages']}"
    if (costs["count"] > 1).any():
        count, ids = int(most["count"]), most["stages"]
        listed = f"stage{'s' * (count > 1)} {ids}"
        several = listed if count <= _MOST_NAMED else units.count(count, "stage")
        name = f"IPU {most['ipu']} ({several})"
    mean = max(1.0, float(costs["cycles"].mean()))
    blocks = units.listed(str(most["blocks"]).split(", "), _MOST_NAMED)
    return name, blocks, int(most["cycles"]), float(most["cycles"] / mean)
