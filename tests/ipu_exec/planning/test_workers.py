"""Where compiles run makes no difference; a worker that dies costs another try."""

from __future__ import annotations

import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plan.brute_force import Case
from ipu_exec.errors import Error
from ipu_exec.planning.workers import Cluster, Done, Here, Processes, Task
from ipuscope.planner.mappings import Plan
from ipuscope.planner.mappings.search_state import EngineLost

CASE = Case((64, 128, 64), 8, (2, 4), 2, "sgd")


def square(number: int) -> int:
    return number * number


def killed_once(number: int, mark: str) -> int:
    """Kill the worker that has the first task, the first time."""
    path = Path(mark)
    if number == 0 and not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number + 1


def always_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def two() -> Iterator[Processes]:
    workers = Processes(2)
    yield workers
    workers.close()


def test_results_come_in_the_order_of_the_tasks(two: Processes) -> None:
    tasks = [Task(square, (number,)) for number in range(5)]
    assert list(two.run(tasks)) == list(Here().run(tasks)) == [0, 1, 4, 9, 16]


def test_a_killed_worker_costs_another_try(two: Processes, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    assert list(two.run([Task(killed_once, (n, mark)) for n in range(3)])) == [1, 2, 3]


def test_a_task_that_kills_every_worker_is_an_error(two: Processes) -> None:
    with pytest.raises(Error, match="died 3 times"):
        list(two.run([Task(always_killed, ())]))


def written_slowly(mark: str) -> None:
    """Say which temporary folder this is in, and do not end."""
    with tempfile.TemporaryDirectory() as folder:
        Path(f"{mark}.part").write_text(folder)
        os.replace(f"{mark}.part", mark)
        time.sleep(600)


def waited_for(mark: str) -> None:
    while not Path(mark).exists():
        time.sleep(0.05)


def test_a_worker_that_is_ended_leaves_no_files(tmp_path: Path) -> None:
    """What was begun ahead is ended in the middle of a compile when a plan is found."""
    mark = tmp_path / "mark"
    workers = Processes(2)
    workers.ahead(iter([Task(written_slowly, (str(mark),), "slow")]))
    assert list(workers.run([Task(waited_for, (str(mark),))])) == [None]
    folder = Path(mark.read_text())
    assert folder.is_dir()
    workers.close()
    assert not folder.parent.exists()
    assert folder.parent != Path(tempfile.gettempdir())


def same(one: Plan, other: Plan) -> bool:
    """Whether two plans are equal apart from the time they took."""
    return (one.candidates, one.why, one.left_out) == (other.candidates, other.why, other.left_out)


def test_two_workers_give_the_answer_of_one() -> None:
    assert same(CASE.plan(workers=2), CASE.plan())


def test_ray_gives_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    cluster = Cluster("local", 2)
    try:
        mark = str(tmp_path / "mark")
        assert list(cluster.run([Task(killed_once, (n, mark)) for n in range(3)])) == [1, 2, 3]
        # a killed head answers no more, and of what runs comes nothing, not even an error
        cluster._look()
        monkeypatch.setattr("ipu_exec.planning.workers._PATIENCE", 0.01)
        monkeypatch.setattr(cluster, "_head", ("127.0.0.1", 1))
        monkeypatch.setattr(cluster, "_submit", lambda task: Future())
        with pytest.raises(EngineLost, match=r"head node is gone .*--workers N"):
            list(cluster.run([Task(killed_once, (0, mark))]))
    finally:
        cluster.close()
    assert same(CASE.plan(ray="local", workers=2), CASE.plan())


def test_where_ray_is_not_one_line_says_so() -> None:
    pytest.importorskip("ray")
    with pytest.raises(EngineLost, match=r"is not at no:such:place .*--workers N compiles here"):
        Cluster("no:such:place")


def test_lost_workers_end_a_search_with_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = Here.run, []

    def lost(self: Here, tasks: Iterable[Task | Done]) -> Iterator[Any]:
        calls.append(0)
        if len(calls) == 3:
            raise EngineLost("the workers are gone")
        return run(self, tasks)

    whole = CASE.plan()
    monkeypatch.setattr(Here, "run", lost)
    assert CASE.plan().stopped == "the workers are gone" and not whole.stopped
    calls[:] = [0, 0]
    with pytest.raises(Error, match="the workers are gone"):
        CASE.plan()


def count_of(path: str, seconds: float = 0.0) -> int:
    """How often it was called with this path, after so many seconds."""
    with open(path, "a") as calls:
        calls.write(".")
    time.sleep(seconds)
    return len(Path(path).read_text())


def test_what_is_begun_ahead_is_taken_once_asked_for(two: Processes, tmp_path: Path) -> None:
    foreseen, never = (str(tmp_path / name) for name in ("foreseen", "never"))
    two.ahead(
        iter([Task(count_of, (foreseen,), "foreseen"), Task(count_of, (never, 600.0), "never")])
    )
    assert list(two.run([Task(count_of, (str(tmp_path / "first"), 1.0))])) == [1]
    deadline = time.monotonic() + 60
    while not Path(never).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert Path(foreseen).read_text() == "." and Path(never).exists()
    assert list(two.run([Task(count_of, (foreseen,), "foreseen")])) == [1]
    assert Path(foreseen).read_text() == "."


def half_sent(mark: str) -> None:
    """Send the beginning of a result, and stay in the middle of it."""
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    os.write(frame.f_locals["result_queue"]._writer.fileno(), struct.pack("!i", 1000) + b"half")
    Path(mark).touch()
    time.sleep(600)


def test_a_worker_ended_while_it_sends_a_result_keeps_nobody_waiting(tmp_path: Path) -> None:
    workers, mark = Processes(1), tmp_path / "mark"
    workers.run([Task(half_sent, (str(mark),))])
    while not mark.exists():
        time.sleep(0.05)
    pool: Any = workers._pool
    manager = pool._executor_manager_thread  # which Python waits for at its end
    workers.close()
    manager.join(60)
    assert not manager.is_alive()
