"""Exchanges between replicas of several instances, and the links they use."""

from __future__ import annotations

import pytest

from ipu_exec.compiler.emission.collectives import rings_of_levels
from ipuscope.profiler.enums import Purpose


def carried(purpose: Purpose, replicas: int, instances: int, hosts: int) -> float:
    """How much of a tensor each replica sends over all steps."""
    sent = 0.0
    for ring in rings_of_levels(purpose, replicas, instances, hosts):
        rounds = 2 if ring.purpose is Purpose.ALL_REDUCE else 1
        sent += rounds * (ring.members - 1) / ring.members / ring.part
    return sent


@pytest.mark.parametrize("shape", [(8, 4, 2), (8, 8, 1), (16, 4, 4), (16, 2, 1), (64, 16, 4)])
def test_levels_carry_what_one_ring_would(shape: tuple[int, int, int]) -> None:
    replicas = shape[0]
    once = (replicas - 1) / replicas
    assert carried(Purpose.ALL_REDUCE, *shape) == pytest.approx(2 * once)
    assert carried(Purpose.REDUCE_SCATTER, *shape) == pytest.approx(once)
    assert carried(Purpose.ALL_GATHER, *shape) == pytest.approx(once)


def test_slow_links_carry_a_part_only() -> None:
    rings = rings_of_levels(Purpose.ALL_REDUCE, 16, 4, 2)
    assert [(ring.purpose, ring.members, ring.stride, ring.part, ring.among) for ring in rings] == [
        (Purpose.REDUCE_SCATTER, 4, 1, 1, " in an instance"),
        (Purpose.REDUCE_SCATTER, 2, 4, 4, " across instances"),
        (Purpose.ALL_REDUCE, 2, 8, 8, " across hosts"),
        (Purpose.ALL_GATHER, 2, 4, 4, " across instances"),
        (Purpose.ALL_GATHER, 4, 1, 1, " in an instance"),
    ]


def test_instances_of_one_replica_on_one_host_have_one_ring() -> None:
    (ring,) = rings_of_levels(Purpose.ALL_REDUCE, 4, 4, 1)
    assert (ring.members, ring.stride, ring.part) == (4, 1, 1)
    assert rings_of_levels(Purpose.REDUCE_SCATTER, 4, 4, 1)[0].purpose is Purpose.REDUCE_SCATTER
