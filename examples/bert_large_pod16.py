"""BERT-Large pretraining on a POD16, as public configurations have it.

python -m examples.bert_large_pod16 --pipeline 4 --profile-dir out
    four IPUs in four replicas: optimiser state in streaming memory, in parts on the replicas
python -m examples.bert_large_pod16 --pipeline 8 --profile-dir out
    eight IPUs in two replicas: all state is on the chips

Compiled without memory for the weights. The head is on IPU 0, with the embedding whose table it
shares, so that the stages return there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

if not __package__:  # run as a file, not by -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ipu_exec as poptorch
from examples import common
from examples.bert_pretraining import optimiser
from examples.models import bert

IPUS = 16


@dataclass(frozen=True)
class Setting:
    """Layers of each IPU, sentences of a micro-batch, memory proportions by IPU."""

    layers: tuple[int, ...]
    micro_batch: int
    accumulation: int
    proportions: tuple[float, ...]
    off_chip: bool


SETTINGS = {
    # Graphcore's examples, bert/pytorch/configs.yml: pretrain_large_128
    4: Setting((3, 7, 7, 7), 8, 2048, (0.15, 0.25, 0.25, 0.25), off_chip=True),
    8: Setting((1, 3, 3, 3, 3, 3, 4, 4), 2, 4096, (0.15,) * 8, off_chip=False),
}


def stages(layers: Sequence[int]) -> poptorch.PipelinedExecution:
    """The embedding and the first layers, and so on, and the head on the first IPU."""
    parts, first = [], 0
    for ipu, count in enumerate(layers):
        layers_of_stage = [f"layer{number}" for number in range(first, first + count)]
        first += count
        names = ["embedding", *layers_of_stage] if ipu == 0 else layers_of_stage
        parts.append(poptorch.Stage(*names).ipu(ipu))
    return poptorch.PipelinedExecution(*parts, poptorch.Stage("head").ipu(0))


def options(setting: Setting, replicas: int) -> poptorch.Options:
    """The configuration's."""
    opts = poptorch.Options().replicationFactor(replicas).randomSeed(0)
    opts.setExecutionStrategy(stages(setting.layers))
    opts.Training.gradientAccumulation(setting.accumulation)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    if setting.off_chip:
        state = poptorch.TensorLocationSettings().useOnChipStorage(False)
        opts.TensorLocations.setOptimizerLocation(state.useReplicatedTensorSharding())
    opts.setAvailableMemoryProportion(
        {f"IPU{ipu}": share for ipu, share in enumerate(setting.proportions)}
    )
    opts.Precision.setPartialsType(torch.float16)  # enable_half_partials
    opts._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True})
    return opts


def main(argv: Sequence[str] | None = None) -> poptorch.PoplarExecutor:
    """Compile, and say how fast it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--pipeline", type=int, choices=sorted(SETTINGS), default=4, help="IPUs of a replica")
    add("--tiny", action="store_true", help="a toy version of the model")
    add("--profile-dir", type=Path, metavar="DIR", help="write training/profile.pop there")
    args = parser.parse_args(argv)

    setting = SETTINGS[args.pipeline]
    replicas = IPUS // args.pipeline
    config = replace(bert.TINY, layers=24) if args.tiny else bert.LARGE
    if args.tiny:
        setting = replace(setting, accumulation=32)
    with poptorch.no_weights():
        example = bert.example(config)
        module = example.module.half()
    opts = options(setting, replicas)
    if args.profile_dir is not None:
        opts.enableProfiling(args.profile_dir)
    model = poptorch.trainingModel(module, opts, optimiser(module, torch.float16))
    samples = setting.micro_batch * setting.accumulation * replicas
    batch = (x.half() if x.is_floating_point() else x for x in example.inputs(samples))
    model.compile(*batch)
    common.say_speed(model, samples)
    return model


if __name__ == "__main__":
    main()
