"""Tensor sharding together with what else a script may ask for."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ipu_exec
from examples.models.gpt2 import Decoder
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler import open_report
from ipuscope.profiler.analysis.critical_path import critical_path
from ipuscope.profiler.enums import Purpose
from ipuscope.profiler.timeline import schedule_types
from tests.ipu_exec.capture.test_sharding import CONFIG, PLAN, OneLayer, compiled

LAYERS, MICRO_BATCHES = 2, 8
OF_LAYERS = {name.replace("layer", "layers.*"): style for name, style in PLAN.items()}


class Layers(nn.Module):
    """A Block and a stage a transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Decoder(CONFIG) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            with ipu_exec.Block(f"L{number}"):
                x = layer(x)
        with ipu_exec.Block("loss"):
            return ipu_exec.identity_loss(x.square(), reduction="mean")


def trained(
    shards: int, folder: Path | None = None, stages: Any = None, **settings: Any
) -> ipu_exec.PoplarExecutor:
    torch.manual_seed(0)
    options = ipu_exec.Options().showCompilationProgressBar(False)
    if folder is not None:
        options.enableProfiling(folder)
    two = (ipu_exec.Stage("L0").ipu(0), ipu_exec.Stage("L1", "loss").ipu(1))
    options.setExecutionStrategy(stages or ipu_exec.PipelinedExecution(*two))
    options.tensorSharding(shards, OF_LAYERS).Training.gradientAccumulation(MICRO_BATCHES)
    if settings.get("off_chip"):
        location = ipu_exec.TensorLocationSettings().useOnChipStorage(False)
        options.TensorLocations.setOptimizerLocation(location)
    if not settings.get("recompute", True):
        options._Popart.set("autoRecomputation", 0)
    model = Layers()
    optimizer = ipu_exec.optim.AdamW(model.parameters(), lr=0.01)
    return ipu_exec.trainingModel(model, options, optimizer)


def batch() -> torch.Tensor:
    return torch.ones(MICRO_BATCHES, CONFIG.sequence, CONFIG.hidden)


def bodies(executable: Any, task: int) -> list[Any]:
    return [body for body in executable.tree.bodies if body.task == task]


def test_recomputation_repeats_the_collectives_of_the_forward() -> None:
    def reduced(recompute: bool, task: int) -> int:
        model = trained(2, recompute=recompute)
        model.compile(batch())
        first = [body for body in bodies(model.executable, task) if body.stage == 0]
        model.destroy()
        return sum(step.type == "GlobalExchange" for body in first for step in body.steps)

    assert reduced(True, schedule_types.FORWARD) == reduced(False, schedule_types.FORWARD) == 2
    # the second sum is the layer's result, which nothing in its backward needs
    assert reduced(True, schedule_types.RECOMPUTE) == 1
    assert reduced(False, schedule_types.RECOMPUTE) == 0


def test_state_off_the_chip_comes_in_shares() -> None:
    def moved(shards: int) -> int:
        model = trained(shards, off_chip=True)
        model.compile(batch())
        (update, _) = bodies(model.executable, schedule_types.UPDATE)
        state = [v for v in model.executable.variables if v.role == "optimiser state"]
        assert not any(variable.always_live for variable in state if variable.bytes > 4)
        model.destroy()
        loads = [step for step in update.steps if step.purpose is Purpose.REMOTE_LOAD]
        return sum(move.bytes for step in loads for move in step.moves)

    matrices = 12 * CONFIG.hidden**2 * 2 * 4  # a layer's, two states each
    assert moved(1) - moved(4) == pytest.approx(matrices * 3 / 4, rel=0.01)  # and biases


def test_a_saved_executable_is_loaded(tmp_path: Path) -> None:
    file = str(tmp_path / "sharded.poptorch")
    first = trained(2)
    first.compileAndExport(file, batch())
    second = trained(2)
    second.loadExecutable(file)
    assert second.executable.options.shards == 2
    assert second.executable.cycles_per_call == first.executable.cycles_per_call
    losses = [float(model(batch())) for model in (first, second)]
    assert losses[0] == losses[1]
    whole = Layers()
    whole.layers[0].qkv = nn.Linear(CONFIG.hidden, CONFIG.hidden)
    other = ipu_exec.trainingModel(whole, second.options, torch.optim.SGD(whole.parameters(), 0.1))
    with pytest.raises(ipu_exec.Error, match=r"compiled for another model: it has layers.0.qkv"):
        other.loadExecutable(file)
    first.destroy()
    second.destroy()


