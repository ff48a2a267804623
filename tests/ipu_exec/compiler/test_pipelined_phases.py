"""Phases that are pipelines: what comes and goes once a phase, and with each micro-batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipu_exec
from examples.models import gpt3
from ipu_exec import Phase, Stage
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.compiler.emission.transfers import alike_on_shards
from ipu_exec.compiler.executable import Executable
from ipu_exec.machine import TARGETS
from ipuscope import profiler
from ipuscope.profiler.enums import Purpose
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.phased_schedules import (
    Phases,
    pipelined_phases,
    pipelined_phases_total,
)
from tests import closed_forms as formulas
from tests.models import Mlp

WIDTH, LAYERS, BATCH = 64, 4, 8
MICRO_BATCHES = 6
TWO_BY_TWO = (("L0", "L1"), ("L2", "L3"))


def strategy(phases: tuple[tuple[str, ...], ...] = TWO_BY_TWO) -> ipu_exec.PipelinedExecution:
    return ipu_exec.PipelinedExecution(
        *(Phase(*(Stage(name).ipu(ipu) for ipu, name in enumerate(names))) for names in phases)
    )


def wrapped(
    how: Any = None, change: Callable[[ipu_exec.Options], Any] = lambda options: None
) -> tuple[Any, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    options = ipu_exec.Options().showCompilationProgressBar(False)
    options.setExecutionStrategy(how or strategy())
    options.Training.gradientAccumulation(MICRO_BATCHES)
    change(options)
    model = Mlp([WIDTH] * (LAYERS + 1), [None] * LAYERS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = ipu_exec.trainingModel(model, options, optimizer)
    samples = BATCH * MICRO_BATCHES * int(options.replication_factor)
    return training, (torch.randn(samples, WIDTH), torch.randn(samples, WIDTH))


def compiled(how: Any = None, **kwargs: Any) -> Executable:
    training, batch = wrapped(how, **kwargs)
    training.compile(*batch)
    executable: Executable = training.executable
    return executable


def moved(made: Executable, task: int, stage: int, purpose: Purpose) -> set[str]:
    """The names of what a stage's task loads or stores."""
    return {
        made.graph.storages[move.storage].name
        for body in made.tree.all_of(stage, task)
        for step in body.steps
        if step.purpose is purpose
        for move in step.moves
    }


def test_weights_come_once_for_all_micro_batches_of_a_phase() -> None:
    executable = compiled()
    tasks = Counter(
        zip(*(executable.timeline.schedule.kind, executable.timeline.schedule.stage), strict=True)
    )
    for stage in range(LAYERS):
        weights = {f"layers.{stage}.weight", f"layers.{stage}.bias"}
        accumulators = {f"{name}/accumulator" for name in weights}
        assert moved(executable, schedule_types.ENTER, stage, Purpose.REMOTE_LOAD) == weights
        # the last phase's backward follows its forward: its weights are there
        back = accumulators | (set() if stage >= 2 else weights)
        assert moved(executable, schedule_types.RETURN, stage, Purpose.REMOTE_LOAD) == back
        assert moved(executable, schedule_types.LEAVE, stage, Purpose.REMOTE_STORE) == accumulators
        for task in (schedule_types.ENTER, schedule_types.RETURN, schedule_types.LEAVE):
            assert tasks[task, stage] == 1
        assert tasks[schedule_types.FORWARD, stage] == MICRO_BATCHES
        loss_first = 1 + (stage == LAYERS - 1)  # its gradient needs nothing of what is recomputed
        assert tasks[schedule_types.BACKWARD, stage] == loss_first * MICRO_BATCHES


def test_what_enters_a_stage_waits_in_streaming_memory_for_its_backward() -> None:
    """Other tensors are recomputed; the output of a phase waits for the next one as well."""
    executable = compiled()
    entering = {0: "input.0", 1: "relu:0", 2: "relu_1:0", 3: "relu_2:0"}
    for stage, name in entering.items():
        assert name in moved(executable, schedule_types.FORWARD, stage, Purpose.REMOTE_STORE)
        # with the first body of the backward, be it recomputation or a gradient that needs none
        again = moved(executable, schedule_types.RECOMPUTE, stage, Purpose.REMOTE_LOAD)
        again |= moved(executable, schedule_types.BACKWARD, stage, Purpose.REMOTE_LOAD)
        assert name in again and again <= {name, "input.1", "layers.2/gradient/mm:0"}
    # between phases: made on the last stage of the first, loaded by the first of the second
    assert "relu_1:0" in moved(executable, schedule_types.FORWARD, 1, Purpose.REMOTE_STORE)
    assert moved(executable, schedule_types.FORWARD, 2, Purpose.REMOTE_LOAD) == {"relu_1:0"}
    assert not moved(executable, schedule_types.FORWARD, 1, Purpose.REMOTE_LOAD)


