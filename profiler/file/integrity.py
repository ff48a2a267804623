"""Consistency checks between the rows of a profile.

They cover ids, IPUs, stages, Blocks, replicas, signs, sizes and order.

`ipuscope.profiler.report.Report` runs them once for each column, when it first reads it, and
everything else relies on that: the frames, the rebalancer, the insights, libpva's objects, the
viewer. Each check returns a sentence that says what is wrong, "" where nothing is; `ipu-report
doctor` goes through all of them. A profile of a run that did not finish lacks whole tables, as the
engine writes one after the other: references into a table without rows are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipuscope.profiler.file import records

Columns = Mapping[str, np.ndarray]
Check = Callable[[Columns], str]

# Beyond any machine and any model, and far enough from 2^63 that products and sums fit.
MOST_CYCLES = 1 << 53
MOST_BYTES = 1 << 53
MOST_SUM = float(1 << 61)  # of a column, or of vectors
MOST_ON_A_TILE = 1 << 44  # cycles or bytes, an entry of a vector over tiles
MOST_TILES = 1 << 21  # of all IPUs: lists over all of them are made
MOST_IPUS = 1 << 12  # of a replica
MOST_MICRO_BATCHES = 1 << 31
MOST_SAMPLES = 1 << 24  # of a micro-batch

_TEXTS = ("writer", "created", "kind", "model", "state", "strategy", "checksum")


@dataclass(frozen=True)
class Known:
    """What a table is checked against.

    ``ipus``: of a replica; ``ids``: those of another table; ``step_ipus``: where each program step
    lies; ``whole``: the run finished, so that no table is missing.
    """

    ipus: Callable[[], int]
    ids: Callable[[type[Any]], np.ndarray]
    step_ipus: Callable[[], np.ndarray]
    whole: bool


@dataclass(frozen=True)
class Range:
    """The minimum and maximum of a column."""

    column: str
    least: int
    most: int

    def problem(self, table: str, columns: Columns) -> str:
        """What is wrong with the column, in words; empty where nothing is."""
        values = columns[self.column]
        if not len(values):
            return ""
        low, high = values.min(), values.max()
        if low < self.least or high > self.most:
            wrong = low if low < self.least else high
            bounds = f"{self.least} to {self.most}"
            return f"{table}.{self.column} has {wrong}, which is not within {bounds}"
        total = np.sum(values, dtype=np.float64)
        return f"{table}.{self.column} adds up to {total:.3g}" if total > MOST_SUM else ""


@dataclass(frozen=True)
class Reference:
    """A column of ids of another table; -1 is valid where a row may refer to none."""

    column: str
    table: type[Any]
    optional: bool = True

    def problem(self, table: str, columns: Columns, known: Known) -> str:
        """What is wrong with the ids, in words; empty where nothing is."""
        values = columns[self.column]
        asked = values[values != -1] if self.optional else values
        if not len(asked):
            return ""
        ids = known.ids(self.table)
        if not len(ids) and not known.whole:
            return ""
        missing = asked[~np.isin(asked, ids)]
        if not len(missing):
            return ""
        return f"{table}.{self.column} is {missing[0]}, which is not in {self.table.table}"


def _cycles(*names: str) -> tuple[Range, ...]:
    return tuple(Range(name, 0, MOST_CYCLES) for name in names)


def _sizes(*names: str) -> tuple[Range, ...]:
    return tuple(Range(name, 0, MOST_BYTES) for name in names)


def _flags(*names: str) -> tuple[Range, ...]:
    return tuple(Range(name, 0, 1) for name in names)


RANGES: dict[type[Any], tuple[Range, ...]] = {
    records.Stage: (
        *_cycles("forward_cycles", "backward_cycles", "recompute_cycles", "update_cycles"),
        *_sizes("stash_bytes", "weight_bytes", "copy_bytes"),
        Range("stash_depth", 0, MOST_MICRO_BATCHES),
    ),
    records.Block: (
        *_cycles("forward_cycles", "backward_cycles", "update_cycles"),
        *_sizes("weight_bytes", "input_bytes", "copy_bytes", "copy_back_bytes"),
    ),
    records.Op: (
        *_cycles("cycles"),
        *_flags("estimated"),
        Range("flops", 0, 1 << 60),
        Range("line", 0, 1 << 31),
    ),
    records.Program: (Range("position", 0, 1 << 31), Range("repeat", 0, 1 << 40)),
    records.Step: (*_cycles("cycles"), Range("tensor", -1, 1 << 40)),
    records.MovedTensor: (
        *_sizes("bytes"),
        Range("tensor", -1, 1 << 40),
        Range("source", -1, 1 << 16),
        Range("target", -1, 1 << 16),
    ),
    records.ComputeSet: (Range("flops", 0, 1 << 60),),
    records.VertexType: (Range("code_bytes", 0, 1 << 31), Range("state_bytes", 0, 1 << 31)),
    records.Variable: (
        *_sizes("bytes"),
        *_flags("interleaved", "always_live"),
        Range("tensor", -1, 1 << 40),
        Range("parameter", -1, 1 << 40),
    ),
    records.Body: _cycles("cycles"),
    records.Trace: _cycles("iteration_cycles"),
    records.PipelineCycle: (*_cycles("start", "end"), Range("position", 0, 1 << 40)),
    records.Run: (
        Range("cycle_start", 0, 1 << 60),
        Range("host_start_us", 0, 1 << 60),
        Range("host_end_us", 0, 1 << 60),
    ),
}

REFERENCES: dict[type[Any], tuple[Reference, ...]] = {
    records.Block: (Reference("stage", records.Stage),),
    records.Op: (
        Reference("block", records.Block),
        Reference("stage", records.Stage),
        Reference("forward_op", records.Op),
    ),
    records.Step: (
        Reference("program", records.Program, optional=False),
        Reference("body", records.Body),
        Reference("op", records.Op),
        Reference("compute_set", records.ComputeSet),
    ),
    records.MovedTensor: (Reference("step", records.Step, optional=False),),
    records.ComputeSet: (Reference("op", records.Op),),
    records.VertexUse: (
        Reference("compute_set", records.ComputeSet, optional=False),
        Reference("vertex_type", records.VertexType, optional=False),
    ),
    records.Variable: (
        Reference("op", records.Op),
        Reference("block", records.Block),
        Reference("stage", records.Stage),
        Reference("step", records.Step),
    ),
    records.Use: (
        Reference("op", records.Op, optional=False),
        Reference("variable", records.Variable, optional=False),
    ),
    records.Body: (Reference("stage", records.Stage),),
    records.PipelineCycle: (Reference("trace", records.Trace, optional=False),),
}

# Columns that name an IPU of the first replica: the others do the same.
IPUS: dict[type[Any], str] = {
    records.Stage: "ipu",
    records.Block: "ipu",
    records.Op: "ipu",
    records.Step: "ipu",
    records.ComputeSet: "ipu",
    records.Variable: "ipu",
    records.Body: "ipu",
    records.PipelineCycle: "slowest_ipu",
}

# Tables whose ids count 0, 1, 2 ... in the order of their rows: they index lists.
COUNTED = (records.Stage, records.Block)


def of_table(record: type[Any], columns: Columns, names: Iterable[str], known: Known) -> str:
    """Problems with columns of a table, in themselves and against what they refer to.

    Runs once for each of ``names``; a check across several columns runs with the first of them.
    """
    return next(filter(None, _wrong(record, columns, set(names), known)), "")


def _wrong(record: type[Any], columns: Columns, names: set[str], known: Known) -> Iterator[str]:
    table = str(record.table)
    if "id" in names:
        yield _ids(record, columns["id"])
    for bounds in RANGES.get(record, ()):
        if bounds.column in names:
            yield bounds.problem(table, columns)
    ipu = IPUS.get(record, "")
    if ipu in names and len(columns[ipu]):
        yield Range(ipu, 0, known.ipus() - 1).problem(table, columns)
    for reference in REFERENCES.get(record, ()):
        if reference.column in names:
            yield reference.problem(table, columns, known)
    together, check = _MORE.get(record, ((), None))
    if check is not None and names.intersection(together):
        yield check(columns)
    if record is records.Variable and names & {"start", "stop"}:
        yield _lifetimes(columns, known)


def _counted(ids: np.ndarray) -> bool:
    """Whether ids count 0, 1, 2 ..., as the engine's do."""
    return bool((ids == np.arange(len(ids))).all())


