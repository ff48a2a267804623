"""The IPUs of a whole pod, one by one: position, role and load.

A profile has one of the IPUs that share a stage's tensors, and one replica; the others are
identical. IPUs are numbered through the pod: replica by replica, stage by stage, the IPUs that
share a stage's tensors side by side (docs/pods.md#where-the-ipus-lie).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiler.enums import BodyTask
from profiler.records import BESIDE
from profiler.report import Report, number

if TYPE_CHECKING:
    import pandas as pd

_MACHINE, _RACK = 4, 64  # IPUs, where the header does not say (docs/machine.md#pods)


def alike_ipus(report: Report) -> int:
    """How many IPUs of the pod each IPU of the profile represents: shards times replicas."""
    return shards_of(report) * report.target.num_replicas


def shards_of(report: Report) -> int:
    """The number of IPUs that share the tensors of a stage."""
    return max(1, int(number(report.meta, "tensor_sharding", 1)))


def loads(report: Report) -> pd.DataFrame:
    """The load of each IPU of the profile in a device iteration.

    ``ipu``, ``busy`` (share of its cycles not spent waiting), ``memory`` (share of the tile's
    memory used, on the fullest tile), ``weight_bytes`` (on the chip at any time) and ``link_bytes``
    (sent and received over links to other IPUs).
    """
    import pandas as pd

    tasks = report.tasks(iteration=0)
    tasks = tasks[tasks["kind"] != BESIDE]
    whole = tasks.groupby("ipu")["cycles"].sum()
    busy = tasks[tasks["task"] != BodyTask.IDLE].groupby("ipu")["cycles"].sum()
    ipus = whole.index.to_numpy()
    peak = [int(report.tiles(int(ipu))["total"].max()) for ipu in ipus]
    variables = report.variables
    weights = variables[variables["role"] == "weight"].groupby("ipu")["bytes"].sum()
    return pd.DataFrame(
        {
            "ipu": ipus,
            "busy": (busy / whole.clip(lower=1)).reindex(ipus, fill_value=0.0).to_numpy(),
            "memory": np.array(peak) / report.target.bytes_per_tile,
            "weight_bytes": weights.reindex(ipus, fill_value=0).to_numpy(),
            "link_bytes": _link_bytes(report).reindex(ipus, fill_value=0).to_numpy(),
        }
    )


def _link_bytes(report: Report) -> pd.Series:
    """Bytes that an IPU sends and receives in a device iteration, over all runs of its bodies."""
    steps = report.program_steps()
    steps = steps.assign(body=report.steps_in_order("body"))
    steps = steps[steps["kind"] == "global exchange"]
    nbytes = (steps["bytes_in"] + steps["bytes_out"]) * steps["times"]
    moved = nbytes.groupby(steps["body"]).sum()
    runs = report.tasks(iteration=0).groupby(["ipu", "body"]).size().reset_index(name="runs")
    runs["bytes"] = runs["runs"] * moved.reindex(runs["body"], fill_value=0).to_numpy()
    return runs.groupby("ipu")["bytes"].sum()


def pod(report: Report) -> pd.DataFrame:
    """One row for each IPU of the pod, in order of position.

    ``number`` in the pod, ``rack``, ``machine``, ``replica``, ``ipu`` (the one of the profile that
    it is identical to), ``stages`` (their ids), ``shard``, and the columns of `loads`.
    """
    import pandas as pd

    target, shards = report.target, shards_of(report)
    number_of = np.arange(target.num_ipus * shards)
    per_machine = max(1, int(number(report.meta, "ipus_per_board", _MACHINE)))
    per_rack = max(1, int(number(report.meta, "ipus_per_rack", _RACK)))
    ipu = number_of // shards % target.ipus_per_replica
    stages = report.stages.assign(id=report.stages["stage"].astype(str))
    named = stages.groupby("ipu")["id"].agg(", ".join)
    rows = pd.DataFrame(
        {
            "number": number_of,
            "rack": number_of // per_rack,
            "machine": number_of // per_machine,
            "replica": number_of // (shards * target.ipus_per_replica),
            "ipu": ipu,
            "stages": named.reindex(ipu, fill_value="").to_numpy(),
            "shard": number_of % shards,
        }
    )
    of_ipu = loads(report).set_index("ipu").reindex(ipu, fill_value=0).reset_index(drop=True)
    return pd.concat([rows, of_ipu], axis=1)
