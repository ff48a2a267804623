"""Random networks, trained here and by a plain PyTorch loop: the same bits, whatever is combined.

Networks, precisions, optimisers (PopTorch's and PyTorch's own), reductions, accumulation, replicas,
output modes, and batches whose shape changes between compiles. ``IPUSCOPE_NETWORKS=1000`` tries as
many rather than a few.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ipu_exec as poptorch
from ipu_exec import OutputMode
from ipu_exec.enums import ReductionType

EXAMPLES = int(os.environ.get("IPUSCOPE_NETWORKS", "12"))
FEATURES, CLASSES = 6, 3
Make = Callable[[Any], torch.optim.Optimizer]

# Ours, and what computes the same in a plain loop.
OPTIMISERS: dict[str, tuple[Make, Make]] = {
    "poptorch SGD": (
        lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "poptorch Adam": (
        lambda p: poptorch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01),
    ),
    "poptorch AdamW": (
        lambda p: poptorch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    ),
    "poptorch LAMB": (
        lambda p: poptorch.optim.LAMB(p, lr=0.01),
        lambda p: poptorch.optim.LAMB(p, lr=0.01),
    ),
    "poptorch RMSprop": (
        lambda p: poptorch.optim.RMSprop(p, lr=0.01),
        lambda p: poptorch.optim.RMSprop(p, lr=0.01),
    ),
    **{
        f"torch {kind.__name__}": (
            lambda p, kind=kind: kind(p, lr=0.02),
            lambda p, kind=kind: kind(p, lr=0.02),
        )
        for kind in (
            torch.optim.SGD,
            torch.optim.Adam,
            torch.optim.AdamW,
            torch.optim.RMSprop,
            torch.optim.Adagrad,
            torch.optim.Adamax,
        )
    },
}


@dataclass(frozen=True)
class Case:
    """A case to try. ``sizes`` are samples per micro-batch, compile after compile."""

    layers: tuple[str, ...]
    width: int
    half: bool
    optimiser: str
    mean: bool
    iterations: int
    accumulation: int
    replicas: int
    mode: OutputMode
    sharded: bool
    sizes: tuple[int, ...]


cases = st.builds(
    Case,
    layers=st.lists(
        st.sampled_from(["linear", "relu", "tanh", "gelu", "norm", "batch norm", "dropout"]),
        max_size=5,
    ).map(tuple),
    width=st.sampled_from([4, 7, 16]),
    half=st.booleans(),
    optimiser=st.sampled_from(sorted(OPTIMISERS)),
    mean=st.booleans(),
    iterations=st.integers(1, 2),
    accumulation=st.integers(1, 4),
    replicas=st.integers(1, 3),
    mode=st.sampled_from(
        [OutputMode.All, OutputMode.Final, OutputMode.Sum, OutputMode.EveryN, OutputMode.Default]
    ),
    sharded=st.booleans(),
    sizes=st.sampled_from([(2,), (3,), (2, 4), (4, 2, 3)]),
)


class Network(nn.Module):
    """The network described by a case, with a loss."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case.width
        layers: dict[str, Callable[[], nn.Module]] = {
            "linear": lambda: nn.Linear(width, width),
            "relu": nn.ReLU,
            "tanh": nn.Tanh,
            "gelu": nn.GELU,
            "norm": lambda: nn.LayerNorm(width),
            # PyTorch has no float16 statistics on a CPU
            "batch norm": lambda: nn.LayerNorm(width) if case.half else nn.BatchNorm1d(width),
            "dropout": lambda: nn.Dropout(0.3),
        }
        self.first = nn.Linear(FEATURES, width)
        self.middle = nn.Sequential(*(layers[name]() for name in case.layers))
        self.last = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("B1", ipu_id=0):
            x = self.middle(self.first(x))
        with poptorch.Block("B2", ipu_id=0):
            x = self.last(x)
            return x, nn.functional.cross_entropy(x, y)


def network(case: Case) -> Network:
    torch.manual_seed(len(case.layers) + case.width)
    model = Network(case)
    return model.half() if case.half else model


def batches(case: Case) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(5)
    drawn = []
    for size in case.sizes:
        samples = size * case.iterations * case.accumulation * case.replicas
        x = torch.randn(samples, FEATURES, generator=random)
        y = torch.randint(0, CLASSES, (samples,), generator=random)
        drawn.append((x.half() if case.half else x, y))
    return drawn


def ours(case: Case) -> tuple[Network, list[torch.Tensor]]:
    """The trained network, and the losses of each call."""
    model = network(case)
    options = poptorch.Options().showCompilationProgressBar(False).randomSeed(11)
    options.deviceIterations(case.iterations).replicationFactor(case.replicas).autoRoundNumIPUs()
    options.outputMode(case.mode, 2 if case.mode is OutputMode.EveryN else None)
    options.Training.gradientAccumulation(case.accumulation)
    options.Training.accumulationAndReplicationReductionType(
        ReductionType.Mean if case.mean else ReductionType.Sum
    )
    kind = poptorch.ShardedExecution if case.sharded else poptorch.PipelinedExecution
    options.setExecutionStrategy(kind(poptorch.Stage("B1", "B2").ipu(0)))
    wrapped = poptorch.trainingModel(
        model, options, OPTIMISERS[case.optimiser][0](model.parameters())
    )
    losses = []
    for x, y in batches(case):
        losses.append(wrapped(x, y)[1])
        wrapped.destroy()  # the next call compiles for another shape
    return model, losses


