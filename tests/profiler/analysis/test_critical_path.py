"""The critical path: it adds up to the update, and only what is on it shortens the update."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipuscope import profiler
from ipuscope.profiler.analysis import critical_path as critical
from ipuscope.profiler.timeline import schedule_types, schedules
from ipuscope.profiler.timeline.schedule_types import BESIDE, IDLE, Costs
from tests.synthetic import synthetic_profile


def rank_of(schedule: schedule_types.Schedule) -> np.ndarray:
    """The rank of each task, as `critical.chain` expects it."""
    return np.where(schedule.kind == IDLE, 2, np.where(np.isin(schedule.kind, BESIDE), 1, 0))


def chain_of(schedule: schedule_types.Schedule) -> critical.Chain:
    total = int(schedule.end.max())
    return critical.chain(schedule.ipu, schedule.start, schedule.end, rank_of(schedule), total)


@st.composite
def costs(draw: st.DrawFn) -> Costs:
    """Pipelines with streams, copies, updates and I/O tiles, whose last stage may be on IPU 0."""
    stages = draw(st.integers(1, 4))
    cycles = st.integers(1, 500)
    some = st.lists(cycles, min_size=stages, max_size=stages).map(tuple)
    ipus = tuple(range(stages))
    if stages > 2 and draw(st.booleans()):
        ipus = (*ipus[:-1], 0)
    used = max(ipus) + 1
    per_ipu = st.lists(st.integers(0, 300), min_size=used, max_size=used).map(tuple)
    streams = st.lists(st.tuples(st.integers(0, stages - 1), cycles), max_size=2).map(tuple)
    return Costs(
        ipus=ipus,
        forward=draw(some),
        backward=draw(some),
        update=draw(per_ipu),
        reduce=draw(per_ipu),
        stream_in=draw(streams),
        stream_out=draw(streams),
        stream_out_once=draw(st.booleans()),
        copies=draw(st.lists(cycles, min_size=used, max_size=used).map(tuple)),
        sync=draw(st.integers(0, 50)),
        load=draw(streams),
        unload=draw(streams),
    )


@settings(max_examples=60, deadline=None)
@given(costs(), st.integers(1, 9), st.booleans())
def test_every_cycle_belongs_to_one_task_and_the_pieces_follow(
    some: Costs, micro_batches: int, pipelined: bool
) -> None:
    run = schedules.pipelined if pipelined else schedules.sharded
    schedule = run(some, micro_batches)
    path = chain_of(schedule)
    assert (path.task >= 0).all()
    assert path.start[0] == 0 and path.end[-1] == schedule.end.max()
    assert (path.start[1:] == path.end[:-1]).all()
    assert (schedule.kind[path.task] != IDLE).all()
    assert (schedule.start[path.task] == path.start).all()
    assert (schedule.end[path.task] == path.end).all()


@settings(max_examples=24, deadline=None)
@given(costs(), st.integers(2, 7), st.randoms(use_true_random=False))
def test_a_stage_that_is_not_on_the_path_may_be_shortened_for_nothing(
    some: Costs, micro_batches: int, chance: random.Random
) -> None:
    """The meaning of 'critical': making other work cheaper leaves the update as long as it was."""
    schedule = schedules.pipelined(some, micro_batches)
    path = chain_of(schedule)
    on_it = {
        (int(k), int(s))
        for k, s in zip(schedule.kind[path.task], schedule.stage[path.task], strict=True)
    }
    forward = [
        f if (schedule_types.FORWARD, k) in on_it else chance.randint(0, f)
        for k, f in enumerate(some.forward)
    ]
    backward = [
        b if (schedule_types.BACKWARD, k) in on_it else chance.randint(1, b)
        for k, b in enumerate(some.backward)
    ]
    cheaper = replace(some, forward=tuple(forward), backward=tuple(backward))
    assert schedules.pipelined(cheaper, micro_batches).total == schedule.total


def test_of_equal_ends_the_path_stays_where_it_is_and_then_takes_the_longest() -> None:
    # IPU 0 works 0-10 and 10-20; IPU 1 works 0-4, waits, works 10-20; IPU 2 works 2-10
    ipu = np.array([0, 0, 1, 1, 1, 2])
    start = np.array([0, 10, 0, 4, 10, 2])
    end = np.array([10, 20, 4, 10, 20, 10])
    rank = np.array([0, 0, 0, 2, 0, 0])
    path = critical.chain(ipu, start, end, rank, 20)
    assert path.task.tolist() == [0, 1]
    # from IPU 1 it goes to IPU 0, whose task is the longest of the two that end at 10
    late = critical.chain(ipu, start, np.array([10, 19, 4, 10, 20, 10]), rank, 20)
    assert late.task.tolist() == [0, 4]


def test_cycles_that_no_task_accounts_for_are_named() -> None:
    path = critical.chain(*(np.array([x]) for x in (0, 5, 9, 0)), total=12)
    assert path.task.tolist() == [-1, 0, -1]
    assert path.end.tolist() == [5, 9, 12]


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_a_profiles_path_adds_up_to_the_device_iteration(demo: Path, kind: str) -> None:
    report = profiler.open_report(demo / kind)
    path = critical.critical_path(report)
    run = report.runs.iloc[0]
    assert path["cycles"].sum() == run["cycles"] // run["iterations"]
    assert critical.WAITING not in set(path["cause"])
    table = critical.waterfall(path)
    assert table["cycles"].sum() == path["cycles"].sum()
    phases = [name for name in table.columns if name not in ("cause", "cycles", "share")]
    assert (table[phases].sum(axis=1) == table["cycles"]).all()
    rows = critical.entries(columns := critical.path_columns(report), columns["name"])
    assert rows["cycles"].sum() == path["cycles"].sum()
    assert (rows["of_which"] <= rows["cycles"]).all() and rows["share"].sum() == pytest.approx(1)


def test_an_operator_of_many_steps_outranks_one_of_a_long_step() -> None:
    """A recurrent layer's steps are one operator's, and equal layers' operators are one."""
    rows = [("head/mm", 50), *[("rnn.0/gru", 20)] * 4, ("rnn.1/gru", 30)]
    rows += [("rnn.1/gru_1", 30), ("sync", 60)]
    step = np.arange(len(rows))
    same = dict.fromkeys(("ipu", "stage", "times"), np.ones_like(step))
    texts = {"cause": "compute", "task": "forward", "direction": "forward"}
    path = {
        **{name: np.full(len(rows), text, dtype=object) for name, text in texts.items()},
        **same,
        "step": step,
        "op": step,
        "tensor": step,
        "cycles": np.array([cycles for _, cycles in rows]),
    }
    found = critical.entries(path, np.array([name for name, _ in rows], dtype=object))
    row = [found[name].item() for name in ("name", "step", "of_which", "alike")]
    assert row == ["rnn.1/gru", 5, 140, 3]
    assert found["cycles"].tolist() == [250] and found["share"].tolist() == [1]


def test_the_steps_of_a_piece_last_as_long_as_the_piece(tmp_path: Path) -> None:
    """Cycles of each step on the path, compared with the unrolled trace of a device iteration."""
    report = profiler.open_report(synthetic_profile(tmp_path / "profile.pop"))
    tasks, path = critical.chain_of(report)
    pieces = tasks.where(path.task)
    steps = report.steps(0, iteration=0)
    expected: dict[int, int] = {}
    for ipu, start, end in zip(pieces.ipu, pieces.start, pieces.end, strict=True):
        here = steps[(steps["ipu"] == ipu) & (steps["start"] >= start) & (steps["end"] <= end)]
        for step, cycles in zip(here["step"], here["cycles"], strict=True):
            expected[step] = expected.get(step, 0) + int(cycles)
    actual = critical.critical_path(report).groupby("step")["cycles"].sum()
    assert {k: v for k, v in expected.items() if v} == actual[actual > 0].to_dict()
