"""What differs between the releases of PyTorch that are supported (docs/versions.md)."""

from __future__ import annotations

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
