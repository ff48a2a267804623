"""Data movement: between tiles, between IPUs, and to and from the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

KINDS = ("exchange", "global exchange", "host I/O", records.BESIDE)


def movement(report: Report, run: int = 0) -> pd.DataFrame:
    """Data moved by a device iteration of a run, by IPU and kind.

    ``ipu, kind`` (of `KINDS`), ``steps``, ``bytes_in`` and ``bytes_out`` (all tiles), ``cycles``,
    and ``bytes_per_cycle`` (the larger of in and out).
    """
    steps = report.steps(run, iteration=0)
    steps = steps[steps["kind"].isin(KINDS) & (steps["step"] >= 0)]
    program = (
        report.program_steps().set_index("step")[["bytes_in", "bytes_out"]].reindex(steps["step"])
    )
    moved = steps[["ipu", "kind", "cycles"]].assign(
        steps=1, bytes_in=program["bytes_in"].to_numpy(), bytes_out=program["bytes_out"].to_numpy()
    )
    kind = moved["kind"].astype(str)
    bytes_by_kind = moved.assign(kind=kind).groupby(["ipu", "kind"], as_index=False).sum()
    bytes_by_kind["bytes_per_cycle"] = bytes_by_kind[["bytes_in", "bytes_out"]].max(
        axis=1
    ) / bytes_by_kind["cycles"].clip(lower=1)
    return bytes_by_kind[
        ["ipu", "kind", "steps", "bytes_in", "bytes_out", "cycles", "bytes_per_cycle"]
    ]


def movement_of_ops(report: Report) -> pd.DataFrame:
    """What operators exchange between tiles in one execution, most first.

    ``op, name, direction, stage, steps, bytes_in, cycles, share`` (of the operator's own cycles).
    """
    steps, ops = report.steps_as_run(), report.ops
    steps = steps[
        (steps["op"] >= 0)
        & (steps["kind"] == "exchange")
        & (steps["direction"] != Direction.RECOMPUTE)
    ]
    bytes_by_op = (
        steps.assign(steps=1).groupby("op", as_index=False)[["steps", "bytes_in", "cycles"]].sum()
    )
    about = ops.loc[bytes_by_op["op"], ["name", "direction", "stage", "cycles"]]
    bytes_by_op.insert(1, "name", about["name"].to_numpy())
    bytes_by_op.insert(2, "direction", about["direction"].to_numpy())
    bytes_by_op.insert(3, "stage", about["stage"].to_numpy())
    bytes_by_op["share"] = (
        bytes_by_op["cycles"].to_numpy() / about["cycles"].clip(lower=1).to_numpy()
    )
    return bytes_by_op.sort_values("bytes_in", ascending=False, kind="stable", ignore_index=True)
