"""Features of a Trainer besides training: stages, callbacks, checkpoints, options, refusals."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import (
    BasePredictionWriter,
    Callback,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy

import ipu_exec as poptorch
from ipu_exec.lightning import IPUAccelerator, IPUPrecision, IPUStrategy
from ipu_exec.lightning.library import Library
from ipuscope.profiler import open_report
from tests.ipu_exec.lightning import modules
from tests.ipu_exec.lightning.modules import Classifier, data

QUIET: dict[str, Any] = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
}


def trainer_of(folder: Path, **settings: Any) -> Trainer:
    arguments = {**QUIET, "default_root_dir": folder, "accelerator": "ipu", "devices": 1}
    if isinstance(settings.get("strategy"), IPUStrategy):
        del arguments["accelerator"]
    return Trainer(**(arguments | settings))


def reported(folder: Path, **settings: Any) -> IPUStrategy:
    return IPUStrategy(autoreport=True, autoreport_dir=folder, **settings)


def same_on_both(
    folder: Path,
    module: Callable[[], Any] = Classifier,
    callbacks: Callable[[], list[Callback]] = list,
    own: dict[str, Any] | None = None,
    **settings: Any,
) -> list[tuple[Any, Trainer]]:
    """The module and its trainer on an IPU and on a CPU, of equal weights and metrics.

    ``own``: what `Trainer.fit` is given.
    """
    made = []
    for name in ("ipu", "cpu"):
        seed_everything(1, verbose=False)
        logger = CSVLogger(folder / name, name="", version="")
        own_settings = {"accelerator": name, "logger": logger} | settings
        trainer = trainer_of(folder / name, **own_settings, callbacks=callbacks())
        settings.pop("strategy", None)  # which is of an IPU
        trainer.fit(one := module(), **(own or {}))
        made.append((one, trainer))
    states, metrics = zip(
        *(([*m.state_dict().values()], t.callback_metrics) for m, t in made), strict=True
    )
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))
    assert metrics[0] == metrics[1]
    assert made[0][1].global_step == made[1][1].global_step
    return made


# -- what is asked for ---


@pytest.mark.parametrize("devices", [3, 6, 12])
def test_ipus_come_in_powers_of_two(devices: int, tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match="powers of two"):
        trainer_of(tmp_path, devices=devices)


def test_names_and_numbers(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, devices="auto", strategy="ipu_strategy")
    assert isinstance(trainer.strategy, IPUStrategy)
    assert isinstance(trainer.accelerator, IPUAccelerator)
    assert trainer.num_devices == 4 and trainer.strategy.replication_factor == 4
    with pytest.raises(MisconfigurationException, match="accelerator='ipu'"):
        Trainer(accelerator="cpu", strategy=IPUStrategy())
    with pytest.raises(MisconfigurationException, match="ipu_strategy"):
        Trainer(accelerator="ipu", strategy="ddp")


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_precisions_that_ipus_lack(precision: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"precision='{precision}'\\)` is not supported"):
        trainer_of(tmp_path, precision=precision)


@pytest.mark.parametrize("precision", ["16-true", "16-mixed"])
def test_half_precision(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    lib = Library(**vars(IPUStrategy.lib) | {"rank_zero_info": said.append})
    monkeypatch.setattr(IPUStrategy, "lib", lib)
    trainer = trainer_of(tmp_path, precision=precision, max_epochs=1, strategy=reported(tmp_path))
    assert isinstance(trainer.strategy.precision_plugin, IPUPrecision)
    seed_everything(1, verbose=False)
    module = Classifier()
    trainer.fit(module)
    assert f"The profile: ipu-report insights {tmp_path / 'training' / 'profile.pop'}" in said
    dtype = torch.float16 if precision == "16-true" else torch.float32
    assert all(weight.dtype is dtype for weight in module.parameters())
    with open_report(tmp_path / "training") as report:
        inputs = report.variables[report.variables.role == "input"]
        assert "float16" in set(inputs.dtype)
    assert float(trainer.callback_metrics["loss"]) < 1.2


class NamedBlocks(Classifier):
    """Blocks that name no IPU share one."""

    def __init__(self) -> None:
        super().__init__()
        for layer in (self.net[0], self.net[2]):
            poptorch.BeginBlock(layer)


@pytest.mark.parametrize(
    ("kind", "devices", "replicas"),
    [(NamedBlocks, 2, 2), (modules.BlocksInInit, 2, 1), (modules.Stages, 8, 4), (Classifier, 2, 2)],
)
def test_replicas_are_what_the_stages_leave(
    kind: type[LightningModule], devices: int, replicas: int, tmp_path: Path
) -> None:
    trainer = trainer_of(
        tmp_path, devices=devices, fast_dev_run=1, accumulate_grad_batches=4, limit_val_batches=0
    )
    trainer.fit(kind())
    assert trainer.strategy.replicas == replicas


# -- profiles ---


def test_a_profile_of_each_stage(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, max_epochs=1, strategy=reported(tmp_path / "reports"))
    module = Classifier()
    trainer.fit(module)
    trainer.validate(module, verbose=False)
    trainer.test(module, verbose=False)
    predictions = trainer.predict(module)
    assert len(predictions) == 12 and predictions[0].shape == (4, 3)
    kinds = sorted(path.name for path in (tmp_path / "reports").iterdir())
    assert kinds == ["predict", "test", "training", "validation"]
    for kind in kinds:
        with open_report(tmp_path / "reports" / kind) as report:
            assert report.meta["model"] == "Classifier"
            assert report.meta["state"] == "executed"
            assert report.meta["kind"] == ("training" if kind == "training" else "inference")
            assert report.ops.name.iloc[0].startswith("net/0/")


def test_a_call_has_micro_batches_updates_and_replicas(tmp_path: Path) -> None:
    strategy = reported(tmp_path, device_iterations=3)
    trainer = trainer_of(
        tmp_path, devices=2, strategy=strategy, accumulate_grad_batches=2, max_epochs=2
    )
    trainer.fit(Classifier())
    # 48 samples: 6 batches of each of 2 replicas, 3 updates of 2, one call of 3 updates an epoch
    assert trainer.num_training_batches == 6 and trainer.global_step == 6
    assert trainer.strategy.training_opts.batch_factor == 12
    with open_report(tmp_path / "training") as report:
        assert list(report.runs.iterations) == [3, 3]
        assert report.options["replicationFactor"] == 2


class LogsMore(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("scores", self(batch[0]).mean())
        return loss


class LogsNothing(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self(batch[0]).mean()
        return F.cross_entropy(self(batch[0]), batch[1])


def out_cycles(kind: type[LightningModule], folder: Path) -> int:
    trainer_of(folder, max_steps=1, limit_val_batches=0, strategy=reported(folder)).fit(kind())
    with open_report(folder / "training") as report:
        (out,) = report.bodies[report.bodies.name.str.contains("outputs to host")].cycles
        return int(out)


def test_the_profile_prices_what_is_logged(tmp_path: Path) -> None:
    assert out_cycles(LogsMore, tmp_path / "more") > out_cycles(LogsNothing, tmp_path / "less")


def test_the_profile_prices_clipping(tmp_path: Path) -> None:
    def update(**clipped: Any) -> int:
        folder = tmp_path / str(len(clipped))
        trainer = trainer_of(
            folder, max_steps=1, limit_val_batches=0, strategy=reported(folder), **clipped
        )
        trainer.fit(Classifier())
        with open_report(folder / "training") as report:
            return int(report.stages.update_cycles.sum())

    assert update(gradient_clip_val=1.0) > update()


# -- paths ---


def test_a_new_path_compiles_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ipu_exec"):
        trainer_of(tmp_path, max_epochs=2).fit(modules.BranchesOnNumbers())
    said = [record.message for record in caplog.records if "branches" in record.message]
    # batch_idx % 3, epoch, and both with the global step: each once, whenever they come again
    assert 2 <= len(said) <= 4
    assert all("BranchesOnNumbers.training_step" in message for message in said)


class LogsInPredict(Classifier):
    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        scores = self(batch[0])
        self.log("confidence", scores.softmax(1).amax(1).mean())
        return scores


def test_prediction_logs(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="", version="")
    trainer = trainer_of(tmp_path, logger=logger)
    module = LogsInPredict()
    confidence = torch.stack([p.softmax(1).amax(1).mean() for p in trainer.predict(module)])
    assert float(trainer.callback_metrics["confidence"]) == pytest.approx(float(confidence.mean()))
    assert "confidence" in (tmp_path / "metrics.csv").read_text()


# -- callbacks ---


def test_accumulation_by_its_callback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ipu_exec"):
        same_on_both(
            tmp_path, callbacks=lambda: [GradientAccumulationScheduler({0: 1, 1: 4})], max_epochs=2
        )
    assert any(
        "accumulate_grad_batches changed: expected 1, got 4" in r.message for r in caplog.records
    )


class OneRate(modules.Convolutions):
    configure_optimizers = Classifier.configure_optimizers


def test_stochastic_weight_averaging_and_monitors(tmp_path: Path) -> None:
    def callbacks() -> list[Callback]:
        averaging = StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=1)
        return [averaging, LearningRateMonitor("step")]

    same_on_both(tmp_path, OneRate, callbacks, max_epochs=3, log_every_n_steps=1)
    rows, wanted = ((tmp_path / name / "metrics.csv").read_text() for name in ("ipu", "cpu"))
    assert rows == wanted


class Unfreezes(Callback):
    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        module.net[0].requires_grad_(trainer.current_epoch > 0)


def test_weights_that_thaw(tmp_path: Path) -> None:
    same_on_both(tmp_path, callbacks=lambda: [Unfreezes()], max_epochs=2)


def test_tensorboard(tmp_path: Path) -> None:
    trainer_of(tmp_path, max_steps=2, logger=TensorBoardLogger(tmp_path)).fit(Classifier())
    assert list(tmp_path.rglob("events.out*"))


@pytest.mark.parametrize(
    "settings",
    [
        {"limit_train_batches": 5, "max_epochs": 2},
        {"val_check_interval": 4, "max_epochs": 1},
        {"overfit_batches": 3, "max_epochs": 2},
        {"max_steps": 7},
        {"fast_dev_run": 3},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_limits(settings: dict[str, Any], tmp_path: Path) -> None:
    same_on_both(tmp_path, strategy=IPUStrategy(device_iterations=2), **settings)


# -- checkpoints ---


class InOrder(Classifier):
    def train_dataloader(self) -> Any:
        return DataLoader(data(), batch_size=4)


def test_a_run_resumes_bit_for_bit_on_either(tmp_path: Path) -> None:
    def run(accelerator: str, epochs: int, after: Path | None = None) -> tuple[Any, Trainer]:
        seed_everything(1, verbose=False)
        module = InOrder()
        trainer = trainer_of(tmp_path, accelerator=accelerator, max_epochs=epochs)
        trainer.fit(module, ckpt_path=after)
        return [weight.tolist() for weight in module.parameters()], trainer

    whole, _ = run("ipu", 3)
    _, first = run("ipu", 2)
    first.save_checkpoint(tmp_path / "two.ckpt")
    for accelerator in ("ipu", "cpu"):
        resumed, _ = run(accelerator, 3, tmp_path / "two.ckpt")
        assert resumed == whole


# -- refusals ---


class Manual(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]


class Quasi(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class Untrained(Classifier):
    def configure_optimizers(self) -> Any:
        return None


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Manual, "only support one optimizer"),
        (Quasi, "LBFGS"),
        (Untrained, "no optimiser"),
    ],
)
def test_refused_before_anything_compiles(
    kind: type[LightningModule], said: str, tmp_path: Path
) -> None:
    trainer = trainer_of(tmp_path, max_steps=1, strategy=reported(tmp_path / "reports"))
    with pytest.raises((MisconfigurationException, poptorch.UsageError), match=said):
        trainer.fit(kind())
    assert not (tmp_path / "reports").exists()


def test_several_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MisconfigurationException, match=r"num_nodes=2.*leave num_nodes out"):
        trainer_of(tmp_path, max_steps=1, num_nodes=2).fit(Classifier())


class Skips(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)


def test_a_step_without_a_loss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(poptorch.UsageError, match="the loss times 0"):
        trainer_of(tmp_path, max_steps=3).fit(Skips())


def test_options_that_a_trainer_cannot_keep() -> None:
    options = poptorch.Options()
    options.anchorTensor("hidden", "net/0/addmm:0")
    with pytest.raises(MisconfigurationException, match=r"self\.log"):
        IPUStrategy(training_opts=options)


def test_two_words_for_accumulation(tmp_path: Path) -> None:
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    strategy = IPUStrategy(training_opts=options)
    with pytest.raises(MisconfigurationException, match="say one of them"):
        trainer_of(tmp_path, strategy=strategy, accumulate_grad_batches=2).fit(Classifier())


def test_a_pipeline_that_cannot_fill(tmp_path: Path) -> None:
    with pytest.raises(poptorch.UsageError, match="accumulate_grad_batches=3"):
        trainer_of(tmp_path, max_steps=1, limit_val_batches=0).fit(modules.Stages())


class Overrides(Classifier):
    """Everything that runs on the host around the weight update."""

    norms: list[float]

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.norms = [*getattr(self, "norms", []), float(self.net[0].weight.grad.norm())]

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, closure: Any) -> None:
        optimizer.step(closure=closure)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)


def test_overridden_hooks_work_and_are_named(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="on_before_optimizer_step, optimizer_step"):
        (actual, _), (expected, _) = same_on_both(tmp_path, Overrides, max_epochs=1)
    assert actual.norms == expected.norms and len(actual.norms) == 12


def test_a_placement_without_an_accumulation_leaves_the_trainers(tmp_path: Path) -> None:
    stages = [{"ipu": 0, "blocks": ["first"]}, {"ipu": 1, "blocks": ["second"]}]
    file = tmp_path / "split.json"
    file.write_text(json.dumps({"format": "ipuscope placement", "version": 2, "stages": stages}))
    strategy = IPUStrategy(training_opts=poptorch.Options().loadPlacement(file))
    trainer = trainer_of(
        tmp_path, strategy=strategy, accumulate_grad_batches=4, max_steps=1, limit_val_batches=0
    )
    trainer.fit(modules.BlocksInInit(), DataLoader(data(), batch_size=3))
    assert trainer.accumulate_grad_batches == 4


# -- loaders ---


def test_a_loader_of_poptorchs_is_kept_and_comes_a_step_at_a_time(tmp_path: Path) -> None:
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(3)
    loader = poptorch.DataLoader(options, data(), batch_size=4)
    trainer = trainer_of(tmp_path, strategy=IPUStrategy(training_opts=options), max_epochs=1)
    trainer.fit(Classifier(), loader)
    assert trainer.train_dataloader is loader
    assert trainer.num_training_batches == 12 and trainer.global_step == 4
    assert next(iter(loader))[0].shape[0] == 24  # given back as it was


def test_what_does_not_fill_the_replicas_is_left_out(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, devices=4, max_epochs=1, limit_val_batches=0)
    with pytest.warns(UserWarning, match="are left out"):
        trainer.fit(Classifier(), DataLoader(data(), batch_size=5))
    assert trainer.num_training_batches == 2


class Writer(BasePredictionWriter):
    def __init__(self) -> None:
        super().__init__("batch")
        self.indices: list[int] = []

    def write_on_batch_end(
        self, trainer: Any, module: Any, predictions: Any, indices: Any, *about: Any
    ) -> None:
        assert len(indices) == len(predictions)
        self.indices += indices


def test_predictions_of_replicas_are_in_order(tmp_path: Path) -> None:
    module = Classifier()
    writer = Writer()
    actual = torch.cat(trainer_of(tmp_path, devices=4, callbacks=[writer]).predict(module))
    assert writer.indices == list(range(modules.SAMPLES))
    expected = torch.cat(Trainer(**QUIET, accelerator="cpu").predict(module))
    assert torch.allclose(actual, expected)


def test_the_bar_shows_both_speeds(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, max_epochs=1, enable_progress_bar=True)
    seen: list[dict[str, Any]] = []
    after: list[dict[str, Any]] = []

    class Looks(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, *about: Any) -> None:
            seen.append(trainer.progress_bar_callback.get_metrics(trainer, module))

        def on_validation_batch_end(self, trainer: Trainer, module: Any, *about: Any) -> None:
            after.append(trainer.progress_bar_callback.get_metrics(trainer, module))

    trainer.callbacks.append(Looks())
    trainer.fit(Classifier())
    assert {"ipu/s", "host/s"} <= set(seen[-1])
    assert float(seen[-1]["ipu/s"].replace(",", "")) > 0
    assert after[-1]["ipu/s"] == seen[-1]["ipu/s"], "validation has no say in what training does"
    assert "ipu/s" not in trainer.progress_bar_callback.get_metrics(trainer, trainer.model)


class TwoLoaders(Classifier):
    """Several loaders of each kind, and a number of a loader in what is logged."""

    def train_dataloader(self) -> Any:
        return {"a": DataLoader(data(), batch_size=4), "b": DataLoader(data(1), batch_size=8)}

    def val_dataloader(self) -> Any:
        return [DataLoader(data(seed), batch_size=6) for seed in (1, 2)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch["a"], batch_idx) + F.cross_entropy(
            self(batch["b"][0]), batch["b"][1]
        )

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        super().validation_step(batch, batch_idx)
        self.log("number", loss := self(batch[0]).mean().item())
        return loss


def test_several_loaders(tmp_path: Path) -> None:
    (_, on_ipu), _ = same_on_both(tmp_path, TwoLoaders, max_epochs=1, detect_anomaly=True)
    assert {"val/dataloader_idx_0", "val/dataloader_idx_1"} <= set(on_ipu.callback_metrics)


def test_models_by_stage(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, max_steps=1)
    trainer.fit(Classifier())
    assert list(trainer.strategy.poptorch_models) == [
        RunningStage.TRAINING,
        RunningStage.VALIDATING,
        RunningStage.SANITY_CHECKING,
    ]


class Moving(LightningDataModule):
    """A data module that has hooks of its own for moving a batch."""

    def train_dataloader(self) -> Any:
        return DataLoader(data(), batch_size=4)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        features, labels = batch
        return features * 2, labels


@pytest.mark.parametrize("own", [{}, {"datamodule": Moving()}], ids=["none", "a data module's"])
def test_hooks_for_moving_a_batch(own: dict[str, Any], tmp_path: Path) -> None:
    same_on_both(tmp_path, own=own, max_steps=3, limit_val_batches=0)


class LogsAMetric(Classifier):
    """A number and a metric: Lightning keeps what was logged of each."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy = MulticlassAccuracy(3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("number", batch_idx, on_step=False, on_epoch=True, reduce_fx="max")
        self.accuracy(self(batch[0]), batch[1])
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return loss


def test_what_is_logged_is_kept_where_it_is(tmp_path: Path) -> None:
    (_, on_ipu), _ = same_on_both(tmp_path, LogsAMetric, max_epochs=2)
    assert on_ipu.callback_metrics["number"] == 11
    assert 0 < on_ipu.callback_metrics["accuracy"] <= 1
