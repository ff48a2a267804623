"""What two workers leave of a plan's time, by the CPU time of each process.

    python -m benchmarks.plan --two-workers vit-16

By CPU time, since a loaded machine's clock says little: alone all of it is this process', with two
workers the plan takes at least as long as this process and the busier worker together.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from ipu_exec.planning import asking
from ipu_exec.planning.asking import Asked, plan_call
from ipu_exec.planning.workers import Processes
from ipu_exec.session.first_call import FirstCall

_UTIME, _STIME = 11, 12  # of /proc/PID/stat, behind the name


class Counted(Processes):
    """Worker processes whose CPU time is read before they end."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.seconds: list[float] = []

    def close(self) -> None:
        """Read the CPU time of each worker, and end them."""
        pids = list(self._pool._processes) if self._pool is not None else []
        self.seconds = sorted((_cpu_of(pid) for pid in pids), reverse=True)
        super().close()


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")


def measure(call: Callable[[], FirstCall], ipus: int) -> tuple[float, float, list[float]]:
    """CPU seconds of a plan alone; with two workers those of this process, and of each worker."""
    began = time.process_time()
    alone = plan_call(call(), Asked(ipus, keep=False))
    middle = time.process_time()
    workers = Counted(2)
    with patch.object(asking, "workers_of", lambda count, ray: workers):
        together = plan_call(call(), Asked(ipus, keep=False, workers=2))
    assert [one.mapping for one in alone.candidates] == [one.mapping for one in together.candidates]
    return middle - began, time.process_time() - middle, workers.seconds
