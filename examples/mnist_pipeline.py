"""Train a small digit classifier as a pipeline over four modelled IPUs, and look at where it waits.

    python examples/mnist_pipeline.py --profile-dir demo
    ipu-report summary demo/training/profile.pop

The network is cut into four Blocks, one pipeline stage and one IPU each. A *micro-batch* of images
goes through the stages one after another; while IPU 1 works on it, IPU 0 works on the next.
*Gradient accumulation* says how many micro-batches go through before the weights change: the
pipeline fills at the start and drains at the end of each update, so more of them waste less.
*Device iterations* are weight updates that run before Python is asked for more data. One call of
the model therefore takes 40 x 10 x 10 = 4,000 images. The digits and the network are in digits.py.
Written as a PopTorch user would write it: only the import differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

if not __package__:  # run as a file, not by -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ipu_exec as poptorch
from examples.digits import Mnist, ShiftedDigits, load_mnist, load_small_digits


def make_options(args: argparse.Namespace, training: bool) -> poptorch.Options:
    """Options for training, or for inference on the same IPUs."""
    strategy = {"pipelined": poptorch.PipelinedExecution, "sharded": poptorch.ShardedExecution}[
        args.strategy
    ]
    options = poptorch.Options()
    options.deviceIterations(args.device_iterations)
    options.replicationFactor(args.replicas)
    options.setExecutionStrategy(
        strategy(*(poptorch.Stage(f"B{ipu + 1}").ipu(ipu) for ipu in range(4)))
    )
    options.outputMode(poptorch.OutputMode.All)
    options.randomSeed(args.seed)
    options.target(args.target)
    if training:
        options.Training.gradientAccumulation(args.gradient_accumulation)
        if args.offload_optimiser:
            options.TensorLocations.setOptimizerLocation(
                poptorch.TensorLocationSettings().useOnChipStorage(False)
            )
    if args.profile_dir is not None:
        options.enableProfiling(args.profile_dir)
    return options


def train(
    network: Mnist, images: torch.Tensor, labels: torch.Tensor, args: argparse.Namespace
) -> None:
    """Train, printing loss and accuracy of each epoch."""
    options = make_options(args, training=True)
    call = args.batch_size * options.batch_factor
    repeats = -(-call // len(images))
    dataset: Dataset[Any] = TensorDataset(images, labels)
    if repeats > 1:
        dataset = ShiftedDigits(images, labels, repeats, args.seed)
        print(
            f"{len(images):,} training images; an epoch is {repeats} passes, shifted at random, to"
            " fill a call"
        )
    loader = poptorch.DataLoader(
        options,
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(args.seed),
    )
    print(
        f"a call takes {loader.combinedBatchSize:,} images: micro-batch {args.batch_size} x"
        f" gradient accumulation {args.gradient_accumulation} x device iterations"
        f" {args.device_iterations} x replicas {args.replicas}"
    )
    model = poptorch.trainingModel(
        network.train(), options, poptorch.optim.AdamW(network.parameters(), lr=args.lr)
    )
    for epoch in range(1, args.epochs + 1):
        start, losses, correct, seen = time.perf_counter(), [], 0, 0
        for batch, wanted in loader:
            logits, loss = model(batch, wanted)
            losses.append(loss.mean().item())
            correct += int((logits.argmax(1) == wanted).sum())
            seen += len(wanted)
        print(
            f"epoch {epoch:3d}: loss {sum(losses) / len(losses):.4f}, training accuracy"
            f" {correct / seen:6.1%}, {time.perf_counter() - start:.1f} s",
            flush=True,
        )
    print(f"a call would take {model.executable.cycles_per_call:,} cycles on the modelled IPUs")
    model.destroy()


def test(
    network: Mnist, images: torch.Tensor, labels: torch.Tensor, args: argparse.Namespace
) -> float:
    """Accuracy on images that were not trained on, by an inference model."""
    options = make_options(args, training=False)
    model = poptorch.inferenceModel(network.eval(), options)
    call = args.batch_size * options.batch_factor
    correct = 0
    for first in range(0, len(images), call):
        batch = images[first : first + call]
        missing = call - len(
            batch
        )  # a call is always full: the gap is filled with images that are not counted
        filled = torch.cat([batch, images[torch.arange(missing) % len(images)]])
        predicted = model(filled)[: len(batch)].argmax(1)
        correct += int((predicted == labels[first : first + call]).sum())
    model.destroy()
    return correct / len(images)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--strategy",
        choices=("pipelined", "sharded"),
        default="pipelined",
        help=(
            "pipelined: all IPUs work at once, on different micro-batches; sharded: one IPU at a"
            " time (default: %(default)s)"
        ),
    )
    add("--epochs", type=int, default=20, help="passes over the loader (default: %(default)s)")
    add(
        "--batch-size",
        type=int,
        default=40,
        metavar="N",
        help="images of one micro-batch, what an IPU holds at a time (default: %(default)s)",
    )
    add(
        "--gradient-accumulation",
        type=int,
        default=10,
        metavar="N",
        help=(
            "micro-batches before a weight update; four stages need at least 7 (default:"
            " %(default)s)"
        ),
    )
    add(
        "--device-iterations",
        type=int,
        default=10,
        metavar="N",
        help="weight updates a call; micro-batches a call in inference (default: %(default)s)",
    )
    add(
        "--replicas",
        type=int,
        default=1,
        metavar="N",
        help=(
            "copies of the pipeline on four IPUs each, with images of their own (default:"
            " %(default)s)"
        ),
    )
    add("--lr", type=float, default=0.001, help="AdamW's learning rate (default: %(default)s)")
    add(
        "--offload-optimiser",
        action="store_true",
        help=(
            "keep AdamW's two states a weight in streaming memory: less tile memory, more host I/O"
        ),
    )
    add(
        "--target",
        default="mk2",
        help="machine to model: mk1, mk2, c600, bow (default: %(default)s)",
    )
    add(
        "--profile-dir",
        type=Path,
        metavar="DIR",
        help="write training/profile.pop and inference/profile.pop there",
    )
    add("--autoreport", action="store_true", help=argparse.SUPPRESS)  # --profile-dir . of before
    add(
        "--data",
        type=Path,
        default=None,
        metavar="DIR",
        help=(
            "directory with the four IDX files of MNIST, gzipped or not; without it, scikit-learn's"
            " small set of digits is used, which needs no download"
        ),
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="of weights, shuffling, shifts and the split (default: %(default)s)",
    )
    args = parser.parse_args()
    if args.autoreport and args.profile_dir is None:
        args.profile_dir = Path(".")
    return args


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    loaded = load_mnist(args.data) if args.data else load_small_digits(args.seed)
    train_images, train_labels, test_images, test_labels = loaded
    network = Mnist()
    try:
        train(network, train_images, train_labels, args)
        accuracy = test(network, test_images, test_labels, args)
    except poptorch.Error as error:
        raise SystemExit(f"error: {error}") from None
    print(f"test accuracy {accuracy:.1%} on {len(test_images):,} images")
    if args.profile_dir is not None:
        for kind in ("training", "inference"):
            print(f"profile: {args.profile_dir / kind / 'profile.pop'}")


if __name__ == "__main__":
    main()
