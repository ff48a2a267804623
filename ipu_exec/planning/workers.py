"""Where compiles run: in this process, in worker processes, or on a Ray cluster.

Tasks are pure functions of picklable arguments. A task whose worker was killed is tried again.
Results come in the order of the tasks, whatever the order in which they finish.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from types import ModuleType
from typing import Any, Protocol, cast

from ipu_exec.errors import Error
from ipuscope.planner.mappings.search_state import EngineLost

_TRIES = 3
_PATIENCE = 10  # seconds in which no task ends, after which a cluster's head is looked for
_SERVER = "forkserver"
LOCAL = "local"
WITHOUT_RAY = "--ray needs Ray, which is not installed here: pip install 'ipuscope[cluster]'"


@dataclass(frozen=True)
class Task:
    """A function and its arguments; ``name``: of its result, where it may be begun ahead."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    name: str = ""


@dataclass(frozen=True)
class Done:
    """In place of a task: its result, which is there already."""

    result: Any


class Workers(Protocol):
    """Runs tasks somewhere."""

    def run(self, tasks: Iterable[Task | Done]) -> Iterator[Any]:
        """The result of each task, in order; a task's exception ends it.

        Where there are workers, every task has begun, or waits for one, when this returns.
        """

    def ahead(self, tasks: Iterator[Task]) -> None:
        """What may be begun while a worker would be idle, in place of what was said before.

        `run` takes the result of a task of that name; nobody may ever ask for it.
        """

    def close(self) -> None:
        """Release the workers."""


class Here:
    """This process, running one task at a time when its result is asked for."""

    def run(self, tasks: Iterable[Task | Done]) -> Iterator[Any]:
        """Run them one after another."""
        for task in tasks:
            yield task.result if isinstance(task, Done) else _call(task.function, task.arguments)

    def ahead(self, tasks: Iterator[Task]) -> None:
        """Nobody is idle here."""

    def close(self) -> None:
        """Nothing to release."""


