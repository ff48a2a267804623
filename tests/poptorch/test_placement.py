"""What PopTorch's own tests read off PopART's log of placement, asked of our profile.

Its tests of pipelining and of phased execution look for lines such as ``Mul:0/1 ... ipu(1),
stage(2)``; a profile has each operator's stage and IPU as columns, and a pipeline's schedule as
tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import ipu_exec as poptorch
from ipuscope.profiler import open_report
from tests.models import model_of


def forward_ops(
    folder: Path, model: nn.Module, options: poptorch.Options, *inputs: torch.Tensor
) -> pd.DataFrame:
    """The forward operators of an inference profile."""
    options.enableProfiling(folder)
    poptorch.inferenceModel(model, options.showCompilationProgressBar(False)).compile(*inputs)
    ops = open_report(folder / "inference").ops
    return ops[ops["direction"] == "forward"]


def places(ops: pd.DataFrame, name: str) -> list[tuple[int, int]]:
    """(stage, IPU) of the operators with that PopART name, in order."""
    matching = ops[ops["popart_name"].str.fullmatch(rf"(.*/)?{name}(/\d+)?")]
    return list(zip(matching["stage"].tolist(), matching["ipu"].tolist(), strict=True))


def blocks_on(ipus: Iterable[int]) -> Callable[..., torch.Tensor]:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        poptorch.Block.useAutoId()
        for ipu in ipus:
            with poptorch.Block(ipu_id=ipu):
                x = x * (ipu + 2)
        return x

    return forward


@pytest.mark.parametrize(
    ("auto", "expected"),
    [
        (poptorch.AutoStage.AutoIncrement, [(0, 0), (1, 1), (2, 2), (3, 1)]),
        (poptorch.AutoStage.SameAsIpu, [(0, 0), (1, 1), (2, 2), (2, 2)]),
    ],
)
def test_stages_are_counted_or_those_of_their_ipus(
    tmp_path: Path, auto: poptorch.AutoStage, expected: list[tuple[int, int]]
) -> None:
    last = 1 if auto is poptorch.AutoStage.AutoIncrement else 2
    options = poptorch.Options().deviceIterations(4).autoRoundNumIPUs(True)
    options.setExecutionStrategy(poptorch.PipelinedExecution(auto))
    model = model_of(blocks_on([0, 1, 2, last]))
    ops = forward_ops(tmp_path, model, options, torch.ones(4, 5))
    assert places(ops, "Mul") == expected
    report = open_report(tmp_path / "inference")
    assert report.meta["strategy"] == "pipelined"
    assert len(report.stages) == len({stage for stage, _ in expected})


class Layers(nn.Module):
    """Two blocks of three rectifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.b1 = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())
        self.b2 = nn.Sequential(nn.ReLU(), nn.ReLU(), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b2(self.b1(x))  # type: ignore[no-any-return]


def test_blocks_begin_where_they_were_put_and_end_when_they_are_taken_away(tmp_path: Path) -> None:
    model = Layers()
    poptorch.BeginBlock(model.b1[1], ipu_id=1)
    poptorch.BeginBlock(model.b2, ipu_id=2)

    def of(folder: str) -> list[tuple[int, int]]:
        options = poptorch.Options().deviceIterations(4).useOfflineIpuTarget()
        return places(forward_ops(tmp_path / folder, model, options, torch.ones(4, 3)), "Relu")

    assert of("pipelined") == [(0, 0), (1, 1), (1, 1), (2, 2), (2, 2), (2, 2)]
    poptorch.removeBlocks(model)
    assert of("plain") == [(0, 0)] * 6


def test_a_stage_has_the_ipu_that_the_strategy_gives_it(tmp_path: Path) -> None:
    model = Layers()
    poptorch.BeginBlock(model.b1, "first")
    poptorch.BeginBlock(model.b2, "second")
    strategy = poptorch.PipelinedExecution(poptorch.Stage("first"), poptorch.Stage("second"))
    strategy.stage("first").ipu(1)
    strategy.stage("second").ipu(0)
    options = poptorch.Options().deviceIterations(4)
    options.setExecutionStrategy(strategy)
    ops = forward_ops(tmp_path, model, options, torch.ones(4, 3))
    assert places(ops, "Relu") == [(0, 1)] * 3 + [(1, 0)] * 3


def test_phases_of_two_groups_of_ipus_take_turns(tmp_path: Path) -> None:
    """PopTorch's 2 x 2 model: even phases on IPUs 0 and 2, odd ones on 1 and 3."""

    def forward(self: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        for phase in range(4):
            outs = []
            for group, x in enumerate((left, right)):
                with poptorch.Block(str(phase), ipu_id=phase % 2 + 2 * group):
                    outs.append(torch.relu(x @ self.weight))
            right, left = outs
        with poptorch.Block("3", ipu_id=3):
            return left + right

    options = poptorch.Options()
    options.setExecutionStrategy(poptorch.ParallelPhasedExecution("0", "1", "2", "3"))
    model = model_of(forward, weight=nn.Parameter(torch.rand(4, 4)))
    ops = forward_ops(tmp_path, model, options, torch.ones(2, 4), torch.ones(2, 4))
    assert [ipu for _, ipu in places(ops, "MatMul")] == [0, 2, 1, 3, 0, 2, 1, 3]
    assert [ipu for _, ipu in places(ops, "Add")] == [3]
    assert open_report(tmp_path / "inference").meta["strategy"] == "phased"


@pytest.mark.parametrize(
    ("liveness", "phases", "apart"),
    [
        (poptorch.Liveness.AlwaysLive, 3, 1),
        (poptorch.Liveness.OffChipAfterFwd, 6, 1),
        (poptorch.Liveness.OffChipAfterFwdNoOverlap, 8, 2),
        (poptorch.Liveness.OffChipAfterEachPhase, 12, 4),
    ],
)
def test_the_log_numbers_phases_as_popart_does(
    liveness: poptorch.Liveness, phases: int, apart: int, caplog: pytest.LogCaptureFixture
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        for name in "abc":
            with poptorch.Block(name):
                x = x * 2
        return x

    strategy = poptorch.SerialPhasedExecution("a", "b", "c").setTensorsLiveness(liveness)
    options = poptorch.Options().showCompilationProgressBar(False)
    options.setExecutionStrategy(strategy)
    with caplog.at_level("DEBUG", logger="ipu_exec"):
        poptorch.inferenceModel(model_of(forward), options).compile(torch.ones(2))
    assert f"executionPhaseSettings.phases set to value {phases}\n" in caplog.text
    assert "executionPhaseSettings.stages set to value 1" in caplog.text
    for number in range(3):
        assert f"mode(Phased), ipu(0), phase({number * apart})]" in caplog.text
