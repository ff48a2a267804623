"""What a model asks of single operators: proportions of memory, attributes, dithering, norms."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.rows.profile_rows import op_rows
from ipu_exec.graph import OperatorAttributes, OpNode
from ipu_exec.lowering.plan import Compute
from tests.compiling import compiled, operators
from tests.models import mean_square, model_of


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


def most_held(executable: Executable, op: OpNode) -> int:
    return max(
        int(temporary.bytes.max()) for temporary in executable.tree.op_plans[op.id].temporaries
    )


def test_a_proportion_holds_for_its_product_and_the_gradients_of_it() -> None:
    x = torch.randn(2048, 1024)
    free, tight = compiled(Tuned(0.9), x), compiled(Tuned(0.02), x)
    for executable, proportion in ((free, 0.9), (tight, 0.02)):
        asked = {
            (op.aten.split(".")[1], op.direction): op.attributes.proportion
            for op in executable.graph.ops
            if op.attributes.proportion
        }
        assert set(asked.values()) == {proportion}
        first = next(op for op in operators(executable, "mm") if op.direction == "forward")
        assert first.attributes.proportion == proportion
        backward = [op for op in operators(executable, "mm") if op.forward_op == first.id]
        assert len(backward) == 1 and backward[0].attributes.proportion == proportion
        others = [
            op for op in executable.graph.ops if op.module == "second" and op.direction != "update"
        ]
        assert len(others) >= 3 and not any(op.attributes.proportion for op in others)
    product = [
        next(op for op in operators(executable, "mm") if op.direction == "forward")
        for executable in (free, tight)
    ]
    assert most_held(tight, product[1]) < most_held(free, product[0])
    assert tight.tree.op_cycles[product[1].id] > free.tree.op_cycles[product[0].id]
    assert tight.tree.op_plans[product[1].id].note != free.tree.op_plans[product[0].id].note


def test_a_proportion_out_of_range_is_an_error() -> None:
    with pytest.raises(poptorch.Error, match=r"above 0 and at most 1, not 1\.5"):
        poptorch.set_available_memory(torch.ones(1), 1.5)


def first_tiles(executable: Executable, name: str) -> list[int]:
    """The first tile that convolves, for each forward convolution."""
    tiles = []
    for op in operators(executable, name):
        step = next(
            s
            for s in executable.tree.op_plans[op.id].steps
            if isinstance(s, Compute) and "convolve" in s.name
        )
        tiles.append(int(np.flatnonzero(step.cycles)[0]))
    return tiles


def test_dithered_convolutions_begin_at_different_tiles_and_take_as_long() -> None:
    x = torch.randn(1, 4, 6, 6)
    layers = nn.ModuleList(nn.Conv2d(4, channels, 3) for channels in (4, 8, 12))
    model = model_of(lambda self, x: sum(layer(x).sum() for layer in self.layers), layers=layers)
    plain = compiled(copy.deepcopy(model), x)
    options = poptorch.Options()
    options.Training.setConvolutionDithering(True)
    dithered = compiled(copy.deepcopy(model), x, options=options)
    assert first_tiles(plain, "convolution") == [0, 0, 0]
    assert len(set(first_tiles(dithered, "convolution"))) == 3
    for op in operators(plain, "convolution"):
        vertices = [
            [
                (int(s.cycles.max()), s.flops)
                for s in executable.tree.op_plans[op.id].steps
                if isinstance(s, Compute)
            ]
            for executable in (plain, dithered)
        ]
        assert vertices[0] == vertices[1]


def test_stable_norms_centre_before_they_square() -> None:
    x = torch.randn(4, 16, 28, 28)
    model = mean_square(nn.BatchNorm2d(16))
    plain, stable = (
        compiled(copy.deepcopy(model), x),
        compiled(model, x, options=poptorch.Options().enableStableNorm(True)),
    )
    (one,), (other,) = (
        operators(executable, "native_batch_norm") for executable in (plain, stable)
    )
    names = [step.name for step in stable.tree.op_plans[other.id].steps]
    squared = next(index for index, name in enumerate(names) if name.startswith("variance/"))
    assert names.index("broadcast mean") < names.index("centre") < squared
    assert "centre" not in [step.name for step in plain.tree.op_plans[one.id].steps]
    assert stable.tree.op_cycles[other.id] > plain.tree.op_cycles[one.id]


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


def code_bytes(executable: Executable) -> int:
    return sum(
        v.bytes
        for v in executable.variables
        if v.category in ("internalExchangeCode", "controlCode")
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
    executable = compiled(Tuned(0.25), torch.randn(64, 1024))
    first = next(op.id for op in operators(executable, "mm") if op.direction == "forward")
    said = {row.id: row.plan for row in op_rows(executable)}
    assert said[first] == f"{executable.tree.op_plans[first].note}; asked for available memory 0.25"
    assert sum("asked for" in words for words in said.values()) == 2, "it and its gradient"
    everything = OperatorAttributes(0.1, "float16", False, (("__outline", "layer", "a"),))
    assert (
        str(everything)
        == "asked for available memory 0.1, float16 partials, dithering off, __outline layer: a"
    )


def test_an_attribute_is_entered_and_left_like_in_hooks() -> None:
    from ipu_exec.capture.recording.open_blocks import attributes

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
