"""``DataLoader``: PyTorch's, returning the samples of one call at a time."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from math import ceil
from typing import Any

import torch

from ipu_exec.accessor import AsynchronousDataAccessor, Rebatched, strategy_of
from ipu_exec.base.structures import joined, learn
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.enums import DataLoaderMode, SharingStrategy
from ipu_exec.errors import UsageError
from ipu_exec.options import Options


class DataLoader(torch.utils.data.DataLoader):
    """Batches of all the samples that one call of the model takes.

    That is ``batch_size`` (the micro-batch) x deviceIterations x gradientAccumulation x replicas.
    All keyword arguments of `torch.utils.data.DataLoader` are accepted; a ``batch_sampler``
    returns micro-batches, which are collated one by one and joined to calls. ``drop_last`` is
    True by default, because an incomplete call cannot run unless ``collate_fn`` pads it. In a
    distributed run each process gets its own part of the dataset; with ``shuffle`` each epoch has
    its own order. Freezes ``options``. Error if the dataset cannot fill one batch.

    Modes: Sync creates batches in this process on request and ignores the other modes' settings,
    as PopTorch does ([EX, vision/cnns/pytorch/datasets/dataset.py] passes them in every mode).
    Async creates them ahead in another process (`AsynchronousDataAccessor`, which takes
    ``async_options``). AsyncRebatched does too, but joins workers' pieces of
    ``rebatched_worker_size`` samples (default: their share of a batch), so that iterable datasets
    drop less at their end.
    """

    def __init__(  # noqa: PLR0913 - PopTorch's signature
        self,
        options: Options,
        dataset: torch.utils.data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        _check_arguments(options, mode, batch_size)
        self._options = options
        self._accessor: AsynchronousDataAccessor | None = None
        combined = None if batch_size is None else options.combined_batch(batch_size)
        share = auto_distributed_partitioning and options.Distributed.numProcesses > 1
        if share and not _is_shared_out(kwargs.get("sampler"), options):
            part = _part_of_process(dataset, options, kwargs, (combined or 1) if drop_last else 1)
            if shuffle:
                kwargs["sampler"], shuffle = _SharedShuffle(len(dataset), part, options), None  # type: ignore[arg-type]
            else:
                dataset = torch.utils.data.Subset(dataset, part)
        sampler = kwargs.get("batch_sampler")
        if combined is not None and sampler is None:
            _check_size(dataset, combined, batch_size, options)
        self._combined_batch_size = combined
        options._freeze()
        if sampler is not None:
            dataset = _MicroBatches(
                dataset, kwargs.get("collate_fn") or torch.utils.data.default_collate
            )
            kwargs |= {
                "batch_sampler": _Joined(sampler, options.batch_factor, drop_last),
                "collate_fn": _join,
            }
        elif batch_size is not None:
            kwargs |= {"batch_size": combined, "shuffle": shuffle, "drop_last": drop_last}
        else:
            kwargs |= {"batch_size": None, "shuffle": shuffle}
        kwargs |= {
            "num_workers": num_workers,
            "persistent_workers": (
                num_workers > 0 if persistent_workers is None else persistent_workers
            ),
        }
        super().__init__(dataset, **kwargs)
        if mode is DataLoaderMode.Sync:
            return
        served: Iterable[Any] = torch.utils.data.DataLoader(dataset, **kwargs)
        if mode is DataLoaderMode.AsyncRebatched and combined is not None and sampler is None:
            piece = rebatched_worker_size or ceil(combined / max(1, num_workers))
            pieces = {**kwargs, "batch_size": min(piece, combined), "drop_last": False}
            served = Rebatched(torch.utils.data.DataLoader(dataset, **pieces), combined, drop_last)
        self._accessor = _accessor(served, async_options or {})

    def __iter__(self) -> Any:
        return super().__iter__() if self._accessor is None else iter(self._accessor)

    @property
    def combinedBatchSize(self) -> int | None:
        """Samples of one call; None if ``batch_size`` is None."""
        return self._combined_batch_size  # scripts read that name, too

    @property
    def options(self) -> Options:
        """The options it was created with."""
        return self._options

    def terminate(self) -> None:
        """End the process that creates batches in the asynchronous modes."""
        if self._accessor is not None:
            self._accessor.terminate()


def _accessor(served: Iterable[Any], options: dict[str, Any]) -> AsynchronousDataAccessor | None:
    """The process that creates batches ahead; None, with a warning, if the pickling fails."""
    strategy = strategy_of(options.get("sharing_strategy", SharingStrategy.ForkServer))
    if strategy is not SharingStrategy.Fork:
        try:
            pickle.dumps(served)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            warn_once(
                "DataLoader: batches are made in this process, not asynchronously, because the"
                f" dataset cannot be pickled: {error}"
            )
            return None
    return AsynchronousDataAccessor(served, **options)


class _Joined(torch.utils.data.Sampler[list[list[int]]]):
    """A batch sampler's micro-batches, joined to those of one call."""

    def __init__(self, sampler: Iterable[list[int]], count: int, drop_last: bool) -> None:
        self._sampler, self._count, self._drop_last = sampler, count, drop_last

    def __iter__(self) -> Iterator[Any]:
        # not iter(...): Lightning gives one that starts again when asked
        every = (batch for batch in self._sampler)
        while group := list(islice(every, self._count)):
            if len(group) < self._count and self._drop_last:
                return
            yield group

    def __len__(self) -> int:
        if not isinstance(self._sampler, Sized):
            raise TypeError(f"{type(self._sampler).__name__!r} has no len()")
        whole, rest = divmod(len(self._sampler), self._count)
        return whole + (rest > 0 and not self._drop_last)


