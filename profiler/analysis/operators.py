"""The cost of operators and how well they use the machine."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler import confidence, units
from ipuscope.profiler.analysis.peak import (
    BELOW,
    EXCHANGE,
    IDLE_TILES,
    MACS_PER_CYCLE,
    REARRANGING,
    SYNC,
    VECTOR_PER_CYCLE,
    lost,
    products,
)
from ipuscope.profiler.enums import Direction, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.lazy import once
from ipuscope.profiler.report import Report
from ipuscope.profiler.report.frames import frame_of

if TYPE_CHECKING:
    import pandas as pd

EXCHANGE_BYTES_PER_CYCLE = 4  # that a tile receives (docs/machine.md#exchange)
_CHANNELS = {"float16": 16, "float32": 8}  # input channels that the matrix unit takes at once
_OF_STEPS = ("op", "kind", "cycles", "tile_balance", "bytes_in", "active_tiles")
_SINGLE = ("float32", "float64")
_HALF = ("float16", "bfloat16")


def operators(
    report: Report, stages: Collection[int] | None = None, ceilings: bool = True
) -> pd.DataFrame:
    """`Report.ops` with columns from their steps, the most cycles of a weight update first.

    ``stages``: of these only (None: all). ``cycles``, ``flops`` and the rest are of one execution,
    except the columns of `executed_ops` and ``share``: of all operators' ``total_cycles``.
    ``flops_per_cycle``, ``exchanged`` (bytes received, all tiles), ``balance`` (mean over slowest
    tile of its compute steps, weighted by cycles; None without any), ``tiles`` (active in its
    widest step), ``lost_cycles`` (compute cycles beyond an even share over all tiles), ``source``,
    the columns of `confidence.of_operators`, and, with ``ceilings``, those of `roofline`.
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
    frame = frame.join(confidence.of_operators(report))
    frame = frame.join(_roofline(report, ops, steps)) if ceilings else frame
    return frame.sort_values(["total_cycles", "cycles"], ascending=False, kind="stable")


@once
def executed_ops(report: Report) -> pd.DataFrame:
    """Cycles of operators in a weight update (a device iteration), by id, from the executed trace.

    int64: ``executions``; ``total_cycles`` of all of them; ``recompute_cycles`` of running again
    for the backward pass, which is in neither. Access to the stash and waiting are in none. All 0
    if the profile has no schedule.
    """
    ops, steps = report.ops[[]], report.sequence
    if not len(report.runs):
        return ops.assign(executions=0, total_cycles=0, recompute_cycles=0)
    spent = report.trace.spent(0, range(report.target.ipus_per_replica), 0)
    ids = steps.steps_in_order("step")
    place = rows_of(spent.step, ids)
    ran = place >= 0  # the others are waiting
    at, cycles = place[ran], spent.cycles[ran]
    row = report.file.rows_of(records.Op, steps.steps_in_order("op"))[at]
    own = (row >= 0) & steps.steps_with("purpose", Purpose.OPERATOR)[at]
    again = steps.steps_with("direction", Direction.RECOMPUTE)[at]
    count = spent.count[ran] // steps.steps_in_order("times")[at]
    executions, first, second = np.zeros((3, len(ops)), dtype=np.int64)
    # of its steps: each body that has one has all
    np.maximum.at(executions, row[own & ~again], count[own & ~again])
    np.add.at(first, row[own & ~again], cycles[own & ~again])
    np.add.at(second, row[own & again], cycles[own & again])
    return ops.assign(executions=executions, total_cycles=first, recompute_cycles=second)


def _steps_of(report: Report, ops: pd.DataFrame) -> pd.DataFrame:
    """The steps of one execution of these operators, as often as their body runs them."""
    steps, has = report.program_steps(), report.sequence.steps_with
    chosen = (steps["op"] >= 0).to_numpy() & has("purpose", Purpose.OPERATOR)
    chosen = chosen & ~has("direction", Direction.RECOMPUTE)
    if len(ops) < len(report.ops):
        chosen = chosen & steps["op"].isin(ops.index).to_numpy()
    rows = np.flatnonzero(chosen)
    return steps[[*_OF_STEPS]].take(np.repeat(rows, steps["times"].to_numpy()[rows]))


