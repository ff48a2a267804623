"""The longest waits in words: which IPUs wait, for what, and for which tensors."""

from __future__ import annotations

from pathlib import Path

import torch

import ipu_exec
from ipuscope import profiler
from ipuscope.profiler.analysis.waits import longest_waits
from tests.compiling import compiled


def test_the_demo_waits_for_the_host_and_for_its_slowest_stage(demo: Path) -> None:
    report = profiler.open_report(demo / "training")
    rows = longest_waits(report)
    assert rows["cycles"].is_monotonic_decreasing
    first, second = rows["what"].tolist()[:2]
    assert first.startswith("from the host: input.0 ")
    assert second.startswith("stage 1 computes; most in layer2/conv/")
    copies = next(words for words in rows["what"] if words.startswith("copies between IPU"))
    assert copies.startswith("copies between IPU 1 and IPUs 0 and 2: layer1/relu:0 ")


def test_what_a_step_moves_adds_up_to_its_bytes(demo: Path) -> None:
    """`moved_tensors` agrees with the bytes over tiles, for streams and copies between IPUs."""
    report = profiler.open_report(demo / "training")
    steps = report.program_steps().set_index("step")
    by_step = report.sequence.moved_tensors.groupby("step")["bytes"].sum()
    assert len(by_step) > 4
    for step, nbytes in by_step.items():
        row = steps.loc[step]
        assert nbytes == row["bytes_in"] + row["bytes_out"], row["name"]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = torch.nn.Embedding(512, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in "abc":
            with ipu_exec.Block(name):
                x = self.words(x) if name == "a" else torch.relu(self.layer(x))
        with ipu_exec.Block("d"):
            return (x @ self.words.weight.T).square().mean()


def test_a_tied_weight_that_comes_in_a_phase_has_one_end_there(tmp_path: Path) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    options.Training.gradientAccumulation(8)
    a, b, c, d = (ipu_exec.Stage(name).ipu(n % 2) for n, name in enumerate("abcd"))
    phases = ipu_exec.Phase(a, b), ipu_exec.Phase(c, d)
    options.setExecutionStrategy(ipu_exec.PipelinedExecution(*phases))
    compiled(Tied(), torch.zeros(32, dtype=torch.long), options=options)
    rows = longest_waits(profiler.open_report(tmp_path / "training"))
    assert any(words.startswith("copies of IPU 1: words.weight") for words in rows["what"])