def _ids(record: type[Any], ids: np.ndarray) -> str:
    if _counted(ids):
        return ""
    if len(np.unique(ids)) < len(ids):
        return f"{record.table} has an id twice"
    if record in COUNTED and (ids != np.arange(len(ids))).any():
        some = ", ".join(map(str, ids[:8].tolist()))
        return f"the ids of {record.table} must count from 0 on, and are {some}"
    return f"{record.table} has a negative id" if ids.min(initial=0) < 0 else ""


def _lifetimes(columns: Columns, known: Known) -> str:
    """Variables are live at steps of their IPU."""
    ipu = columns["ipu"]
    step_ipu = known.step_ipus()
    if not len(step_ipu) and not known.whole:
        return ""
    inside = step_ipu[(step_ipu >= 0) & (step_ipu < known.ipus())]
    steps = np.bincount(inside, minlength=known.ipus())[ipu]
    start, stop = columns["start"], columns["stop"]
    wrong = (start < 0) | (start > stop) | (stop > steps)
    if not wrong.any():
        return ""
    where = f"the {steps[wrong][0]} steps of IPU {ipu[wrong][0]}"
    return f"the variable {columns['id'][wrong][0]} is live outside {where}"


def _trace(columns: Columns) -> str:
    wrong = columns["iterations"][(columns["iterations"] < 0) | (columns["iterations"] >= 1 << 31)]
    if len(wrong):
        return f"a trace cannot have {wrong[0]} device iterations"
    length = columns["iterations"].astype(np.float64) * columns["iteration_cycles"]
    return "a trace lasts longer than the clock counts" if (length > MOST_SUM).any() else ""


