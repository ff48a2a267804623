"""Consistency checks on a profile's rows: ids, IPUs, stages, Blocks, replicas, signs, sizes, order.

`ipuscope.profiler.report.Report` runs them once for each column, when it first reads it, and
everything else relies on that: the frames, the rebalancer, the insights, libpva's objects, the
viewer. Each check returns a sentence that says what is wrong, "" if nothing is; `ipu-report doctor`
runs all of them. A profile of a run that did not finish lacks whole tables, as the engine writes
one after the other: references into a table without rows are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ipuscope.profiler.file import records, schema
from ipuscope.profiler.file.bounds import (
    MOST_SUM,
    MOST_TILES,
    Context,
    OfReplica,
    Within,
    rows_of,
)
from ipuscope.profiler.file.columns import Columns

Check = Callable[[Columns], str]

MOST_SAMPLES = 1 << 24  # of a micro-batch

_OF_A_BAR = ("likely", "low", "high", "unmeasured", "models", "share", "rows", "estimates")
_LEAST_FACTOR = 1e-6  # of the predicted speed or bytes
_TEXTS = ("writer", "created", "kind", "model", "state", "strategy", "checksum")


def of_table(record: type[Any], columns: Columns, names: Iterable[str], context: Context) -> str:
    """Problems with columns of a table, in themselves and against what they refer to.

    Runs once for each of ``names``; a check across several columns runs with the first of them.
    """
    return next(filter(None, _wrong(record, columns, set(names), context)), "")


def _wrong(record: type[Any], columns: Columns, names: set[str], context: Context) -> Iterator[str]:
    for column in schema.columns(record):
        if column.bound is not None and column.name in names and column.kind != "vector":
            values = columns.to_check(column.name)
            yield column.bound.problem(f"{record.table}.{column.name}", values, context)
    together, check = _MORE.get(record, ((), None))
    if check is not None and names.intersection(together):
        yield check(columns)
    if record is records.Variable and names & {"start", "stop"}:
        yield _lifetimes(columns, context)


def _lifetimes(columns: Columns, context: Context) -> str:
    """Variables are live at steps of their IPU."""
    ipu = columns["ipu"]
    step_ipu = context.step_ipus()
    if not len(step_ipu) and not context.whole:
        return ""
    inside = step_ipu[(step_ipu >= 0) & (step_ipu < context.ipus())]
    steps = np.bincount(inside, minlength=context.ipus())[ipu]
    start, stop = columns["start"], columns["stop"]
    wrong = (start < 0) | (start > stop) | (stop > steps)
    if not wrong.any():
        return ""
    where = f"the {steps[wrong][0]} steps of IPU {ipu[wrong][0]}"
    return f"the variable {columns['id'][wrong][0]} is live outside {where}"


def _trace(columns: Columns) -> str:
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


def _body(columns: Columns) -> str:
    """A direction is the task of work in a model's operators; other bodies have none."""
    works, direction = columns["kind"] == records.TASK, columns["direction"]
    wrong = (direction != "") & ~(works & (direction == columns["task"]))
    if not wrong.any():
        return ""
    return f"the body {columns['id'][wrong][0]} has the direction {direction[wrong][0]!r}"


def _target(columns: Columns) -> str:
    if len(columns["num_ipus"]) != 1:
        return f"the table target must have one row, and has {len(columns['num_ipus'])}"
    ipus, replicas, each, tiles, most, region0 = (columns[name].item() for name in _TARGET)
    if replicas * each != ipus:
        return f"{ipus} IPUs are not {replicas} replicas of {each}"
    if region0 > most:
        return f"a target cannot have region0_bytes = {region0}"
    every = ipus * tiles
    return f"{every:,} tiles are more than {MOST_TILES:,}" if every > MOST_TILES else ""


# Columns that are checked together, and how.
_IPUS = ("num_ipus", "num_replicas", "ipus_per_replica")
_TARGET = (*_IPUS, "tiles_per_ipu", "bytes_per_tile", "region0_bytes")
_MORE: dict[type[Any], tuple[tuple[str, ...], Check]] = {
    records.Target: (_TARGET, _target),
    records.Body: (("kind", "direction", "task"), _body),
    records.Trace: (("iterations", "iteration_cycles"), _trace),
    records.PipelineCycle: (("trace", "position", "start", "end"), _pipeline_cycle),
    records.Run: (("host_start_us", "host_end_us"), _run),
}


