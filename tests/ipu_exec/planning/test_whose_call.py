"""Which call of a script is planned, and that no other command knows better than the plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ipuscope.planner.advice import advise, basis_of
from ipuscope.planner.advice.search import LEAST_GAIN
from ipuscope.planner.search.split_search import ALL_CHOICES, quickest
from ipuscope.profiler import open_report
from ipuscope.profiler.analysis.runs import runs
from tests.ipu_exec.test_run import ipu_run, write
from tests.paths import ROOT

BOTH = """
import sys
import poptorch
import torch

class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())

    def forward(self, x):
        x = self.body(x)
        return x, x.square().mean()

model = WithLoss()
options = poptorch.Options()
options.Training.gradientAccumulation(4)
training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
evaluation = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(2))
print("before", tuple(evaluation(torch.ones(4, 64))[0].shape))
if "train" in sys.argv:
    training(torch.ones(16, 64))
print("after")
"""
LIGHTNING = """
import lightning
import torch

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU())
        self.head = torch.nn.Linear(512, 8)

    def training_step(self, batch, _):
        return self.head(self.body(batch[0])).square().mean()

    def validation_step(self, batch, _):
        return self.head(self.body(batch[0])).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.TensorDataset(torch.randn(64, 64, generator=torch.manual_seed(1)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
trainer = lightning.Trainer(
    accelerator="ipu", devices=1, max_epochs=1, accumulate_grad_batches=8, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
module = Module()
trainer.fit(module, loader, loader)
print("sum", float(sum(p.double().abs().sum() for p in module.parameters())))
"""


TWO = """
import poptorch
import torch

class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(32, 32)

    def forward(self, x):
        return self.body(self.body(x).relu()).square().mean()

class Once(Twice):
    def forward(self, x):
        return self.body(x).square().mean()

options = poptorch.Options()
options.Training.gradientAccumulation(4)
for model in (Twice(), Once()):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = poptorch.trainingModel(model, options, optimizer)(torch.ones(32, 32))
    print(type(model).__name__, tuple(loss.shape))
"""


def test_a_plan_is_of_one_model_and_others_keep_what_the_script_says(tmp_path: Path) -> None:
    """A model whose modules run twice is one Block; each of two models has its profile."""
    script = write(tmp_path / "train.py", TWO)
    ran = ipu_run("--num-ipus", "2", "--profile-dir", "out", str(script), cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "is for another model: Once keeps the stages of the script" in ran.stderr
    table, _ = runs(
        [tmp_path / "out" / name / "profile.pop" for name in ("training", "training-2")]
    )
    assert table["model"].tolist() == ["Twice", "Once"]
    first, second = table["predicted_cycles"].tolist()
    assert first == table["cycles"].iloc[0] and second == 0
    assert table["samples"].tolist() == [32, 32] and table["ipus"].iloc[1] == 1


@pytest.mark.parametrize(("word", "kind"), [("train", "training"), ("", "inference")])
def test_an_evaluation_before_the_training_is_not_what_is_planned(
    tmp_path: Path, word: str, kind: str
) -> None:
    script = write(tmp_path / "train.py", BOTH)
    words = ("--plan", "1", "--micro-batches", "2,4", "--json", str(script), *word.split())
    planned = ipu_run(*words, cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    content = json.loads(planned.stdout)
    assert content["mapping"]["kind"] == kind
    assert content["mapping"]["script_samples"] == (16 if word else 4)
    assert "before (4, 64)" in planned.stderr and ("after" in planned.stderr) == (not word)
    words = ("--compile-only", "--profile-dir", "out", str(script), *word.split())
    compiled = ipu_run(*words, cwd=tmp_path)
    assert compiled.returncode == 0 and ("after" in compiled.stdout) == (not word)
    assert (tmp_path / "out" / kind / "profile.pop").is_file()


def test_a_trainers_training_is_planned_and_runs_as_planned(tmp_path: Path) -> None:
    """Its sanity check is no call to plan; an update keeps its samples, in other micro-batches."""
    script = write(tmp_path / "train.py", LIGHTNING)
    words = ("--plan", "2", "--fix", "r=2", "--micro-batches", "8", "--proportions", "0.6")
    planned = ipu_run(*words, "--write", "plan.json", str(script), cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    outputs = [
        ipu_run(*options, str(script), cwd=tmp_path)
        for options in ((), ("--placement", "plan.json", "--profile-dir", "out"))
    ]
    sums = [float(one.stdout.split()[-1]) for one in outputs]
    assert sums[0] == pytest.approx(sums[1], rel=1e-6)
    table = runs([tmp_path / "out" / "training" / "profile.pop"])[0].iloc[0]
    assert (table["samples"], table["micro_batch"], table["replicas"]) == (32, 8, 2)
    assert table["cycles"] == table["predicted_cycles"] > 0
    refused = ipu_run("--plan", "2", "--micro-batches", "2", str(script), cwd=tmp_path)
    assert refused.returncode == 1 and "joins its loader's batches of 4" in refused.stderr


BERT = """
import poptorch
from examples.models import build

example = build("bert-base", tiny=True)
options = poptorch.Options()
options.Training.gradientAccumulation(6)
optimizer = poptorch.optim.AdamW(example.module.parameters())
poptorch.trainingModel(example.module, options, optimizer)(*example.inputs(6))
"""
DEMO = (ROOT / "examples" / "mnist_pipeline.py").read_text()


@pytest.mark.parametrize(("script", "ipus"), [(BERT, 2), (DEMO, 4)])
def test_neither_rebalance_nor_advice_knows_better_than_num_ipus(
    tmp_path: Path, script: str, ipus: int
) -> None:
    """By the costs of its own profile; what these only estimate (micro-batches) is a compile's."""
    file = write(tmp_path / "train.py", script)
    words = ("--num-ipus", str(ipus), "--compile-only", "--profile-dir", "out", str(file))
    process = ipu_run(*words, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    with open_report(tmp_path / "out" / "training") as report:
        basis, advised = basis_of(report), advise(report)
        present = advised.present
        best = quickest(basis.costs, choices=ALL_CHOICES).prediction.total
        assert present.surely and best >= present.cycles * (1 - LEAST_GAIN)
        others = [one for one in advised.every if "outputs" not in one.levers.pulled]
        assert not [one.title for one in others if not one.estimate]
