"""Blocks as operators see them, and strategies as users write them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import ipu_exec
import ipu_exec as poptorch
from ipu_exec import Error, Stage
from ipu_exec.capture.recording.open_blocks import BlockState, current_block, reset_blocks
from tests.models import model_of


@pytest.fixture(autouse=True)
def no_block_open() -> Iterator[None]:
    reset_blocks()
    yield
    reset_blocks()


class Seen(nn.Module):
    """Notes which Block is open when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[BlockState | None] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.blocks.append(current_block())
        return x


X = torch.zeros(1)
WRONG: Any = 1.5


def test_nothing_is_open_before_the_first_block() -> None:
    assert current_block() is None


def test_operators_after_a_block_stay_in_it_until_the_next() -> None:
    with poptorch.Block("A", ipu_id=1):
        assert current_block() == BlockState("A", 1)
    assert current_block() == BlockState("A", 1)
    with poptorch.Block("B"):
        assert current_block() == BlockState("B", None)


def test_an_inner_block_returns_to_the_outer() -> None:
    with poptorch.Block("outer"):
        with poptorch.Block("inner"):
            assert current_block() == BlockState("inner", None)
        assert current_block() == BlockState("outer", None)


def test_a_block_is_closed_when_the_model_raises() -> None:
    with pytest.raises(ZeroDivisionError), poptorch.Block("A"):
        _ = 1 / 0
    with poptorch.Block("B"):
        pass
    assert current_block() == BlockState("B", None)


def test_blocks_without_a_name_are_numbered_anew_at_each_capture() -> None:
    for _ in range(2):
        reset_blocks()
        for expected in ("0", "1"):
            with poptorch.Block(ipu_id=0):
                assert current_block() == BlockState(expected, 0)


def test_a_number_is_a_name() -> None:
    with poptorch.Block(3):
        assert current_block() == BlockState("3", None)


def test_begin_block_lasts_until_the_next_one_begins() -> None:
    model = nn.Sequential(
        Seen(), poptorch.BeginBlock(Seen(), "A", 0), Seen(), poptorch.BeginBlock(Seen(), ipu_id=1)
    )
    model(X)
    assert [layer.blocks for layer in model] == [
        [None],
        [BlockState("A", 0)],
        [BlockState("A", 0)],
        [BlockState("0", 1)],
    ]


def test_begin_block_returns_the_layer_and_leaves_its_state_alone() -> None:
    layer = nn.Linear(2, 3)
    keys = list(layer.state_dict())
    assert poptorch.BeginBlock(layer, user_id="A") is layer
    assert isinstance(layer, nn.Linear)
    assert list(layer.state_dict()) == keys


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_blocks_survive_copying_and_pickling(duplicate: object) -> None:
    model = duplicate(nn.Sequential(Seen(), poptorch.BeginBlock(Seen(), "A", 2)))  # type: ignore[operator]
    model(X)
    assert model[1].blocks == [BlockState("A", 2)]


def test_begin_block_on_a_child_of_a_sequential_in_place() -> None:
    model = nn.Sequential(Seen(), Seen())
    model[1] = poptorch.BeginBlock(model[1], "tail", ipu_id=1)
    model(X)
    assert model[1].blocks == [BlockState("tail", 1)]


def test_begin_block_on_a_function() -> None:
    named = poptorch.BeginBlock(lambda: current_block(), "A", 0)
    assert named() == BlockState("A", 0)
    begun: Any = poptorch.BeginBlock(current_block, 1, 2)
    assert (begun._user_id, begun._ipu_id) == (1, 2)
    assert pickle.loads(pickle.dumps(begun))() == BlockState("1", 2)


def test_a_layer_used_twice_keeps_its_automatic_name() -> None:
    layer = poptorch.BeginBlock(Seen(), ipu_id=0)
    layer(X)
    layer(X)
    assert layer.blocks == [BlockState("0", 0)] * 2


def test_block_function() -> None:
    @poptorch.BlockFunction("A", ipu_id=1)
    def inside() -> BlockState | None:
        return current_block()

    assert inside() == BlockState("A", 1)


def test_remove_blocks() -> None:
    model = nn.Sequential(Seen(), nn.Sequential(poptorch.BeginBlock(Seen(), "A")))
    poptorch.removeBlocks(model)
    model(X)
    assert model[1][0].blocks == [None]  # type: ignore[index]
    poptorch.BeginBlock(model[1][0], "B")  # type: ignore[index]


