"""A report that threads share: each gets its answer, whoever was first to ask."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ipuscope.profiler import open_report
from ipuscope.profiler.file import integrity, records
from ipuscope.profiler.file.columns import Columns
from ipuscope.profiler.report.tables import ProfileFile
from tests.synthetic import synthetic_profile


@pytest.mark.parametrize(
    ("where", "what"),
    [(integrity, "of_table"), (Columns, "read")],
    ids=["while a column is checked", "within a property"],
)
def test_threads_do_not_wait_for_each_other(tmp_path, monkeypatch, where, what):
    """One reads a table's columns; another, meanwhile, computes from them what is kept."""
    report = open_report(synthetic_profile(tmp_path / "some.pop", ipus=2))
    reading, keeping = threading.Event(), threading.Event()
    original: Callable[..., Any] = getattr(where, what)

    def slow(*args: Any) -> Any:
        if not reading.is_set():
            reading.set()
            keeping.wait(0.2)  # long enough for the other to get as far as it can
        return original(*args)

    def made() -> list[int]:
        keeping.set()
        return [len(report.stages), report.file.table(records.Stage).rows]

    def second() -> None:
        reading.wait()
        answers.append(report.file.once("test", made))

    report.target, report.meta  # noqa: B018 (which take the lock for themselves)
    monkeypatch.setattr(where, what, slow)
    answers: list[object] = []
    asked = [lambda: answers.append(len(report.stages)), second]
    threads = [threading.Thread(target=one, daemon=True) for one in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(answers, key=str) == [2, [2, 2]]  # whoever ends first


def test_a_property_is_computed_once_for_all_threads(tmp_path, monkeypatch):
    report = open_report(synthetic_profile(tmp_path / "some.pop", ipus=2))
    calls = []
    original = ProfileFile.table
    monkeypatch.setattr(
        ProfileFile, "table", lambda self, record: calls.append(record) or original(self, record)
    )
    frames: list[object] = []
    threads = [threading.Thread(target=lambda: frames.append(report.blocks)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert len(frames) == 8 and len({id(frame) for frame in frames}) == 1
    assert calls.count(records.Block) == 1


_CLOSED_WHILE_READ = """
import sys, threading, time
from ipuscope.profiler import ProfileError
from ipuscope.profiler.file import records
from ipuscope.profiler.file.reader import Reader

def read(reader, reads):
    try:
        while True:
            reader.columns(records.Step)
            reads.set()
    except ProfileError as error:
        print(error.problem)

for _ in range(20):
    with Reader(sys.argv[1]) as reader:
        reads = threading.Event()
        thread = threading.Thread(target=read, args=(reader, reads))
        thread.start()
        reads.wait()
        time.sleep(0.002)
    thread.join()
"""


def test_a_profile_may_be_closed_while_another_thread_reads_it(tmp_path):
    """As a notebook's viewer does, whose page still asks; the interpreter crashed."""
    path = synthetic_profile(tmp_path / "some.pop", ipus=2)
    command = [sys.executable, "-c", _CLOSED_WHILE_READ, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.split("\n") == ["the profile was closed"] * 20 + [""]
