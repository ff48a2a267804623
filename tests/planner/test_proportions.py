"""Memory proportions IPU by IPU, from compiles that have one for all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.plan.brute_force import Case
from ipu_exec.planning.captured import Captured
from ipu_exec.planning.engine import Compiles
from ipuscope.planner.mappings import Key, Mapping, StagePlan
from ipuscope.planner.mappings.mapping_search import predicted
from ipuscope.planner.mappings.memory_proportions import (
    Group,
    cheapest,
    groups,
    with_own_proportions,
)
from ipuscope.planner.mappings.priced import Priced

CASE = Case((1024, 1024, 1024, 2048, 2048), 256, (64,), 2, "sgd")
LITTLE, MUCH = 0.02, 0.6
TWO = Mapping(
    1,
    1,
    (StagePlan(0, ("B0", "B1"), False), StagePlan(1, ("B2", "B3"))),
    64,
    4,
)


@pytest.fixture(scope="module")
def engine() -> Compiles:
    return Compiles(Captured(CASE.call(), 4), 4, keep=False)


@pytest.fixture(scope="module")
def group(engine: Compiles) -> Group:
    keys = [Key(1, 64, LITTLE), Key(1, 64, MUCH)]
    priced = [one for one in engine.price(keys) if isinstance(one, Priced)]
    return groups(priced)[0]


def on_tiles(group: Group, nbytes: int) -> Group:
    """The same on tiles of so many bytes."""
    return tuple(replace(one, costs=one.costs.with_tile_bytes(nbytes)) for one in group)


def test_an_ipu_that_is_full_has_a_lower_proportion_than_the_others(
    engine: Compiles, group: Group
) -> None:
    little, much = (predicted(one, replace(TWO, proportion=one.key.proportion)) for one in group)
    assert much.cycles < little.cycles and much.fullest > little.fullest
    room = (little.fullest + much.fullest) // 2
    mixing = with_own_proportions(on_tiles(group, room), TWO)
    assert mixing is not None
    assert sorted(mixing.mapping.proportions.values()) == [LITTLE, MUCH]
    assert "on " in mixing.mapping.memory_proportion
    assert mixing.fullest <= room and mixing.cycles < little.cycles

    (came,) = engine.settle([mixing.mapping])
    assert mixing.cycles == pytest.approx(came.obtained.cycles, rel=0.01)
    assert mixing.fullest == pytest.approx(came.obtained.fullest, rel=0.02)


def test_no_ipus_proportion_costs_less_than_each_blocks_cheapest(group: Group) -> None:
    free = cheapest(group).costs
    for one in group:
        assert np.all(free.cycles.forward <= one.costs.cycles.forward)
        assert np.all(free.cycles.backward <= one.costs.cycles.backward)
        assert np.all(free.memory.peak <= one.costs.memory.peak)


def test_none_is_found_where_an_ipu_holds_too_little(engine: Compiles, group: Group) -> None:
    assert with_own_proportions(on_tiles(group, 1 << 10), TWO) is None
