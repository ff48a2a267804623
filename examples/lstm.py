"""An LSTM language model in phases: a model larger than its IPU, its weights coming and going.

python -m examples.lstm --compile-only --profile-dir out
    phases on one IPU
python -m examples.lstm --parallel --compile-only --profile-dir out
    two IPUs in turn: one loads while one computes
python -m examples.lstm --tiny
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
from examples.models import integers, lstm

BLOCKS = ("embedding", "layer0", "layer1", "output")


def phases(parallel: bool) -> poptorch.SerialPhasedExecution | poptorch.ParallelPhasedExecution:
    """A phase for each Block."""
    each = [poptorch.Phase(name) for name in BLOCKS]
    if parallel:
        return poptorch.ParallelPhasedExecution(*each).sendTensorsOffChipAfterFwd()
    return poptorch.SerialPhasedExecution(*each).setTensorsLiveness(
        poptorch.Liveness.OffChipAfterFwd
    )


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train; the losses of the calls."""
    parser = common.parser(__doc__, stages=1, accumulation=1)
    parser.add_argument(
        "--parallel", action="store_true", help="two groups of IPUs in turn, rather than one"
    )
    parser.add_argument(
        "--hidden", type=int, default=650, help="width of the layers (default: %(default)s)"
    )
    parser.add_argument(
        "--sequence", type=int, default=8, help="words of a sample (default: %(default)s)"
    )
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    vocabulary, hidden, sequence = (
        (64, 16, 6) if args.tiny else (10_000, args.hidden, args.sequence)
    )
    network = lstm.Lstm(vocabulary, hidden, layers=2)
    options = common.options(args).setExecutionStrategy(phases(args.parallel))
    optimizer = poptorch.optim.SGD(network.parameters(), lr=1.0, max_grad_norm=5.0)
    model = poptorch.trainingModel(network, options, optimizer)
    samples = 4 * options.batch_factor
    batch = (
        integers(vocabulary, samples, sequence),
        integers(vocabulary, samples, sequence, seed=1),
    )

    losses: list[float] = []
    if args.compile_only:
        model.compile(*batch)
    else:
        for number in range(args.steps):
            _, loss = model(*batch)
            losses.append(float(loss.mean()))
            print(f"call {number}: loss {losses[-1]:.4f}")
    common.say_speed(model, samples)
    moved = sum(model.executable.tree.loads.values()) + sum(model.executable.tree.stores.values())
    print(
        f"of which {moved:,} cycles a micro-batch move state; {model.executable.placement.num_ipus}"
        " IPU(s)"
    )
    model.destroy()
    return losses


if __name__ == "__main__":
    main()
