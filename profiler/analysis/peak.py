"""How far a weight update is from the machine's peak, part by part: MFU, HFU and the gap between.

The unit is the floating-point operations that the tiles' matrix units could have done meanwhile at
their peak: an IPU has 2 x multiply-accumulates x tiles of them a cycle (docs/machine.md#targets).
Each cycle of each tile is in one part, so that the parts and the model's own operations add up to
the machine's exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler import units
from ipuscope.profiler.analysis.critical_path import busy_by_step
from ipuscope.profiler.analysis.pace import pace
from ipuscope.profiler.answers import stored
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.lazy import once
from ipuscope.profiler.report import Report
from ipuscope.profiler.report.frames import first_ones, looked_up, summed

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
    if rates is None or not len(report.trace.columns["id"]) or not pace(report).cycles:
        return None
    steps = _steps(report)
    dtype = _dtype(report, steps)
    if not steps["flops"].sum() or dtype is None:
        return None
    per_tile = 2 * rates[dtype == "float32"]
    tiles, ipus = report.target.tiles_per_ipu, report.target.ipus_per_replica
    machine = pace(report).cycles * ipus * tiles * per_tile
    again = int(steps["flops"][steps["part"] == AGAIN].sum())
    first, which = first_ones(steps["part"], steps["flops"] > 0)
    sums = {"part": steps["part"][first]}
    for name in ("cycles", "busy", "flops"):  # Python's numbers: int64 may be too small
        sums[name] = summed(steps[name], which, len(first)).astype(object)
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
    ops, model, steps = _model(report)
    parts = _parts(steps, top.flops_per_cycle, top.flops_per_cycle // tiles)
    return pd.DataFrame({"op": ops, **parts, "model": model}).groupby("op").sum()


def _model(report: Report) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Operators of steps that have one, the model's operations of each, and these steps."""
    steps = _steps(report)
    steps = {name: values[steps["op"] >= 0] for name, values in steps.items()}
    return steps["op"], np.where(steps["part"] == AGAIN, 0, steps["flops"]), steps


def of_stages(report: Report) -> dict[int, float]:
    """The part of MFU of each stage's operators, by stage: their FLOPs over an IPU's peak, 0..1.

    They add up for an IPU with several stages; the mean over IPUs is MFU. Empty without `peak`.
    """
    top = peak(report)
    if top is None:
        return {}
    ops, model, _ = _model(report)
    row = report.file.rows_of(records.Op, ops)
    there = row >= 0
    stages, which = np.unique(
        report.file.table(records.Op)["stage"][row[there]], return_inverse=True
    )
    flops = summed(model[there], which, len(stages))
    each = top.machine / report.target.ipus_per_replica
    return dict(zip(stages.tolist(), (flops / each).tolist(), strict=True))


@once
def _steps(report: Report) -> dict[str, np.ndarray]:
    """What tasks spend by step: ``op, step, part, cycles``, ``busy`` and ``flops``, executed.

    ``busy``: cycles of all tiles in compute sets, recomputation excluded; ``part``: of `PARTS`; ""
    for these compute sets.
    """
    tasks, body = report.trace.tasks(0, None, 0), report.file.table(records.Body)
    own = ~body.equals("kind", records.BESIDE) & (body["ipu"] < report.target.ipus_per_replica)
    tasks = tasks.where(own[tasks.body])
    length, idle = tasks.end - tasks.start, body.equals("kind", "idle")[tasks.body]
    in_ramp = np.isin(report.trace.phases(0, tasks), [*map(records.PHASES.index, _RAMPS)])
    waited = {RAMPS: length[idle & in_ramp].sum(), WAITING: length[idle & ~in_ramp].sum()}
    spent = busy_by_step(report, named=False)
    counts = own[report.file.rows_of(records.Body, spent["body"])]
    spent = {name: values[counts] for name, values in spent.items()}
    again = np.isin(spent["cause"], _OF_OPERATORS)
    again &= spent["direction"] == Direction.RECOMPUTE
    computes = (spent["cause"] == "compute") & ~again
    part = np.array([_OF_CAUSE.get(cause, "") for cause in spent["cause"].tolist()], dtype=object)
    part[again] = AGAIN
    busy, flops = _work(report, spent["step"]) * spent["times"]
    return {
        "op": np.append(spent["op"], [-1, -1]),
        "step": np.append(spent["step"], [-1, -1]),
        "part": np.append(part, [*waited]),
        "cycles": np.append(spent["cycles"], [*waited.values()]),
        "busy": np.append(np.where(computes, busy, 0), [0, 0]),
        "flops": np.append(np.where(computes | again, flops, 0), [0, 0]),
    }


