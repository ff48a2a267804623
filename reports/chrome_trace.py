"""Runs as a trace in Chrome's JSON format, which Perfetto and chrome://tracing open.

Follows the Trace Event Format
(docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): complete events ("X")
with times in microseconds, metadata events ("M") naming processes and threads, flow events ("s",
"f") from a micro-batch's task on one stage to its next, counter events ("C").

Perfetto counts whole nanoseconds; a modelled cycle is 0.5 to 1 ns. Starts and ends are therefore
rounded to nanoseconds and durations are their differences: consecutive slices never overlap, which
Perfetto would drop.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.analysis.host_clock import host_lanes, host_timeline
from ipuscope.profiler.file import records

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler import Report

Event = dict[str, Any]
# A process for the pipeline, then one per IPU: some viewers take 0 for the idle process.
PIPELINE, FIRST_IPU = 1, 2
TASKS, STEPS, BESIDE = 1, 2, 3
HOST = 1_000_000  # a process behind all IPUs
CALLS = 2  # a thread of the pipeline's process
_COLOURS = {  # names of Catapult's palette, which both viewers know
    "forward": "thread_state_running",
    "backward": "thread_state_runnable",
    "recompute": "thread_state_iowait",
    "update": "good",
    "idle": "grey",
}


@dataclass(frozen=True, slots=True)
class Clock:
    """Converts cycles on the clock of all runs to the trace's time, which begins at 0."""

    origin: int
    hz: float

    def nanoseconds(self, cycle: int) -> int:
        """Nanoseconds from the trace's origin."""
        return round((cycle - self.origin) * 1e9 / self.hz)

    def time(self, cycle: int) -> float:
        """Microseconds."""
        return microseconds(self.nanoseconds(cycle))

    def span(self, start: int, end: int) -> dict[str, float]:
        """``ts`` and ``dur`` of what lasts from a cycle to another."""
        first, last = self.nanoseconds(start), self.nanoseconds(end)
        return {"ts": microseconds(first), "dur": microseconds(last - first)}


def microseconds(nanoseconds: int) -> float:
    """Microseconds that truncate back to the same nanoseconds: 1001 / 1000 x 1000 does not."""
    value = nanoseconds / 1000
    return value if int(value * 1000) == nanoseconds else math.nextafter(value, math.inf)


def write_trace(
    report: Report,
    path: Path,
    run: int | None = None,
    iteration: int | None = None,
    steps: bool = True,
) -> int:
    """Write all runs, one run, or one of its device iterations; return the number of events.

    ``steps``: write program steps and counters besides tasks. A path ending in .gz is compressed,
    which viewers read too. Raises OSError on failure.
    """
    about = {
        "profile": str(report.path),
        "model": str(report.meta["model"]),
        "clock": "predicted" if report.predicted else "modelled",
    }
    head = {"displayTimeUnit": "ns", "otherData": about}
    count = 0
    with (
        gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w")
    ) as file:
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        for event in events(report, run, iteration, steps):
            file.write((",\n" if count else "") + json.dumps(event))
            count += 1
        file.write("\n]}\n")
    return count


def events(report: Report, run: int | None, iteration: int | None, steps: bool) -> Iterator[Event]:
    """The events, metadata first. Times in microseconds from the start of the first run.

    ``run`` None: all of them, as they follow each other on the device's clock.
    """
    wanted = report.runs["run"].tolist() if run is None else [run]
    first = report.tasks(wanted[0], iteration=iteration)
    clock = Clock(int(first["start"].min()) if len(first) else 0, report.target.clock_hz)
    yield from _process_names(report, first, steps)
    arrow, origin = 0, clock.origin
    with_host = run is None and iteration is None and len(report.host_events) > 0
    if with_host:
        yield from _host(report)
    for one in wanted:
        if with_host:  # the host's time between the calls
            clock = Clock(origin - int(host_timeline(report).shift[one]), clock.hz)
        tasks = report.tasks(one, iteration=iteration)
        yield from _calls(report, one, tasks, clock)
        yield from _pipeline_cycles(report, one, iteration, clock)
        yield from _tasks(tasks, clock)
        for event in _flows(tasks, clock, arrow):
            arrow = int(event["id"])
            yield event
        if steps:
            frame = report.steps(one, iteration=iteration)
            yield from _steps(frame, clock)
            yield from _counters(report, frame, clock)


