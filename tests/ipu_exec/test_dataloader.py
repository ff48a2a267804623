"""DataLoader: batches of one call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import ipu_exec as poptorch
from ipu_exec import (
    AsynchronousDataAccessor,
    DataLoader,
    DataLoaderMode,
    Error,
    Options,
    SharingStrategy,
)
from ipu_exec.accessor import _interrupts_later, strategy_of
from ipu_exec.base.user_tracebacks import warn_once
from tests import forked
from tests.paths import ROOT


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
    opts = Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    return opts


def test_a_batch_fills_a_call_and_the_rest_is_dropped() -> None:
    loader = DataLoader(options(), Numbers(50), batch_size=2)
    assert loader.combinedBatchSize == 2 * 2 * 3 * 2
    assert [batch.tolist() for batch in loader] == [list(range(24)), list(range(24, 48))]
    assert len(loader) == 2


def test_grouped_replicas_count_once() -> None:
    opts = options(1, 1, 4).inputReplicaGrouping(4, poptorch.CommGroupType.Consecutive)
    assert DataLoader(opts, Numbers(9), batch_size=3).combinedBatchSize == 3


def test_torchs_arguments_are_taken() -> None:
    loader = DataLoader(
        options(),
        Numbers(24),
        batch_size=1,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        collate_fn=lambda items: torch.stack(items) * 10,
        num_workers=0,
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
    for part in (
        "23 samples",
        "combined batch of 24",
        "deviceIterations 2",
        "gradientAccumulation 3",
        "replicas 2",
    ):
        assert part in str(raised.value)


def test_a_remainder_that_is_not_dropped_is_a_smaller_batch_unless_it_is_padded() -> None:
    loader = DataLoader(options(), Numbers(50), batch_size=2, drop_last=False)
    assert [len(batch) for batch in loader] == [24, 24, 2]

    def pad(samples: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([*samples, *[torch.tensor(-1)] * (24 - len(samples))])

    loader = DataLoader(options(), Numbers(50), batch_size=2, drop_last=False, collate_fn=pad)
    assert [len(batch) for batch in loader] == [24, 24, 24]


def test_each_process_gets_its_own_part() -> None:
    parts = []
    for process in range(2):
        opts = options(1, 1, 1)
        opts.Distributed.configureProcessId(process, 2)
        parts.append([int(value) for value in DataLoader(opts, Numbers(9))])
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7]]


def shuffled(process: int, processes: int, samples: int, batch: int) -> DataLoader:
    opts = options(1, 1, 1).randomSeed(42)
    opts.Distributed.configureProcessId(process, processes)
    return DataLoader(opts, Numbers(samples), batch_size=batch, shuffle=True)


def test_processes_shuffle_the_whole_dataset_together_and_anew_each_epoch() -> None:
    loaders = [shuffled(process, 3, 100, 4) for process in range(3)]
    epochs = [[torch.cat(list(loader)).tolist() for loader in loaders] for _ in range(2)]
    for parts in epochs:
        assert [len(part) for part in parts] == [32] * 3
        assert len(set().union(*parts)) == 96
    assert set(epochs[0][0]) != set(epochs[1][0])
    assert set().union(*epochs[0], *epochs[1]) == set(
        range(100)
    )  # what the first left over comes in the second
    opts = options(1, 1, 1)
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(Error, match=r"must set poptorch\.Options\.randomSeed"):
        DataLoader(opts, Numbers(9), shuffle=True)


def test_parts_of_processes_are_whole_batches_one_after_the_other() -> None:
    opts = options(1, 1, 1)
    opts.Distributed.configureProcessId(1, 3)
    assert [batch.tolist()[0] for batch in DataLoader(opts, Numbers(100), batch_size=4)] == list(
        range(32, 64, 4)
    )


def test_an_iterable_dataset_is_not_split_silently() -> None:
    opts = options(1, 1, 1)
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(Error, match="auto_distributed_partitioning=False"):
        DataLoader(opts, Stream())


@pytest.mark.parametrize("size", [0, 1.5])
def test_a_batch_size_is_a_whole_number(size: Any) -> None:
    with pytest.raises(Error, match="batch_size"):
        DataLoader(options(), Numbers(50), batch_size=size)


def test_options_in_use_are_frozen() -> None:
    opts = options()
    DataLoader(opts, Numbers(50))
    with pytest.raises(Error, match="in use"):
        opts.deviceIterations(3)


# -- batch samplers ---


def pad(items: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([*items, *[torch.tensor(-1)] * (3 - len(items))])


def test_a_batch_sampler_gives_micro_batches_that_are_collated_each_and_joined() -> None:
    sampler = [[0, 1, 2], [3], [4, 5], [6, 7, 8], [9]]
    loader = DataLoader(options(2, 1, 1), Numbers(10), batch_sampler=sampler, collate_fn=pad)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, -1, -1], [4, 5, -1, 6, 7, 8]]
    assert len(loader) == 2
    rest = DataLoader(
        options(2, 1, 1), Numbers(10), batch_sampler=sampler, collate_fn=pad, drop_last=False
    )
    assert len(rest) == 3
    assert list(rest)[-1].tolist() == [9, -1, -1]


# -- asynchronous loading ---


class Labelled(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 25

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"data": torch.full((2,), float(index)), "label": torch.tensor([index])}


class Long(IterableDataset[torch.Tensor]):
    """Split over the workers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = torch.utils.data.get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (torch.tensor(i) for i in range(start, 21, step))


