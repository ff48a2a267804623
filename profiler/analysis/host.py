"""What moves between the host and the IPUs, tensor by tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiler.enums import Purpose
from profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

_WAYS = {str(Purpose.STREAM_IN): "in", str(Purpose.STREAM_OUT): "out"}
_STREAMS = ("copyFromHost/", "copyToHost/")  # what a stream's name begins with


def host_tensors(report: Report) -> pd.DataFrame:
    """Tensors that come from the host or go to it, the largest first.

    ``name, way`` ("in", "out"), ``ipu, block, bytes`` (of a micro-batch), ``share`` (of the bytes
    of that way). Streams of one stage move together, as one step that has all their names.
    """
    import pandas as pd

    steps = report.program_steps()
    steps = steps[steps["purpose"].isin(_WAYS) & steps["type"].eq("StreamCopyMid")]
    variables = report.variables.drop_duplicates("name").set_index("name")
    rows = []
    for name, purpose, ipu in zip(steps["name"], steps["purpose"], steps["ipu"], strict=True):
        for stream in _STREAMS:
            name = name.removeprefix(stream)
        for tensor in name.removesuffix("/mid").split(", "):
            if tensor in variables.index:
                about = variables.loc[tensor]
                rows.append((tensor, _WAYS[purpose], ipu, int(about["block"]), int(about["bytes"])))
    columns = pd.Index(["name", "way", "ipu", "block", "bytes"])
    frame = pd.DataFrame(rows, columns=columns).drop_duplicates(["name", "way", "ipu"])
    whole = frame.groupby("way")["bytes"].transform("sum")
    frame["share"] = frame["bytes"] / whole.clip(lower=1)
    return frame.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)