def _pipeline_cycle(columns: Columns) -> str:
    early = columns["end"] < columns["start"]
    if early.any():
        return f"pipeline cycle {columns['position'][early][0]} ends before it starts"
    order = np.lexsort((columns["position"], columns["trace"]))
    trace, position = columns["trace"][order], columns["position"][order]
    wrong = position != np.arange(len(trace)) - np.searchsorted(trace, trace)
    if wrong.any():
        return f"the pipeline cycles of trace {trace[wrong][0]} do not count from 0 on"
    return ""


def _run(columns: Columns) -> str:
    early = columns["host_end_us"] < columns["host_start_us"]
    return f"run {columns['id'][early][0]} ends before it starts" if early.any() else ""


# Columns that are checked together, and how.
_MORE: dict[type[Any], tuple[tuple[str, ...], Check]] = {
    records.Trace: (("iterations", "iteration_cycles"), _trace),
    records.PipelineCycle: (("trace", "position", "start", "end"), _pipeline_cycle),
    records.Run: (("host_start_us", "host_end_us"), _run),
}


# -- what is no table ---


def of_target(target: records.Target) -> str:
    """What is wrong with the machine."""
    if target.num_replicas * target.ipus_per_replica != target.num_ipus:
        return (
            f"{target.num_ipus} IPUs are not {target.num_replicas} replicas of"
            f" {target.ipus_per_replica}"
        )
    for name, most in (
        ("num_ipus", MOST_TILES),
        ("num_replicas", MOST_TILES),
        ("ipus_per_replica", MOST_IPUS),
        ("tiles_per_ipu", 1 << 16),
        ("bytes_per_tile", 1 << 40),
        ("workers_per_tile", 1 << 10),
    ):
        if not 0 < getattr(target, name) <= most:
            return f"a target cannot have {name} = {getattr(target, name)}"
    if not 0 <= target.region0_bytes <= target.bytes_per_tile:
        return f"a target cannot have region0_bytes = {target.region0_bytes}"
    if not 0 < target.clock_hz <= 1e12:  # which NaN is not either
        return f"a target cannot have clock_hz = {target.clock_hz}"
    tiles = target.num_ipus * target.tiles_per_ipu
    return f"{tiles:,} tiles are more than {MOST_TILES:,}" if tiles > MOST_TILES else ""


