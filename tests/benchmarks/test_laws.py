"""Laws that every prediction keeps: `benchmarks.laws` on random shapes."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.laws import laws
from benchmarks.laws.cases import FLOAT, HALF, KINDS, Case, drawn, plan_of
from ipu_exec.lowering.durations import plan_cycles
from ipu_exec.lowering.plan import Compute, Exchange, Plan
from ipu_exec.machine import Machine
from tests.operands import MK2

# `python -m benchmarks.laws --cases 1000` holds more cases than a test has time for
EXAMPLES = 25


@pytest.mark.parametrize("kind", KINDS)
def test_random_shapes_keep_the_laws(kind: str) -> None:
    """The same shapes in every run: hypothesis draws constants of the sources, too."""
    source = random.Random(f"{kind} 0")
    broken = [laws.check(drawn(kind, source), MK2, index) for index in range(EXAMPLES)]
    assert not any(broken), broken


def test_work_that_takes_no_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("product", (1, 512, 512, 512), FLOAT)
    plan = plan_of(case, MK2)
    idle = tuple(
        replace(step, cycles=np.zeros_like(step.cycles))
        for step in plan.steps
        if isinstance(step, Compute)
    )
    assert laws.check(case, MK2, 0) == []
    monkeypatch.setattr(laws, "plan_of", lambda *_: replace(plan, steps=idle))
    assert {"never faster than the units", "never faster than the memory"} <= {
        one.law for one in laws.check(case, MK2, 0)
    }


def test_what_nobody_sent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("sum", (64, 4096), FLOAT)
    plan = plan_of(case, MK2)

    def robbed(of: Case, machine: Machine) -> Plan:
        steps = tuple(
            replace(step, bytes_out=np.zeros_like(step.bytes_out))
            if isinstance(step, Exchange)
            else step
            for step in plan.steps
        )
        return replace(plan, steps=steps)

    monkeypatch.setattr(laws, "plan_of", robbed)
    broken = laws.check(case, MK2, 0)
    assert "received as sent" in {one.law for one in broken}


def test_rows_that_are_cut_are_compared_with_rows_that_are_cut() -> None:
    cut, whole = Case("softmax", (2972, 15), HALF), Case("softmax", (2972, 16), HALF)
    assert laws.cuts_rows(cut, MK2) and not laws.cuts_rows(whole, MK2)
    assert not laws.comparable(cut, whole, MK2)
    assert plan_cycles(plan_of(whole, MK2), MK2) < plan_cycles(plan_of(cut, MK2), MK2)


def test_products_are_compared_without_the_copies_that_pad_their_channels() -> None:
    cut, whole = (Case("product", (7, 13, channels, 1403), HALF) for channels in (181, 192))
    padded, not_padded = (plan_cycles(plan_of(one, MK2), MK2) for one in (cut, whole))
    assert not_padded < padded
    assert not [one for one in laws.check(cut, MK2, 0) if one.law == "larger is never cheaper"]
