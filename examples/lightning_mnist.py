"""Train the tutorial's digit classifier under Lightning, as a pipeline over four modelled IPUs.

    python examples/lightning_mnist.py --profile-dir demo
    ipu-report summary demo/training

A LightningModule as on any device: `poptorch.BeginBlock` says which layers go to which IPU, and the
Trainer is told ``accelerator="ipu"``. Four IPUs make one replica of four stages here, eight would
make two. What is logged, stopped by and saved is Lightning's own.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

if not __package__:  # run as a file, not by -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ipu_exec as poptorch
from examples.digits import ConvStage, load_small_digits
from ipu_exec.lightning import IPUStrategy


class Digits(LightningModule):
    """Images [n, 1, 28, 28] to logits [n, 10], in four stages."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.layer1 = poptorch.BeginBlock(ConvStage(1, 10), "B1", ipu_id=0)
        self.layer2 = poptorch.BeginBlock(ConvStage(10, 20), "B2", ipu_id=1)
        self.layer3 = poptorch.BeginBlock(torch.nn.Linear(320, 256), "B3", ipu_id=2)
        self.layer4 = poptorch.BeginBlock(torch.nn.Linear(256, 10), "B4", ipu_id=3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.layer2(self.layer1(images))
        x = functional.relu(self.layer3(x.flatten(1)))
        return self.layer4(x)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self(images), labels)
        self.log("loss", loss, prog_bar=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        images, labels = batch
        correct = self(images).argmax(1) == labels
        self.log("accuracy", correct.float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return poptorch.optim.AdamW(self.parameters(), lr=self.lr)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--epochs", type=int, default=5, help="default: %(default)s")
    add("--batch-size", type=int, default=40, help="images of a micro-batch (default: %(default)s)")
    add(
        "--accumulation",
        type=int,
        default=8,
        help="micro-batches of a weight update; four stages need 7 (default: %(default)s)",
    )
    add("--devices", type=int, default=4, help="IPUs (default: %(default)s)")
    add("--lr", type=float, default=0.003, help="AdamW's learning rate (default: %(default)s)")
    add("--profile-dir", type=Path, default=Path("."), help="where profiles go (default: here)")
    args = parser.parse_args(words)

    seed_everything(0)
    images, labels, test_images, test_labels = load_small_digits(0)
    loader = DataLoader(
        TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True, drop_last=True
    )
    held_out = DataLoader(
        TensorDataset(test_images, test_labels), batch_size=args.batch_size, drop_last=True
    )
    trainer = Trainer(
        accelerator="ipu",
        devices=args.devices,
        strategy=IPUStrategy(profile_dir=args.profile_dir),
        max_epochs=args.epochs,
        accumulate_grad_batches=args.accumulation,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(Digits(args.lr), loader, held_out)
    print(f"accuracy {float(trainer.callback_metrics['accuracy']):.1%} on images not trained on")
    for kind in ("training", "validation"):
        print(f"profile: {args.profile_dir / kind / 'profile.pop'}")


if __name__ == "__main__":
    main()
