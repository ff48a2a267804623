"""Plans that are remembered: in use, or used last."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from ipu_exec.lowering.plan import Compute, Plan
from ipu_exec.lowering.plan_cache import PlanCache


def plan() -> Plan:
    return Plan((Compute("work", np.zeros(100, np.int64), ()),))  # 800 bytes


def test_a_plan_in_use_is_found_however_many_came_after() -> None:
    cache = PlanCache(limit=1_600)
    first = cache.get("first", plan)
    for other in range(10):
        cache.get(other, plan)
    assert cache.get("first", plan) is first


def test_of_plans_that_nothing_uses_those_used_last_stay() -> None:
    cache = PlanCache(limit=1_600)
    made: list[str] = []

    def making(name: str) -> None:
        def make() -> Plan:
            made.append(name)
            return plan()

        cache.get(name, make)

    for name in ("a", "b", "a", "c"):  # two fit: "b" is the one that was used longest ago
        making(name)
    gc.collect()
    for name in ("a", "c", "b"):
        making(name)
    assert made == ["a", "b", "c", "b"]


def test_a_plans_bytes_count_a_shared_vector_once() -> None:
    cycles = np.zeros(100, np.int64)
    work = Compute("work", cycles, ())
    assert Plan((work, work, Compute("other", cycles.copy(), ()))).nbytes == 1_600


def test_plans_share_vectors_of_equal_contents_and_nobody_can_change_them() -> None:
    cache = PlanCache(limit=1_600)
    one, other = cache.get("one", plan), cache.get("other", plan)
    assert one is not other
    assert one.steps[0].cycles is other.steps[0].cycles  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="read-only"):
        one.steps[0].cycles[0] = 1  # type: ignore[union-attr]
    wide = cache.get("wide", lambda: Plan((Compute("work", np.zeros(101, np.int64), ()),)))
    assert len(wide.steps[0].cycles) == 101  # type: ignore[union-attr]
