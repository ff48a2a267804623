"""Plans that end early, and questions without an answer, say so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import ipu_exec
from benchmarks.plan.brute_force import Case, Layers
from ipu_exec import machine
from ipu_exec.errors import Error
from ipu_exec.planning import engine
from ipu_exec.planning.first_call_plan import Asked, plan_call
from ipuscope.planner.mappings.search_state import INTERRUPTED

CASE = Case((64, 128, 64), 8, (2, 4), 2, "sgd")


def interrupted_after(compiles: int) -> Callable[..., Any]:
    """What compiles so often, and then is interrupted by Ctrl-C."""
    done, compile_one = list[int](), engine.try_compile

    def compile_some(*arguments: Any) -> Any:
        if len(done) == compiles:
            raise KeyboardInterrupt
        done.append(1)
        return compile_one(*arguments)

    return compile_some


@pytest.mark.parametrize("compiles", [1, 2])
def test_an_interrupted_plan_has_what_was_found(
    monkeypatch: pytest.MonkeyPatch, compiles: int
) -> None:
    monkeypatch.setattr(engine, "try_compile", interrupted_after(compiles))
    plan = CASE.plan(verify=3)
    assert plan.stopped == INTERRUPTED and not plan.exact
    assert plan.compiles == compiles
    assert plan.best.rate > 0
    assert any(INTERRUPTED in line for line in plan.why)


def test_an_interrupt_before_anything_was_found_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "try_compile", interrupted_after(0))
    with pytest.raises(KeyboardInterrupt):
        CASE.plan()


def test_no_compile_begins_when_the_budget_is_spent() -> None:
    plan = CASE.plan(budget=1e-9)
    assert plan.compiles == 1 and plan.own is not None
    assert "budget" in plan.stopped and plan.stopped in plan.why[-1]
    assert any("there was no time for it" in line for line in plan.left_out)
    assert not any("slower" in line for line in plan.left_out)


def test_where_nothing_fits_it_says_what_lacks_and_what_would_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case((2048,) * 5, 32, (4,), 2, "adam")
    small = replace(machine.TARGETS["mk2"], region0_bytes=20 << 10, bytes_per_tile=90 << 10)
    monkeypatch.setitem(machine.TARGETS, "mk2", small)
    with pytest.raises(Error, match="no mapping onto 2 IPUs fits: the nearest needs") as refused:
        case.plan()
    said = str(refused.value)
    assert re.search(r"needs [\d,]+ bytes more on tile \d+ of IPU \d, most of it .+ bytes\)", said)
    assert "it is p=2 r=1 with a micro-batch of 4" in said
    assert "On 4 IPUs one fits: p=4, --plan 4" in said
    assert replace(case, ipus=4).plan().best.runs


def test_micro_batches_that_do_not_divide_the_samples_are_refused() -> None:
    with pytest.raises(Error, match="--micro-batches 3,5: none divides the 8 samples"):
        plan_call(CASE.call(), Asked(2, micro_batches=(3, 5)))


def test_inputs_without_a_batch_dimension_are_refused() -> None:
    options = ipu_exec.Options().showCompilationProgressBar(False)
    with pytest.raises(Error, match="no input has a batch dimension"):
        ipu_exec.plan(Layers((4, 4)), torch.tensor(1.0), ipus=2, options=options, training=False)


class Alone(torch.nn.Module):
    """A weight without modules that could begin Blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).sum()


def test_a_model_without_modules_to_begin_blocks_is_one() -> None:
    options = ipu_exec.Options().showCompilationProgressBar(False)
    made = ipu_exec.plan(Alone(), torch.zeros(8, 4), ipus=2, options=options)
    assert made.blocks == ("Alone",) and made.modules == ("",)
