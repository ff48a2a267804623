"""First steps of commands: --help without PyTorch, Ctrl-C at any moment, a script's processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ipuscope.waiting import EVERY_VARIABLE
from tests.paths import ROOT


def command(
    name: str, *argv: str, cwd: Path, before: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command in a new interpreter, which looks for modules in ``before`` first."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (*before, ROOT))),
        "OMP_NUM_THREADS": "1",
        EVERY_VARIABLE: "600",  # a busy machine adds no lines
    }
    words = [sys.executable, "-m", "ipuscope.commands", name, *argv]
    return subprocess.run(
        words, capture_output=True, text=True, cwd=cwd, env=env, timeout=120, preexec_fn=_obeys
    )


def _obeys() -> None:
    """Ctrl-C ends it, also where the tests are a job in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def write(path: Path, source: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(source))


INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


@pytest.mark.parametrize("name", ["ipu-run", "poprun", "ipu-report"])
def test_help_imports_neither_torch_nor_numpy(tmp_path: Path, name: str) -> None:
    for module in ("torch", "numpy"):
        write(tmp_path / f"{module}.py", "raise SystemExit('imported')\n")
    done = command(name, "--help", cwd=tmp_path, before=(tmp_path,))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {name}")


def test_ctrl_c_while_the_engine_is_imported_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "first" / "torch.py", f"{INTERRUPT}raise ImportError('not there')\n")
    write(tmp_path / "script.py", "")
    done = command("ipu-run", "script.py", cwd=tmp_path, before=(tmp_path / "first",))
    assert (done.returncode, done.stderr) == (130, "ipu-run: interrupted\n")


def test_ctrl_c_in_a_script_names_its_line(tmp_path: Path) -> None:
    write(tmp_path / "helper.py", INTERRUPT)
    write(tmp_path / "script.py", "print('begins')\nimport helper\n")
    done = command("ipu-run", "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (130, "begins\n")
    assert done.stderr == "ipu-run: interrupted at script.py:2\n"


def test_ctrl_c_in_a_report_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path / "first" / "numpy.py", INTERRUPT)
    done = command("ipu-report", "summary", "x", cwd=tmp_path, before=(tmp_path / "first",))
    assert (done.returncode, done.stderr) == (130, "ipu-report: interrupted\n")


CHILD = """
    import poptorch.optim, popart, pva, libpvti, horovod.torch
    from popdist.poptorch import Options
    from lightning_graphcore import IPUStrategy
    print(poptorch.__name__, popart.__name__, Options.__module__)
"""
PARENT = """
    import multiprocessing, subprocess, sys

    def work(how):
        import poptorch
        return f"{how} {poptorch.__name__}"

    if __name__ == "__main__":
        subprocess.run([sys.executable, "child.py"], check=True)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(work, ("spawn",)))
"""


def test_processes_that_a_script_starts_have_poptorch(tmp_path: Path) -> None:
    write(tmp_path / "child.py", CHILD)
    write(tmp_path / "parent.py", PARENT)
    done = command("ipu-run", "parent.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "ipu_exec ipu_exec.popart ipu_exec.popdist.poptorch",
        "spawn ipu_exec",
    ]


OURS = ("profiler", "planner", "viewer", "reports", "tests", "tools", "benchmarks", "utils")
TRAIN = """
    import poptorch, torch
    import profiler, planner.deeper, viewer, reports.deeper, tests, tools, benchmarks, utils.deeper
    import ipu_exec

    assert {one.NAME for one in (profiler, planner, viewer, reports)} == {"mine"}
    assert {one.NAME for one in (tests, tools, benchmarks, utils)} == {"mine"}
    model = poptorch.inferenceModel(torch.nn.Linear(4, 2), poptorch.Options())
    print(tuple(model(torch.ones(2, 4)).shape))
"""


@pytest.mark.parametrize("packages", [True, False])
def test_a_repository_with_modules_of_our_names_is_its_own(tmp_path: Path, packages: bool) -> None:
    """`ipu-run`, `import ipu_exec`, and `ipu-report` with PYTHONPATH=. use none of them."""
    for name in OURS:
        folder = packages or name in ("planner", "reports", "utils")
        file = tmp_path / name / "__init__.py" if folder else tmp_path / f"{name}.py"
        write(file, "NAME = 'mine'\n")
        if folder:
            write(tmp_path / name / "deeper.py", "")
    write(tmp_path / "train.py", TRAIN)
    done = command("ipu-run", "--profile-dir", "out", "train.py", cwd=tmp_path, before=(tmp_path,))
    assert (done.returncode, done.stdout) == (0, "(2, 2)\n"), done.stderr
    if not packages:
        return
    views = "import ipuscope.reports.cli.view, ipuscope.viewer, ipu_exec"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((".", str(ROOT)))}
    subprocess.run([sys.executable, "-c", views], cwd=tmp_path, env=env, check=True)
    done = command("ipu-report", "stages", "out", cwd=tmp_path, before=(tmp_path,))
    assert done.returncode == 0, done.stderr
