"""What each module of a model without Blocks needs by itself."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ipuscope.planner.costs.without_blocks import layer_of
from ipuscope.profiler.enums import Role
from ipuscope.profiler.report import Report
from ipuscope.profiler.units import size

_OF_A_PARAMETER = (Role.WEIGHT, Role.ACCUMULATOR, Role.OPTIMISER_STATE)


def largest_modules(report: Report, whole: bool = True) -> pd.DataFrame:
    """Bytes over all tiles of each layer (``whole``), or of each module without those inside it.

    Columns: module, weights (with accumulators), state, running (the most of all else that is live
    at one step), total, ipus (whose tiles they would fill). Most first; of layers with a number the
    largest stands for all, as "layers.31 (of 32)".
    """
    columns = ("name", "role", "op", "bytes", "start", "stop")
    variables = report.usage.variables_with(*columns)
    modules = report.ops["module"].reindex(variables["op"]).fillna("").to_numpy(dtype=str)
    path = variables["name"].str.partition("/")[0].str.rpartition(".")[0]
    owned = variables["role"].isin(_OF_A_PARAMETER).to_numpy()
    part = pd.Series(np.where(owned, path, np.char.replace(modules, "/", ".")), variables.index)
    part = part.map({name: layer_of(name) for name in part.unique()}) if whole else part
    an_ipu = report.target.tiles_per_ipu * report.target.bytes_per_tile
    rows = []
    for name, some in variables.assign(owned=owned).groupby(part):
        state = int(some["bytes"][some["role"] == Role.OPTIMISER_STATE].sum())
        weights = int(some["bytes"][some["owned"]].sum()) - state
        running = _most_at_once(some[~some["owned"]])
        total = weights + state + running
        rows.append((name, weights, state, running, total, total / an_ipu))
    names = ["module", "weights", "state", "running", "total", "ipus"]
    frame = pd.DataFrame(rows, columns=names)
    frame = frame[frame["module"] != ""].sort_values("total", ascending=False, kind="stable")
    if not whole:
        return frame
    kind = frame["module"].str.replace(r"\.\d+$", "", regex=True)
    alike = frame.groupby(kind)["module"].transform("size")
    several = " (of " + alike.astype(str) + ")"
    frame["module"] += several.where(alike > 1, "")
    return frame[~kind.duplicated()]


def _most_at_once(some: pd.DataFrame) -> int:
    """The most bytes of these variables that are live at one step."""
    at = np.concatenate([some["stop"], some["start"]])
    change = np.concatenate([-some["bytes"], some["bytes"]])
    live = np.cumsum(change[np.argsort(at, kind="stable")])  # ends first
    return max(0, int(live.max(initial=0)))


def too_large_alone(report: Report) -> str:
    """A sentence on a module that no IPU holds, even with its optimiser state elsewhere; or ""."""
    modules = largest_modules(report, whole=False)
    needs = modules["total"] - modules["state"]
    an_ipu = report.target.tiles_per_ipu * report.target.bytes_per_tile
    if not len(needs) or needs.max() <= an_ipu:
        return ""
    worst = str(modules["module"].to_numpy()[needs.to_numpy().argmax()])
    return (
        f"More IPUs alone do not help: {worst} by itself needs {size(needs.max())}, with"
        f" its optimiser state off the chip, and an IPU has {size(an_ipu)}. Cut its tensors over"
        " several IPUs (Options.tensorSharding), or write it as smaller modules."
    )
