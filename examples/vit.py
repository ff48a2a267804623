"""ViT-B/16 in float16.

Loss scaling that finds its scale, stochastic rounding, batches made by another process.

python -m examples.vit --compile-only --profile-dir out     the whole model over four IPUs
python -m examples.vit --tiny
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

if not __package__:  # run as a file, not by -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ipu_exec as poptorch
from examples import common
from examples.models import build, split
from examples.resnet50_synthetic import RandomImages


class HalfImages(RandomImages):
    """Random images in float16."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = super().__getitem__(index)
        return image.half(), label


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train; the losses of the calls."""
    parser = common.parser(__doc__, stages=4, accumulation=16)
    parser.add_argument(
        "--micro-batch", type=int, default=2, help="images a micro-batch (default: %(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, default=1, help="passes over the images (default: %(default)s)"
    )
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    example = build("vit-b16", tiny=args.tiny)
    module = example.module.half()
    options = common.options(args).setExecutionStrategy(split(example, args.stages))
    options.Training.setAutomaticLossScaling(True)
    options.Precision.enableStochasticRounding(True)
    options.anchorTensor("update", "UpdatedVar___classify.weight")

    side, classes = (32, 10) if args.tiny else (224, 1000)
    samples = args.micro_batch * options.batch_factor
    loader = poptorch.DataLoader(
        options,
        HalfImages(args.steps * samples, side, classes),
        args.micro_batch,
        mode=poptorch.DataLoaderMode.Sync if args.compile_only else poptorch.DataLoaderMode.Async,
    )
    optimizer = poptorch.optim.AdamW(
        module.parameters(),
        lr=1e-3,
        weight_decay=0.05,
        loss_scaling=1024.0,
        accum_type=torch.float16,
    )
    model = poptorch.trainingModel(module, options, optimizer)
    losses: list[float] = []
    if args.compile_only:
        model.compile(*next(iter(loader)))
        common.say_speed(model, samples)
    else:
        clock = common.Clock()
        for epoch in range(args.epochs):
            for number, (images, labels) in enumerate(loader):
                _, loss = model(images, labels)
                losses.append(float(loss.mean()))
                norm = float(model.getAnchoredTensor("update").float().norm())
                print(
                    f"epoch {epoch}, call {number}: loss {losses[-1]:.4f}, norm of the classifier"
                    f" {norm:.4f}"
                )
                clock.tick()
        common.say_speed(model, samples, clock.seconds)
    loader.terminate()
    model.destroy()
    return losses


if __name__ == "__main__":
    main()
