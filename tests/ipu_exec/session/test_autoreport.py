"""A run whose directory another process is writing in, or that loses it: the run goes on."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import shutil
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import ipu_exec
from ipu_exec.compiler.executable import Executable
from ipu_exec.session import autoreport
from ipuscope.profiler import ProfileWriter, open_report
from ipuscope.profiler.file import lock, writer
from ipuscope.profiler.provenance import Provenance
from ipuscope.profiler.pva import debug_info
from tests.forked import run
from tests.paths import ROOT
from tests.profiler.test_lock import another

FORKS = """
import os, sys, torch, ipu_exec
options = ipu_exec.Options(autoreport=True, autoreport_dir=sys.argv[1])
model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
model(torch.zeros(1, 2))
if not os.fork():
    assert model(torch.zeros(1, 2)).shape == (1, 2)
    sys.exit()
assert os.wait()[1] == 0
for _ in range(2):
    model(torch.zeros(1, 2))
"""
ROBBED_OF_PERMISSION = """
import os, sys, torch, ipu_exec
options = ipu_exec.Options(autoreport=True, autoreport_dir=sys.argv[1])
model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
model(torch.zeros(1, 2))
folder = os.path.join(sys.argv[1], "inference")
for path in (folder, *(os.path.join(folder, name) for name in os.listdir(folder))):
    os.chown(path, 65534, 65534)
