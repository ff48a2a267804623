"""A plan equals the best of all mappings, each compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import ipu_exec
from benchmarks.plan.brute_force import Case, compile_all, random_case
from ipu_exec import machine
from ipuscope.planner.mappings import save
from tests.models import WithLoss


@pytest.mark.parametrize("seed", range(2))
def test_no_compile_is_better_than_the_plan(seed: int) -> None:
    case = random_case(seed, blocks=3, ipus=2)
    plan = case.plan()
    every = compile_all(case.call(), case.asked())
    least, mapping = every.best()
    obtained = plan.best.obtained
    assert obtained is not None and not obtained.problem
    assert obtained.cycles / plan.best.mapping.samples == pytest.approx(least, rel=1e-9), mapping
    assert plan.exact


def test_nor_where_ipus_may_share_tensors() -> None:
    fixed = ("r=1", "recompute=no", "state=on-chip")
    case = random_case(204, blocks=8, ipus=8, shared=True, fixed=fixed)
    plan = case.plan()
    every = compile_all(case.call(), case.asked(), most=6)
    assert {mapping.shards for mapping in every.obtained} > {1}
    least, mapping = every.best()
    obtained = plan.best.obtained
    assert obtained is not None and not obtained.problem
    assert obtained.cycles / plan.best.mapping.samples <= least * (1 + 1e-9), mapping


def test_where_memory_is_short_the_plan_saves_it_as_the_best_compile_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case((1024, 1024, 1024, 1024), 8, (4,), 2, "adam")
    roomy = replace(machine.TARGETS["mk2"], region0_bytes=16 << 10)
    monkeypatch.setitem(machine.TARGETS, "mk2", roomy)
    before = case.plan().best
    small = replace(roomy, bytes_per_tile=int(before.fullest * 0.9))
    monkeypatch.setitem(machine.TARGETS, "mk2", small)
    plan = case.plan()
    every = compile_all(case.call(), case.asked())
    least, mapping = every.best()
    obtained = plan.best.obtained
    assert obtained is not None and obtained.fullest <= small.bytes_per_tile
    assert obtained.cycles / plan.best.mapping.samples == pytest.approx(least, rel=1e-9), mapping


@pytest.mark.parametrize(("seed", "fixed"), [(3, ()), (4, ("recompute=yes",))])
def test_predictions_are_within_one_percent_of_cycles_and_two_of_memory(
    seed: int, fixed: tuple[str, ...]
) -> None:
    plan = random_case(seed, fixed=fixed).plan(verify=6)
    came = [one for one in plan.candidates if one.off is not None]
    assert len(came) >= min(6, len(plan.candidates))
    for one in came:
        assert one.off is not None
        cycles, nbytes = one.off
        assert abs(cycles) < 0.01, one
        assert abs(nbytes) < 0.02, one


def test_one_stage_recomputes_where_what_it_keeps_does_not_fit(tmp_path: Path) -> None:
    """As a script does that sets autoRecomputation, and as one that runs with the plan does."""
    layers = [part for _ in range(12) for part in (nn.Linear(1024, 1024), nn.GELU())]
    model, x = WithLoss(nn.Sequential(*layers)), torch.zeros(8192, 1024)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    def options() -> ipu_exec.Options:
        opts = ipu_exec.Options()
        opts.Training.gradientAccumulation(2)
        return opts

    few = {"micro_batches": (4096,), "proportions": (0.6,)}
    plan = ipu_exec.plan(model, (x, x), 1, options=options(), optimizer=sgd, **few)
    best = plan.best
    assert best.mapping.again and best.obtained is not None and best.runs
    assert plan.own is not None and not plan.own.runs
    planned, by_hand = options().loadPlacement(save(plan, tmp_path / "plan.json")), options()
    by_hand._Popart.set("autoRecomputation", 1)
    for opts in (planned, by_hand):
        training = ipu_exec.trainingModel(model, opts, sgd)
        training.compile(x, x)
        assert training.executable.timeline.trace.iteration_cycles == best.obtained.cycles
        training.destroy()
