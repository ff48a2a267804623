"""The compiler end to end: placement, cycles and memory of small models, checked by arithmetic."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
import torch

import ipu_exec
from ipu_exec import PipelinedExecution, ShardedExecution
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.memory.overflow import find_overflow, tile_bytes
from ipu_exec.compiler.rows.block_rows import block_rows
from ipu_exec.compiler.rows.profile_rows import op_rows, rows, stage_rows
from ipu_exec.lowering.plan import Compute, Exchange
from ipu_exec.session.compilation import compile_step
from ipuscope import profiler
from ipuscope.profiler.analysis import overflows
from ipuscope.profiler.timeline import closed_forms
from ipuscope.profiler.timeline.schedule_types import (
    BACKWARD,
    COPY,
    FORWARD,
    RECOMPUTE,
    REDUCE,
    STREAM_IN,
    UPDATE,
)
from ipuscope.reports.cli import main as ipu_report
from tests.models import Mlp, Mnist, mnist_batch, model_of


def options(
    accumulation: int = 10, iterations: int = 2, strategy=None, **kwargs
) -> ipu_exec.Options:
    opts = ipu_exec.Options(**kwargs).deviceIterations(iterations).showCompilationProgressBar(False)
    opts.Training.gradientAccumulation(accumulation)
    return opts.setExecutionStrategy(strategy or PipelinedExecution("B1", "B2", "B3", "B4"))


def compiled(
    opts: ipu_exec.Options | None = None, micro_batch: int = 8, optimizer=torch.optim.AdamW
) -> Executable:
    model = Mnist()
    return compile_step(
        model, mnist_batch(micro_batch), {}, opts or options(), optimizer(model.parameters()), True
    )


@pytest.fixture(scope="module")
def mnist() -> Executable:
    return compiled()


def test_each_op_runs_once_and_on_its_stage(mnist):
    counted = {}
    for body in mnist.tree.bodies:
        for step in body.steps:
            if step.plan is not None and step.type != "Sync" and body.task != RECOMPUTE:
                counted.setdefault((step.op, id(step.plan)), []).append(
                    (body.stage, body.ipu, step.part)
                )
    for (op, _), places in counted.items():
        plan = mnist.tree.op_plans[op]
        assert sorted(part for _, _, part in places) == list(range(len(plan.steps)))
        assert {ipu for _, ipu, _ in places} == {mnist.placement.ipus[mnist.placement.op_stage[op]]}


def test_a_step_lasts_as_long_as_its_slowest_tile(mnist):
    for body in mnist.tree.bodies:
        for step in body.steps:
            if step.tile_cycles is not None:
                assert step.cycles == step.tile_cycles.max()
                assert len(step.tile_cycles) == mnist.target.tiles
    kinds = {type(step) for plan in mnist.tree.op_plans.values() for step in plan.steps}
    assert kinds == {Compute, Exchange}


def test_a_call_takes_what_the_closed_form_says(mnist):
    """The pipeline cycles of docs/pipeline-schedules.md#training, plus streams and update."""
    costs = mnist.timeline.costs
    pipeline = closed_forms.training_cycles(
        costs.forward, costs.backward, 10, costs.sync + max(costs.copies)
    )
    in_cycles = [
        max((c for k, c in costs.stream_in if 0 <= cycle - k < 10), default=0)
        for cycle in range(16)
    ]
    once = sum(c for _, c in costs.stream_out)
    assert mnist.cycles_per_call == 2 * (pipeline + sum(in_cycles) + max(costs.update) + once)


def test_weights_and_states_are_there_once_on_the_ipu_of_their_stage(mnist):
    model = Mnist()
    sizes = {name: parameter.numel() * 4 for name, parameter in model.named_parameters()}
    weights = [v for v in mnist.variables if v.role == "weight"]
    assert {v.name: v.bytes for v in weights} == sizes
    assert all(v.always_live and v.tile_bytes.sum() == v.bytes for v in weights)
    assert {v.name: v.ipu for v in weights}["fc1.weight"] == 2
    states = sum(v.bytes for v in mnist.variables if v.role == "optimiser state")
    assert states == sum(2 * size + 4 for size in sizes.values())  # two moments and the step
    assert sum(v.bytes for v in mnist.variables if v.role == "accumulator") == sum(sizes.values())


def test_accumulators_and_states_lie_with_their_weight(mnist):
    at = {v.name: v.tile_bytes for v in mnist.variables}
    for suffix in ("accumulator", "exp_avg", "exp_avg_sq"):
        assert np.array_equal(at["fc1.weight"], at[f"fc1.weight/{suffix}"])


