"""Build wheel and sdist, check them, and run the wheel outside the clone.

Run ``python -m tools.wheel`` (`make dist`). The wheel goes into an environment of its own, which
borrows the packages of this one but not the clone: `ipu-run` profiles a script there, `ipu-report`
and the viewer open what it wrote. Then the same without PyTorch: whatever reads a profile works,
and `ipu-run` says what to install. Finally, a program that uses the packages passes mypy's strict
mode.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ipuscope import __version__

ROOT = Path(__file__).parent.parent

# What ipu-run profiles: as small as a pipeline can be.
SCRIPT = """
import poptorch
import torch

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x, labels):
        with poptorch.Block("front", ipu_id=0):
            x = torch.relu(self.first(x))
        with poptorch.Block("back", ipu_id=1):
            x = self.second(x)
            return x, torch.nn.functional.cross_entropy(x, labels)

options = poptorch.Options()
options.Training.gradientAccumulation(4)
network = Network()
optimizer = poptorch.optim.SGD(network.parameters(), lr=0.1)
model = poptorch.trainingModel(network, options, optimizer)
model(torch.randn(16, 8), torch.randint(4, (16,)))
"""

# What somebody else's program looks like to a type checker.
DOWNSTREAM = """
from __future__ import annotations

import numpy as np
import pandas as pd

import ipu_exec as poptorch
from ipuscope.planner import rebalance
from ipuscope.profiler import ProfileError, Report, open_report


def slowest(report: Report) -> str:
    stages: pd.DataFrame = report.stages
    return str(stages.sort_values("cycles")["blocks"].iloc[-1])


def fullest_tile(report: Report) -> int:
    live: np.ndarray = report.liveness_map(0)
    return int(live.max())


def prediction(path: str) -> int:
    try:
        with open_report(path) as report:
            costs = rebalance.Costs.from_report(report)
            return rebalance.best_split(costs, 2).prediction.total
    except ProfileError as error:
        raise SystemExit(error.problem) from error


options = poptorch.Options().deviceIterations(4)
options.Training.gradientAccumulation(8)
"""

# What an environment without the engine has not.
ENGINE = ("torch", "functorch", "torchgen", "torchmetrics", "lightning", "pytorch_lightning")

# The subcommands that answer about one profile with nothing but its name.
ANSWERS = ("summary", "insights", "why", "stages", "pipeline", "memory", "doctor")


def main() -> int:
    """Build, check and run, stopping at the first command that fails."""
    built = build()
    print(f"built {', '.join(file.name for file in built)}", flush=True)
    (wheel,) = [file for file in built if file.suffix == ".whl"]
    with tempfile.TemporaryDirectory(prefix="ipuscope-wheel-") as folder:
        place = Path(folder)
        commands = install(wheel, place / "environment")
        profile_a_script(commands, place)
        read_and_view(commands, place)
        without_torch(commands, place)
        read_and_view(commands, place)
        say_what_to_install(commands, place)
        check_types(commands, place)
    print(f"ipuscope {__version__}: the wheel installs, runs, and reads profiles without PyTorch")
    return 0


def build() -> list[Path]:
    """Build wheel and sdist in dist/, and check them as PyPI would."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # of before: setuptools would take it along
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    files = sorted(folder.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    return files


def install(wheel: Path, environment: Path) -> Path:
    """Install the wheel beside this environment's packages; returns the folder of its commands."""
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel)
    borrow(environment, Path(sysconfig.get_path("purelib")))
    return environment / "bin"


def borrow(environment: Path, packages: Path) -> None:
    """Let the environment import what is in ``packages``, except editable installs there."""
    (packages_of(environment) / "borrowed.pth").write_text(f"{packages}\n")


def packages_of(environment: Path) -> Path:
    """The folder of the environment's packages."""
    (folder,) = environment.glob("lib/python3.*/site-packages")
    return folder


def profile_a_script(commands: Path, place: Path) -> None:
    """Run a script, and check that the wheel's own packages ran it."""
    (place / "train.py").write_text(SCRIPT)
    where = run(commands / "python", "-c", "import ipu_exec; print(ipu_exec.__file__)", cwd=place)
    assert str(commands.parent) in where, f"ipu_exec came from {where}"
    for name in ("ipu-report", "ipu-run", "poprun"):
        assert __version__ in run(commands / name, "--version", cwd=place)
    run(commands / "ipu-run", "--profile-dir", "out", "train.py", cwd=place)


def read_and_view(commands: Path, place: Path) -> None:
    """Query the profile, write its HTML report, and fetch a page of the viewer."""
    for name in ANSWERS:
        assert run(commands / "ipu-report", name, "out/training", cwd=place).strip()
    run(commands / "ipu-report", "html", "out/training", "-o", "report.html", cwd=place)
    with viewer(commands, place) as address, _browser().open(address, timeout=30) as page:
        assert b"IPUscope" in page.read()


def _browser() -> urllib.request.OpenerDirector:
    """Keeps cookies: the address's token becomes one."""
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor())


@contextmanager
def viewer(commands: Path, place: Path) -> Iterator[str]:
    """Start the viewer on a free port; yields its address."""
    command = [commands / "ipu-report", "view", "--port", "0", "--no-browser", "out/training"]
    with subprocess.Popen(
        command, cwd=place, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = re.search(r"http://\S+", process.stdout.readline())
            assert address, "the viewer did not say where it is"
            yield until_it_answers(address.group())
        finally:
            process.terminate()


def until_it_answers(address: str, tries: int = 60) -> str:
    """Wait until something listens at the address, and return it."""
    for _ in range(tries):
        try:
            _browser().open(address, timeout=30).close()
            return address
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(f"nothing listens at {address}")


def without_torch(commands: Path, place: Path) -> None:
    """Make the environment borrow everything except PyTorch and the packages built on it."""
    packages = place / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.name.split("-")[0] not in ENGINE and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    borrow(commands.parent, packages)


def say_what_to_install(commands: Path, place: Path) -> None:
    """Without PyTorch, `ipu-run` and importing the engine name the extra to install."""
    for command in (
        [commands / "ipu-run", "train.py"],
        [commands / "python", "-c", "import ipu_exec"],
    ):
        process = subprocess.run(
            command, cwd=place, env=environment(), capture_output=True, text=True, check=False
        )
        assert process.returncode != 0
        assert "pip install 'ipuscope[engine]'" in process.stderr, process.stderr


def check_types(commands: Path, place: Path) -> None:
    """Check that a program using the installed packages passes mypy's strict mode."""
    (place / "downstream.py").write_text(DOWNSTREAM)
    python = commands / "python"
    words = ["--strict", "--python-executable", python, "downstream.py"]
    run(sys.executable, "-m", "mypy", *words, cwd=place)


def environment() -> dict[str, str]:
    """This process's environment variables without PYTHONPATH, which would find the clone."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a command and return its standard output.

    Raises SystemExit with its whole output if it fails.
    """
    process = subprocess.run(
        list(command), cwd=cwd, env=environment(), capture_output=True, text=True, check=False
    )
    if process.returncode:
        words = " ".join(map(str, command))
        raise SystemExit(
            f"{words}: exit code {process.returncode}\n{process.stdout}{process.stderr}"
        )
    return process.stdout


if __name__ == "__main__":
    sys.exit(main())
