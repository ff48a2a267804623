"""``AsynchronousDataAccessor``: batches created by a process of their own while the model runs."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import queue
import random
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ipu_exec.base.stand_in import STAND_IN_VARIABLE, stand_in
from ipu_exec.base.structures import learn
from ipu_exec.base.user_tracebacks import warn_once
from ipu_exec.enums import SharingStrategy
from ipu_exec.errors import Error, UsageError

logger = logging.getLogger("ipu_exec")

_DATA, _END, _ERROR = range(3)
_POLL_SECONDS = 0.5  # how soon a side notices that the other is gone


class AsynchronousDataAccessor:
    """Iterates over ``dataset``, any iterable, in another process, ``buffer_size`` items ahead.

    The process starts at once and its first item is awaited: an Error if the dataset cannot be
    iterated. The others are created when the first iteration begins, or at once with
    ``early_preload``; after the dataset's end it continues with the next epoch
    (``load_indefinitely``) or waits for that to begin. After a broken-off iteration the next
    starts anew. Random numbers there are seeded from this process's PyTorch generator.

    ``sharing_strategy``: Fork forks this process. The others fork a clean server process, so that
    the dataset is pickled; FileSystem passes tensors in files rather than shared memory.
    ``miss_sleep_time_in_ms`` has no effect: a waiting process is woken. ``rebatched_size``: items
    are joined, and split along dimension 0, to that size.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
    ) -> None:
        if isinstance(buffer_size, bool) or not isinstance(buffer_size, int) or buffer_size < 1:
            raise UsageError(
                "AsynchronousDataAccessor: buffer_size is a whole number above 0, not"
                f" {buffer_size!r}"
            )
        sharing_strategy = strategy_of(sharing_strategy)
        self._dataset = dataset
        self._epoch = 0  # whose items are taken; those of earlier ones are thrown away
        self._begun = False  # whether an item of it was taken
        self._first: tuple[int, int, Any] | None = None
        if sharing_strategy is SharingStrategy.FileSystem:
            torch.multiprocessing.set_sharing_strategy("file_system")
        way = "fork" if sharing_strategy is SharingStrategy.Fork else "forkserver"
        context: Any = torch.multiprocessing.get_context(way)
        if sharing_strategy is not SharingStrategy.Fork:
            context.set_forkserver_preload(["ipuscope.quiet_start", __name__])
        self._items = context.Queue(buffer_size)
        # An epoch that the worker may fill the buffer with; -1: only the first item of the first.
        self._wanted: Synchronized[int] = context.Value("q", 0 if early_preload else -1)
        served = dataset
        if rebatched_size is not None:
            served = Rebatched(dataset, rebatched_size, drop_last=True)
        seed = int(torch.empty((), dtype=torch.int64).random_())
        method = torch.multiprocessing.get_start_method()
        job = _Job(served, load_indefinitely, seed, sharing_strategy.value, method)
        # Not a daemon: a data loader in it may have workers of its own.
        self._worker = context.Process(
            target=_work, args=(job, self._items, self._wanted), daemon=False
        )
        with _interrupts_later():
            try:
                self._worker.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise UsageError(
                    f"the dataset cannot be sent to the process that loads it: {error}. Define"
                    " classes and functions of it at the top of a module, or use"
                    " SharingStrategy.Fork"
                ) from error
            self._closer = weakref.finalize(self, _end, os.getpid(), self._worker, self._items)
            atexit.register(self._closer)  # before multiprocessing waits for its processes
        logger.debug("AsynchronousDataAccessor worker process: %s", self._worker.pid)
        try:
            self._first = self._next_of_queue()
            if self._first[1] == _ERROR:
                raise Error(f"worker thread failed to start: {self._first[2]}")
        except Error:
            self.terminate()
            raise

    def terminate(self) -> None:
        """End the process. The accessor cannot be iterated any more."""
        self._closer()

    def __len__(self) -> int:
        if not isinstance(self._dataset, Sized):
            raise TypeError(f"{type(self._dataset).__name__!r} has no len()")
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        if self._begun:  # broken off: the worker drops what is left of the epoch
            self._epoch += 1
            self._begun = False
        with self._wanted.get_lock():
            self._wanted.value = max(self._wanted.value, self._epoch)
        return self

    def __next__(self) -> Any:
        while True:
            epoch, kind, item = self._first or self._next_of_queue()
            self._first = None
            if epoch < self._epoch:
                continue
            if kind == _ERROR:
                self.terminate()
                raise Error(f"the process that loads the data failed: {item}")
            if kind == _END:
                self._epoch += 1
                self._begun = False
                raise StopIteration
            self._begun = True
            return item

    def _next_of_queue(self) -> tuple[int, int, Any]:
        if not self._closer.alive:
            raise Error("this AsynchronousDataAccessor was terminated; make another")
        while True:
            try:
                return self._items.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if not self._worker.is_alive():
                    code = self._worker.exitcode
                    self.terminate()
                    raise Error(
                        "worker thread failed to start, or was ended: the process that loads the"
                        f" data is gone (exit code {code}). A script that loads data asynchronously"
                        " guards its main part by if __name__ == '__main__':"
                    ) from None


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C inside takes effect at its end: a process that has started has someone to end it."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    signal.signal(signal.SIGINT, lambda *given: came.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])


