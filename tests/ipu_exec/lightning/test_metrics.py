"""Metrics of torchmetrics in steps: the values of a CPU, on the chip or left to the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
import torchmetrics
from lightning.pytorch import Trainer, seed_everything
from torch.nn import functional as F
from torchmetrics.functional.classification import binary_accuracy

from ipu_exec.lightning import IPUStrategy
from ipuscope.profiler import open_report
from tests.ipu_exec.lightning.modules import Classifier

Kind = Callable[[], torchmetrics.Metric]
BATCH = 4
KINDS: dict[str, Kind] = {
    "checks its labels": lambda: torchmetrics.Accuracy(task="binary"),
    "counts classes": lambda: torchmetrics.F1Score("binary", threshold=0.4),
    "an exact curve": lambda: torchmetrics.AUROC(task="binary"),
    "branches on variances": torchmetrics.PearsonCorrCoef,
}


class Measured(Classifier):
    """A metric called, and another one updated, of whether a sample is of the first class."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.of_training, self.of_validation = kind(), kind()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        scores = self(batch[0])
        self.of_training(*_first_class(scores, batch[1]))
        self.log("training", self.of_training, on_step=False, on_epoch=True)
        self.log("share", binary_accuracy(*_first_class(scores, batch[1])))
        return F.cross_entropy(scores, batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.of_validation.update(*_first_class(self(batch[0]), batch[1]))
        self.log("validation", self.of_validation)


def _first_class(scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return scores[:, 0].sigmoid(), (labels == 0).float()


def fitted(kind: Kind, folder: Path, **settings: Any) -> dict[str, float]:
    seed_everything(1, verbose=False)
    trainer = Trainer(
        max_epochs=1,
        default_root_dir=folder,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    module = Measured(kind)
    trainer.fit(module)
    return {
        **{name: float(value) for name, value in trainer.callback_metrics.items()},
        "weights": float(sum(weight.sum() for weight in module.parameters())),
    }


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_metrics_are_those_of_a_cpu(kind: Kind, tmp_path: Path) -> None:
    on_ipu = fitted(kind, tmp_path, accelerator="ipu")
    assert {"training", "validation", "share"} <= on_ipu.keys()
    assert on_ipu == fitted(kind, tmp_path, accelerator="cpu")


def test_what_the_host_computes_it_is_sent(tmp_path: Path) -> None:
    def bytes_out(kind: str) -> int:
        folder = tmp_path / kind.replace(" ", "-")
        fitted(KINDS[kind], folder, strategy=IPUStrategy(profile_dir=folder))
        with open_report(folder / "training") as report:
            moved = report.sequence.moved_tensors
            leaving = moved[(moved.target < 0) & (moved.source == 0)]
            return int(leaving.bytes.sum())

    # scores and labels of a micro-batch, in float32, beside the value that is logged
    sent = bytes_out("an exact curve") - bytes_out("checks its labels")
    assert sent == 2 * BATCH * 4