def of_header(meta: dict[str, Any]) -> str:
    """What is wrong with the entries of the header."""
    for name in _TEXTS:
        if not isinstance(meta.get(name, ""), str):
            return f"the header's {name} is {meta[name]!r}, which is not text"
    samples = meta.get("micro_batch", 1)
    if type(samples) is not int or not 1 <= samples <= MOST_SAMPLES:
        return f"the header's micro_batch is {samples!r}, which is not a number of samples"
    return _of_bars(meta)


def _of_bars(meta: dict[str, Any]) -> str:
    """What is wrong with the header's error bars (`ipuscope.profiler.confidence`)."""
    nbytes, cycles = meta.get("byte_error"), meta.get("cycle_error")
    if nbytes and not _is_bar(nbytes, "low", "high"):
        return "the header's byte_error is not two factors, low and high"
    if not isinstance(cycles, dict):
        return ""
    if not _is_bar(cycles, "likely", "unmeasured"):
        return "the header's cycle_error is not made of numbers"
    classes, operators = cycles.get("classes", []), cycles.get("operators", [])
    if not isinstance(classes, list) or not all(_is_bar(one) for one in classes):
        return "the header's cycle_error has classes that are not error bars"
    if not isinstance(operators, list) or set(map(type, operators)) - {int}:
        return "the header's cycle_error has operators that are not positions of classes"
    return ""


def _is_bar(entry: Any, *needed: str) -> bool:
    """Whether an entry has these numbers, and a number wherever a bar has one."""
    if not isinstance(entry, dict) or not isinstance(entry.get("class", ""), str):
        return False
    numbers = {name: entry[name] for name in _OF_A_BAR if name in entry}
    return (
        set(needed) <= numbers.keys()
        and all(type(one) in (int, float) and 0 <= one <= MOST_SAMPLES for one in numbers.values())
        and all(numbers.get(name, 1) >= _LEAST_FACTOR for name in ("low", "high"))
    )


def of_vector(vector: np.ndarray) -> str:
    """What is wrong with cycles, bytes or counts over tiles, of one vector or a table of them."""
    return records.OVER_TILES.problem("a vector over tiles", vector.reshape(-1))


def of_sums(what: str, *columns: np.ndarray) -> str:
    """What is wrong with sums of vectors, from which other sums are computed."""
    most = max(float(np.sum(column, dtype=np.float64)) for column in columns)
    return f"the vectors of {what} add up to {most:.3g}" if most > MOST_SUM else ""


def of_run(run: int, pipeline_cycles: int, whole: bool) -> str:
    """What is wrong with a run that has this many pipeline cycles in the file."""
    return f"run {run} has no pipeline cycles" if whole and not pipeline_cycles else ""


def of_tasks(columns: Mapping[str, np.ndarray], body_ipu: np.ndarray, context: Context) -> str:
    """What is wrong with one device iteration's tasks.

    ``start``, ``end``, ``ipu``, ``micro_batch``, ``pipeline_cycle``, an entry a task; ``body_ipu``:
    the IPU of each one's body.
    """
    for column in schema.columns(records.Trace):
        if column.kind == "vector" and isinstance(column.bound, Within | OfReplica):
            name = column.name.removeprefix("task_")
            wrong = column.bound.problem(f"{name} of a task", columns[name], context)
            if wrong:
                return wrong
    start, end = columns["start"], columns["end"]
    if not len(start):
        return "a run has no tasks"
    if (end < start).any():
        return "a task ends before it starts"
    return "a task runs on another IPU than its body" if (columns["ipu"] != body_ipu).any() else ""


def of_bodies(
    steps: list[np.ndarray], body_ipu: np.ndarray, step_ids: np.ndarray, step_ipu: np.ndarray
) -> str:
    """What is wrong with the steps of bodies: each must exist, on its body's IPU."""
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *steps])
    if not len(ids):
        return ""
    of_body = np.repeat(body_ipu, [len(some) for some in steps])
    row = rows_of(ids, step_ids)
    if row.min() < 0:
        return f"a body has the step {ids[row < 0][0]}, which is missing"
    other = step_ipu[row] != of_body
    return f"the step {ids[other][0]} lies on another IPU than its body" if other.any() else ""
