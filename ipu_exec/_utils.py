"""PopTorch's ``_utils`` as far as libraries (``poptorch_geometric``) use it: nested tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ipu_exec.base.structures import learn

__all__ = [
    "combine_batch_tensors_gen",
    "combined_batch_generator",
    "flattenTensorStructure",
    "reconstructTensorStructure",
]


def flattenTensorStructure(tensors: Any) -> list[torch.Tensor]:
    """The tensors of nested lists, tuples, dicts and registered classes, without other values."""
    learn(tensors)
    return [leaf for leaf in tree_flatten(tensors)[0] if isinstance(leaf, torch.Tensor)]


def reconstructTensorStructure(
    structure: Any,
    values: Iterable[torch.Tensor],
    filter_fn: Callable[[torch.Tensor], bool] = lambda tensor: True,
) -> Any:
    """``structure`` with its tensors that ``filter_fn`` accepts replaced by ``values``."""
    learn(structure)
    coming = iter(values)
    leaves, nested = tree_flatten(structure)
    replaced = [
        next(coming) if isinstance(leaf, torch.Tensor) and filter_fn(leaf) else leaf
        for leaf in leaves
    ]
    return tree_unflatten(replaced, nested)


def combine_batch_tensors_gen(tensors: Sequence[Sequence[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """Each tensor of several batches, joined along dimension 0."""
    for of_batches in zip(*tensors, strict=True):
        yield torch.cat(list(of_batches))


def combined_batch_generator(
    dataloader_iterator: Iterable[Any], num_batches_to_combine: int, drop_last: bool = True
) -> Iterator[Any]:
    """Batches joined along dimension 0, ``num_batches_to_combine`` of the iterator's in each.

    A smaller last one is dropped, or returned with ``drop_last=False``.
    """
    waiting: list[list[torch.Tensor]] = []
    batch = None
    for batch in dataloader_iterator:
        waiting.append(flattenTensorStructure(batch))
        if len(waiting) == num_batches_to_combine:
            yield reconstructTensorStructure(batch, combine_batch_tensors_gen(waiting))
            waiting = []
    if waiting and not drop_last:
        yield reconstructTensorStructure(batch, combine_batch_tensors_gen(waiting))
