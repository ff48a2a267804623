"""Ops to stages, stages to IPUs, and what has to travel."""

from __future__ import annotations

import logging

import pytest
import torch

import ipu_exec
from ipu_exec import AutoStage, ParallelPhasedExecution, PipelinedExecution, ShardedExecution, Stage
from ipu_exec.capture.loss import find_loss
from ipu_exec.capture.step import capture
from ipu_exec.compiler.placement.place import (
    StagePlace,
    check_depth,
    place,
    resolve_stages,
    round_ipus,
    storage_bytes,
)
from ipu_exec.graph import BlockInfo
from ipu_exec.session.compile_options import strategy_options
from tests.models import Mlp, Mnist, mnist_batch, model_of

BLOCKS = [BlockInfo(0, "a", 0), BlockInfo(1, "b", 1), BlockInfo(2, "c", 1), BlockInfo(3, "d", None)]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (PipelinedExecution(AutoStage.SameAsIpu), [(0, ("a",)), (1, ("b", "c", "d"))]),
        (PipelinedExecution(AutoStage.AutoIncrement), [(0, ("a",)), (1, ("b", "c", "d"))]),
        (
            PipelinedExecution("a", "b", "c", "d"),
            [(0, ("a",)), (1, ("b", "c")), (3, ("d",))],  # a Block's own IPU goes before the order
        ),
        (
            PipelinedExecution(Stage("a").ipu(0), Stage("b", "c").ipu(1), Stage("d").ipu(0)),
            [(0, ("a",)), (1, ("b", "c")), (0, ("d",))],
        ),
        (
            PipelinedExecution(Stage("a").ipu(1), Stage("b").ipu(1), Stage("c", "d").ipu(0)),
            [(1, ("a", "b")), (0, ("c", "d"))],
        ),
    ],
)
def test_strategies_become_stages(strategy, expected):
    assert resolve_stages(strategy_options(strategy), BLOCKS) == [
        StagePlace(ipu, blocks) for ipu, blocks in expected
    ]


def graph_of(model, *args):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return capture(model, args, {}, optimizer=optimizer, accumulate=True, find_loss=find_loss)


def test_backward_and_update_run_where_the_forward_does():
    graph = graph_of(Mnist(), *mnist_batch(4))
    stages = [StagePlace(k, (f"B{k + 1}",)) for k in range(4)]
    placement = place(graph, stages, pipelined=True)
    for op, stage in zip(graph.ops, placement.op_stage, strict=True):
        if op.direction != "update":
            assert stage == op.block
    weights = {s.name: placement.home[s.id] for s in graph.storages.values() if s.role == "weight"}
    assert weights["conv1.weight"] == 0 and weights["conv2.bias"] == 1
    assert weights["fc1.weight"] == 2 and weights["fc2.weight"] == 3


def test_activations_travel_forward_and_gradients_back_over_each_cut():
    graph = graph_of(Mnist(), *mnist_batch(4))
    placement = place(graph, [StagePlace(k, (f"B{k + 1}",)) for k in range(4)], pipelined=True)
    after_pooling = [4 * 10 * 12 * 12 * 4, 4 * 320 * 4, 4 * 256 * 4]
    for cut, expected in enumerate(after_pooling):
        assert placement.cut_bytes(graph, "forward")[cut] == expected
        assert placement.cut_bytes(graph, "backward")[cut] == expected
    labels = next(s for s in graph.storages.values() if s.name == "input.1")
    assert placement.home[labels.id] == 3
    assert storage_bytes(graph, labels.id) == 4 * 4  # int64 is narrowed to 32 bits


def linear_layers(count: int) -> torch.nn.ModuleList:
    return torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(count))


def test_a_skip_connection_pays_on_every_cut_it_crosses():
    def forward(self, x):
        with ipu_exec.Block("a"):
            x = skipped = self.layers[0](x)
        with ipu_exec.Block("b"):
            x = self.layers[1](x)
        with ipu_exec.Block("c"):
            return (self.layers[2](x) + skipped).sum()

    graph = graph_of(model_of(forward, layers=linear_layers(3)), torch.randn(2, 8))
    placement = place(
        graph, [StagePlace(k, (name,)) for k, name in enumerate("abc")], pipelined=True
    )
    one = 2 * 8 * 4
    assert [placement.cut_bytes(graph, "forward")[cut] for cut in (0, 1)] == [one, 2 * one]


