"""Multi-convolutions: convolutions that become one operator on parts of the tiles."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec.compiler.executable import Executable
from ipu_exec.graph import OpNode
from ipu_exec.lowering.plan import Compute
from tests.compiling import compiled, operators
from tests.models import model_of


class Branches(nn.Module):
    """Two convolutions; the second's input is made between them, and so is something of the first's
    result.
    """

    def __init__(self, multi: poptorch.MultiConv | None) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)
        self.multi = multi

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.multi is None:
            first, second = self.branches(x)
        else:
            with self.multi:
                first, second = self.branches(x)
        return (first.mean() + second.mean()).square()

    def branches(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.wide(x).relu()
        return first, self.narrow(x.abs())


IMAGES = torch.randn(4, 16, 28, 28)


def steps_of(executable: Executable, op: OpNode) -> list[Compute]:
    return [step for step in executable.tree.op_plans[op.id].steps if isinstance(step, Compute)]


def test_a_multi_conv_is_one_operator_on_parts_of_the_tiles_forward_and_backward() -> None:
    executable = compiled(Branches(poptorch.MultiConv()), IMAGES)
    alone = compiled(Branches(None), IMAGES)
    assert not operators(executable, "convolution") and not operators(
        executable, "convolution_backward"
    )
    for name, other in (
        ("multi_conv", "convolution"),
        ("multi_conv_backward", "convolution_backward"),
    ):
        (fused,) = [op for op in executable.graph.ops if op.aten == f"poplin.{name}"]
        each = operators(alone, other)
        assert len(each) == 2
        assert len(fused.outputs) == sum(len(op.outputs) for op in each)
        plan = executable.tree.op_plans[fused.id]
        products = [step for step in steps_of(executable, fused) if "convolve" in step.name]
        apart = [step for op in each for step in steps_of(alone, op) if "convolve" in step.name]
        assert sum(step.flops for step in products) >= sum(step.flops for step in apart) > 0
        joint = [step for step in steps_of(executable, fused) if len(step.vertices) > 1]
        assert joint, "some compute sets have vertices of both"
        for step in joint:
            assert step.cycles.shape == (executable.target.tiles,)
        both = next(
            s for s in joint if sum("Conv" in v.type or "Outer" in v.type for v in s.vertices) == 2
        )
        counts = [
            vertices.count
            for vertices in both.vertices
            if "Conv" in vertices.type or "Outer" in vertices.type
        ]
        assert not np.any((counts[0] > 0) & (counts[1] > 0)), "each on tiles of its own"
        # fewer syncs, exchanges and compute sets than one after the other
        assert len(plan.steps) < sum(len(alone.tree.op_plans[op.id].steps) for op in each)
    assert [op.id for op in executable.graph.ops] == list(range(len(executable.graph.ops)))
    order = [op.aten.split(".")[1] for op in executable.graph.ops if op.direction == "forward"]
    assert order.index("abs") < order.index("multi_conv") < order.index("relu")
    (backward,) = [op for op in executable.graph.ops if op.aten.endswith("conv_backward")]
    assert executable.graph.ops[backward.forward_op].aten == "poplin.multi_conv"
    assert (executable.graph.ops[backward.forward_op].name, backward.name) == (
        "multi_conv",
        "gradient/multi_conv",
    )
    for value in executable.graph.values.values():
        assert value.producer < 0 or value.id in (*executable.graph.ops[value.producer].outputs,)


def test_a_serial_multi_conv_plans_each_as_asked_on_all_tiles() -> None:
    multi = poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial)
    executable = compiled(
        Branches(multi.availableMemoryProportions((0.3, 0.2)).partialsTypes(torch.float)), IMAGES
    )
    wide, narrow = operators(executable, "convolution")
    assert (wide.attributes.proportion, narrow.attributes.proportion) == (0.3, 0.2)
    assert {
        op.attributes.partials
        for op in (wide, narrow, *operators(executable, "convolution_backward"))
    } == {"float32"}
    assert {op.attributes.proportion for op in operators(executable, "convolution_backward")} == {
        0.3,
        0.2,
    }


def test_partials_of_each_convolution_are_those_of_its_vertices() -> None:
    multi = poptorch.MultiConv().partialsTypes((torch.half, torch.float))
    executable = compiled(Branches(multi).half(), IMAGES.half())
    (fused,) = [op for op in executable.graph.ops if op.aten == "poplin.multi_conv"]
    vertices = [
        v.type for s in steps_of(executable, fused) for v in s.vertices if "ConvPartial" in v.type
    ]
    assert {v.split(",")[1] for v in vertices} == {"half", "float"}


def test_reserved_tiles_and_back_off_decide_the_shares() -> None:
    def last_of_first(multi: poptorch.MultiConv) -> int:
        executable = compiled(Branches(multi), IMAGES)
        (fused,) = [op for op in executable.graph.ops if op.aten == "poplin.multi_conv"]
        return int(executable.tree.op_plans[fused.id].note.split("-")[1].split(":")[0])

    assert last_of_first(poptorch.MultiConv().perConvReservedTiles(1000)) < 1472 // 2
    generous = last_of_first(poptorch.MultiConv().cycleBackOff(20.0))
    assert generous < last_of_first(poptorch.MultiConv().cycleBackOff(0.0))


class Equal(Branches):
    def __init__(self, multi: poptorch.MultiConv) -> None:
        super().__init__(multi)
        self.narrow = nn.Conv2d(16, 32, 3, padding=1)


def test_equal_convolutions_need_reserved_tiles_to_run_on_as_many() -> None:
    def made(reserved: int) -> tuple[list[int], int]:
        executable = compiled(Equal(poptorch.MultiConv().perConvReservedTiles(reserved)), IMAGES)
        (fused,) = [op for op in executable.graph.ops if op.aten == "poplin.multi_conv"]
        spans = re.findall(r"tiles (\d+)-(\d+): ", executable.tree.op_plans[fused.id].note)
        assert [int(first) for first, _ in spans[1:]] == [int(last) + 1 for _, last in spans[:-1]]
        assert (spans[0][0], spans[-1][1]) == ("0", "1471")
        return (
            sorted(int(last) - int(first) + 1 for first, last in spans),
            executable.tree.op_cycles[fused.id],
        )

    (few, many), unequal = made(50)
    (one, other), equal = made(736)
    assert 50 <= few < many / 2
    assert 1.3 * few < one <= other
    assert equal < unequal


def test_values_for_each_convolution_are_as_many_as_those() -> None:
    multi = poptorch.MultiConv().availableMemoryProportions((0.1, 0.2, 0.3))
    with pytest.raises(poptorch.Error, match="has 3 values, and there are 2 convolutions"):
        compiled(Branches(multi), IMAGES)


def test_a_multi_conv_in_a_pipeline_is_recomputed_as_one() -> None:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        poptorch.Block.start("A", ipu_id=0)
        out = self.first(x).view(1, 1)
        poptorch.Block.start("B", ipu_id=1)
        return self.second(out).sum()

    model = model_of(forward, first=Branches(poptorch.MultiConv()), second=nn.Linear(1, 1))
    options = poptorch.Options()
    options.Training.gradientAccumulation(4)
    executable = compiled(model, IMAGES.repeat(4, 1, 1, 1), options=options)
    (fused,) = [op.id for op in executable.graph.ops if op.aten == "poplin.multi_conv"]
    runs = {
        body.name: sum(step.op == fused for step in body.steps) for body in executable.tree.bodies
    }
    assert runs["stage 0 forward"] == runs["stage 0 recompute"] > 0
