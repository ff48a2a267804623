"""Data movement: between tiles, between IPUs, and to and from the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.enums import REMOTE, Purpose
from ipuscope.profiler.file import records
from ipuscope.profiler.lazy import once
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


_WAYS = {str(Purpose.STREAM_IN): "in", str(Purpose.STREAM_OUT): "out"}
_COLUMNS = ["name", "way", "ipu", "block", "dtype", "bytes"]


@once
def host_tensors(report: Report) -> pd.DataFrame:
    """Tensors that come from the host or go to it, the largest first.

    ``name, way`` ("in", "out"), ``ipu, block, dtype, bytes`` (per micro-batch), ``share`` (of the
    bytes in that direction).
    """
    steps = _transfers(report)
    frame = _as_moved(report, steps).drop_duplicates(["name", "way", "ipu"])
    whole = frame.groupby("way")["bytes"].transform("sum")
    frame = frame.assign(share=frame["bytes"] / whole.clip(lower=1))
    return frame.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)


@once
def streaming_steps(report: Report) -> np.ndarray:
    """Ids of the program steps that load from streaming memory or store there: int64[step]."""
    steps = report.file.table(records.Step)
    steps.read("id", "purpose")
    return steps["id"][np.isin(steps["purpose"], REMOTE)]


def _transfers(report: Report) -> pd.DataFrame:
    """The steps that move tensors from or to the host: ``step, ipu, purpose, name``."""
    import pandas as pd

    report.file.table(records.Step).read("id", "ipu", "position", "purpose", "type", "name")
    moves = report.sequence.steps_with("purpose", *_WAYS)
    rows = np.flatnonzero(moves & report.sequence.steps_with("type", records.STREAM_COPY_MID))
    names = ("step", "ipu", "purpose", "name")
    return pd.DataFrame({name: report.sequence.steps_in_order(name)[rows] for name in names})


def _as_moved(report: Report, steps: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    moved = report.sequence.moved_tensors.merge(steps[["step", "purpose", "ipu"]], on="step")
    variables = report.file.table(records.Variable)
    variables.read("tensor", "block", "dtype")
    named = (variables["tensor"] >= 0) & np.isin(variables["tensor"], moved["tensor"])
    about = pd.DataFrame({name: variables[name][named] for name in ("tensor", "block", "dtype")})
    about = about.drop_duplicates("tensor").set_index("tensor")
    moved = moved.join(about, on="tensor").fillna({"block": -1, "dtype": ""})
    moved = moved.assign(
        way=moved["purpose"].astype(str).map(_WAYS), block=moved["block"].astype(int)
    )
    return moved[_COLUMNS]
