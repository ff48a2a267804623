"""Public configurations, as scripts have them, for a plan to be held against.

Each is Graphcore's own for PyTorch [EX]: layers of each IPU, micro-batch, accumulation,
replicas, memory proportions, where optimiser state is. What the models here have not (packed
sequences, serialised embeddings, images of 8 bits) is left out for both sides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

import ipu_exec as poptorch
from examples.bert_pretraining import optimiser as lamb
from examples.models import Example, bert, gpt2, resnet, vit
from ipu_exec.session.call_plan import FirstCall

HALF = torch.float16


@dataclass(frozen=True)
class Public:
    """``layers``: of each IPU, the first Block before them; ``home``: the last Block is on IPU 0.

    ``proportions`` by IPU. ``off_chip``, ``in_parts``: optimiser state.
    """

    name: str
    ipus: int
    example: Callable[[], Example]
    optimiser: Callable[[torch.nn.Module], torch.optim.Optimizer]
    layers: tuple[int, ...]
    micro_batch: int
    accumulation: int
    replicas: int
    proportions: tuple[float, ...]
    off_chip: bool = False
    in_parts: bool = False
    home: bool = True
    recomputation: int | None = None

    def call(self) -> FirstCall:
        """Its first call; inputs of a weight update take no memory."""
        with poptorch.no_weights():
            example = self.example()
            module = example.module.half()
        executor = poptorch.trainingModel(
            module, self.options(example.blocks), self.optimiser(module)
        )
        samples = self.micro_batch * self.accumulation * self.replicas
        one = (x.half() if x.is_floating_point() else x for x in example.inputs(1))
        return executor.first_call(*(x[:1].expand(samples, *x.shape[1:]) for x in one))

    def options(self, blocks: Sequence[str]) -> poptorch.Options:
        """The script's options."""
        opts = poptorch.Options().replicationFactor(self.replicas).autoRoundNumIPUs(True)
        opts.setExecutionStrategy(self._stages(blocks))
        opts.Training.gradientAccumulation(self.accumulation)
        opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
        state = poptorch.TensorLocationSettings().useOnChipStorage(not self.off_chip)
        opts.TensorLocations.setOptimizerLocation(state.useReplicatedTensorSharding(self.in_parts))
        opts.setAvailableMemoryProportion(
            {f"IPU{ipu}": share for ipu, share in enumerate(self.proportions)}
        )
        opts.Precision.setPartialsType(HALF)
        opts._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True})
        if self.recomputation is not None:
            opts._Popart.set("autoRecomputation", self.recomputation)
        return opts

    def _stages(self, blocks: Sequence[str]) -> poptorch.PipelinedExecution:
        first, *middle, last = blocks
        parts: list[list[str]] = []
        for count in self.layers:
            parts.append(middle[:count])
            middle = middle[count:]
        parts[0].insert(0, first)
        if not self.home:
            parts[-1].append(last)
        stages = [poptorch.Stage(*names).ipu(ipu) for ipu, names in enumerate(parts)]
        if self.home:
            stages.append(poptorch.Stage(last).ipu(0))
        return poptorch.PipelinedExecution(*stages)


def _lamb(module: torch.nn.Module) -> torch.optim.Optimizer:
    return lamb(module, HALF)