def no_recompute() -> ipu_exec.Options:
    opts = options()
    opts._Popart.set("autoRecomputation", 0)
    return opts


def stashes(executable: Executable) -> dict[int, dict[str, int]]:
    return {
        stage: {
            v.name: v.bytes for v in executable.variables if v.role == "stash" and v.stage == stage
        }
        for stage in range(4)
    }


def test_with_recomputation_a_stage_stashes_what_enters_it(mnist):
    micro = 8 * 4
    assert stashes(mnist) == {
        0: {"input.0/stash": 7 * micro * 28 * 28},
        1: {"relu:0/stash": 5 * micro * 10 * 144},
        2: {"relu_1:0/stash": 3 * micro * 320},
        3: {},
    }


def test_recomputation_runs_the_forward_again_but_on_the_last_stage(mnist):
    executable = compiled(no_recompute())
    for stage in range(4):
        recompute = mnist.tree.of(RECOMPUTE, stage)
        forward = mnist.tree.of(FORWARD, stage)
        assert (recompute is None) == (stage == 3)
        if recompute is not None:
            again = [step.name for step in recompute.steps if not step.name.endswith("restore")]
            assert again and set(again) <= {step.name for step in forward.steps}
            assert executable.tree.of(RECOMPUTE, stage) is None
    assert executable.cycles_per_call < mnist.cycles_per_call
    assert sum(executable.timeline.costs.forward) > 0
    row = stage_rows(mnist)[1]
    assert row.recompute_cycles == mnist.tree.cycles(RECOMPUTE, 1) < row.backward_cycles
    kinds = mnist.timeline.schedule.kind
    assert (kinds == RECOMPUTE).sum() == 3 * 10 and (kinds == BACKWARD).sum() == 4 * 10


def test_a_checkpoint_is_stashed_and_what_is_before_it_not_run_again():
    def forward(self, x, target):
        with ipu_exec.Block("a"):
            x = torch.tanh(self.layers[0](x))
            x = ipu_exec.recomputationCheckpoint(x)
            x = torch.tanh(self.layers[1](x))
        with ipu_exec.Block("b"):
            return torch.nn.functional.mse_loss(self.layers[2](x), target)

    model = model_of(forward, layers=Mlp([16, 32, 48, 8]).layers)
    opts = options(4, strategy=PipelinedExecution("a", "b"))
    batch = (torch.randn(4, 16), torch.randn(4, 8))
    executable = compile_step(
        model, batch, {}, opts, torch.optim.SGD(model.parameters(), lr=0.1), True
    )
    assert {v.name for v in executable.variables if v.role == "stash"} == {
        "input.0/stash",
        "tanh:0/stash",
    }
    again = {step.name.split("/")[0] for step in executable.tree.of(RECOMPUTE, 0).steps}
    assert again == {"tanh:0", "layers.1", "tanh_1"}


def test_stash_is_what_the_backward_reads_times_its_depth():
    depth = {0: 7, 1: 5, 2: 3, 3: 0}
    by_stage = stashes(compiled(no_recompute()))
    micro = 8 * 4
    expected = {
        0: {
            "input.0/stash": 28 * 28,
            "conv1/convolution:0/stash": 10 * 576,  # a maximum's gradient reads input and output
            "pool/max_pool2d_with_indices:0/stash": 10 * 144,
            "relu:0/stash": 10 * 144,
        },
        1: {
            "relu:0/stash": 10 * 144,
            "conv2/convolution:0/stash": 20 * 64,
            "pool/max_pool2d_with_indices_1:0/stash": 320,
            "relu_1:0/stash": 320,
        },
        2: {"relu_1:0/stash": 320, "relu_2:0/stash": 256},
        3: {},
    }
    for stage, names in expected.items():
        assert by_stage[stage] == {
            name: elements * micro * depth[stage] for name, elements in names.items()
        }


def test_lifetimes_lie_inside_the_program_and_code_is_always_live(mnist):
    steps = {ipu: sum(len(b.steps) for b in mnist.tree.bodies if b.ipu == ipu) for ipu in range(4)}
    for variable in mnist.variables:
        assert 0 <= variable.start < variable.stop <= steps[variable.ipu]
        assert (variable.tile_bytes >= 0).all()
        if variable.role == "program" or variable.always_live:
            assert (variable.start, variable.stop) == (0, steps[variable.ipu])


def test_a_stashed_activation_dies_between_forward_and_backward(mnist):
    names = ("input.0", "input.0/1")
    ends = sorted((v.start, v.stop) for v in mnist.variables if v.name in names and v.ipu == 0)
    assert len(ends) == 2 and ends[0][1] <= ends[1][0]


