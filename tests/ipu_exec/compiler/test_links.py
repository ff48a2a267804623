"""Links between IPUs: hops and rates on a board and between boards, in copies and all-reduces."""

from __future__ import annotations

from math import ceil

import pytest
import torch

import ipu_exec
from ipu_exec import PipelinedExecution, Stage
from ipu_exec.compiler.executable import Executable
from ipu_exec.machine import TARGETS
from ipu_exec.session.compilation import compile_step
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.links import link_hops, link_latency_cycles, link_rate
from tests.models import Mlp, mean_square

MK2 = TARGETS["mk2"]
WIDTH, MICRO = 64, 4


def pipeline(ipus: int, replicas: int = 1) -> Executable:
    options = ipu_exec.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    stages = (Stage(f"L{i}").ipu(i) for i in range(ipus))
    options.autoRoundNumIPUs(True).setExecutionStrategy(PipelinedExecution(*stages))
    options.Training.gradientAccumulation(2 * ipus)
    model = Mlp([WIDTH] * (ipus + 1))
    batch = torch.randn(MICRO, WIDTH), torch.randn(MICRO, WIDTH)
    return compile_step(
        model, batch, {}, options, torch.optim.SGD(model.parameters(), lr=0.1), True
    )


def test_the_ladder_of_links() -> None:
    assert [link_hops(a, b) for a, b in ((0, 1), (0, 3), (1, 2), (3, 4), (0, 4), (0, 15))] == [
        1,
        1,
        1,
        1,
        2,
        7,
    ]
    # 0.7 us to a neighbour and 0.16 us a further hop: 1.66 us across 16 IPUs, where [JIA] measured
    # 1.76
    assert link_latency_cycles(MK2.links, 7) / MK2.clock_hz == pytest.approx(1.66e-6)


def test_a_link_between_boards_is_half_as_fast() -> None:
    assert link_rate(MK2.links, 0, 3) * MK2.clock_hz == pytest.approx(55e9)
    assert link_rate(MK2.links, 3, 4) * MK2.clock_hz == pytest.approx(27.7e9)
    assert link_rate(TARGETS["mk1"].links, 1, 2) == link_rate(
        TARGETS["mk1"].links, 0, 15
    )  # two IPUs on a C2 card


def test_copies_pay_for_the_boards_they_cross() -> None:
    executable = pipeline(8)
    activation = MICRO * WIDTH * 4
    copies = [b for b in executable.tree.bodies if b.task == schedule_types.COPY]
    for body in copies:
        # out over each cut beside it: the activation of one and the gradient of the other, and in
        # as much
        cuts = [cut for cut in (body.ipu - 1, body.ipu) if 0 <= cut < 7]
        on_links = sum(activation / link_rate(MK2.links, cut, cut + 1) for cut in cuts)
        assert body.cycles == ceil(on_links + link_latency_cycles(MK2.links, 1))
    by_ipu = {body.ipu: body.cycles for body in copies}
    assert by_ipu[3] == by_ipu[4] > by_ipu[2] == by_ipu[5]


@pytest.mark.parametrize(("ipus", "replicas"), [(1, 4), (1, 16), (2, 2), (2, 8), (4, 4), (3, 2)])
def test_the_slowest_link_of_the_ring_sets_the_pace(ipus: int, replicas: int) -> None:
    executable = pipeline(ipus, replicas) if ipus > 1 else single(replicas)
    apart = {1: 1, 2: 2, 3: 4, 4: 4}[ipus]
    crosses = apart * replicas > 4
    rate = (27.7e9 if crosses else 55e9) / MK2.clock_hz
    hops = max(1, apart // 2)
    for body in (b for b in executable.tree.bodies if b.task == schedule_types.REDUCE):
        gradients = sum(
            v.bytes for v in executable.variables if v.ipu == body.ipu and v.role == "accumulator"
        )
        latency = 2 * (replicas - 1) * link_latency_cycles(MK2.links, hops)
        ways = 1 if replicas == 2 else 2
        assert body.cycles == ceil(
            latency + 2 * (replicas - 1) * gradients / replicas / ways / rate
        )


@pytest.mark.parametrize("replicas", [256, 1024])
def test_replicas_may_take_more_ipus_than_the_largest_system(replicas: int) -> None:
    """1,024 and 4,096 IPUs: rings of the 16 replicas of a rack, and of the racks."""
    executable, racks = pipeline(4, replicas), replicas // 16
    for body in (b for b in executable.tree.bodies if b.task == schedule_types.REDUCE):
        gradients = sum(
            v.bytes for v in executable.variables if v.ipu == body.ipu and v.role == "accumulator"
        )
        in_rack = 30 * gradients / 16 / 2 / (27.7e9 / MK2.clock_hz)
        in_rack += 30 * link_latency_cycles(MK2.links, 2)
        between = 2 * (racks - 1) * gradients / 16 / racks / 2 / (6.25e9 / MK2.clock_hz)
        gateway = link_latency_cycles(MK2.links, 32) + 2.5e-6 * MK2.clock_hz
        assert body.cycles == ceil(in_rack + between + 2 * (racks - 1) * gateway)


def single(replicas: int) -> Executable:
    options = ipu_exec.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    wrapped = mean_square(torch.nn.Linear(WIDTH, WIDTH))
    options.Training.gradientAccumulation(2)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    return compile_step(wrapped, (torch.randn(MICRO, WIDTH),), {}, options, optimizer, True)
