"""From bodies to time: costs of stages, the schedule of a device iteration, and its trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ipu_exec.compiler.emission.bodies import ProgramTree
from ipu_exec.compiler.options import CompileOptions
from ipu_exec.compiler.placement.place import Placement
from ipu_exec.enums import SyncPattern
from ipu_exec.machine import EXTERNAL_SYNC_CYCLES
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types, schedules
from ipuscope.profiler.timeline.phased_schedules import Phases, phased, pipelined_phases
from ipuscope.profiler.timeline.schedule_types import (
    BACKWARD,
    COPY,
    ENTER,
    FORWARD,
    IDLE,
    LEAVE,
    LOAD,
    LOADS_BESIDE,
    RECOMPUTE,
    REDUCE,
    RETURN,
    STORES_BESIDE,
    STREAM_IN,
    STREAM_OUT,
    SYNC,
    UNLOAD,
    UPDATE,
    Costs,
)

_DIRECTION = {
    FORWARD: Direction.FORWARD,
    BACKWARD: Direction.BACKWARD,
    UPDATE: Direction.UPDATE,
    RECOMPUTE: Direction.RECOMPUTE,
}
_OVER_IO_TILES = (*LOADS_BESIDE.values(), *STORES_BESIDE.values())  # from streaming memory
_KIND = {
    COPY: "global exchange",
    REDUCE: "global exchange",
    SYNC: "external sync",
    IDLE: "idle",
    STREAM_IN: "host I/O",
    STREAM_OUT: "host I/O",
    LOAD: records.BESIDE,
    UNLOAD: records.BESIDE,
    ENTER: "host I/O",
    RETURN: "host I/O",
    LEAVE: "host I/O",
} | dict.fromkeys(_OVER_IO_TILES, records.BESIDE)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The schedule of one device iteration, and the body of each of its tasks."""

    costs: Costs
    schedule: schedule_types.Schedule
    bodies: tuple[records.Body, ...]
    trace: records.Trace
    pipeline_cycles: tuple[records.PipelineCycle, ...]


def stage_costs(placement: Placement, tree: ProgramTree, options: CompileOptions) -> Costs:
    """The costs that `ipuscope.profiler.timeline.schedules` needs, taken from the bodies."""
    stages, ipus = range(len(placement.stages)), range(placement.num_ipus)

    def per_ipu(task: int) -> tuple[int, ...]:
        spent = [
            sum(b.cycles for b in tree.bodies if b.task == task and b.ipu == ipu) for ipu in ipus
        ]
        return tuple(spent) if any(spent) else ()

    def streams(task: int) -> tuple[tuple[int, int], ...]:
        return tuple((b.stage, b.cycles) for b in tree.bodies if b.task == task)

    return Costs(
        ipus=placement.ipus,
        forward=tuple(tree.cycles(FORWARD, k) for k in stages),
        backward=(
            tuple(tree.cycles(RECOMPUTE, k) + tree.cycles(BACKWARD, k) for k in stages)
            if options.training
            else ()
        ),
        update=per_ipu(UPDATE),
        reduce=per_ipu(REDUCE),
        stream_in=streams(STREAM_IN),
        stream_out=streams(STREAM_OUT),
        stream_out_once=options.outputs_once,
        copies=per_ipu(COPY),
        sync=EXTERNAL_SYNC_CYCLES,
        load=streams(LOAD),
        unload=streams(UNLOAD),
        across=tree.across,
        host_sync=host_groups(options.sync_pattern, placement.num_ipus),
    )


def host_groups(pattern: SyncPattern, ipus: int) -> tuple[int, ...]:
    """The groups of IPUs that sync with the host together (PopART's guide, 'Sync patterns').

    Each alone, or two groups of every other IPU, the sides of the ladder; empty if all together.
    """
    if pattern is SyncPattern.SinglePipeline:
        return tuple(range(ipus))
    return tuple(ipu % 2 for ipu in range(ipus)) if pattern is SyncPattern.ReplicaAndLadder else ()