class _Pool:
    """Workers that are given tasks; while this process waits, idle ones begin what may be next."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._running: set[Future[Any]] = set()
        self._begun: dict[str, Future[Any]] = {}  # ahead
        self._next: Iterator[Task] = iter(())

    def run(self, tasks: Iterable[Task | Done]) -> Iterator[Any]:
        """Run all at once; tasks of a killed worker are repeated."""
        waiting = [task if isinstance(task, Done) else (task, self._future(task)) for task in tasks]
        return map(self._result, waiting)

    def ahead(self, tasks: Iterator[Task]) -> None:
        """Begin these, in order, whenever a worker is idle."""
        self._next = tasks

    def _future(self, task: Task) -> Future[Any]:
        return self._begun.pop(task.name, None) or self._started(task)

    def _started(self, task: Task) -> Future[Any]:
        future = self._submit(task)
        self._running.add(future)
        return future

    def _submit(self, task: Task) -> Future[Any]:
        raise NotImplementedError

    def _result(self, waiting: Done | tuple[Task, Future[Any]]) -> Any:
        if isinstance(waiting, Done):
            return waiting.result
        task, future = waiting
        self._wait(future)
        return self._value(task, future)

    def _value(self, task: Task, future: Future[Any]) -> Any:
        return future.result()

    def _wait(self, future: Future[Any]) -> None:
        """Wait for a result, and begin what may be next while a worker is idle."""
        while not future.done():
            self._running = {one for one in self._running if not one.done()}
            idle = len(self._running) < self.count
            task = next(self._next, None) if idle else None
            if task is None:
                if not wait({*self._running, future}, _PATIENCE, FIRST_COMPLETED).done:
                    self._look()
            elif task.name not in self._begun:
                self._begun[task.name] = self._started(task)

    def _look(self) -> None:
        """EngineLost where who hands out the tasks is gone."""


class Processes(_Pool):
    """Worker processes on this machine. They import the engine, and never the user's script."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._pool: ProcessPoolExecutor | None = None
        # what a worker that is ended in the middle of a compile leaves
        self._scratch = tempfile.TemporaryDirectory(prefix="ipu-plan-")
        begin_server()

    def _value(self, task: Task, future: Future[Any]) -> Any:
        for _ in range(_TRIES - 1):
            try:
                return future.result()
            except (BrokenProcessPool, CancelledError):
                future = self._started(task)
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
                begin = partial(_begin, self._scratch.name)
                self._pool = ProcessPoolExecutor(self.count, _context(), initializer=begin)
            try:
                return self._pool.submit(task.function, *task.arguments)
            except BrokenProcessPool:
                self._anew()
                return self._submit(task)

    def _anew(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None

    def close(self) -> None:
        """End the processes, and with them what nobody asked for in the end."""
        if self._pool is not None:
            self._end(self._pool)
        self._scratch.cleanup()

    def _end(self, pool: ProcessPoolExecutor) -> None:
        processes, results = list(pool._processes.values()), cast(Any, pool)._result_queue
        pool.shutdown(wait=False, cancel_futures=True)
        if not all(future.done() for future in self._running):
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()
            # Who was ended while it sent a result left half of one, which the pool's thread reads
            # for ever: until nobody can send the rest.
            results._writer.close()
        pool.shutdown(wait=True)


def _context() -> BaseContext:
    """Workers are forked from a server that has imported the engine, where the system can."""
    forks = _SERVER in multiprocessing.get_all_start_methods()
    return multiprocessing.get_context(_SERVER if forks else "spawn")


def begin_server() -> None:
    """Have the process that workers are forked from import the engine, while others go on."""
    context = _context()
    if context.get_start_method() == _SERVER:
        context.set_forkserver_preload(["ipuscope.quiet_start", "ipu_exec.planning.engine"])
        with _without_main():
            forkserver.ensure_running()


def _begin(scratch: str) -> None:
    """Compute on one core in this worker: there are as many workers as cores to be used."""
    # Temporary files go to `scratch`, which outlives it. Ctrl-C, which reaches workers too, ends it
    # without a traceback.
    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    tempfile.tempdir = scratch
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


class Cluster(_Pool):
    """Ray's workers, on a cluster or ("local") on this machine. Ray does all the rest."""

    def __init__(self, address: str, count: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise Error(WITHOUT_RAY) from None
        self._ray = ray
        # without its head Ray would end this process after a minute; `_look` ends the plan instead
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")
        here = os.pathsep.join(path for path in sys.path if path)
        with self._or_lost(f"Ray does not start, or is not at {address}"):
            ray.init(
                address=address,  # Ray, too, calls a new one on this machine "local"
                num_cpus=count if address == LOCAL else None,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": {"PYTHONPATH": here, "OMP_NUM_THREADS": "1"}},
            )
            super().__init__(int(ray.cluster_resources().get("CPU", 1)))
            host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
            self._head = host.strip("[]"), int(port)
        # Ray repeats the tasks of a killed worker
        self._remote = ray.remote(max_retries=_TRIES)(_call)

    def _submit(self, task: Task) -> Future[Any]:
        with self._or_lost():
            future: Future[Any] = self._remote.remote(task.function, task.arguments).future()
        return future

    def _value(self, task: Task, future: Future[Any]) -> Any:
        with self._or_lost():
            try:
                return future.result()
            except self._ray.exceptions.RayTaskError as error:
                cause = error.cause
        raise cause

    def _look(self) -> None:
        with self._or_lost("Ray's head node is gone"):
            for tries in range(1, _TRIES + 1):
                try:
                    socket.create_connection(self._head, _PATIENCE).close()
                    break
                except OSError:
                    if tries == _TRIES:
                        raise
                    time.sleep(_PATIENCE)

    @contextmanager
    def _or_lost(self, what: str = "Ray's workers are gone") -> Iterator[None]:
        """EngineLost where the cluster fails, not a task of ours: one line instead of its own."""
        try:
            yield
        except Exception as error:  # Ray raises bare ones, too: a node that starts too slowly
            first = next(filter(None, str(error).splitlines()), type(error).__name__)
            raise EngineLost(
                f"{what} ({first[:200]}). Look at `ray status`; --workers N compiles here without"
                " Ray, and begins with what was compiled"
            ) from error

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        with suppress(Exception):  # it may be gone
            self._ray.shutdown()


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


def workers_of(count: int | None, ray: str | None) -> Workers:
    """``count`` processes (1: this one), or Ray at an address."""
    if ray is not None:
        return Cluster(ray, count)
    return Processes(count) if count is not None and count > 1 else Here()
