"""Where the IPUs of a pod lie to each other, and what that costs."""

from __future__ import annotations

from math import ceil

import pytest

from ipu_exec.machine import TARGETS
from ipuscope.profiler.timeline.links import (
    Span,
    gateways,
    latency_cycles,
    levels,
    link_latency_cycles,
    link_rate,
    ring_cycles,
    same_board,
)

MK2 = TARGETS["mk2"]


def test_what_lies_on_a_board_in_a_rack_and_beyond() -> None:
    assert [same_board(MK2.links, 0, other) for other in (3, 4)] == [True, False]
    assert [gateways(MK2.links, 0, other) for other in (63, 64, 255)] == [0, 1, 3]
    rates = [link_rate(MK2.links, 0, other) * MK2.clock_hz for other in (3, 63, 64)]
    assert rates == pytest.approx([55e9, 27.7e9, 6.25e9])


def test_a_gateway_adds_to_the_ladder() -> None:
    cycles = [latency_cycles(MK2.links, 0, other) for other in (1, 63, 64)]
    microseconds = [one / MK2.clock_hz * 1e6 for one in cycles]
    # 31 rungs of 0.16 us, and with one more the gateway's 2.5 us
    assert microseconds == pytest.approx([0.7, 0.7 + 30 * 0.16, 0.7 + 31 * 0.16 + 2.5])


def test_a_ring_over_racks_is_cut_at_their_borders() -> None:
    assert levels(MK2.links, Span(0, 16, 16)) == (Span(0, 16, 4), Span(0, 64, 4))
    assert levels(MK2.links, Span(5, 16, 4)) == (Span(5, 16, 4),)  # all in one rack
    assert levels(MK2.links, Span(0, 64, 4)) == (Span(0, 64, 4),)  # one of a rack each
    assert levels(MK2.links, Span(0, 16, 6)) == (Span(0, 16, 6),)  # 4 in one rack, 2 in the other


def test_gateways_carry_what_a_rack_has_summed_up() -> None:
    """With 4 replicas in each of 4 racks, a quarter of 1 MB goes over gateways."""
    nbytes, clock = 1 << 20, MK2.clock_hz
    in_rack = 6 * nbytes / 4 / 2 / (27.7e9 / clock) + 6 * link_latency_cycles(MK2.links, 8)
    latency = link_latency_cycles(MK2.links, 32) + 2.5e-6 * clock
    between = 6 * nbytes / 4 / 4 / 2 / (6.25e9 / clock) + 6 * latency
    assert ring_cycles(MK2.links, 0, 16, 16, nbytes, 2) == ceil(in_rack + between)


@pytest.mark.parametrize("members", [2, 4, 8, 16, 32, 64])
def test_a_longer_ring_never_costs_less(members: int) -> None:
    spent = [ring_cycles(MK2.links, 0, 1, count, 1 << 22, 2) for count in (members, 2 * members)]
    # two members use half of a link only, and from three on both ways: up to there it may gain
    assert members == 2 or spent[0] < spent[1]
