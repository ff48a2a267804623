"""`ipu-run`: a PopTorch script runs unchanged, as `python script.py` would run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ipuscope.profiler import open_report
from tests import forked
from tests.paths import ROOT


def ipu_run(
    *argv: str, cwd: Path, alone: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command, forked or, where the process is what is tested, ``alone``."""
    env = {
        key: value
        for key, value in os.environ.items()
        if key not in ("POPLAR_ENGINE_OPTIONS", "IPUSCOPE_TARGET")
    }
    env |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [
        sys.executable,
        "-c",
        "import sys; from ipu_exec.commands.run import main; sys.exit(main())",
        *argv,
    ]
    run = subprocess.run if alone else forked.run
    return run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=120)


def write(path: Path, source: str) -> Path:
    path.write_text(textwrap.dedent(source))
    return path


def test_a_script_sees_what_python_would_show_it(tmp_path: Path) -> None:
    write(tmp_path / "helper.py", "VALUE = 42\n")
    write(
        tmp_path / "script.py",
        """
        import json, os, pickle, sys
        import helper
        import poptorch
        import poptorch.optim as optim
        from poptorch.enums import OutputMode

        class Mine:
            pass

        if __name__ == "__main__":
            print(json.dumps({
                "argv": sys.argv, "file": __file__, "path": sys.path[0], "helper": helper.VALUE,
                "one": poptorch.optim is optim and poptorch.OutputMode is OutputMode,
                "name": poptorch.__name__,
                "pickles": type(pickle.loads(pickle.dumps(Mine()))) is Mine,
                "target": os.environ.get("IPUSCOPE_TARGET"),
                "engine": os.environ.get("POPLAR_ENGINE_OPTIONS"),
            }))
            sys.exit(7)
        """,
    )
    process = ipu_run(
        *("--target", "BOW", "--autoreport", "out", "script.py", "--epochs", "3", "--target", "x"),
        cwd=tmp_path,
        alone=True,
        POPLAR_ENGINE_OPTIONS='{"autoReport.executionProfileProgramRunCount": "5"}',
    )
    assert process.returncode == 7, process.stderr
    seen = json.loads(process.stdout)
    assert seen["argv"] == ["script.py", "--epochs", "3", "--target", "x"]
    assert seen["file"] == "script.py"
    assert Path(seen["path"]) == tmp_path
    assert seen["helper"] == 42
    assert seen["one"]
    assert seen["name"] == "ipu_exec"
    assert seen["pickles"]
    assert seen["target"] == "bow"
    assert json.loads(seen["engine"]) == {
        "autoReport.executionProfileProgramRunCount": "5",
        "autoReport.all": "true",
        "autoReport.directory": "out",
    }


MODULE = """
    import json, sys
    from . import CONSTANT
    print(json.dumps([sys.argv[1:], __name__, __package__, __spec__.name, sys.path[0], CONSTANT]))
"""


@pytest.mark.parametrize(("named", "module"), [("package.train", "train"), ("package", "__main__")])
def test_a_module_runs_as_python_m_runs_it(tmp_path: Path, named: str, module: str) -> None:
    """It gets its own arguments, and the package it is in can import poptorch."""
    (tmp_path / "package").mkdir()
    write(tmp_path / "package" / "__init__.py", "import poptorch\nCONSTANT = poptorch.__name__\n")
    write(tmp_path / "package" / f"{module}.py", MODULE)
    process = ipu_run("-m", named, "--target", "x", cwd=tmp_path, alone=True)
    assert process.returncode == 0, process.stderr
    where = [f"package.{module}", str(tmp_path), "ipu_exec"]
    assert json.loads(process.stdout) == [["--target", "x"], "__main__", "package", *where]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-m", "package.train"), "there is no module 'package.train' to run"),
        (("train.ipynb",), "nbconvert --to script train.ipynb makes a script"),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    process = ipu_run(*words, cwd=tmp_path)
    assert process.returncode == 2
    assert why in process.stderr


