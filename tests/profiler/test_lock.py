"""Concurrent runs: processes that write into one directory keep each other's files whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ipuscope.profiler import ProfileError, ProfileTaken, ProfileWriter, open_report
from ipuscope.profiler.file import records
from ipuscope.profiler.file.lock import is_being_written
from tests.paths import ROOT

WRITES = """
import sys
from ipuscope.profiler import ProfileWriter
from ipuscope.profiler.file import records
writer = ProfileWriter(sys.argv[1])
writer.add([records.Option("whose", '"other"')])
print("writing", flush=True)
sys.stdin.read()
writer.publish()
writer.close()
"""
ASKS = """
import pathlib, sys
from ipuscope.profiler.file.lock import is_being_written
print(is_being_written(pathlib.Path(sys.argv[1])))
"""
WRITES_AGAIN_AND_AGAIN = """
import sys, time
from ipuscope.profiler import ProfileTaken, ProfileWriter, open_report
from ipuscope.profiler.file import records
path, start, taken, written = sys.argv[1], time.monotonic(), 0, 0
while time.monotonic() < start + (60 if not written else 2):  # one may have to wait for the others
    try:
        with ProfileWriter(path) as writer:
            writer.add([records.Option(f"{i}", sys.argv[2]) for i in range(20)])
            writer.publish()
        written += 1
    except ProfileTaken:
        taken += 1
    with open_report(path) as report:
        assert len(set(report.options.values())) == 1 and len(report.options) == 20
print(written, taken)
"""


@contextmanager
def another(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that is writing the profile."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITES, str(path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_profile_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    with another(path) as other:
        with pytest.raises(ProfileTaken, match="another process is writing") as caught:
            ProfileWriter(path)
        assert "directory of its own" in caught.value.remedy
        other.communicate()
    assert open_report(path).options == {"whose": "other"}
    assert os.listdir(tmp_path) == ["profile.pop"]


def test_who_writes_is_told_from_what_a_dead_process_left(tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    assert not is_being_written(path)
    with another(path) as other:
        assert is_being_written(path)
        assert is_being_written(tmp_path / "profile.pop.partial")
        with pytest.raises(ProfileTaken):  # asking took no lock, and ended none
            ProfileWriter(path)
        other.kill()
        other.wait()
    assert not is_being_written(path)
    with ProfileWriter(path):
        assert is_being_written(path)
        asks = [sys.executable, "-c", ASKS, str(path)]  # asking here ended no lock either
        assert subprocess.check_output(asks, cwd=ROOT, text=True) == "True\n"


def test_what_a_dead_process_left_is_cleared(tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    with another(path) as other:
        other.kill()
        other.wait()
    left = {"profile.pop.partial", "profile.pop.lock"}
    assert set(os.listdir(tmp_path)) == left
    (tmp_path / "profile.pop.publishing").write_text("half of one")
    with ProfileWriter(path) as writer:
        writer.add([records.Option("whose", '"mine"')])
        writer.publish()
    assert os.listdir(tmp_path) == ["profile.pop"]
    assert open_report(path).options == {"whose": "mine"}


def test_writers_in_turn_lose_nothing(tmp_path: Path) -> None:
    """At any time, the profile in place is a complete one from a single writer."""
    path = tmp_path / "profile.pop"
    with ProfileWriter(path) as first:
        first.add([records.Option(f"{i}", "0") for i in range(20)])
        first.publish()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITES_AGAIN_AND_AGAIN, str(path), str(number)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    ends = [(*writer.communicate(), writer.returncode) for writer in writers]
    assert [end[1:] for end in ends] == [("", 0)] * 3
    assert all(int(out.split()[0]) > 0 for out, _, _ in ends)
    assert os.listdir(tmp_path) == ["profile.pop"]


def test_a_newer_writer_of_one_process_takes_the_place(tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    old = ProfileWriter(path)
    old.add([records.Option("whose", '"old"')])
    old.publish()
    new = ProfileWriter(path)
    new.add([records.Option("whose", '"new"')])
    old.close()
    assert new.partial.exists()
    new.publish()
    new.close()
    assert open_report(path).options == {"whose": "new"}
    assert os.listdir(tmp_path) == ["profile.pop"]


def test_a_child_has_no_lock_of_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    with ProfileWriter(path):
        child = os.fork()
        if not child:
            try:
                ProfileWriter(path)
                os._exit(1)
            except ProfileTaken:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_a_writer_that_fails_lets_the_path_go(tmp_path: Path) -> None:
    path = tmp_path / "profile.pop"
    (tmp_path / "profile.pop.partial").mkdir()
    (tmp_path / "profile.pop.partial" / "full").touch()
    with pytest.raises(ProfileError):
        ProfileWriter(path)
    assert os.listdir(tmp_path) == ["profile.pop.partial"]


@pytest.mark.parametrize("name", [b"\xff\xfe", "ü ?#%&".encode()])
def test_a_directory_in_any_encoding_is_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: bytes
) -> None:
    from ipuscope.reports.cli import main
    from tests.synthetic import synthetic_profile

    folder = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
    path = synthetic_profile(folder / "profile.pop", tiles=4)
    with open_report(folder) as report:
        assert len(report.stages) == 4
    for words in (
        ["summary", str(folder)],
        ["stages", "--csv", str(folder)],
        ["query", "select 1", str(folder)],
        ["html", str(path), "-o", str(folder / "report.html")],
        ["export", str(path), "-o", str(folder / "trace.json")],
    ):
        assert main(words) == 0, capsys.readouterr().err
    assert (folder / "report.html").stat().st_size > 1000


def test_a_nul_in_a_path_is_an_error_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ipuscope.reports.cli import main

    bad = str(tmp_path / "a\0b")
    with pytest.raises(ProfileError, match="NUL"):
        ProfileWriter(bad)
    with pytest.raises(ProfileError):
        open_report(bad)
    assert main(["summary", bad]) == 3
    assert capsys.readouterr().err.count("\n") == 1
