"""When inputs and outputs of the last call travelled, on the modelled clock.

PopTorch's latencies follow from that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ipu_exec.compiler.executable import Executable
from ipu_exec.enums import OutputMode
from profiler import schedules

EVENTS = ("input", "input_complete", "output", "output_complete")
Counters = dict[str, list[list[float]]]
Reduce = Callable[[Sequence[float]], float]


def none() -> Counters:
    """The counters of a model that has not run."""
    return {event: [[]] for event in EVENTS}


def counters(executable: Executable, mode: OutputMode, period: int) -> Counters:
    """Seconds since the call began, ``[event][input or output][micro-batch]``.

    Micro-batches are in the order of the batch: device iteration, accumulation step, replica.
    Replicas run in step. ``mode`` and ``period`` say which outputs were sent; Final and Sum send
    once. An input that nothing reads is not sent: it is complete when it is asked for. Times are
    the schedule's, so they do not differ from call to call.
    """
    graph, placement = executable.graph, executable.placement
    trace, schedule = executable.timeline.trace, executable.timeline.schedule
    seconds = 1 / executable.target.clock_hz
    replicas = executable.options.replicas
    count = int(schedule.micro_batch.max()) + 1
    across = executable.timeline.costs.across

    def times(kind: int, stage: int | None, micro_batch: int) -> tuple[int, int]:
        """Start and end of a transfer.

        Without a stage, the start of the first task of the micro-batch, twice.
        """
        mine = schedule.micro_batch == micro_batch
        if stage is not None:
            found = np.flatnonzero(mine & (schedule.kind == kind) & (schedule.stage == stage))
            if len(found):
                carried = _carried(executable, kind, micro_batch % count)
                return (
                    int(schedule.start[found[0]]) + carried,
                    int(schedule.end[found[0]]) + carried,
                )
        first = int(schedule.start[mine & ~np.isin(schedule.kind, schedules.BESIDE)].min())
        return first, first

    def column(
        kind: int, stage: int | None, end: bool, wanted: Sequence[tuple[int, int]]
    ) -> list[float]:
        made = []
        whole = schedule.head + trace.iterations * trace.iteration_cycles
        for iteration, micro_batch in wanted:
            at = (
                schedule.head
                + iteration * trace.iteration_cycles
                + times(kind, stage, micro_batch)[end]
            )
            if across and kind == schedules.LOAD and (iteration, micro_batch) == (0, 0):
                at = schedule.head * end  # before the first device iteration
            if (
                across
                and kind == schedules.UNLOAD
                and (iteration, micro_batch) == (trace.iterations - 1, count - 1)
            ):
                at = whole + schedule.tail * end  # after the last
            made += [at * seconds] * replicas
        return made

    every = [
        (iteration, micro_batch)
        for iteration in range(trace.iterations)
        for micro_batch in range(count)
    ]
    once = mode in (OutputMode.Final, OutputMode.Sum)
    sent = [(trace.iterations - 1, -1)] if once else every[period - 1 :: period]
    if not executable.options.host_io:  # nothing travels
        every, sent = [], []
    makers: dict[int, int] = {}
    for op in graph.ops:
        for output in op.outputs:
            if output is not None:
                makers.setdefault(graph.values[output].storage, op.id)
    sources: list[tuple[int, int | None]] = []
    for value in graph.inputs:
        storage = graph.values[value].storage
        kind = schedules.LOAD if storage in executable.tree.beside else schedules.STREAM_IN
        sources.append((kind, placement.home.get(storage)))
    sinks: list[tuple[int, int | None]] = []
    for value in graph.outputs:
        storage = graph.values[value].storage
        maker = makers.get(storage)
        kind = schedules.UNLOAD if storage in executable.tree.beside else schedules.STREAM_OUT
        sinks.append(
            (kind, placement.home.get(storage, 0) if maker is None else placement.op_stage[maker])
        )
    return {
        "input": [column(kind, stage, False, every) for kind, stage in sources] or [[]],
        "input_complete": [column(kind, stage, True, every) for kind, stage in sources] or [[]],
        "output": [column(kind, stage, False, sent) for kind, stage in sinks] or [[]],
        "output_complete": [column(kind, stage, True, sent) for kind, stage in sinks] or [[]],
    }


def _carried(executable: Executable, kind: int, micro_batch: int) -> int:
    """Cycles by which a transfer is drawn in another device iteration than its own.

    See `schedules.Costs.across`.
    """
    schedule, trace = executable.timeline.schedule, executable.timeline.trace
    if not executable.timeline.costs.across:
        return 0
    if kind == schedules.LOAD and micro_batch == 0:
        return -trace.iteration_cycles
    return trace.iteration_cycles * (
        kind == schedules.UNLOAD and micro_batch == int(schedule.micro_batch.max())
    )


def latency(
    found: Counters, first: str, of_first: Reduce, last: str, of_last: Reduce
) -> tuple[float, float, float]:
    """Least, most and mean seconds from event ``first`` to ``last``; 0 where nothing was sent.

    Where several micro-batches go in for one output, the first of them counts, as in PopTorch.
    """
    starts = [of_first(step) for step in zip(*found[first], strict=True)]
    ends = [of_last(step) for step in zip(*found[last], strict=True)]
    if not starts or not ends:
        return 0.0, 0.0, 0.0
    group = len(starts) // len(ends)
    begun = [min(starts[i : i + group]) for i in range(0, len(starts), group)]
    spent = [end - start for start, end in zip(begun, ends, strict=True)]
    return min(spent), max(spent), sum(spent) / len(spent)
