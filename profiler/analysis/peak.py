"""How far a weight update is from the machine's peak, part by part: MFU, HFU and the gap between.

The unit is the floating-point operations that the tiles' matrix units could have done meanwhile at
their peak: an IPU has 2 x multiply-accumulates x tiles of them a cycle (docs/machine.md#targets).
Each cycle of each tile is in one part, so that the parts and the model's own operations add up to
the machine's exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler import units
from ipuscope.profiler.analysis.critical_path import spent_by_step
from ipuscope.profiler.analysis.pace import pace
from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report

if TYPE_CHECKING:
    import pandas as pd

# Multiply-accumulates that a tile does in a cycle, in half and in single precision
# (docs/machine.md#targets).
MACS_PER_CYCLE = {"ipu1": (32, 8), "ipu2": (64, 16), "ipu21": (64, 16)}
# Elements of the vector unit's 64 bits, each multiplied and added in a cycle, in half and single
# precision (docs/machine.md#targets).
VECTOR_PER_CYCLE = (4, 2)
# Vertices of the matrix unit: types of operands and of partials, outputs a pass.
_AMP = re.compile(r"poplin::ConvPartial(?:1x1Out|nx1|1xNSLIC)<(half|float),(half|float)\b")
_TYPES = {"half": "float16", "float": "float32"}
WAITING, RAMPS, LINKS = "waiting", "ramps", "exchange between IPUs"
HOST, STREAMING = "host I/O", "streaming memory"
EXCHANGE, SYNC, STASH = "on-chip exchange", "sync", "stash"
AGAIN, IDLE_TILES = "recomputation", "idle tiles"
REARRANGING, BELOW = "rearranging", "vertices below peak"
# Of the waterfall, from 100 % down, and what each is.
PARTS = {
    WAITING: "IPUs wait for others, or for the host, with the pipeline full",
    RAMPS: "IPUs wait while the pipeline fills and drains",
    HOST: "inputs come from the host, outputs go there",
    STREAMING: "weights, state or activations come from streaming memory, or go there",
    LINKS: "copies and collectives over links",
    AGAIN: "forward operators that run again for the backward pass, all that they take",
    EXCHANGE: "tiles send and receive operands",
    SYNC: "tiles and IPUs sync",
    STASH: "activations go into the stash and out of it",
    IDLE_TILES: "tiles wait for the slowest one in compute sets",
    REARRANGING: "vertices that copy, cast or fill: no operations",
    BELOW: "vertices do fewer operations a cycle than the matrix unit could",
}
SHORT = {"float16": "fp16", "float32": "fp32"}
_OF_CAUSE = {
    "exchange on chip": EXCHANGE,
    "sync": SYNC,
    "stash": STASH,
    "copy between IPUs": LINKS,
    "collective over replicas": LINKS,
    "collective over shards": LINKS,
    "host I/O": HOST,
    "streaming memory": STREAMING,
    "waiting": WAITING,
}
_OF_OPERATORS = ("compute", "exchange on chip", "sync")
_RAMPS = ("ramp-up", "ramp-down")


@dataclass(frozen=True)
class Peak:
    """A device iteration of a replica against the peak of its IPUs.

    ``dtype``: of the products that do most of the operations, whose peak is meant;
    ``flops_per_cycle``: an IPU's peak in it. ``machine``: operations that the IPUs could have done;
    ``model``: those of forward, backward and update, each execution counted, as in the profile;
    ``again``: those of recomputation. ``parts``: the rest of the machine's by `PARTS`; with
    ``model`` they add up to it.
    """

    dtype: str
    flops_per_cycle: int
    machine: int
    model: int
    again: int
    parts: dict[str, int]

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, 0..1: without recomputation."""
        return self.model / self.machine

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation, 0..1: with recomputation."""
        return (self.model + self.again) / self.machine

    @property
    def words(self) -> str:
        """``11.2% MFU, 13.0% HFU: all operators' FLOPs against the fp16 peak, ...``."""
        of, mfu, hfu = (SHORT[self.dtype], *map(units.percent, (self.mfu, self.hfu)))
        counted = f"all operators' FLOPs against the {of} peak, HFU with recomputation"
        return f"{mfu} MFU, {hfu} HFU: {counted}"

    @property
    def rows(self) -> list[tuple[str, float]]:
        """The waterfall: parts with their share of the peak, 0..1, none left out, then MFU."""
        parts = [(name, self.parts[name] / self.machine) for name in PARTS]
        return [*parts, ("MFU", self.mfu)]

    @property
    def lost(self) -> str:
        """``35.1% exchange between IPUs, 21.6% waiting, ...``: parts over 0.05 %, largest first."""
        rows = sorted(self.rows[:-1], key=lambda one: -one[1])
        return ", ".join(f"{units.percent(part)} {name}" for name, part in rows if part >= 0.0005)


