"""What a model asks for single operators: memory proportions, multi-convolutions, attributes; and conv dithering."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipu_exec.compile import Executable
from ipu_exec.graph import OpNode
from ipu_exec.lowering.plan import Compute


def compiled(model: nn.Module, *inputs: torch.Tensor, options: poptorch.Options | None = None) -> Executable:
    """The model compiled, for training where it returns a loss."""
    options = (options or poptorch.Options()).showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(*inputs)
    made: Executable = executor.executable
    return made


def operators(made: Executable, name: str) -> list[OpNode]:
    return [op for op in made.graph.ops if op.aten.startswith(f"aten.{name}.")]


class Tuned(nn.Module):
    """One product is tuned, seen through a view, a cast and a bias; the other has the IPU's proportion."""

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
            (op.aten.split(".")[1], op.direction): op.asked.proportion for op in made.graph.ops if op.asked.proportion
        }
        assert set(asked.values()) == {proportion}
        first = next(op for op in operators(made, "mm") if op.direction == "forward")
        assert first.asked.proportion == proportion
        backward = [op for op in operators(made, "mm") if op.forward_op == first.id]
        assert len(backward) == 1 and backward[0].asked.proportion == proportion
        others = [op for op in made.graph.ops if op.module == "second" and op.direction != "update"]
        assert len(others) >= 3 and not any(op.asked.proportion for op in others)
    product = [next(op for op in operators(made, "mm") if op.direction == "forward") for made in (free, tight)]
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
        step = next(s for s in made.tree.op_plans[op.id].steps if isinstance(s, Compute) and "convolve" in s.name)
        found.append(int(np.flatnonzero(step.cycles)[0]))
    return found


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4, channels, 3) for channels in (4, 8, 12))

    def forward(self, x: torch.Tensor) -> Any:
        return sum(layer(x).sum() for layer in self.layers)


def test_dithered_convolutions_begin_at_different_tiles_and_take_as_long() -> None:
    x = torch.randn(1, 4, 6, 6)
    plain = compiled(Small(), x)
    options = poptorch.Options()
    options.Training.setConvolutionDithering(True)
    dithered = compiled(Small(), x, options=options)
    assert first_tiles(plain, "convolution") == [0, 0, 0]
    assert len(set(first_tiles(dithered, "convolution"))) == 3
    for op in operators(plain, "convolution"):
        vertices = [
            [(int(s.cycles.max()), s.flops) for s in made.tree.op_plans[op.id].steps if isinstance(s, Compute)]
            for made in (plain, dithered)
        ]
        assert vertices[0] == vertices[1]
