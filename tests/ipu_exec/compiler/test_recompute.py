"""What is stashed for the backward, what is recomputed, and when (compiler.placement.recompute)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import ipu_exec
from ipu_exec import PipelinedExecution, TensorLocationSettings
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.placement.recompute import Recomputation, asked_for, intervals
from ipu_exec.session.compilation import compile_step
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler import Report, open_report
from ipuscope.profiler.analysis import pace
from ipuscope.profiler.timeline import schedule_types

LAYERS = 5


class Stack(torch.nn.Module):
    """Layers whose activations are many times their output.

    The output of each is a checkpoint where asked for.
    """

    def __init__(self, checkpoints: bool, norm: bool = False) -> None:
        super().__init__()
        self.wide = torch.nn.ModuleList(torch.nn.Linear(64, 1024) for _ in range(LAYERS))
        self.narrow = torch.nn.ModuleList(torch.nn.Linear(1024, 64) for _ in range(LAYERS))
        self.norm = torch.nn.ModuleList(
            torch.nn.LayerNorm(1024) if norm else torch.nn.Identity() for _ in range(LAYERS)
        )
        self.checkpoints = checkpoints
        self.head = torch.nn.Linear(64, 8)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("stack"):
            for wide, norm, narrow in zip(self.wide, self.norm, self.narrow, strict=True):
                x = torch.tanh(narrow(torch.tanh(norm(wide(x)))))
                if self.checkpoints:
                    x = ipu_exec.recomputationCheckpoint(x)
        with ipu_exec.Block("head"):
            return torch.nn.functional.mse_loss(self.head(x), target)


def compiled(
    checkpoints: bool, kind: int | None = None, pipelined: bool = False, norm: bool = False
) -> Executable:
    torch.manual_seed(0)
    model = Stack(checkpoints, norm)
    options = ipu_exec.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(4)
    if pipelined:
        options.setExecutionStrategy(PipelinedExecution("stack", "head"))
    if kind is not None:
        options._Popart.set("autoRecomputation", kind)
    batch = (torch.randn(256, 64), torch.randn(256, 8))
    return compile_step(
        model, batch, {}, options, torch.optim.SGD(model.parameters(), lr=0.1), True
    )


def ran_again(executable: Executable) -> list[str]:
    bodies = executable.tree.all_of(0, schedule_types.RECOMPUTE)
    return [
        executable.graph.ops[op].name
        for body in bodies
        for op in dict.fromkeys(s.op for s in body.steps)
        if op >= 0
    ]


def peak_of_activations(executable: Executable) -> int:
    """Peak bytes of activations over the steps of IPU 0."""
    steps = sum(len(body.steps) for body in executable.tree.bodies if body.ipu == 0)
    change = np.zeros(steps + 1, np.int64)
    for variable in executable.variables:
        if variable.ipu == 0 and variable.role == "activation":
            change[variable.start] += variable.bytes
            change[variable.stop] -= variable.bytes
    return int(change.cumsum().max())


def wide_activations(executable: Executable) -> int:
    """Bytes of one layer's wide activation."""
    return max(v.bytes for v in executable.variables if v.role == "activation")


@pytest.mark.parametrize("pipelined", [True, False])
def test_checkpoints_within_a_stage_leave_one_segment_at_a_time(pipelined):
    kind = None if pipelined else int(Recomputation.RECOMPUTE_ALL)
    whole, parts = (
        compiled(False, 0 if not pipelined else None, pipelined),
        compiled(True, kind, pipelined),
    )
    wide = wide_activations(whole)
    # without checkpoints all layers' wide activations (before and behind tanh is one storage each)
    # wait at once
    assert peak_of_activations(whole) > LAYERS * wide
    assert peak_of_activations(parts) < 4 * wide


def test_segments_run_again_last_first_and_right_before_their_backward():
    executable = compiled(True, pipelined=True)
    turns = [
        body.task
        for body in executable.tree.all_of(0, schedule_types.RECOMPUTE, schedule_types.BACKWARD)
    ]
    # what needs no activation comes first: nothing is recomputed before it is wanted
    assert turns == [
        schedule_types.BACKWARD,
        *[schedule_types.RECOMPUTE, schedule_types.BACKWARD] * LAYERS,
    ]
    firsts = [name.split("/")[0] for name in ran_again(executable)]
    layers = [int(name.split(".")[1]) for name in firsts if name.startswith("wide.")]
    assert layers == sorted(layers, reverse=True) and len(set(layers)) == LAYERS