def _adamw(module: torch.nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.AdamW(
        module.parameters(),
        lr=1.5e-4,
        weight_decay=0.01,
        bias_correction=False,
        accum_type=HALF,
        first_order_momentum_accum_type=HALF,
    )


def _momentum(module: torch.nn.Module) -> torch.optim.Optimizer:
    return poptorch.optim.SGD(
        module.parameters(), lr=0.03, momentum=0.9, use_combined_accum=True, accum_type=HALF
    )


def _bert(config: bert.BertConfig) -> Callable[[], Example]:
    return lambda: bert.example(config)


def _gpt2(config: gpt2.Gpt2Config) -> Callable[[], Example]:
    # enable_sequence_serialized, embedding_serialization_factor
    sizes = replace(config, sequence=1024, vocabulary=50272, loss_pieces=8, head_parts=4)
    return lambda: gpt2.example(sizes)


def _resnet() -> Example:
    """ResNet-50 with checkpoints behind its residual blocks, from which the rest is recomputed."""
    example = resnet.example(50, False)
    for name, module in example.module.named_modules():
        if re.fullmatch(r"residual\.\d+", name):
            module.register_forward_hook(
                lambda _, inputs, output: poptorch.recomputationCheckpoint(output)
            )
    return example


_LARGE_128 = Public(
    "BERT-Large, sequence 128",
    16,
    _bert(bert.LARGE),
    _lamb,
    (3, 7, 7, 7),
    8,
    2048,
    4,
    (0.15, 0.25, 0.25, 0.25),
    off_chip=True,
    in_parts=True,
)
_BASE_128 = replace(
    _LARGE_128,
    name="BERT-Base, sequence 128",
    example=_bert(bert.BASE),
    layers=(0, 4, 4, 4),
    micro_batch=32,
    accumulation=512,
    proportions=(0.25,) * 4,
)
_GPT2_SMALL = Public(
    "GPT-2 small, sequence 1024",
    16,
    _gpt2(gpt2.SMALL),
    _adamw,
    (0, 4, 4, 4),
    1,
    2048,
    4,
    (0.15,) * 4,
    off_chip=True,  # --optimizer-state-offchip, by default
    in_parts=True,
)

# nlp/bert/pytorch/configs_pretraining.yml, nlp/gpt2/pytorch/run/pretraining_*.sh,
# vision/vit/pytorch/configs.yml, vision/cnns/pytorch/train/configs.yml of [EX]
PUBLIC = {
    "bert-large-16": _LARGE_128,
    "bert-base-16": _BASE_128,
    "bert-large-64": replace(
        _LARGE_128,
        ipus=64,
        replicas=16,
        accumulation=512,
        proportions=(0.14, 0.19, 0.19, 0.19),
    ),
    "bert-base-64": replace(_BASE_128, ipus=64, replicas=16, accumulation=128),
    "gpt2-small-16": _GPT2_SMALL,
    "gpt2-medium-16": replace(
        _GPT2_SMALL,
        name="GPT-2 medium, sequence 1024",
        example=_gpt2(gpt2.MEDIUM),
        layers=(0, 3, 3, 3, 3, 4, 4, 4),
        accumulation=4096,
        replicas=2,
        proportions=(0.30, *(0.15,) * 7),
    ),
    "gpt2-large-16": replace(
        _GPT2_SMALL,
        name="GPT-2 large, sequence 1024",
        example=_gpt2(gpt2.LARGE),
        layers=(0, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 2),
        accumulation=8192,
        replicas=1,
        proportions=(
            *(0.2, 0.15, 0.2, 0.2, 0.2, 0.15, 0.15, 0.2),
            *(0.2, 0.15, 0.2, 0.2, 0.2, 0.15, 0.15, 0.2),
        ),
        in_parts=False,
    ),
    "vit-16": Public(
        "ViT-B/16, 224 x 224",
        16,
        lambda: vit.example(tiny=False),
        _momentum,
        (3, 3, 3, 3),
        17,
        128,
        4,
        (0.3,) * 4,
        in_parts=True,
        home=False,
    ),
    "resnet-50-16": Public(
        "ResNet-50, 224 x 224",
        16,
        _resnet,
        _momentum,
        (16,),
        18,
        57,
        16,
        (0.16,),
        home=False,
        recomputation=4,
    ),
    "tiny-4": Public(
        "BERT of a toy's size",
        4,
        _bert(bert.TINY),
        _lamb,
        (1, 3),
        2,
        16,
        2,
        (0.2, 0.2),
        off_chip=True,
        in_parts=True,
    ),
}
