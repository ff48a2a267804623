"""What a model asks for single operators.

Memory proportions, multi-convolutions, attributes; and conv dithering.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.profile_rows import op_rows
from ipu_exec.graph import OperatorAttributes, OpNode
from ipu_exec.lowering.plan import Compute
from tests.models import mean_square, model_of


def compiled(
    model: nn.Module, *inputs: torch.Tensor, options: poptorch.Options | None = None
) -> Executable:
    """The model compiled, for training where it returns a loss."""
    options = (options or poptorch.Options()).showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(*inputs)
    made: Executable = executor.executable
    return made


def operators(made: Executable, name: str) -> list[OpNode]:
    return [op for op in made.graph.ops if op.aten.startswith(f"aten.{name}.")]


class Tuned(nn.Module):
    """One product is tuned, seen through a view, a cast and a bias.

    The other has the IPU's proportion.
    """

    def __init__(self, proportion: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024)
        self.bias = nn.Parameter(torch.zeros(1024))
        self.proportion = proportion

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = (self.first(x) + self.bias).to(torch.float32).view(-1, 512)
        out = poptorch.set_available_memory(out, self.proportion).view(x.shape)
        out = poptorch.set_available_memory(out.relu(), 0.01)  # no product: nothing to plan
        return self.second(out).square().mean()


def most_held(made: Executable, op: OpNode) -> int:
    return max(int(temporary.bytes.max()) for temporary in made.tree.op_plans[op.id].temporaries)


def test_a_proportion_holds_for_its_product_and_the_gradients_of_it() -> None:
    x = torch.randn(2048, 1024)
    free, tight = compiled(Tuned(0.9), x), compiled(Tuned(0.02), x)
    for made, proportion in ((free, 0.9), (tight, 0.02)):
        asked = {
            (op.aten.split(".")[1], op.direction): op.attributes.proportion
            for op in made.graph.ops
            if op.attributes.proportion
        }
        assert set(asked.values()) == {proportion}
        first = next(op for op in operators(made, "mm") if op.direction == "forward")
        assert first.attributes.proportion == proportion
        backward = [op for op in operators(made, "mm") if op.forward_op == first.id]
        assert len(backward) == 1 and backward[0].attributes.proportion == proportion
        others = [op for op in made.graph.ops if op.module == "second" and op.direction != "update"]
        assert len(others) >= 3 and not any(op.attributes.proportion for op in others)
    product = [
        next(op for op in operators(made, "mm") if op.direction == "forward")
        for made in (free, tight)
    ]
    assert most_held(tight, product[1]) < most_held(free, product[0])
    assert tight.tree.op_cycles[product[1].id] > free.tree.op_cycles[product[0].id]
    assert tight.tree.op_plans[product[1].id].note != free.tree.op_plans[product[0].id].note


def test_a_proportion_out_of_range_is_an_error() -> None:
    with pytest.raises(poptorch.Error, match=r"above 0 and at most 1, not 1\.5"):
        poptorch.set_available_memory(torch.ones(1), 1.5)


def first_tiles(made: Executable, name: str) -> list[int]:
    """The first tile that convolves, for each forward convolution."""
    found = []
    for op in operators(made, name):
        step = next(
            s
            for s in made.tree.op_plans[op.id].steps
            if isinstance(s, Compute) and "convolve" in s.name
        )
        found.append(int(np.flatnonzero(step.cycles)[0]))
    return found


def test_dithered_convolutions_begin_at_different_tiles_and_take_as_long() -> None:
    x = torch.randn(1, 4, 6, 6)
    layers = nn.ModuleList(nn.Conv2d(4, channels, 3) for channels in (4, 8, 12))
    model = model_of(lambda self, x: sum(layer(x).sum() for layer in self.layers), layers=layers)
    plain = compiled(model, x)
    options = poptorch.Options()
    options.Training.setConvolutionDithering(True)
    dithered = compiled(model, x, options=options)
    assert first_tiles(plain, "convolution") == [0, 0, 0]
    assert len(set(first_tiles(dithered, "convolution"))) == 3
    for op in operators(plain, "convolution"):
        vertices = [
            [
                (int(s.cycles.max()), s.flops)
                for s in made.tree.op_plans[op.id].steps
                if isinstance(s, Compute)
            ]
            for made in (plain, dithered)
        ]
        assert vertices[0] == vertices[1]


def test_stable_norms_centre_before_they_square() -> None:
    x = torch.randn(4, 16, 28, 28)
    model = mean_square(nn.BatchNorm2d(16))
    plain, stable = (
        compiled(model, x),
        compiled(model, x, options=poptorch.Options().enableStableNorm(True)),
    )
    (one,), (other,) = (operators(made, "native_batch_norm") for made in (plain, stable))
    names = [step.name for step in stable.tree.op_plans[other.id].steps]
    squared = next(index for index, name in enumerate(names) if name.startswith("variance/"))
    assert names.index("broadcast mean") < names.index("centre") < squared
    assert "centre" not in [step.name for step in plain.tree.op_plans[one.id].steps]
    assert stable.tree.op_cycles[other.id] > plain.tree.op_cycles[one.id]


# -- multi-convolutions ---


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


def steps_of(made: Executable, op: OpNode) -> list[Compute]:
    return [step for step in made.tree.op_plans[op.id].steps if isinstance(step, Compute)]


def test_a_multi_conv_is_one_operator_on_parts_of_the_tiles_forward_and_backward() -> None:
    made = compiled(Branches(poptorch.MultiConv()), IMAGES)
    alone = compiled(Branches(None), IMAGES)
    assert not operators(made, "convolution") and not operators(made, "convolution_backward")
    for name, other in (
        ("multi_conv", "convolution"),
        ("multi_conv_backward", "convolution_backward"),
    ):
        (fused,) = [op for op in made.graph.ops if op.aten == f"poplin.{name}"]
        each = operators(alone, other)
        assert len(each) == 2
        assert len(fused.outputs) == sum(len(op.outputs) for op in each)
        plan = made.tree.op_plans[fused.id]
        products = [step for step in steps_of(made, fused) if "convolve" in step.name]
        apart = [step for op in each for step in steps_of(alone, op) if "convolve" in step.name]
        assert sum(step.flops for step in products) >= sum(step.flops for step in apart) > 0
        joint = [step for step in steps_of(made, fused) if len(step.vertices) > 1]
        assert joint, "some compute sets have vertices of both"
        for step in joint:
            assert step.cycles.shape == (made.target.tiles,)
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
    assert [op.id for op in made.graph.ops] == list(range(len(made.graph.ops)))
    order = [op.aten.split(".")[1] for op in made.graph.ops if op.direction == "forward"]
    assert order.index("abs") < order.index("multi_conv") < order.index("relu")
    (backward,) = [op for op in made.graph.ops if op.aten.endswith("conv_backward")]
    assert made.graph.ops[backward.forward_op].aten == "poplin.multi_conv"
    assert (made.graph.ops[backward.forward_op].name, backward.name) == (
        "multi_conv",
        "gradient/multi_conv",
    )
    for value in made.graph.values.values():
        assert value.producer < 0 or value.id in (*made.graph.ops[value.producer].outputs,)


def test_a_serial_multi_conv_plans_each_as_asked_on_all_tiles() -> None:
    multi = poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial)
    made = compiled(
        Branches(multi.availableMemoryProportions((0.3, 0.2)).partialsTypes(torch.float)), IMAGES
    )
    wide, narrow = operators(made, "convolution")
    assert (wide.attributes.proportion, narrow.attributes.proportion) == (0.3, 0.2)
    assert {
        op.attributes.partials for op in (wide, narrow, *operators(made, "convolution_backward"))
    } == {"float32"}
    assert {op.attributes.proportion for op in operators(made, "convolution_backward")} == {
        0.3,
        0.2,
    }


def test_partials_of_each_convolution_are_those_of_its_vertices() -> None:
    multi = poptorch.MultiConv().partialsTypes((torch.half, torch.float))
    made = compiled(Branches(multi).half(), IMAGES.half())
    (fused,) = [op for op in made.graph.ops if op.aten == "poplin.multi_conv"]
    vertices = [
        v.type for s in steps_of(made, fused) for v in s.vertices if "ConvPartial" in v.type
    ]
    assert {v.split(",")[1] for v in vertices} == {"half", "float"}


def test_reserved_tiles_and_back_off_decide_the_shares() -> None:
    def last_of_first(multi: poptorch.MultiConv) -> int:
        made = compiled(Branches(multi), IMAGES)
        (fused,) = [op for op in made.graph.ops if op.aten == "poplin.multi_conv"]
        return int(made.tree.op_plans[fused.id].note.split("-")[1].split(":")[0])

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
    assert 2 * few < one <= other
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
    made = compiled(model, IMAGES.repeat(4, 1, 1, 1), options=options)
    (fused,) = [op.id for op in made.graph.ops if op.aten == "poplin.multi_conv"]
    runs = {body.name: sum(step.op == fused for step in body.steps) for body in made.tree.bodies}
    assert runs["stage 0 forward"] == runs["stage 0 recompute"] > 0


# -- attributes ---


class Layers(nn.Module):
    """Equal layers, the last with an outline of its own where one is given."""

    def __init__(self, outline: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.outline = outline

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        with poptorch.Attribute(
            __outline={"layer": self.outline} if self.outline else {}, __other={"a": "1"}
        ):
            x = self.layers[-1](x).relu()
        return x.square().mean()


def code_bytes(made: Executable) -> int:
    return sum(
        v.bytes for v in made.variables if v.category in ("internalExchangeCode", "controlCode")
    )


def test_attributes_stay_with_their_operators_and_gradients_and_outlines_keep_code_apart() -> None:
    x = torch.randn(32, 64)
    shared, apart = compiled(Layers(), x), compiled(Layers("last"), x)
    wanted = {("__outline", "layer", "last"), ("__other", "a", "1")}
    last = [op for op in apart.graph.ops if op.module == "layers.3" and op.direction != "update"]
    assert {op.direction for op in last} == {"forward", "backward"}
    assert all(set(op.attributes.popart) == wanted for op in last)
    assert not any(op.attributes.popart for op in apart.graph.ops if op.module == "layers.2")
    assert code_bytes(apart) > code_bytes(shared)
    assert not any(op.attributes.outline for op in shared.graph.ops)


def test_the_profile_says_what_was_asked_for() -> None:
    made = compiled(Tuned(0.25), torch.randn(64, 1024))
    first = next(op.id for op in operators(made, "mm") if op.direction == "forward")
    said = {row.id: row.plan for row in op_rows(made)}
    assert said[first] == f"{made.tree.op_plans[first].note}; asked for available memory 0.25"
    assert sum("asked for" in words for words in said.values()) == 2, "it and its gradient"
    everything = OperatorAttributes(0.1, "float16", False, (("__outline", "layer", "a"),))
    assert (
        str(everything)
        == "asked for available memory 0.1, float16 partials, dithering off, __outline layer: a"
    )


def test_an_attribute_is_entered_and_left_like_in_hooks() -> None:
    from ipu_exec.capture.open_blocks import attributes

    outer, inner = (
        poptorch.Attribute(__outline={"layer": "A"}),
        poptorch.Attribute(__outline={"layer": "B", "x": "1"}),
    )
    for _ in range(2):
        outer.__enter__()
        inner.__enter__()
        assert set(attributes()) == {("__outline", "layer", "B"), ("__outline", "x", "1")}
        inner.__exit__(None, None, None)
        assert attributes() == (("__outline", "layer", "A"),)
        outer.__exit__(None, None, None)
    assert attributes() == ()
    with pytest.raises(poptorch.Error, match="takes a dict of names and values"):
        poptorch.Attribute(__outline="A")  # type: ignore[arg-type]
