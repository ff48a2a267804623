"""Published inference [POPRT] [BMP]: encoders and ResNet as their scripts export them, on one IPU.

A row says the batch, the batches that the IPU takes in turn before it answers (``iterations``), the
tiles set aside for I/O that overlaps with computing, and the planner's options. What those scripts
export is evaluated: no dropout, and batch norm folded into the convolution before it, as
``torch.onnx.export`` does by default.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import ipu_exec
from benchmarks.fidelity.cases import (
    CannotRun,
    Compiled,
    Row,
    compiled_by,
    dtype_of,
    number,
    options_for,
)


def find(case: str) -> Callable[[Row], Compiled] | None:
    """The function that builds this case."""
    if "inference" not in case:
        return None
    return next((build for word, build in MODELS.items() if case.startswith(word)), None)


def run(row: Row, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Compiled:
    """Compile ``model`` for the row's iterations, given ``inputs`` of one batch."""
    iterations = number(row.case, r"(\d+) iterations", 1)
    options = options_for(row).deviceIterations(iterations)
    if row.dtype == "fp16":
        model = model.half()
    if "GELU and norms in fp32" in row.case:
        keep_in_float(model)
    if match := re.search(r"(\d+) I/O tiles", row.case):
        options.TensorLocations.numIOTiles(int(match.group(1)))
        options.setExecutionStrategy(ipu_exec.ShardedExecution())
        model = Overlapped(model)
    whole = tuple(t.new_empty((t.shape[0] * iterations, *t.shape[1:])) for t in inputs)
    with torch.no_grad():
        executor = ipu_exec.inferenceModel(model.eval(), options)
        executable, note = compiled_by(executor, whole, inputs)
    return Compiled(executable, samples=whole[0].shape[0], note=note)


class Overlapped(nn.Module):
    """Inputs and outputs move on I/O tiles while the batch before and after is computed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> Any:
        mode = ipu_exec.OverlapMode.OverlapDeviceIterationLoop
        early = [ipu_exec.set_overlap_for_input(each, mode) for each in inputs]
        return ipu_exec.set_overlap_for_output(self.model(*early), mode)


class Cast(nn.Module):
    """What it is given, in another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


def in_float(layer: nn.Module) -> nn.Module:
    """``layer`` in fp32 among layers in fp16."""
    return nn.Sequential(Cast(torch.float32), layer.float(), Cast(torch.float16))


def keep_in_float(model: Any) -> None:
    """Leave the norms and the GELUs of an encoder in fp16 to fp32, as PopRT's script can."""
    model.embedding.norm = in_float(model.embedding.norm)
    for layer in model.layer:
        layer.attention_norm = in_float(layer.attention_norm)
        layer.output_norm = in_float(layer.output_norm)
        layer.intermediate = nn.Sequential(layer.intermediate, Cast(torch.float32))
        layer.output = nn.Sequential(Cast(torch.float16), layer.output)


class Answers(nn.Module):
    """BERT for question answering: where the answer starts and ends."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        from examples.models import bert as source

        self.embedding = source.Embeddings(config)
        self.layer = nn.ModuleList(source.Layer(config) for _ in range(config.layers))
        self.ends = nn.Linear(config.hidden, 2)

    def forward(
        self, tokens: torch.Tensor, visible: torch.Tensor, types: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(tokens, types)
        mask = (1.0 - visible[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layer:
            x = layer(x, mask)
        start, end = self.ends(x).unbind(-1)
        return start, end


def bert(row: Row) -> Compiled:
    """Question answering with the vocabulary and sizes of BERT."""
    from examples.models import bert as source

    base = source.LARGE if "Large" in row.case else source.BASE
    config = replace(base, sequence=number(row.case, r"sequence (\d+)"))
    shape = number(row.case, r"batch (\d+)"), config.sequence
    tokens = torch.zeros(shape, dtype=torch.int32)
    return run(row, Answers(config), (tokens, torch.ones_like(tokens), torch.zeros_like(tokens)))


class Scores(nn.Module):
    """A classifier of ``examples.models`` without its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        labels = torch.zeros(images.shape[0], dtype=torch.long)
        scores: torch.Tensor = self.model(images, labels)[0]
        return scores


def images_of(row: Row, side: int) -> torch.Tensor:
    """A batch of images, in the row's type or in eight bits."""
    dtype = torch.uint8 if "8 bits" in row.case else dtype_of(row)
    return torch.zeros(number(row.case, r"batch (\d+)"), 3, side, side, dtype=dtype)


def vit(row: Row) -> Compiled:
    """ViT-B/16 at 224 pixels."""
    from examples.models import vit as source

    return run(row, Scores(source.example(False).module), (images_of(row, 224),))


class Normalised(nn.Module):
    """Images in eight bits, scaled on the IPU."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("scale", torch.full((3, 1, 1), 1 / 58))
        self.register_buffer("shift", torch.full((3, 1, 1), 2.0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.model(images.to(self.scale.dtype) * self.scale - self.shift)
        return scores


def resnet(row: Row) -> Compiled:
    """ResNet with its batch norms folded into the convolutions."""
    from examples.models import resnet as source

    depth = number(row.case, r"ResNet-(\d+)")
    if depth not in source.LAYERS:
        raise CannotRun(f"no ResNet of {depth} layers is written")
    network = source.ResNet(source.LAYERS[depth], bottleneck=depth >= 50).eval()
    fold(network)
    model: nn.Module = Scores(network)
    if "8 bits" in row.case:
        model = Normalised(model)
    return run(row, model, (images_of(row, number(row.case, r"(\d+) px")),))


def fold(network: Any) -> None:
    """Fold each batch norm of a ResNet into the convolution before it."""
    pairs = [network.stem]
    for block in network.residual:
        for at, (conv, norm) in enumerate(zip(block.convolutions, block.norms, strict=True)):
            block.convolutions[at] = fuse_conv_bn_eval(conv, norm)
            block.norms[at] = nn.Identity()
        if isinstance(block.shortcut, nn.Sequential) and len(block.shortcut) > 1:
            pairs.append(block.shortcut)
    for conv_and_norm in pairs:
        conv_and_norm[0] = fuse_conv_bn_eval(conv_and_norm[0], conv_and_norm[1])
        conv_and_norm[1] = nn.Identity()


MODELS: dict[str, Callable[[Row], Compiled]] = {
    "BERT": bert,
    "ViT": vit,
    "ResNet-": resnet,
}
"""By how the row's case begins."""
