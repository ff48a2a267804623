"""`ipu-run --plan`, and `--placement` with what it wrote."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

import ipu_exec
from ipu_exec.planning import commands
from ipu_exec.planning.captured import Captured
from ipu_exec.planning.first_call_plan import Asked, why_one_micro_batch
from ipu_exec.script_levers import parse
from ipu_exec.session.call_plan import FirstCall
from ipuscope.planner.mappings import load
from ipuscope.profiler import analysis, open_report
from ipuscope.profiler.analysis.runs import runs, settings_of
from tests.ipu_exec.test_num_ipus import SEQUENTIAL
from tests.ipu_exec.test_run import ipu_run, write
from tests.paths import ROOT

TRAIN = """
import poptorch
import torch

class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            with poptorch.Block(f"B{number}"):
                x = layer(x).relu()
                if number == 2:
                    x = x.square().mean()
        return x

torch.manual_seed(0)
print("a line of the script's")
model = Layers()
options = poptorch.Options()
options.Training.gradientAccumulation(4)
data = torch.utils.data.TensorDataset(torch.randn(32, 64))
loader = poptorch.DataLoader(options, data, batch_size=4)
training = poptorch.trainingModel(
    model, options, torch.optim.SGD(model.parameters(), lr=0.1)
)
for x, in loader:
    print("call", len(x), float(training(x).mean()))