def test_a_traceback_begins_in_the_script(tmp_path: Path) -> None:
    write(tmp_path / "script.py", "def deeper():\n    raise ValueError('the reason')\n\ndeeper()\n")
    process = ipu_run("script.py", cwd=tmp_path, alone=True)
    assert process.returncode == 1
    assert process.stderr.splitlines()[:2] == [
        "Traceback (most recent call last):",
        '  File "script.py", line 4, in <module>',
    ]
    assert process.stderr.splitlines()[-1] == "ValueError: the reason"
    assert "ipu_exec" not in process.stderr


NO_LOWERING = """
    import poptorch, torch

    class Exotic(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.eigvalsh(x)  # nobody lowered it

    model = poptorch.inferenceModel(Exotic())
    model(torch.eye(4))
    """


@pytest.mark.parametrize("runs_it", ["ipu-run", "python"])
def test_an_error_of_ours_shows_the_users_frames(tmp_path: Path, runs_it: str) -> None:
    script = write(tmp_path / "script.py", NO_LOWERING)
    if runs_it == "python":
        script.write_text(
            script.read_text().replace("import poptorch,", "import ipu_exec as poptorch,")
        )
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, env=env, capture_output=True, text=True
        )
    else:
        process = ipu_run("script.py", cwd=tmp_path)
    assert process.returncode == 1
    frames = re.findall(r'File "(.*)", line (\d+)', process.stderr)
    ours = [file for file, _ in frames if "ipu_exec" in file]
    assert [line for file, line in frames if file.endswith("script.py")] == ["9"]
    # by Python the call itself may be one of ours (that depends on its release), nothing below it
    assert len(ours) <= (runs_it == "python") and len(frames) == 1 + len(ours)
    assert "no lowering for" in process.stderr.splitlines()[-1]
    whole = ipu_run("script.py", cwd=tmp_path, IPUSCOPE_TRACEBACK="full")
    assert "compiler" in whole.stderr


def test_a_misspelt_name_meets_the_one_that_was_meant(tmp_path: Path) -> None:
    write(tmp_path / "script.py", "import poptorch\npoptorch.trainingMode\n")
    assert "Did you mean: 'trainingModel'?" in ipu_run("script.py", cwd=tmp_path).stderr
    write(tmp_path / "script.py", "import poptorch\npoptorch.Options().deviceIteration(3)\n")
    assert "did you mean 'deviceIterations'?" in ipu_run("script.py", cwd=tmp_path).stderr
    process = ipu_run("--profil-dir", "out", "script.py", cwd=tmp_path)
    assert process.returncode == 2 and "did you mean '--profile-dir'?" in process.stderr


def test_a_place_for_profiles_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path,
) -> None:
    write(tmp_path / "script.py", "print('ran')\n")
    write(tmp_path / "file", "")
    process = ipu_run("--profile-dir", "file/out", "script.py", cwd=tmp_path)
    assert process.returncode == 2 and "ran" not in process.stdout
    assert process.stderr.splitlines() == [
        "ipu-run: error: file/out: no profile can be written there (Not a directory);"
        " choose another --profile-dir"
    ]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("nowhere.py",), "nowhere.py cannot be read"),
        (("--target", "mk9", "script.py"), "mk9"),
        ((), "script"),
    ],
)
def test_wrong_usage_ends_with_two(tmp_path: Path, argv: tuple[str, ...], says: str) -> None:
    write(tmp_path / "script.py", "print('ran')")
    process = ipu_run(*argv, cwd=tmp_path)
    assert process.returncode == 2
    assert says in process.stderr
    assert process.stdout == ""


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    write(tmp_path / "script.py", "x = (\n")
    process = ipu_run("script.py", cwd=tmp_path)
    assert process.returncode == 1
    assert 'File "script.py", line 1' in process.stderr
    assert "SyntaxError" in process.stderr
    assert "run.py" not in process.stderr


