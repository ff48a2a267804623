"""Where tensors lie: replicated tensor sharding and streaming memory, against closed forms.

See docs/pipeline-schedules.md#sharded-state.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ipu_exec
from ipu_exec import PipelinedExecution, ShardedExecution
from ipu_exec.compiler.executable import Executable
from ipu_exec.lowering import costs
from ipu_exec.machine import TARGETS
from ipuscope import profiler
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import insights
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler.analysis import fullest_tiles
from ipuscope.profiler.file import records
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.links import link_hops, link_latency_cycles, link_rate
from ipuscope.reports.cli import main as ipu_report
from tests.models import Mlp, model_of

MK2 = TARGETS["mk2"]
WIDTH, MICRO = (
    256,
    4,
)  # a weight of 65,536 elements, above the 8,192 that are sharded; its bias is below
Change = Callable[[ipu_exec.Options], Any]


def sharded(**more: Any) -> ipu_exec.TensorLocationSettings:
    """Location settings with replicated tensor sharding, after calling the named methods."""
    settings = ipu_exec.TensorLocationSettings().useReplicatedTensorSharding(True)
    for method, value in more.items():
        getattr(settings, method)(value)
    return settings


def off_chip() -> ipu_exec.TensorLocationSettings:
    return ipu_exec.TensorLocationSettings().useOnChipStorage(False)


def trained(
    change: Change = lambda o: None,
    replicas: int = 4,
    accumulation: int = 4,
    ipus: int = 1,
    optimizer: Any = ipu_exec.optim.AdamW,
    strategy: Any = PipelinedExecution,
) -> tuple[Mlp, Any, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    model = Mlp([WIDTH, WIDTH, WIDTH], [0, ipus - 1])
    options = ipu_exec.Options().showCompilationProgressBar(False).autoRoundNumIPUs()
    options.replicationFactor(replicas)
    options.setExecutionStrategy(strategy())
    options.Training.gradientAccumulation(accumulation)
    change(options)
    samples = MICRO * accumulation * replicas
    batch = torch.randn(samples, WIDTH), torch.randn(samples, WIDTH)
    return (
        model,
        ipu_exec.trainingModel(model, options, optimizer(model.parameters(), lr=0.01)),
        batch,
    )


def compiled(change: Change = lambda o: None, **kwargs: Any) -> Executable:
    _, executor, batch = trained(change, **kwargs)
    executor.compile(*batch)
    executable: Executable = executor.executable
    return executable


def state_in_parts(options: ipu_exec.Options) -> None:
    options.TensorLocations.setOptimizerLocation(sharded())


def named(executable: Executable, name: str) -> list[records.Variable]:
    """The variables of a name; those that live at several times have a number appended."""
    return [v for v in executable.variables if re.fullmatch(re.escape(name) + r"(/\d+)?", v.name)]


def one(executable: Executable, name: str) -> records.Variable:
    (variable,) = named(executable, name)
    return variable


def steps(executable: Executable, task: int, word: str = "") -> list[Any]:
    return [
        step
        for body in executable.tree.bodies
        if body.task == task
        for step in body.steps
        if word in step.name
    ]


def ring(rounds: int, replicas: int, nbytes: int) -> int:
    """Replicas of one IPU: neighbours on boards of four, slower beyond, both ways from 3 on."""
    rate = link_rate(MK2.links, 0, replicas - 1)
    moved = rounds * (replicas - 1) * nbytes / replicas / (2 if replicas > 2 else 1)
    return ceil(
        rounds * (replicas - 1) * link_latency_cycles(MK2.links, link_hops(0, 1)) + moved / rate
    )


# -- replicated tensor sharding of optimiser state ---


@pytest.mark.parametrize("replicas", [2, 3, 4, 16])
def test_each_replica_keeps_its_part_of_the_state(replicas: int) -> None:
    executable = compiled(state_in_parts, replicas=replicas)
    for layer in ("layers.0", "layers.1"):
        weight = one(executable, f"{layer}.weight").tile_bytes // 4
        for state in ("exp_avg", "exp_avg_sq"):
            part = one(executable, f"{layer}.weight/{state}")
            assert np.array_equal(part.tile_bytes, -(-weight // replicas) * 4) and part.always_live
            # below the 8,192 elements of PopART's default: whole
            assert one(executable, f"{layer}.bias/{state}").bytes == WIDTH * 4
        assert (
            one(executable, f"{layer}.weight/accumulator").bytes
            == one(executable, f"{layer}.weight").bytes
            == WIDTH * WIDTH * 4
        )


@pytest.mark.parametrize("replicas", [2, 4, 16])
def test_gradients_are_scattered_and_weights_gathered_around_the_ring(replicas: int) -> None:
    executable = compiled(state_in_parts, replicas=replicas)
    weights, biases = 2 * WIDTH * WIDTH * 4, 2 * WIDTH * 4
    reduce = next(b for b in executable.tree.bodies if b.task == schedule_types.REDUCE)
    assert [step.name for step in reduce.steps] == ["AllReduce", "ReduceScatter"]
    everywhere, scatter = reduce.steps
    assert everywhere.cycles == ring(2, replicas, biases) and scatter.cycles == ring(
        1, replicas, weights
    )
    (gather,) = steps(executable, schedule_types.UPDATE, "AllGather")
    assert gather.cycles == ring(1, replicas, weights)
    for step in (scatter, gather):
        assert (
            step.bytes_in.sum()
            == step.bytes_out.sum()
            == pytest.approx((replicas - 1) / replicas * weights, rel=1e-3)
        )
    # in sum what one all-reduce of everything takes, but for rounding: the bytes only go at other
    # times
    whole = compiled(replicas=replicas)
    (reduced,) = steps(whole, schedule_types.REDUCE)
    once_more = ring(2, replicas, biases) - ring(2, replicas, 0)
    assert scatter.cycles + gather.cycles == pytest.approx(reduced.cycles - once_more, abs=3)


@pytest.mark.parametrize("replicas", [2, 4, 16])
def test_the_update_runs_on_the_part(replicas: int) -> None:
    executable, whole = compiled(state_in_parts, replicas=replicas), compiled(replicas=replicas)
    held = one(executable, "layers.0.weight").tile_bytes // 4
    for name, kind in (("sqrt", "sqrt"), ("mul", "mul_scalar")):
        (op,) = (
            op.id for op in executable.graph.ops if op.name == f"layers/0/weight/update/{name}"
        )
        assert (
            executable.tree.op_cycles[op]
            == costs.KINDS[kind].cycles(-(-held // replicas), "float32").max()
        )
        assert (
            whole.tree.op_cycles[op]
            == costs.KINDS[kind].cycles(held, "float32").max()
            > executable.tree.op_cycles[op]
        )
        (small,) = (
            op.id for op in executable.graph.ops if op.name == f"layers/0/bias/update/{name}"
        )
        assert executable.tree.op_cycles[small] == whole.tree.op_cycles[small]


def test_one_replica_has_nothing_to_shard() -> None:
    for settings in (sharded(), sharded(useOnChipStorage=True)):
        executable = compiled(
            lambda o, s=settings: o.TensorLocations.setOptimizerLocation(s), replicas=1
        )
        plain = compiled(replicas=1)
        assert executable.cycles_per_call == plain.cycles_per_call
        sizes = [(v.name, v.bytes, v.start, v.stop) for v in plain.variables]
        assert [(v.name, v.bytes, v.start, v.stop) for v in executable.variables] == sizes


def test_the_least_elements_are_the_users() -> None:
    executable = compiled(
        lambda o: o.TensorLocations.setOptimizerLocation(
            sharded(minElementsForReplicatedTensorSharding=WIDTH)
        )
    )
    assert one(executable, "layers.0.bias/exp_avg").bytes < WIDTH * 4
    executable = compiled(
        lambda o: o.TensorLocations.setOptimizerLocation(
            sharded(minElementsForReplicatedTensorSharding=WIDTH**2 + 1)
        )
    )
    assert one(executable, "layers.0.weight/exp_avg").bytes == WIDTH * WIDTH * 4
    assert not steps(executable, schedule_types.UPDATE, "AllGather")


def test_norms_of_parts_are_added_up() -> None:
    """LAMB adds up the norms of the weight and of its direction, one number per replica each."""
    executable = compiled(state_in_parts, optimizer=ipu_exec.optim.LAMB)
    scalars = steps(executable, schedule_types.UPDATE, "AllReduce")
    assert len(scalars) == 2 * 2 and {step.cycles for step in scalars} == {ring(2, 4, 4)}


def test_off_chip_only_the_part_moves() -> None:
    both = compiled(
        lambda o: o.TensorLocations.setOptimizerLocation(sharded(useOnChipStorage=False))
    )
    part = one(both, "layers.0.weight/exp_avg")
    assert not part.always_live and part.bytes == pytest.approx(WIDTH * WIDTH * 4 / 4, rel=0.01)
    for way in ("load", "store"):
        (mid,) = steps(both, schedule_types.UPDATE, f"layers.0.weight/optimiser state/{way}/mid")
        assert mid.cycles == ceil(2 * part.bytes / MK2.streaming_bytes_per_second * MK2.clock_hz)
    collectives = [
        step.name
        for step in steps(both, schedule_types.UPDATE)
        if step.type == records.GLOBAL_EXCHANGE
    ]
    assert collectives == ["AllGather"]
    whole = compiled(lambda o: o.TensorLocations.setOptimizerLocation(off_chip()))
    (mid,) = steps(whole, schedule_types.UPDATE, "layers.0.weight/optimiser state/load/mid")
    assert mid.cycles == ceil(2 * WIDTH * WIDTH * 4 / MK2.streaming_bytes_per_second * MK2.clock_hz)


def test_small_tensors_stay_on_the_chip() -> None:
    executable = compiled(
        lambda o: o.TensorLocations.setOptimizerLocation(
            off_chip().minElementsForOffChip(WIDTH + 1)
        ),
        replicas=1,
    )
    assert (
        one(executable, "layers.0.bias/exp_avg").always_live
        and not one(executable, "layers.0.weight/exp_avg").always_live
    )


def test_what_cannot_run_on_parts_says_so() -> None:
    class Rows(torch.optim.SGD):
        """Scales each row of a weight by its largest gradient."""

        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for weight in (p for group in self.param_groups for p in group["params"]):
                    seen = self.state[weight].setdefault("seen", torch.zeros_like(weight))
                    seen.add_(weight.grad)
                    weight.sub_(seen / seen.abs().amax(dim=-1, keepdim=True))

    with pytest.warns(
        UserWarning,
        match=(
            r"useReplicatedTensorSharding is not honoured for 'layers.[01].weight/seen' and 1 more"
        ),
    ):
        executable = compiled(state_in_parts, optimizer=Rows)
    assert one(executable, "layers.0.weight/seen").bytes == WIDTH * WIDTH * 4
    assert [step.name for step in steps(executable, schedule_types.REDUCE)] == ["AllReduce"]


# -- weights and accumulators ---


def test_weights_in_parts_are_gathered_before_they_are_used() -> None:
    executable = compiled(lambda o: o.TensorLocations.setWeightLocation(sharded()))
    weight = one(executable, "layers.0.weight")
    assert weight.always_live and weight.bytes == pytest.approx(WIDTH * WIDTH * 4 / 4, rel=0.01)
    gathered = named(executable, "layers.1.weight/gathered")
    assert len(gathered) == 2 and not any(
        v.always_live for v in gathered
    )  # for the forward, and for the backward
    assert {v.bytes for v in gathered} == {WIDTH * WIDTH * 4}
    for task, layers in (
        (schedule_types.FORWARD, 2),
        (schedule_types.BACKWARD, 1),
    ):  # no gradient of the input is asked for
        gathers = steps(executable, task, "AllGather")
        assert len(gathers) == layers and {step.cycles for step in gathers} == {
            ring(1, 4, WIDTH * WIDTH * 4)
        }
    # the update is on the part, and the next forward gathers it; of state that is kept whole each
    # replica takes its part, and what became of it is gathered
    assert [step.name for step in steps(executable, schedule_types.REDUCE)] == [
        "AllReduce",
        "ReduceScatter",
    ]
    (gather,) = steps(executable, schedule_types.UPDATE, "AllGather")
    assert one(executable, "layers.0.weight/exp_avg").bytes == WIDTH * WIDTH * 4
    assert gather.cycles == ring(1, 4, 2 * 2 * WIDTH * WIDTH * 4)


def test_all_kinds_in_parts_need_no_gather_at_the_update() -> None:
    def change(options: ipu_exec.Options) -> None:
        options.TensorLocations.setWeightLocation(sharded())
        options.TensorLocations.setOptimizerLocation(sharded())
        options.TensorLocations.setAccumulatorLocation(sharded())

    executable = compiled(change)
    for kind in ("", "/exp_avg", "/exp_avg_sq", "/accumulator"):
        assert one(executable, f"layers.0.weight{kind}").bytes == pytest.approx(
            WIDTH * WIDTH, rel=0.01
        )
    # each micro-batch's gradient is scattered as it is added
    scattered = steps(executable, schedule_types.BACKWARD, "ReduceScatter")
    assert len(scattered) == 2 and {step.cycles for step in scattered} == {
        ring(1, 4, WIDTH * WIDTH * 4)
    }
    assert [step.name for step in steps(executable, schedule_types.REDUCE)] == [
        "AllReduce"
    ]  # of the biases
    assert not steps(executable, schedule_types.UPDATE, "AllGather")


def test_phases_load_their_part_and_gather_the_weight() -> None:
    phases = ipu_exec.SerialPhasedExecution("L0", "L1")

    def made(change: Change) -> Executable:
        return compiled(lambda o: change(o.setExecutionStrategy(phases)))

    parted, whole = (
        made(lambda o: o.TensorLocations.setWeightLocation(sharded())),
        made(lambda o: o),
    )
    for stage in (0, 1):
        forward = next(
            b for b in parted.tree.bodies if b.task == schedule_types.FORWARD and b.stage == stage
        )
        before = next(
            b for b in whole.tree.bodies if b.task == schedule_types.FORWARD and b.stage == stage
        )
        loads = [
            next(s for s in body.steps if s.name.endswith("/load/mid"))
            for body in (forward, before)
        ]
        held = one(compiled(replicas=1), f"layers.{stage}.weight").tile_bytes
        assert (
            loads[1].bytes_in.sum() - loads[0].bytes_in.sum()
            == held.sum() - (-(-held // 4 // 4) * 4).sum()
        )
        (gather,) = (s for s in forward.steps if s.name == f"layers.{stage}.weight/AllGather")
        assert gather.cycles == ring(1, 4, WIDTH * WIDTH * 4)
    # the last phase turns: its backward finds the weight there; the first layer's needs none
    assert not steps(parted, schedule_types.BACKWARD, "AllGather")
    for v in parted.variables:
        assert not (v.role == "weight" and v.always_live and v.bytes >= WIDTH * WIDTH)


def test_off_chip_accumulators_come_to_be_added_to() -> None:
    executable = compiled(
        lambda o: o.TensorLocations.setAccumulatorLocation(off_chip()), replicas=2
    )
    held = named(executable, "layers.0.weight/accumulator")
    assert len(held) == 2 and not any(
        v.always_live for v in held
    )  # in the backward and in the update
    for task in (schedule_types.BACKWARD, schedule_types.UPDATE):
        for way in ("load", "store"):
            moved = "accumulator" if task == schedule_types.BACKWARD else "state"
            word = f"layers.0.weight/{moved}/{way}/mid"
            (mid,) = steps(executable, task, word)
            assert mid.cycles == ceil(
                WIDTH * WIDTH * 4 / MK2.streaming_bytes_per_second * MK2.clock_hz
            )
    # it is reduced while it is on the chip
    assert not steps(executable, schedule_types.REDUCE)
    assert len(steps(executable, schedule_types.UPDATE, "AllReduce")) == 4


def test_off_chip_weights_come_for_forward_backward_and_update() -> None:
    executable = compiled(lambda o: o.TensorLocations.setWeightLocation(off_chip()), replicas=1)
    held = named(executable, "layers.1.weight")
    assert len(held) == 3 and not any(v.always_live for v in held)
    cycles = ceil(WIDTH * WIDTH * 4 / MK2.streaming_bytes_per_second * MK2.clock_hz)
    for task, ways in (
        (schedule_types.FORWARD, 1),
        (schedule_types.BACKWARD, 1),
        (schedule_types.UPDATE, 2),
    ):
        moved = [
            step
            for step in steps(executable, task, "layers.1.weight/")
            if step.type == records.STREAM_COPY_MID
        ]
        assert [step.cycles for step in moved] == [cycles] * ways
    assert compiled(replicas=1).cycles_per_call < executable.cycles_per_call


def test_off_chip_weights_of_inference_come_once() -> None:
    model = Mlp([WIDTH, WIDTH], [0]).eval()
    options = ipu_exec.Options().showCompilationProgressBar(False).replicationFactor(2)
    options.TensorLocations.setWeightLocation(sharded(useOnChipStorage=False))
    executor = ipu_exec.inferenceModel(model, options)
    executor.compile(torch.randn(2 * MICRO, WIDTH))
    executable = executor.executable
    (mid,) = steps(executable, schedule_types.FORWARD, "layers.0.weight/load/mid")
    part = int((-(-one(executable, "layers.0.weight").tile_bytes // 4 // 2) * 4).sum())
    assert mid.cycles == ceil(part / MK2.streaming_bytes_per_second * MK2.clock_hz)
    (gather,) = steps(executable, schedule_types.FORWARD, "layers.0.weight/AllGather")
    assert gather.cycles == ring(1, 2, WIDTH * WIDTH * 4)


def test_weights_that_stages_share_stay_and_it_says_so() -> None:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("in", ipu_id=0):
            x = x @ self.weight
        with ipu_exec.Block("out", ipu_id=1):
            return (x @ self.weight.T).square().mean()

    model = model_of(forward, weight=torch.nn.Parameter(torch.randn(WIDTH, WIDTH)))
    options = ipu_exec.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(3)
    options.TensorLocations.setWeightLocation(off_chip())
    executor = ipu_exec.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match="setWeightLocation is not honoured for 'weight'"):
        executor.compile(torch.randn(3 * MICRO, WIDTH))
    assert any(v.name == "weight" and v.always_live for v in executor.executable.variables)


# -- activations ---


def test_off_chip_activations_wait_in_streaming_memory() -> None:
    executable = compiled(
        lambda o: o.TensorLocations.setActivationLocation(off_chip()),
        replicas=1,
        ipus=2,
        strategy=ShardedExecution,
    )
    stored = steps(executable, schedule_types.FORWARD, "/store/mid")
    loaded = steps(executable, schedule_types.BACKWARD, "/load/mid")
    assert stored and sum(s.bytes_out.sum() for s in stored) == sum(
        s.bytes_in.sum() for s in loaded
    )
    moved = {step.name.removesuffix("/store/mid") for step in stored}
    for name in moved:
        assert len(named(executable, name)) == 2  # once in the forward and once in the backward
    plain = compiled(replicas=1, ipus=2, strategy=ShardedExecution)
    assert all(len(named(plain, name)) == 1 for name in moved)


def test_a_pipeline_keeps_its_stash_and_says_so() -> None:
    def change(options: ipu_exec.Options) -> None:
        options.TensorLocations.setActivationLocation(off_chip())

    with pytest.warns(
        UserWarning, match="setActivationLocation: useOnChipStorage.* is not honoured in a pipeline"
    ):
        executable = compiled(change, ipus=2)
    assert any(v.role == "stash" and v.always_live for v in executable.variables)


# -- numbers and reports ---


def everything(options: ipu_exec.Options) -> None:
    for method in ("setOptimizerLocation", "setWeightLocation", "setAccumulatorLocation"):
        getattr(options.TensorLocations, method)(sharded(useOnChipStorage=False))


@pytest.mark.parametrize("optimizer", [ipu_exec.optim.AdamW, ipu_exec.optim.LAMB])
@pytest.mark.parametrize("change", [state_in_parts, everything])
def test_numbers_do_not_depend_on_where_tensors_lie(change: Change, optimizer: Any) -> None:
    results = []
    for how in (lambda o: None, change):
        model, executor, batch = trained(how, optimizer=optimizer)
        _, losses = executor(*batch)
        results.append([losses, *model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("settings", [sharded(), sharded(useOnChipStorage=False)])
def test_rebalance_and_insights_know_of_it(
    tmp_path: Path, settings: ipu_exec.TensorLocationSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight blocks of state on a chip's tiles.

    Sharing it out is suggested, and priced as the engine does it.
    """

    def profiled(name: str, change: Change) -> profiler.Report:
        model = Mlp([1536] * 4, [0, 0, 0])
        options = ipu_exec.Options().showCompilationProgressBar(False).replicationFactor(4)
        options.enableProfiling(tmp_path / name)
        change(options)
        executor = ipu_exec.trainingModel(
            model, options, ipu_exec.optim.AdamW(model.parameters(), lr=0.01)
        )
        executor(torch.randn(4 * MICRO, 1536), torch.randn(4 * MICRO, 1536))
        return profiler.open_report(next((tmp_path / name).rglob("profile.pop")))

    whole = profiled("whole", lambda o: None)
    assert whole.target.num_ipus == 4  # replicas of one IPU: there is no more to show
    assert len(fullest_tiles(whole)) == 1
    assert ipu_report(["memory", str(whole.path), "--ipu", "1"]) != 0
    assert "It has 1 (of one replica: all 4 are alike): --ipu 0 to 0" in capsys.readouterr().err
    (insight,) = (
        i
        for i in insights(whole)
        if i.title.startswith("each of 4 replicas keeps the same optimiser state")
    )
    parts = profiled("parts", lambda o: o.TensorLocations.setOptimizerLocation(settings))
    assert parts.target.num_ipus == 4 and ipu_report(["summary", str(parts.path)]) == 0
    assert capsys.readouterr().out.count("% busy") == 1  # one replica is profiled
    assert not [i for i in insights(parts) if "keeps the same optimiser state" in i.title]
    if settings.on_chip_storage is not False:
        freed = [
            int(report.memory(0).query("role == 'optimiser state'")["max_tile_bytes"].sum())
            for report in (whole, parts)
        ]
        assert insight.gain_bytes == pytest.approx(freed[0] - freed[1], rel=0.05)
    costs_of = Costs.from_report(parts)
    prediction = what_if(costs_of, Assignment.of(costs_of.stage.tolist(), costs_of.ipus))
    cycles = int(parts.runs["cycles"].iloc[0] // parts.runs["iterations"].iloc[0])
    assert prediction.total == pytest.approx(cycles, rel=0.005)


def test_the_profile_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(options: ipu_exec.Options) -> None:
        state_in_parts(options)
        options.enableProfiling(tmp_path)

    compiled(change)
    report = profiler.open_report(next(tmp_path.rglob("profile.pop")))
    memory = report.memory(0)
    state = int(memory.loc[memory["role"] == "optimiser state", "bytes"].sum())
    assert state == pytest.approx(2 * 2 * (WIDTH * WIDTH * 4 / 4 + WIDTH * 4), rel=0.01)
    weights = int(memory.loc[memory["role"] == "weight", "bytes"].sum())
    assert weights == 2 * (WIDTH * WIDTH * 4 + WIDTH * 4)
    assert ipu_report(["memory", str(report.path)]) == 0
    assert "optimiser state" in capsys.readouterr().out


def test_an_update_that_moves_all_it_changes_is_predicted(tmp_path: Path) -> None:
    def change(options: ipu_exec.Options) -> None:
        locations = options.TensorLocations
        for put in (
            locations.setWeightLocation,
            locations.setAccumulatorLocation,
            locations.setOptimizerLocation,
        ):
            put(off_chip())
        options.enableProfiling(tmp_path)

    _, executor, batch = trained(change)
    executor(*batch)
    report = profiler.open_report(next(tmp_path.rglob("profile.pop")))
    costs_of = Costs.from_report(report)
    prediction = what_if(costs_of, Assignment.of(costs_of.stage.tolist(), costs_of.ipus))
    cycles = int(report.runs["cycles"].iloc[0] // report.runs["iterations"].iloc[0])
    assert prediction.total == pytest.approx(cycles, rel=0.005)