print("sum", float(sum(p.sum() for p in model.parameters())))
"""


def test_a_plan_is_written_and_the_script_runs_with_it_unchanged(tmp_path: Path) -> None:
    script, file = write(tmp_path / "train.py", TRAIN), tmp_path / "plan.json"
    asked = ("--plan", "2", "--proportions", "0.6", "--micro-batches", "4,8")
    planned = ipu_run(*asked, "--write", str(file), "--csv", str(script), cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    rows = list(csv.DictReader(io.StringIO(planned.stdout)))
    plan = load(file)
    assert [row["split"] for row in rows] == [one.mapping.split for one in plan.candidates]
    assert "call" not in planned.stdout  # the script ended at its first call
    assert "a line of the script's" in planned.stderr  # and left standard output to the plan
    best = plan.best
    assert best.mapping.samples == 16 and best.mapping.attached == 2

    out = tmp_path / "out"
    options = ("--placement", str(file), "--profile-dir", str(out))
    ran, plain = (ipu_run(*more, str(script), cwd=tmp_path) for more in (options, ()))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("call 16") == 2
    assert _close(ran.stdout, plain.stdout)
    with open_report(out / "training") as report:
        assert report.target.num_replicas == best.mapping.replicas
        assert report.meta["micro_batch"] == best.mapping.micro_batch
        assert best.obtained is not None
        cycles = int(report.pipeline_cycles(0, 0)["cycles"].sum())
        assert cycles == best.obtained.cycles


def _close(some: str, others: str) -> bool:
    """Whether the printed weights agree, up to the order of sums."""
    sums = [float(text.split("sum ")[1]) for text in (some, others)]
    return abs(sums[0] - sums[1]) < 1e-3


def test_a_model_without_blocks_is_planned_by_its_layers(tmp_path: Path) -> None:
    script, file = write(tmp_path / "train.py", SEQUENTIAL), tmp_path / "plan.json"
    asked = ("--plan", "2", "--fix", "p=2", "--proportions", "0.6", "--json")
    planned = ipu_run(*asked, "--write", str(file), str(script), cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    said = json.loads(planned.stdout)
    assert said["plan"]["modules"] == ["body.0", "body.2", "body.4"]
    ran = ipu_run("--placement", str(file), str(script), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "trained" in ran.stdout


def test_what_cannot_be_planned_says_why(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", TRAIN)
    few = ipu_run("--plan", "8", "--fix", "p=3", "--micro-batches", "4", str(script), cwd=tmp_path)
    assert few.returncode == 1
    assert "16 samples of a weight update cannot be cut" in few.stderr
    many = ipu_run("--plan", "2", "--fix", "p=3", str(script), cwd=tmp_path)
    assert many.returncode == 1 and "that takes 3 IPUs, of 2" in many.stderr
    wrong = ipu_run("--plan", "2", "--fix", "q=3", str(script), cwd=tmp_path)
    assert wrong.returncode == 2 and "--fix 'q=3'" in wrong.stderr
    plain = write(tmp_path / "plain.py", "import torch\ntorch.nn.Linear(2, 2)(torch.ones(2))\n")
    nothing = ipu_run("--plan", "2", str(plain), cwd=tmp_path)
    assert nothing.returncode == 1
    assert "wrapped no model" in nothing.stderr and "to plan" in nothing.stderr
    alone = ipu_run("--verify", "3", str(script), cwd=tmp_path)
    assert alone.returncode == 2 and "--verify needs --plan N" in alone.stderr


def test_a_sweep_has_a_profile_and_a_row_of_every_combination(tmp_path: Path) -> None:
    script, out = write(tmp_path / "train.py", TRAIN), tmp_path / "out"
    asked = ("--sweep", "micro_batch=2,4", "--sweep", "Training.gradientAccumulation=4,8")
    swept = ipu_run(*asked, "--workers", "2", "--profile-dir", str(out), str(script), cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    table, problems = runs(sorted(out.glob("*/training/profile.pop")))
    assert not problems
    asked_for = settings_of(table)[["micro-batch", "Training.gradientAccumulation"]]
    assert asked_for.to_numpy().tolist() == [[2, 4], [2, 8], [4, 4], [4, 8]]
    for path, (size, turns) in zip(table["profile"], asked_for.to_numpy(), strict=True):
        with open_report(path) as report:
            assert report.options["Training.gradientAccumulation"] == turns
            assert report.meta["micro_batch"] == size
    assert "micro-batch" in swept.stdout and f"{table['cycles'][0]:,}" in swept.stdout
    wrong = ipu_run("--sweep", "Training.nothing=1", str(script), cwd=tmp_path)
    assert wrong.returncode == 2
    assert (
        "--sweep 'Training.nothing=1' is not a lever" in wrong.stderr
        and "--with" not in wrong.stderr
    )


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_an_ended_search_prints_what_was_found_and_leaves_no_worker(
    tmp_path: Path, ended_by: signal.Signals
) -> None:
    script = write(tmp_path / "train.py", TRAIN)
    cache = tmp_path / "cache"
    main = "import sys; from ipu_exec.commands.run import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "--plan", "4", "--workers", "2"]
    tried = ["--micro-batches", "1,2,4,8,16", "--proportions", "0.1,0.2,0.3,0.4,0.5,0.6"]
    with subprocess.Popen(
        [*command, *tried, "--csv", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPUSCOPE_CACHE": str(cache)},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as planning:
        # the second compile's costs are kept when the first one's are a mapping
        while planning.poll() is None and sum(one.is_file() for one in cache.rglob("*")) < 2:
            time.sleep(0.02)
        # a terminal ends all of them, `timeout` the one that it started
        (os.killpg if ended_by == signal.SIGINT else os.kill)(planning.pid, ended_by)
        out, err = planning.communicate(timeout=120)
    assert planning.returncode == 128 + ended_by, err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows and int(rows[0]["cycles"]) > 0
    assert "Traceback" not in err
    assert _ends(planning.pid)


def _ends(group: int) -> bool:
    """Whether nobody of a group of processes is left, after half a minute at most."""
    for _ in range(600):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_tuning_compares_the_training_as_it_is_with_what_is_allowed(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", SEQUENTIAL)
    words = ("--tune", "2", "--proportions", "0.6", "--micro-batches", "1", "--verify", "1")
    tuned = ipu_run(*words, "--allow", "half", str(script), cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    for name, levers in (("tuned.json", ""), ("tuned-half.json", "half")):
        plan = load(tmp_path / name)
        assert plan.levers == levers
        assert plan.modules  # the model names no Blocks: both plans say where they begin
        assert plan.best.obtained is not None and not plan.best.obtained.problem
    assert "Training as the script has it:" in tuned.stdout
    assert "With half:" in tuned.stdout
    command = next(line for line in tuned.stdout.splitlines() if "tuned-half.json" in line)
    assert "--with half" in command
    out = tmp_path / "out"
    options = ("--placement", "tuned-half.json", "--with", "half", "--profile-dir", str(out))
    assert ipu_run(*options, str(script), cwd=tmp_path).returncode == 0
    with open_report(out / "training") as report:
        obtained = load(tmp_path / "tuned-half.json").best.obtained
        assert obtained is not None and analysis.pace(report).cycles == obtained.cycles
        assert set(report.variables.query("role == 'weight'")["dtype"]) == {"float16"}


def test_tuning_with_overlap_plans_one_stage_a_replica(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", SEQUENTIAL)
    words = ("--tune", "2", "--proportions", "0.6", "--micro-batches", "1", "--verify", "2")
    tuned = ipu_run(*words, "--allow", "overlap", str(script), cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    assert "write: options.setExecutionStrategy(poptorch.ShardedExecution())" in tuned.stdout
    plan = load(tmp_path / "tuned-overlap.json")
    assert plan.levers == "overlap"
    assert {one.mapping.pipeline for one in plan.candidates} == {1}
    assert plan.exact and "every split, p and r with p=1 and every way" in plan.why[-1]
    assert plan.best.rate > load(tmp_path / "tuned.json").best.rate
    for one in plan.candidates[:2]:
        assert one.obtained is not None and one.cycles == one.obtained.cycles
    options = ("--placement", "tuned-overlap.json", "--with", "overlap", "--profile-dir", "out")
    assert ipu_run(*options, str(script), cwd=tmp_path).returncode == 0
    with open_report(tmp_path / "out" / "training") as report:
        obtained = plan.best.obtained
        assert obtained is not None and analysis.pace(report).cycles == obtained.cycles


def test_a_pipeline_that_is_planned_for_a_sharded_script_runs_as_one(tmp_path: Path) -> None:
    sharded = "poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())"
    script = write(tmp_path / "train.py", SEQUENTIAL.replace("poptorch.Options()", sharded))
    words = ("--plan", "2", "--proportions", "0.6", "--micro-batches", "1", "--fix", "p=2")
    planned = ipu_run(*words, "--write", "plan.json", str(script), cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    options = ("--placement", "plan.json", "--compile-only", "--profile-dir", "out")
    assert ipu_run(*options, str(script), cwd=tmp_path).returncode == 0
    with open_report(tmp_path / "out" / "training") as report:
        assert len(report.stages) == 2
        assert analysis.pace(report).cycles == load(tmp_path / "plan.json").best.cycles


def test_a_plan_stays_where_there_is_none_with_what_is_allowed(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", SEQUENTIAL.replace("16", "6656"))
    words = ("--plan", "4", "--proportions", "0.6", "--micro-batches", "1", "--allow", "overlap")
    planned = ipu_run(*words, str(script), cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert "Training as the script has it:" in planned.stdout
    last = planned.stdout.splitlines()[-1]
    assert last.startswith("With overlap: no mapping onto 4 IPUs fits") and "p=2" not in last
    assert last.endswith("Another p than the fixed 1 may fit.")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--plan", "2", "--with", "micro-batch=8"), "a plan decides it; use --micro-batches"),
        (("--plan", "2", "--with", "recompute=no"), "a plan decides it; use --fix recompute"),
        (("--plan", "2", "--with", "replicationFactor=2"), "a plan decides it; use --fix r=N"),
        (("--tune", "2", "--allow", "double"), "there are half, outputs, overlap to allow"),
        (
            ("--tune", "2", "--allow", "overlap", "--fix", "p=2"),
            "PopTorch refuses it in a pipeline",
        ),
        (("--with", "overlap,outputs=final"), "what leaves once"),
        (("--tune", "2", "--compile-only"), "leave --compile-only out"),
        (("--allow", "half"), "--allow needs --plan N or --tune N"),
    ],
)
def test_no_option_is_ignored(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    refused = ipu_run(*words, str(write(tmp_path / "train.py", TRAIN)), cwd=tmp_path)
    assert refused.returncode == 2
    assert why in refused.stderr


@pytest.mark.parametrize(
    ("levers", "keep", "fixed", "sizes"),
    [
        ("", "alone", (), ()),
        ("", "instances", ("r=1",), ()),
        ("recompute=no,state=in-parts", "alone", ("recompute=no", "rts=yes"), ()),
        ("micro-batches=8,micro-batch=2", "alone", ("r=1", "accumulation=8"), (2,)),
        ("Training.gradientAccumulation=4", "alone", ("r=1", "accumulation=4"), ()),
        ("replicationFactor=2,state=off-chip", "alone", ("r=2", "state=off-chip"), ()),
        ("replicas=1", "alone", ("r=1",), ()),
    ],
)
def test_a_plan_for_num_ipus_keeps_what_levers_say(
    levers: str, keep: str, fixed: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    call = SimpleNamespace(training=True, options=ipu_exec.Options())
    asked, left = commands._kept(Asked(4), cast(FirstCall, call), parse(levers), keep)
    assert (asked.fixed, asked.micro_batches) == (fixed, sizes)
    assert not (left.micro_batch or left.micro_batches or left.replicas)


class Normed(torch.nn.Module):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.layer, self.norm = torch.nn.Conv1d(3, 3, 1), norm

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x)).square().mean()


@pytest.mark.parametrize(
    ("norm", "rows", "why"),
    [
        (torch.nn.BatchNorm1d(3), 8, "batch norms"),
        (torch.nn.BatchNorm1d(3, track_running_stats=False), 8, "batch norms"),
        (torch.nn.InstanceNorm1d(3, affine=True), 8, ""),  # a batch norm to PyTorch
        (torch.nn.Identity(), 2, "inputs have 2 and 8"),
        (torch.nn.Identity(), 8, ""),
    ],
)
def test_a_micro_batch_that_means_more_than_its_size_stays(
    norm: torch.nn.Module, rows: int, why: str
) -> None:
    executor = ipu_exec.trainingModel(Normed(norm), ipu_exec.Options())
    call = executor.first_call(torch.zeros(8, 3, 4), torch.zeros(8))
    inputs = (torch.zeros(8, 3, 4), torch.zeros(rows))
    stays = why_one_micro_batch(Captured(replace(call, micro_batch=(inputs, {})), 1))
    assert stays.startswith(why) and bool(stays) == bool(why)


@pytest.mark.parametrize("couples", [True, False])
def test_a_micro_batch_stays_whose_samples_are_compared_with_each_other(couples: bool) -> None:
    """As in a softmax over the batch; attention compares a sample with itself."""

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            y = y.flatten(1) if couples else y
            return (y @ y.mT).softmax(-1).square().mean()

    executor = ipu_exec.trainingModel(Loss(), ipu_exec.Options())
    call = executor.first_call(torch.zeros(8, 3, 4))
    assert bool(why_one_micro_batch(Captured(call, 1))) is couples
