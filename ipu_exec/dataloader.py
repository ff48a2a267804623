"""``DataLoader``: PyTorch's, giving the samples of one call at a time."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import torch

from ipu_exec.enums import DataLoaderMode
from ipu_exec.errors import Error
from ipu_exec.options import Options


class DataLoader(torch.utils.data.DataLoader):
    """Batches of ``batch_size`` (the micro-batch) x deviceIterations x gradientAccumulation x replicas samples.

    All keyword arguments of `torch.utils.data.DataLoader` are taken. ``drop_last`` is True by default, because
    what does not fill a call cannot run. In a distributed run each process gets its own part of the dataset.
    The modes differ in where batches are made, not in what they hold, and all are served synchronously. Freezes
    ``options``. Error where the dataset cannot fill one batch.
    """

    def __init__(
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
        if not isinstance(options, Options):
            raise Error(f"DataLoader(options, dataset, ...) takes Options first, not {type(options).__name__}")
        if not isinstance(mode, DataLoaderMode):
            raise Error(f"DataLoader: mode is one of DataLoaderMode, not {mode!r}")
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise Error(
                f"DataLoader: batch_size (the micro-batch) is a whole number above 0 or None, not {batch_size!r}"
            )
        self._options = options
        self._micro_batch = batch_size
        combined = None if batch_size is None else batch_size * options.batch_factor
        if auto_distributed_partitioning and options.Distributed.numProcesses > 1:
            dataset = _part_of_process(dataset, options, kwargs)
        if combined is not None and kwargs.get("batch_sampler") is None:
            _check_size(dataset, combined, batch_size, options, drop_last)
        self._combined = combined
        options._freeze()
        if batch_size is not None and kwargs.get("batch_sampler") is None:
            kwargs |= {"batch_size": combined, "shuffle": shuffle, "drop_last": drop_last}
        elif batch_size is None:
            kwargs |= {"batch_size": None, "shuffle": shuffle}
        super().__init__(
            dataset,
            num_workers=num_workers,
            persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
            **kwargs,
        )

    @property
    def combinedBatchSize(self) -> int | None:
        """Samples of one call; None where ``batch_size`` is None."""
        return self._combined

    @property
    def options(self) -> Options:
        """The options it was made with."""
        return self._options

    def terminate(self) -> None:
        """Nothing runs in the background; kept for PopTorch's scripts."""


def _check_size(dataset: Any, combined: int, micro_batch: int | None, options: Options, drop_last: bool) -> None:
    if isinstance(dataset, torch.utils.data.IterableDataset) or not isinstance(dataset, Sized):
        return
    samples = len(dataset)
    product = (
        f"batch_size {micro_batch} x deviceIterations {options.device_iterations} x gradientAccumulation "
        f"{options.Training.gradient_accumulation} x replicas {options.input_replicas}"
    )
    if samples < combined:
        raise Error(
            f"the dataset has {samples} samples, which do not fill one combined batch of {combined} ({product}); lower "
            "deviceIterations or gradientAccumulation, or repeat the dataset"
        )
    if not drop_last and samples % combined:
        raise Error(
            f"drop_last=False: the last batch would have {samples % combined} samples of {combined} ({product}) and "
            "could not run; leave drop_last True, or pad the dataset"
        )


def _part_of_process(dataset: Any, options: Options, kwargs: dict[str, Any]) -> Any:
    """The samples of this process; all processes have the same number."""
    if isinstance(dataset, torch.utils.data.IterableDataset) or not isinstance(dataset, Sized):
        raise Error(
            "DataLoader cannot give each process of a distributed run its part of an iterable dataset; split it in "
            "the dataset (options.Distributed.processId) and pass auto_distributed_partitioning=False"
        )
    if kwargs.get("sampler") is not None or kwargs.get("batch_sampler") is not None:
        raise Error("a sampler in a distributed run: split it yourself and pass auto_distributed_partitioning=False")
    process, processes = options.Distributed.processId, options.Distributed.numProcesses
    share = len(dataset) // processes
    return torch.utils.data.Subset(dataset, range(process * share, (process + 1) * share))  # type: ignore[arg-type]
