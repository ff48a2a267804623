"""The schedule against its closed forms and against brute force (facts/pipeline.md)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler import schedules
from profiler.schedules import BACKWARD, FORWARD, IDLE, Costs


def brute_force(forward: list[int], backward: list[int], micro_batches: int, overhead: int) -> int:
    """Cycle by cycle, stage by stage, straight from the statement of the rule."""
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
@settings(max_examples=150, deadline=None)
def test_schedule_equals_closed_form_and_brute_force(stages, extra, overhead):
    forward, backward = [f for f, _ in stages], [b for _, b in stages]
    count = 2 * len(stages) - 1 + extra
    ipus = tuple(range(len(stages)))
    schedule = schedules.pipelined(Costs(ipus, tuple(forward), tuple(backward), copies=(overhead,) * len(ipus)), count)
    assert schedule.total == brute_force(forward, backward, count, overhead)
    assert schedule.total == schedules.training_cycles(forward, backward, count, overhead)


@given(
    costs,
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_every_ipu_is_accounted_for_at_every_moment(stages, extra, training, pipeline, once, data):
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
    )
    schedule = (schedules.pipelined if pipeline else schedules.sharded)(some, count)
    for ipu in range(total_ipus):
        here = schedule.ipu == ipu
        start, end = schedule.start[here], schedule.end[here]
        assert start[0] == 0 and end[-1] == schedule.total
        assert (start[1:] == end[:-1]).all()
    for kind in (FORWARD, BACKWARD) if training else (FORWARD,):
        for k in range(len(stages)):
            mine = (schedule.kind == kind) & (schedule.stage == k)
            assert sorted(schedule.micro_batch[mine]) == list(range(count))
    assert (schedule.cycle_end[schedule.cycle] >= schedule.end).all()


def test_worked_example_of_the_facts():
    schedule = schedules.pipelined(Costs((0, 1, 2, 3), (1,) * 4, (2,) * 4), 10)
    assert schedule.total == 39
    assert [schedule.phases.count(p) for p in ("ramp-up", "steady", "ramp-down")] == [6, 4, 6]
    lengths = schedule.cycle_end - schedule.cycle_start
    assert lengths.tolist() == [1] * 3 + [3] * 10 + [2] * 3
    idle = (schedule.end - schedule.start)[schedule.kind == IDLE].sum()
    assert idle / (4 * 39) == pytest.approx(schedules.time_bubble(4, 10)) == pytest.approx(0.2308, abs=1e-4)
    assert schedules.slot_bubble(4, 10) == 0.375
    assert [schedules.stash_depth(4, k) for k in range(4)] == [7, 5, 3, 0]


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
