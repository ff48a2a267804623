"""Notices views that name a size which the plan of tensor sharding cuts.

``view(batch, length, heads, -1)`` of an IPU's share gives all heads, each with a part of its
size: another, dearer model. ``view(batch, length, -1, head_size)`` gives the IPU's heads.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ipu_exec.base.sharding_plan import TensorSharding

_MARK = "_shared_last"  # on tensors whose last dimension the IPUs of a stage share
_VIEWS = ("view", "reshape", "unflatten")


@contextlib.contextmanager
def noticed(sharding: TensorSharding) -> Iterator[None]:
    """Inside, such a view is a UserWarning with the line that makes it."""
    from torch.distributed.tensor import DTensor, Shard

    own = DTensor.to_local

    def to_local(tensor: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        local: torch.Tensor = own(tensor, *args, **kwargs)
        last = tensor.dim() - 1
        if any(
            isinstance(one, Shard) and one.dim % tensor.dim() == last for one in tensor.placements
        ):
            setattr(local, _MARK, True)
        return local

    patched: Any = DTensor
    patched.to_local = to_local
    try:
        with _Views(sharding):
            yield
    finally:
        patched.to_local = own


class _Views(TorchFunctionMode):
    """Hands the mark on from tensor to tensor, and looks at what is viewed."""

    def __init__(self, sharding: TensorSharding) -> None:
        super().__init__()
        self.sharding = sharding

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        source = args[0] if args else None
        if not isinstance(source, torch.Tensor) or not hasattr(source, _MARK):
            return result
        if getattr(func, "__name__", "") in _VIEWS:
            text = _problem(source, _sizes(args), result, self.sharding)
            if text:
                warnings.warn(text, stacklevel=2)
            return result
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dim() == source.dim():
                setattr(tensor, _MARK, True)
        return result


def _sizes(args: Sequence[Any]) -> list[Any]:
    """The sizes that a call of view, reshape or unflatten names."""
    last = args[-1]
    return list(last) if isinstance(last, (tuple, list)) else list(args[1:])


def _problem(
    source: torch.Tensor, sizes: Sequence[Any], result: torch.Tensor, sharding: TensorSharding
) -> str:
    """What is wrong with a view that splits the shared dimension; empty where nothing is."""
    parts = _parts_of_last(source.shape[-1], result.shape)
    if len(parts) < 2 or -1 not in sizes:
        return ""
    inferred = len(sizes) - sizes.index(-1)  # counted from the end
    if inferred >= len(parts) or inferred > len(sizes):
        return ""
    first, size = parts[0], int(result.shape[-inferred])
    return (
        f"{sharding}: this view splits a dimension that {sharding.shards} IPUs share, and names its"
        f" first size, {first}, itself: each IPU has {first}, of {size} instead of"
        f" {size * sharding.shards} elements, which is another model and costs more. Let -1 stand"
        f" for the first size, as in view(batch, length, -1, {size * sharding.shards}), unless"
        f" {first} is an IPU's share already"
    )


def _parts_of_last(extent: int, shape: Sequence[int]) -> list[int]:
    """The sizes at the end of a shape whose product is ``extent``; empty if there are none."""
    product = 1
    for count, size in enumerate(reversed(shape), 1):
        product *= int(size)
        if product == extent and count > 1:
            return [int(one) for one in shape[-count:]]
        if product > extent:
            break
    return []