def _host(report: Report) -> Iterator[Event]:
    """The host's activity, one track per thread, on the IPUs' timeline (`host_clock`)."""
    lanes = host_lanes(report)
    numbers: dict[tuple[int, int], int] = {}
    for row in lanes.to_dict("records"):
        thread = row["process"], row["thread"]
        if thread not in numbers:
            numbers[thread] = len(numbers) + 1
            name = {numbers[thread]: f"host thread {thread[1]} of process {thread[0]}"}
            yield from _names(HOST, "host", name)
        first, last = round(row["start_us"] * 1e3), round(row["end_us"] * 1e3)
        span = {"ts": microseconds(first), "dur": microseconds(last - first)}
        args = {"channel": row["channel"]}
        yield _slice(row["label"], "host", (HOST, numbers[thread]), span, args)


def _process_names(report: Report, tasks: pd.DataFrame, steps: bool) -> Iterator[Event]:
    yield from _names(PIPELINE, "pipeline", {1: "pipeline cycles", CALLS: "calls"})
    stages = report.stages
    for ipu in sorted(set(tasks["ipu"].tolist())):
        here = stages[stages["ipu"] == ipu]
        blocks = ", ".join(name for name in here["blocks"].tolist() if name)
        stage = _stage_name(here["stage"].tolist())
        threads = {TASKS: f"{stage}tasks".strip()}
        if steps:
            threads[STEPS] = f"{stage}program steps"
        if (tasks["kind"][tasks["ipu"] == ipu] == records.BESIDE).any():
            threads[BESIDE] = "I/O tiles"
        yield from _names(
            FIRST_IPU + ipu, f"IPU {ipu}" + (f": {blocks}" if blocks else ""), threads
        )


def _stage_name(stages: Sequence[int]) -> str:
    """The words "stage 2 ", "stages 0, 3 ", or none."""
    if not stages:
        return ""
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))} "


def _names(process: int, name: str, threads: dict[int, str]) -> Iterator[Event]:
    yield _named(process, 0, "process_name", name=name)
    yield _named(process, 0, "process_sort_index", sort_index=process)
    for thread, words in threads.items():
        yield _named(process, thread, "thread_name", name=words)
        yield _named(process, thread, "thread_sort_index", sort_index=thread)


def _named(process: int, thread: int, what: str, **args: Any) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": args}


def _slice(
    name: str, category: str, place: tuple[int, int], span: dict[str, float], args: dict[str, Any]
) -> Event:
    process, thread = place
    where = {"ph": "X", "pid": process, "tid": thread, "name": name, "cat": category}
    return {**where, **span, "args": args}


def _calls(report: Report, run: int, tasks: pd.DataFrame, clock: Clock) -> Iterator[Event]:
    """The call itself, as far as the trace covers it."""
    if not len(tasks):
        return
    start, end = int(tasks["start"].min()), int(tasks["end"].max())
    args = {"run": run, "cycles": end - start, "predicted": report.predicted}
    name = str(report.runs["name"].iloc[run])
    yield _slice(name, "call", (PIPELINE, CALLS), clock.span(start, end), args)


def _pipeline_cycles(
    report: Report, run: int, iteration: int | None, clock: Clock
) -> Iterator[Event]:
    wanted = range(int(report.runs["iterations"].iloc[run])) if iteration is None else [iteration]
    for which in wanted:
        for row in report.pipeline_cycles(run, which).to_dict("records"):
            args = {"cycles": row["cycles"], "slowest_ipu": row["slowest_ipu"], "iteration": which}
            span = clock.span(row["start"], row["end"])
            name = f"{row['phase']} {row['position']}"
            yield _slice(name, row["phase"], (PIPELINE, 1), span, args)


