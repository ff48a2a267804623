"""Clipping by the norm of all gradients, over the IPUs of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import pytest
import torch

import ipu_exec
from ipu_exec import PipelinedExecution, Stage
from ipu_exec.compiler.emission.bodies import Body, Move, ProgramStep
from ipu_exec.compiler.emission.body_builder import BodyBuilder
from ipu_exec.compiler.emission.update_exchanges import update_exchanges, wait_for_senders
from ipu_exec.compiler.executable import Executable
from ipu_exec.machine import EXTERNAL_SYNC_CYCLES, TARGETS
from ipu_exec.session.compilation import compile_step
from ipuscope.profiler.enums import Purpose
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.links import latency_cycles, link_rate
from tests.models import Mlp

STAGES, SCALAR = 3, 4  # stages; bytes of a norm


def pipeline(
    max_grad_norm: float,
    widths: Sequence[int] = (16,) * (STAGES + 1),
    off_chip: str = "",
    ipus: Sequence[int] = range(STAGES),
    replicas: int = 1,
) -> Executable:
    options = ipu_exec.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
    stages = (Stage(f"L{index}").ipu(ipu) for index, ipu in enumerate(ipus))
    options.setExecutionStrategy(PipelinedExecution(*stages))
    options.Training.gradientAccumulation(2 * STAGES)
    options.replicationFactor(replicas)
    if off_chip:
        there = ipu_exec.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(2)
        there.useReplicatedTensorSharding(replicas > 1).minElementsForReplicatedTensorSharding(2)
        getattr(options.TensorLocations, off_chip)(there)
    model = Mlp(list(widths))
    batch = torch.randn(4, widths[0]), torch.randn(4, widths[-1])
    optimizer = ipu_exec.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9 if off_chip else 0.0, max_grad_norm=max_grad_norm
    )
    return compile_step(model, batch, {}, options, optimizer, True)


@pytest.fixture(scope="module")
def clipped() -> Executable:
    return pipeline(max_grad_norm=1.0)


def updates(executable: Executable) -> list[Body]:
    return sorted(
        (body for body in executable.tree.bodies if body.task == schedule_types.UPDATE),
        key=lambda body: body.ipu,
    )


def over_links(body: Body) -> list[ProgramStep]:
    return [step for step in body.steps if step.purpose is Purpose.COPY]


def test_norms_go_to_one_ipu_and_the_factor_comes_back(clipped: Executable) -> None:
    moved = [
        [[(m.source, m.target, m.bytes) for m in step.moves] for step in over_links(body)]
        for body in updates(clipped)
    ]
    first, second = [(1, 0, SCALAR)] * 2, [(2, 0, SCALAR)] * 2  # of a weight and a bias
    factor = [(0, 1, SCALAR), (0, 2, SCALAR)]
    assert moved == [[first + second, factor], [first, factor[:1]], [second, factor[1:]]]


def test_an_exchange_takes_a_sync_the_farthest_latency_and_its_bytes(clipped: Executable) -> None:
    target = TARGETS["mk2"]
    body = updates(clipped)[0]
    gathered = over_links(body)[0]
    before = body.steps[body.steps.index(gathered) - 1]
    assert before.purpose is Purpose.EXTERNAL_SYNC
    assert before.cycles == EXTERNAL_SYNC_CYCLES
    on_links = sum(2 * SCALAR / link_rate(target.links, ipu, 0) for ipu in (1, 2))
    assert gathered.cycles == ceil(latency_cycles(target.links, 2, 0) + on_links)
    assert int(gathered.bytes_in.sum()) == 4 * SCALAR
    assert int(gathered.bytes_out.sum()) == 0


def waited(body: Body) -> list[int]:
    """Cycles that each exchange of a body waits for its senders."""
    syncs = [body.steps[body.steps.index(step) - 1] for step in over_links(body)]
    return [sync.cycles - EXTERNAL_SYNC_CYCLES for sync in syncs]


def starts(body: Body) -> list[int]:
    """When each exchange of a body begins, from the beginning of the update."""
    return [
        sum(step.cycles for step in body.steps[: body.steps.index(exchange)])
        for exchange in over_links(body)
    ]


def test_the_factor_waits_for_the_slowest_norms() -> None:
    executable = pipeline(max_grad_norm=1.0, widths=[64, 64, 512, 512])
    first, second, third = updates(executable)
    # the third has the most weights: the first waits for its norms, both others for the factor
    gathered, scattered = starts(first)
    assert gathered == starts(third)[0] > starts(second)[0]
    assert waited(first)[0] > 0 == waited(first)[1]
    assert starts(second)[1] == starts(third)[1] == scattered
    assert waited(second)[0] == waited(third)[0] == 0
    assert waited(second)[1] > waited(third)[1] > 0


def test_updates_that_would_wait_for_each_other_forever_do_not_wait() -> None:
    def body(ipu: int, other: int) -> BodyBuilder:
        sync = ProgramStep(records.SYNC, "External", EXTERNAL_SYNC_CYCLES)
        comes, goes = Move(ipu, SCALAR, other, ipu), Move(other, SCALAR, ipu, other)
        exchanges = [
            ProgramStep(records.GLOBAL_EXCHANGE, "", 1, purpose=Purpose.COPY, moves=(move,))
            for move in (comes, goes)
        ]
        steps = [sync, exchanges[0], sync, exchanges[1]]
        return BodyBuilder(f"IPU {ipu}", ipu, -1, schedule_types.UPDATE, steps)

    bodies = [body(0, 1), body(1, 0)]
    wait_for_senders(bodies)
    first, second = ([step.cycles for step in body.steps] for body in bodies)
    assert first == [EXTERNAL_SYNC_CYCLES, 1] * 2
    assert second == [2 * EXTERNAL_SYNC_CYCLES + 1, 1, EXTERNAL_SYNC_CYCLES, 1]


@pytest.mark.parametrize("where", ["setOptimizerLocation", "setAccumulatorLocation"])
def test_norms_come_first_where_their_gradients_are_on_the_chip(where: str) -> None:
    """Off the chip, accumulators come and go weight by weight: nothing can wait for all norms."""
    executable = pipeline(max_grad_norm=1.0, widths=[64, 64, 512, 512], off_chip=where)
    gathered = waited(updates(executable)[0])[0]
    assert (gathered > 0) == (where == "setOptimizerLocation")


@pytest.mark.parametrize(
    ("ipus", "replicas"), [((0, 1, 0), 1), ((0, 1, 2), 2), ((0, 1, 0), 2)], ids=str
)
def test_no_state_is_loaded_before_all_norms_are_there(ipus: Sequence[int], replicas: int) -> None:
    """Whether a later stage of the IPU has norms too, or replicas take norms of their parts."""
    executable = pipeline(
        max_grad_norm=1.0,
        widths=[64, 64, 512, 512],
        off_chip="setOptimizerLocation",
        ipus=ipus,
        replicas=replicas,
    )
    for body in updates(executable):
        steps = list(enumerate(body.steps))
        norms = [at for at, step in steps if "linalg_vector_norm" in step.name]
        loads = [at for at, step in steps if step.purpose is Purpose.REMOTE_LOAD]
        assert max(norms) < min(loads)
        reduced = [name for name in (step.name for step in body.steps) if "norm/AllReduce" in name]
        assert bool(reduced) == (replicas > 1)


def test_a_part_of_a_gradient_whose_norm_is_taken_is_held_once() -> None:
    sizes = {"widths": [64, 64, 512, 512], "off_chip": "setOptimizerLocation", "replicas": 2}
    for limit in (1.0, float("inf")):
        for body in updates(pipeline(max_grad_norm=limit, **sizes)):
            parts = [use for use in body.temporaries if use.name.endswith("/part")]
            assert len({use.name for use in parts}) == len(parts)
            gradients = [use for use in parts if use.name.endswith("/accumulator/part")]
            assert len(gradients) == 2  # of a weight and a bias
            assert {use.first for use in gradients} == {0}


def test_every_norm_is_taken_before_the_sum_and_every_gradient_scaled_behind(
    clipped: Executable,
) -> None:
    names = [step.name for step in updates(clipped)[0].steps]
    norms = [i for i, name in enumerate(names) if "linalg_vector_norm/" in name]
    (total,) = (i for i, name in enumerate(names) if name.endswith("/stack"))
    (sent,) = (i for i, name in enumerate(names) if name.endswith("/to other IPUs"))
    scaled = [i for i, name in enumerate(names) if name.endswith("/mul_/mul_scalar")]
    assert max(norms) < total < sent < min(scaled)
    assert len(scaled) >= 2  # weight and bias


def test_no_exchange_without_clipping() -> None:
    plain = pipeline(max_grad_norm=float("inf"))
    assert not any(over_links(body) for body in updates(plain))
    exchanges = update_exchanges(plain.graph, plain.placement)
    assert not exchanges.received
    assert not exchanges.sent