def test_an_unchanged_poptorch_script_leaves_a_profile_of_the_target(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import popart
        import poptorch
        import torch

        class Network(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

            def forward(self, x, labels):
                with poptorch.Block("A", ipu_id=0):
                    x = torch.relu(self.first(x))
                with poptorch.Block("B", ipu_id=1):
                    x = self.second(x)
                    return x, torch.nn.functional.cross_entropy(x, labels)

        options = poptorch.Options()
        options._Popart.set("autoRecomputation", int(popart.RecomputationType.Pipeline))
        options._Popart.set("virtualGraphMode", int(popart.VirtualGraphMode.Manual))
        options.Training.gradientAccumulation(4)
        network = Network()
        optimizer = poptorch.optim.SGD(network.parameters(), lr=0.1)
        model = poptorch.trainingModel(network, options, optimizer)
        output, loss = model(torch.randn(8, 8), torch.randint(4, (8,)))
        """,
    )
    process = ipu_run("--autoreport", "out", "--target", "bow", "train.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    with open_report(tmp_path / "out") as report:
        assert report.meta["complete"]
        assert report.target.name == "bow"
        assert report.blocks["name"].tolist() == ["A", "B"]
        assert len(report.runs) == 1


FOUR_BLOCKS = """
import poptorch
import torch

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

    def forward(self, x, labels):
        for index, layer in enumerate(self.layers):
            with poptorch.Block(f"L{index}", ipu_id=0):
                x = torch.relu(layer(x))
        return x, torch.nn.functional.cross_entropy(x, labels)

options = poptorch.Options()
options.Training.gradientAccumulation(4)
network = Network()
model = poptorch.trainingModel(network, options, poptorch.optim.SGD(network.parameters(), lr=0.1))
model(torch.randn(8, 64), torch.randint(64, (8,)))
print("trained")
"""


def test_ipus_puts_the_scripts_blocks_on_so_many(tmp_path: Path) -> None:
    write(tmp_path / "train.py", FOUR_BLOCKS)
    process = ipu_run("--num-ipus", "2", "--autoreport", "out", "train.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("trained") == 1
    assert "on 2 IPUs: L0, L1, L2, L3 (t=1 p=1 r=2" in process.stderr
    with open_report(tmp_path / "out") as report:
        assert ", ".join(report.stages["blocks"]) == "L0, L1, L2, L3"
    assert not list(tmp_path.glob("ipu-run-*"))


def test_more_ipus_than_blocks_or_samples_are_left_free(tmp_path: Path) -> None:
    # four samples a call: no more than four micro-batches
    write(tmp_path / "train.py", FOUR_BLOCKS.replace("(8, 64)", "(4, 64)").replace("(8,)", "(4,)"))
    process = ipu_run("--num-ipus", "9", "train.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "no quicker mapping was found onto more than 4 IPUs" in process.stderr
    assert "not a whole number" in ipu_run("--num-ipus", "0", "train.py", cwd=tmp_path).stderr


def test_a_script_without_a_model_has_nothing_to_put_on_ipus(tmp_path: Path) -> None:
    write(tmp_path / "script.py", "raise ValueError('the reason')")
    process = ipu_run("--num-ipus", "2", "script.py", cwd=tmp_path)
    assert process.returncode == 2
    assert "--num-ipus 2: ValueError: the reason" in process.stderr
    assert (
        "leave one of them out"
        in ipu_run("--num-ipus", "2", "--placement", "x.json", "script.py", cwd=tmp_path).stderr
    )


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import os\nimport poptorch\n\n"
        "def test_it():\n    assert poptorch.Options().deviceIterations(2).device_iterations == 2\n"
        "    assert os.environ['IPUSCOPE_LENIENT'] == '1'\n"
    )
    words = ["--lenient", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    ran = forked.run(
        [sys.executable, "-m", "ipu_exec.commands.run", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