def _tasks(tasks: pd.DataFrame, clock: Clock) -> Iterator[Event]:
    for row in tasks.to_dict("records"):
        args = {"cycles": row["cycles"], "stage": row["stage"], "micro_batch": row["micro_batch"]}
        what = row["direction"] or row["kind"]
        place = (FIRST_IPU + row["ipu"], BESIDE if row["kind"] == records.BESIDE else TASKS)
        event = _slice(row["name"], what, place, clock.span(row["start"], row["end"]), args)
        yield event | ({"cname": _COLOURS[what]} if what in _COLOURS else {})


def _steps(frame: pd.DataFrame, clock: Clock) -> Iterator[Event]:
    """Program steps; those of I/O tiles share a thread of their own."""
    shown = frame[~frame["kind"].isin(["idle", records.BESIDE])]
    about = ("cycles", "step", "op", "micro_batch", "direction")
    columns = [shown[name].tolist() for name in ("ipu", "name", "kind", "start", "end", *about)]
    for ipu, name, kind, start, end, *rest in zip(*columns, strict=True):
        args = dict(zip(about, rest, strict=True))
        yield _slice(name, kind, (FIRST_IPU + ipu, STEPS), clock.span(start, end), args)


def _flows(tasks: pd.DataFrame, clock: Clock, arrow: int) -> Iterator[Event]:
    """Arrows from a micro-batch's task to its next on another IPU, numbered from ``arrow`` + 1."""
    work = tasks[(tasks["direction"] != "") & (tasks["micro_batch"] >= 0)]
    work = work.sort_values(["iteration", "micro_batch", "start"], kind="stable")
    columns = (work[name].tolist() for name in ("iteration", "micro_batch", "ipu", "start", "end"))
    for before, after in pairwise(zip(*columns, strict=True)):
        iteration, batch, ipu, begin, end = before
        if (iteration, batch) != after[:2] or ipu == after[2]:
            continue
        arrow += 1
        same = {"name": f"micro-batch {batch}", "cat": "micro-batch", "id": arrow, "tid": TASKS}
        # The arrow leaves within its slice: at the end it would be bound to the next slice.
        leaves = max(clock.nanoseconds(begin), clock.nanoseconds(end) - 1)
        yield {"ph": "s", "pid": FIRST_IPU + ipu, "ts": microseconds(leaves), **same}
        arrives = clock.time(after[3])
        yield {"ph": "f", "bp": "e", "pid": FIRST_IPU + after[2], "ts": arrives, **same}


def _counters(report: Report, frame: pd.DataFrame, clock: Clock) -> Iterator[Event]:
    """Counters of each IPU over its steps: live bytes, busy tiles, bytes sent between IPUs.

    A value holds until the next; repeated values are left out.
    """
    frame = frame[frame["kind"] != records.BESIDE]
    program = report.program_steps().set_index("step")[
        ["position", "active_tiles", "bytes_out", "kind"]
    ]
    for ipu in sorted(set(frame["ipu"].tolist())):
        steps_of_ipu = frame[frame["ipu"] == ipu]
        has_step = steps_of_ipu["step"].to_numpy() >= 0
        about = program.reindex(steps_of_ipu["step"])
        total = report.liveness(ipu)["total"].to_numpy()
        position = about["position"].fillna(0).to_numpy(np.int64)
        over_links = (about["kind"] == "global exchange").to_numpy() & has_step
        busy = np.where(has_step, about["active_tiles"].fillna(0), 0)
        sent = np.where(over_links, about["bytes_out"].fillna(0), 0)
        # waiting changes nothing that is live: the value before it
        last = np.maximum.accumulate(np.where(has_step, np.arange(len(steps_of_ipu)), 0))
        live = total[position[last]] if len(total) else np.zeros(len(steps_of_ipu))
        start = steps_of_ipu["start"].to_numpy()
        for name, unit, values in (
            ("live bytes", "bytes", live),
            ("busy tiles", "tiles", busy),
            ("link bytes", "bytes", sent),
        ):
            changes = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
            for at, value in zip(start[changes].tolist(), values[changes].tolist(), strict=True):
                where = {"ph": "C", "pid": FIRST_IPU + ipu, "name": name}
                yield {**where, "ts": clock.time(at), "args": {unit: int(value)}}
