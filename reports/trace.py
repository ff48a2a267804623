"""A run as a trace in Chrome's JSON format, which Perfetto and chrome://tracing open.

After the Trace Event Format
(docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): complete events ("X")
with times in microseconds, metadata events ("M") naming processes and threads, flow events ("s",
"f") from a micro-batch's task on one stage to its next.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiler import records

if TYPE_CHECKING:
    import pandas as pd

    from profiler import Report

# A process for the pipeline, then one an IPU: 0 would be the idle process to some viewers.
PIPELINE, FIRST_IPU = 1, 2
TASKS, STEPS, BESIDE = 1, 2, 3
_COLOURS = {  # names of Catapult's palette, which both viewers know
    "forward": "thread_state_running",
    "backward": "thread_state_runnable",
    "recompute": "thread_state_iowait",
    "update": "good",
    "idle": "grey",
}


def write_trace(
    report: Report, path: Path, run: int = 0, iteration: int | None = None, steps: bool = True
) -> int:
    """Write a run (or one of its device iterations) and give the number of events.

    OSError where it cannot be.

    ``steps``: with program steps, besides tasks. A path ending in .gz is compressed, which viewers
    read too.
    """
    count = 0
    with (
        gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w")
    ) as file:
        file.write('{"displayTimeUnit": "ns", "otherData": ')
        file.write(
            json.dumps(
                {
                    "profile": str(report.path),
                    "model": str(report.meta["model"]),
                    "clock": "modelled",
                }
            )
        )
        file.write(', "traceEvents": [\n')
        for event in events(report, run, iteration, steps):
            file.write((",\n" if count else "") + json.dumps(event))
            count += 1
        file.write("\n]}\n")
    return count


def events(
    report: Report, run: int, iteration: int | None, steps: bool
) -> Iterator[dict[str, Any]]:
    """The events, those that name things first. Times in microseconds from the run's begin."""
    micro = 1e6 / report.target.clock_hz
    tasks = report.tasks(run, iteration=iteration)
    ipus = sorted(set(tasks["ipu"].tolist()))
    blocks = dict(zip(report.stages["ipu"].tolist(), report.stages["blocks"].tolist(), strict=True))
    yield from _names(PIPELINE, "pipeline", {1: "pipeline cycles"})
    for ipu in ipus:
        threads = {TASKS: "tasks", **({STEPS: "program steps"} if steps else {})}
        if (tasks["kind"][tasks["ipu"] == ipu] == records.BESIDE).any():
            threads[BESIDE] = "I/O tiles"
        yield from _names(
            FIRST_IPU + ipu, f"IPU {ipu}" + (f": {blocks[ipu]}" if blocks.get(ipu) else ""), threads
        )
    origin = int(tasks["start"].min()) if len(tasks) else 0
    yield from _pipeline_cycles(report, run, iteration, origin, micro)
    for row in tasks.to_dict("records"):
        args = {"cycles": row["cycles"], "stage": row["stage"], "micro_batch": row["micro_batch"]}
        what = row["direction"] or row["kind"]
        place = (FIRST_IPU + row["ipu"], BESIDE if row["kind"] == records.BESIDE else TASKS)
        event = _slice(row["name"], what, place, row["start"] - origin, row["cycles"], micro, args)
        yield event | ({"cname": _COLOURS[what]} if what in _COLOURS else {})
    yield from _flows(tasks, origin, micro)
    if steps:
        frame = report.steps(run, iteration=iteration)
        names = ("ipu", "name", "kind", "start", "cycles", "step", "op", "micro_batch", "direction")
        for ipu, name, kind, start, cycles, step, op, batch, direction in zip(
            *(frame[column].tolist() for column in names), strict=True
        ):
            if kind not in (
                "idle",
                records.BESIDE,
            ):  # what I/O tiles do is in their own thread, as a whole
                args = {
                    "cycles": cycles,
                    "step": step,
                    "op": op,
                    "micro_batch": batch,
                    "direction": direction,
                }
                yield _slice(
                    name, kind, (FIRST_IPU + ipu, STEPS), start - origin, cycles, micro, args
                )


def _names(process: int, name: str, threads: dict[int, str]) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {
        "ph": "M",
        "pid": process,
        "tid": 0,
        "name": "process_sort_index",
        "args": {"sort_index": process},
    }
    for thread, words in threads.items():
        yield {
            "ph": "M",
            "pid": process,
            "tid": thread,
            "name": "thread_name",
            "args": {"name": words},
        }
        yield {
            "ph": "M",
            "pid": process,
            "tid": thread,
            "name": "thread_sort_index",
            "args": {"sort_index": thread},
        }


def _slice(
    name: str,
    category: str,
    place: tuple[int, int],
    start: int,
    cycles: int,
    micro: float,
    args: dict[str, Any],
) -> dict[str, Any]:
    process, thread = place
    at, length = round(start * micro, 6), round(cycles * micro, 6)
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": name,
        "cat": category,
        "ts": at,
        "dur": length,
        "args": args,
    }


def _pipeline_cycles(
    report: Report, run: int, iteration: int | None, origin: int, micro: float
) -> Iterator[dict[str, Any]]:
    wanted = range(int(report.runs["iterations"].iloc[run])) if iteration is None else [iteration]
    for which in wanted:
        for row in report.pipeline_cycles(run, which).to_dict("records"):
            args = {"cycles": row["cycles"], "slowest_ipu": row["slowest_ipu"], "iteration": which}
            name = f"{row['phase']} {row['position']}"
            yield _slice(
                name, row["phase"], (PIPELINE, 1), row["start"] - origin, row["cycles"], micro, args
            )


def _flows(tasks: pd.DataFrame, origin: int, micro: float) -> Iterator[dict[str, Any]]:
    """Arrows from each micro-batch's task on an IPU to its next task on another."""
    work = tasks[(tasks["direction"] != "") & (tasks["micro_batch"] >= 0)]
    work = work.sort_values(["iteration", "micro_batch", "start"], kind="stable")
    columns = (work[name].tolist() for name in ("iteration", "micro_batch", "ipu", "start", "end"))
    rows = list(zip(*columns, strict=True))
    arrow = 0
    for (iteration, batch, ipu, _, end), (
        next_iteration,
        next_batch,
        next_ipu,
        start,
        _,
    ) in pairwise(rows):
        if (iteration, batch) == (next_iteration, next_batch) and ipu != next_ipu:
            arrow += 1
            same = {"name": f"micro-batch {batch}", "cat": "micro-batch", "id": arrow, "tid": TASKS}
            # The arrow leaves within its slice: an end that is the next slice's begin would be
            # bound to that one.
            yield {
                "ph": "s",
                "pid": FIRST_IPU + ipu,
                "ts": round((end - origin - 1) * micro, 6),
                **same,
            }
            yield {
                "ph": "f",
                "bp": "e",
                "pid": FIRST_IPU + next_ipu,
                "ts": round((start - origin) * micro, 6),
                **same,
            }
