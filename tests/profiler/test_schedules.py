"""The schedule, compared with its closed forms and brute force (docs/pipeline-schedules.md)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuscope.profiler.timeline import closed_forms, schedule_types, schedules
from ipuscope.profiler.timeline.schedule_types import (
    BACKWARD,
    BESIDE,
    FORWARD,
    IDLE,
    LOAD,
    STREAM_IN,
    UNLOAD,
    Costs,
)
from tests import closed_forms as formulas


def brute_force(forward: list[int], backward: list[int], micro_batches: int, overhead: int) -> int:
    """Apply the rule as stated, cycle by cycle and stage by stage."""
    stages, total = len(forward), 0
    for cycle in range(micro_batches + 2 * stages - 2):
        busy = []
        for k in range(stages):
            runs_forward = 0 <= cycle - k < micro_batches
            runs_backward = 0 <= cycle - (2 * (stages - 1) - k) < micro_batches
            busy.append(forward[k] * runs_forward + backward[k] * runs_backward)
        total += max(busy) + overhead
    return total


costs = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=6)


@given(costs, st.integers(0, 12), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_schedule_equals_closed_form_and_brute_force(stages, extra, overhead):
    forward, backward = [f for f, _ in stages], [b for _, b in stages]
    count = 2 * len(stages) - 1 + extra
    ipus = tuple(range(len(stages)))
    schedule = schedules.pipelined(
        Costs(ipus, tuple(forward), tuple(backward), copies=(overhead,) * len(ipus)), count
    )
    assert schedule.total == brute_force(forward, backward, count, overhead)
    assert schedule.total == closed_forms.training_cycles(forward, backward, count, overhead)


@given(
    costs, st.integers(0, 5), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.data()
)
@settings(max_examples=60, deadline=None)
def test_every_ipu_is_accounted_for_at_every_moment(
    stages, extra, training, pipeline, once, across, data
):
    count = 2 * len(stages) - 1 + extra
    ipus = data.draw(st.permutations(range(len(stages))))
    if len(ipus) > 2 and data.draw(st.booleans()):
        ipus = [*ipus[:-1], ipus[0]]  # the stage list returns to its first IPU
        ipus = [sorted(set(ipus)).index(i) for i in ipus]
    last, total_ipus = len(ipus) - 1, len(set(ipus))
    ipus = tuple(ipus)
    some = Costs(
        ipus,
        tuple(f for f, _ in stages),
        tuple(b for _, b in stages) if training else (),
        update=tuple(range(1, total_ipus + 1)) if training else (),
        reduce=(5,) * total_ipus if training else (),
        stream_in=((0, 7), (last, 9)) if last else ((0, 7),),
        stream_out=((last, 3),),
        stream_out_once=once,
        copies=tuple(range(total_ipus)),
        sync=2,
        load=((0, data.draw(st.integers(0, 90))), (last, 4)) if last else ((0, 8),),
        unload=((last, data.draw(st.integers(0, 90))),),
        across=across and training,
        host_sync=data.draw(
            st.sampled_from(((), tuple(range(total_ipus)), tuple(i % 2 for i in range(total_ipus))))
        ),
    )
    schedule = (schedules.pipelined if pipeline else schedules.sharded)(some, count)
    beside = np.isin(schedule.kind, BESIDE)
    for ipu in range(total_ipus):
        here = (schedule.ipu == ipu) & ~beside
        start, end = schedule.start[here], schedule.end[here]
        assert start[0] == 0 and end[-1] == schedule.total
        assert (start[1:] == end[:-1]).all()
        here = (schedule.ipu == ipu) & beside
        assert (schedule.start[here][1:] >= schedule.end[here][:-1]).all(), (
            "I/O tiles do one transfer at a time"
        )
    _check_transfers(schedule, some, count)
    for kind in (FORWARD, BACKWARD) if training else (FORWARD,):
        for k in range(len(stages)):
            tasks = (schedule.kind == kind) & (schedule.stage == k)
            assert sorted(schedule.micro_batch[tasks]) == list(range(count))
    assert (schedule.cycle_end[schedule.cycle] >= schedule.end).all()


def _check_transfers(schedule: schedule_types.Schedule, costs: Costs, count: int) -> None:
    """Each micro-batch's input arrives before its forward begins; its output leaves after it."""
    begun = {(k, m): s for k, m, s, _ in _tasks(schedule, FORWARD)}
    ended = {(k, m): e for k, m, _, e in _tasks(schedule, FORWARD)}
    for kind, streams in ((LOAD, costs.load), (STREAM_IN, costs.stream_in)):
        transfers = _tasks(schedule, kind)
        assert len(transfers) == count * sum(length > 0 for _, length in streams)
        for k, m, _, end in transfers:
            carried = (
                costs.across and kind == LOAD and m == 0 and end > begun[k, m]
            )  # the next device iteration's
            assert end <= begun[k, m] or carried
    for k, m, start, _ in _tasks(schedule, UNLOAD):
        assert start >= ended[k, m] or (costs.across and m == count - 1)
    assert len(_tasks(schedule, UNLOAD)) == count * sum(length > 0 for _, length in costs.unload)


def _tasks(schedule: schedule_types.Schedule, kind: int) -> list[tuple[int, int, int, int]]:
    of_kind = schedule.kind == kind
    columns = (schedule.stage, schedule.micro_batch, schedule.start, schedule.end)
    return list(zip(*(column[of_kind].tolist() for column in columns), strict=True))


times = st.integers(0, 60)


