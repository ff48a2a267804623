"""The IPUs of a whole pod, one by one: position, role and load.

A profile has one of the IPUs that share a stage's tensors, and one replica; the others are
identical. IPUs are numbered through the pod: replica by replica, stage by stage, the IPUs that
share a stage's tensors side by side (docs/pods.md#where-the-ipus-lie).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.analysis.counters import mean, until
from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import BodyTask, Purpose
from ipuscope.profiler.file.records import BESIDE
from ipuscope.profiler.lazy import once
from ipuscope.profiler.report import Report, number

if TYPE_CHECKING:
    import pandas as pd

_RINGS = {
    str(Purpose.OPERATOR): "shards",
    str(Purpose.GATHER_SHARDS): "shards",
    str(Purpose.ALL_REDUCE): "replicas",
    str(Purpose.REDUCE_SCATTER): "replicas",
    str(Purpose.ALL_GATHER): "replicas",
}
_WAYS = {  # where a link lies, and which entry of the header has its rate
    "in a machine": "link_bytes_per_cycle",
    "between machines": "link_bytes_per_cycle_between_boards",
    "between racks": "link_bytes_per_cycle_between_racks",
}
_LINK = ["between", "source", "target"]
_MACHINE, _RACK = 4, 64  # IPUs, if the header does not say (docs/machine.md#pods)


def alike_ipus(report: Report) -> int:
    """How many IPUs of the pod each IPU of the profile represents: shards times replicas."""
    return shards_of(report) * report.target.num_replicas


def shards_of(report: Report) -> int:
    """The number of IPUs that share the tensors of a stage."""
    return max(1, int(number(report.meta, "tensor_sharding", 1)))


@stored
def loads(report: Report) -> pd.DataFrame:
    """The load of each IPU of the profile in a device iteration.

    ``ipu``, ``busy`` (share of its cycles not spent waiting), ``memory`` (share of the tile's
    memory used, on the fullest tile), ``weight_bytes`` (on the chip at any time) and ``link_bytes``
    (sent and received over links to other IPUs). Without a run or a schedule only memory is known.
    """
    import pandas as pd

    ipus = np.arange(report.target.ipus_per_replica)
    whole = busy = links = pd.Series(dtype=np.int64)
    if len(report.runs):
        tasks = report.tasks(iteration=0)
        tasks = tasks[tasks["kind"] != BESIDE]
        whole = tasks.groupby("ipu")["cycles"].sum()
        busy = tasks[tasks["task"] != BodyTask.IDLE].groupby("ipu")["cycles"].sum()
        links = _link_bytes(report)
    peak = [int(report.usage.tile_columns(int(ipu))["total"].max()) for ipu in ipus]
    variables = report.usage.variables_with("role", "ipu", "bytes")
    weights = variables[variables["role"] == "weight"].groupby("ipu")["bytes"].sum()
    return pd.DataFrame(
        {
            "ipu": ipus,
            "busy": (busy / whole.clip(lower=1)).reindex(ipus, fill_value=0.0).to_numpy(),
            "memory": np.array(peak) / report.target.bytes_per_tile,
            "weight_bytes": weights.reindex(ipus, fill_value=0).to_numpy(),
            "link_bytes": links.reindex(ipus, fill_value=0).to_numpy(),
        }
    )


def _link_bytes(report: Report) -> pd.Series:
    """Bytes that an IPU sends and receives in a device iteration, over all runs of its bodies."""
    steps = report.program_steps()
    steps = steps.assign(body=report.sequence.steps_in_order("body"))
    steps = steps[steps["kind"] == "global exchange"]
    nbytes = (steps["bytes_in"] + steps["bytes_out"]) * steps["times"]
    moved = nbytes.groupby(steps["body"]).sum()
    runs = report.tasks(iteration=0).groupby(["ipu", "body"]).size().reset_index(name="runs")
    runs["bytes"] = runs["runs"] * moved.reindex(runs["body"], fill_value=0).to_numpy()
    return runs.groupby("ipu")["bytes"].sum()


@stored
def link_loads(report: Report) -> pd.DataFrame:
    """The traffic over links in a device iteration, the busiest first.

    ``between``: "stages" (a row for each pair of IPUs of the replica, from ``source`` to
    ``target``), or a ring in which each IPU of ``source`` sends, with ``target`` -1: "shards" (the
    IPUs that share a stage's tensors) or "replicas". ``bytes`` that one IPU sends, ``way`` ("in a
    machine", "between machines" or "between racks": where the slowest link lies) and ``busy``: the
    share of the device iteration that one such link needs for them (a ring's: each way its half).
    """
    rows = _over_links(report)
    runs = report.tasks(iteration=0)["body"].value_counts()
    rows = rows.assign(bytes=rows["bytes"] * runs.reindex(rows["body"], fill_value=0).to_numpy())
    sums = rows.groupby(_LINK, as_index=False)["bytes"].sum()
    sums = sums[sums["bytes"] > 0]
    ends = zip(*(sums[name] for name in _LINK), strict=True)
    ways = [_way(report, *row) for row in ends]
    rates = [_rate(report, *row) for row in zip(ways, sums["between"], strict=True)]
    tasks = report.tasks(iteration=0)
    cycles = max(1, int(tasks["end"].max() - tasks["start"].min())) if len(tasks) else 1
    needed = sums["bytes"] / np.array(rates, dtype=float)
    sums = sums.assign(way=ways, busy=needed / cycles)
    return sums.sort_values("busy", ascending=False, kind="stable", ignore_index=True)


def link_slices(report: Report, run: int = 0, iteration: int | None = 0) -> pd.DataFrame:
    """When the links of `link_loads` carry what, in time order.

    ``link`` (its row there), ``start, end`` (cycles, on the clock of `Report.tasks`) and ``bytes``:
    a row for each time that a step sends over it.
    """
    rows = _over_links(report)
    links = link_loads(report).reset_index(names="link")
    rows = rows.merge(links[["link", *_LINK]], on=_LINK)
    tasks = report.tasks(run, iteration=iteration)[["body", "start", "end"]]
    slices = tasks.merge(rows, on="body").sort_values("start", kind="stable")
    start, task_end = slices["start"] + slices["begin"], slices["end"]
    end = task_end.where(slices["stop"] < 0, slices["start"] + slices["stop"])
    made = {"link": slices["link"], "start": start, "end": end, "bytes": slices["bytes"]}
    return type(tasks)(made).reset_index(drop=True)


def link_traffic(report: Report, slices: pd.DataFrame, edges: np.ndarray) -> np.ndarray:
    """The share of each link's rate that is used between edges: float64[link, len(edges) - 1].

    ``slices``: of `link_slices`, whose bytes are spread evenly over each; ``edges``: cycles.
    """
    links = link_loads(report)
    share = np.zeros((len(links), len(edges) - 1))
    order = np.argsort(slices["link"].to_numpy(), kind="stable")
    rows = slices[["link", "start", "end", "bytes"]].to_numpy()[order].T
    first = np.searchsorted(rows[0], np.arange(len(links) + 1)).tolist()
    for link, (begin, stop) in enumerate(pairwise(first)):
        start, end, sent = rows[1:, begin:stop]
        rate = _rate(report, links["way"].iloc[link], links["between"].iloc[link])
        share[link] = mean(start, end, until(sent), edges) / rate
    return share


def link_names(links: pd.DataFrame) -> list[str]:
    """What the rows of `link_loads` are called; "IPU 3, shards" sends round a ring of shards."""
    ends = zip(*(links[name].tolist() for name in _LINK), strict=True)
    return [
        f"IPU {source} to {target}" if target >= 0 else f"IPU {source}, {between}"
        for between, source, target in ends
    ]


@once
def _over_links(report: Report) -> pd.DataFrame:
    """Steps of bodies that send over a link: `_LINK`, ``body, begin, stop`` (-1: last) and bytes.

    ``begin`` and ``stop`` are cycles from the start of the body.
    """
    import pandas as pd

    of, bodies = report.bodies["body"].to_numpy(), report.sequence.bodies_in_row
    stop = np.append(bodies.start[1:], -1)
    stop[bodies.first + bodies.count - 1] = -1
    runs = pd.DataFrame({"body": np.repeat(of, bodies.count), "step": bodies.step})
    runs = runs.assign(begin=bodies.start, stop=stop)
    step, ipu = report.sequence.steps_in_order("step"), report.sequence.steps_in_order("ipu")
    here = np.flatnonzero(report.sequence.steps_with("kind", "global exchange"))
    vectors, at = np.unique(report.sequence.steps_in_order("bytes_out")[here], return_inverse=True)
    sent = np.array([report.file.vector(one).sum() if one >= 0 else 0 for one in vectors.tolist()])
    purpose = pd.Series(report.sequence.steps_in_order("purpose")[here]).astype(str)
    ring = pd.DataFrame({"between": purpose.map(_RINGS), "source": ipu[here], "step": step[here]})
    ring = ring.assign(target=-1, bytes=sent[at]).dropna(subset="between")
    moves = report.sequence.moved_tensors
    moves = moves[(moves["source"] >= 0) & (moves["target"] >= 0)]
    # a copy is a step of both its IPUs: it counts where it arrives
    where = pd.Series(ipu, step).reindex(moves["step"]).to_numpy()
    moves = moves[(where == moves["target"]) & (moves["source"] != moves["target"])]
    sums = moves.assign(between="stages").groupby([*_LINK, "step"], as_index=False)["bytes"].sum()
    columns = [*_LINK, "step", "bytes"]
    return pd.concat([sums[columns], ring[columns]]).merge(runs, on="step")


def _way(report: Report, between: str, source: int, target: int) -> str:
    """Where the slowest link lies between two IPUs, or on the way round a ring."""
    shards = shards_of(report)
    first = source * shards
    last = {
        "stages": target * shards,
        "shards": first + shards - 1,
        "replicas": first + report.target.ipus_per_replica * shards,  # the next replica's
    }[between]
    for way, key, usual in (
        ("between racks", "ipus_per_rack", _RACK),
        ("between machines", "ipus_per_board", _MACHINE),
    ):
        each = max(1, int(number(report.meta, key, usual)))
        if first // each != last // each:
            return way
    return "in a machine"


def _rate(report: Report, way: str, between: str) -> float:
    """Bytes a cycle of a link, one way; of a ring both ways round, which more than two IPUs use."""
    own = number(report.meta, "link_bytes_per_cycle", 0) or 1.0
    ring = {"shards": shards_of(report), "replicas": report.target.num_replicas}.get(between, 0)
    return (number(report.meta, _WAYS[way], 0) or own) * (2 if ring > 2 else 1)


def pod(report: Report) -> pd.DataFrame:
    """One row for each IPU of the pod, in order of position.

    ``number`` in the pod, ``rack``, ``machine``, ``replica``, ``ipu`` (the identical one in the
    profile), ``stages`` (their ids), ``shard``, and the columns of `loads`.
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