def test_every_operator_runs_again_once_at_most_and_the_trace_has_each_turn():
    executable = compiled(True, pipelined=True)
    names = [
        op
        for body in executable.tree.all_of(0, schedule_types.RECOMPUTE)
        for op in {step.op for step in body.steps}
    ]
    tanh = [
        executable.graph.ops[op].name
        for op in names
        if op >= 0 and "restore" not in executable.graph.ops[op].name
    ]
    assert (
        len(tanh) <= len(set(tanh)) + LAYERS
    )  # a restore is counted with the operator that made the tensor
    schedule = executable.timeline.schedule
    backward = (schedule.stage == 0) & np.isin(
        schedule.kind, [schedule_types.RECOMPUTE, schedule_types.BACKWARD]
    )
    turns = 2 * LAYERS + 1
    assert backward.sum() == turns * 4  # micro-batches
    total = executable.tree.cycles(schedule_types.RECOMPUTE, 0) + executable.tree.cycles(
        schedule_types.BACKWARD, 0
    )
    assert executable.timeline.costs.backward[0] == total
    assert int((schedule.end - schedule.start)[backward].sum()) == 4 * total
    bodies = executable.timeline.trace.task_body[backward]
    assert len(set(bodies.tolist())) == turns


def test_a_stashed_tensor_comes_back_right_before_its_first_use():
    executable = compiled(True, pipelined=True)
    for body in executable.tree.all_of(0, schedule_types.RECOMPUTE, schedule_types.BACKWARD):
        for step, after in pairwise(body.steps):
            if step.name.endswith("/restore"):
                storage = next(
                    s
                    for s in executable.graph.storages.values()
                    if s.name == step.name.removesuffix("/restore")
                )
                users = {
                    op.id
                    for op in executable.graph.ops
                    if any(executable.graph.values[v].storage == storage.id for v in op.inputs)
                }
                assert after.name.endswith("/restore") or after.op in users
    assert (
        not executable.tree.of(schedule_types.FORWARD, 0).steps[-1].name.endswith("input.0/stash")
    )  # it went early


def test_nothing_runs_again_behind_the_last_checkpoint_where_the_backward_follows_at_once():
    every = compiled(True, int(Recomputation.RECOMPUTE_ALL))
    assert not any("head" in name or "mse" in name for name in ran_again(every))
    assert any(name.startswith("wide.0") for name in ran_again(every))
    assert (
        ran_again(compiled(False, int(Recomputation.RECOMPUTE_ALL))) == []
    )  # no checkpoint: it would gain nothing
    assert ran_again(compiled(True)) == []  # PopTorch recomputes in pipelines only, unless told


def test_norm_only_runs_norms_again_and_what_follows_them_in_place():
    again = ran_again(compiled(False, int(Recomputation.NORM_ONLY), norm=True))
    assert len(again) == LAYERS and all("norm" in name for name in again)


def test_standard_keeps_what_is_least():
    executable = compiled(False, int(Recomputation.STANDARD))
    none = compiled(False, int(Recomputation.NONE))
    assert ran_again(executable)
    assert peak_of_activations(executable) < peak_of_activations(none)
    assert executable.cycles_per_call > none.cycles_per_call


def test_recomputation_changes_memory_and_cycles_but_no_number():
    def losses(kind: int) -> list[float]:
        torch.manual_seed(0)
        model = Stack(True)
        options = ipu_exec.Options().showCompilationProgressBar(False)
        options.Training.gradientAccumulation(2)
        options._Popart.set("autoRecomputation", kind)
        run = ipu_exec.trainingModel(model, options, ipu_exec.optim.SGD(model.parameters(), lr=0.1))
        x, y = torch.randn(8, 64), torch.randn(8, 8)
        return [float(run(x, y)) for _ in range(3)]

    assert losses(0) == losses(4)


@pytest.mark.parametrize("setting", [5, -1, "Pipeline", 1.5j])
def test_what_is_no_kind_of_recomputation_is_an_error_that_lists_them(setting):
    with pytest.raises(ipu_exec.Error, match=r"autoRecomputation.*3 \(PIPELINE\)"):
        asked_for(setting, True)


