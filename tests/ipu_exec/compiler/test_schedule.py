"""From bodies to time: costs of stages, facts of phases, and the trace, against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_exec.compiler.emission.loops import Loop
from ipu_exec.compiler.options import CompileOptions, Execution, OutputMode, StrategyOptions
from ipu_exec.compiler.placement.place import Transfer
from ipu_exec.compiler.schedule import host_groups, phases_of, stage_costs, timeline
from ipu_exec.enums import SyncPattern
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.schedule_types import BACKWARD, FORWARD
from tests.ipu_exec.compiler.programs import body, placement, tree

TRAINING = CompileOptions(training=True, micro_batches=4)


def two_stages():
    """Stage 0 recomputes; both have two bodies of some task on their IPU."""
    return tree(
        body(schedule_types.STREAM_IN, 0, 0, 3, 4),
        body(schedule_types.FORWARD, 0, 0, 10, 20),
        body(schedule_types.RECOMPUTE, 0, 0, 5),
        body(schedule_types.BACKWARD, 0, 0, 40),
        body(schedule_types.COPY, 0, -1, 8),
        body(schedule_types.SYNC, 0, -1, 600),
        body(schedule_types.REDUCE, 0, -1, 90),
        body(schedule_types.UPDATE, 0, -1, 7, 6),
        body(schedule_types.FORWARD, 1, 1, 25, 1, loops=(Loop(0, 1, 2),)),
        body(schedule_types.BACKWARD, 1, 1, 44),
        body(schedule_types.STREAM_OUT, 1, 1, 9),
        body(schedule_types.COPY, 1, -1, 8),
        body(schedule_types.SYNC, 1, -1, 600),
        body(schedule_types.REDUCE, 1, -1, 80),
        body(schedule_types.UPDATE, 1, -1, 11),
    )


def test_costs_of_a_stage_are_the_sums_of_its_bodies() -> None:
    costs = stage_costs(placement(0, 1), two_stages(), TRAINING)
    assert costs.ipus == (0, 1)
    assert costs.forward == (30, 51)  # a loop's step counts as often as it runs
    assert costs.backward == (45, 44)  # with what it computes again
    assert costs.update == (13, 11)
    assert costs.reduce == (90, 80)
    assert costs.copies == (8, 8)
    assert costs.stream_in == ((0, 7),)
    assert costs.stream_out == ((1, 9),)
    assert costs.load == costs.unload == ()
    assert costs.sync == 600
    assert costs.host_sync == ()
    assert not costs.stream_out_once
    assert not costs.across


def test_what_no_ipu_does_costs_nothing_and_inference_has_no_backward() -> None:
    forward = tree(
        body(schedule_types.FORWARD, 0, 0, 10), body(schedule_types.LOAD, 0, 0, 2), across=True
    )
    options = CompileOptions(
        training=False, output_mode=OutputMode.Final, sync_pattern=SyncPattern.SinglePipeline
    )
    costs = stage_costs(placement(0), forward, options)
    assert (costs.backward, costs.update, costs.reduce, costs.copies) == ((), (), (), ())
    assert costs.load == ((0, 2),)
    assert costs.stream_out_once
    assert costs.across
    assert costs.host_sync == (0,)


def test_the_ipus_that_sync_with_the_host_together() -> None:
    assert host_groups(SyncPattern.Full, 4) == ()
    assert host_groups(SyncPattern.SinglePipeline, 4) == (0, 1, 2, 3)
    assert host_groups(SyncPattern.ReplicaAndLadder, 4) == (0, 1, 0, 1)


def test_a_stage_of_a_phase_needs_what_other_stages_of_the_phase_send_it() -> None:
    four = placement(
        0,
        1,
        2,
        3,
        pipelined=False,
        phases=(0, 0, 0, 1),
        transfers=(
            Transfer(7, Direction.FORWARD, 0, 3, 3),  # past stages 1 and 2, into another phase
            Transfer(8, Direction.FORWARD, 1, 2, 2),
            Transfer(9, Direction.BACKWARD, 2, 1, 1),
            Transfer(10, Direction.BACKWARD, 3, 0, 0),  # all others are of another phase
        ),
    )
    facts = phases_of(
        four,
        tree(
            body(schedule_types.ENTER, 1, 1, 70),
            body(schedule_types.RETURN, 2, 2, 80),
            body(schedule_types.LEAVE, 3, 3, 90),
            body(schedule_types.LOADS_BESIDE[FORWARD], 0, 0, 50),
            loads={(FORWARD, 0): 5, (BACKWARD, 2): 6},
            stores={(FORWARD, 3): 7},
        ),
        TRAINING,
    )
    assert facts.of_stage == (0, 0, 0, 1)
    assert facts.needs == {
        (FORWARD, 1, 0),
        (FORWARD, 2, 0),
        (FORWARD, 2, 1),
        (BACKWARD, 1, 2),
    }
    assert facts.load == {FORWARD: (5, 0, 0, 0), BACKWARD: (0, 0, 6, 0)}
    assert facts.store == {FORWARD: (0, 0, 0, 7), BACKWARD: (0, 0, 0, 0)}
    assert facts.once == {
        schedule_types.ENTER: (0, 70, 0, 0),
        schedule_types.RETURN: (0, 0, 80, 0),
        schedule_types.LEAVE: (0, 0, 0, 90),
    }
    beside = {task: cycles for task, cycles in facts.beside.items() if any(cycles)}
    assert beside == {schedule_types.LOADS_BESIDE[FORWARD]: (50, 0, 0, 0)}


@pytest.mark.parametrize("pipelined", [False, True])
def test_groups_take_turns_only_where_phases_are_no_pipelines(pipelined: bool) -> None:
    strategy = StrategyOptions(execution=Execution.PHASED, parallel_phases=True)
    options = CompileOptions(training=True, strategy=strategy)
    where = placement(0, 1, pipelined=pipelined, phases=(0, 1))
    assert phases_of(where, tree(), options).parallel is not pipelined
    assert not phases_of(where, tree(), TRAINING).parallel


def test_each_task_of_the_trace_is_the_body_that_it_runs() -> None:
    where, program = placement(0, 1), two_stages()
    laid = timeline(where, program, TRAINING)
    # 4 micro-batches and 2 stages: 4 + 2 (2 - 1) + ... pipeline cycles of the schedule's own count
    assert len(laid.pipeline_cycles) == len(laid.schedule.phases)
    assert [cycle.position for cycle in laid.pipeline_cycles] == list(
        range(len(laid.schedule.phases))
    )
    assert [cycle.start for cycle in laid.pipeline_cycles] == laid.schedule.cycle_start.tolist()
    assert [cycle.end for cycle in laid.pipeline_cycles] == laid.schedule.cycle_end.tolist()
    runs = np.bincount(laid.trace.task_body, minlength=len(laid.bodies))
    named = {(one.task, one.ipu): int(count) for one, count in zip(laid.bodies, runs, strict=True)}
    assert named["forward", 0] == named["forward", 1] == 4
    assert named["recompute", 0] == named["backward", 0] == named["backward", 1] == 4
    assert named["update", 0] == named["update", 1] == 1
    for at, (start, end) in enumerate(zip(laid.trace.task_start, laid.trace.task_end, strict=True)):
        one = laid.bodies[laid.trace.task_body[at]]
        assert one.ipu == laid.trace.task_ipu[at]
        if one.kind in ("task", "global exchange", "host I/O"):
            assert end - start == one.cycles


def test_the_recomputation_of_a_backward_comes_before_it() -> None:
    laid = timeline(placement(0, 1), two_stages(), TRAINING)
    by_task = {}
    for at, number in enumerate(laid.trace.task_body):
        one = laid.bodies[number]
        if one.ipu == 0 and one.task in ("recompute", "backward"):
            by_task.setdefault(one.task, []).append(laid.trace.task_start[at])
    assert [b - a for a, b in zip(by_task["recompute"], by_task["backward"], strict=True)] == [
        5
    ] * 4


def test_a_stage_whose_backward_is_in_two_turns_runs_them_in_turn() -> None:
    program = tree(
        body(schedule_types.FORWARD, 0, 0, 10),
        body(schedule_types.RECOMPUTE, 0, 0, 1),
        body(schedule_types.BACKWARD, 0, 0, 2),
        body(schedule_types.RECOMPUTE, 0, 0, 3),
        body(schedule_types.BACKWARD, 0, 0, 4),
    )
    laid = timeline(placement(0, pipelined=False), program, CompileOptions(training=True))
    ran = [laid.bodies[number].cycles for number in laid.trace.task_body]
    assert [cycles for cycles in ran if cycles] == [10, 1, 2, 3, 4]


def test_rows_of_bodies_have_each_step_as_often_and_when_it_runs() -> None:
    looping = body(schedule_types.FORWARD, 0, 0, 3, 5, 7, loops=(Loop(0, 2, 2),))
    program = tree(body(schedule_types.STREAM_IN, 0, 0, 1, 1), looping)
    options = CompileOptions(training=False, iterations=6)
    laid = timeline(placement(0, pipelined=False), program, options)
    stream, forward, waits = laid.bodies
    assert (forward.steps.tolist(), forward.starts.tolist()) == ([2, 3, 2, 3, 4], [0, 3, 8, 11, 16])
    assert (forward.id, forward.cycles, forward.kind, forward.direction) == (
        1,
        23,
        "task",
        "forward",
    )
    assert (stream.id, stream.steps.tolist(), stream.kind, stream.direction) == (
        0,
        [0, 1],
        "host I/O",
        "",
    )
    assert (waits.id, waits.name, waits.ipu, waits.stage, waits.cycles, waits.kind) == (
        2,
        "IPU 0 waits",
        0,
        -1,
        0,
        "idle",
    )
    assert len(waits.steps) == len(waits.starts) == 0
    assert (laid.trace.id, laid.trace.iterations) == (0, 6)
    assert laid.trace.iteration_cycles == laid.schedule.total


def test_pipelined_stages_work_at_once_and_sharded_ones_in_turn() -> None:
    at_once = timeline(placement(0, 1), two_stages(), TRAINING)
    in_turn = timeline(placement(0, 1, pipelined=False), two_stages(), TRAINING)
    # stage 0's backward is the third stage of the pipeline; the update has a cycle of its own
    assert len(at_once.pipeline_cycles) == (4 + 3 - 1) + 1
    assert in_turn.schedule.total > 4 * (30 + 51 + 44 + 45)


def test_a_phase_runs_its_backward_whole() -> None:
    program = tree(
        body(schedule_types.FORWARD, 0, 0, 10),
        body(schedule_types.BACKWARD, 0, 0, 40),
        body(schedule_types.SYNC, 0, -1, 600),
        body(schedule_types.FORWARD, 0, 1, 20),
        body(schedule_types.BACKWARD, 0, 1, 50),
        stores={(FORWARD, 0): 4},
    )
    laid = timeline(
        placement(0, 0, pipelined=False, phases=(0, 1)), program, CompileOptions(training=True)
    )
    tasks = zip(laid.trace.task_body, laid.trace.task_end - laid.trace.task_start, strict=True)
    bodies = [(laid.bodies[number], int(cycles)) for number, cycles in tasks]
    assert [(one.stage, one.task, cycles) for one, cycles in bodies if one.kind == "task"] == [
        (0, "forward", 10),
        (1, "forward", 20),
        (1, "backward", 50),
        (0, "backward", 40),
    ]