def test_a_block_may_begin_again_where_its_data_comes_from_before_it():
    """In Hugging Face's Bart, the decoder's embedding is in the encoder's Block.

    It reads only the inputs.
    """

    def twice(back: bool) -> torch.nn.Module:
        def forward(self, x, y):
            with ipu_exec.Block("first", ipu_id=0):
                x = self.layers[0](x)
            with ipu_exec.Block("second", ipu_id=1):
                x = self.layers[1](x)
            with ipu_exec.Block("first", ipu_id=0):
                y = self.layers[2](x if back else y)
            with ipu_exec.Block("third", ipu_id=2):
                return (self.layers[3](y) + x).sum()

        return model_of(forward, layers=linear_layers(4))

    args = (torch.randn(2, 8), torch.randn(2, 8))
    stages = [Stage(name).ipu(k) for k, name in enumerate(("first", "second", "third"))]
    graph = graph_of(twice(back=False), *args)
    placement = place(
        graph,
        resolve_stages(strategy_options(PipelinedExecution(*stages)), graph.blocks),
        pipelined=True,
    )
    products = [
        s
        for op, s in zip(graph.ops, placement.op_stage, strict=True)
        if op.aten == "aten.addmm.default"
    ]
    assert products == [0, 1, 0, 2]
    assert [placement.cut_bytes(graph, "forward")[cut] for cut in (0, 1)] == [2 * 64, 2 * 64]
    assert "'first' (stage 0) runs after Block 'second' (stage 1)" in error(
        *stages, model=twice(back=True), args=args
    )


def error(*stages, model=None, args=None):
    model = model or Mlp([8, 8, 8], [0, 1])
    graph = graph_of(model, *(args or (torch.randn(2, 8), torch.randn(2, 8))))
    with pytest.raises(ipu_exec.Error) as caught:
        place(
            graph,
            resolve_stages(strategy_options(PipelinedExecution(*stages)), graph.blocks),
            pipelined=True,
        )
    return caught.value.message


def test_misplacements_name_the_thing_and_the_way_out():
    assert "'L1' is in no Stage" in error("L0")
    assert "'L9', but the model opens no such Block" in error("L0", "L1", "L9")
    assert "must not go back" in error(Stage("L1").ipu(1), Stage("L0").ipu(0))
    assert "is on two IPUs" in error(Stage("L0", "L1"))
    with pytest.raises(ipu_exec.Error, match="cannot be on IPU 1 too"):
        Stage("a").ipu(0).ipu(1)


REUSED = [BlockInfo(0, "a", 0), BlockInfo(1, "b", 1), BlockInfo(2, "a@IPU2", 2, "a")]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (ShardedExecution(), [(0, ("a",)), (1, ("b",)), (2, ("a@IPU2",))]),
        (ShardedExecution("a", "b"), [(0, ("a",)), (2, ("a@IPU2",)), (1, ("b",))]),
        (ShardedExecution(Stage("a").ipu(3), "b"), [(3, ("a", "a@IPU2")), (1, ("b",))]),
        (ParallelPhasedExecution("a", "b"), [(0, ("a",)), (2, ("a@IPU2",)), (1, ("b",))]),
        (PipelinedExecution("a", "b", "a@IPU2"), [(0, ("a",)), (1, ("b",)), (2, ("a@IPU2",))]),
    ],
)
def test_a_block_that_begins_on_two_ipus_is_on_both(strategy, expected):
    assert resolve_stages(strategy_options(strategy), REUSED) == [
        StagePlace(ipu, blocks) for ipu, blocks in expected
    ]


