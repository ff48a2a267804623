"""Two reports compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiler.analysis.memory import fullest_tiles
from profiler.analysis.pace import pace, waiting
from profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd


def compare_ops(a: Report, b: Report) -> pd.DataFrame:
    """Operators of two reports matched by name and direction.

    ``name, direction, stage_a, stage_b, cycles_a, cycles_b, difference, ratio``, the largest
    differences first; -1 and 0 where a report has none.
    """
    import pandas as pd

    keys = ["name", "direction"]
    sides = []
    for report in (a, b):
        ops = report.ops.assign(number=report.ops.groupby(keys).cumcount())
        sides.append(ops[[*keys, "number", "stage", "cycles"]])
    both = pd.merge(sides[0], sides[1], on=[*keys, "number"], how="outer", suffixes=("_a", "_b"))
    both = both.fillna({"stage_a": -1, "stage_b": -1, "cycles_a": 0, "cycles_b": 0})
    both = both.astype(dict.fromkeys(("stage_a", "stage_b", "cycles_a", "cycles_b"), np.int64))
    both["difference"] = both["cycles_b"] - both["cycles_a"]
    ratio = both["cycles_b"] / both["cycles_a"].where(both["cycles_a"] > 0)
    both["ratio"] = ratio.astype(object).where(ratio.notna(), None)
    order = np.argsort(-both["difference"].abs().to_numpy(), kind="stable")
    return both.drop(columns="number").iloc[order].reset_index(drop=True)


def compare(a: Report, b: Report) -> pd.DataFrame:
    """What matters of two reports.

    ``what, unit, a, b, difference, ratio`` (None where it makes no sense).
    """
    import pandas as pd

    rows = []
    for what, unit, function in _MEASURES:
        one, two = float(function(a)), float(function(b))
        rows.append((what, unit, one, two, two - one, two / one if one else None))
    return pd.DataFrame(rows, columns=pd.Index(["what", "unit", "a", "b", "difference", "ratio"]))


_MEASURES = (
    ("a weight update", "cycles", lambda r: pace(r).cycles),
    ("samples a second", "1/s", lambda r: pace(r).samples_per_second),
    ("slowest stage", "cycles", lambda r: r.stages["cycles"].max() if len(r.stages) else 0),
    ("mean stage", "cycles", lambda r: r.stages["cycles"].mean() if len(r.stages) else 0),
    ("waiting", "share", waiting),
    ("fullest tile", "bytes", lambda r: fullest_tiles(r).max(initial=0)),
    ("operators' cycles, each once", "cycles", lambda r: r.ops["cycles"].sum()),
    ("IPUs", "count", lambda r: r.target.num_ipus),
    ("program steps", "count", lambda r: len(r.program_steps())),
    ("variables", "count", lambda r: len(r.variables)),
)