@stored
def peak(report: Report) -> Peak | None:
    """MFU, HFU and the gap to the peak, of the first run's first device iteration.

    None without a schedule, without operations, or if the peak of the machine is not in our tables.
    """
    rates = MACS_PER_CYCLE.get(report.target.architecture.lower())
    if rates is None or not len(report.runs) or not pace(report).cycles:
        return None
    steps = _steps(report)
    dtype = _dtype(report, steps)
    if not steps["flops"].sum() or dtype is None:
        return None
    per_tile = 2 * rates[dtype == "float32"]
    tiles, ipus = report.target.tiles_per_ipu, report.target.ipus_per_replica
    machine = pace(report).cycles * ipus * tiles * per_tile
    again = int(steps.loc[steps["part"] == AGAIN, "flops"].sum())
    works = steps["flops"] > 0
    sums = steps.groupby(["part", works])[["cycles", "busy", "flops"]].sum()
    sums = sums.astype(object).reset_index(level="part")  # Python's numbers: int64 may be too small
    parts = {part: int(sum(own)) for part, own in _parts(sums, tiles * per_tile, per_tile).items()}
    model = int(steps["flops"].sum()) - again
    parts[WAITING] += machine - model - sum(parts.values())  # of IPUs that have no tasks
    return Peak(dtype, per_tile * tiles, machine, model, again, parts)


