"""Equal layers are captured once, and the graph is what it is where each of them runs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import ipu_exec
from examples.models import bert, gpt2
from ipu_exec.capture import step
from ipu_exec.capture.layers.equal_layers import find_equal_layers
from ipu_exec.capture.loss import find_final_loss
from ipu_exec.graph import Graph

WIDTH, LAYERS = 8, 6


class Residual(nn.Module):
    """A layer with what layers have: a buffer that it writes, dropout, a checkpoint of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        inner = ipu_exec.recomputationCheckpoint(torch.relu(self.inner(self.norm(x))))
        return x + scale * self.dropout(inner)


class Stack(nn.Module):
    """Layers one after another; ``run`` says otherwise."""

    def __init__(self, run: Callable[..., torch.Tensor] | None = None, make: type = Residual):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(make() for _ in range(LAYERS))
        self.last = nn.Linear(WIDTH, 1)
        self.run = run

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.run is not None:
            x = self.run(self.layers, x)
        else:
            for number, layer in enumerate(self.layers):
                with ipu_exec.Block(f"layer{number}"):
                    x = layer(x)
        return self.last(x).square().mean()


def both(
    model: nn.Module,
    args: tuple[torch.Tensor, ...],
    optimizer: torch.optim.Optimizer | None,
    accumulate: bool = True,
) -> tuple[Graph, Graph]:
    """The graph with equal layers captured once, and the graph of every layer."""

    def captured(repeats: bool) -> Graph:
        return step.capture(
            model,
            args,
            {},
            optimizer=optimizer,
            accumulate=accumulate,
            find_loss=find_final_loss,
            repeats=repeats,
        )

    return captured(True), captured(False)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records for each capture whether layers stood in for equal ones."""
    outcomes: list[bool] = []
    finished = step._Run._finished

    def noted(run: step._Run) -> Graph:
        graph = finished(run)
        outcomes.append(bool(run.repeats.stand_ins))
        return graph

    monkeypatch.setattr(step._Run, "_finished", noted)
    return outcomes


class DecaysTheFirst(torch.optim.SGD):
    """A user's own, which updates one weight otherwise than others of its shape."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        for number, weight in enumerate(group["params"]):
            weight.data.sub_(weight.grad, alpha=0.1).mul_(1.0 if number else 0.9)


def optimisers(model: nn.Module) -> list[torch.optim.Optimizer]:
    parameters = list(model.parameters())
    return [
        torch.optim.AdamW(parameters),
        ipu_exec.optim.LAMB(parameters, lr=0.1),
        ipu_exec.optim.SGD(parameters, lr=0.1, momentum=0.9, use_combined_accum=True),
        DecaysTheFirst(parameters, lr=0.1),
    ]


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("optimiser", [0, 1, 2, 3])
def test_the_graph_of_a_stack_is_the_same(
    optimiser: int, accumulate: bool, runs: list[bool]
) -> None:
    model = Stack()
    once, each = both(model, (torch.randn(4, WIDTH),), optimisers(model)[optimiser], accumulate)
    assert once == each and runs == [True, False]
    assert list(once.values) == list(each.values) and list(once.storages) == list(each.storages)


def test_so_is_an_inference_and_a_frozen_beginning(runs: list[bool]) -> None:
    model = Stack()
    once, each = both(model.eval(), (torch.randn(4, WIDTH),), None)
    assert once == each
    model.train().first.requires_grad_(False)
    once, each = both(model, (torch.randn(4, WIDTH),), torch.optim.SGD(model.parameters(), lr=0.1))
    assert once == each and runs == [True, False] * 2


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_so_are_the_examples(name: str, runs: list[bool]) -> None:
    module = {"bert": bert, "gpt2": gpt2}[name]
    example = module.example(replace(module.TINY, layers=5))
    optimizer = ipu_exec.optim.AdamW(example.module.parameters(), lr=1e-3)
    once, each = both(example.module, example.inputs(1), optimizer)
    assert once == each and runs == [True, False]