def phases_of(placement: Placement, tree: ProgramTree, options: CompileOptions) -> Phases:
    """What phased schedules need besides costs: a stage waits for those it receives from."""
    stages = range(len(placement.stages))

    def cycles_of(task: int) -> tuple[int, ...]:
        return tuple(tree.cycles(task, k) for k in stages)

    needs = set()
    for transfer in placement.transfers:
        kind = FORWARD if transfer.direction == Direction.FORWARD else BACKWARD
        source, target = transfer.source, transfer.target
        for stage in range(source + 1, target + 1) if source < target else range(target, source):
            if placement.phases[stage] == placement.phases[source]:
                needs.add((kind, stage, source))
    loads, stores = (
        {kind: tuple(of.get((kind, k), 0) for k in stages) for kind in (FORWARD, BACKWARD)}
        for of in (tree.loads, tree.stores)
    )
    return Phases(
        placement.phases,
        loads,
        stores,
        frozenset(needs),
        options.strategy.parallel_phases and not placement.pipelined,
        {task: cycles_of(task) for task in (ENTER, RETURN, LEAVE)},
        {task: cycles_of(task) for task in _OVER_IO_TILES},
    )


def timeline(placement: Placement, tree: ProgramTree, options: CompileOptions) -> Timeline:
    """Schedule one device iteration. In inference the pipeline is not drained between them."""
    stages = range(len(placement.stages))
    micro_batches = options.micro_batches
    costs = stage_costs(placement, tree, options)
    turns = [[(b.task, b.cycles) for b in tree.all_of(k, RECOMPUTE, BACKWARD)] for k in stages]
    if placement.phases and placement.pipelined:
        phases = phases_of(placement, tree, options)
        schedule = schedules.split_backward(pipelined_phases(costs, micro_batches, phases), turns)
    elif placement.phases:
        schedule = phased(costs, micro_batches, phases_of(placement, tree, options))
    else:
        run = schedules.pipelined if placement.pipelined else schedules.sharded
        schedule = schedules.split_backward(run(costs, micro_batches), turns)
    bodies: list[records.Body] = []
    at: dict[tuple[int, int, int, int], int] = {}
    turn: Counter[tuple[int, int]] = Counter()
    for body, ids in zip(tree.bodies, tree.step_ids, strict=True):
        cycles = np.array([step.cycles for step in body.steps], np.int64)[body.order]
        starts = np.cumsum(cycles) - cycles
        whole = placement.phases and not placement.pipelined
        backward = body.task in (RECOMPUTE, BACKWARD) and not whole
        part = turn[body.ipu, body.stage] if backward else 0
        turn[body.ipu, body.stage] += backward
        at[body.task, body.ipu, body.stage, part] = len(bodies)
        bodies.append(
            records.Body(
                id=len(bodies),
                name=body.name,
                ipu=body.ipu,
                stage=body.stage,
                kind=_KIND.get(body.task, records.TASK),
                direction=_DIRECTION.get(body.task, ""),
                cycles=body.cycles,
                steps=np.array(ids, np.int64)[body.order],
                starts=starts,
                task=schedule_types.TASKS[body.task],
            )
        )
    for ipu in range(placement.num_ipus):
        number = at[IDLE, ipu, -1, 0] = len(bodies)
        none, task = np.zeros(0, np.int64), schedule_types.TASKS[IDLE]
        name = f"IPU {ipu} waits"
        bodies.append(records.Body(number, name, ipu, -1, "idle", "", 0, none, none, task))
    # a copy or sync that an IPU has no body for (nothing crosses it) is not scheduled on it:
    # `sharded`
    parts = schedule.part if schedule.part is not None else np.zeros_like(schedule.kind)
    keyed = (schedule.kind, schedule.ipu, schedule.stage, parts)
    keys = zip(*(column.tolist() for column in keyed), strict=True)
    task_body = np.array([at[key] for key in keys], np.int64)
    trace = records.Trace(
        id=0,
        iterations=options.iterations,
        iteration_cycles=schedule.total,
        task_start=schedule.start,
        task_end=schedule.end,
        task_body=task_body,
        task_ipu=schedule.ipu,
        task_micro_batch=schedule.micro_batch,
        task_pipeline_cycle=schedule.cycle,
    )
    columns = (schedule.cycle_start, schedule.cycle_end, schedule.slowest_ipu)
    rows = zip(schedule.phases, *(column.tolist() for column in columns), strict=True)
    cycles = tuple(records.PipelineCycle(0, position, *row) for position, row in enumerate(rows))
    return Timeline(costs, schedule, tuple(bodies), trace, cycles)
