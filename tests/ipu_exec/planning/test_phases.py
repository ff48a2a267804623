"""Plans of models in phases: predictions against compiles, and the way to a script that runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import ipu_exec
from benchmarks.plan.brute_force import call_in_phases
from examples import gpt3_175b
from examples.models import gpt3
from ipu_exec import machine
from ipu_exec.annotations import PipelinedExecution
from ipu_exec.errors import Error
from ipu_exec.placement_file import load_stages
from ipu_exec.planning.captured import Captured
from ipu_exec.planning.engine import Compiles
from ipu_exec.planning.first_call_plan import Asked, plan_call
from ipuscope.planner.mappings import Mapping, load, save
from ipuscope.planner.mappings.engine import Settled
from ipuscope.planner.mappings.phased_costs import Cut, bytes_of_one_phase
from ipuscope.planner.mappings.phased_search import (
    PhasedPlace,
    fullest_tile,
    mapping_of,
    predicted_in_phases,
)

WIDTHS = (512, 1024, 512, 1024, 512, 256, 512, 1024, 512)
SAMPLES = 16


def engine_and_costs(
    pipeline: int, replicas: int, widths: Sequence[int] = WIDTHS
) -> tuple[Compiles, Mapping, Settled]:
    call = call_in_phases(widths, SAMPLES, pipeline, replicas)
    engine = Compiles(Captured(call, 8), 8, keep=False)
    own = engine.own()
    assert own is not None and own.in_phases
    (settled,) = engine.settle([own])
    assert settled.phased is not None
    return engine, own, settled


def test_a_compile_predicts_itself_to_the_last_hundred_cycles() -> None:
    _, own, settled = engine_and_costs(2, 2)
    cut = Cut(tuple(range(8)), tuple(stage.phase for stage in own.stages))
    place = PhasedPlace(settled.phased, cut, own.replicas, own.accumulation)
    predicted = place.predicted.schedule().total
    assert predicted == pytest.approx(settled.obtained.cycles, abs=100)
    assert fullest_tile(settled.phased, cut, own.replicas) == settled.obtained.fullest


LARGE = (2048, 2048, 4096, 8192, 2048, 2048, 2048, 4096, 4096)  # tiles are as good as full


def test_other_cuts_pipelines_and_replicas_are_predicted_from_it() -> None:
    engine, _, settled = engine_and_costs(2, 2, LARGE)
    cuts = {
        (4, 2): Cut(tuple(range(8)), (0, 0, 0, 0, 1, 1, 1, 1)),
        (1, 4): Cut(tuple(range(8)), tuple(range(8))),
        (2, 4): Cut((0, 2, 4, 6), (0, 0, 1, 1)),
        (3, 1): Cut((0, 1, 3, 4, 6), (0, 0, 1, 1, 1)),
        (2, 1): Cut((0, 3, 6, 7), (0, 0, 1, 1)),
    }
    for (pipeline, replicas), cut in cuts.items():
        place = PhasedPlace(settled.phased, cut, replicas, SAMPLES // replicas)
        mapping = mapping_of(place)
        assert mapping.pipeline == min(pipeline, place.pipeline)
        (came,) = engine.settle([mapping])
        cycles = place.predicted.schedule().total
        assert cycles == pytest.approx(came.obtained.cycles, rel=0.01), mapping
        assert fullest_tile(settled.phased, cut, replicas) == pytest.approx(
            came.obtained.fullest, rel=0.01
        ), mapping


@pytest.mark.parametrize("checkpoints", [True, False])
def test_cuts_of_a_transformer_over_shards_are_predicted(
    checkpoints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not checkpoints:  # what a stage makes and reads in its backward is recomputed, not stored
        monkeypatch.setattr(ipu_exec, "recomputationCheckpoint", lambda tensor: tensor)
    config = replace(gpt3.TINY, hidden=256, layers=2, sequence=64)
    model, inputs = gpt3_175b.wrapped(config, 16, 8, None)
    engine = Compiles(Captured(model.first_call(*inputs), 16), 16, keep=False)
    own = engine.own()
    (settled,) = engine.settle([own])
    costs = settled.phased
    resident = sum(p.numel() for p in model.parameters()) * (2 + 2)  # weight, accumulator: float16
    assert bytes_of_one_phase(costs) * costs.machine.shards == pytest.approx(resident, rel=0.02)
    for starts, phase in (
        ((0, 1, 3, 5, 7, 9, 11), (0, 1, 1, 2, 2, 3, 3)),
        ((0, 1, 5, 9), (0, 1, 2, 3)),
        (tuple(range(12)), tuple(range(12))),
    ):
        cut = Cut(starts, phase)
        place = PhasedPlace(costs, cut, own.replicas, own.accumulation)
        (came,) = engine.settle([mapping_of(place)])
        cycles = place.predicted.schedule().total
        assert cycles == pytest.approx(came.obtained.cycles, rel=0.01 if checkpoints else 0.03), cut


def test_a_bound_is_below_the_schedule() -> None:
    _, _, settled = engine_and_costs(2, 1)
    draw = np.random.default_rng(0)
    for _ in range(5):
        starts = (0, *sorted(draw.choice(np.arange(1, 8), 4, replace=False).tolist()))
        place = PhasedPlace(settled.phased, Cut(starts, (0, 0, 1, 1, 2)), 2, 8)
        predicted = place.predicted
        assert predicted.at_least() <= predicted.schedule().total


def test_other_neighbours_than_compiled_leave_memory_open() -> None:
    _, own, settled = engine_and_costs(2, 2)
    assert predicted_in_phases(settled.phased, own).memory == "fits"
    nearly_full = replace(
        settled.phased.machine, bytes_per_tile=int(settled.obtained.fullest / 0.95)
    )
    costs = replace(settled.phased, machine=nearly_full)
    assert predicted_in_phases(costs, own).memory == "fits"  # it was compiled so
    for cut in (Cut(tuple(range(8)), tuple(range(8))), Cut((0, 2, 4, 6), (0, 0, 1, 1))):
        mapping = mapping_of(PhasedPlace(costs, cut, 2, own.accumulation))
        assert predicted_in_phases(costs, mapping).memory.endswith("compile to know")


def test_a_plan_is_no_worse_than_the_script_and_its_file_has_the_phases(tmp_path: Path) -> None:
    asked = Asked(4, micro_batches=(1,), proportions=(0.6,), fixed=("phases=4",), keep=False)
    plan = plan_call(call_in_phases(WIDTHS, SAMPLES, 2), asked)
    own, best = plan.own, plan.best
    assert own is not None and own.obtained is not None
    assert best.rate >= own.rate
    assert best.obtained is not None and best.mapping.phases == 4

    path = save(plan, tmp_path / "plan.json")
    assert load(path).best.mapping == best.mapping
    phases = load_stages(path)
    assert [len(phase.stages) for phase in phases] == [
        len(list(run)) for _, run in groupby(best.mapping.stages, key=lambda one: one.phase)
    ]
    options = ipu_exec.Options().loadPlacement(path)
    strategy = options.execution_strategy
    assert isinstance(strategy, PipelinedExecution) and len(strategy.phases) == 4


def test_where_no_cut_fits_it_says_by_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(machine.TARGETS["mk2"], region0_bytes=4 << 10, bytes_per_tile=9 << 10)
    monkeypatch.setitem(machine.TARGETS, "mk2", tiny)
    asked = Asked(2, micro_batches=(1,), proportions=(0.6,), fixed=("phases=4",), keep=False)
    with pytest.raises(Error, match=r"no mapping in phases onto 2 IPUs fits: the nearest needs"):
        plan_call(call_in_phases(WIDTHS, SAMPLES, 2), asked)


def test_phases_of_a_file_count_from_nought(tmp_path: Path) -> None:
    stages = [{"ipu": 0, "blocks": ["a"], "phase": 0}, {"ipu": 0, "blocks": ["b"], "phase": 2}]
    file = tmp_path / "placement.json"
    content = {"format": "ipuscope placement", "version": 2, "stages": stages}
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(Error, match="each has a 'phase', and these count 0, 1, 2"):
        load_stages(file)
