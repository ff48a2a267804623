"""DataLoader: batches of one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import ipu_exec as poptorch
from ipu_exec import DataLoader, Error, Options


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return (torch.tensor(i) for i in range(10))


def options(iterations: int = 2, accumulation: int = 3, replicas: int = 2) -> Options:
    made = Options().deviceIterations(iterations).replicationFactor(replicas)
    made.Training.gradientAccumulation(accumulation)
    return made


def test_a_batch_fills_a_call_and_the_rest_is_dropped() -> None:
    loader = DataLoader(options(), Numbers(50), batch_size=2)
    assert loader.combinedBatchSize == 2 * 2 * 3 * 2
    assert [batch.tolist() for batch in loader] == [list(range(24)), list(range(24, 48))]
    assert len(loader) == 2


def test_grouped_replicas_count_once() -> None:
    made = options(1, 1, 4).inputReplicaGrouping(4, poptorch.CommGroupType.Consecutive)
    assert DataLoader(made, Numbers(9), batch_size=3).combinedBatchSize == 3


def test_torchs_arguments_are_taken() -> None:
    loader = DataLoader(
        options(),
        Numbers(24),
        batch_size=1,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        collate_fn=lambda items: torch.stack(items) * 10,
        num_workers=0,
        mode=poptorch.DataLoaderMode.Async,
    )
    batch = next(iter(loader))
    assert sorted(batch.tolist()) != batch.tolist()
    assert len(batch) == 12
    assert all(value % 10 == 0 for value in batch.tolist())


def test_without_a_batch_size_the_dataset_makes_the_batches() -> None:
    loader = DataLoader(options(), [torch.zeros(12)], batch_size=None)  # type: ignore[arg-type]
    assert loader.combinedBatchSize is None
    assert next(iter(loader)).shape == (12,)


def test_iterable_datasets() -> None:
    loader = DataLoader(options(2, 2, 1), Stream())
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_dataset_too_small_for_one_batch_is_an_error() -> None:
    with pytest.raises(Error) as raised:
        DataLoader(options(), Numbers(23), batch_size=2)
    for part in ("23 samples", "combined batch of 24", "deviceIterations 2", "gradientAccumulation 3", "replicas 2"):
        assert part in str(raised.value)


def test_a_remainder_that_may_not_be_dropped_is_an_error() -> None:
    with pytest.raises(Error, match="last batch would have 2 samples of 24"):
        DataLoader(options(), Numbers(50), batch_size=2, drop_last=False)
    assert len(DataLoader(options(), Numbers(48), batch_size=2, drop_last=False)) == 2


def test_each_process_gets_its_own_part() -> None:
    parts = []
    for process in range(2):
        made = options(1, 1, 1)
        made.Distributed.configureProcessId(process, 2)
        parts.append([int(value) for value in DataLoader(made, Numbers(9))])
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_iterable_dataset_is_not_split_silently() -> None:
    made = options(1, 1, 1)
    made.Distributed.configureProcessId(0, 2)
    with pytest.raises(Error, match="auto_distributed_partitioning=False"):
        DataLoader(made, Stream())


@pytest.mark.parametrize("size", [0, 1.5])
def test_a_batch_size_is_a_whole_number(size: Any) -> None:
    with pytest.raises(Error, match="batch_size"):
        DataLoader(options(), Numbers(50), batch_size=size)


def test_options_in_use_are_frozen() -> None:
    made = options()
    DataLoader(made, Numbers(50))
    with pytest.raises(Error, match="in use"):
        made.deviceIterations(3)
