"""Equal turns of serial splits are emitted once, and every reader answers as if they were not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ipu_exec
from ipu_exec.compiler.emission import body_builder
from ipu_exec.compiler.emission.loops import Emitted, Loop, emitted, order, times
from ipu_exec.lowering.plan import Compute, Plan, Temporary, Vertices
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import insights
from ipuscope.profiler import Report, open_report, pva
from ipuscope.profiler.analysis import loads, movement, operators
from ipuscope.profiler.analysis.critical_path import critical_path
from ipuscope.profiler.analysis.program import program_cycles

WIDTH, ROWS = 1024, 128


class Wide(torch.nn.Module):
    """Two products, each too large for the memory that it may have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("first"):
            x = torch.tanh(self.first(x))
        with ipu_exec.Block("second"):
            return ipu_exec.identity_loss(self.second(x), reduction="mean")


def written(folder: Path) -> Report:
    options = ipu_exec.Options(profile_dir=str(folder)).showCompilationProgressBar(False)
    options.setExecutionStrategy(ipu_exec.PipelinedExecution("first", "second"))
    options.setAvailableMemoryProportion({"IPU0": 0.01, "IPU1": 0.01})
    options.Training.gradientAccumulation(4)
    model = Wide()
    optimizer = ipu_exec.optim.SGD(model.parameters(), lr=0.1)
    training = ipu_exec.trainingModel(model, options, optimizer)
    training(torch.zeros(4 * ROWS, WIDTH))
    training.destroy()
    return open_report(folder)


def written_out(plan: Plan) -> Emitted:
    """A plan with each of its turns."""
    names = tuple(step.name for step in plan.steps)
    parts = tuple(range(len(plan.steps)))
    return Emitted(parts, names, plan.temporaries, (), dict(plan.last_reads))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Report]:
    """One model's profile, with loops and with all turns written out."""
    looped = written(tmp_path_factory.mktemp("looped"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body_builder, "emitted", written_out)
        unrolled = written(tmp_path_factory.mktemp("unrolled"))
    return looped, unrolled


def test_the_model_has_loops(both: tuple[Report, Report]) -> None:
    looped, unrolled = both
    assert len(looped.program_steps()) < len(unrolled.program_steps()) / 2
    assert len(looped.variables) < len(unrolled.variables)
    repeats = looped.program[looped.program["name"] == "serial steps"]
    assert len(repeats) and (repeats["type"] == "Repeat").all() and (repeats["repeat"] > 1).all()
    assert len(looped.steps_as_run()) == len(unrolled.program_steps())
    assert (unrolled.program_steps()["times"] == 1).all()


def unnumbered(names: pd.Series[str]) -> list[str]:
    return names.astype(str).str.replace(r"/\d+(?=/|$)", "", regex=True).tolist()


def test_the_trace_is_that_of_all_turns(both: tuple[Report, Report]) -> None:
    some, others = (report.steps() for report in both)
    same = [name for name in some.columns if name not in ("step", "name")]
    pd.testing.assert_frame_equal(some[same], others[same])
    assert unnumbered(some["name"]) == unnumbered(others["name"])


def by_operator(path: pd.DataFrame) -> pd.DataFrame:
    keys = ["phase", "cause", "ipu", "stage", "direction", "task", "body", "op", "tensor"]
    return path.groupby(keys, as_index=False)[["times", "cycles"]].sum()


def frame_of(value: Any) -> pd.DataFrame:
    return value if isinstance(value, pd.DataFrame) else pd.DataFrame(value)


@pytest.mark.parametrize(
    "answer",
    [
        lambda report: report.tasks(),
        lambda report: report.cycle_proportions(),
        lambda report: report.stages,
        lambda report: report.blocks,
        lambda report: report.ops,
        lambda report: report.memory()[["ipu", "category", "role", "max_tile_bytes"]],
        lambda report: report.tiles(0).drop(columns="peak_step"),
        lambda report: report.tiles(1).drop(columns="peak_step"),
        operators,
        movement,
        lambda report: by_operator(critical_path(report)),
        loads,
    ],
)
def test_answers_are_those_of_all_turns(both: tuple[Report, Report], answer: Any) -> None:
    some, others = (frame_of(answer(report)).reset_index(drop=True) for report in both)
    pd.testing.assert_frame_equal(some, others)


def test_every_peak_is_that_of_all_turns(both: tuple[Report, Report]) -> None:
    for ipu in (0, 1):
        some, others = (report.liveness_map(ipu) for report in both)
        assert np.array_equal(some.max(axis=0), others.max(axis=0))
        assert (
            np.unique(some.sum(axis=1)).tolist() == np.unique(others.sum(axis=1)).tolist()
        )  # what is live at a step is live at one of the other


def test_insights_and_costs_are_those_of_all_turns(both: tuple[Report, Report]) -> None:
    some, others = (
        [(one.title, one.gain_cycles, one.gain_bytes) for one in insights(report)]
        for report in both
    )
    assert some == others
    looped, unrolled = map(Costs.from_report, both)
    assert np.array_equal(looped.cycles.forward, unrolled.cycles.forward)
    assert np.array_equal(looped.cycles.backward, unrolled.cycles.backward)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT run, iteration, ipu, micro_batch, pipeline_cycle, start, cycles, waited"
        " FROM execution_steps ORDER BY id",
        "SELECT ipu, cycles, active_tiles, cycles_base, data_in, data_out, tile_balance"
        " FROM steps_by_ipu ORDER BY step_id",
        "SELECT * FROM op_cycles ORDER BY op",
        "SELECT ipu, fullest_tile, bytes, free_bytes FROM tile_headroom",
        "SELECT * FROM memory_by_tile ORDER BY tile",
        "SELECT ipu, category, role, bytes FROM always_live_bytes",
    ],
)
def test_sql_answers_are_those_of_all_turns(both: tuple[Report, Report], sql: str) -> None:
    some, others = (sqlite3.connect(report.path).execute(sql).fetchall() for report in both)
    assert some and some == others


