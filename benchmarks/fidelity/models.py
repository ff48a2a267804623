"""Whole published trainings in their real configuration, parsed from the row's text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn

import ipu_exec
from benchmarks.fidelity.cases import (
    CannotRun,
    Compiled,
    Row,
    compiled_by,
    dtype_of,
    ipus,
    number,
    options_for,
)


def find(case: str) -> Callable[[Row], Compiled] | None:
    """The function that builds this case."""
    return next(
        (build for word, build in MODELS.items() if case.startswith(word) and "training" in case),
        None,
    )


def configured(row: Row) -> tuple[ipu_exec.Options, int]:
    """Options and samples per micro-batch, as stated by the row."""
    replicas = number(row.case, r"(\d+) replicas", 1)
    accumulation = number(row.case, r"gradient accumulation (\d+)", 1)
    options = options_for(row).replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    shared = number(row.case, r"batch norm over (\d+) replicas", 1)
    options.Training.distributedBatchNormReplicaGroupSize(shared)
    # as all public configurations have it: enable_half_partials, half_partial
    if row.dtype == "fp16":
        options.Precision.setPartialsType(torch.half)
    if "optimiser state" in row.case:
        location = ipu_exec.TensorLocationSettings().useOnChipStorage("on-chip" in row.case)
        location.useReplicatedTensorSharding("sharding" in row.case)
        options.TensorLocations.setOptimizerLocation(location)
    return options, number(row.case, r"micro-batch (\d+)")


class LimitedLamb(ipu_exec.optim.LAMB):
    """LAMB where the norm over all gradients is limited, as PopART's ``clip_norm_settings`` do."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One weight update."""
        every = [parameter for group in self.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(every, 1.0)
        return super().step(closure)


def optimiser(row: Row, model: torch.nn.Module) -> torch.optim.Optimizer:
    """In float16 only a second moment is in float32, as in Graphcore's public configurations,
    unless the row says that the first one is too, or all of its state.
    """
    half = row.dtype == "fp16" and "LAMB in fp32" not in row.case
    types = {"accum_type": torch.float16} if half else {}
    half_first = half and "first moment in fp32" not in row.case
    first = {"first_order_momentum_accum_type": torch.float16} if half_first else {}
    velocity = {"velocity_accum_type": torch.float16} if half else {}
    if "LARS" in row.case:
        return ipu_exec.optim.LARS(model.parameters(), **types)
    if "LAMB" in row.case:
        lamb = LimitedLamb if "gradient norm limited" in row.case else ipu_exec.optim.LAMB
        return lamb(model.parameters(), lr=1e-3, **types, **first)
    if "RMSprop" in row.case:
        return ipu_exec.optim.RMSprop(
            model.parameters(), lr=1e-3, momentum=0.9, use_tf_variant=True, **types
        )
    if "Adam" in row.case:
        return ipu_exec.optim.AdamW(model.parameters(), lr=1e-3, **types, **first)
    momentum = 0.0 if "plain SGD" in row.case else 0.9
    return ipu_exec.optim.SGD(model.parameters(), lr=1e-3, momentum=momentum, **types, **velocity)


def compile_training(
    row: Row, model: torch.nn.Module, options: ipu_exec.Options, inputs: tuple[torch.Tensor, ...]
) -> Compiled:
    """Compile a training step, given example ``inputs`` of one micro-batch."""
    if row.dtype == "fp16":
        model = model.half()
    whole = tuple(wide(t, options.batch_factor) for t in inputs)
    chosen = optimiser(row, model)
    executor = ipu_exec.trainingModel(model.train(), options, chosen)
    executable, note = compiled_by(executor, whole, inputs, chosen)
    return Compiled(executable, samples=whole[0].shape[0], note=note)


def wide(micro: torch.Tensor, factor: int) -> torch.Tensor:
    """Space for ``factor`` micro-batches, never written: compiling reads only shapes."""
    return micro.new_empty((micro.shape[0] * factor, *micro.shape[1:]))


def layers_per_ipu(row: Row, layers: int, noun: str = "layers") -> list[int]:
    """The layers per IPU listed in the row; otherwise even over the IPUs of a replica."""
    match = re.search(rf"{noun} per IPU ([\d/]+)", row.case)
    count = ipus(row)
    edges = [round(layers * k / count) for k in range(count + 1)]
    counts = (
        [int(n) for n in match.group(1).split("/")]
        if match
        else [b - a for a, b in pairwise(edges)]
    )
    if sum(counts) != layers:
        raise CannotRun(f"{match.group(1) if match else counts} {noun} are not {layers}")
    return counts


def place(
    options: ipu_exec.Options,
    counts: Sequence[int],
    first: str,
    last: str,
    tied: bool,
    layer: str = "layer",
) -> None:
    """A pipeline of ``first``, ``layer0`` ... and ``last``, which comes back to IPU 0 where it is
    tied to the first. ``layer``: how the names of the Blocks between them begin.
    """
    stages, at = [], 0
    for ipu, count in enumerate(counts):
        blocks = [*([first] if ipu == 0 else []), *(f"{layer}{i}" for i in range(at, at + count))]
        at += count
        stages.append(blocks)
    if tied and len(counts) > 1:
        pipeline = [
            *(ipu_exec.Stage(*blocks).ipu(k) for k, blocks in enumerate(stages)),
            ipu_exec.Stage(last).ipu(0),
        ]
    else:
        stages[-1].append(last)
        pipeline = [ipu_exec.Stage(*blocks).ipu(k) for k, blocks in enumerate(stages)]
    options.setExecutionStrategy(ipu_exec.PipelinedExecution(*pipeline))
    # as the public configurations have it, besides the layers' checkpoints: a tied embedding's
    # gradient is sparse
    options._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True})