def test_weights_are_on_the_chip_in_their_phase_only() -> None:
    """An IPU with a stage in each of two phases holds the weights of one stage at a time."""
    executable = compiled()
    bytes_of = WIDTH * WIDTH * 4
    for ipu in (0, 1):
        weights = [
            v
            for v in executable.variables
            if v.ipu == ipu and v.name.endswith(("weight", "ight/1"))
        ]
        weights = [v for v in weights if v.role == "weight"]
        assert weights and not any(v.always_live for v in weights)
        for v in weights:
            others = [w for w in weights if w.tensor != v.tensor]
            assert v.bytes == bytes_of
            apart = all(w.stop <= v.start or v.stop <= w.start for w in others)
            assert apart


@pytest.mark.parametrize(
    ("stages", "phases", "micro_batches", "moves"),
    [
        (4, 3, 6, (7, 9, 4)),  # loads in the shadow of the ramps
        (4, 3, 6, (70, 90, 40)),  # loads that are longer
        (2, 2, 5, (5, 0, 0)),
        (1, 3, 4, (5, 6, 7)),
        (4, 2, 2, (100, 6, 7)),  # fewer micro-batches than stages
        (8, 4, 16, (100, 6, 7)),
    ],
)
@pytest.mark.parametrize("backward", [0, 25])
def test_the_closed_form_is_the_trace(
    stages: int, phases: int, micro_batches: int, moves: tuple[int, int, int], backward: int
) -> None:
    forward, (enter, back, leave) = 10, moves
    count = stages * phases
    costs = schedule_types.Costs(
        tuple(range(stages)) * phases, (forward,) * count, (backward,) * count if backward else ()
    )
    kinds = (schedule_types.ENTER, schedule_types.RETURN, schedule_types.LEAVE)
    once = {task: (cycles,) * count for task, cycles in zip(kinds, moves, strict=True)}
    of_stage = tuple(phase for phase in range(phases) for _ in range(stages))
    of_phases = Phases(of_stage, {}, {}, once=once)
    laid_out = pipelined_phases(costs, micro_batches, of_phases)
    assert pipelined_phases_total(costs, micro_batches, of_phases) == laid_out.total
    assert laid_out.total == formulas.pipelined_phases_cycles(
        stages, phases, micro_batches, forward, backward, enter, back, leave
    )
    runs = phases * (2 if backward else 1)
    assert len(laid_out.phases) == runs * formulas.phase_cycles(stages, micro_batches)
    for ipu in range(stages):  # tasks tile each IPU's time
        here = laid_out.ipu == ipu
        start, end = laid_out.start[here], laid_out.end[here]
        assert start[0] == 0 and end[-1] == laid_out.total
        assert np.array_equal(start[1:], end[:-1])


@pytest.mark.parametrize("seed", range(40))
def test_many_micro_batches_take_what_all_of_them_laid_out_take(seed: int) -> None:
    """Few are laid out for the total; uneven phases, streams and transfers beside included."""
    random = np.random.default_rng(seed)
    of_stage = tuple(np.sort(random.integers(0, 3, 7)).tolist())
    of_stage = tuple(np.unique(of_stage, return_inverse=True)[1].tolist())
    ipus = tuple(random.integers(0, 4, 7).tolist())

    def cycles(most: int) -> tuple[int, ...]:
        return tuple(random.integers(0, most, 7).tolist())

    def streams(most: int) -> tuple[tuple[int, int], ...]:
        return tuple((stage, spent) for stage, spent in enumerate(cycles(most)) if spent % 2)

    overlapped = bool(seed % 2)
    costs = schedule_types.Costs(
        ipus,
        cycles(50),
        cycles(90) if seed % 3 else (),
        stream_in=streams(20),
        stream_out=streams(20),
        stream_out_once=bool(seed % 5),
        load=streams(200) if overlapped else (),
        unload=streams(200) if overlapped else (),
        across=seed % 4 == 1,
        sync=int(random.integers(0, 5)),
    )
    tasks = (schedule_types.ENTER, schedule_types.RETURN, schedule_types.LEAVE)
    beside = (*schedule_types.LOADS_BESIDE.values(), *schedule_types.STORES_BESIDE.values())
    facts = Phases(
        of_stage,
        {},
        {},
        once={task: cycles(900) for task in tasks},
        beside={task: cycles(150) for task in beside} if seed % 3 == 1 else {},
    )
    for micro_batches in (1, 6, 9, 40):
        laid_out = pipelined_phases(costs, micro_batches, facts)
        assert pipelined_phases_total(costs, micro_batches, facts) == laid_out.total


