"""Where compiles run: in this process, in worker processes, or on a Ray cluster.

Tasks are pure functions of picklable arguments. A task whose worker was killed is tried again.
Results come in the order of the tasks, whatever the order in which they finish.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from ipu_exec.errors import Error

_TRIES = 3
LOCAL = "local"
WITHOUT_RAY = "--ray takes Ray, which is not installed here: pip install 'ipuscope[cluster]'"

Task = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Known:
    """In place of a task: its result, which is there already."""

    result: Any


class Workers(Protocol):
    """Runs tasks somewhere."""

    def run(self, tasks: Iterable[Task | Known]) -> Iterator[Any]:
        """The result of each task, in order; a task's exception ends it.

        Where there are workers, every task has begun, or waits for one, when this returns.
        """

    def close(self) -> None:
        """Release the workers."""


class Here:
    """This process, running one task at a time when its result is asked for."""

    def run(self, tasks: Iterable[Task | Known]) -> Iterator[Any]:
        """Run them one after another."""
        for task in tasks:
            yield task.result if isinstance(task, Known) else _call(*task)

    def close(self) -> None:
        """Nothing to release."""


class Processes:
    """Worker processes on this machine. They import the engine, and never the user's script."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def run(self, tasks: Iterable[Task | Known]) -> Iterator[Any]:
        """Run all at once; tasks of a killed worker are repeated."""
        waiting = [
            task if isinstance(task, Known) else (task, self._submit(task)) for task in tasks
        ]
        return map(self._result, waiting)

    def _result(self, waiting: Known | tuple[Task, Future[Any]]) -> Any:
        if isinstance(waiting, Known):
            return waiting.result
        task, future = waiting
        for _ in range(_TRIES - 1):
            try:
                return future.result()
            except (BrokenProcessPool, CancelledError):
                future = self._submit(task)
        try:
            return future.result()
        except (BrokenProcessPool, CancelledError) as error:
            raise Error(
                f"a worker process died {_TRIES} times over one compile: is there too little memory"
                " for so many? --workers 1 compiles one at a time"
            ) from error

    def _submit(self, task: Task) -> Future[Any]:
        with _without_main():
            if self._pool is None:
                spawn = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.count, spawn, initializer=_begin)
            try:
                return self._pool.submit(task[0], *task[1])
            except BrokenProcessPool:
                self._anew()
                return self._submit(task)

    def _anew(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None

    def close(self) -> None:
        """End the processes; waiting tasks are not started."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """Compute on one core in this worker: there are as many workers as cores to be used.

    Ctrl-C, which reaches workers too, ends it without a traceback.
    """
    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)


@contextmanager
def _without_main() -> Iterator[None]:
    """Inside, a new process does not run the user's script to set up its ``__main__``."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class Cluster:
    """Ray's workers, on a cluster or ("local") on this machine. Ray does all the rest."""

    def __init__(self, address: str, count: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise Error(WITHOUT_RAY) from None
        self._ray = ray
        here = os.pathsep.join(path for path in sys.path if path)
        ray.init(
            address=None if address == LOCAL else address,
            num_cpus=count if address == LOCAL else None,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": {"PYTHONPATH": here, "OMP_NUM_THREADS": "1"}},
        )

    def run(self, tasks: Iterable[Task | Known]) -> Iterator[Any]:
        """Run all at once; Ray repeats the tasks of a killed worker."""
        remote = self._ray.remote(max_retries=_TRIES)(_call)
        waiting = [task if isinstance(task, Known) else remote.remote(*task) for task in tasks]
        return map(self._result, waiting)

    def _result(self, waiting: Any) -> Any:
        if isinstance(waiting, Known):
            return waiting.result
        try:
            return self._ray.get(waiting)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def workers_of(count: int | None, ray: str | None) -> Workers:
    """``count`` processes (1: this one), or Ray at an address."""
    if ray is not None:
        return Cluster(ray, count)
    return Processes(count) if count is not None and count > 1 else Here()
