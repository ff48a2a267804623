"""Small LightningModules as people write them, and what their runs are compared by."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchmetrics
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.demos import LightningTransformer, Transformer
from lightning.pytorch.demos.boring_classes import BoringModel, DemoModel, RandomDataset
from lightning.pytorch.demos.lstm import SimpleLSTM
from lightning.pytorch.loggers import CSVLogger
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset

import ipu_exec as poptorch

SAMPLES, FEATURES, CLASSES = 48, 8, 3


def data(seed: int = 0) -> TensorDataset:
    """Points of three classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, FEATURES, generator=generator)
    return TensorDataset(x, x[:, :CLASSES].argmax(1))


class Classifier(LightningModule):
    """Logs in every available way."""

    batch_size = 4

    def __init__(self) -> None:
        super().__init__()
        self.net = self.network()

    def network(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self(x)
        correct = (scores.argmax(1) == y).float()
        self.log_dict({"val": F.cross_entropy(scores, y), "accuracy": correct.mean()})
        self.log("right", correct.sum(), reduce_fx="sum")
        self.log("largest", scores.max(), reduce_fx=torch.max, on_step=True, on_epoch=True)

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.validation_step(batch, batch_idx)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return self(batch[0]).softmax(1)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

    def train_dataloader(self) -> Any:
        return DataLoader(data(), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(data(1), batch_size=self.batch_size)

    test_dataloader = predict_dataloader = val_dataloader


class Boring(BoringModel):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss["loss"], on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().validation_step(batch, batch_idx)
        self.log("val", loss["x"])
        return loss

    def train_dataloader(self) -> Any:
        return DataLoader(RandomDataset(32, 24))

    val_dataloader = train_dataloader


class Demo(DemoModel):
    def __init__(self) -> None:
        super().__init__(out_dim=CLASSES)
        self.l1 = torch.nn.Linear(FEATURES, CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return {"loss": loss, "logits": self(batch[0])}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val", F.cross_entropy(self(batch[0]), batch[1]))

    train_dataloader = Classifier.train_dataloader
    val_dataloader = Classifier.val_dataloader
    batch_size = 8


class Words(LightningTransformer):
    """The demo's transformer, on words that need no download."""

    def __init__(self) -> None:
        LightningModule.__init__(self)
        self.model = Transformer(vocab_size=11, ninp=8, nhead=2, nhid=16, nlayers=1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, target = batch
        output = self(inputs, target)
        self.log("val", F.nll_loss(output, target.view(-1)))

    def prepare_data(self) -> None:
        pass

    def train_dataloader(self) -> Any:
        words = torch.randint(11, (12, 6), generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(words, words.roll(1, 1)), batch_size=2)

    val_dataloader = train_dataloader


class Recurrent(LightningModule):
    """The demo's LSTM, with the state of each batch for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.model = SimpleLSTM(vocab_size=11, ninp=8, nhid=8, nlayers=1, dropout=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, target = batch
        output, _ = self.model(inputs, self.model.init_hidden(inputs.size(0)))
        loss = F.nll_loss(output, target.view(-1))
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, target = batch
        output, _ = self.model(inputs, self.model.init_hidden(inputs.size(0)))
        self.log("val", F.nll_loss(output, target.view(-1)))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    train_dataloader = Words.train_dataloader
    val_dataloader = Words.train_dataloader


class Convolutions(Classifier):
    """Batch norm, and a rate that changes with each weight update."""

    def network(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Unflatten(1, (1, FEATURES)),
            torch.nn.Conv1d(1, 4, 3),
            torch.nn.BatchNorm1d(4),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(4 * (FEATURES - 2), CLASSES),
        )

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.05, total_steps=int(self.trainer.estimated_stepping_batches)
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Metrics(Classifier):
    """torchmetrics, dropout, and lists of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.train_accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=CLASSES)
        self.losses: list[torch.Tensor] = []

    def network(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, CLASSES)
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        scores = self(batch[0])
        self.train_accuracy(scores, batch[1])
        self.log("train_accuracy", self.train_accuracy, on_step=True, on_epoch=True)
        return F.cross_entropy(scores, batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        scores = self(batch[0])
        self.accuracy(scores, batch[1])
        self.log("accuracy", self.accuracy)
        self.losses.append(F.cross_entropy(scores, batch[1]))

    def on_validation_epoch_end(self) -> None:
        self.log("val", torch.stack(self.losses).mean())
        self.losses.clear()


class BranchesOnData(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        if loss > 0.9:
            loss = 2 * loss
        self.log("loss", loss)
        return loss


class BranchesOnNumbers(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self(x)
        loss = F.cross_entropy(scores, y)
        if self.global_step > 15:
            loss = loss + scores.square().mean()
        if batch_idx % 3 == 0 and self.current_epoch:
            loss = loss * 0.5
        self.log("loss", loss / (1 + self.current_epoch))
        return loss


class Stages(Classifier):
    """A pipeline of two, its Blocks made where ``where`` says."""

    where = "training_step"

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(FEATURES, 16)
        self.second = torch.nn.Linear(16, CLASSES)
        if self.where == "init":
            self.annotate()

    def network(self) -> torch.nn.Module:
        return torch.nn.Identity()

    def configure_model(self) -> None:
        if self.where == "configure_model":
            self.annotate()
            self.where = "done"

    def annotate(self) -> None:
        poptorch.BeginBlock(self.first, "first", ipu_id=0)
        poptorch.BeginBlock(self.second, "second", ipu_id=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.where != "training_step":
            return self.second(self.first(x).relu())
        with poptorch.Block("first", ipu_id=0):
            x = self.first(x).relu()
        with poptorch.Block("second", ipu_id=1):
            return self.second(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self(x)
        with poptorch.Block("second", ipu_id=1):
            loss = F.cross_entropy(scores, y)
            self.log("loss", loss)
            return loss


class BlocksInInit(Stages):
    where = "init"


class BlocksInConfigureModel(Stages):
    where = "configure_model"


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for index in range(SAMPLES):
            yield data()[index]


class Streams(Classifier):
    """An iterable data set, and a batch sampler."""

    def train_dataloader(self) -> Any:
        return DataLoader(Endless(), batch_size=self.batch_size)

    def val_dataloader(self) -> Any:
        sampler = BatchSampler(range(SAMPLES), 6, drop_last=False)
        return DataLoader(data(1), batch_sampler=sampler)


class Hooks(Classifier):
    """Each of the transfer hooks changes the batch, and counts."""

    calls = 0

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.calls += 1
        return batch[0] * 0.5, batch[1]

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        self.calls += 1
        return {"x": batch[0], "y": batch[1]}

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.calls += 1
        return batch["x"] + torch.randn_like(batch["x"]) * 0.1, batch["y"]


class Uneven(Classifier):
    """The last batch is smaller, as is usual."""

    batch_size = 7


@dataclass(frozen=True)
class Run:
    """The values of a fit that are compared."""

    weights: dict[str, torch.Tensor]
    metrics: dict[str, float]
    rows: list[dict[str, str]]
    checkpoint: dict[str, Any]
    decisions: tuple[Any, ...]


def fit(kind: type[LightningModule], folder: Path, **settings: Any) -> tuple[Run, Trainer]:
    """Train with callbacks that decide by what is logged; ``settings``: of the Trainer."""
    seed_everything(7, verbose=False)
    module = kind()
    stopping = EarlyStopping("val", patience=1, min_delta=0.02)
    saving = ModelCheckpoint(folder / "best", monitor="val", save_top_k=1)
    options: dict[str, Any] = {
        "max_epochs": 3,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "logger": CSVLogger(folder, name="", version=""),
        "callbacks": [stopping, saving],
    }
    trainer = Trainer(**(options | settings))
    trainer.fit(module)
    trainer.save_checkpoint(folder / "last.ckpt")
    return _run(module, trainer, stopping, saving, folder), trainer


def _run(
    module: LightningModule, trainer: Trainer, stopping: Any, saving: Any, folder: Path
) -> Run:
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    best = Path(saving.best_model_path).name
    steps = (trainer.global_step, trainer.current_epoch, trainer.fit_loop.batch_idx)
    return Run(
        {name: value.clone() for name, value in module.state_dict().items()},
        {name: float(value) for name, value in trainer.callback_metrics.items()},
        rows,
        torch.load(folder / "last.ckpt", weights_only=False),
        (stopping.stopped_epoch, stopping.wait_count, best, *steps),
    )
