"""Advice that frees memory of a tile, compared with compiles that follow it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

import ipu_exec
from benchmarks.rebalance.random_costs import random_costs
from ipu_exec.option_groups.engine_options import LEVERS_VARIABLE
from ipuscope.planner.advice import Basis, relief, way_to_fit
from ipuscope.planner.advice.relief import _moves as moved_blocks
from ipuscope.planner.insights import insights
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.planner.search.what_fits import too_large
from ipuscope.profiler import Report, open_report
from tests.models import Mlp


def compiled(folder: Path, ipus: list[int]) -> tuple[Report, str]:
    """Compile five layers of 4,096 on the given IPUs; returns the profile and any error message."""
    model = Mlp([4096] * 6, ipus)
    options = ipu_exec.Options(autoreport=True, autoreport_dir=folder)
    options.showCompilationProgressBar(False).Training.gradientAccumulation(4)
    optimizer = ipu_exec.optim.AdamW(model.parameters())
    executor = ipu_exec.trainingModel(model, options, optimizer)
    inputs = torch.zeros(16, 4096), torch.zeros(16, 4096)
    said = ""
    try:
        executor.compile(*inputs)
    except ipu_exec.OutOfMemoryError as error:
        said = error.message
    return open_report(folder / "training"), said


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, str]:
    return compiled(tmp_path_factory.mktemp("over"), [0, 0, 0, 0, 1])


@pytest.fixture(scope="module")
def over(refused: tuple[Report, str]) -> Report:
    return refused[0]


def test_the_error_says_what_frees_most(refused: tuple[Report, str]) -> None:
    report, said = refused
    assert "What frees most of that tile:" in said
    assert relief(report)[0].command in said
    commands = [shlex.split(one.command) for one in relief(report)]
    assert {word for one in commands for word in one if "PROFILE" in word} == set()
    of_profile = [one for one in commands if one[0] == "ipu-report"]
    assert of_profile and all(str(report.path.parent) in one for one in of_profile)
    assert way_to_fit(report) in said


def test_a_model_of_one_block_is_sent_to_more_ipus() -> None:
    one, two = (random_costs(np.random.default_rng(1), n).with_tile_bytes(1) for n in (1, 2))
    assert "its parts may fit on more IPUs" in too_large(one)
    assert "alone is more than an IPU holds" in too_large(two)


def test_the_fewest_changes_are_one_command_that_fits(
    refused: tuple[Report, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = way_to_fit(refused[0])
    assert changes.startswith(
        "Predicted to fit without doubt, with the fewest changes: optimiser state off chip."
    )
    assert "ipu-run --with state=off-chip " in changes
    tried: list[str] = []
    assert "It compiles with the fewest changes: " in way_to_fit(
        refused[0], compiled=lambda levers: tried.append(levers.state) is None
    )
    assert "changes, but it does not compile: " in way_to_fit(refused[0], compiled=lambda _: False)
    assert tried == ["off-chip"]
    monkeypatch.setenv(LEVERS_VARIABLE, "state=off-chip")
    _, said = compiled(tmp_path, [0, 0, 0, 0, 1])
    assert not said
    alone = way_to_fit(refused[0], 1)
    assert "ipu-run --num-ipus 1 --with half,state=off-chip " in alone
    assert "Fewer may do: optimiser state off chip, another split. This shows whether" in alone
    came = way_to_fit(refused[0], 1, compiled=lambda levers: not levers.half)
    assert came.startswith("It compiles with the fewest changes: optimiser state off chip,")


@pytest.mark.parametrize(
    ("ipu", "expected"),
    [
        (0, {"Block B to stage 1": (0, 1, 5)}),
        (1, {"Block C to stage 0": (0, 3, 5), "Block E to stage 2": (0, 2, 4)}),
        (2, {"Block F to stage 1": (0, 2, 6)}),
    ],
)
def test_blocks_move_to_neighbouring_stages(ipu: int, expected: dict[str, tuple[int, ...]]) -> None:
    costs = replace(random_costs(np.random.default_rng(0), 7, 4, stages=3), names=tuple("ABCDEFG"))
    basis = SimpleNamespace(costs=costs, present=Assignment((0, 2, 5), (0, 1, 2)))
    moves = moved_blocks(cast(Basis, basis), ipu)
    assert {words: split.starts for words, split in moves} == expected


def fullest(report: Report, ipu: int) -> int:
    return int(report.tiles(ipu)["total"].max())


def test_what_frees_most_comes_first(over: Report) -> None:
    freed = relief(over)
    assert over.meta["state"] == "out of memory"
    assert [one.freed for one in freed] == sorted((one.freed for one in freed), reverse=True)
    assert len(freed) >= 3
    assert all(one.command.startswith(("ipu-run --with", "ipu-report")) for one in freed)
    first = insights(over)[0]
    assert "overflow" in first.title
    assert freed[0].title in first.code[0]
    assert freed[0].command in first.code[0]
    assert first.code[-1] == way_to_fit(over)


@pytest.mark.parametrize("what", ["optimiser state off chip", "Block L3 to stage 1"])
def test_a_compile_frees_what_was_said(
    over: Report, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = (one for one in relief(over) if one.title == what)
    moved = what.startswith("Block")
    if not moved:
        monkeypatch.setenv(LEVERS_VARIABLE, one.command.split()[2])
    after, _ = compiled(tmp_path, [0, 0, 0, 1, 1] if moved else [0, 0, 0, 0, 1])
    assert fullest(over, 0) - fullest(after, 0) == pytest.approx(one.freed, rel=0.2)
    if one.fits == "fits":
        assert after.meta["state"] != "out of memory"
    if moved:
        assert one.where == "/rebalance?starts=0,3"
        assert one.command.endswith("--assign 3-2")


def test_a_module_that_no_ipu_holds_is_named_and_no_number_of_ipus_is(tmp_path: Path) -> None:
    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4096, 4096) for _ in range(2))
            self.head = torch.nn.Linear(4096, 1 << 16, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x).relu()
            return self.head(x).square().mean()

    with ipu_exec.no_weights():
        model = Wide()
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    options.showCompilationProgressBar(False).Training.gradientAccumulation(4)
    optimizer = ipu_exec.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ipu_exec.OutOfMemoryError) as refused:
        ipu_exec.trainingModel(model, options, optimizer).compile(torch.zeros(4, 4096))
    said = str(refused.value)
    assert "The largest of the model, each by itself: head " in said
    assert "layers.0 (of 2) " in said or "layers.1 (of 2) " in said
    assert "More IPUs alone do not help: head by itself needs " in said
    assert "--num-ipus" not in said