os.chmod(folder, 0o500)
os.setuid(65534)
print(*model(torch.zeros(1, 2)).shape)
"""


def test_a_run_beside_another_has_a_directory_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    with another(tmp_path / "inference" / "profile.pop") as other:
        model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
        model(torch.zeros(1, 2))
        model.destroy()
        other.communicate()
    assert "inference-2" in caplog.text and "another process" in caplog.text
    with (
        open_report(tmp_path / "inference-2") as second,
        open_report(tmp_path / "inference") as its,
    ):
        assert len(second.runs) == 1
        assert its.options == {"whose": "other"}


def test_models_of_one_class_have_a_profile_each_while_they_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    models = [ipu_exec.inferenceModel(torch.nn.Linear(n, n), options) for n in (2, 3, 2, 3)]
    for model in models[:2]:
        model(torch.zeros(1, model.in_features))
    assert "that of another Linear: the profile of Linear goes to" in caplog.text
    for model in models[:2]:
        model.destroy()
    for model in models[2:]:
        assert "modelName" not in caplog.text  # the same program as before
        model(torch.zeros(1, model.in_features))
        model.destroy()
    assert "an earlier Linear's profile is replaced: options.modelName" in caplog.text
    assert [f"{path.parent.name}" for path in sorted(tmp_path.glob("*/*.pop"))] == [
        "inference",
        "inference-2",
    ]


def test_a_nul_in_the_directory_costs_the_run_nothing(tmp_path: Path) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=f"{tmp_path}/a\0b")
    model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
    with pytest.warns(UserWarning, match="no profile is written.*NUL"):
        assert model(torch.zeros(1, 2)).shape == (1, 2)


# -- ways to lose the directory of a profile, and moments to lose it ---


def _remove(folder: Path) -> None:
    shutil.rmtree(folder)


def _file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _move(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def _no_target(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder / "nowhere")


def _without_parent(folder: Path) -> None:
    shutil.rmtree(folder.parent)


def _lock_is_a_directory(folder: Path) -> None:
    (folder / "profile.pop.lock").unlink()
    (folder / "profile.pop.lock").mkdir()


def _profile_is_a_directory(folder: Path) -> None:
    (folder / "profile.pop").unlink(missing_ok=True)
    (folder / "profile.pop").mkdir()
    (folder / "profile.pop" / "full").touch()


def _partial_is_a_directory(folder: Path) -> None:
    (folder / "profile.pop.partial").unlink()
    (folder / "profile.pop.partial").mkdir()
    (folder / "profile.pop.partial" / "full").touch()


def _partial_is_garbage(folder: Path) -> None:
    (folder / "profile.pop.partial").write_bytes(b"garbage" * 10_000)


def _no_working_directory(folder: Path) -> None:
    gone = folder.parent.parent / "gone"
    gone.mkdir()
    os.chdir(gone)
    shutil.rmtree(gone)
    shutil.rmtree(folder)


WAYS = (
    _remove,
    _file,
    _empty,
    _move,
    _no_target,
    _without_parent,
    _lock_is_a_directory,
    _profile_is_a_directory,
    _partial_is_a_directory,
    _partial_is_garbage,
    _no_working_directory,
)
# Before the Nth call of a function of the writer's.
MOMENTS = (
    (ProfileWriter, "meta", 2),
    (ProfileWriter, "add", 1),
    (ProfileWriter, "add", 3),
    (ProfileWriter, "publish", 1),
    (writer, "_fsync", 3),  # the second is the directory's
    (writer, "_fsync", 1),
    (debug_info, "write", 1),
    (ProfileWriter, "publish", 2),
    (ProfileWriter, "close", 1),
    (lock, "release", 1),
)


@cache
def _executable() -> Executable:
    model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), ipu_exec.Options())
    model.compile(torch.zeros(1, 2))
    executable: Executable = model.executable
    return executable


def _profiled(options: ipu_exec.Options) -> autoreport.ProfileSession:
    session = autoreport.ProfileSession(options, _executable(), "inference", "model")
    for number in range(3):
        session.record_run(number, number + 1)
    session.publish()
    session.close()
    return session


@contextmanager
def _before(
    monkeypatch: pytest.MonkeyPatch, moment: tuple[Any, str, int], happens: Callable[[], None]
) -> Iterator[list[int]]:
    """Let something happen before a moment."""
    owner, name, number = moment
    called: list[int] = []
    actual = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        called.append(0)
        if len(called) == number:
            happens()
        return actual(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, call)
        yield called


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: f"{moment[1]} {moment[2]}")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_a_directory_lost_at_any_moment_is_a_warning_at_most(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: Callable[[Path], None],
    moment: tuple[Any, str, int],
) -> None:
    monkeypatch.chdir(tmp_path)  # and back at the end
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path / "out" / "here")
    options._Popart.set("engineOptions", {"autoReport.outputDebugInfo": "true"})
    folder = tmp_path / "out" / "here" / "inference"
    lost: list[str] = []
    with (
        warnings.catch_warnings(record=True) as caught,
        _before(monkeypatch, moment, lambda: (lost.append("now"), way(folder))[0]),
    ):
        warnings.simplefilter("always")
        _profiled(options)
    assert lost
    said = [str(one.message) for one in caught]
    assert len(said) <= 1 and all("no profile is written: " in text for text in said), said


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyError("x"), MemoryError()])
@pytest.mark.parametrize("moment", MOMENTS[:7], ids=lambda moment: f"{moment[1]} {moment[2]}")
def test_any_error_of_the_profile_is_one_warning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: tuple[Any, str, int],
    error: Exception,
) -> None:
    def fail() -> None:
        raise error

    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    options._Popart.set("engineOptions", {"autoReport.outputDebugInfo": "true"})
    with _before(monkeypatch, moment, fail), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = _profiled(options)
    assert len(caught) == 1 and "no profile is written" in str(caught[0].message)
    assert session.path is None


def test_a_lost_directory_costs_the_run_its_profile_only(tmp_path: Path) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
    model(torch.zeros(1, 2))
    _file(tmp_path / "inference")
    with pytest.warns(UserWarning, match="directory was removed, replaced .*Leave the directory"):
        assert model(torch.zeros(1, 2)).shape == (1, 2)
    assert model(torch.zeros(1, 2)).shape == (1, 2)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_directory_that_becomes_read_only_is_named_as_such(tmp_path: Path) -> None:
    for above in (tmp_path, *list(tmp_path.parents)[:3]):
        above.chmod(0o755)
    done = run([sys.executable, "-c", ROBBED_OF_PERMISSION, str(tmp_path)], cwd=ROOT)
    assert done.returncode == 0 and done.stdout.strip().endswith("1 2"), done.stderr
    assert "made read-only while it was being written" in done.stderr


def test_a_forked_child_leaves_the_profile_to_its_parent(tmp_path: Path) -> None:
    done = run([sys.executable, "-c", FORKS, str(tmp_path)], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "no profile is written" not in done.stderr
    assert os.listdir(tmp_path / "inference") == ["profile.pop"]
    with open_report(tmp_path) as report:
        assert len(report.runs) == 2


def test_a_clock_that_is_set_moves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
    hour, now = 3_600_000_000_000, time.time_ns()
    back = itertools.count(now, -hour)
    monkeypatch.setattr(time, "time_ns", lambda: next(back))
    monkeypatch.setattr(time, "time", lambda: next(back) / 1e9)
    for _ in range(3):
        model(torch.zeros(1, 2))
    model.destroy()
    with open_report(tmp_path) as report:
        times = report.runs[["host_start_us", "host_end_us"]].to_numpy().reshape(-1)
    assert len(times) == 4 and (times[1:] >= times[:-1]).all()
    assert abs(times[0] * 1000 - now) < hour


def test_a_script_may_change_its_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path / "first")
    options = ipu_exec.Options(autoreport=True, autoreport_dir="out")
    model = ipu_exec.inferenceModel(torch.nn.Linear(2, 2), options)
    model(torch.zeros(1, 2))
    monkeypatch.chdir(tmp_path / "second")
    model(torch.zeros(1, 2))
    del model
    gc.collect()
    assert os.listdir(tmp_path / "first" / "out" / "inference") == ["profile.pop"]
    with open_report(tmp_path / "first" / "out") as report:
        assert len(report.runs) == 2


def _runs(path: Path) -> int:
    with open_report(path) as report:
        return len(report.runs)


def test_of_many_runs_the_profile_is_rewritten_rarely_and_the_partial_file_has_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "POPLAR_ENGINE_OPTIONS", '{"autoReport.executionProfileProgramRunCount": "1000"}'
    )
    seconds = 0.0
    publish = ProfileWriter.publish

    def published_in_a_second(*about: Any) -> Path:
        nonlocal seconds
        seconds += 1
        return publish(*about)

    monkeypatch.setattr(ProfileWriter, "publish", published_in_a_second)
    monkeypatch.setattr(autoreport.time, "monotonic", lambda: seconds)
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    session = autoreport.ProfileSession(options, _executable(), "inference", "model")
    path, partial = (
        tmp_path / "inference" / name for name in ("profile.pop", "profile.pop.partial")
    )
    for number in range(36):
        session.record_run(number, number + 1)
    assert (_runs(path), _runs(partial)) == (autoreport.PUBLISHED_AT_ONCE, 36)  # if it were killed
    seconds += 1 / autoreport.PUBLISHING
    session.record_run(36, 37)
    session.record_run(37, 38)
    assert (_runs(path), _runs(partial)) == (37, 38)
    session.close()
    assert _runs(path) == 38 and not partial.exists()


def test_a_module_that_python_runs_is_compiled_again_as_one(tmp_path: Path) -> None:
    """Its file alone would not find what it imports from its package."""
    source = """
    import sys, torch, ipu_exec

    options = ipu_exec.Options(profile_dir=sys.argv[1])
    ipu_exec.inferenceModel(torch.nn.Linear(4, 4), options)(torch.ones(2, 4))
    """
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "infer.py").write_text(textwrap.dedent(source))
    paths = {**os.environ, "PYTHONPATH": str(Path(ipu_exec.__file__).parents[1])}
    command = [sys.executable, "-W", "ignore", "-m", "package.infer", "out"]
    subprocess.run(command, cwd=tmp_path, env=paths, check=True, capture_output=True)
    with open_report(tmp_path / "out" / "inference") as report:
        assert Provenance.of(report).program == ("-m", "package.infer", "out")