def test_sums_over_steps_are_those_of_their_bodies(both: tuple[Report, Report]) -> None:
    sums = (
        "SELECT b.id FROM bodies b JOIN program_step_cycles s ON s.body = b.id GROUP BY b.id"
        " HAVING sum(s.cycles) != b.cycles"
    )
    once = "SELECT sum(cycles) FROM program_steps"
    for report in both:
        with closing(sqlite3.connect(report.path)) as connection:
            assert connection.execute(sums).fetchall() == []
            spent = connection.execute(once.replace("program_steps", "program_step_cycles"))
            loops = report.bodies["cycles"].sum() > connection.execute(once).fetchone()[0]
            assert spent.fetchone()[0] == report.bodies["cycles"].sum()
            assert loops == (report is both[0])


def test_libpva_gives_the_steps_of_all_turns(both: tuple[Report, Report]) -> None:
    def of(report: Report) -> list[tuple[int, list[int]]]:
        steps = pva.openReport(str(report.path)).execution.steps
        return [(step.ipus[0].cycles, [ipu.dataIn for ipu in step.ipus]) for step in steps]

    some, others = map(of, both)
    assert some == others
    cycles = [program_cycles(report)[0] for report in both]
    assert cycles[0] == cycles[1]


# -- plans by hand ---


def plan(turns: int, last: int = 7) -> Plan:
    """Two steps before, two a turn, one after; the last turn's convolution takes ``last``."""
    ones = np.ones(4, np.int64)

    def step(name: str, cycles: int) -> Compute:
        return Compute(name, cycles * ones, (Vertices("v", ones),))

    steps = [step("slice", 1), step("inputs", 2)]
    temporaries = [Temporary("inputs", 8 * ones, 1, 1 + 2 * turns)]
    for turn in range(1, turns + 1):
        steps.append(step(f"weights/{turn}", 3))
        steps.append(step(f"convolve/{turn}/sum", last if turn == turns else 7))
        at = len(steps) - 2
        temporaries.append(Temporary(f"weights/{turn}", 16 * ones, at, at + 1))
    steps.append(step("bias", 5))
    return Plan(tuple(steps), tuple(temporaries))


def test_all_turns_but_the_last_are_a_loop() -> None:
    once = emitted(plan(5))
    assert once.names == (
        *("slice", "inputs", "weights", "convolve/sum"),
        *("weights/5", "convolve/5/sum", "bias"),
    )
    assert once.loops == (Loop(2, 4, 4),)
    assert once.times.tolist() == [1, 1, 4, 4, 1, 1, 1]
    places = [(one.name, one.first, one.last) for one in once.temporaries]
    assert places == [("inputs", 1, 5), ("weights", 2, 3), ("weights/5", 4, 5)]


def test_few_or_unequal_turns_are_written_out() -> None:
    assert not emitted(plan(2)).loops
    unequal = plan(5, last=8)
    assert emitted(unequal).loops == (Loop(2, 4, 3),)  # the fourth is the last equal one


def test_a_tensor_from_turn_to_turn_keeps_them_apart() -> None:
    whole = plan(5)
    between = replace(whole, temporaries=(*whole.temporaries, Temporary("sum", np.ones(4), 5, 8)))
    assert not emitted(between).loops


def test_the_order_in_which_steps_run() -> None:
    loops = (Loop(1, 3, 2), Loop(3, 4, 3))
    assert order(5, loops).tolist() == [0, 1, 2, 1, 2, 3, 3, 3, 4]
    assert times(5, loops).tolist() == [1, 2, 2, 3, 1]
