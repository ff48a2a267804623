"""Replacements of torch's functions that run other operators, or have unknown shapes, on a CPU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ipu_exec.base.context import refuse, replaced
from ipu_exec.capture.recording.no_content import without_content
from ipu_exec.capture.recording.origins import source_line
from ipu_exec.capture.rewrites.recurrent import whole_layers
from ipu_exec.capture.rewrites.torch_scatter import reductions_of_pytorch


@contextlib.contextmanager
def torch_as_on_ipu() -> Iterator[None]:
    """Inside, torch's functions are those whose operators an IPU runs."""
    with (
        _without_fused_attention(),
        # PyTorch's fused operators do not store the softmax for the backward, as PopTorch does
        replaced({"scaled_dot_product_attention": _attention}, torch.nn.functional, torch._C._nn),
        _fused_dropout(),
        _ctc_of_numbers(),
        _dense_embedding(),
        without_content(),
        _counted_classes(),
        reductions_of_pytorch(),
        whole_layers(),
    ):
        yield


def _counted_classes() -> contextlib.AbstractContextManager[None]:
    one_hot = torch.nn.functional.one_hot

    def counted(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if num_classes < 0:
            refuse(
                "OneHot num classes must be specified and must be constant. It is as many as the"
                " largest value asks for here: say num_classes",
                str(source_line()),
            )
        return one_hot(tensor, num_classes)

    return replaced({"one_hot": counted}, torch.nn.functional)


def ctc_loss_of_longest_targets(
    scores: torch.Tensor, targets: torch.Tensor, steps: Any, lengths: Any, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten._ctc_loss on nothing, with room in its table for the longest possible target.

    ``scores``: [steps, batch, symbols], or [steps, symbols]; the table is [batch, steps, 2
    longest + 1]. ``lengths`` of targets are numbers, or a tensor that cannot be read here.
    """
    batch = scores.shape[1] if scores.dim() == 3 else 1
    longest = targets.shape[-1] if isinstance(lengths, torch.Tensor) else max(lengths, default=0)
    table = scores.new_empty(batch, scores.shape[0], 2 * longest + 1)
    return scores.new_empty(batch), table


def is_one_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    """Whether a single mask is the only index."""
    present = [index for index in indices if index is not None]
    return len(present) == 1 and present[0].dtype == torch.bool


def zero_outside_mask(values: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """``values[mask]`` with zeros outside the mask: the gradient of ``v`` in ``x[mask] = v``.

    Autograd then sums it up. A compiled program cannot know how many elements a mask selects.
    """
    first, mask = next((d, index) for d, index in enumerate(indices) if index is not None)
    after = first + mask.dim()
    broadcast = mask.reshape(*mask.shape, *(1,) * (values.dim() - after))
    masked = torch.where(broadcast, values, torch.zeros_like(values))
    return masked.reshape(*values.shape[:first], mask.numel(), *values.shape[after:])


def _dense_embedding() -> contextlib.AbstractContextManager[None]:
    """nn.Embedding(sparse=True) with a dense gradient: an IPU has no sparse tensors."""
    apart = torch.embedding

    def embedding(
        weight: torch.Tensor,
        indices: torch.Tensor,
        padding: int = -1,
        by_frequency: bool = False,
        sparse: bool = False,
    ) -> torch.Tensor:
        return apart(weight, indices, padding, by_frequency, False)

    return replaced({"embedding": embedding}, torch)


def _ctc_of_numbers() -> contextlib.AbstractContextManager[None]:
    """The mean of a CTC loss whose lengths are numbers, which PyTorch hides from modes."""
    apart = torch.ctc_loss

    def ctc_loss(
        scores: torch.Tensor,
        targets: torch.Tensor,
        steps: Any,
        lengths: Any,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> torch.Tensor:
        if reduction != 1 or isinstance(lengths, torch.Tensor):
            return apart(scores, targets, steps, lengths, blank, reduction, zero_infinity)
        losses = apart(scores, targets, steps, lengths, blank, 0, zero_infinity)
        return (losses / torch.tensor(lengths, dtype=losses.dtype).clamp_min(1)).mean()

    return replaced({"ctc_loss": ctc_loss}, torch)


def _fused_dropout() -> contextlib.AbstractContextManager[None]:
    """Dropout as one operator, as in poprand; a CPU's PyTorch multiplies by a mask."""
    apart = torch.dropout

    def dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        whole = train and 0 < p < 1
        return torch.native_dropout(input, p, True)[0] if whole else apart(input, p, train)

    return replaced({"dropout": dropout}, torch, torch._VF)


@contextlib.contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Make torch.nn's attention layers run the same operators in inference as in training.

    PyTorch's fast path is one operator for a whole layer, which hides its products.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """softmax(Q K^T scale + mask) V, the scale's root on either side."""
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.shape[-1]))
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    scores = (query * root) @ (key * root).transpose(-2, -1)
    if is_causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores = scores.masked_fill(ahead, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        nothing = attn_mask.logical_not().all(-1, keepdim=True)
        weights = weights.masked_fill(nothing, 0.0)  # a row without keys has no values
    return torch.dropout(weights, dropout_p, True) @ value