@pytest.mark.parametrize(
    ("stages", "phases", "micro_batches", "once"),
    [
        (4, 3, 6, (7, 9, 4)),
        (4, 3, 6, (70, 90, 40)),
        (2, 2, 5, (5, 0, 0)),
        (1, 3, 4, (5, 6, 7)),
        (3, 1, 3, (5, 6, 7)),
    ],
)
@pytest.mark.parametrize(
    "over",
    [
        formulas.OverIoTiles(2, 3, 5, 4, 1, 1, 2),  # all of it beside computing
        formulas.OverIoTiles(8, 9, 5, 30, 100, 70, 90),  # longer than what they are beside
        formulas.OverIoTiles(load_backward=26, leave=40),
    ],
)
@pytest.mark.parametrize("backward", [0, 25])
def test_the_closed_form_over_io_tiles_is_the_trace(
    stages: int,
    phases: int,
    micro_batches: int,
    once: tuple[int, int, int],
    over: formulas.OverIoTiles,
    backward: int,
) -> None:
    forward, count = 10, stages * phases
    costs = schedule_types.Costs(
        tuple(range(stages)) * phases, (forward,) * count, (backward,) * count if backward else ()
    )
    kinds = (schedule_types.ENTER, schedule_types.RETURN, schedule_types.LEAVE)
    beside = {
        schedule_types.LOAD_FORWARD: over.load_forward,
        schedule_types.STORE_FORWARD: over.store_forward,
        schedule_types.LOAD_BACKWARD: over.load_backward,
        schedule_types.STORE_BACKWARD: over.store_backward,
        schedule_types.LOAD_ENTER: over.enter,
        schedule_types.LOAD_RETURN: over.back,
        schedule_types.STORE_LEAVE: over.leave,
    }
    facts = Phases(
        tuple(phase for phase in range(phases) for _ in range(stages)),
        {},
        {},
        once={task: (cycles,) * count for task, cycles in zip(kinds, once, strict=True)},
        beside={task: (cycles,) * count for task, cycles in beside.items()},
    )
    laid_out = pipelined_phases(costs, micro_batches, facts)
    assert pipelined_phases_total(costs, micro_batches, facts) == laid_out.total
    assert laid_out.total == formulas.phases_over_io_tiles_cycles(
        stages, phases, micro_batches, forward, backward, once, over
    )
    aside = np.isin(laid_out.kind, schedule_types.BESIDE)
    for ipu in range(stages):
        here = (laid_out.ipu == ipu) & ~aside  # tasks tile each IPU's time
        start, end = laid_out.start[here], laid_out.end[here]
        assert start[0] == 0 and end[-1] == laid_out.total
        assert np.array_equal(start[1:], end[:-1])
        over_links = (laid_out.ipu == ipu) & aside  # and those of I/O tiles take turns
        order = np.argsort(laid_out.start[over_links], kind="stable")
        start, end = laid_out.start[over_links][order], laid_out.end[over_links][order]
        assert (start[1:] >= end[:-1]).all()


def over_io_tiles(options: ipu_exec.Options) -> None:
    """All that phases move goes over 32 tiles of each IPU."""
    options.enableSyntheticData(True)
    over = ipu_exec.TensorLocationSettings().useIOTilesToLoad().useIOTilesToStore()
    locations = options.TensorLocations.numIOTiles(32).setActivationLocation(over)
    locations.setWeightLocation(over).setAccumulatorLocation(over)


def test_loads_over_io_tiles_are_beside_computing() -> None:
    executable = compiled(change=over_io_tiles)
    plain = compiled(change=lambda options: options.enableSyntheticData(True))
    assert executable.cycles_per_call < plain.cycles_per_call
    schedule = executable.timeline.schedule
    for stage in range(LAYERS):
        weights = {f"layers.{stage}.weight", f"layers.{stage}.bias"}
        assert moved(executable, schedule_types.LOAD_ENTER, stage, Purpose.REMOTE_LOAD) == weights
        for task in (
            schedule_types.ENTER,
            schedule_types.FORWARD,
            schedule_types.RETURN,
            schedule_types.LEAVE,
        ):
            assert not moved(executable, task, stage, Purpose.REMOTE_LOAD)
            assert not moved(executable, task, stage, Purpose.REMOTE_STORE)
    second = (schedule.kind == schedule_types.LOAD_ENTER) & (schedule.stage >= 2)
    works = np.isin(schedule.kind, (schedule_types.FORWARD,)) & (schedule.stage < 2)
    for begin in schedule.start[second]:  # the weights of phase 1 come while phase 0 computes
        assert ((schedule.start[works] <= begin) & (begin < schedule.end[works])).any()


