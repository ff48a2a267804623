"""What two workers leave of a plan's time, by the CPU time of each process.

    python -m benchmarks.plan --two-workers bert-large

By CPU time, since a loaded machine's clock says little: alone all of it is this process'. With two
workers this process' own time, and that of each task in a worker, are laid out as if each process
had a core: a task begins when it was given and a worker is free, and this process goes on when the
result that it waits for is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.plan.public import PUBLIC
from ipu_exec.planning import first_call_plan
from ipu_exec.planning.first_call_plan import Asked, plan_call
from ipu_exec.planning.workers import Processes, Task
from ipu_exec.session.call_plan import FirstCall
from ipuscope.planner.mappings import Plan

# BERT-Large over 8 IPUs as `examples.bert_pretraining --large --half` has it, planned onto 16
BERT_LARGE = replace(
    PUBLIC["bert-large-16"],
    name="BERT-Large, 64 sequences",
    layers=(3,) * 8,
    micro_batch=1,
    accumulation=64,
    replicas=1,
    proportions=(0.2,) * 8,
    off_chip=False,
    in_parts=False,
)
_UTIME, _STIME = 11, 12  # of /proc/PID/stat, behind the name
_WORKERS = 2


@dataclass(frozen=True)
class Spent:
    """Seconds of a plan: CPU time laid out on a core for each process, and the clock's.

    ``cpu``: of all processes together.
    """

    path: float
    cpu: float
    clock: float


def timed(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    """The function's result, and the CPU seconds that it took."""
    began = time.process_time()
    result = function(*arguments)
    return result, time.process_time() - began


class Counted(Processes):
    """Worker processes whose tasks' CPU time is counted, and when each is given and waited for."""

    def __init__(self, count: int) -> None:
        self._began = time.process_time()
        self._events: list[tuple[str, float, Future[Any]]] = []
        super().__init__(count)

    def _submit(self, task: Task) -> Future[Any]:
        future = super()._submit(
            replace(task, function=timed, arguments=(task.function, task.arguments))
        )
        self._events.append(("given", self._now(), future))
        return future

    def _value(self, task: Task, future: Future[Any]) -> Any:
        self._events.append(("waited for", self._now(), future))
        return super()._value(task, future)[0]

    def _now(self) -> float:
        return time.process_time() - self._began

    def spent(self, clock: float) -> Spent:
        """The CPU time of all that was asked for, laid out."""
        own = self._now()
        start = _cpu_of(forkserver._forkserver._forkserver_pid)
        free, ends = [start] * self.count, dict[Future[Any], float]()
        waited, of_tasks = 0.0, 0.0
        for what, at, future in self._events:
            if what == "waited for":
                waited += max(0.0, ends[future] - at - waited)
                continue
            seconds = _seconds(future)
            of_tasks += seconds
            free.sort()
            free[0] = ends[future] = max(free[0], at + waited) + seconds
        return Spent(own + waited, own + of_tasks + start, clock)


def _seconds(future: Future[Any]) -> float:
    """The CPU time of a task; what was begun ahead and never asked for may not have ended."""
    ended = future.done() and not future.cancelled() and future.exception() is None
    return float(future.result()[1]) if ended else 0.0


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")


def measure(call: Callable[[], FirstCall], ipus: int) -> tuple[Spent, Spent, Plan]:
    """A plan alone, and with two workers; and the plan, which has to be the same."""
    began, clock = time.process_time(), time.monotonic()
    alone = plan_call(call(), Asked(ipus, keep=False))
    cpu = time.process_time() - began
    by_itself = Spent(cpu, cpu, time.monotonic() - clock)
    clock = time.monotonic()
    workers = Counted(_WORKERS)
    with patch.object(first_call_plan, "workers_of", lambda count, ray: workers):
        together = plan_call(call(), Asked(ipus, keep=False, workers=_WORKERS))
    assert alone.candidates == together.candidates
    return by_itself, workers.spent(time.monotonic() - clock), alone