@pytest.mark.parametrize("shards", [2, 4])
def test_rebalance_predicts_a_sharded_pipeline(tmp_path: Path, shards: int) -> None:
    """The profiled split is predicted with the cycles that it takes."""
    model = trained(shards, tmp_path)
    model.compile(batch())
    report = open_report(tmp_path)
    costs = Costs.from_report(report)
    predicted = what_if(costs, Assignment.of(costs.stage.tolist()))
    assert predicted.schedule.total == model.executable.cycles_per_call
    waits = critical_path(report).groupby("cause")["cycles"].sum()
    assert 0 < waits["collective over shards"] < waits["compute"]
    model.destroy()


def test_rebalance_of_phases_names_the_way_out(tmp_path: Path) -> None:
    first, second = ipu_exec.Stage("L0").ipu(0), ipu_exec.Stage("L1", "loss").ipu(0)
    phases = ipu_exec.PipelinedExecution(ipu_exec.Phase(first), ipu_exec.Phase(second))
    model = trained(2, tmp_path, phases)
    model.compile(batch())
    with pytest.raises(ValueError, match=r"was phased.*--plan"):
        Costs.from_report(open_report(tmp_path))
    model.destroy()


def test_norms_of_all_gradients_are_summed_over_the_shares() -> None:
    """``max_grad_norm``: each cut gradient's norm is all-reduced; the model's own is as before."""
    model = OneLayer()
    optimizer = ipu_exec.optim.AdamW(model.parameters(), lr=0.1, max_grad_norm=1.0)
    executable = compiled(2, PLAN, model, optimizer=optimizer)
    (update,) = bodies(executable, schedule_types.UPDATE)
    steps = [step for step in update.steps if step.type == "GlobalExchange"]
    reduced = {executable.graph.ops[step.op].name.split("/update")[0] for step in steps}
    cut = ("qkv/weight", "qkv/bias", "expand/weight", "expand/bias")
    assert reduced == {f"layer/{name}" for name in (*cut, "output/weight", "contract/weight")}
    assert all(step.cycles > 0 and step.bytes_in.sum() == 4 for step in steps)


def test_clipped_numbers_are_the_unsharded_models() -> None:
    def weights(shards: int) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = OneLayer()
        options = ipu_exec.Options().showCompilationProgressBar(False).tensorSharding(shards, PLAN)
        optimizer = ipu_exec.optim.AdamW(model.parameters(), lr=0.1, max_grad_norm=0.01)
        step = ipu_exec.trainingModel(model, options, optimizer)
        step(torch.randn(1, CONFIG.sequence, CONFIG.hidden))
        step.copyWeightsToHost()
        return [parameter.detach().clone() for parameter in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(1), weights(4), strict=True))


class Heads(nn.Module):
    """Queries by head, with either size left to -1."""

    def __init__(self, heads_are_said: bool) -> None:
        super().__init__()
        self.query = nn.Linear(CONFIG.hidden, CONFIG.hidden)
        self.out = nn.Linear(CONFIG.hidden, CONFIG.hidden)
        each = CONFIG.hidden // CONFIG.heads
        self.sizes = (CONFIG.heads, -1) if heads_are_said else (-1, each)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("heads"):
            q = torch.tanh(self.query(x))
            q = q.view(*x.shape[:2], *self.sizes).transpose(1, 2)
            mixed = (q @ q.transpose(-1, -2)) @ q
            return self.out(mixed.transpose(1, 2).flatten(2)).square().mean()


def test_a_view_that_names_the_heads_is_noticed() -> None:
    plan = {"query": "colwise", "out": "rowwise"}
    with pytest.warns(
        UserWarning, match=r"has 8, of 16 instead of 32 .*view\(batch, length, -1, 32"
    ):
        compiled(2, plan, Heads(True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(2, plan, Heads(False))
        compiled(1, plan, Heads(True))
