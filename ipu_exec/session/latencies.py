"""Modelled times of the last call's inputs and outputs, and PopTorch's latencies from them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from ipu_exec.compiler.emission.host_streams import makers as graph_makers
from ipu_exec.compiler.executable import Executable
from ipu_exec.enums import OutputMode
from ipuscope.profiler.timeline import schedule_types

EVENTS = ("input", "input_complete", "output", "output_complete")
Counters = dict[str, list[list[float]]]
_Transfer = tuple[int, int | None]  # task, and the stage that has it
_MicroBatch = tuple[int, int]  # device iteration, and the micro-batch in it
Reduce = Callable[[Sequence[float]], float]


def none() -> Counters:
    """The counters of a model that has not run."""
    return {event: [[]] for event in EVENTS}


def counters(executable: Executable, mode: OutputMode, period: int) -> Counters:
    """Seconds since the call began, ``[event][input or output][micro-batch]``.

    Micro-batches are in the batch's order: device iteration, accumulation step, replica; replicas
    run in step. ``mode`` and ``period`` say which outputs were sent; Final and Sum send once. An
    input that nothing reads is complete when requested. All calls have the schedule's times.
    """
    trace, schedule = executable.timeline.trace, executable.timeline.schedule
    count = int(schedule.micro_batch.max()) + 1
    every = [*itertools.product(range(trace.iterations), range(count))]
    once = mode in (OutputMode.Final, OutputMode.Sum)
    sent = [(trace.iterations - 1, -1)] if once else every[period - 1 :: period]
    if not executable.options.host_io:  # nothing travels
        every, sent = [], []
    sources, sinks = _sources(executable), _sinks(executable)

    def columns(transfers: list[_Transfer], end: bool, of: list[_MicroBatch]) -> list[list[float]]:
        return [_column(executable, one, end, of) for one in transfers] or [[]]

    return {
        "input": columns(sources, False, every),
        "input_complete": columns(sources, True, every),
        "output": columns(sinks, False, sent),
        "output_complete": columns(sinks, True, sent),
    }


def _sources(executable: Executable) -> list[_Transfer]:
    """The source of each input."""
    graph, beside = executable.graph, executable.tree.beside
    sources = []
    for value in graph.inputs:
        storage = graph.values[value].storage
        kind = schedule_types.LOAD if storage in beside else schedule_types.STREAM_IN
        sources.append((kind, executable.placement.home.get(storage)))
    return sources


def _sinks(executable: Executable) -> list[_Transfer]:
    """The destination of each output."""
    graph, placement = executable.graph, executable.placement
    makers = graph_makers(graph)
    sinks: list[_Transfer] = []
    for value in graph.outputs:
        storage = graph.values[value].storage
        beside = storage in executable.tree.beside
        kind = schedule_types.UNLOAD if beside else schedule_types.STREAM_OUT
        home, maker = placement.home.get(storage, 0), makers.get(storage)
        sinks.append((kind, home if maker is None else placement.op_stage[maker]))
    return sinks


def _column(
    executable: Executable, transfer: _Transfer, end: bool, micro_batches: list[_MicroBatch]
) -> list[float]:
    """The second at which each micro-batch's transfer starts, or ends if ``end``."""
    trace, schedule = executable.timeline.trace, executable.timeline.schedule
    kind, stage = transfer
    across = executable.timeline.costs.across
    last = (trace.iterations - 1, int(schedule.micro_batch.max()))
    seconds: list[float] = []
    local_replicas = executable.options.replicas // executable.options.instances
    for iteration, micro_batch in micro_batches:
        within = _times(executable, kind, stage, micro_batch)[end]
        at = schedule.head + iteration * trace.iteration_cycles + within
        if across and kind == schedule_types.LOAD and (iteration, micro_batch) == (0, 0):
            at = schedule.head * end  # before the first device iteration
        if across and kind == schedule_types.UNLOAD and (iteration, micro_batch) == last:
            at = executable.cycles_per_call - schedule.tail * (not end)  # after the last
        seconds += [at * (1 / executable.target.clock_hz)] * local_replicas
    return seconds


def _times(
    executable: Executable, kind: int, stage: int | None, micro_batch: int
) -> tuple[int, int]:
    """Start and end of a transfer; without a stage, the start of the first task for both."""
    schedule = executable.timeline.schedule
    in_micro_batch = schedule.micro_batch == micro_batch
    if stage is not None:
        tasks = np.flatnonzero(in_micro_batch & (schedule.kind == kind) & (schedule.stage == stage))
        if len(tasks):
            count = int(schedule.micro_batch.max()) + 1
            carried = _carried(executable, kind, micro_batch % count)
            first = tasks[0]
            return int(schedule.start[first]) + carried, int(schedule.end[first]) + carried
    beside = np.isin(schedule.kind, schedule_types.BESIDE)
    first = int(schedule.start[in_micro_batch & ~beside].min())
    return first, first


def _carried(executable: Executable, kind: int, micro_batch: int) -> int:
    """Cycles by which `Costs.across` shifts a transfer out of its own device iteration."""
    schedule, trace = executable.timeline.schedule, executable.timeline.trace
    if not executable.timeline.costs.across:
        return 0
    if kind == schedule_types.LOAD and micro_batch == 0:
        return -trace.iteration_cycles
    last = kind == schedule_types.UNLOAD and micro_batch == int(schedule.micro_batch.max())
    return trace.iteration_cycles * last


def latency(
    times: Counters, first: str, of_first: Reduce, last: str, of_last: Reduce
) -> tuple[float, float, float]:
    """Least, most and mean seconds from event ``first`` to ``last``; 0 if nothing was sent.

    If several micro-batches produce one output, the first of them counts, as in PopTorch.
    """
    starts = [of_first(step) for step in zip(*times[first], strict=True)]
    ends = [of_last(step) for step in zip(*times[last], strict=True)]
    if not starts or not ends:
        return 0.0, 0.0, 0.0
    group = len(starts) // len(ends)
    begun = [min(starts[i : i + group]) for i in range(0, len(starts), group)]
    spent = [end - start for start, end in zip(begun, ends, strict=True)]
    return min(spent), max(spent), statistics.fmean(spent)