class _MicroBatches(torch.utils.data.Dataset[Any]):
    """A dataset whose index is a list of indices, and whose item is the collated micro-batch."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._collate = dataset, collate

    def __getitem__(self, indices: list[int]) -> Any:
        return self._collate([self._dataset[index] for index in indices])


def _join(parts: list[Any]) -> Any:
    """Micro-batches joined along dimension 0; values other than tensors are the first one's."""
    learn(parts)
    return joined(parts, lambda x: torch.cat(x) if torch.is_tensor(x[0]) else x[0])


def _check_arguments(options: Any, mode: Any, batch_size: Any) -> None:
    """UsageError if an argument of `DataLoader` has the wrong type."""
    if not isinstance(options, Options):
        raise UsageError(
            f"DataLoader(options, dataset, ...) takes Options first, not {type(options).__name__}"
        )
    if not isinstance(mode, DataLoaderMode):
        raise UsageError(f"DataLoader: mode is one of DataLoaderMode, not {mode!r}")
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise UsageError(
            "DataLoader: batch_size (the micro-batch) is a whole number above 0 or None, not"
            f" {batch_size!r}"
        )


def _check_size(dataset: Any, combined: int, micro_batch: int | None, options: Options) -> None:
    if isinstance(dataset, torch.utils.data.IterableDataset) or not isinstance(dataset, Sized):
        return
    samples = len(dataset)
    product = (
        f"batch_size {micro_batch} x deviceIterations {options.device_iterations} x"
        f" gradientAccumulation {options.Training.gradient_accumulation} x replicas"
        f" {options.input_replicas}"
    )
    if samples < combined:
        raise UsageError(
            f"the dataset has {samples} samples, which do not fill one combined batch of {combined}"
            f" ({product}); lower deviceIterations or gradientAccumulation, or repeat the dataset"
        )


def _part_of_process(dataset: Any, options: Options, kwargs: dict[str, Any], whole: int) -> range:
    """The samples of this process; all processes have the same number, a multiple of ``whole``."""
    if isinstance(dataset, torch.utils.data.IterableDataset) or not isinstance(dataset, Sized):
        raise UsageError(
            "DataLoader cannot give each process of a distributed run its part of an iterable"
            " dataset; split it in the dataset (options.Distributed.processId) and pass"
            " auto_distributed_partitioning=False"
        )
    if kwargs.get("sampler") is not None or kwargs.get("batch_sampler") is not None:
        raise UsageError(
            "a sampler in a distributed run: split it yourself and pass"
            " auto_distributed_partitioning=False"
        )
    process, processes = options.Distributed.processId, options.Distributed.numProcesses
    if len(dataset) < whole * processes:
        raise UsageError(
            f"the dataset has {len(dataset)} samples, and {processes} instances take"
            f" {whole * processes} of them in one call ({whole} each), which is more."
            " Run fewer instances, or repeat the dataset"
        )
    share = len(dataset) // (whole * processes) * whole
    return range(process * share, (process + 1) * share)


def _is_shared_out(sampler: Any, options: Options) -> bool:
    """Whether a sampler shares data out already; UsageError if it is another process's."""
    if not isinstance(sampler, torch.utils.data.DistributedSampler):
        return False
    process, processes = options.Distributed.processId, options.Distributed.numProcesses
    if (sampler.rank, sampler.num_replicas) != (process, processes):
        raise UsageError(
            f"the DistributedSampler is for process {sampler.rank} of {sampler.num_replicas}, and"
            f" this is process {process} of {processes}: DistributedSampler(dataset,"
            f" num_replicas={processes}, rank={process})"
        )
    return True


class _SharedShuffle(torch.utils.data.Sampler[int]):
    """One process's part of all samples, which all processes shuffle alike, again for each epoch.

    The remainder of an epoch comes first in the next.
    """

    def __init__(self, samples: int, part: range, options: Options) -> None:
        if options.random_seed is None:
            raise UsageError(
                "When using auto_distributed_partitioning you must set"
                " poptorch.Options.randomSeed(), for all processes have to shuffle alike"
            )
        self._samples, self._part, self._seed = samples, part, int(options.random_seed)
        self._used = len(part) * options.Distributed.numProcesses
        self._left: list[int] = []

    def __len__(self) -> int:
        return len(self._part)

    def __iter__(self) -> Iterator[int]:
        shuffled = torch.randperm(
            self._samples, generator=torch.Generator().manual_seed(self._seed)
        ).tolist()
        self._seed += 1
        left = set(self._left)
        order = [*self._left, *(index for index in shuffled if index not in left)]
        self._left = order[self._used :]
        return iter([order[place] for place in self._part])