def _end(owner: int, worker: Any, items: Any) -> None:
    if os.getpid() != owner:  # a forked child: the worker is its parent's
        return
    worker.terminate()
    worker.join(5)
    if worker.is_alive():
        worker.kill()
    items.cancel_join_thread()
    items.close()


class Rebatched:
    """The nested items of ``dataset``, joined and split along dimension 0 to ``size`` samples."""

    def __init__(self, dataset: Iterable[Any], size: int, drop_last: bool) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UsageError(f"rebatched size is a whole number above 0, not {size!r}")
        self._dataset, self._size, self._drop_last = dataset, size, drop_last

    def __iter__(self) -> Iterator[Any]:
        waiting: list[list[torch.Tensor]] = []
        samples = 0
        structure = None
        for item in self._dataset:
            learn(item)
            leaves, structure = tree_flatten(item)
            waiting.append(leaves)
            samples += len(leaves[0])
            while samples >= self._size:
                joined = [
                    torch.cat(column) if len(column) > 1 else column[0]
                    for column in zip(*waiting, strict=True)
                ]
                yield tree_unflatten([leaf[: self._size] for leaf in joined], structure)
                samples -= self._size
                waiting = [[leaf[self._size :] for leaf in joined]] if samples else []
        if samples and not self._drop_last and structure is not None:
            yield tree_unflatten(
                [torch.cat(column) for column in zip(*waiting, strict=True)], structure
            )


# -- in the other process ---


@dataclass(frozen=True)
class _Job:
    dataset: Any
    load_indefinitely: bool
    seed: int
    strategy: str
    start_method: str  # of this process, and so of a data loader's workers in the other


def _work(job: _Job, items: Any, wanted: Synchronized[int]) -> None:
    """Put (epoch, kind, item) into the queue until the process or its parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    # `_end` sends this: leave in order, so that a data loader's workers end before their shared
    # files
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    items.cancel_join_thread()  # and without waiting for someone to take what was put
    if job.strategy == SharingStrategy.FileSystem.value:
        torch.multiprocessing.set_sharing_strategy("file_system")
    torch.multiprocessing.set_start_method(job.start_method, force=True)
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    random.seed(job.seed)
    np.random.seed(job.seed % 2**32)
    epoch = 0
    first = True
    with contextlib.suppress(_ParentGoneError):
        while True:
            try:
                for item in _iterate(job.dataset):
                    if wanted.value > epoch:
                        break
                    _put(items, (epoch, _DATA, item), wanted)
                    if first:
                        first = False
                        _wait(wanted, 0)
                else:
                    _put(items, (epoch, _END, None), wanted)
            except _ParentGoneError:
                raise
            except Exception:
                _put(items, (epoch, _ERROR, traceback.format_exc()), wanted)
                # tensors that were put can be taken while this process lives
                _wait(wanted, sys.maxsize)
            if not job.load_indefinitely:
                _wait(wanted, epoch + 1)
            epoch = max(epoch + 1, wanted.value)


class _ParentGoneError(Exception):
    pass


def _iterate(dataset: Any) -> Iterator[Any]:
    if hasattr(dataset, "__iter__") or not isinstance(dataset, Sized):
        return iter(dataset)
    return (dataset[index] for index in range(len(dataset)))  # type: ignore[index]


def _put(items: Any, message: tuple[int, int, Any], wanted: Synchronized[int]) -> None:
    while True:
        try:
            items.put(message, timeout=_POLL_SECONDS)
            return
        except queue.Full:
            _check_parent()
            if wanted.value > message[0]:
                return  # nobody wants this epoch any more


def strategy_of(given: object) -> SharingStrategy:
    """The strategy, by itself, name or value (YAML); otherwise ForkServer, with a warning."""
    for strategy in SharingStrategy:
        if given in (strategy, strategy.name, strategy.value):
            return strategy
    names = ", ".join(strategy.name for strategy in SharingStrategy)
    warn_once(f"sharing_strategy {given!r} is not one of {names}: ForkServer is taken")
    return SharingStrategy.ForkServer


def _wait(wanted: Synchronized[int], epoch: int) -> None:
    polled = 0
    while wanted.value < epoch:
        time.sleep(0.002)
        polled += 1
        if polled % 250 == 0:
            _check_parent()


def _check_parent() -> None:
    parent = parent_process()
    if parent is not None and not parent.is_alive():
        raise _ParentGoneError


# What follows is for the server process, which loads this module before it loads the script.
if os.environ.get(STAND_IN_VARIABLE):
    stand_in()
if "ipuscope.quiet_start" in sys.modules:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a user's processes are theirs
