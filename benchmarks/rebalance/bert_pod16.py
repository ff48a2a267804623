"""BERT-Large for pretraining on a POD16, in the split that Graphcore published for it.

Compiled only. ``python -m benchmarks.rebalance.bert_pod16 --profile-dir out`` writes
out/training/profile.pop: four replicas of a pipeline over four IPUs with 3, 7, 7 and 7 layers, the
embedding and the head that shares its weight both on IPU 0, micro-batches of 8 sentences of 128
words, accumulation 2048, recomputation from layer to layer, and optimiser state in streaming
memory, a part of it for each replica [EX, nlp/bert/pytorch].
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

import ipu_exec as poptorch
from examples.bert_pretraining import optimiser
from examples.models import bert, numbered

REPLICAS, MICRO_BATCH, ACCUMULATION = 4, 8, 2048
LARGE_LAYERS = (3, 7, 7, 7)
PROPORTIONS = (0.15, 0.25, 0.25, 0.25)


def strategy(layers: Sequence[int]) -> poptorch.PipelinedExecution:
    """Embedding and first layers, further layers, and the head back on IPU 0."""
    names = numbered("layer", range(sum(layers)))
    stages, begin = [], 0
    for ipu, count in enumerate(layers):
        layers_of_stage = names[begin : begin + count]
        stages.append(
            poptorch.Stage(*(("embedding",) if ipu == 0 else ()), *layers_of_stage).ipu(ipu)
        )
        begin += count
    return poptorch.PipelinedExecution(*stages, poptorch.Stage("head").ipu(0))


def main(argv: Sequence[str] | None = None) -> None:
    """Compile it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--profile-dir", type=Path, help="write training/profile.pop there")
    parser.add_argument("--tiny", action="store_true", help="a toy of it, for tests")
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    layers = (1, 1, 1, 1) if args.tiny else LARGE_LAYERS
    example = bert.example(bert.TINY if args.tiny else bert.LARGE)
    accumulation = 16 if args.tiny else ACCUMULATION
    options = poptorch.Options().replicationFactor(REPLICAS)
    options.setExecutionStrategy(strategy(layers))
    options.Training.gradientAccumulation(accumulation)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
    )
    options.setAvailableMemoryProportion(
        {f"IPU{ipu}": share for ipu, share in enumerate(PROPORTIONS)}
    )
    options.Precision.setPartialsType(torch.half)  # enable_half_partials, as published
    # the embedding is tied to the head: its gradient is added row by row, and never made as a whole
    options._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True})
    if args.profile_dir is not None:
        options.enableProfiling(args.profile_dir)

    module = example.module.half()
    model = poptorch.trainingModel(module, options, optimiser(module, torch.float16))
    # Every sentence of a call: the compiler looks at shapes only.
    batch = tuple(
        each[:1].expand(MICRO_BATCH * options.batch_factor, *each.shape[1:])
        for each in example.inputs(1)
    )
    model.compile(*(x.half() if x.is_floating_point() else x for x in batch))
    model.destroy()


if __name__ == "__main__":
    main()
