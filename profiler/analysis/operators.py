"""The cost of operators and how well they use the machine."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.enums import Direction, Purpose, Role
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

# Multiply-accumulates a tile does in a cycle, in half and in single precision
# (docs/machine.md#targets).
MACS_PER_CYCLE = {"ipu1": (32, 8), "ipu2": (64, 16), "ipu21": (64, 16)}
EXCHANGE_BYTES_PER_CYCLE = 4  # that a tile receives (docs/machine.md#exchange)
_OF_STEPS = ("op", "kind", "cycles", "tile_balance", "bytes_in", "active_tiles")
_SINGLE = ("float32", "float64")
_HALF = ("float16", "bfloat16")


def operators(report: Report, stages: Collection[int] | None = None) -> pd.DataFrame:
    """`Report.ops` with columns from their steps, the most cycles of a weight update first.

    ``stages``: of these only (None: all). ``cycles``, ``flops`` and what follows are of one
    execution, but for the columns of `executed_ops` and ``share``: of all operators'
    ``total_cycles``. ``flops_per_cycle``, ``exchanged`` (bytes
    received, all tiles), ``balance`` (mean over slowest tile of its compute steps, weighted by
    cycles; None without any), ``tiles`` (active in its widest step), ``lost_cycles`` (compute
    cycles beyond an even share over all tiles), ``source``, and the columns of `roofline`.
    """
    every = report.ops
    ops = every if stages is None else every[every["stage"].isin(stages)]
    steps, executed = _steps_of(report, ops), executed_ops(report)
    compute = steps[steps["kind"] == "compute"]
    even = (compute["tile_balance"] * compute["cycles"]).groupby(compute["op"]).sum()
    spent = compute["cycles"].groupby(compute["op"]).sum()
    balance = (even / spent.clip(lower=1)).reindex(ops.index)
    frame = ops.assign(
        id=ops.index,
        **executed.reindex(ops.index),
        share=executed["total_cycles"].reindex(ops.index) / max(1, executed["total_cycles"].sum()),
        flops_per_cycle=ops["flops"] / ops["cycles"].clip(lower=1),
        exchanged=steps.groupby("op")["bytes_in"].sum().reindex(ops.index).fillna(0),
        balance=balance.astype(object).where(balance.notna(), None),
        tiles=steps.groupby("op")["active_tiles"].max().reindex(ops.index).fillna(0),
        lost_cycles=(spent - even).reindex(ops.index).fillna(0),
        source=[
            f"{file}:{line}" if file else ""
            for file, line in zip(ops["file"].tolist(), ops["line"].tolist(), strict=True)
        ],
    )
    frame = frame.join(_roofline(report, ops, steps))
    return frame.sort_values(["total_cycles", "cycles"], ascending=False, kind="stable")


def executed_ops(report: Report) -> pd.DataFrame:
    """What operators take in a weight update (a device iteration), by id, from the executed trace.

    int64: ``executions``; ``total_cycles`` of all of them; ``recompute_cycles`` of running again
    for the backward pass, which is not in either. Reading and writing the stash is in none, waiting
    neither. All 0 where the profile has no schedule.
    """
    of_step, ops = report.program_steps().set_index("step"), report.ops[[]]
    if not len(report.runs):
        return ops.assign(executions=0, total_cycles=0, recompute_cycles=0)
    spent = report.spent(0, range(report.target.ipus_per_replica), 0)
    ran = spent.step >= 0
    about = of_step[["op", "purpose", "direction", "times"]].reindex(spent.step[ran])
    own = (about["op"] >= 0) & (about["purpose"] == Purpose.OPERATOR)
    again = about["direction"] == Direction.RECOMPUTE
    rows = about.assign(cycles=spent.cycles[ran], count=spent.count[ran] // about["times"])
    first, second = rows[own & ~again].groupby("op"), rows[own & again].groupby("op")
    columns = {
        "executions": first["count"].max(),  # of its steps: each body that has one has all
        "total_cycles": first["cycles"].sum(),
        "recompute_cycles": second["cycles"].sum(),
    }
    of_ops = {name: of.reindex(ops.index).fillna(0) for name, of in columns.items()}
    return ops.assign(**of_ops).astype(np.int64)


def _steps_of(report: Report, ops: pd.DataFrame) -> pd.DataFrame:
    """The steps of one execution of these operators, as often as their body runs them."""
    steps = report.program_steps()
    own = (steps["op"] >= 0) & (steps["purpose"] == Purpose.OPERATOR)
    chosen = (own & (steps["direction"] != Direction.RECOMPUTE)).to_numpy()
    if len(ops) < len(report.ops):
        chosen = chosen & steps["op"].isin(ops.index).to_numpy()
    rows = np.flatnonzero(chosen)
    return steps[[*_OF_STEPS]].take(np.repeat(rows, steps["times"].to_numpy()[rows]))


def roofline(report: Report) -> pd.DataFrame:
    """Operators by id, against what the machine could do at most.

    ``compute_cycles``, ``exchange_cycles`` and ``sync_cycles`` of one execution; ``dtype`` of what
    it makes; ``peak`` (floating-point operations a cycle of all tiles' matrix units in that
    precision; NaN for others), ``utilisation`` (of the peak, over all its cycles), ``intensity``
    (operations a byte received; NaN where nothing is), ``roof`` (operations a cycle that the peak
    or, at this intensity, the exchange allows) and ``bound`` ("compute" or "exchange": which of the
    two it is; "" without operations).
    """
    return _roofline(report, report.ops, _steps_of(report, report.ops))


def _roofline(report: Report, ops: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """`roofline` of some operators, whose steps these are."""
    target = report.target
    by_kind = steps.groupby(["kind", "op"], sort=False)["cycles"].sum()
    spent = {
        kind: (by_kind.loc[kind] if kind in by_kind.index else by_kind.iloc[:0].droplevel(0))
        .reindex(ops.index)
        .fillna(0)
        for kind in ("compute", "exchange", "sync")
    }
    received = steps["bytes_in"].groupby(steps["op"]).sum().reindex(ops.index).fillna(0).to_numpy()
    dtype = _dtypes(report).reindex(ops.index).fillna("")
    half, single = MACS_PER_CYCLE.get(target.architecture.lower(), (np.nan, np.nan))
    rate = np.where(dtype.isin(_HALF), half, np.where(dtype.isin(_SINGLE), single, np.nan)).astype(
        float
    )
    peak = 2 * rate * target.tiles_per_ipu
    flops = ops["flops"].to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = np.where((flops > 0) & (received > 0), flops / received, np.nan)
        allowed = intensity * EXCHANGE_BYTES_PER_CYCLE * target.tiles_per_ipu
        utilisation = flops / ops["cycles"].clip(lower=1) / peak
    bound = np.where(
        np.isnan(peak) | (flops == 0), "", np.where(allowed < peak, "exchange", "compute")
    )
    return ops[[]].assign(
        **{f"{kind}_cycles": values.astype(np.int64) for kind, values in spent.items()},
        dtype=dtype,
        peak=peak,
        utilisation=utilisation,
        intensity=intensity,
        roof=np.fmin(peak, allowed),
        bound=bound,
    )


def _dtypes(report: Report) -> pd.Series[str]:
    """Operator -> dtype of its first output."""
    variables = report.variables_with("op", "role", "dtype")
    outputs = variables[
        (variables["op"] >= 0)
        & variables["role"].isin([Role.ACTIVATION, Role.GRADIENT, Role.TEMPORARY])
    ]
    outputs = outputs[outputs["dtype"] != ""]
    dtypes: pd.Series[str] = outputs.drop_duplicates("op").set_index("op")["dtype"]
    return dtypes
