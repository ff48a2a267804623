"""Decompositions of operators that have no lowering into operators that have one.

A lowering of the whole operator, including a user's, takes precedence; then come these
decompositions, then PyTorch's to its core operators.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ipu_exec.lowering import is_view
from ipu_exec.lowering.registry import has_lowering

Decomposition = Callable[..., Any]


def decomposition(func: Any) -> Decomposition | None:
    """The function to call instead of ``func`` (an ``OpOverload``); None: record it as it is."""
    name = str(func)
    if name.startswith("torch_nn.") and not has_lowering(name):
        return _body(func)
    if not name.startswith("aten.") or has_lowering(name):
        return None
    if _is_composite(func):  # only inside another decomposition: PyTorch has decomposed the rest
        return func.decompose
    return None if is_view(name) else _OURS.get(name.split(".")[1]) or _core().get(func)


@cache
def _body(func: Any) -> Decomposition | None:
    """The Python function of an operator that torch.nn defines (linear and loss in chunks)."""
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(func.name())
    return None if definition is None else definition._init_fn


@cache
def _is_composite(func: Any) -> bool:
    return bool(func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


@cache
def _core() -> dict[Any, Decomposition]:
    """PyTorch's decompositions to its core operators, but for those of composite operators.

    Its public function looks up those in ``torch.ops`` for every library, which fails where a
    library put something else there.
    """
    from torch._decomp import _core_aten_decompositions_post_autograd

    return dict(_core_aten_decompositions_post_autograd())


def trilinear(
    first: torch.Tensor,
    second: torch.Tensor,
    third: torch.Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """nn.Bilinear's product of three tensors, each lacking its expanded dimensions, summed."""
    rank = first.dim() + len(expand1)
    names = string.ascii_letters[:rank]

    def without(dims: list[int]) -> str:
        return "".join(name for d, name in enumerate(names) if d not in {x % rank for x in dims})

    pair = without([d for d in range(rank) if d in expand1 and d in expand2])
    # what only the first two have is summed at once: it is a matrix product
    now = [d for d in sumdim if d in expand3]
    partial = "".join(name for name in pair if names.index(name) not in now)
    product = torch.einsum(f"{without(expand1)},{without(expand2)}->{partial}", first, second)
    return torch.einsum(f"{partial},{without(expand3)}->{without(sumdim)}", product, third)


def multinomial(
    weights: torch.Tensor, samples: int, replacement: bool = False, *, generator: Any = None
) -> torch.Tensor:
    """Indices drawn as PyTorch draws them: the largest of weight over an exponential variate.

    With replacement, each draw is a search in the cumulative sums.
    """
    if replacement:
        total = weights.cumsum(-1)
        drawn = torch.rand((*weights.shape[:-1], samples), dtype=weights.dtype) * total[..., -1:]
        return torch.searchsorted(total, drawn)
    return (weights / torch.empty_like(weights).exponential_(1)).topk(samples, -1)[1]


def distance(a: torch.Tensor, b: torch.Tensor, p: float = 2) -> torch.Tensor:
    """torch.dist: the norm of a difference."""
    return torch.linalg.vector_norm(a - b, p)