def test_what_comes_from_another_ipu_is_there_from_the_first_step(mnist):
    received = [v for v in mnist.variables if v.name == "relu:0" and v.ipu == 1]
    assert min(v.start for v in received) == 0
    copies = mnist.tree.of(COPY, -1)
    assert copies is not None and copies.steps[0].bytes_out.sum() == 8 * 10 * 144 * 4


def test_sharding_keeps_no_stash_and_runs_one_stage_at_a_time():
    sharded = compiled(options(4, strategy=ShardedExecution("B1", "B2", "B3", "B4")))
    assert not any(v.role == "stash" for v in sharded.variables)
    costs = sharded.timeline.costs
    assert sharded.timeline.schedule.total >= 4 * (sum(costs.forward) + sum(costs.backward))
    pipelined = compiled()
    by_micro_batch = sharded.cycles_per_call / (2 * 4), pipelined.cycles_per_call / (2 * 10)
    assert by_micro_batch[0] > by_micro_batch[1]


def test_off_chip_optimiser_state_frees_tiles_and_lengthens_the_update(mnist):
    opts = options()
    opts.TensorLocations.setOptimizerLocation(
        ipu_exec.TensorLocationSettings().useOnChipStorage(False)
    )
    offloaded = compiled(opts)
    states = [v for v in offloaded.variables if v.role == "optimiser state"]
    large = [v for v in states if v.bytes >= 2 * 4]  # PopART's minElementsForOffChip is 2
    assert large and not any(v.always_live for v in large)
    update = next(b for b in offloaded.tree.bodies if b.task == UPDATE and b.ipu == 2)
    first = sum(len(b.steps) for b in offloaded.tree.bodies if b.ipu == 2) - len(update.steps)
    assert all(v.start >= first for v in large if v.ipu == 2)
    assert offloaded.timeline.costs.update[2] > mnist.timeline.costs.update[2]


def test_replicas_add_an_all_reduce_before_the_update():
    opts = options().replicationFactor(2)
    two = compiled(opts)
    reduce = next(b for b in two.tree.bodies if b.task == REDUCE and b.ipu == 2)
    accumulators = sum(v.bytes for v in two.variables if v.role == "accumulator" and v.ipu == 2)
    # a ring over two replicas sends and receives all of it once
    assert reduce.steps[0].bytes_in.sum() == pytest.approx(accumulators, rel=0.01)
    assert rows(two).__next__()[0].num_ipus == 8


def test_inference_runs_forward_only_and_drains_once():
    model = Mnist().eval()
    opts = options(1, iterations=6)
    executable = compile_step(model, mnist_batch(8)[:1], {}, opts, None, False)
    assert {b.task for b in executable.tree.bodies} >= {STREAM_IN, FORWARD, COPY}
    assert not any(b.task in (BACKWARD, UPDATE) for b in executable.tree.bodies)
    assert len(executable.timeline.schedule.phases) == 6 + 4 - 1


