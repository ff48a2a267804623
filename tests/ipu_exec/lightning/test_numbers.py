"""A fit on IPUs is one on a CPU, bit for bit: weights, logged values, checkpoints, decisions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from lightning.pytorch import LightningModule
from torch.utils.data import BatchSampler, DataLoader

import ipu_exec as poptorch
from ipu_exec.lightning import IPUStrategy
from ipuscope.profiler import open_report
from tests.ipu_exec.lightning import modules
from tests.ipu_exec.lightning.modules import Run, fit

OnCpu = Callable[..., Run]
SINGLE = (
    modules.Boring,
    modules.Demo,
    modules.Words,
    modules.Recurrent,
    modules.Classifier,
    modules.Convolutions,
    modules.Metrics,
    modules.BranchesOnData,
    modules.BranchesOnNumbers,
    modules.Streams,
    modules.Hooks,
    modules.Uneven,
)
PIPELINED = (modules.Stages, modules.BlocksInInit, modules.BlocksInConfigureModel)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> OnCpu:
    """The run of a module on a CPU, once for all that are compared with it."""

    @cache
    def run(kind: type[LightningModule], **settings: Any) -> Run:
        return fit(kind, tmp_path_factory.mktemp("cpu"), accelerator="cpu", **settings)[0]

    return run


def same(actual: Run, expected: Run) -> None:
    """Bit-for-bit equality of everything a run leaves."""
    assert actual.weights.keys() == expected.weights.keys()
    for name, value in expected.weights.items():
        assert torch.equal(actual.weights[name], value), name
    assert actual.metrics == expected.metrics
    assert actual.rows == expected.rows
    assert actual.decisions == expected.decisions
    same_tree(actual.checkpoint["optimizer_states"], expected.checkpoint["optimizer_states"])
    same_tree(actual.checkpoint["lr_schedulers"], expected.checkpoint["lr_schedulers"])
    same_tree(actual.checkpoint["loops"], expected.checkpoint["loops"])


def same_tree(actual: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            same_tree(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            same_tree(one, other)
    else:
        assert actual == expected


@pytest.mark.parametrize("kind", SINGLE, ids=lambda kind: kind.__name__)
def test_one_ipu(on_cpu: OnCpu, kind: type[LightningModule], tmp_path: Path) -> None:
    expected = on_cpu(kind)
    actual, trainer = fit(kind, tmp_path / "ipu", accelerator="ipu", devices=1)
    same(actual, expected)
    assert all(model.isCompiled() is False for model in trainer.strategy.poptorch_models.values())


@pytest.mark.parametrize("kind", PIPELINED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_pipeline(
    on_cpu: OnCpu, kind: type[LightningModule], devices: int, tmp_path: Path
) -> None:
    four = {"accumulate_grad_batches": 4}  # a power of two: dividing by it rounds nothing
    expected = on_cpu(kind, **four)
    actual, _ = fit(kind, tmp_path / "ipu", accelerator="ipu", devices=devices, **four)
    same(actual, expected)


def test_sharded_and_clipped_over_both_stages(on_cpu: OnCpu, tmp_path: Path) -> None:
    def options() -> poptorch.Options:
        return poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())

    clipped = {"gradient_clip_val": 0.05}
    expected = on_cpu(modules.BlocksInInit, **clipped)
    strategy = IPUStrategy(
        autoreport_dir=tmp_path, training_opts=options(), inference_opts=options()
    )
    actual, _ = fit(modules.BlocksInInit, tmp_path / "ipu", strategy=strategy, devices=2, **clipped)
    same(actual, expected)
    with open_report(tmp_path / "training") as report:
        assert report.meta["strategy"] == "sharded"
        update = report.ops[report.ops.direction == "update"]
        norms = update[update.aten.str.contains("norm")]
        assert set(norms.stage) == {0, 1}


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_clipped_gradients(on_cpu: OnCpu, algorithm: str, tmp_path: Path) -> None:
    clipped = {"gradient_clip_val": 0.05, "gradient_clip_algorithm": algorithm}
    expected = on_cpu(modules.Classifier, **clipped)
    actual, _ = fit(modules.Classifier, tmp_path / "ipu", accelerator="ipu", devices=1, **clipped)
    same(actual, expected)
    unclipped = on_cpu(modules.Classifier)
    assert actual.metrics != unclipped.metrics


@pytest.mark.parametrize("iterations", [2, 5])
def test_device_iterations(on_cpu: OnCpu, iterations: int, tmp_path: Path) -> None:
    expected = on_cpu(modules.Classifier, max_steps=15)
    strategy = IPUStrategy(device_iterations=iterations)
    actual, _ = fit(
        modules.Classifier, tmp_path / "ipu", strategy=strategy, devices=1, max_steps=15
    )
    same(actual, expected)
    assert actual.decisions[3] == 15


class Fourfold(modules.Classifier):
    """A batch of what four replicas have."""

    batch_size = 4 * modules.Classifier.batch_size


class Twofold(modules.Classifier):
    batch_size = 2 * modules.Classifier.batch_size


@pytest.mark.parametrize(("replicas", "kind"), [(2, Twofold), (4, Fourfold)])
def test_replicas(
    on_cpu: OnCpu, replicas: int, kind: type[LightningModule], tmp_path: Path
) -> None:
    expected = on_cpu(kind)
    close(
        fit(modules.Classifier, tmp_path / "ipu", accelerator="ipu", devices=replicas)[0], expected
    )


class Sampled(modules.Hooks):
    """A batch sampler of its own, and hooks that change what it samples."""

    def train_dataloader(self) -> DataLoader[Any]:
        backwards = list(range(modules.SAMPLES))[::-1]
        sampler = BatchSampler(backwards, self.batch_size, drop_last=False)
        return DataLoader(modules.data(), batch_sampler=sampler)


class SampledTwofold(Sampled):
    batch_size = Twofold.batch_size


def test_a_batch_sampler_and_transfer_hooks_on_several_ipus(on_cpu: OnCpu, tmp_path: Path) -> None:
    expected = on_cpu(SampledTwofold)
    actual, trainer = fit(Sampled, tmp_path / "ipu", accelerator="ipu", devices=2)
    assert trainer.strategy.replication_factor == 2
    close(actual, expected)


def test_accumulation_against_one_batch(on_cpu: OnCpu, tmp_path: Path) -> None:
    expected = on_cpu(Fourfold)
    settings: dict[str, Any] = {"accelerator": "ipu", "devices": 1, "accumulate_grad_batches": 4}
    actual, _ = fit(modules.Classifier, tmp_path / "ipu", **settings)
    for name, value in expected.weights.items():
        assert torch.allclose(actual.weights[name], value, rtol=1e-5, atol=1e-6)
    assert actual.decisions[:2] == expected.decisions[:2]
    assert actual.decisions[3] == expected.decisions[3]  # the global step counts weight updates


def close(actual: Run, expected: Run) -> None:
    """Equality up to float32 rounding, with the same decisions."""
    for name, value in expected.weights.items():
        assert torch.allclose(actual.weights[name], value, rtol=1e-5, atol=1e-6)
    assert actual.metrics == pytest.approx(expected.metrics, rel=1e-5, abs=1e-6)
    assert actual.decisions == expected.decisions
    for row, wanted in zip(actual.rows, expected.rows, strict=True):
        for name, value in wanted.items():
            assert value == row[name] or float(row[name]) == pytest.approx(float(value), rel=1e-4)


def test_replicas_and_stages_by_options(on_cpu: OnCpu, tmp_path: Path) -> None:
    expected = on_cpu(Twofold, accumulate_grad_batches=4)
    options = poptorch.Options().replicationFactor(2)
    options.Training.gradientAccumulation(4)
    held = poptorch.Options().replicationFactor(2).deviceIterations(2)
    strategy = IPUStrategy(training_opts=options, inference_opts=held)
    actual, trainer = fit(modules.Classifier, tmp_path / "ipu", strategy=strategy, devices=4)
    close(actual, expected)
    assert trainer.accumulate_grad_batches == 4
    assert trainer.strategy.training_opts is options