def lost(report: Report) -> pd.DataFrame:
    """The machine's operations that each operator takes: the rows that `peak` adds up.

    Index: ids of operators that ran; a column for each of `PARTS`, and ``model``. int64.
    """
    import pandas as pd

    top, tiles = peak(report), report.target.tiles_per_ipu
    if top is None:
        return pd.DataFrame(columns=[*PARTS, "model"], dtype=np.int64).rename_axis("op")
    steps = _steps(report)
    steps = steps[steps["op"] >= 0]
    parts = _parts(steps, top.flops_per_cycle, top.flops_per_cycle // tiles)
    model = np.where(steps["part"] == AGAIN, 0, steps["flops"])
    return pd.DataFrame({"op": steps["op"].to_numpy(), **parts, "model": model}).groupby("op").sum()


def of_stages(report: Report) -> pd.Series[float]:
    """The part of MFU of each stage's operators, by stage: their FLOPs over an IPU's peak, 0..1.

    They add up for an IPU with several stages; the mean over IPUs is MFU. Empty without `peak`.
    """
    top = peak(report)
    model = lost(report)["model"]
    stage = report.ops["stage"].reindex(model.index)
    each = top.machine / report.target.ipus_per_replica if top else 1.0
    shares = model.groupby(stage).sum() / each
    shares.index.name = "stage"
    return shares


def _steps(report: Report) -> pd.DataFrame:
    """What tasks spend by step: ``op, step, part, cycles``, ``busy`` and ``flops``, executed.

    ``busy``: cycles of all tiles in compute sets, recomputation excluded; ``part``: of `PARTS`; ""
    for these compute sets.
    """
    return report.file.once("steps against the peak", lambda: _spent(report))


def _spent(report: Report) -> pd.DataFrame:
    import pandas as pd

    tasks = report.tasks(0, iteration=0)
    tasks = tasks[tasks["ipu"] < report.target.ipus_per_replica]
    tasks = tasks[tasks["kind"].astype(str) != records.BESIDE]
    in_ramp = tasks["phase"].astype(str).isin(_RAMPS)
    idle = (tasks["kind"].astype(str) == "idle").to_numpy()
    waits = tasks.loc[idle, "cycles"].groupby(in_ramp[idle]).sum()
    counts = tasks.loc[~idle, ["body", "cycles"]].value_counts(sort=False).rename("times")
    pieces = counts.reset_index().rename(columns={"cycles": "length"})
    spent = spent_by_step(report, pieces.assign(phase=""))
    own = spent["cause"].isin(_OF_OPERATORS).to_numpy()
    again = own & (spent["direction"].astype(str) == Direction.RECOMPUTE).to_numpy()
    computes = (spent["cause"] == "compute").to_numpy() & ~again
    part = spent["cause"].astype(str).map(_OF_CAUSE).fillna("").to_numpy(dtype=object)
    part[again] = AGAIN
    busy, flops = _work(report, spent["step"].to_numpy()) * spent["times"].to_numpy()
    rows = spent[["op", "step", "cycles"]].assign(
        part=part, busy=np.where(computes, busy, 0), flops=np.where(computes | again, flops, 0)
    )
    waited = [(RAMPS, int(waits.get(True, 0))), (WAITING, int(waits.get(False, 0)))]
    none = {"op": -1, "step": -1, "busy": 0, "flops": 0}
    waiting = pd.DataFrame([{**none, "part": name, "cycles": many} for name, many in waited])
    return pd.concat([rows, waiting], ignore_index=True)


def _work(report: Report, steps: np.ndarray) -> np.ndarray:
    """Cycles of all tiles and operations of one execution of steps, by id: int64[2, step]."""
    vectors, sums = report.sequence.sums_over_tiles
    ids = report.sequence.steps_in_order("step")
    order = np.argsort(ids, kind="stable")
    at = order[np.minimum(np.searchsorted(ids, steps, sorter=order), len(ids) - 1)]
    there = ids[at] == steps
    busy_of = np.searchsorted(vectors, report.sequence.steps_in_order("tile_cycles")[at])
    busy = np.where(there, sums[0, busy_of], 0)
    sets = report.file.table(records.ComputeSet)
    here, which = np.unique(report.sequence.steps_in_order("compute_set")[at], return_inverse=True)
    flops_of = dict(zip(sets["id"].tolist(), sets["flops"].tolist(), strict=True))
    flops = np.array([flops_of.get(one, 0) for one in here.tolist()], dtype=np.int64)[which]
    return np.array([busy, np.where(there, flops, 0)])


def _parts(steps: pd.DataFrame, per_cycle: int, per_tile: int) -> dict[str, np.ndarray]:
    """Operations of each of `PARTS`, a number for each row."""
    part, cycles, busy, flops = (
        steps[name].to_numpy() for name in ("part", "cycles", "busy", "flops")
    )
    whole, at_work = cycles * per_cycle, busy * per_tile
    computes, works = part == "", flops > 0
    return {
        **{name: np.where(part == name, whole, 0) for name in PARTS},
        IDLE_TILES: np.where(computes, whole - at_work, 0),
        REARRANGING: np.where(computes & ~works, at_work, 0),
        BELOW: np.where(computes & works, at_work - flops, 0),
    }


def _dtype(report: Report, steps: pd.DataFrame) -> str | None:
    """The type of operands in which products do most of the operations; None without any."""
    flops = steps["flops"].groupby(steps["op"]).sum()
    types = products(report)["operands"]
    by_type = flops.reindex(types.index).fillna(0).groupby(types).sum()
    return str(by_type.idxmax()) if by_type.any() else None


def products(report: Report) -> pd.DataFrame:
    """Operators with vertices of the matrix unit, by id: ``operands`` and ``partials``.

    Types as torch names them; if an operator has several, that of the one with the most operations.
    """
    import pandas as pd

    types, sets = report.file.table(records.VertexType), report.file.table(records.ComputeSet)
    uses = report.file.table(records.VertexUse)
    of_type = {
        id: match.groups()
        for id, name in zip(types["id"].tolist(), types["name"].tolist(), strict=True)
        if (match := _AMP.match(str(name)))
    }
    rows = np.flatnonzero(np.isin(uses["vertex_type"], list(of_type)))
    by_set = pd.Series(uses["vertex_type"][rows], index=uses["compute_set"][rows])
    steps = pd.DataFrame(
        {name: report.sequence.steps_in_order(name) for name in ("op", "compute_set")}
    )
    steps = steps[steps["compute_set"].isin(by_set.index) & (steps["op"] >= 0)].drop_duplicates()
    steps["flops"] = pd.Series(sets["flops"], index=sets["id"]).reindex(steps["compute_set"]).array
    steps["type"] = by_set[~by_set.index.duplicated()].reindex(steps["compute_set"]).array
    steps = steps.sort_values("flops", ascending=False, kind="stable").drop_duplicates("op")
    both = [of_type[one] for one in steps["type"].tolist()]
    names = {
        name: [_TYPES[one[at]] for one in both] for at, name in enumerate(("operands", "partials"))
    }
    return pd.DataFrame(names, index=pd.Index(steps["op"], name="op"))