def test_pipelines_recompute_by_default_and_nothing_else_does():
    assert asked_for(None, True) is Recomputation.PIPELINE
    assert asked_for(None, False) is Recomputation.NONE
    assert asked_for(False, True) is Recomputation.NONE
    assert asked_for(3, False) is Recomputation.RECOMPUTE_ALL


@pytest.mark.parametrize("count", [1, 2, 3, 10, 55, 100, 1000])
def test_intervals_cover_all_and_get_shorter(count):
    cut = intervals(count)
    assert cut[0][0] == 0 and cut[-1][1] == count
    assert all(a[1] == b[0] for a, b in pairwise(cut))
    lengths = [end - begin for begin, end in cut]
    assert all(a >= b - 1 for a, b in pairwise(lengths))
    assert abs(len(cut) - (2 * count) ** 0.5) <= 2


class Blocks(Stack):
    """The same with one Block per layer."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for number, (wide, narrow) in enumerate(zip(self.wide, self.narrow, strict=True)):
            with ipu_exec.Block(f"L{number}"):
                x = torch.tanh(narrow(torch.tanh(wide(x))))
                if self.checkpoints:
                    x = ipu_exec.recomputationCheckpoint(x)
        with ipu_exec.Block("head"):
            return torch.nn.functional.mse_loss(self.head(x), target)


class Sums(Blocks):
    """Few tiles have the states of its recurrent layers; only the head needs the sum of them."""

    def __init__(self, checkpoints: bool) -> None:
        super().__init__(checkpoints)
        self.recurrent = torch.nn.ModuleList(
            torch.nn.LSTM(8, 8, batch_first=True) for _ in range(LAYERS)
        )

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(1, (8, 8))
        total = torch.zeros_like(x)
        for number, layer in enumerate(self.recurrent):
            with ipu_exec.Block(f"L{number}"):
                x = layer(x)[0]
                total = total + x
        with ipu_exec.Block("head"):
            return torch.nn.functional.mse_loss(self.head(torch.relu(total).flatten(1)), target)


def profiled(
    folder: Path,
    starts: tuple[int, ...],
    checkpoints: bool,
    kind: int | None = None,
    weights: TensorLocationSettings | None = None,
    model_class: type[Blocks] = Blocks,
) -> Report:
    torch.manual_seed(0)
    model = model_class(checkpoints)
    names = [*(f"L{number}" for number in range(LAYERS)), "head"]
    options = ipu_exec.Options(autoreport=True, autoreport_dir=folder).showCompilationProgressBar(
        False
    )
    options.Training.gradientAccumulation(8)
    if kind is not None:
        options._Popart.set("autoRecomputation", kind)
    if weights is not None:
        options.TensorLocations.setWeightLocation(weights)
    stages = (
        ipu_exec.Stage(*names[a:b]).ipu(k)
        for k, (a, b) in enumerate(pairwise([*starts, len(names)]))
    )
    options.setExecutionStrategy(PipelinedExecution(*stages))
    run = ipu_exec.trainingModel(model, options, ipu_exec.optim.SGD(model.parameters(), lr=0.1))
    run(torch.randn(8 * 256, 64), torch.randn(8 * 256, 8))
    return open_report(folder)


@pytest.fixture(scope="module")
def at_three(tmp_path_factory) -> Path:
    """The profile with checkpoints whose second stage begins at the fourth Block."""
    folder = tmp_path_factory.mktemp("three")
    profiled(folder, (0, 3), True)
    return folder


@pytest.mark.parametrize(("checkpoints", "starts"), [(True, (0, 2)), (False, (0, 4))])
def test_another_split_is_predicted_with_what_runs_again(tmp_path, at_three, checkpoints, starts):
    report = open_report(at_three) if checkpoints else profiled(tmp_path / "own", (0, 3), False)
    costs = Costs.from_report(report)
    assert costs.cycles.closed.tolist() == [False, *[checkpoints] * (LAYERS - 1), checkpoints]
    prediction = what_if(costs, Assignment(starts, (0, 1)))
    obtained = profiled(tmp_path / "obtained", starts, checkpoints)
    assert prediction.total == obtained.runs["cycles"].iloc[0]
    assert list(prediction.forward) == obtained.stages["forward_cycles"].tolist()
    assert list(prediction.backward) == obtained.stages["backward_cycles"].tolist()


def test_other_recomputation_and_cuts_are_predicted_to_the_cycle(tmp_path):
    again, keeps = (
        profiled(tmp_path / name, starts, False, kind, model_class=Sums)
        for name, starts, kind in (("again", (0, 2, 4, 5), None), ("keeps", (0, 1, 3, 5), 0))
    )
    for one, other, recompute in ((again, keeps, False), (keeps, again, True)):
        costs = Costs.from_report(one)
        starts = tuple(other.stages["stage"].map(other.blocks["stage"].searchsorted))
        choices = (Choice(recompute, False),) * 4
        prediction = what_if(costs, Assignment(starts, (0, 1, 2, 3), choices))
        assert list(prediction.forward) == other.stages["forward_cycles"].tolist()
        assert list(prediction.backward) == other.stages["backward_cycles"].tolist()
        assert prediction.total == other.runs["cycles"].iloc[0]
        fullest = other.tiles(1)["total"].max()
        assert prediction.fullest[1] == pytest.approx(fullest, rel=0.03)


def test_checkpoints_make_more_room_by_prediction_as_by_compiling(tmp_path):
    profiles = {c: profiled(tmp_path / str(c), (0, 5), c) for c in (True, False)}
    peak = {c: int(profiles[c].tiles(0)["peak"].max()) for c in profiles}
    for report in profiles.values():
        predicted = what_if(Costs.from_report(report), Assignment((0, 5), (0, 1))).fullest[0]
        assert predicted == pytest.approx(report.tiles(0)["total"].max(), rel=0.1)
    assert peak[True] < peak[False]


def test_what_a_stranger_says_of_recomputation_is_checked(at_three):
    report = open_report(at_three)
    said = report.meta["recomputation"]
    assert len(said["again"]) == LAYERS + 1
    report.__dict__["meta"] = {**report.meta, "recomputation": {}}
    measured = Costs.from_report(report).cycles
    for wrong in (
        {**said, "again": [1]},
        {**said, "stashes": [[0, 99, 0, 1]]},
        {**said, "closed": "no"},
        7,
    ):
        report.__dict__["meta"] = {**report.meta, "recomputation": wrong}
        cycles = Costs.from_report(report).cycles
        assert len(cycles.again) == LAYERS + 1
        for name in ("again", "again_end", "again_final", "closed"):
            assert getattr(cycles, name).tolist() == getattr(measured, name).tolist()


@pytest.mark.parametrize(
    "key",
    [
        *("host_latency", "streaming_bytes_per_cycle", "link_latency", "micro_batch", "across"),
        "cut_tiles",
    ],
)
def test_what_a_stranger_says_of_costs_is_checked(at_three, key):
    report = open_report(at_three)
    header = report.meta
    for wrong in ("fast", [1], None, -1, float("nan"), {}):
        report.__dict__["meta"] = {**header, key: wrong}
        costs = Costs.from_report(report)
        assert pace(report).cycles > 0
        assert not costs.streams.across and what_if(costs, Assignment((0, 3), (0, 1))).total > 0


@pytest.mark.parametrize("kind", [None, 4])
def test_one_stage_recomputes_by_prediction_only_where_it_is_asked_for(tmp_path, kind):
    several = Costs.from_report(profiled(tmp_path / "several", (0, 3), True, kind))
    alone = profiled(tmp_path / "alone", (0,), True, kind)
    assert (alone.stages["recompute_cycles"].iloc[0] > 0) == (kind is not None)
    for costs in (several, Costs.from_report(alone)):
        prediction = what_if(costs, Assignment((0,), (0,)))
        assert prediction.backward[0] == pytest.approx(
            alone.stages["backward_cycles"].iloc[0], rel=0.002
        )


def test_weights_that_come_for_what_runs_again_are_the_backwards(tmp_path):
    off_chip = TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(0)
    report = profiled(tmp_path, (0, 3), True, weights=off_chip)
    prediction = what_if(Costs.from_report(report), Assignment((0, 3), (0, 1)))
    again = report.program_steps().query("direction == 'recompute'")
    assert (again["kind"] == "host I/O").any()
    assert list(prediction.backward) == pytest.approx(
        report.stages["backward_cycles"].tolist(), rel=0.002
    )
