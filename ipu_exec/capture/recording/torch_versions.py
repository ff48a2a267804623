"""What differs between the releases of PyTorch that are supported (docs/versions.md)."""

from __future__ import annotations

import collections
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def fake_copy(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor of the same shape, strides and dtype, in a storage of its own.

    Its storage is as long as its strides reach: of a slice (one micro-batch of a call, one
    replica's values) the slice. From 2.14 on PyTorch's own copy of it has the storage of the whole.
    """
    fake = mode.from_tensor(tensor.detach())
    if fake.layout is not torch.strided or fake.untyped_storage().nbytes() <= _reach(fake):
        return fake
    with mode:
        return torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype, device=fake.device)


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a strided tensor to its last."""
    if not tensor.numel():
        return 0
    ends = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in ends)) * tensor.element_size()


def first_state(
    mode: FakeTensorMode, optimizer: torch.optim.Optimizer
) -> collections.defaultdict[torch.Tensor, dict[str, Any]]:
    """What an optimiser has of state before its first step, of the fake parameters in its groups.

    Nothing, but for Adagrad before PyTorch 2.12, which makes its state with itself.
    """
    state: collections.defaultdict[torch.Tensor, dict[str, Any]] = collections.defaultdict(dict)
    if not isinstance(optimizer, torch.optim.Adagrad) or not adagrad_begins_with_state():
        return state
    with mode:
        for group in optimizer.param_groups:
            start = group.get("initial_accumulator_value", 0)
            for parameter in group["params"]:
                step, total = torch.tensor(0.0), torch.full_like(parameter, start)
                state[parameter] = {"step": step, "sum": total.detach()}
    return state


@cache
def adagrad_begins_with_state() -> bool:
    """Whether a new Adagrad has state already."""
    return bool(torch.optim.Adagrad([torch.zeros(1)]).state)
