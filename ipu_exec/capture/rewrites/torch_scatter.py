"""torch_scatter's reductions while a model is captured, composed of PyTorch's operators.

The library's compiled operators access memory that a captured tensor does not have, and no
dispatch mode sees them. PopTorch has a lowering of each.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ipu_exec.base.context import replaced

_LIBRARY = "torch_scatter"


def reductions_of_pytorch() -> contextlib.AbstractContextManager[None]:
    """Inside, the library's products, maxima and minima are PyTorch's; nothing where it is not."""
    if _LIBRARY not in sys.modules:
        return contextlib.nullcontext()
    functions: dict[str, Callable[..., Any]] = {
        "scatter_mul": scatter_mul,
        "scatter_max": partial(_extreme, "amax"),
        "scatter_min": partial(_extreme, "amin"),
    }
    return replaced(functions, torch.ops.torch_scatter)


def scatter_mul(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> torch.Tensor:
    """Products of the elements of ``src`` with the same index along ``dim``, and of ``out``."""
    index = _like(index, src, dim)
    if out is not None:
        return out.scatter_reduce_(dim, index, src, "prod")
    ones = torch.ones(_shape(src, index, dim, dim_size), dtype=src.dtype)
    return ones.scatter_reduce(dim, index, src, "prod")


def _extreme(
    reduction: str,
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int = -1,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest (or least) elements of each index, and the first position of each in ``src``.

    An index without elements gives 0 and the number of elements along ``dim``.
    """
    index = _like(index, src, dim)
    if out is not None:
        values = out.scatter_reduce_(dim, index, src, reduction)
    else:
        zeros = torch.zeros(_shape(src, index, dim, dim_size), dtype=src.dtype)
        values = zeros.scatter_reduce(dim, index, src, reduction, include_self=False)
    length = src.size(dim)
    places = torch.arange(length).reshape(
        [-1 if d == dim % src.dim() else 1 for d in range(src.dim())]
    )
    matches = torch.where(values.gather(dim, index) == src, places, length)
    nowhere = torch.full(values.shape, length, dtype=torch.int64)
    return values, nowhere.scatter_reduce(dim, index, matches, "amin")


def _like(index: torch.Tensor, src: torch.Tensor, dim: int) -> torch.Tensor:
    """``index`` expanded to the shape of ``src``; a one-dimensional one lies along ``dim``."""
    if index.dim() == 1 and src.dim() > 1:
        index = index.reshape([-1 if d == dim % src.dim() else 1 for d in range(src.dim())])
    while index.dim() < src.dim():
        index = index.unsqueeze(-1)
    return index.expand_as(src)


def _shape(src: torch.Tensor, index: torch.Tensor, dim: int, dim_size: int | None) -> list[int]:
    shape = list(src.shape)
    shape[dim] = int(index.max()) + 1 if dim_size is None else dim_size
    return shape
