"""The module of libpva's types; annotations name them here (``pva.pva_core.ExecutionStep``)."""

from __future__ import annotations

import os
from dataclasses import field

from ipuscope.profiler.pva.compilation import (
    CompilationReport,
    Graph,
    LiveMemory,
    LivenessProgramStep,
    Target,
)
from ipuscope.profiler.pva.enums import Architecture, ProgramType, TargetType
from ipuscope.profiler.pva.execution import (
    Block,
    Cycles,
    ExecutionReport,
    ExecutionStep,
    Run,
    StepOnIpu,
)
from ipuscope.profiler.pva.lists import Shown, plain
from ipuscope.profiler.pva.operations import DebugContext, Location, Operation, OperationAnalysis
from ipuscope.profiler.pva.programs import (
    ComputeSet,
    DoExchangeProgram,
    GlobalExchangeProgram,
    OnTileExecuteProgram,
    Program,
    ProgramVisitor,
    RepeatProgram,
    SequenceProgram,
    StreamCopyBeginProgram,
    StreamCopyEndProgram,
    StreamCopyMidProgram,
    VertexInstances,
    VertexType,
)
from ipuscope.profiler.pva.report import Report, openReport
from ipuscope.profiler.pva.tiles import IPU, Tile, TileMemory
from ipuscope.profiler.pva.variables import (
    EquivalenceClass,
    Interval,
    LoweredVariable,
    LoweredVariables,
    VariableSize,
)
from ipuscope.profiler.report import open_report

# The vendor has a file of its own for it; here the records of ``libpvti``
# (`ipuscope.profiler.pvti`) and the calls of the model are in the profile or a ``.pvti`` file.


@plain
class Event(Shown):
    """An activity of the host; microseconds."""

    label: str
    timestamp: int
    duration: int
    _children: list[Event] = field(default_factory=list)

    def children(self) -> list[Event]:
        """Events inside this one."""
        return list(self._children)


@plain
class Thread(Shown):
    """A thread of the host."""

    tid: int
    events: list[Event]


@plain
class Process(Shown):
    """A process of the host."""

    pid: int
    threads: list[Thread]


@plain
class Trace(Shown):
    """The host's activity."""

    processes: list[Process]


def openTrace(path: str | os.PathLike[str]) -> Trace:
    """The host's side of a profile, or a ``.pvti`` file: processes, threads, and nested events.

    Calls of the model are events too, in the innermost one that they ran in.
    """
    with open_report(path) as report:
        rows = report.host_events.to_dict("records")
        runs = zip(
            *(report.runs[name].tolist() for name in ("name", "host_start_us", "host_end_us")),
            strict=True,
        )
        calls = [Event(name, start, end - start) for name, start, end in runs]
    events = {
        row["event"]: Event(row["label"], row["start_us"], row["end_us"] - row["start_us"])
        for row in rows
    }
    threads: dict[tuple[int, int], list[Event]] = {}
    for row in rows:
        event, parent = events[row["event"]], events.get(row["parent"])
        if parent is not None:
            parent._children.append(event)
        else:
            threads.setdefault((row["process"], row["thread"]), []).append(event)
    if calls and not threads:
        threads[0, 0] = []
    homes = [_home(call, threads) for call in calls]  # before any is placed: calls do not nest
    for call, home in zip(calls, homes, strict=True):
        home.append(call)
    processes: dict[int, list[Thread]] = {}
    for (pid, tid), thread_events in threads.items():
        processes.setdefault(pid, []).append(Thread(tid, _in_order(thread_events)))
    return Trace([Process(pid, members) for pid, members in processes.items()])


def _home(call: Event, threads: dict[tuple[int, int], list[Event]]) -> list[Event]:
    """The events that a call belongs to: of the innermost around it, else the first thread's."""
    for events in threads.values():
        outer = _spanning(call, events)
        if outer is not None:
            home = events
            while outer is not None:
                home = outer._children
                outer = _spanning(call, home)
            return home
    return next(iter(threads.values()))


def _spanning(call: Event, events: list[Event]) -> Event | None:
    end = call.timestamp + call.duration
    return next(
        (e for e in events if e.timestamp <= call.timestamp and end <= e.timestamp + e.duration),
        None,
    )


def _in_order(events: list[Event]) -> list[Event]:
    for event in events:
        event._children = _in_order(event._children)
    return sorted(events, key=lambda event: event.timestamp)


__all__ = [
    "IPU",
    "Architecture",
    "Block",
    "CompilationReport",
    "ComputeSet",
    "Cycles",
    "DebugContext",
    "DoExchangeProgram",
    "EquivalenceClass",
    "Event",
    "ExecutionReport",
    "ExecutionStep",
    "GlobalExchangeProgram",
    "Graph",
    "Interval",
    "LiveMemory",
    "LivenessProgramStep",
    "Location",
    "LoweredVariable",
    "LoweredVariables",
    "OnTileExecuteProgram",
    "Operation",
    "OperationAnalysis",
    "Program",
    "ProgramType",
    "ProgramVisitor",
    "RepeatProgram",
    "Report",
    "Run",
    "SequenceProgram",
    "StepOnIpu",
    "StreamCopyBeginProgram",
    "StreamCopyEndProgram",
    "StreamCopyMidProgram",
    "Target",
    "TargetType",
    "Tile",
    "TileMemory",
    "VariableSize",
    "VertexInstances",
    "VertexType",
    "openReport",
    "openTrace",
]
