"""Display names have no meaning: other names in a profile leave answers and figures the same.

The names are those of bodies, steps, programs and variables.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import string
from contextlib import closing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ipu_exec
from ipu_exec import PipelinedExecution
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import insights
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.split_search import best_split
from ipuscope.profiler import Report, analysis, open_report, pva
from ipuscope.profiler.analysis.kinds import cycles_of_ipus
from ipuscope.profiler.enums import BodyTask, Purpose, Role
from ipuscope.viewer.figures import trace
from ipuscope.viewer.figures.lanes import StepRows
from ipuscope.viewer.figures.lanes import lanes as lanes_of
from tests.models import Mnist, mnist_batch

RENAMED = ("bodies", "program_tree", "compute_set_info", "variables")
OFF_CHIP = ipu_exec.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(0)


def profile(folder: Path, *, off_chip: bool) -> Path:
    """A pipeline with stash, recomputation, streams and copies, on two replicas.

    ``off_chip``: whether its optimiser state and accumulators are in streaming memory.
    """
    options = ipu_exec.Options(autoreport=True, autoreport_dir=folder)
    options.showCompilationProgressBar(False).deviceIterations(2).replicationFactor(2)
    options.Training.gradientAccumulation(8)
    options.setExecutionStrategy(PipelinedExecution("B1", "B2", "B3", "B4"))
    if off_chip:
        options.TensorLocations.setOptimizerLocation(OFF_CHIP)
        options.TensorLocations.setAccumulatorLocation(OFF_CHIP)
    model = Mnist()
    training = ipu_exec.trainingModel(
        model, options, ipu_exec.optim.AdamW(model.parameters(), lr=1e-3)
    )
    training(*mnist_batch(2 * 2 * 8 * 2))
    training.destroy()
    return folder / "training" / "profile.pop"


@pytest.fixture(scope="module", params=[False, True], ids=["on chip", "off chip"])
def paths(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A profile, and the same profile with random text for every name."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("names")
    path = profile(folder, off_chip=request.param)
    renamed = folder / "renamed.pop"
    shutil.copyfile(path, renamed)
    chooser = random.Random(7)

    def anything(_: str) -> str:
        return "".join(chooser.choices(string.ascii_letters + "/ .", k=12))

    with closing(sqlite3.connect(renamed, isolation_level=None)) as connection:
        connection.create_function("anything", 1, anything)
        for table in RENAMED:
            connection.execute(f"UPDATE {table} SET name = anything(name)")
    return path, renamed


@pytest.fixture(scope="module")
def both(paths: tuple[Path, Path]) -> tuple[Report, Report]:
    one, other = map(open_report, paths)
    assert not set(one.program_steps()["name"]) & set(other.program_steps()["name"])
    return one, other


def same(one: Any, other: Any, where: str) -> None:
    """Check that two values are equal field by field, except for names."""
    if is_dataclass(one):
        for field in fields(one):
            if field.name != "names":
                here = f"{where}.{field.name}"
                same(getattr(one, field.name), getattr(other, field.name), here)
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other, err_msg=where)
    else:
        assert one == other, where


def same_frame(one: pd.DataFrame, other: pd.DataFrame, *without: str) -> None:
    names = ["name", *without]
    pd.testing.assert_frame_equal(
        one.drop(columns=names, errors="ignore"), other.drop(columns=names, errors="ignore")
    )


def test_the_profile_has_what_used_to_be_found_by_name(both: tuple[Report, Report]) -> None:
    """Without these steps, the other tests would prove nothing."""
    report = both[0]
    steps, off_chip = report.program_steps(), Costs.from_report(report).offload
    wanted = {Purpose.STASH, Purpose.RESTORE, Purpose.STREAM_IN, Purpose.STREAM_OUT, Purpose.COPY}
    wanted |= {Purpose.ALL_REDUCE, Purpose.EXTERNAL_SYNC, Purpose.OPERATOR}
    wanted |= {Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE} if off_chip else set()
    assert set(steps["purpose"]) == wanted
    assert {BodyTask.STREAM_IN, BodyTask.STREAM_OUT} <= set(report.bodies["task"])
    stashes = report.variables[report.variables["role"] == Role.STASH]
    assert set(stashes["tensor"]) == set(steps["tensor"][steps["purpose"] == Purpose.STASH])


def test_costs_and_predictions_are_the_same(both: tuple[Report, Report]) -> None:
    one, other = map(Costs.from_report, both)
    same(one, other, "costs")
    for starts in ((0, 1, 2, 3), (0, 2), (0, 1, 3)):
        split = Assignment(starts, tuple(range(len(starts))))
        same(what_if(one, split), what_if(other, split), "what_if")
    assert best_split(one, 2).why == best_split(other, 2).why


def test_insights_stages_and_analyses_are_the_same(both: tuple[Report, Report]) -> None:
    one, other = both
    # the sentences say tensors by their names, which differ, and commands the profile; what they
    # conclude does not
    concluded = [
        [replace(i, detail="", action=i.action.replace(one.argument, "")) for i in insights(one)]
        for one in both
    ]
    assert concluded[0] == concluded[1]
    for question in (lambda r: r.stages, lambda r: r.cycle_proportions(0)):
        pd.testing.assert_frame_equal(question(one), question(other))
    for question in (analysis.movement, analysis.operators, lambda r: r.program_steps()):
        same_frame(question(one), question(other))
    assert analysis.waiting(one) == analysis.waiting(other)


def test_figures_show_the_same_numbers(both: tuple[Report, Report]) -> None:
    drawn = []
    for report in both:
        tasks, steps = report.tasks(0, iteration=0), report.trace.executed(0, iteration=0)
        lanes = lanes_of(tasks, steps, report.pipeline_cycles(0, 0), report.stages)
        of_ipu = report.steps(0, 1, 0), report.tasks(0, 1, 0)
        flame = trace.flame(*of_ipu, report.ops["name"])
        drawn.append(
            (
                lanes.task_rows,
                lanes.step_rows,
                cycles_of_ipus(report)[1],
                trace.flat(StepRows.of(steps, range(4))).rows,
                flame.rows,
            )
        )
    for one, other in zip(*drawn, strict=True):
        same(one, other, "figure")


def test_programs_have_the_same_types(paths: tuple[Path, Path]) -> None:
    one, other = (pva.openReport(str(path)) for path in paths)
    types = [[step.program.type.name for step in report.execution.steps] for report in (one, other)]
    assert types[0] == types[1] and len(set(types[0])) > 3
