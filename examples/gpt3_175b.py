"""GPT-3 with 175 billion parameters on a POD256: tensors over 8, a pipeline of 8, 4 replicas.

python -m examples.gpt3_175b --pod 256 --profile-dir out
    96 layers in 50 phases, compiled without memory for their weights; --layers 8 takes less time
python -m examples.gpt3_175b --pod 16 --tiny
    a toy, for tests and to try the script

A quarter of a layer is what an IPU has room for beside its gradients and what its products need, so
that a phase has two layers on the eight IPUs of the pipeline, and an IPU the same quarter in all
phases. Its weights come from streaming memory, of which each replica keeps its part, once for all
micro-batches of a weight update.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

if not __package__:  # run as a file, not by -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ipu_exec as poptorch
from examples.models import gpt3

PODS = {16: (4, 2, 2), 64: (8, 4, 2), 256: (8, 8, 4)}  # IPUs: t, p, r


def phases(blocks: Sequence[str], pipeline: int) -> list[poptorch.Phase]:
    """A phase has a Block on each IPU of the pipeline; the embedding is a phase of its own."""
    first, *others = blocks
    result = [poptorch.Phase(poptorch.Stage(first).ipu(0))]
    for begin in range(0, len(others), pipeline):
        blocks_of_phase = others[begin : begin + pipeline]
        stages = (poptorch.Stage(name).ipu(ipu) for ipu, name in enumerate(blocks_of_phase))
        result.append(poptorch.Phase(*stages))
    return result


def options(shards: int, pipeline: int, replicas: int, blocks: Sequence[str]) -> poptorch.Options:
    """Everything waits in streaming memory, in parts where it is large.

    The parts of weights and optimiser state are on the replicas, those of activations on the IPUs
    that share the stage's tensors.
    """
    opts = poptorch.Options().replicationFactor(replicas)
    opts.tensorSharding(shards, gpt3.plan()).randomSeed(0)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(*phases(blocks, pipeline)))
    in_parts = poptorch.TensorLocationSettings().useOnChipStorage(False)
    in_parts.useReplicatedTensorSharding()
    off_chip = poptorch.TensorLocationSettings().useOnChipStorage(False)
    opts.TensorLocations.setWeightLocation(in_parts).setOptimizerLocation(in_parts)
    opts.TensorLocations.setAccumulatorLocation(off_chip).setActivationLocation(in_parts)
    opts.setAvailableMemoryProportion({f"IPU{ipu}": 0.25 for ipu in range(pipeline)})
    opts._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True})
    return opts


def main(argv: Sequence[str] | None = None) -> poptorch.PoplarExecutor:
    """Compile, and say how large and how fast it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--pod", type=int, choices=sorted(PODS), default=256, help="IPUs (default: %(default)s)")
    add("--layers", type=int, help="fewer layers of the same size")
    add("--tiny", action="store_true", help="a toy version of the model")
    add("--accumulation", type=int, default=64, help="micro-batches a replica and weight update")
    add("--profile-dir", type=Path, metavar="DIR", help="write training/profile.pop there")
    args = parser.parse_args(argv)

    began = time.perf_counter()
    config = gpt3.TINY if args.tiny else gpt3.GPT3
    config = replace(config, layers=args.layers or config.layers)
    model, inputs = wrapped(config, args.pod, args.accumulation, args.profile_dir)
    model.compile(*inputs)
    _say(model, sum(p.numel() for p in model.parameters()), len(inputs[0]), began)
    return model


def wrapped(
    config: gpt3.Gpt2Config, pod: int, accumulation: int, profile_dir: Path | None
) -> tuple[poptorch.PoplarExecutor, tuple[torch.Tensor, ...]]:
    """The model, not compiled yet and without memory for its weights, and inputs of an update."""
    shards, pipeline, replicas = PODS[pod]
    with poptorch.no_weights():
        example = gpt3.example(config)
        module = example.module.half()
    opts = options(shards, pipeline, replicas, example.blocks)
    opts.Training.gradientAccumulation(accumulation)
    if profile_dir is not None:
        opts.enableProfiling(profile_dir)
    half = torch.float16
    optimizer = poptorch.optim.AdamW(
        module.parameters(), lr=1e-4, accum_type=half, first_order_momentum_accum_type=half
    )
    model = poptorch.trainingModel(module, opts, optimizer)
    return model, example.inputs(accumulation * replicas)


def _say(model: poptorch.PoplarExecutor, parameters: int, samples: int, began: float) -> None:
    target, cycles = model.executable.target, model.executable.cycles_per_call
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{parameters:,} parameters; {target.name}: {cycles:,} cycles a weight update of"
        f" {samples} samples, {samples / target.seconds(cycles):,.2f} samples/s; this computer took"
        f" {time.perf_counter() - began:.1f} s and {memory:.2f} GiB"
    )


if __name__ == "__main__":
    main()