def test_compile_errors_name_the_way_out():
    with pytest.raises(ipu_exec.Error, match=r"gradientAccumulation\(7\)"):
        compiled(options(6))
    model = Mlp([8, 8, 8, 8], [0, 1, 2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = (torch.randn(2, 8), torch.randn(2, 8))
    opts = ipu_exec.Options().showCompilationProgressBar(False)
    opts.Training.gradientAccumulation(5)
    with pytest.raises(ipu_exec.Error, match="autoRoundNumIPUs"):
        compile_step(model, batch, {}, opts, optimizer, True)
    opts.autoRoundNumIPUs(True)
    assert compile_step(model, batch, {}, opts, optimizer, True).attached_ipus == 4


def test_an_operator_without_lowering_is_named_with_its_line():
    exotic = model_of(lambda self, x: torch.linalg.eigvalsh(x))
    with pytest.raises(ipu_exec.Error, match=r"(?s)linalg_eigh.*test_passes\.py:\d+"):
        compile_step(exotic, (torch.eye(4),), {}, ipu_exec.Options(), None, False)


@pytest.mark.parametrize("head_ipu", [0, 2])
def test_a_tied_weight_counts_once_in_the_weights_of_stages_and_blocks(head_ipu):
    """Its copies, on the IPU that reads it and on that which passes it on, are no weights."""

    def step(self, words, labels):
        with ipu_exec.Block("embedding"):
            x = self.embedding(words)
        with ipu_exec.Block("middle"):
            x = self.middle(x)
        with ipu_exec.Block("head"):
            return torch.nn.functional.cross_entropy(self.head(x), labels)

    embedding = torch.nn.Embedding(500, 16)
    head = torch.nn.Linear(16, 500, bias=False)
    head.weight = embedding.weight
    model = model_of(step, embedding=embedding, middle=torch.nn.Linear(16, 16), head=head)
    opts = ipu_exec.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
    opts.Training.gradientAccumulation(5)
    placed = {"embedding": 0, "middle": 1, "head": head_ipu}
    stages = [ipu_exec.Stage(name).ipu(ipu) for name, ipu in placed.items()]
    opts.setExecutionStrategy(ipu_exec.PipelinedExecution(*stages))
    batch = (torch.randint(500, (4,)), torch.randint(500, (4,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executable = compile_step(model, batch, {}, opts, optimizer, True)
    own = [500 * 16 * 4, (16 * 16 + 16) * 4, 0]
    assert [row.weight_bytes for row in stage_rows(executable)] == own
    assert [row.weight_bytes for row in block_rows(executable)] == own
    copies = [v for v in executable.variables if v.role == "weight" and v.bytes == own[0]]
    assert len({v.ipu for v in copies}) == (3 if head_ipu else 1)


def test_out_of_memory_saves_the_profile_and_names_the_tile(tmp_path):
    model = Mlp([8192, 8192, 8192], [0, 0])
    opts = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path).showCompilationProgressBar(
        False
    )
    training = ipu_exec.trainingModel(model, opts, torch.optim.AdamW(model.parameters()))
    with pytest.raises(ipu_exec.OutOfMemoryError) as caught:
        training(torch.randn(4, 8192), torch.randn(4, 8192))
    error = caught.value
    assert error.profile_path == str(tmp_path / "training" / "profile.pop")
    for part in (
        "IPU 0, tile ",
        "of 624 KiB of tile memory",
        "the largest things there:\n",
        "KiB  optimiser state\n",  # AdamW's two moments of each weight
        "KiB  layers.1.weight\n",
        "GiB  L1\n",
        error.profile_path,
        # a weight with its gradient and two moments: more IPUs alone would not hold it
        "Block L1 needs 1.",
        "an IPU has 897.0 MiB. Cut its tensors over several IPUs (Options.tensorSharding)",
    ):
        assert part in error.message
    report = profiler.open_report(error.profile_path)
    assert report.meta["state"] == "out of memory" and report.predicted
    assert (report.tiles(0)["overflow"] > 0).any()


def test_out_of_memory_proposes_as_many_ipus_as_hold_all_blocks():
    model = Mlp([6000, 6000, 6000, 6000], [0, 0, 0])
    opts = ipu_exec.Options().showCompilationProgressBar(False)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = (torch.randn(4, 6000), torch.randn(4, 6000))
    executable = compile_step(model, batch, {}, opts, optimizer, True)
    with pytest.raises(ipu_exec.OutOfMemoryError, match="ipu-run --num-ipus 4 SCRIPT"):
        executable.check_memory()


@pytest.mark.parametrize("less", [0, 1])
def test_a_compile_stops_exactly_where_the_profile_has_an_overflow(mnist, tmp_path, less):
    """On a machine whose tiles have exactly the bytes needed, and on one with a byte less."""
    report = written(mnist, tmp_path / "whole")
    needed = max(int(report.tiles(ipu)["total"].max()) for ipu in range(4))
    target = replace(mnist.target, bytes_per_tile=needed - less)
    overflow = find_overflow(tile_bytes(mnist.variables, target), target)
    smaller = replace(mnist, target=target)
    again = written(smaller, tmp_path / "smaller")
    tiles = [again.tiles(ipu) for ipu in range(4)]
    worst = max(int(frame["overflow"].max()) for frame in tiles)
    assert worst == less
    assert (overflow is not None) == bool(less)
    if overflow is not None:
        assert overflow.bytes_over == worst
        # the insight names the tile, and what fills it, as the error does
        assert max(overflows(again), key=lambda over: over.bytes_over) == overflow
        assert tiles[overflow.ipu]["overflow"].iloc[overflow.tile] == worst


def test_the_doctor_finds_a_pipeline_that_recomputes_well_until_it_contradicts_itself(
    tmp_path, capsys
):
    """Several stages recompute their forward, as make demo's do.

    A body of its own, counted into the backward.
    """
    executable = compiled()
    report = written(executable, tmp_path / "compiled")
    assert (report.stages["recompute_cycles"] > 0).sum() == 3
    assert failed_checks(report.path, capsys) == []
    with sqlite3.connect(report.path) as connection:
        connection.execute("UPDATE stages SET backward_cycles = backward_cycles - recompute_cycles")
    connection.close()
    assert failed_checks(report.path, capsys) == ["costs of stages match their bodies"]


def failed_checks(path, capsys):
    ended = ipu_report(["doctor", "--json", str(path)])
    (page,) = json.loads(capsys.readouterr().out)
    failed = [row["check"] for row in page["checks"] if not row["ok"]]
    assert ended == bool(failed)
    return failed


def written(executable, folder):
    folder.mkdir()
    with profiler.ProfileWriter(folder / "profile.pop") as writer:
        for batch in rows(executable):
            writer.add(batch)
        writer.publish()
    return profiler.open_report(folder)


def test_profile_says_what_was_compiled(tmp_path):
    opts = options(autoreport=True, autoreport_dir=tmp_path)
    model = Mnist()
    training = ipu_exec.trainingModel(model, opts, torch.optim.AdamW(model.parameters()))
    x, y = mnist_batch(8 * 20)
    for _ in range(3):
        training(x, y)
    report = profiler.open_report(tmp_path)
    executable = training.executable
    assert (
        report.meta["complete"]
        and report.meta["kind"] == "training"
        and report.meta["micro_batch"] == 8
    )
    assert (
        len(report.runs) == 2 and report.runs["cycles"].tolist() == [executable.cycles_per_call] * 2
    )
    assert report.stages["blocks"].tolist() == ["B1", "B2", "B3", "B4"]
    assert report.stages["cycles"].tolist() == [
        sum(executable.tree.cycles(task, k) for task in (FORWARD, RECOMPUTE, BACKWARD))
        for k in range(4)
    ]
    phases = report.pipeline_cycles()["phase"].tolist()
    assert [phases.count(p) for p in ("ramp-up", "steady", "ramp-down", "update")] == [6, 4, 6, 1]
    assert report.options["Training.gradientAccumulation"] == 10
    assert report.liveness_map(1).max() == report.tiles(1)["peak"].max()
    slices = report.steps(0, 3, 0)
    assert slices["cycles"].sum() == executable.timeline.schedule.total
    loss = report.ops[report.ops["name"] == "loss/nll_loss_forward"].iloc[0]
    assert loss["block_name"] == "B4" and loss["file"].endswith("models.py") and loss["line"] > 0
    assert json.loads(report.variables.query("name == 'fc1.weight'").iloc[0]["shape"]) == [256, 320]
    assert training.executable.cycles_per_call == executable.cycles_per_call


def test_blocks_add_up_to_their_stage(mnist):
    blocks = {row.name: row for row in block_rows(mnist)}
    for stage, row in enumerate(stage_rows(mnist)):
        block = blocks[f"B{stage + 1}"]
        stash = row.forward_cycles - block.forward_cycles
        assert 0 <= stash < 1_000  # the stash of inputs belongs to no Block
        assert row.update_cycles == block.update_cycles and row.weight_bytes == block.weight_bytes


def test_an_unknown_operator_may_be_guessed_and_is_marked():
    exotic = model_of(lambda self, x: torch.hypot(x, x) * 2)
    opts = ipu_exec.Options().estimateUnknownOperators()
    rows = list(op_rows(compile_step(exotic, (torch.randn(100, 32),), {}, opts, None, False)))
    marked = {row.aten: (row.estimated, row.cycles) for row in rows}
    assert marked["aten.hypot.default"][0] == 1
    assert marked["aten.hypot.default"][1] > marked["aten.mul.Tensor"][1] > 0
    assert marked["aten.mul.Tensor"][0] == 0


def test_a_buffer_that_is_written_may_not_be_broadcast_to_replicas():
    def add_up(self, x):
        self.seen += x.sum(0)
        return self.norm(x)

    model = model_of(add_up, norm=torch.nn.BatchNorm1d(2), seen=torch.zeros(2))
    options = ipu_exec.Options().replicationFactor(2).showCompilationProgressBar(False)
    message = (
        r"broadcasting buffers\. .* using poptorch.Options.broadcastBuffers\(False\)\. The buffer"
        r" is 'seen'"
    )
    with pytest.raises(ipu_exec.Error, match=message):
        ipu_exec.inferenceModel(model, options).compile(torch.ones(4, 2))
    ipu_exec.inferenceModel(model, options.clone().broadcastBuffers(False)).compile(
        torch.ones(4, 2)
    )
    ipu_exec.inferenceModel(model.norm, options).compile(torch.ones(4, 2))
