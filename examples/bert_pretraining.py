"""BERT pretraining (masked words, next sentence) with LAMB, optimiser state in streaming memory.

python -m examples.bert_pretraining --compile-only --profile-dir out
    BERT-Base over four IPUs
python -m examples.bert_pretraining --large --half --compile-only --profile-dir out
    BERT-Large over eight
python -m examples.bert_pretraining --tiny --save bert.pt
    weights for examples.bert_finetuning
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
from examples.models import bert, split


def optimiser(model: torch.nn.Module, kept: torch.dtype) -> torch.optim.Optimizer:
    """LAMB, with weight decay for matrices only.

    ``kept`` is the type of accumulators and first moments.
    """
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    lamb = poptorch.optim.LAMB(
        [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=0.002,
        bias_correction=False,
        accum_type=kept,
        first_order_momentum_accum_type=kept,
        max_weight_norm=10.0,
    )
    assert lamb.variable_attrs is not None
    lamb.variable_attrs.markAsConstant("max_weight_norm")
    return lamb


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train; the losses of the calls."""
    parser = common.parser(__doc__, stages=8, accumulation=64)
    parser.add_argument("--large", action="store_true", help="BERT-Large instead of BERT-Base")
    parser.add_argument(
        "--half", action="store_true", help="weights, activations and accumulators in float16"
    )
    parser.add_argument(
        "--micro-batch", type=int, default=1, help="sentences a micro-batch (default: %(default)s)"
    )
    parser.add_argument(
        "--replicas", type=int, default=1, help="copies of the pipeline (default: %(default)s)"
    )
    parser.add_argument(
        "--warm-up", type=int, default=3, help="calls until the full rate (default: %(default)s)"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the trained weights there")
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    config = bert.TINY if args.tiny else bert.LARGE if args.large else bert.BASE
    example = bert.example(config)
    options = common.options(args).replicationFactor(args.replicas)
    options.setExecutionStrategy(split(example, args.stages))
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False)
    )
    options.setAvailableMemoryProportion({f"IPU{ipu}": 0.2 for ipu in range(args.stages)})
    # the embedding is tied to the head: its gradient is added row by row, and never made as a whole
    options._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True})

    module = example.module.half() if args.half else example.module
    optimizer = optimiser(module, torch.float16 if args.half else torch.float32)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / args.warm_up, max(0.1, 1 - step / max(1, args.steps))),
    )
    model = poptorch.trainingModel(module, options, optimizer)
    samples = args.micro_batch * options.batch_factor
    batch = example.inputs(
        samples
    )  # random sentences, always the same: there is something to learn by heart
    if args.half:
        batch = tuple(x.half() if x.is_floating_point() else x for x in batch)

    losses: list[float] = []
    if args.compile_only:
        model.compile(*batch)
        common.say_speed(model, samples)
    else:
        clock = common.Clock()
        for number in range(args.steps):
            _, loss = model(*batch)
            losses.append(float(loss.mean()))
            print(f"call {number}: loss {losses[-1]:.4f}")
            schedule.step()
            model.setOptimizer(optimizer)
            clock.tick()
        common.say_speed(model, samples, clock.seconds)
    if args.save is not None:
        torch.save(example.module.state_dict(), args.save)
        print(f"weights: {args.save}")
    model.destroy()
    return losses


if __name__ == "__main__":
    main()