def test_io_tiles_hold_the_largest_of_what_takes_turns() -> None:
    executable = compiled(change=over_io_tiles)
    buffers = {
        (v.ipu, v.name.partition("/")[0]): v
        for v in executable.variables
        if v.role == "stream buffer"
    }
    layer = (WIDTH * WIDTH + WIDTH) * 4
    for ipu in (0, 1):
        assert buffers[ipu, "stores of a phase"].bytes == layer
        # the weights and the accumulators of a stage, for its backward
        assert buffers[ipu, "loads of a phase"].bytes == 2 * layer
    for buffer in buffers.values():
        assert buffer.always_live and not buffer.tile_bytes[:-32].any()


@pytest.mark.parametrize(
    ("how", "change", "words"),
    [
        (lambda: ipu_exec.ShardedExecution("L0", "L1", "L2", "L3"), over_io_tiles, "with Phases"),
        (
            strategy,
            lambda o: (over_io_tiles(o), o.TensorLocations._set(num_io_tiles=0)),
            r"set 32 to 192 aside with TensorLocations\.numIOTiles",
        ),
        (
            strategy,
            lambda o: (over_io_tiles(o), o.Training.gradientAccumulation(2)),
            "at least 3 micro-batches",
        ),
    ],
)
def test_io_tiles_that_cannot_load_say_so(
    how: Callable[[], Any], change: Callable[[ipu_exec.Options], Any], words: str
) -> None:
    warn_once.cache_clear()
    training, batch = wrapped(how(), change)
    samples = BATCH * int(training.options.Training.gradient_accumulation)
    with pytest.warns(UserWarning, match=f"setActivationLocation: .*{words}"):
        training.compile(*(part[:samples] for part in batch))


def test_the_compiled_trace_is_the_closed_form_of_its_costs() -> None:
    """With synthetic data and stages as slow as the slowest, no more than the closed form."""
    executable = compiled(change=lambda options: options.enableSyntheticData(True))
    costs, tree = executable.timeline.costs, executable.tree
    ends = (schedule_types.ENTER, schedule_types.RETURN, schedule_types.LEAVE)
    enter, back, leave = (max(tree.cycles(task, k) for k in range(LAYERS)) for task in ends)
    most = formulas.pipelined_phases_cycles(
        2,
        2,
        MICRO_BATCHES,
        max(costs.forward) + costs.sync,
        max(costs.backward) + costs.sync,
        enter,
        back,
        leave,
    )
    total = executable.timeline.schedule.total - max(costs.update)
    run = MICRO_BATCHES + 1
    least = run * sum(costs.forward[k] for k in (0, 2)) + run * sum(
        costs.backward[k] for k in (0, 2)
    )
    assert least < total <= most


def test_a_phase_gathers_parts_of_weights_once() -> None:
    def in_parts(options: ipu_exec.Options) -> None:
        options.replicationFactor(2)
        parts = ipu_exec.TensorLocationSettings().useOnChipStorage(False)
        parts.useReplicatedTensorSharding().minElementsForReplicatedTensorSharding(64)
        options.TensorLocations.setWeightLocation(parts)

    executable = compiled(change=in_parts)
    gathers = Counter(
        body.task
        for body in executable.tree.bodies
        for step in body.steps
        if step.purpose is Purpose.ALL_GATHER and body.task != schedule_types.UPDATE
    )
    # weights and biases of four stages forward, and again of the two that are not the last phase's
    assert gathers == {schedule_types.ENTER: 8, schedule_types.RETURN: 4}


def test_recomputation_can_be_left_out() -> None:
    """Everything the backward reads then waits in streaming memory."""
    executable = compiled(change=lambda options: options._Popart.set("autoRecomputation", 0))
    assert not any(body.task == schedule_types.RECOMPUTE for body in executable.tree.bodies)
    assert "relu:0" in moved(executable, schedule_types.FORWARD, 0, Purpose.REMOTE_STORE)


