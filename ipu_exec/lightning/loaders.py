"""Data loaders whose batch combines one batch for each replica."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ipu_exec.base.structures import joined, learn, tensors_in
from ipu_exec.base.user_tracebacks import warn
from ipu_exec.dataloader import DataLoader
from ipu_exec.options import Options


class _ForReplicas:
    """Joins ``_batches`` of ``_inner``, as many a replica; what does not fill all is left out."""

    _inner: Iterable[Any]
    _batches: int
    _options: Options

    def __iter__(self) -> Iterator[Any]:
        if self._batches == 1:
            return iter(self._inner)
        return self._groups()

    def _groups(self) -> Iterator[Any]:
        batches = iter(self._inner)
        while group := list(islice(batches, self._batches)):
            sizes = {_samples(batch) for batch in group}
            if len(group) < self._batches or len(sizes) > 1:
                _say_left_out(len(group), self._batches)
                continue
            learn(group[0])
            yield joined(group, _join)

    def __len__(self) -> int:
        if not isinstance(self._inner, Sized):
            raise TypeError(f"{type(self._inner).__name__!r} has no len()")
        return len(self._inner) // self._batches

    @property
    def options(self) -> Options:
        """The options of the model that it loads for."""
        return self._options


def _say_left_out(left: int, batches: int) -> None:
    warn(
        f"the last {left} batches of a data loader are left out: a step of all replicas takes"
        f" {batches} batches of one size. A number of samples that is a multiple of batch_size x"
        f" {batches} loses none"
    )


class _Wrapped(_ForReplicas):
    """Batches from an iterable that is not a PyTorch data loader."""

    def __init__(self, inner: Iterable[Any], batches: int, options: Options) -> None:
        self._inner, self._batches, self._options = inner, batches, options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)


@lru_cache
def _for_steps(kind: Any) -> Any:
    """A subclass of one base, so that loaders can become it, that yields a step's samples."""

    def iterate(self: Any) -> Iterator[Any]:
        steps = _steps(self)
        for call in kind.__iter__(self):
            for step in range(steps):
                yield part(call, step, steps)

    def length(self: Any) -> int:
        return int(kind.__len__(self)) * _steps(self)

    about = {"__iter__": iterate, "__len__": length, "whole_calls": kind}
    return type(kind.__name__, (kind,), about)


def _steps(loader: Any) -> int:
    options = loader.options
    return int(options.device_iterations * options.Training.gradient_accumulation)


def for_replicas(loader: Any, options: Options, kind: str) -> Any:
    """``loader`` with a micro-batch of every replica at a time, in its order and random numbers.

    A micro-batch is one of its batches, or those that the options' plan joins, if it is one for
    this ``kind``, "training" or "inference".

    A data loader stays one, and is an `ipu_exec.DataLoader` too; one of those is itself changed,
    since the Trainer uses the user's.
    """
    batches = int(options.replication_factor) * _joined_by_plan(loader, options, kind)
    if isinstance(loader, DataLoader):
        by_step = isinstance(loader, _ForReplicas) or hasattr(loader, "whole_calls")
        if not by_step and _steps(loader) > 1:
            whole: Any = type(loader)
            loader.__class__ = _for_steps(whole)
        return loader
    if not isinstance(loader, torch.utils.data.DataLoader):
        return loader if batches == 1 else _Wrapped(loader, batches, options)
    its = type(loader)
    own = () if its is torch.utils.data.DataLoader else (its,)
    instance: Any = object.__new__(type(its.__name__, (_ForReplicas, *own, DataLoader), {}))
    about = {"_inner": loader, "_batches": batches, "_options": options, "_accessor": None}
    vars(instance).update(vars(loader) | about | {"_combined_batch_size": None})
    # of a prediction Lightning wraps the sampler
    if batches > 1 and hasattr(loader.batch_sampler, "_batch_sampler"):
        vars(instance)["batch_sampler"] = _seen_of_steps(loader.batch_sampler, batches)
    left = len(loader) % batches if _has_length(loader) else 0
    if left:
        _say_left_out(left, batches)
    return instance


def _joined_by_plan(loader: Any, options: Options, kind: str) -> int:
    """How many of the loader's batches are a micro-batch of the plan that the options follow."""
    plan, size = options.placement_mapping, getattr(loader, "batch_size", None)
    if plan is None or plan.kind != kind or not size:
        return 1
    joined, rest = divmod(plan.micro_batch, size)
    return 1 if rest else joined


def _seen_of_steps(sampler: Any, count: int) -> Any:
    """Lightning's sampler of a prediction, which says of each batch where its samples were."""

    def seen(self: Any) -> list[list[int]]:
        batches = sampler.seen_batch_indices
        groups = range(0, len(batches), count)
        return [[i for batch in batches[g : g + count] for i in batch] for g in groups]

    kind = type(sampler)
    return object.__new__(type(kind.__name__, (kind,), {"seen_batch_indices": property(seen)}))


def _has_length(loader: Any) -> bool:
    try:
        return len(loader) > 0
    except TypeError:  # of an iterable data set
        return False


def as_given(loader: Any) -> None:
    """Undo the changes of `for_replicas` to a loader."""
    whole_calls = getattr(loader, "whole_calls", None)
    if whole_calls is not None:
        loader.__class__ = whole_calls


def _join(column: Sequence[Any]) -> Any:
    """Leaves joined along dimension 0; scalars and other objects are the first batch's."""
    first = column[0]
    return torch.cat(list(column)) if isinstance(first, torch.Tensor) and first.dim() else first


def part(batch: Any, index: int, parts: int) -> Any:
    """One of several equal parts of a batch's tensors along dimension 0."""

    def narrow(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            return leaf
        size = leaf.shape[0] // parts
        return leaf.narrow(0, index * size, size)

    learn(batch)
    return batch if parts == 1 else tree_map(narrow, batch)


def are_tensors(batch: Any) -> bool:
    """Whether a batch is a tensor, or a list, tuple or dictionary of such alone."""
    if type(batch) in (list, tuple):
        return all(type(item) is torch.Tensor for item in batch)
    if type(batch) is dict:
        return all(type(item) is torch.Tensor for item in batch.values())
    return type(batch) is torch.Tensor


def sample(loader: Any) -> Any:
    """A batch like a map-style data loader's, built beside it; None if that is impossible."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return loader[0] if isinstance(loader, list) and loader else None
    dataset = loader.dataset
    if isinstance(dataset, torch.utils.data.IterableDataset) or not isinstance(dataset, Sized):
        return None
    if isinstance(loader, _ForReplicas):
        loader = loader._inner
    if loader.batch_size is None and loader.batch_sampler is None:
        return loader.collate_fn(dataset[0])
    count = min(loader.batch_size or 1, len(dataset))
    return loader.collate_fn([dataset[index] for index in range(count)])


def _samples(batch: Any) -> int:
    return next((tensor.shape[0] for tensor in tensors_in(batch) if tensor.dim()), 0)