class Broken(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= self.count - 1:
            raise ValueError("the last is broken")
        return torch.tensor(index)


class Where(Dataset[torch.Tensor]):
    """The id of the process that makes the item."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        import os

        return torch.tensor(os.getpid())


@contextmanager
def closing(loader: Any) -> Iterator[Any]:
    try:
        yield loader
    finally:
        loader.terminate()


@pytest.mark.parametrize("mode", [DataLoaderMode.Async, DataLoaderMode.AsyncRebatched])
def test_asynchronous_modes_give_the_batches_of_the_synchronous(mode: DataLoaderMode) -> None:
    expected = list(DataLoader(options(2, 2, 1), Labelled(), batch_size=2))
    with closing(DataLoader(options(2, 2, 1), Labelled(), batch_size=2, mode=mode)) as loader:
        assert len(loader) == len(expected) == 3
        for _ in range(2):
            for batch, wanted in zip(loader, expected, strict=True):
                assert torch.equal(batch["data"], wanted["data"]) and torch.equal(
                    batch["label"], wanted["label"]
                )


def test_batches_are_made_by_another_process_and_an_iteration_can_be_broken_off() -> None:
    import os

    with closing(DataLoader(options(1, 1, 1), Where(), mode=DataLoaderMode.Async)) as loader:
        (first,) = next(iter(loader)).tolist()
        assert first != os.getpid()
        assert len(list(loader)) == 4
    with closing(AsynchronousDataAccessor(Numbers(10), buffer_size=2)) as accessor:
        assert len(accessor) == 10
        for value in accessor:
            if int(value) == 4:
                break
        assert [int(value) for value in accessor] == list(range(10))
        assert [int(value) for value in accessor] == list(range(10))


def test_a_forked_child_leaves_the_process_that_loads_to_its_parent() -> None:
    import os

    with closing(AsynchronousDataAccessor(Numbers(4), buffer_size=2)) as accessor:
        child = os.fork()
        if not child:
            accessor.terminate()  # as the end of Python does
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert [int(value) for value in accessor] == list(range(4))


def test_one_epoch_at_a_time_where_it_is_not_to_load_indefinitely() -> None:
    with closing(AsynchronousDataAccessor(Numbers(5), load_indefinitely=False)) as accessor:
        assert [int(value) for value in accessor] == list(range(5))
        time.sleep(0.3)
        assert accessor._items.qsize() == 0
        assert [int(value) for value in accessor] == list(range(5))


@pytest.mark.parametrize(("early", "held"), [(True, 3), (False, 0)])
def test_early_preload_fills_the_buffer_before_anyone_asks(early: bool, held: int) -> None:
    with closing(
        AsynchronousDataAccessor(Numbers(10), buffer_size=3, early_preload=early)
    ) as accessor:
        time.sleep(0.5)
        assert accessor._items.qsize() == held, (
            "besides the first, which was taken to see that it can be made"
        )
        assert [int(value) for value in accessor] == list(range(10))


def test_rebatching_drops_less_of_an_iterable_dataset() -> None:
    def values(mode: DataLoaderMode, **more: Any) -> list[int]:
        with closing(
            DataLoader(options(1, 1, 1), Long(), batch_size=4, num_workers=2, mode=mode, **more)
        ) as loader:
            batches = list(loader)
            assert more.get("drop_last") is False or all(len(batch) == 4 for batch in batches)
            return sorted(value for batch in batches for value in batch.tolist())

    assert len(values(DataLoaderMode.Async)) == 8 + 8, "11 and 10 samples in batches of 4"
    for size in (1, 3, None):
        assert len(values(DataLoaderMode.AsyncRebatched, rebatched_worker_size=size)) == 20
    assert values(DataLoaderMode.AsyncRebatched, drop_last=False) == list(range(21))


def test_a_batch_sampler_that_is_its_own_iterator_is_gone_through_once() -> None:
    """Lightning's records its batches, and starts again when asked for an iterator."""

    class Noting:
        def __init__(self) -> None:
            self.batches = [[0, 1], [2, 3], [4, 5], [6, 7]]

        def __iter__(self) -> Noting:
            self.left = iter(self.batches)
            return self

        def __next__(self) -> list[int]:
            return next(self.left)

        def __len__(self) -> int:
            return len(self.batches)

    loader = DataLoader(options(2, 1, 1), Numbers(8), batch_sampler=Noting())
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_is_for_the_asynchronous_modes_is_left_aside_in_the_other() -> None:
    """Applications hand it over in every mode ([EX, vision/cnns]; Hugging Face's
    IPUTrainer).
    """
    loader = DataLoader(
        options(1, 1, 1), Numbers(8), 4, async_options={"buffer_size": 2}, rebatched_worker_size=99
    )
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_dataset_that_fails_says_so_at_once_or_when_it_does() -> None:
    with pytest.raises(Error, match=r"worker thread failed to start[\s\S]*the last is broken"):
        AsynchronousDataAccessor(Broken(1))
    with closing(AsynchronousDataAccessor(Broken(3))) as accessor:
        values = iter(accessor)
        assert [int(next(values)), int(next(values))] == [0, 1]
        with pytest.raises(Error, match="the last is broken"):
            next(values)
        with pytest.raises(Error, match="terminated"):
            next(iter(accessor))


def test_the_traceback_of_a_dataset_is_in_the_error_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(Error, match=r"Traceback[\s\S]*the last is broken"):
        AsynchronousDataAccessor(Broken(1), sharing_strategy=SharingStrategy.Fork)
    assert "the last is broken" not in capfd.readouterr().err


def test_what_cannot_be_pickled_is_loaded_here_with_a_warning_or_by_a_fork() -> None:
    warn_once.cache_clear()
    settings: dict[str, Any] = {
        "collate_fn": lambda items: torch.stack(items) * 10,
        "mode": DataLoaderMode.Async,
    }
    with pytest.warns(UserWarning, match="in this process, not asynchronously"):
        loader = DataLoader(options(1, 1, 1), Numbers(3), **settings)
    assert [int(batch) for batch in loader] == [0, 10, 20]
    forked = DataLoader(
        options(1, 1, 1),
        Numbers(3),
        async_options={"sharing_strategy": SharingStrategy.Fork},
        **settings,
    )
    with closing(forked):
        assert [int(batch) for batch in forked] == [0, 10, 20]
    with pytest.raises(Error, match="top of a module"):
        AsynchronousDataAccessor([lambda: 1])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: AsynchronousDataAccessor(Numbers(1), buffer_size=0), "buffer_size"),
    ],
)
def test_wrong_arguments_of_asynchronous_loading_are_errors(make: Any, says: str) -> None:
    with pytest.raises(Error, match=says):
        make()