def plain(case: Case) -> tuple[Network, list[torch.Tensor]]:
    """The six lines of the README, for replicas too: loss.backward(), and one division."""
    model = network(case)
    weights = list(model.parameters())
    # float16 weights are updated in float32, and rounded: PopTorch's way
    updated = (
        [nn.Parameter(weight.detach().float()) for weight in weights] if case.half else weights
    )
    optimizer = OPTIMISERS[case.optimiser][1](updated)
    copies = [model, *(copy.deepcopy(model) for _ in range(case.replicas - 1))]
    torch.manual_seed(11)
    losses = []
    for call, (x, y) in enumerate(batches(case)):
        micro = case.sizes[call]
        said = {}
        for i in range(case.iterations):
            for r, one in enumerate(copies):
                one.load_state_dict({**one.state_dict(), **dict(model.named_parameters())})
                one.zero_grad()
                for a in range(case.accumulation):
                    at = ((i * case.accumulation + a) * case.replicas + r) * micro
                    loss = one(x[at : at + micro], y[at : at + micro])[1]
                    loss.backward()
                    said[i * case.accumulation + a, r] = loss.detach()
            for weight, *others in zip(*(one.parameters() for one in copies), strict=True):
                for other in others:
                    weight.grad = weight.grad + other.grad
            for weight, place in zip(updated, weights, strict=True):
                weight.grad = place.grad.to(weight.dtype)
                weight.grad /= case.accumulation * case.replicas if case.mean else 1
            optimizer.step()
            for weight, place in zip(updated, weights, strict=True):
                place.data.copy_(weight.data)
                weight.data.copy_(place.data)
        losses.append(kept(case, said))
    return model, losses


def kept(case: Case, said: dict[tuple[int, int], torch.Tensor]) -> torch.Tensor:
    """The losses that the output mode returns, by (micro-batch, replica)."""
    count = case.iterations * case.accumulation
    if case.mode is OutputMode.Sum:
        sums = []
        for replica in range(case.replicas):
            total = said[0, replica]
            for index in range(1, count):
                total = total + said[index, replica]
            sums.append(total)
        return torch.stack(sums)
    wanted = {
        OutputMode.All: range(count),
        OutputMode.EveryN: range(1, count, 2),
    }.get(case.mode, range(count - 1, count))
    return torch.stack(
        [said[index, replica] for index in wanted for replica in range(case.replicas)]
    )


@given(cases)
@settings(max_examples=EXAMPLES, deadline=None, print_blob=True)
def test_a_random_network_trains_as_a_plain_loop_does(case: Case) -> None:
    if case.mode is OutputMode.EveryN and case.iterations * case.accumulation % 2:
        case = Case(**{**vars(case), "iterations": 2})
    trained, losses = ours(case)
    theirs, expected = plain(case)
    for name, value in theirs.state_dict().items():
        actual = trained.state_dict()[name]
        assert torch.equal(actual.isnan(), value.isnan()), name
        assert torch.equal(actual.nan_to_num(), value.nan_to_num()), name
    for actual, wanted in zip(losses, expected, strict=True):
        assert torch.equal(actual.flatten().nan_to_num(), wanted.nan_to_num()), case.mode


@pytest.mark.parametrize("optimiser", sorted(OPTIMISERS))
@pytest.mark.parametrize("half", [False, True])
def test_every_optimiser_trains_to_numbers(optimiser: str, half: bool) -> None:
    """Each of them once at least, in both precisions: the bits of the loop, and no NaN."""
    case = Case(("relu", "norm"), 7, half, optimiser, True, 2, 2, 1, OutputMode.All, False, (2,))
    trained, _ = ours(case)
    theirs, _ = plain(case)
    for name, value in theirs.state_dict().items():
        assert value.isfinite().all()
        assert torch.equal(trained.state_dict()[name], value), name


def test_the_loop_that_people_write_differs_in_the_last_bits() -> None:
    """``(loss / accumulation).backward()`` rounds each quotient: why the README says which loop."""
    differ = []
    for width, count in product(
        (7, 16, 33), (3, 5, 7)
    ):  # in which of them is the processor's affair
        case = Case(
            *(("norm",), width, False, "torch SGD", True, 1, count, 1, OutputMode.All, False),
            (count,),
        )
        trained, _ = ours(case)
        model = network(case)
        optimizer = OPTIMISERS[case.optimiser][1](model.parameters())
        ((x, y),) = batches(case)
        torch.manual_seed(11)
        for some, labels in zip(x.chunk(count), y.chunk(count), strict=True):
            (model(some, labels)[1] / count).backward()
        optimizer.step()
        pairs = list(zip(trained.parameters(), model.parameters(), strict=True))
        differ += [not torch.equal(a, b) for a, b in pairs]
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)
    assert any(differ)