def in_type(row: Row, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Inputs converted to the row's precision."""
    return tuple(t.to(dtype_of(row)) if t.is_floating_point() else t for t in inputs)


def bert(row: Row) -> Compiled:
    """Encoder layers per IPU as the row lists them, embedding and its tied head on IPU 0.

    Or, as [MLP] has it, attentions and feed-forward networks one by one, the last of them beside
    the head.
    """
    from examples.models import bert as source

    options, batch = configured(row)
    base = source.LARGE if "Large" in row.case else source.BASE
    if match := re.search(r"attention dropout ([\d.]+)", row.case):
        base = replace(base, attention_dropout=float(match.group(1)))
    if "fine-tuning" in row.case:
        return answers(row, options, batch, base)
    halves = halves_per_stage(row)
    config = replace(
        base,
        sequence=number(row.case, r"sequence (\d+)"),
        masked=number(row.case, r"(\d+) masked", base.masked),
        micro_batch=batch,
        vocabulary=number(row.case, r"vocabulary (\d+)", base.vocabulary),
        halves=bool(halves),
        head_parts=number(row.case, r"head in (\d+) parts", 1),
        packed=number(row.case, r"packs of (\d+)", 1),
        next_sentence="no next sentence" not in row.case,
    )
    if halves:
        place_halves(options, halves)
    else:
        place(options, layers_per_ipu(row, config.layers), "embedding", "head", True)
    return compile_training(
        row, source.Bert(config), options, in_type(row, source.inputs(config, batch))
    )


class Found(nn.Module):
    """BERT for question answering with its loss: where the answer starts and where it ends.

    All layers but the last keep their output ([EX, nlp/bert/pytorch/modeling.py],
    PipelinedBertForQuestionAnswering).
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        from benchmarks.fidelity.inference import Answers

        self.model = Answers(config)
        ipu_exec.BeginBlock(self.model.embedding, "embedding")
        for index, layer in enumerate(self.model.layer):
            ipu_exec.BeginBlock(layer, f"layer{index}")
            if index < config.layers - 1:
                layer.register_forward_hook(keep)
        ipu_exec.BeginBlock(self.model.ends, "ends")

    def forward(
        self,
        tokens: torch.Tensor,
        visible: torch.Tensor,
        types: torch.Tensor,
        begins: torch.Tensor,
        ends: torch.Tensor,
    ) -> Any:
        first, last = self.model(tokens, visible, types)
        loss = nn.functional.cross_entropy(first.float(), begins)
        loss = (loss + nn.functional.cross_entropy(last.float(), ends)) / 2
        return first, last, ipu_exec.identity_loss(loss, reduction="none")


def answers(row: Row, options: ipu_exec.Options, batch: int, base: Any) -> Compiled:
    """Fine-tuning for question answering, without the pretraining's heads."""
    config = replace(
        base,
        sequence=number(row.case, r"sequence (\d+)"),
        vocabulary=number(row.case, r"vocabulary (\d+)", base.vocabulary),
    )
    options.deviceIterations(number(row.case, r"(\d+) iterations", 1))
    place(options, layers_per_ipu(row, config.layers), "embedding", "ends", False)
    tokens = torch.zeros(batch, config.sequence, dtype=torch.int32)
    place_of = torch.zeros(batch, dtype=torch.long)
    inputs = tokens, torch.ones_like(tokens), torch.zeros_like(tokens), place_of, place_of.clone()
    return compile_training(row, Found(config), options, inputs)


def halves_per_stage(row: Row) -> list[tuple[int, int, int]]:
    """(IPU, attentions, feed-forward networks) of each stage behind the embedding's; or none."""
    listed = re.search(r"attention\+feed-forward per IPU ([\d:+/]+)", row.case)
    if listed is None:
        return []
    stages = re.findall(r"(\d+):(\d+)\+(\d+)", listed[1])
    return [(int(ipu), int(attentions), int(networks)) for ipu, attentions, networks in stages]


def place_halves(options: ipu_exec.Options, halves: Sequence[tuple[int, int, int]]) -> None:
    """The embedding on IPU 0, then the stages of ``halves``, the head in the last one."""
    stages = [ipu_exec.Stage("embedding").ipu(0)]
    attention, network = 0, 0
    for at, (ipu, attentions, networks) in enumerate(halves):
        blocks = [f"attention{k}" for k in range(attention, attention + attentions)]
        blocks += [f"feed_forward{k}" for k in range(network, network + networks)]
        attention, network = attention + attentions, network + networks
        last = ["head"] if at == len(halves) - 1 else []
        stages.append(ipu_exec.Stage(*blocks, *last).ipu(ipu))
    options.setExecutionStrategy(ipu_exec.PipelinedExecution(*stages))
    options._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True})