def roofline(report: Report) -> pd.DataFrame:
    """Operators by id, against the most that the machine could do.

    ``compute_cycles``, ``exchange_cycles`` and ``sync_cycles`` of one execution; ``dtype`` of the
    output; ``unit`` ("AMP" with vertices of the matrix unit, else "vector"), ``peak``
    (floating-point operations a cycle of all tiles' matrix units in the precision of their
    operands, else of the output; NaN for others), ``utilisation`` (of the peak, over all its
    cycles), ``intensity`` (operations a byte received; NaN if there is none), ``roof`` (operations
    a cycle that its unit or, at this intensity, the exchange allows), ``of_roof`` (its share of
    that, 0..1), ``bound`` ("compute" or "exchange": the lower of the two; "" without operations)
    and ``why`` (most of the rest, in words; "" without cycles).
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
    amp = (
        frame_of(products(report)).set_index("op").astype(object).reindex(ops.index, fill_value="")
    )
    on_amp = (amp["operands"] != "").to_numpy()
    precision = np.where(on_amp, amp["operands"], dtype)
    macs = MACS_PER_CYCLE.get(target.architecture.lower(), (np.nan, np.nan))
    halves, singles = np.isin(precision, _HALF), np.isin(precision, _SINGLE)
    peak, vector = (
        2 * target.tiles_per_ipu * np.select([halves, singles], of, np.nan)
        for of in (macs, VECTOR_PER_CYCLE)
    )
    flops, most = ops["flops"].to_numpy(), np.where(on_amp, peak, vector)
    rate = flops / ops["cycles"].clip(lower=1).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        intensity = np.where((flops > 0) & (received > 0), flops / received, np.nan)
        allowed = intensity * EXCHANGE_BYTES_PER_CYCLE * target.tiles_per_ipu
    roof = np.fmin(most, allowed)
    bound = np.where(allowed < most, "exchange", "compute")
    tiles = steps["active_tiles"].where(steps["kind"] == "compute", 0).groupby(steps["op"]).max()
    return ops[[]].assign(
        **{f"{kind}_cycles": values.astype(np.int64) for kind, values in spent.items()},
        dtype=dtype,
        unit=np.where(on_amp, "AMP", "vector"),
        peak=peak,
        utilisation=rate / peak,
        intensity=intensity,
        roof=roof,
        of_roof=np.where(flops > 0, rate / roof, np.nan),
        bound=np.where(np.isnan(most) | (flops == 0), "", bound),
        why=_why(report, ops, most, on_amp, amp, tiles.reindex(ops.index).fillna(0)),
    )


_LOSSES = (EXCHANGE, SYNC, IDLE_TILES, REARRANGING, BELOW)


def _why(
    report: Report,
    ops: pd.DataFrame,
    most: np.ndarray,
    on_amp: np.ndarray,
    amp: pd.DataFrame,
    tiles: pd.Series[float],
) -> list[str]:
    """What keeps each operator most from ``most``, the operations a cycle of its unit, in words."""
    from ipuscope.profiler.analysis.peak import peak as peak_of

    whole = peak_of(report)
    if whole is None:
        return [""] * len(ops)
    parts = lost(report).reindex(ops.index).fillna(0).astype(float)
    scale = np.where(np.isnan(most), 1.0, most / whole.flops_per_cycle)  # to its unit's operations
    losses = parts[[*_LOSSES]].to_numpy() * scale[:, None]
    unit = losses[:, -1] + parts["model"].to_numpy() * scale
    losses[:, -1] = unit - parts["model"]
    of_unit = parts["model"].to_numpy() / np.maximum(unit, 1)
    halved = (amp["operands"] == "float16") & (amp["partials"] == "float32") & (of_unit > 0.25)
    channels = _few_channels(report, ops, amp["operands"])
    words, columns = [], (losses.argmax(axis=1), losses.sum(axis=1), tiles, halved, ops.index)
    for row, (largest, total, at_work, wide, op) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        name = _LOSSES[largest]
        if total <= 0:
            name = ""
        elif name == IDLE_TILES:
            name = _idle(int(at_work), report.target.tiles_per_ipu)
        elif name == REARRANGING:
            name = "rearrangement"
        elif name == BELOW:
            reason = channels.get(op, "fp32 partials halve it" if wide else "")
            name = "AMP" if on_amp[row] else "vector unit"
            name += f" at {units.percent(of_unit[row])} of its peak"
            name += f": {reason}" if reason else ""
        words.append(name)
    return words


def _idle(tiles: int, of: int) -> str:
    if tiles < of:
        return f"{tiles:,} of {of:,} tiles at work"
    return "all tiles at work, unevenly"


def _few_channels(report: Report, ops: pd.DataFrame, operands: pd.Series[str]) -> dict[int, str]:
    """Forward convolutions with up to two groups of the unit's input channels, one not full."""
    convolutions = ops.index[ops["aten"].str.startswith("aten.convolution.").to_numpy()]
    if not len(convolutions):
        return {}
    uses, weights = report.file.table(records.Use), report.usage.variables_with("role", "shape")
    shapes = weights.loc[(weights["role"] == Role.WEIGHT).to_numpy(), "shape"]
    wanted = np.isin(uses["op"], convolutions) & np.isin(uses["variable"], shapes.index)
    words = {}
    for op, variable in zip(uses["op"][wanted], uses["variable"][wanted], strict=True):
        shape = json.loads(shapes[variable] or "[]")
        group = _CHANNELS.get(operands[op], 1)
        if len(shape) > 2 and -shape[1] % group > 0 and shape[1] < 2 * group:
            words[int(op)] = f"{shape[1]} of {-(-shape[1] // group) * group} input channels"
    return words


def _dtypes(report: Report) -> pd.Series[str]:
    """Operator -> dtype of its first output."""
    variables = report.usage.variables_with("op", "role", "dtype")
    outputs = variables[
        (variables["op"] >= 0)
        & variables["role"].isin([Role.ACTIVATION, Role.GRADIENT, Role.TEMPORARY])
    ]
    outputs = outputs[outputs["dtype"] != ""]
    return outputs.drop_duplicates("op").set_index("op")["dtype"]
