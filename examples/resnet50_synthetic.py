"""ResNet-50 on random images, as a pipeline: how fast it would train, before there is any data.

  python -m examples.resnet50_synthetic --compile-only --profile-dir out  # nothing is computed
  python -m examples.resnet50_synthetic --tiny                               a toy, trained for real
then: ipu-report summary out/training
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


class RandomImages(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images of noise; each has the same noise and label whenever it is asked for."""

    def __init__(self, count: int, side: int, classes: int) -> None:
        self._count, self._side, self._classes = count, side, classes

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, self._side, self._side, generator=generator)
        return image, torch.randint(self._classes, (), generator=generator)


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train; the losses of the calls."""
    parser = common.parser(__doc__, stages=8, accumulation=16)
    parser.add_argument(
        "--micro-batch", type=int, default=4, help="images a micro-batch (default: %(default)s)"
    )
    parser.add_argument(
        "--replicas", type=int, default=1, help="copies of the pipeline (default: %(default)s)"
    )
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    example = build("resnet-50", tiny=args.tiny)
    options = common.options(args).replicationFactor(args.replicas)
    options.setExecutionStrategy(split(example, args.stages))
    options.setAvailableMemoryProportion({f"IPU{ipu}": 0.2 for ipu in range(args.stages)})
    options.Precision.setPartialsType(torch.half)

    side, classes = (32, 10) if args.tiny else (224, 1000)
    samples = args.micro_batch * options.batch_factor
    loader = poptorch.DataLoader(
        options, RandomImages(args.steps * samples, side, classes), args.micro_batch
    )
    optimizer = poptorch.optim.SGD(
        example.module.parameters(),
        lr=0.05,
        momentum=0.9,
        weight_decay=5e-5,
        use_combined_accum=True,
    )
    model = poptorch.trainingModel(example.module, options, optimizer)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)

    losses: list[float] = []
    if args.compile_only:
        model.compile(*next(iter(loader)))
        common.say_speed(model, samples)
    else:
        clock = common.Clock()
        for number, (images, labels) in enumerate(loader):
            _, loss = model(images, labels)
            losses.append(float(loss.mean()))
            print(
                f"call {number}: loss {losses[-1]:.4f}, learning rate"
                f" {schedule.get_last_lr()[0]:.4f}"
            )
            schedule.step()
            model.setOptimizer(
                optimizer
            )  # the new rate is taken at the next call; nothing is compiled again
            clock.tick()
        common.say_speed(model, samples, clock.seconds)
    model.destroy()
    return losses


if __name__ == "__main__":
    main()