def test_strategies_take_stages_names_lists_and_auto_stages() -> None:
    strategy = poptorch.PipelinedExecution(Stage("A").ipu(1), "B", ["C", "D"])
    assert [(stage.blocks, stage.ipu_id) for stage in strategy.stages] == [
        (("A",), 1),
        (("B",), None),
        (("C", "D"), None),
    ]
    assert strategy.stage("D") is strategy.stages[2]
    assert (strategy.kind, poptorch.ShardedExecution("A").kind) == ("pipelined", "sharded")
    automatic = poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)
    assert automatic.stages == ()
    assert automatic.auto_stage is poptorch.AutoStage.AutoIncrement
    assert poptorch.PipelinedExecution().auto_stage is poptorch.AutoStage.SameAsIpu


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: poptorch.Block(user_id=WRONG), "not 1.5"),
        (lambda: poptorch.Block("A", ipu_id=-1), "not -1"),
        (lambda: poptorch.BeginBlock(WRONG), "a module or a function, not 1.5"),
        (
            lambda: poptorch.BeginBlock(poptorch.BeginBlock(nn.Linear(1, 1), "A"), "B"),
            "has already been assigned to a block ('A')",
        ),
        (lambda: Stage(), "at least one"),
        (lambda: Stage(WRONG), "not 1.5"),
        (lambda: Stage("A").ipu(WRONG), "not 1.5"),
        (
            lambda: Stage("A").ipu(0).ipu(1),
            "Stage('A').ipu(0) is on IPU 0 and cannot be on IPU 1 too",
        ),
        (lambda: poptorch.PipelinedExecution("A", Stage("B", "A")), "Block 'A' is named twice"),
        (lambda: poptorch.PipelinedExecution(WRONG), "not 1.5"),
        (lambda: poptorch.PipelinedExecution("A").stage("B"), "names no Block 'B'"),
    ],
)
def test_wrong_annotations_are_errors(make: object, says: str) -> None:
    with pytest.raises(Error) as raised:
        make()  # type: ignore[operator]
    assert says in str(raised.value)


def test_blocks_begin_with_start_and_last_until_the_next() -> None:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ipu_exec.Block.start("first", ipu_id=0)
        x = x * 4
        ipu_exec.Block.start("second", ipu_id=1)
        return x * 2

    options = ipu_exec.Options().deviceIterations(2).showCompilationProgressBar(False)
    x = torch.randn(2, 5)
    executor = ipu_exec.inferenceModel(model_of(forward), options)
    assert torch.equal(executor(x), x * 8)
    assert [block.name for block in executor._executable.graph.blocks] == ["first", "second"]


def after_block(self, x: torch.Tensor) -> torch.Tensor:
    """The last operator is in no Block; a view is not an operator."""
    with poptorch.Block("A", ipu_id=0):
        with poptorch.Block("inner", ipu_id=0):
            x = x * 4
        x = x * 3
    return x.view(-1) * 2


def test_an_operator_after_a_block_is_an_error_with_auto_increment() -> None:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    with pytest.raises(Error, match=r"No active Block: mul_2 .*test_annotations.py:\d+"):
        poptorch.inferenceModel(model_of(after_block), options).compile(X)


def test_an_operator_after_a_block_is_in_the_block_before_and_said_so() -> None:
    executor = poptorch.inferenceModel(
        model_of(after_block), poptorch.Options().showCompilationProgressBar(False)
    )
    with pytest.warns(UserWarning, match="No active Block: mul_2 .* here it belongs to 'A'"):
        executor.compile(X)
    graph = executor.executable.graph
    assert [graph.blocks[op.block].name for op in graph.ops if "mul" in op.aten] == [
        "inner",
        "A",
        "A",
    ]


def test_a_model_is_printed_with_its_blocks() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sequential(torch.nn.ReLU()))
    assert ipu_exec.module_repr(model) == repr(model)
    ipu_exec.BeginBlock(model[1], ipu_id=1)
    words = ipu_exec.module_repr(model)
    assert "(1): BeginBlock(user_id=None, ipu_id=1) Sequential(" in words
    assert words.replace("BeginBlock(user_id=None, ipu_id=1) ", "") == repr(model)
    assert words in repr(ipu_exec.inferenceModel(model))