def of_header(meta: dict[str, Any]) -> str:
    """What is wrong with the header: entries that are not what they must be."""
    for name in _TEXTS:
        if not isinstance(meta.get(name, ""), str):
            return f"the header's {name} is {meta[name]!r}, which is no text"
    samples = meta.get("micro_batch", 0)
    if type(samples) is not int or not 0 <= samples <= MOST_SAMPLES:
        return f"the header's micro_batch is {samples!r}, which is no number of samples"
    return ""


def of_vector(vector: np.ndarray) -> str:
    """What is wrong with cycles, bytes or counts over tiles, of one vector or a table of them."""
    low, high = vector.min(initial=0), vector.max(initial=0)
    if low < 0:
        return f"a tile has {low} of something, fewer than 0"
    return f"a tile has {high} of something, more than can be" if high > MOST_ON_A_TILE else ""


def of_sums(what: str, *columns: np.ndarray) -> str:
    """What is wrong with sums of vectors, from which other sums are computed."""
    most = max(float(np.sum(column, dtype=np.float64)) for column in columns)
    return f"the vectors of {what} add up to {most:.3g}" if most > MOST_SUM else ""


def of_run(run: int, pipeline_cycles: int, whole: bool) -> str:
    """What is wrong with a run of which the file has so many pipeline cycles."""
    return f"run {run} has no pipeline cycles" if whole and not pipeline_cycles else ""


def of_tasks(columns: Columns, body_ipu: np.ndarray, ipus: int) -> str:
    """What is wrong with one device iteration's tasks.

    ``start``, ``end``, ``ipu``, ``micro_batch``, ``pipeline_cycle``, an entry a task; ``body_ipu``:
    where the body of each is.
    """
    start, end = columns["start"], columns["end"]
    if not len(start):
        return ""
    for bounds in (
        Range("start", 0, MOST_CYCLES),
        Range("end", 0, MOST_CYCLES),
        Range("ipu", 0, ipus - 1),
        Range("micro_batch", -1, MOST_MICRO_BATCHES),
        Range("pipeline_cycle", -1, 1 << 40),
    ):
        wrong = bounds.problem("task", columns)
        if wrong:
            return wrong
    if (end < start).any():
        return "a task ends before it starts"
    return "a task runs on another IPU than its body" if (columns["ipu"] != body_ipu).any() else ""


def of_bodies(
    steps: list[np.ndarray], body_ipu: np.ndarray, step_ids: np.ndarray, step_ipu: np.ndarray
) -> str:
    """What is wrong with the steps of bodies: each is there, and lies on its body's IPU."""
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *steps])
    if not len(ids):
        return ""
    of_body = np.repeat(body_ipu, [len(some) for some in steps])
    known = _counted(step_ids) and ids.min() >= 0 and ids.max() < len(step_ids)
    if known and (step_ipu[ids] == of_body).all():
        return ""
    order = np.argsort(step_ids, kind="stable")
    at = np.minimum(np.searchsorted(step_ids, ids, sorter=order), max(0, len(step_ids) - 1))
    matches = step_ids[order][at] == ids if len(step_ids) else np.zeros(len(ids), dtype=bool)
    if not matches.all():
        return f"a body has the step {ids[~matches][0]}, which is missing"
    other = step_ipu[order][at] != of_body
    return f"the step {ids[other][0]} lies on another IPU than its body" if other.any() else ""
