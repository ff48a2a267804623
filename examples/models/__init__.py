"""The model families that people run on IPUs, written by hand, with random weights.

Each at its size and tiny.

``build("bert-large")`` gives an `Example`; ``split(example, 4)`` an execution strategy of four
stages with equally many Blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

import ipu_exec as poptorch

Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Example:
    """A model with its Blocks in order, and what makes so many samples of input for it (the last
    are labels).
    """

    name: str
    module: torch.nn.Module
    blocks: tuple[str, ...]
    inputs: Callable[[int], Inputs]
    micro_batch: int = 1


def build(name: str, tiny: bool = False) -> Example:
    """The model of that name; ``tiny`` for tests. KeyError where there is none."""
    from examples.models import bert, efficientnet, gnn, gpt2, lstm, resnet, vit

    makers: dict[str, Callable[[bool], Example]] = {
        "resnet-18": lambda small: resnet.example(18, small),
        "resnet-50": lambda small: resnet.example(50, small),
        "bert-base": lambda small: bert.example(bert.TINY if small else bert.BASE),
        "bert-large": lambda small: bert.example(bert.TINY if small else bert.LARGE),
        "gpt2-small": lambda small: gpt2.example(gpt2.TINY if small else gpt2.SMALL),
        "gpt2-medium": lambda small: gpt2.example(gpt2.TINY if small else gpt2.MEDIUM),
        "vit-b16": vit.example,
        "efficientnet-b0": efficientnet.example,
        "lstm": lstm.example,
        "gnn": gnn.example,
    }
    return makers[name](tiny)


NAMES = (
    "resnet-18",
    "resnet-50",
    "bert-base",
    "bert-large",
    "gpt2-small",
    "gpt2-medium",
    "vit-b16",
    "efficientnet-b0",
    "lstm",
    "gnn",
)


def split(example: Example, stages: int) -> poptorch.PipelinedExecution:
    """Stages of equally many Blocks, one an IPU: where people begin."""
    bounds = [round(k * len(example.blocks) / stages) for k in range(stages + 1)]
    return poptorch.PipelinedExecution(
        *(
            poptorch.Stage(*example.blocks[a:b]).ipu(k)
            for k, (a, b) in enumerate(itertools.pairwise(bounds))
        )
    )


@contextmanager
def block(name: str) -> Iterator[None]:
    """A Block of that name."""
    with poptorch.Block(name):
        yield


def integers(high: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Random ids, always the same."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random numbers, always the same."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def numbered(prefix: str, names: Sequence[object]) -> tuple[str, ...]:
    """``prefix0``, ``prefix1`` ..."""
    return tuple(f"{prefix}{i}" for i in range(len(names)))
