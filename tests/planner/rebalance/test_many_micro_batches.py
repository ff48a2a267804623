"""Schedules of many micro-batches: which part is laid out, and which is only multiplied."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, laid_out, what_if
from ipuscope.profiler import open_report
from ipuscope.profiler.timeline import closed_forms, schedule_types, schedules
from tests.synthetic import synthetic_profile


@given(
    stages=st.integers(1, 5),
    more=st.integers(1, 30),
    pipelined=st.booleans(),
    training=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_what_is_multiplied_is_as_exact_as_what_is_laid_out(
    stages: int, more: int, pipelined: bool, training: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)

    def some(most: int = 1000) -> tuple[int, ...]:
        return tuple(random.integers(0, most, stages).tolist())

    costs = schedule_types.Costs(
        ipus=tuple(random.integers(0, stages, stages).tolist()),
        forward=some(),
        backward=some() if training else (),
        stream_in=((0, int(random.integers(0, 300))),),
        stream_out=((stages - 1, int(random.integers(0, 300))),),
        stream_out_once=bool(random.integers(2)),
        sync=int(random.integers(0, 100)),
        copies=some(),
        update=some() if training else (),
        reduce=some() if training and random.integers(2) else (),
        load=((0, int(random.integers(0, 2000))),),
        unload=((stages - 1, int(random.integers(0, 2000))),),
        across=bool(random.integers(2)),
    )
    whole, least = 4 * stages + 8 + more, 4 * stages + 8
    run = schedules.pipelined if pipelined else schedules.sharded
    shown, total = laid_out(costs, whole, pipelined, most=least)
    every = run(costs, whole)
    assert total == every.total
    assert len(shown.phases) < len(every.phases)
    if pipelined:
        for count in (whole, least, closed_forms.pipeline_stages(stages, training)):
            assert schedules.lengths(costs, count) == lengths_as_laid_out(costs, count)


def lengths_as_laid_out(costs: schedule_types.Costs, micro_batches: int) -> schedules.Lengths:
    schedule = schedules.pipelined(costs, micro_batches)
    cycles: dict[str, list[int]] = {}
    for phase, start, end in zip(
        schedule.phases, schedule.cycle_start, schedule.cycle_end, strict=False
    ):
        cycles.setdefault(phase, []).append(int(end - start))
    every = [length for lengths in cycles.values() for length in lengths]
    ramps = sum(cycles.get("ramp-up", [])) + sum(cycles.get("ramp-down", []))
    steady = max(cycles.get("steady", every))
    return schedules.Lengths(schedule.total, steady, ramps, sum(cycles.get("update", [])))


def test_a_billion_micro_batches_cost_no_more_than_thousands(tmp_path: Path) -> None:
    with open_report(synthetic_profile(tmp_path / "profile.pop", tiles=8)) as report:
        costs = replace(Costs.from_report(report), micro_batches=10**9)
    tracemalloc.start()
    prediction = what_if(costs, Assignment.of(costs.stage.tolist()))
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 64 << 20
    assert prediction.total == pytest.approx(10**9 * prediction.pipeline_cycle, rel=1e-6)
    assert prediction.samples_per_second > 0
