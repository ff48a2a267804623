"""Phased execution: what moves to and from streaming memory, when phases run, what that saves on
the tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec import Error, Liveness, Phase, Stage
from ipu_exec.compiler.executable import Executable
from ipu_exec.session.compilation import compile_step
from ipuscope import profiler
from ipuscope.planner.insights import insights
from ipuscope.profiler.analysis import pipeline
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.phased_schedules import Phases, phased
from ipuscope.reports.cli import main
from tests.models import Mlp

WIDTHS = [64, 256, 256, 256, 16]
NAMES = [f"L{index}" for index in range(4)]


def compiled(
    strategy: Any,
    accumulation: int = 1,
    training: bool = True,
    change: Callable[[Any], Any] = lambda options: None,
) -> Executable:
    options = poptorch.Options().showCompilationProgressBar(False).setExecutionStrategy(strategy)
    options.Training.gradientAccumulation(accumulation)
    change(options)
    model = Mlp(WIDTHS, [None] * 4)
    if training:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        wrapped = poptorch.trainingModel(model, options, optimizer)
        wrapped.compile(torch.ones(8 * accumulation, 64), torch.ones(8 * accumulation, 16))
    else:
        wrapped = poptorch.inferenceModel(model, options)
        wrapped.compile(torch.ones(8, 64))
    executable: Executable = wrapped.executable
    return executable


def serial(liveness: Liveness = Liveness.AlwaysLive) -> poptorch.SerialPhasedExecution:
    return poptorch.SerialPhasedExecution(*NAMES).setTensorsLiveness(liveness)


def moved(executable: Executable, body: str, what: str) -> int:
    """Bytes over all tiles that a body loads or stores."""
    (program_body,) = [b for b in executable.tree.bodies if b.name == body]
    steps = [
        s for s in program_body.steps if s.type == records.STREAM_COPY_MID and f"/{what}/" in s.name
    ]
    return sum(int((s.bytes_in if what == "load" else s.bytes_out).sum()) for s in steps)  # type: ignore[union-attr]


# -- strategies ---


def test_phases_are_given_in_several_ways() -> None:
    strategy = poptorch.SerialPhasedExecution(
        Phase("A", "B"), [Stage("C").ipu(1), Stage("D")], ["E"], "F"
    )
    assert [[stage.blocks for stage in phase.stages] for phase in strategy.phases] == [
        [("A", "B")],
        [("C",), ("D",)],
        [("E",)],
        [("F",)],
    ]
    assert strategy.phase_of_stages() == (0, 1, 1, 2, 3)
    listed = poptorch.ParallelPhasedExecution(
        [Phase(Stage("A"), Stage("B")), Phase(Stage("C"), Stage("D"))]
    )
    assert [listed.default_ipu(stage) for stage in range(4)] == [0, 2, 1, 3]
    assert [strategy.default_ipu(stage) for stage in range(5)] == [0, 0, 1, 0, 0]
    listed.phase(0).ipus(4, 6)
    assert listed.phase(0).stage(1).ipu_id == 6
    assert listed.sendTensorsOffChipAfterFwd().liveness is Liveness.OffChipAfterFwd


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: poptorch.SerialPhasedExecution(), "no AutoStage"),
        (lambda: poptorch.SerialPhasedExecution(poptorch.AutoStage.SameAsIpu), "no AutoStage"),
        (lambda: poptorch.SerialPhasedExecution("A", "A"), "named twice"),
        (lambda: Phase(Stage("A"), "B"), "Phase takes stages"),
        (lambda: Phase("A").ipus(0, 1), "1 stages, but 2 IPUs"),
        (lambda: serial().phase(4), "there are 4"),
        (lambda: serial().setTensorsLiveness(1), "takes a Liveness"),
        (lambda: serial().useSeparateBackwardPhase(1), "True or False"),
        (
            lambda: compiled(poptorch.SerialPhasedExecution(*reversed(NAMES))),
            "phases must not go back",
        ),
        (
            lambda: compiled(poptorch.ParallelPhasedExecution(["L0", "L1"], ["L2"])),
            "is in no Stage",
        ),
    ],
)
def test_wrong_phases_are_errors(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(Error, match=says):
        make()


# -- what moves ---


def test_a_phase_loads_its_weights_and_stores_its_gradients() -> None:
    executable = compiled(serial())
    layer = {k: 4 * (WIDTHS[k] * WIDTHS[k + 1] + WIDTHS[k + 1]) for k in range(4)}
    for k in range(4):
        assert moved(executable, f"stage {k} forward", "load") == layer[k]
        assert moved(executable, f"stage {k} forward", "store") == 0, (
            "activations stay (AlwaysLive)"
        )
        assert moved(executable, f"stage {k} backward", "store") == layer[k]
    # The backward of a layer reads its weight, not its bias, and the first one's not even that. The
    # last phase turns.
    matrix = {k: 4 * WIDTHS[k] * WIDTHS[k + 1] for k in range(4)}
    loads = [moved(executable, f"stage {k} backward", "load") for k in range(4)]
    assert loads == [0, matrix[1], matrix[2], 0]
    update = moved(executable, "IPU 0 weight update", "load")
    assert update == 3 * sum(layer.values()), "weights, gradients and momentum"


def test_liveness_sends_activations_away_until_the_backward() -> None:
    stay = compiled(serial())
    away = compiled(serial(Liveness.OffChipAfterFwd))
    for k in range(3):
        stored = moved(away, f"stage {k} forward", "store")
        assert stored > 0
        assert (
            moved(away, f"stage {k} backward", "load") - moved(stay, f"stage {k} backward", "load")
            >= stored - 8 * 4 * 256
        )
    assert moved(away, "stage 3 forward", "store") == 0, "the last phase goes on with its backward"
    each = compiled(serial(Liveness.OffChipAfterEachPhase))
    assert moved(each, "stage 1 forward", "load") > moved(away, "stage 1 forward", "load"), (
        "its input comes back too"
    )
    separate = compiled(serial(Liveness.OffChipAfterFwd).useSeparateBackwardPhase())
    assert moved(separate, "stage 3 forward", "store") > 0


def test_accumulators_are_loaded_added_to_and_stored() -> None:
    executable = compiled(serial(), accumulation=4)
    layer = 4 * (256 * 256 + 256)
    assert moved(executable, "stage 1 backward", "store") == layer
    assert moved(executable, "stage 1 backward", "load") == layer + 4 * 256 * 256


def test_weights_can_stay_and_then_nothing_is_loaded_for_inference() -> None:
    def keep(options: poptorch.Options) -> None:
        options.TensorLocations.setWeightLocation(
            poptorch.TensorLocationSettings().useOnChipStorage(True)
        )

    staying = compiled(serial(), training=False, change=keep)
    coming = compiled(serial(), training=False)
    assert all(moved(staying, f"stage {k} forward", "load") == 0 for k in range(4))
    assert coming.cycles_per_call > staying.cycles_per_call


def peak(executable: Executable) -> int:
    """Bytes of tensors over all tiles of IPU 0 at the fullest step."""
    steps = sum(len(body.steps) for body in executable.tree.bodies if body.ipu == 0)
    total = np.zeros(steps + 1, np.int64)
    for variable in executable.variables:
        if variable.category == "variable" and variable.role != "temporary" and variable.ipu == 0:
            total[variable.start] += variable.bytes
            total[variable.stop] -= variable.bytes
    return int(total.cumsum().max())


def test_phases_make_room_on_the_tiles() -> None:
    together = compiled(poptorch.ShardedExecution(Stage(*NAMES)))
    phases = compiled(serial())
    away = compiled(serial(Liveness.OffChipAfterFwd))
    weights = 4 * sum(a * b + b for a, b in pairwise(WIDTHS))
    assert peak(together) > 3 * weights, "weights, momentum and gradients"
    assert peak(phases) < 0.6 * peak(together)
    assert peak(away) <= peak(phases)


# -- when ---


def test_serial_phases_take_the_sum_of_loading_computing_and_storing() -> None:
    executable = compiled(serial(), accumulation=2)
    bodies = [
        b
        for b in executable.tree.bodies
        if b.task in (schedule_types.FORWARD, schedule_types.BACKWARD)
    ]
    per_micro_batch = sum(body.cycles for body in bodies)
    streams = sum(b.cycles for b in executable.tree.bodies if b.task == schedule_types.STREAM_IN)
    once = sum(
        b.cycles
        for b in executable.tree.bodies
        if b.task in (schedule_types.UPDATE, schedule_types.STREAM_OUT)
    )
    assert executable.timeline.schedule.total == 2 * (per_micro_batch + streams) + once
    assert len(bodies) == 2 * 4


def place(parallel: bool, **needs: Any) -> schedule_types.Schedule:
    costs = schedule_types.Costs(ipus=(0, 1, 0) if parallel else (0, 0, 0), forward=(10, 14, 9))
    kinds = {schedule_types.FORWARD: (4, 6, 3), schedule_types.BACKWARD: (0, 0, 0)}
    stores = {schedule_types.FORWARD: (1, 2, 1), schedule_types.BACKWARD: (0, 0, 0)}
    return phased(costs, 1, Phases((0, 1, 2), kinds, stores, parallel=parallel))


def test_groups_in_turn_load_while_the_other_computes() -> None:
    """The schedule is the one worked out by hand, with compute of 5, 6 and 5.

    Phase 0: 0-10, its results at 9. Phase 1 loads 3-9, computes to 15, stores to 17. Phase 2 loads
    12-15, computes to 20, stores to 21.
    """
    schedule = place(parallel=True)
    work = schedule.kind == schedule_types.FORWARD
    tasks = sorted(
        zip(
            schedule.stage[work].tolist(),
            schedule.start[work].tolist(),
            schedule.end[work].tolist(),
            strict=True,
        )
    )
    assert tasks == [(0, 0, 10), (1, 3, 17), (2, 12, 21)]
    assert schedule.total == 21
    assert place(parallel=False).total == 33


def test_stages_of_a_phase_work_together_unless_one_needs_the_other() -> None:
    costs = schedule_types.Costs(ipus=(0, 1), forward=(10, 7), backward=(20, 30))
    none = {schedule_types.FORWARD: (0, 0), schedule_types.BACKWARD: (0, 0)}
    apart = phased(costs, 1, Phases((0, 0), none, none))
    assert apart.total == 10 + 30
    needs = frozenset({(schedule_types.FORWARD, 1, 0), (schedule_types.BACKWARD, 0, 1)})
    assert phased(costs, 1, Phases((0, 0), none, none, needs)).total == 67
    assert phased(costs, 3, Phases((0, 0), none, none, needs)).total == 3 * 67


def test_two_groups_are_faster_than_one_and_receive_from_each_other() -> None:
    parallel = compiled(poptorch.ParallelPhasedExecution(*NAMES))
    one = compiled(serial())
    assert parallel.placement.ipus == (0, 1, 0, 1)
    assert parallel.timeline.schedule.total < one.timeline.schedule.total
    received = [
        s for b in parallel.tree.bodies for s in b.steps if s.type == records.GLOBAL_EXCHANGE
    ]
    assert all(int(step.bytes_in.sum()) > 0 for step in received)  # type: ignore[union-attr]
    forward = [s for s in received if "forward" in s.name]
    assert [int(s.bytes_in.sum()) for s in forward] == [8 * 4 * 256] * 3  # type: ignore[union-attr]


# -- whole ---


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_numbers_are_pytorchs_and_the_profile_is_well(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategies = {
        "serial": poptorch.SerialPhasedExecution,
        "parallel": poptorch.ParallelPhasedExecution,
    }
    torch.manual_seed(0)
    model = Mlp(WIDTHS, [None] * 4)
    plain = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(WIDTHS)))
    plain.load_state_dict(
        {name.removeprefix("layers."): value for name, value in model.state_dict().items()}
    )
    options = poptorch.Options(autoreport=True, autoreport_dir=tmp_path).setExecutionStrategy(
        strategies[kind](*NAMES)
    )
    options.showCompilationProgressBar(False)
    wrapped = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    x, target = torch.randn(8, 64), torch.randn(8, 16)
    wrapped(x, target)
    wrapped.destroy()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    out = x
    for layer in plain:
        out = torch.relu(layer(out))
    nn.functional.mse_loss(out, target).backward()
    optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with profiler.open_report(tmp_path / "training") as report:
        assert report.meta["state"] == "executed"
        assert report.options["executionStrategy"].startswith(
            type(options.execution_strategy).__name__
        )
    for command in ("doctor", "summary", "stages", "pipeline", "memory"):
        assert main([command, str(tmp_path / "training")]) == 0, command
    assert main(["rebalance", str(tmp_path / "training")]) == 1
    assert "was phased" in capsys.readouterr().err
    with profiler.open_report(tmp_path / "training") as report:
        every = insights(report)
        assert not [one for one in every if one.where.startswith("/rebalance")]
        # what no change is known for stands behind the changes, and its bound is larger here
        no_change = [one.remainder for one in every if one.gain_cycles]
        assert no_change == sorted(no_change) and any(no_change)
        table = pipeline.cycle_table(report)
        assert (table["work_cycles"] <= table["cycles"]).all()


def test_accumulators_that_wait_are_reduced_one_after_another() -> None:
    """With replicas, each is on the chip only for its own update, not to wait for others."""
    options = poptorch.Options().showCompilationProgressBar(False).replicationFactor(2)
    strategy = poptorch.SerialPhasedExecution("L0", "L1", "L2")
    strategy.setTensorsLiveness(Liveness.OffChipAfterEachPhase)
    options.setExecutionStrategy(strategy).Training.gradientAccumulation(2)
    model = Mlp([16, 16, 16, 16], ipus=[0, 0, 0])
    batch = torch.randn(4, 16), torch.randn(4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executable = compile_step(model, batch, {}, options, optimizer, True)
    assert all(body.task != schedule_types.REDUCE for body in executable.tree.bodies)
    (update,) = (body for body in executable.tree.bodies if body.task == schedule_types.UPDATE)
    purposes = [str(step.purpose) for step in update.steps]
    assert purposes.count("all-reduce") == len(list(model.parameters()))
    first = purposes.index("all-reduce")
    assert "remote load" in purposes[:first] and "remote store" in purposes[first:]


def test_equal_phases_share_the_code_of_their_transfers() -> None:
    """Their weights lie in remote buffers, of which a phase reads one at an offset."""

    def code(layers: int) -> dict[str, int]:
        names = [f"L{index}" for index in range(layers)]
        strategy = poptorch.SerialPhasedExecution(*names)
        strategy.setTensorsLiveness(Liveness.OffChipAfterEachPhase)
        options = poptorch.Options().showCompilationProgressBar(False)
        options.setExecutionStrategy(strategy)
        away = poptorch.TensorLocationSettings().useOnChipStorage(False)
        options.TensorLocations.setWeightLocation(away).setActivationLocation(away)
        model = Mlp([64] * (layers + 1), [None] * layers)
        wrapped = poptorch.inferenceModel(model, options)
        wrapped.compile(torch.ones(8, 64))
        total: dict[str, int] = {}
        for variable in wrapped.executable.variables:
            if variable.category.startswith(("hostExchange", "controlCode")):
                total[variable.category] = total.get(variable.category, 0) + variable.bytes
        return total

    few, many = code(5), code(9)
    assert few["hostExchangeCode"] == many["hostExchangeCode"]
    calls = (
        1472 * 4 * 3 * 4
    )  # one of three instructions on each tile, a phase that is there already
    assert many["controlCode"] - few["controlCode"] == calls