def _work(report: Report, steps: np.ndarray) -> np.ndarray:
    """Cycles of all tiles and operations of one execution of steps, by id: int64[2, step]."""
    vectors, sums = report.sequence.sums_over_tiles
    at = rows_of(steps, report.sequence.steps_in_order("step"))
    there = at >= 0
    busy_of = np.searchsorted(vectors, report.sequence.steps_in_order("tile_cycles")[at])
    busy = np.where(there, sums[0, busy_of], 0)
    sets = report.file.table(records.ComputeSet)
    here, which = np.unique(report.sequence.steps_in_order("compute_set")[at], return_inverse=True)
    flops_of = dict(zip(sets["id"].tolist(), sets["flops"].tolist(), strict=True))
    flops = np.array([flops_of.get(one, 0) for one in here.tolist()], dtype=np.int64)[which]
    return np.array([busy, np.where(there, flops, 0)])


def _parts(steps: Mapping[str, np.ndarray], per_cycle: int, per_tile: int) -> dict[str, np.ndarray]:
    """Operations of each of `PARTS`, a number for each row."""
    part, cycles, busy, flops = (steps[name] for name in ("part", "cycles", "busy", "flops"))
    whole, at_work = cycles * per_cycle, busy * per_tile
    computes, works = part == "", flops > 0
    return {
        **{name: np.where(part == name, whole, 0) for name in PARTS},
        IDLE_TILES: np.where(computes, whole - at_work, 0),
        REARRANGING: np.where(computes & ~works, at_work, 0),
        BELOW: np.where(computes & works, at_work - flops, 0),
    }


def _dtype(report: Report, steps: Mapping[str, np.ndarray]) -> str | None:
    """The type of operands in which products do most of the operations; None without any."""
    columns, by_type = products(report), {}
    place = rows_of(steps["op"], columns["op"])
    flops = summed(steps["flops"][place >= 0], place[place >= 0], len(columns["op"]))
    for name in sorted({*columns["operands"].tolist()}):
        by_type[str(name)] = int(flops[columns["operands"] == name].sum())
    return max(by_type, key=by_type.__getitem__) if any(by_type.values()) else None


def products(report: Report) -> dict[str, np.ndarray]:
    """Operators with vertices of the matrix unit: ``op, operands`` and ``partials``.

    Types as torch names them; if an operator has several, that of the one with the most operations.
    """
    types, sets = report.file.table(records.VertexType), report.file.table(records.ComputeSet)
    uses = report.file.table(records.VertexUse)
    of_type = {
        id: match.groups()
        for id, name in zip(types["id"].tolist(), types["name"].tolist(), strict=True)
        if (match := _AMP.match(str(name)))
    }
    rows = np.flatnonzero(np.isin(uses["vertex_type"], list(of_type)))
    of_sets, first = np.unique(uses["compute_set"][rows], return_index=True)
    op, of = (report.sequence.steps_in_order(name) for name in ("op", "compute_set"))
    here = np.flatnonzero(np.isin(of, of_sets) & (op >= 0))
    here = here[first_ones(op[here], of[here])[0]]
    flops = looked_up(of[here], sets["id"], sets["flops"], -1)
    here = here[np.argsort(-flops, kind="stable")]
    here = here[first_ones(op[here])[0]]
    type_of = looked_up(of[here], of_sets, uses["vertex_type"][rows[first]], -1)
    both = [of_type[one] for one in type_of.tolist()]
    names = {
        name: np.array([_TYPES[one[at]] for one in both], dtype=object)
        for at, name in enumerate(("operands", "partials"))
    }
    return {"op": op[here], **names}