def weight_norm_gradient(
    grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of w = g v / ||v|| (Salimans and Kingma, arXiv:1602.07868, equation 3)."""
    others = [d for d in range(v.dim()) if d != dim]
    grad_g = (grad * v).sum(others, keepdim=True) / norms
    return g / norms * (grad - grad_g * v / norms), grad_g


def _rows(scores: torch.Tensor) -> torch.Tensor:
    """A row of classes for each sample: one row of a vector, one class of a single number."""
    return scores.reshape(-1, scores.shape[-1] if scores.dim() else 1)


def multi_margin_gradient(
    grad: torch.Tensor,
    scores: torch.Tensor,
    target: torch.Tensor,
    p: int,
    margin: float,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    """The gradient of sum_i max(0, margin - x[y] + x[i])^p / classes: signs less their sum at y."""
    rows, row = _rows(scores), target.reshape(-1, 1)
    violation = (margin - rows.gather(-1, row) + rows).clamp_min(0)
    slope = (violation > 0).to(scores.dtype) if p == 1 else violation * 2
    slope = slope.scatter(-1, row, 0.0) / rows.shape[-1]
    if weight is not None:
        slope = slope * weight[row]
    slope = slope.scatter(-1, row, 0.0) - torch.zeros_like(slope).scatter(
        -1, row, slope.sum(-1, keepdim=True)
    )
    if reduction == 1:
        slope = slope / rows.shape[0]
    return (slope * (grad.reshape(-1, 1) if grad.dim() else grad)).reshape(scores.shape)


def multilabel_margin_gradient(
    grad: torch.Tensor,
    scores: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    is_target: torch.Tensor,
) -> torch.Tensor:
    """The gradient of sum_ij max(0, 1 - x[y_j] + x[i]) / classes.

    The sum is over the labels y_j up to the first -1 and over all i that are not labels.
    """
    rows, target, is_target = _rows(scores), _rows(target), _rows(is_target)
    label = (target >= 0).to(scores.dtype).cumprod(-1)
    place = target.clamp_min(0)
    pairs = (1 - rows.gather(-1, place).unsqueeze(-1) + rows.unsqueeze(-2) > 0).to(scores.dtype)
    pairs = pairs * label.unsqueeze(-1) * (1 - is_target).unsqueeze(-2) / rows.shape[-1]
    slope = pairs.sum(-2) - torch.zeros_like(rows).scatter_add(-1, place, pairs.sum(-1))
    if reduction == 1:
        slope = slope / rows.shape[0]
    return (slope * (grad.reshape(-1, 1) if grad.dim() else grad)).reshape(scores.shape)


def zero_tensor(
    size: list[int], *, dtype: torch.dtype | None = None, **unused: Any
) -> torch.Tensor:
    """Zeros in place of autograd's zeros that take no memory."""
    return torch.zeros(size, dtype=dtype)


def embedding_bag_gradient(  # noqa: PLR0913 - ATen's signature
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    bags: torch.Tensor,
    sizes: torch.Tensor,
    largest: torch.Tensor,
    rows: int,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: torch.Tensor | None = None,
    padding: int = -1,
) -> torch.Tensor:
    """The dense gradient (an IPU has no sparse tensors); ``bags`` is empty after an eager sum."""
    if bags.numel() == 0:
        starts = indices.new_zeros(indices.shape[0] + 1).index_add(
            0, offsets, torch.ones_like(offsets)
        )
        bags = starts[:-1].cumsum(0) - 1
    dense = torch.ops.aten._embedding_bag_dense_backward
    return dense(grad, indices, bags, sizes, largest, rows, by_frequency, mode, weights, padding)


def diagonal_scatter(
    whole: torch.Tensor, part: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """A copy of a tensor with another diagonal."""
    result = whole.clone()
    result.diagonal(offset, dim1, dim2).copy_(part)
    return result


def nonzero_static(values: torch.Tensor, *, size: int, fill_value: int = -1) -> torch.Tensor:
    """The indices of the first ``size`` non-zero elements: [size, dimensions].

    Of the variants of nonzero only this has a fixed shape. A cumulative sum numbers the elements;
    each position is scattered to its number (surplus ones to one extra place).
    """
    mask = (values != 0).reshape(-1)
    number = torch.where(mask, mask.to(torch.int32).cumsum(0) - 1, size).clamp_max(size)
    position = torch.full((size + 1,), -1).scatter(0, number, torch.arange(mask.numel()))[:size]
    coordinates: list[torch.Tensor] = []
    rest = position
    for extent in reversed(values.shape):
        coordinates.insert(0, torch.where(position < 0, fill_value, rest % extent))
        rest = torch.div(rest, extent, rounding_mode="floor")
    return torch.stack(coordinates, -1) if coordinates else position.new_empty(size, 0)


def counts(
    values: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    """The number of occurrences of each of ``minlength`` values: [minlength].

    The shape is fixed if no value is larger; the numbers are computed on the host in any case.
    """
    each = torch.ones_like(values) if weights is None else weights
    if not each.is_floating_point():
        each = each.to(torch.int64)
    return each.new_zeros(minlength).scatter_add(0, values.to(torch.int64), each)


def histogram(
    values: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0
) -> torch.Tensor:
    """The number of values in each of ``bins`` equal parts of min to max, or of their own range."""
    low, high = (min, max) if min != max else (values.amin(), values.amax())
    values = values.reshape(-1)
    place = ((values - low) * (bins / (high - low))).to(torch.int64).clamp(0, bins - 1)
    counted = ((values >= low) & (values <= high)).to(values.dtype)
    return values.new_zeros(bins).scatter_add(0, place, counted)


def one_value(
    values: torch.Tensor, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Stand-in for unique, with inverse and counts, where valid arguments are checked."""
    first = values.reshape(-1)[:1]
    none = torch.zeros(0, dtype=torch.int64)
    return first, none, none


def renormalised(
    weight: torch.Tensor, indices: torch.Tensor, most: float, p: float
) -> torch.Tensor:
    """Apply nn.Embedding's max_norm: scale looked-up rows to norm ``most`` or less, in place."""
    indices = indices.reshape(-1)
    rows = weight.index_select(0, indices)
    norms = torch.linalg.vector_norm(rows, p, -1, keepdim=True)
    scale = torch.where(norms > most, most / (norms + 1e-7), torch.ones_like(norms))
    return weight.index_copy_(0, indices, rows * scale)


def grouped_product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Products of groups with a matrix each (a mixture's experts), which end at ``offs``.

    Data decides how large a group is: with fixed shapes each takes all rows of ``a``, all columns
    of ``b`` or all they share, and a mask leaves its own.
    """
    if offs is None:
        product = a @ b
    else:
        at = torch.arange(a.shape[0] if b.dim() == 3 else b.shape[a.dim() - 2])
        own = (
            (at < offs[:, None]) & (at >= torch.nn.functional.pad(offs[:-1], (1, 0))[:, None])
        ).to(a.dtype)
        if b.dim() == 3:
            product = ((a * own[:, :, None]) @ b).sum(0)
        else:
            product = (a * own[:, None]) @ b if a.dim() == 2 else (a @ (b * own[:, None])).sum(0)
    product = product if bias is None else product + bias
    return product if out_dtype is None else product.to(out_dtype)


_OURS: dict[str, Decomposition] = {
    "_is_all_true": torch.all,  # as torch.distributions checks its arguments
    "_grouped_mm": grouped_product,
    "bincount": counts,
    "equal": lambda x, y: x.shape == y.shape and bool((x == y).all()),
    "as_strided_copy": lambda x, *args, **kwargs: x.as_strided(*args, **kwargs).clone(),
    "histc": histogram,
    "diagonal_scatter": diagonal_scatter,
    "embedding_renorm_": renormalised,
    "nonzero_static": nonzero_static,
    "narrow_copy": lambda x, *args, **kwargs: x.narrow(*args, **kwargs).clone(),
    "unbind_copy": lambda x, dim=0: [part.clone() for part in x.unbind(dim)],
    "_trilinear": trilinear,
    "multinomial": multinomial,
    "dist": distance,
    "multilabel_margin_loss_backward": multilabel_margin_gradient,
    "_efficientzerotensor": zero_tensor,
    "_embedding_bag_backward": embedding_bag_gradient,
    "_weight_norm_interface_backward": weight_norm_gradient,
    "multi_margin_loss_backward": multi_margin_gradient,
}