def gpt2(row: Row) -> Compiled:
    """Like BERT: the head is tied to the embedding, both on IPU 0.

    Its product is in parts, and the loss of each piece of the sequence by itself, as the public
    script has them ([EX, nlp/gpt2/pytorch]).
    """
    from examples.models import gpt2 as source

    options, batch = configured(row)
    sizes = {"GPT-2 medium": source.MEDIUM, "GPT-2 large": source.LARGE}
    base = next((s for name, s in sizes.items() if row.case.startswith(name)), source.SMALL)
    config = replace(
        base,
        sequence=number(row.case, r"sequence (\d+)"),
        micro_batch=batch,
        vocabulary=number(row.case, r"vocabulary (\d+)", base.vocabulary),
        head_parts=number(row.case, r"head in (\d+) parts", 1),
        loss_pieces=number(row.case, r"loss in (\d+) pieces", 1),
    )
    place(options, layers_per_ipu(row, config.layers), "embedding", "head", True)
    example = source.example(config)
    return compile_training(row, example.module, options, example.inputs(batch))


def nano_gpt(row: Row) -> Compiled:
    """The public demo of flash-attention-ipu [FAI], with 6 layers of 384 and 65 characters.

    A replica is one IPU. Attention as PopTorch traced it, nothing recomputed, AdamW, the memory
    proportion of the script.
    """
    from examples.models import gpt2 as source

    options, batch = configured(row)
    length = number(row.case, r"sequence (\d+)")
    config = source.Gpt2Config(384, 6, 6, 65, length, length, batch)
    example = source.example(config)
    return compile_training(row, example.module, options, example.inputs(batch))


def vit(row: Row) -> Compiled:
    """ViT-B/16 at 224 pixels, as [EX, vision/vit/pytorch] has it: dropout, and in pretraining
    also that of the attention's weights, a layer more before the classifier and checkpoints within
    four layers.
    """
    from examples.models import vit as source

    options, batch = configured(row)
    config = replace(source.BASE, dropout=0.1, separate=True)
    if "pretraining" in row.case:
        config = replace(
            config,
            attention_dropout=0.1,
            representation=True,
            middle_checkpoints=(1, 4, 7, 10),
        )
    example = source.example_of(config)
    place(options, layers_per_ipu(row, config.layers), "patches", "classifier", False)
    options.deviceIterations(number(row.case, r"(\d+) iterations", 1))
    pixels, labels = images(batch, config.side)
    if "in 16 bits" in row.case:  # normalised by the host
        return compile_training(row, example.module, options, (pixels.half(), labels))
    return compile_training(row, EightBit(example.module), options, (pixels, labels))


def efficientnet(row: Row) -> Compiled:
    """EfficientNet at its own image size, in Graphcore's variants too: groups of more channels,
    another expansion, group norm ([EX, applications/tensorflow/cnns/training/configs.yml]).
    """
    from examples.models import efficientnet as source

    options, batch = configured(row)
    base = source.B4 if row.case.startswith("EfficientNet-B4") else source.B0
    config = replace(
        base,
        expansion=number(row.case, r"expansion (\d+)", 6),
        group_channels=number(row.case, r"groups of (\d+)", 1),
        norm=group_norm(row) or nn.BatchNorm2d,
    )
    example = source.example_of(config)
    layers = len(example.blocks) - 2
    place(options, layers_per_ipu(row, layers), "stem", "classifier", False, "inverted")
    return compile_training(row, EightBit(example.module), options, images(batch, config.side))