def test_a_sharing_strategy_may_be_named_and_an_unknown_one_warns() -> None:
    """As of a YAML file; PopTorch takes whatever it is given."""
    names = ("Fork", "fork", SharingStrategy.Fork)
    assert {strategy_of(one) for one in names} == {SharingStrategy.Fork}
    with pytest.warns(UserWarning, match="'mmap' is not one of SharedMemory, FileSystem"):
        assert strategy_of("mmap") is SharingStrategy.ForkServer


@pytest.mark.slow
def test_a_script_under_ipu_run_loads_asynchronously_and_ends(tmp_path: Path) -> None:
    """The dataset is a class of the script, so that the process that loads imports poptorch too."""
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        import poptorch, torch

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 6
            def __getitem__(self, index):
                assert poptorch.OutputMode.All == 2
                return torch.full((2,), float(index))

        if __name__ == "__main__":
            opts = poptorch.Options().deviceIterations(2).showCompilationProgressBar(False)
            mode = poptorch.DataLoaderMode.Async
            loader = poptorch.DataLoader(opts, Data(), mode=mode, num_workers=1)
            model = poptorch.inferenceModel(torch.nn.ReLU(), opts)
            print(*(int(model(batch).sum()) for batch in loader))
        """)
    )
    root = ROOT
    command = [sys.executable, "-m", "ipu_exec.commands.run", str(tmp_path / "script.py")]
    process = forked.run(command, cwd=root)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["2", "10", "18"]


def test_a_script_that_ends_in_the_middle_of_an_epoch_leaves_no_tracebacks(tmp_path: Path) -> None:
    """The loader's own workers share files with the script, and have to end before those go."""
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        import poptorch, torch

        if __name__ == "__main__":
            data = torch.utils.data.TensorDataset(torch.ones(400, 2))
            mode, options = poptorch.DataLoaderMode.Async, poptorch.Options()
            loader = poptorch.DataLoader(options, data, num_workers=2, mode=mode)
            print(next(iter(loader))[0].tolist())
        """)
    )
    root = ROOT
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "ipu_exec.commands.run",
        str(tmp_path / "script.py"),
    ]
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=root, check=False
    )
    assert (process.returncode, process.stdout) == (0, "[[1.0, 1.0]]\n")
    # all that is said is that the script wrapped no model
    said = process.stderr.split("wrapped no model")
    assert len(said) == 2 and said[0].startswith("ipu-run: ") and "Traceback" not in said[1]


def test_an_interrupt_while_a_process_starts_waits_until_it_can_be_ended() -> None:
    reached: list[bool] = []

    def start() -> None:
        with _interrupts_later():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_server_that_still_imports_ends_without_a_traceback() -> None:
    script = "import ipuscope.quiet_start, os, signal; os.kill(os.getpid(), signal.SIGINT); 1 / 0"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=ROOT)
    assert (process.returncode, process.stderr) == (130, b"")