@given(costs, times, times, st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_overlapped_transfers_cost_what_the_closed_form_says(stages, load, unload, count):
    forward, backward = zip(*stages, strict=True)
    ipus = tuple(range(len(stages)))
    schedule = schedules.sharded(
        Costs(ipus, forward, backward, load=((0, load),), unload=((0, unload),)), count
    )
    work = sum(forward) + sum(backward)
    assert schedule.total == formulas.overlapped_cycles(work, load, unload, count)
    # turn by turn: the load of the next, the work on this one, the unload of the one before
    turns = [max(work, load * (turn + 1 < count) + unload * (turn > 0)) for turn in range(count)]
    assert schedule.total == load + sum(turns) + unload


@given(costs, times, st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_a_pipeline_hides_inputs_that_are_shorter_than_its_cycles(stages, load, extra):
    forward, backward = zip(*stages, strict=True)
    ipus, count = tuple(range(len(stages))), 2 * len(stages) - 1 + extra
    plain = schedules.pipelined(Costs(ipus, forward, backward), count)
    hidden = schedules.pipelined(Costs(ipus, forward, backward, load=((0, load),)), count)
    length = plain.cycle_end - plain.cycle_start
    comes = (
        np.arange(len(length)) + 1 < count
    )  # the input of micro-batch c + 1 comes in pipeline cycle c
    assert hidden.total == load + np.where(comes, np.maximum(length, load), length).sum()
    if load <= length.min():
        assert hidden.total == plain.total + load, "but the first, all are hidden"


def test_the_next_iterations_first_input_overlaps_the_last_micro_batch_and_the_update():
    some = Costs((0,), (10,), (20,), update=(50,), load=((0, 7),), unload=((0, 3),), across=True)
    schedule = schedules.sharded(some, 4)
    assert (schedule.total, schedule.head, schedule.tail) == (4 * 30 + 50, 7, 3)
    of_next = (schedule.kind == LOAD) & (schedule.micro_batch == 0)
    assert schedule.start[of_next].tolist() == [90 + 3], "the one before leaves first"
    within = schedules.sharded(replace(some, across=False), 4)
    assert (within.total, within.head, within.tail) == (4 * 30 + 50 + 7 + 3, 0, 0)
    slow = schedules.sharded(replace(some, load=((0, 200),)), 4)
    assert slow.total == 3 * 203 + 3 + 200, "what outlasts the update is waited for"


def test_ipus_that_sync_with_the_host_alone_do_not_wait_for_each_others_transfers():
    some = Costs((0, 1), (10, 30), (), stream_in=((0, 25),), stream_out=((1, 5),), sync=1)
    full = schedules.pipelined(some, 6)
    alone = schedules.pipelined(replace(some, host_sync=(0, 1)), 6)
    steady = full.phases.index("steady")
    assert full.cycle_end[steady] - full.cycle_start[steady] == 25 + 30 + 1 + 5
    assert alone.cycle_end[steady] - alone.cycle_start[steady] == max(25 + 10, 30 + 5) + 1
    ladder = schedules.pipelined(replace(some, host_sync=(0, 0)), 6)
    assert ladder.total == full.total, "one group is all of them"


def test_sharded_stages_whose_ipus_wait_alone_get_their_inputs_meanwhile():
    some = Costs((0, 1), (10, 30), (), stream_in=((0, 5), (1, 12)), sync=1, copies=(2, 2))
    assert schedules.sharded(some, 1).total == 12 + 10 + 1 + 2 + 30
    assert schedules.sharded(replace(some, host_sync=(0, 1)), 1).total == 5 + 10 + 1 + 2 + 30


def test_worked_example_of_the_page():
    schedule = schedules.pipelined(Costs((0, 1, 2, 3), (1,) * 4, (2,) * 4), 10)
    assert schedule.total == 39
    assert [schedule.phases.count(p) for p in ("ramp-up", "steady", "ramp-down")] == [6, 4, 6]
    lengths = schedule.cycle_end - schedule.cycle_start
    assert lengths.tolist() == [1] * 3 + [3] * 10 + [2] * 3
    idle = (schedule.end - schedule.start)[schedule.kind == IDLE].sum()
    assert (
        idle / (4 * 39)
        == pytest.approx(closed_forms.time_bubble(4, 10))
        == pytest.approx(0.2308, abs=1e-4)
    )
    assert closed_forms.slot_bubble(4, 10) == 0.375
    assert [closed_forms.stash_depth(4, k) for k in range(4)] == [7, 5, 3, 0]


def test_inference_takes_d_plus_k_minus_1_cycles():
    schedule = schedules.pipelined(Costs((0, 1, 2), (4, 4, 4)), 10)
    assert len(schedule.phases) == 12
    assert schedule.total == 48


def test_a_stage_list_that_returns_to_an_ipu_runs_its_stages_one_after_the_other():
    schedule = schedules.pipelined(Costs((0, 1, 2, 3, 0), (1,) * 5, (2,) * 5), 12)
    steady = schedule.phases.index("steady")
    assert schedule.cycle_end[steady] - schedule.cycle_start[steady] == 6
    assert schedule.slowest_ipu[steady] == 0
    both = (schedule.ipu == 0) & (schedule.cycle == steady)
    assert np.sum(schedule.kind[both] == FORWARD) == 2


def test_sharded_runs_one_ipu_at_a_time():
    schedule = schedules.sharded(Costs((0, 1), (3, 4), (5, 6)), 4)
    assert schedule.total == 4 * 18
    assert set(schedule.phases) == {"steady"}
    busy = schedule.kind != IDLE
    moments = sorted(zip(schedule.start[busy], schedule.end[busy], strict=True))
    assert all(a[1] <= b[0] for a, b in pairwise(moments))
