"""`ipu-run --num-ipus` puts a plain PyTorch model on several IPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipuscope.profiler import open_report
from tests.ipu_exec.test_run import FOUR_BLOCKS, ipu_run, write

TRANSFORMER = """
import poptorch
import torch

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding({words}, 16)
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            for _ in range({layers})
        )
        self.head = torch.nn.Linear(16, {words}, bias=False)
        if {tied}:
            self.head.weight = self.embed.weight

    def forward(self, x):
        y = self.embed(x)
        for layer in self.layers:
            y = layer(y)
        y = self.head(y)
        return torch.nn.functional.cross_entropy(y.flatten(0, 1), x.flatten())

model = Network()
options = poptorch.Options()
# lines
training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
training(torch.randint({words}, (16, 4)))
"""

SEQUENTIAL = """
import poptorch
import torch

class WithLoss(torch.nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x, y):
        x = self.body(x)
        return x, torch.nn.functional.mse_loss(x, y)

layers = [torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16), torch.nn.ReLU()]
model = WithLoss(torch.nn.Sequential(*layers, torch.nn.Linear(16, 16)))
training = poptorch.trainingModel(model, poptorch.Options())
output, loss = training(torch.randn(6, 16), torch.randn(6, 16))
print("trained", output.shape[0])
"""


def placed(profile: Path) -> list[tuple[int, str]]:
    with open_report(profile) as report:
        return list(zip(report.stages["ipu"].tolist(), report.stages["blocks"], strict=True))


def test_the_printed_lines_give_the_placement_that_was_chosen(tmp_path: Path) -> None:
    plain = TRANSFORMER.format(words=32, layers=2, tied=False)
    write(tmp_path / "plain.py", plain)
    asked = ("--compile-only", "--autoreport")
    pipeline = ("--with", "micro-batches=8,micro-batch=2")  # replicas would be quicker
    process = ipu_run("--num-ipus", "4", *pipeline, *asked, "plain", "plain.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    lines = [line.strip() for line in process.stderr.splitlines() if line.startswith("  ")]
    assert 'poptorch.BeginBlock(model.embed, "embed", ipu_id=0)' in lines
    assert "options.Training.gradientAccumulation(8)" in lines
    assert [ipu for ipu, _ in placed(tmp_path / "plain")] == [0, 1, 2, 3]

    write(tmp_path / "pasted.py", plain.replace("# lines", "\n".join(lines)))
    pasted = ipu_run(*asked, "pasted", "pasted.py", cwd=tmp_path)
    assert pasted.returncode == 0, pasted.stderr
    assert placed(tmp_path / "pasted") == placed(tmp_path / "plain")


def test_an_unmodified_script_trains_the_same_on_several_ipus(tmp_path: Path) -> None:
    """Replicas and micro-batches are chosen, and the script's loss is still one number."""
    script = SEQUENTIAL.replace("import torch", "import torch\ntorch.manual_seed(0)")
    script = script.replace("16, 16", "512, 512").replace("(6, 16)", "(512, 512)")
    script += "print(loss.item() > 0, f'{model.body[0].weight.sum().item():.4f}')"
    write(tmp_path / "train.py", script)
    process = ipu_run("--num-ipus", "2", "--autoreport", "out", "train.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    trained, weights = process.stdout.splitlines()
    assert trained == "trained 256"  # the last replica's last micro-batch
    assert weights == ipu_run("train.py", cwd=tmp_path).stdout.splitlines()[1]
    assert "r=2, 3, micro-batch 256 x 1" in process.stderr
    with open_report(tmp_path / "out") as report:
        assert report.target.num_replicas == 2


def test_a_large_tied_weight_stays_on_one_ipu(tmp_path: Path) -> None:
    write(tmp_path / "tied.py", TRANSFORMER.format(words=8192, layers=2, tied=True))
    asked = ("--with", "micro-batches=8,micro-batch=2", "--autoreport", "out")
    process = ipu_run("--num-ipus", "2", *asked, "tied.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "is on IPU 0 again, with the tied weight" in process.stderr
    assert "AutoStage.AutoIncrement" in process.stderr
    assert [ipu for ipu, _ in placed(tmp_path / "out")] == [0, 1, 0]


def test_outputs_of_every_second_micro_batch_fix_replicas(tmp_path: Path) -> None:
    line = "network = Network()"
    every = f"options.outputMode(poptorch.OutputMode.EveryN, 2)\n{line}"
    write(tmp_path / "train.py", FOUR_BLOCKS.replace(line, every))
    asked = ("--with", "micro-batch=2", "--autoreport", "out")
    process = ipu_run("--num-ipus", "4", *asked, "train.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "p=2 r=1, 3-1, micro-batch 2 x 4" in process.stderr
    assert [ipu for ipu, _ in placed(tmp_path / "out")] == [0, 1]


def test_the_compile_for_costs_takes_the_other_options_too(tmp_path: Path) -> None:
    kept_on_cpu = "x = self.body(x) + torch.FloatTensor([1.0])"
    write(tmp_path / "train.py", SEQUENTIAL.replace("x = self.body(x)", kept_on_cpu))
    asked = ("--num-ipus", "2", "--autoreport", "out", "--with", "half,micro-batch=6")
    refused = ipu_run(*asked, "train.py", cwd=tmp_path)
    assert refused.returncode == 2 and "Expected an IPU tensor" in refused.stderr
    process = ipu_run(*asked, "--lenient", "train.py", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    with open_report(tmp_path / "out") as report:
        assert set(report.variables.query("role == 'weight'")["dtype"]) == {"float16"}


def test_a_block_that_no_ipu_holds_is_named_with_what_would_help(tmp_path: Path) -> None:
    write(tmp_path / "large.py", TRANSFORMER.format(words=1 << 21, layers=1, tied=False))
    process = ipu_run("--num-ipus", "2", "--target", "mk1", "large.py", cwd=tmp_path)
    assert process.returncode == 2
    assert "the nearest needs" in process.stderr and "of IPU 1" in process.stderr
    assert "Block head alone is more than an IPU holds, whatever is saved" in process.stderr
    assert "(Options.tensorSharding)" in process.stderr


@pytest.mark.parametrize(
    ("asked", "code"),
    [((), 0), (("--profile-dir", "out"), 1), (("--compile-only",), 1), (("--num-ipus", "2"), 2)],
)
def test_a_script_that_wraps_no_model_is_told_what_to_write(
    tmp_path: Path, asked: tuple[str, ...], code: int
) -> None:
    """It fails where something was asked of a model, however well the script ends."""
    layer = "torch.nn.Linear(2, 2)(torch.ones(2))"
    write(tmp_path / "plain.py", f"import sys, torch\nprint({layer})\nsys.exit(0)")
    process = ipu_run(*asked, "plain.py", cwd=tmp_path)
    assert process.returncode == code
    assert "plain.py wrapped no model" in process.stderr
    assert "poptorch.trainingModel(module, poptorch.Options(), optimizer)" in process.stderr