def images(batch: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of eight bits, and their classes."""
    pixels = torch.zeros(batch, 3, side, side, dtype=torch.uint8)
    return pixels, torch.zeros(batch, dtype=torch.long)


def group_norm(row: Row) -> Callable[[int], nn.Module] | None:
    """The norm of so many groups that the row names."""
    groups = number(row.case, r"group norm of (\d+)", 0)
    return (lambda channels: nn.GroupNorm(groups, channels)) if groups else None


def keep(layer: nn.Module, inputs: Any, output: Any) -> Any:
    """A forward hook that keeps the layer's output when activations are recomputed."""
    return ipu_exec.recomputationCheckpoint(output)


# Residual blocks whose outputs Graphcore's public configuration keeps, and its other memory
# settings for a single IPU ([EX, applications/pytorch/cnns/train/configs.yml],
# resnet50: recompute_mode manual).
RESNET_KEEPS = (0, 1, 2, 3, 5, 6, 7, 9, 11, 12)
RESNET_PROPORTION = 0.12


def resnet(row: Row) -> Compiled:
    """ResNet on images of the row's size, and ResNeXt of 32 groups of 4 channels.

    Recomputation, proportion and partials of the public configuration.
    """
    from examples.models import resnet as source

    depth = number(row.case, r"ResNe(?:X)?t-(\d+)")
    if depth not in source.LAYERS:
        raise CannotRun(
            f"no ResNet of {depth} layers is written; there are {sorted(source.LAYERS)}"
        )
    options, batch = configured(row)
    size = number(row.case, r"(\d+) px")
    grouped = {"groups": 32, "group_channels": 4} if "ResNeXt" in row.case else {}
    norm = group_norm(row) or nn.BatchNorm2d
    model = source.ResNet(source.LAYERS[depth], depth >= 50, norm=norm, **grouped)
    if "recompute" in row.case:
        options._Popart.set("autoRecomputation", 4)  # RecomputeAll
        for index, layer in enumerate(model.residual):
            if index in RESNET_KEEPS:
                layer.register_forward_hook(keep)
        if "proportion" not in row.case:
            options.setAvailableMemoryProportion({"IPU0": RESNET_PROPORTION})
        options.Precision.setPartialsType(torch.half if row.dtype == "fp16" else torch.float)
    if ipus(row) > 1:
        counts = layers_per_ipu(row, len(model.residual), "residual blocks")
        place(options, counts, "stem", "classifier", False, "residual")
    return compile_training(row, EightBit(model), options, images(batch, size))


def digits(row: Row) -> Compiled:
    """The classifier of Graphcore's tutorial on pipelining, a Block on each of four IPUs ([EX,
    tutorials/tutorials/pytorch/pipelining/mnist_pipeline.py]).
    """
    from examples import digits as source

    options, batch = configured(row)
    options.deviceIterations(number(row.case, r"(\d+) iterations", 1))
    stages = (ipu_exec.Stage(f"B{ipu + 1}").ipu(ipu) for ipu in range(4))
    options.setExecutionStrategy(ipu_exec.PipelinedExecution(*stages))
    inputs = torch.zeros(batch, 1, 28, 28), torch.zeros(batch, dtype=torch.long)
    return compile_training(row, source.Mnist(), options, inputs)


class EightBit(nn.Module):
    """Images come from the host in eight bits and are normalised on the IPU, as in Graphcore's
    public programs ([EX, applications/tensorflow/cnns/training/configs.yml],
    mk2_resnet50_mlperf_pod16_lars: eight_bit_io, fused_preprocessing, and no tiles for I/O).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("scale", torch.full((3, 1, 1), 1 / 58))
        self.register_buffer("shift", torch.full((3, 1, 1), -2.0))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        return self.model(images.to(self.scale.dtype) * self.scale + self.shift, labels)


MODELS: dict[str, Callable[[Row], Compiled]] = {
    "digits": digits,
    "BERT": bert,
    "GPT-2": gpt2,
    "GPT2": gpt2,
    "nanoGPT": nano_gpt,
    "ViT": vit,
    "EfficientNet-": efficientnet,
    "ResNet-": resnet,
    "ResNeXt-": resnet,
}
"""By how the row's case begins."""
