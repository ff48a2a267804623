"""Schedules as data: equal to torch's own, to published formulas and to the engine's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch.distributed.pipelining.schedules as theirs

from benchmarks.schedules.__main__ import NAMES, ROWS
from benchmarks.schedules.__main__ import bubble as bubble_rate
from ipuscope.planner.schedules.actions import (
    Action,
    ActionSchedule,
    cells,
    depths,
    read_csv,
    write_csv,
)
from ipuscope.planner.schedules.generators import KINDS
from ipuscope.planner.schedules.simulation import Work, free, in_steps, span
from ipuscope.profiler.timeline import schedule_types, schedules
from ipuscope.profiler.timeline.schedule_types import Costs

RANKS, COUNTS, CHUNKS = (1, 2, 3, 4, 8), (1, 2, 4, 8, 12, 16, 24), (1, 2, 3)
BY_RANK = {
    "interleaved": "ScheduleInterleaved1F1B",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "breadth-first": "ScheduleLoopedBFS",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipe-v": "ScheduleDualPipeV",
}


def without_waits(actions: Any) -> list[str]:
    return [str(one) for one in actions if one is not None and "REDUCE_GRAD" not in str(one)]


def torchs(name: str, ranks: int, count: int, chunks: int) -> list[list[str]]:
    """What torch's class makes, without a process group: it asks for these attributes only."""
    rounds = max(1, count // ranks)
    asked = SimpleNamespace(
        n_local_stages=chunks,
        microbatches_per_round=count // rounds,
        pp_group_size=ranks,
        _n_microbatches=count,
        _stages=[None] * chunks,
        num_stages=ranks * chunks,
        _num_stages=ranks,
    )
    if name in BY_RANK:
        of_rank = getattr(theirs, BY_RANK[name])._calculate_single_rank_operations
        return [without_waits(of_rank(asked, rank)) for rank in range(ranks)]
    cls = {"gpipe": theirs.ScheduleGPipe, "1f1b": theirs.Schedule1F1B}[name]
    order = cls._get_pipeline_order(asked)  # type: ignore[attr-defined]
    return [without_waits(order[rank]) for rank in range(ranks)]


def mine(name: str, ranks: int, count: int, chunks: int) -> list[list[str]]:
    return [cells(row) for row in KINDS[name].make(ranks, count, chunks).ranks]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", *BY_RANK])
def test_generated_schedules_are_torchs(name: str) -> None:
    if name in BY_RANK and not hasattr(theirs, BY_RANK[name]):
        pytest.skip(f"this torch has no {BY_RANK[name]}")
    least = {"1f1b": 1, "dualpipe-v": 2}.get(name, 0)  # micro-batches a rank
    compared = 0
    for ranks in RANKS:
        for count in COUNTS:
            for chunks in CHUNKS if KINDS[name].chunks == 0 else (KINDS[name].chunks,):
                if count < least * ranks or count % max(1, count // ranks):
                    continue
                own, other = mine(name, ranks, count, chunks), torchs(name, ranks, count, chunks)
                if name == "1f1b":  # torch counts the last rank's forwards from 1, not from 0
                    own, other = own[:-1], other[:-1]
                assert own == other, (ranks, count, chunks)
                compared += 1
    assert compared > 10


@pytest.mark.parametrize("name", KINDS)
def test_a_schedules_file_reads_back_and_torch_reads_it(name: str, tmp_path: Path) -> None:
    schedule = KINDS[name].make(4, 8)
    write_csv(schedule, tmp_path / "own.csv")
    assert read_csv(tmp_path / "own.csv").ranks == schedule.ranks
    for line in (tmp_path / "own.csv").read_text().splitlines():
        for cell in line.split(","):
            assert str(theirs._Action.from_str(cell)) == cell


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,0X0\n", "line 1: '0X0' is not an action"),
        ("0F0,0B0,0B0\n", "0B0 occurs twice"),
        ("0F0,0B0\n1B0,1F0\n", "wait for each other"),
        ("0F0,0B0\n1F0\n", "of micro-batch 0 stage 1 runs F"),
        ("0F0,2F0,0B0,2B0\n", r"stage 1 is on ranks \[\]"),
        ("0F999999,0B999999\n", "too high a number"),
        ("", "each line has a rank's actions"),
    ],
)
def test_a_broken_file_gets_a_clear_error(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "broken.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_csv(tmp_path / "broken.csv")


def uniform(schedule: ActionSchedule, forward: int, inputs: int, weights: int) -> Work:
    stages = schedule.stages
    costs = Costs(schedule.ipus, (forward,) * stages, (inputs,) * stages)
    return Work(costs, (weights,) * stages, (0,) * stages, (0,) * stages)


@pytest.mark.parametrize(("forward", "inputs", "weights"), [(1, 1, 1), (3, 4, 2), (10, 12, 8)])
def test_uniform_stages_have_the_published_bubbles(forward: int, inputs: int, weights: int) -> None:
    ranks, count = 8, 32
    each = forward + inputs + weights
    published = {  # [ZB, table 2], of a schedule's busiest rank, without the update
        "gpipe": (ranks - 1) * each,
        "1f1b": (ranks - 1) * each,
        "zb-h1": (ranks - 1) * (forward + inputs - weights),
        "zb-h2": (ranks - 1) * (forward + inputs - 2 * weights),
        "interleaved": (ranks - 1) * each,  # [MEGATRON]: of stages that are 1 / chunks as long
    }
    for name, bubble in published.items():
        schedule = KINDS[name].make(ranks, count)
        work = each * count * (schedule.stages // ranks)
        laid_out = free(schedule, uniform(schedule, forward, inputs, weights))
        assert span(laid_out) - work == bubble, name
    overlapped = KINDS["dualpipe-v"].make(ranks, count)
    bubble = span(free(overlapped, uniform(overlapped, forward, inputs, weights)))
    whole = inputs + weights  # F&B in turn takes F + B [DSV3, table 2]
    at_most = (ranks - 1) * (forward + 2 * whole - 3 * weights + whole)
    assert 0 <= bubble - 2 * each * count <= at_most


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2"])
def test_published_times_give_the_published_bubble_rates(name: str) -> None:
    """Those of [ZB, tables 5 and 9], to all four digits."""
    for _, layers, ranks, count, times, published in ROWS:
        if count == 3 * ranks:
            own = bubble_rate(name, layers, ranks, count, times)
            assert round(own, 4) == published[NAMES.index(name)], (ranks, count)


def test_stashes_are_as_deep_as_published() -> None:
    assert depths(KINDS["poptorch"].make(4, 12)) == (7, 5, 3, 0)
    assert depths(KINDS["1f1b"].make(4, 12)) == (4, 3, 2, 0)  # K - k
    assert depths(KINDS["zb-h1"].make(4, 12)) == (4, 4, 4, 4)  # p on every rank [ZB, table 2]
    assert depths(KINDS["zb-h2"].make(4, 12)) == (7, 7, 7, 7)  # 2 p - 1
    assert depths(KINDS["tf-sequential"].make(4, 12)) == (0, 0, 0, 0)
    assert depths(KINDS["gpipe"].make(4, 12)) == (12,) * 4


COSTS = Costs(
    ipus=(0, 1, 2, 3),
    forward=(70, 110, 90, 100),
    backward=(210, 130, 260, 180),
    update=(40, 60, 50, 30),
    stream_in=((0, 15),),
    stream_out=((3, 9),),
    copies=(20, 35, 30, 10),
    sync=5,
)


@pytest.mark.parametrize("ipus", [(0, 1, 2, 3), (0, 1, 2, 0)])
def test_what_the_engine_runs_is_the_simulation_in_steps(ipus: tuple[int, ...]) -> None:
    costs = replace(COSTS, ipus=ipus)
    engine = schedules.pipelined(costs, 12)
    schedule = KINDS["poptorch"].make(4, 12).on(ipus)
    own = in_steps(schedule, Work(costs, (0,) * 4, (0,) * 4, (0,) * 4))
    assert own.total == engine.total
    for name in ("kind", "ipu", "stage", "micro_batch", "start", "end"):
        assert np.array_equal(getattr(own, name), getattr(engine, name)), name


def test_one_stage_at_a_time_is_the_engines_sharded_order() -> None:
    costs = replace(COSTS, copies=(25,) * 4, stream_in=(), stream_out=(), sync=0)
    moves = (25, 25, 25, 0), (0, 25, 25, 25)
    own = free(KINDS["tf-sequential"].make(4, 6), Work(costs, (0,) * 4, *moves))
    assert own.total == schedules.sharded(costs, 6).total


def test_a_free_ipu_waits_for_what_it_reads_and_for_the_link() -> None:
    ranks = (
        (Action(0, "F", 0), Action(0, "F", 1), Action(0, "B", 0), Action(0, "B", 1)),
        (Action(1, "F", 0), Action(1, "B", 0), Action(1, "F", 1), Action(1, "B", 1)),
    )
    work = Work(Costs((0, 1), (1, 1), (2, 2)), (0, 0), (10, 0), (0, 3))
    laid_out = free(ActionSchedule("by hand", ranks), work)
    works = np.isin(laid_out.kind, (schedule_types.FORWARD, schedule_types.BACKWARD))
    last = works & (laid_out.ipu == 1)
    # the first copy is through at 11, the second follows it on the link: 21
    assert laid_out.start[last].tolist() == [11, 12, 21, 22]
    assert laid_out.total == 24 + 3 + 2