def collected(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """All layers' results are used again behind them."""
    seen = []
    for layer in layers:
        x = layer(x)
        seen.append(x)
    return torch.stack(seen[1:]).sum(0)


def beside(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """Each layer's input is used beside it."""
    for layer in layers:
        x = x + torch.tanh(layer(x))
    return x


def shared(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """All layers have the same input."""
    return torch.stack([layer(x) for layer in layers]).sum(0)


def twice(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    for layer in (*layers, *layers):
        x = layer(x)
    return x


def one_differently(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    for number, layer in enumerate(layers):
        x = layer(x, 2.0 if number == 3 else 1.0)
    return x


def not_the_last(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    for layer in list(layers)[:-1]:
        x = layer(x)
    return x


def asked_for_memory(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = ipu_exec.set_available_memory(layer(x), 0.3)
    return x


@pytest.mark.parametrize(
    ("run", "stands_in"),
    [
        (collected, False),
        (beside, True),
        (one_differently, True),
        (shared, False),
        (twice, False),
        (not_the_last, False),
        (asked_for_memory, False),
    ],
)
def test_layers_that_are_called_otherwise(
    run: Callable[..., torch.Tensor], stands_in: bool, runs: list[bool]
) -> None:
    model = Stack(run)
    once, each = both(model, (torch.randn(4, WIDTH),), torch.optim.SGD(model.parameters(), lr=0.1))
    assert once == each and runs[-2:] == [stands_in, False]


class Numbered(Residual):
    """A layer that knows which one it is."""

    count = 0

    def __init__(self) -> None:
        super().__init__()
        self.number, Numbered.count = Numbered.count, Numbered.count + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.number % 2 else torch.relu(x)


def test_layers_that_are_not_equal_are_not_taken_for_it(runs: list[bool]) -> None:
    model = Stack()
    assert [group.paths for group in find_equal_layers(model)] == [
        tuple(f"layers.{number}" for number in range(LAYERS))
    ]
    model.layers[2].dropout.p = 0.5
    model.layers[3].inner.register_forward_hook(lambda *_: None)
    model.layers[4].inner.weight = model.layers[5].inner.weight
    assert find_equal_layers(model) == []  # two are left
    numbered = Stack(make=Numbered)  # each reads which it is
    optimizer = torch.optim.SGD(numbered.parameters(), lr=0.1)
    once, each = both(numbered, (torch.randn(4, WIDTH),), optimizer)
    assert once == each and runs == [False, False]


def test_the_model_is_left_as_it_was() -> None:
    model = Stack()
    before = [dict(vars(module)) for module in model.modules()]
    both(model, (torch.randn(4, WIDTH),), torch.optim.SGD(model.parameters(), lr=0.1))
    assert [list(vars(module)) for module in model.modules()] == [list(one) for one in before]


class Indexed(Residual):
    """A layer of a library that tells its layers, and parts of them, which they are."""

    def __init__(self, number: int, reads: bool) -> None:
        super().__init__()
        self.layer_idx, self.inner.layer_idx, self.reads = number, number, reads

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        if self.reads and self.inner.layer_idx == 2:  # neither the first nor the last
            x = torch.sin(x)
        return super().forward(x, scale)


@pytest.mark.parametrize("reads", [False, True])
def test_layers_that_hold_their_number_are_equal_until_they_read_it(
    reads: bool, runs: list[bool]
) -> None:
    numbers = iter(range(LAYERS))
    model = Stack(make=lambda: Indexed(next(numbers), reads))  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    once, each = both(model, (torch.randn(4, WIDTH),), optimizer)
    assert once == each and runs == [not reads, False]
    assert ("aten.sin.default" in {op.aten for op in once.ops}) is reads
    assert all(type(layer) is Indexed for layer in model.layers)


def test_a_number_that_is_not_the_layers_own_tells_layers_apart() -> None:
    numbers = iter([0, 1, 2, 3, 5, 4])
    model = Stack(make=lambda: Indexed(next(numbers), reads=False))  # type: ignore[arg-type]
    assert not find_equal_layers(model)


def test_a_captured_model_is_freed() -> None:
    """Autograd's nodes refer to the capture where no collector sees it, and so to all weights."""
    model = Stack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graph, _ = both(model, (torch.randn(4, WIDTH),), optimizer)
    freed = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert freed() is None
    assert graph.ops