class Reusing(torch.nn.Module):
    """The Blocks of PopTorch's phased example: two IPUs to a phase, one Block name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        halves = [x, x]
        for phase in range(2):
            for half in range(2):
                with ipu_exec.Block(str(phase), ipu_id=phase + 2 * half):
                    halves[half] = self.layers[phase + 2 * half](halves[half]).relu()
        with ipu_exec.Block("1", ipu_id=3):
            return (halves[0] + halves[1]).sum()


def compiled(model, strategy):
    options = ipu_exec.Options().showCompilationProgressBar(False).setExecutionStrategy(strategy)
    options.Training.gradientAccumulation(8)
    wrapped = ipu_exec.trainingModel(model, options)
    wrapped.compile(torch.randn(16, 8))
    return wrapped.executable


@pytest.mark.parametrize("strategy", [ParallelPhasedExecution("0", "1"), ShardedExecution()])
def test_a_phased_model_of_two_by_two_runs_on_four_ipus(strategy):
    executable = compiled(Reusing(), strategy)
    products = {}
    for op, stage in zip(executable.graph.ops, executable.placement.op_stage, strict=True):
        if op.aten == "aten.addmm.default":
            products[op.module] = executable.placement.stages[stage].ipu
    assert products == {"layers.0": 0, "layers.2": 2, "layers.1": 1, "layers.3": 3}
    assert executable.placement.num_ipus == 4


def test_a_pipeline_has_a_block_on_one_ipu():
    with pytest.raises(ipu_exec.Error, match="Block '0' begins on IPU 0 and on IPU 2"):
        compiled(Reusing(), PipelinedExecution())


def test_depth_and_powers_of_two():
    with pytest.raises(
        ipu_exec.Error, match=r"number of pipeline stages \(7\).* additional 3 stages when training"
    ) as caught:
        check_depth(4, 6, True, "Training.gradientAccumulation")
    assert "Training.gradientAccumulation(7)" in caught.value.message
    check_depth(4, 7, True, "Training.gradientAccumulation")
    check_depth(4, 4, False, "deviceIterations")
    assert round_ipus(3, True) == 4 and round_ipus(4, False) == 4
    with pytest.raises(ipu_exec.Error, match="autoRoundNumIPUs"):
        round_ipus(3, False)
    options = ipu_exec.Options().replicationFactor(3).showCompilationProgressBar(False)
    with pytest.raises(ipu_exec.Error, match=r"3 IPUs, .* minimum of 4 .*autoRoundNumIPUs"):
        ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)(torch.ones(3, 2))


@pytest.mark.parametrize("count", [1, 2, 4, 16, 64, 128, 256])
def test_systems_have_powers_of_two_up_to_256_ipus(count):
    assert round_ipus(count, False) == count


def test_a_system_larger_than_there_is_is_refused():
    with pytest.raises(ipu_exec.Error, match="largest system has 256"):
        round_ipus(257, True)


def test_what_runs_before_the_first_block_is_on_ipu_0(caplog: pytest.LogCaptureFixture):
    def forward(self, x):
        x = self.first(x)
        with ipu_exec.Block("A", ipu_id=1):
            return self.second(x).sum()

    first, second = linear_layers(2)
    for stage in (AutoStage.SameAsIpu, AutoStage.AutoIncrement):
        options = ipu_exec.Options().deviceIterations(2).showCompilationProgressBar(False)
        options.setExecutionStrategy(PipelinedExecution(stage))
        caplog.clear()
        with caplog.at_level(logging.DEBUG, logger="ipu_exec"):
            model = ipu_exec.inferenceModel(model_of(forward, first=first, second=second), options)
            model.compile(torch.ones(4, 8))
        assert model.executable.placement.ipus == (0, 1)
        assert "enablePipelining set to value 1" in caplog.text
        assert " first/Gemm:0 [float32(2, 8), mode(Pipelined), ipu(0), stage(0)]" in caplog.text
        assert " second/Gemm:0 [float32(2, 8), mode(Pipelined), ipu(1), stage(1)]" in caplog.text


def test_an_accumulator_is_beside_its_weight_whichever_stage_adds_to_it_first():
    def forward(self, x):
        with ipu_exec.Block("A"):
            x = x @ self.weight.detach()
        with ipu_exec.Block("B"):  # the weight is trained by what this one does with it
            return (x @ self.weight).sum()

    model = model_of(forward, weight=torch.nn.Parameter(torch.ones(8, 8)))
    graph = graph_of(model, torch.ones(2, 8))
    placement = place(graph, [StagePlace(0, ("A",)), StagePlace(1, ("B",))], pipelined=True)
    (weight,) = [s for s in graph.storages.values() if s.role == "weight"]
    (accumulator,) = [s for s in graph.storages.values() if s.role == "accumulator"]
    assert placement.home[weight.id] == placement.home[accumulator.id] == 0