def test_numbers_are_those_without_phases() -> None:
    phased, batch = wrapped()
    plain, _ = wrapped(ipu_exec.ShardedExecution("L0", "L1", "L2", "L3"))
    loss = phased(*batch)[1]
    assert torch.isfinite(loss).all() and torch.equal(plain(*batch)[1], loss)
    for one, other in zip(phased.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_its_profile_is_whole(tmp_path: Path) -> None:
    training, batch = wrapped(change=lambda options: options.enableProfiling(tmp_path))
    training.compile(*batch)
    report = profiler.open_report(tmp_path / "training" / "profile.pop")
    assert report.meta["strategy"] == "phased"
    entered = report.bodies[report.bodies["task"] == "enter forward"]
    assert list(entered["stage"]) == [0, 1, 2, 3] and (entered["cycles"] > 0).all()
    assert (report.stages["recompute_cycles"] > 0).all()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda: ipu_exec.PipelinedExecution(Phase("L0"), "L1"), "'L1' is no Phase"),
        (
            lambda: ipu_exec.PipelinedExecution(
                Phase(Stage("L0").ipu(0), Stage("L1").ipu(0)), Phase("L2", "L3")
            ),
            "in phase 0 the stages of 'L0' and of 'L1' are both on IPU 0",
        ),
        (lambda: strategy((("L2", "L3"), ("L0", "L1"))), "must not go back"),
        (lambda: strategy((("L1", "L0"), ("L2", "L3"))), "must not go back"),
    ],
)
def test_wrong_phases_are_errors(how: Callable[[], Any], words: str) -> None:
    with pytest.raises(ipu_exec.Error, match=words):
        compiled(how())


def sharded_layers(in_parts: bool, shards: int = 4) -> Executable:
    """Two transformer layers, a phase each, over IPUs that share their tensors."""
    with ipu_exec.no_weights():
        example = gpt3.example(replace(gpt3.TINY, layers=2))
    half = len(example.blocks) // 2
    options = ipu_exec.Options().showCompilationProgressBar(False)
    options.tensorSharding(shards, gpt3.plan()).Training.gradientAccumulation(MICRO_BATCHES)
    blocks = example.blocks[:half], example.blocks[half:]
    phases = (Phase(Stage(*names).ipu(0)) for names in blocks)
    options.setExecutionStrategy(ipu_exec.PipelinedExecution(*phases))
    location = ipu_exec.TensorLocationSettings().minElementsForReplicatedTensorSharding(1)
    location.useReplicatedTensorSharding(in_parts)
    options.TensorLocations.setActivationLocation(location)
    optimizer = torch.optim.SGD(example.module.parameters(), lr=0.1)
    training = ipu_exec.trainingModel(example.module, options, optimizer)
    training.compile(*example.inputs(MICRO_BATCHES))
    executable: Executable = training.executable
    return executable


def test_activations_wait_in_parts_on_the_ipus_that_share_tensors() -> None:
    """Those that all of them have alike: a t-th is moved, and gathered when it comes back."""

    def moves(made: Executable) -> dict[tuple[str, str], int]:
        return {
            (str(step.purpose), made.graph.storages[move.storage].name): move.bytes
            for body in made.tree.bodies
            for step in body.steps
            if step.purpose in (Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE)
            for move in step.moves
        }

    whole, parts = sharded_layers(False), sharded_layers(True)
    alike = alike_on_shards(parts.graph)
    names = {parts.graph.storages[storage].name for storage in alike}
    before, after = moves(whole), moves(parts)
    assert before.keys() == after.keys()
    fewer = {key for key in before if after[key] < before[key]}
    assert fewer and {name for _, name in fewer} <= names
    for key in fewer:
        assert before[key] / 4 <= after[key] <= before[key] / 4 + 2 * TARGETS["mk2"].tiles
    gathers = [
        step
        for body in parts.tree.bodies
        for step in body.steps
        if step.purpose is Purpose.GATHER_SHARDS
    ]
    assert gathers and all((step.bytes_in == step.bytes_out).all() for step in gathers)
    assert not any(s.purpose is Purpose.GATHER_SHARDS for b in whole.tree.bodies for s in b.steps)


def test_what_ranks_have_of_their_own_is_not_alike() -> None:
    graph = sharded_layers(True).graph
    alike = alike_on_shards(graph)
    for op in graph.ops:
        reads_a_share = any(graph.values[v].storage in graph.shares for v in op.inputs)
        for value in op.outputs:
            if value is None or op.direction == "update":
                continue
            storage = graph.values[value].storage
            if reads_a_share and storage not in graph.shares:
                assert storage not in alike
            if op.aten.startswith("_c10d_functional.all_reduce."):
                assert storage in alike
