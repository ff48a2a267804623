"""Models of Hugging Face's transformers at the sizes for which people published splits.

Random weights; Blocks begin at the modules at which optimum-graphcore and graphcore/examples begin
theirs. transformers is imported on first use: who has it not is told what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import ipu_exec as poptorch
from examples.models import Example, floats, integers, numbered

NEEDED = "pip install 'transformers>=4.57,<5'"


def library() -> ModuleType:
    """The package transformers. ModuleNotFoundError with what to install where it is missing."""
    sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]  # not needed here
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"these models are those of transformers: {NEEDED}") from error
    module: ModuleType = transformers
    return module


class Logits(nn.Module):
    """``hidden @ weight.T`` in so many parts, one after the other, so that fewer bytes are live."""

    def __init__(self, linear: nn.Linear, parts: int) -> None:
        super().__init__()
        self.weight, self.parts = linear.weight, parts

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = self.weight.chunk(self.parts)
        return torch.cat([functional.linear(hidden, some) for some in rows], dim=-1)


def _checkpointed(layer: nn.Module) -> None:
    """What the layer gives is kept; what is inside runs again in the backward."""

    def keep(module: nn.Module, inputs: Any, outputs: Any) -> Any:
        if isinstance(outputs, tuple):
            return (poptorch.recomputationCheckpoint(outputs[0]), *outputs[1:])
        return poptorch.recomputationCheckpoint(outputs)

    layer.register_forward_hook(keep)


def never_drops_a_layer(stack: nn.Module) -> None:
    """The stack asks no random number whether to leave a layer out: a program is fixed."""

    def fixed(module: nn.Module, inputs: Any) -> None:
        module.training = False  # of the stack alone; its layers train

    stack.register_forward_pre_hook(fixed)


def layer_blocks(layers: nn.ModuleList, prefix: str) -> tuple[str, ...]:
    """A Block and a checkpoint for each layer."""
    names = numbered(prefix, layers)
    for name, layer in zip(names, layers, strict=True):
        poptorch.BeginBlock(layer, name)
        _checkpointed(layer)
    return names


class WithLoss(nn.Module):
    """A model that takes its inputs by these names and gives its loss alone."""

    def __init__(
        self, model: nn.Module, names: tuple[str, ...], loss: Callable[..., torch.Tensor]
    ) -> None:
        super().__init__()
        self.model, self.names, self.loss = model, names, loss

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        *inputs, labels = tensors
        named = dict(zip(self.names, inputs, strict=True))
        logits = self.model(**named, return_dict=False)[0]
        return poptorch.identity_loss(self.loss(logits, labels), reduction="none")


def _classes(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of so many logits in their own precision, as optimum-graphcore has it."""
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def whisper_small(tiny: bool = False) -> Example:
    """Whisper: 12 + 12 layers, 30 s of audio, 224 tokens; its projection in five parts."""
    t = library()
    size = {"d_model": 64, "layers": 2, "heads": 4, "inner": 128} if tiny else {}
    width, depth = size.get("d_model", 768), size.get("layers", 12)
    vocabulary, frames, tokens = (100, 32, 16) if tiny else (51865, 1500, 224)
    config = t.WhisperConfig(
        vocab_size=vocabulary,
        num_mel_bins=80,
        d_model=width,
        encoder_layers=depth,
        decoder_layers=depth,
        encoder_attention_heads=size.get("heads", 12),
        decoder_attention_heads=size.get("heads", 12),
        encoder_ffn_dim=size.get("inner", 3072),
        decoder_ffn_dim=size.get("inner", 3072),
        max_source_positions=frames,
        max_target_positions=2 * tokens,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
        attn_implementation="eager",
    )
    model = t.WhisperForConditionalGeneration(config)
    model.proj_out = Logits(model.proj_out, 5)
    encoder, decoder = model.model.encoder, model.model.decoder
    for stack in (encoder, decoder):
        never_drops_a_layer(stack)
    poptorch.BeginBlock(encoder.conv1, "convolutions")
    first = layer_blocks(encoder.layers, "encoder")
    poptorch.BeginBlock(decoder.embed_tokens, "embedding")
    second = layer_blocks(decoder.layers, "decoder")
    poptorch.BeginBlock(model.proj_out, "head")

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        ids = integers(vocabulary, batch, tokens)
        return floats(batch, 80, 2 * frames), ids, integers(vocabulary, batch, tokens, seed=1)

    names = ("input_features", "decoder_input_ids")
    return Example(
        "Whisper",
        WithLoss(model, names, _classes),
        ("convolutions", *first, "embedding", *second, "head"),
        inputs,
    )


TINY_WAV2VEC2: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": (32,) * 7,
    "num_conv_pos_embedding_groups": 4,
}


def wav2vec2_ctc(tiny: bool = False) -> Example:
    """Wav2Vec2 base with a CTC head: seven convolutions that do not train, 12 layers, 15.6 s."""
    t = library()
    samples, labels, vocabulary = (3_200, 4, 32) if tiny else (249_600, 200, 32)
    small: dict[str, Any] = {"apply_spec_augment": False}
    if tiny:
        small |= TINY_WAV2VEC2
    config = t.Wav2Vec2Config(vocab_size=vocabulary, attn_implementation="eager", **small)
    model = t.Wav2Vec2ForCTC(config)
    model.freeze_feature_encoder()
    never_drops_a_layer(model.wav2vec2.encoder)
    extractor = model.wav2vec2.feature_extractor
    convolutions = numbered("convolution", extractor.conv_layers)
    for name, layer in zip(convolutions, extractor.conv_layers, strict=True):
        poptorch.BeginBlock(layer, name)
    poptorch.BeginBlock(model.wav2vec2.encoder.pos_conv_embed, "positions")
    layers = layer_blocks(model.wav2vec2.encoder.layers, "layer")
    poptorch.BeginBlock(model.lm_head, "head")

    def loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        scores = functional.log_softmax(logits.float(), dim=-1).transpose(0, 1)
        batch, frames = logits.shape[:2]
        lengths = torch.full((batch,), frames), torch.full((batch,), wanted.shape[1])
        return functional.ctc_loss(scores, wanted, *lengths)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return floats(batch, samples), 1 + integers(vocabulary - 1, batch, labels)

    return Example(
        "Wav2Vec2",
        WithLoss(model, ("input_values",), loss),
        (*convolutions, "positions", *layers, "head"),
        inputs,
    )


class _Pass(nn.Module):
    """One of the times that a layer runs: a Block of its own, with the layer's weights."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.layer(*inputs, **named)


def perceiver(tiny: bool = False) -> Example:
    """Perceiver IO on ImageNet behind a convolution: six layers that run eight times each."""
    t = library()
    times, depth = (2, 2) if tiny else (8, 6)
    config = t.PerceiverConfig(
        num_latents=16 if tiny else 512,
        d_latents=64 if tiny else 1024,
        d_model=322,
        num_blocks=1,  # the passes are written out below
        num_self_attends_per_block=depth,
        num_self_attention_heads=8,
        num_cross_attention_heads=1,
        num_labels=1000,
    )
    model = t.PerceiverForImageClassificationConvProcessing(config)
    inner = model.perceiver
    passes = [_Pass(layer) for _ in range(times) for layer in inner.encoder.self_attends]
    inner.encoder.self_attends = nn.ModuleList(passes)
    config.num_self_attends_per_block = len(passes)
    names = tuple(f"pass{again}.layer{k}" for again in range(times) for k in range(depth))
    for name, one in zip(names, passes, strict=True):
        poptorch.BeginBlock(one, name)
        _checkpointed(one)
    poptorch.BeginBlock(inner.input_preprocessor, "preprocessor")
    poptorch.BeginBlock(inner.encoder.cross_attention, "cross attention")
    poptorch.BeginBlock(inner.decoder, "decoder")

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return floats(batch, 3, 224, 224), integers(1000, batch)

    return Example(
        "Perceiver",
        WithLoss(model, ("pixel_values",), _classes),
        ("preprocessor", "cross attention", *names, "decoder"),
        inputs,
    )


class _Words(nn.Module):
    """An embedding in parts, which the optimiser updates one after the other.

    A part's state is on the chip at a time: a whole one is 0.5 GB at this vocabulary.
    """

    def __init__(self, vocabulary: int, hidden: int, parts: int) -> None:
        super().__init__()
        self.part = nn.ParameterList(
            nn.Parameter(torch.randn(vocabulary // parts, hidden)) for _ in range(parts)
        )

    def looked_up(self, tokens: torch.Tensor) -> torch.Tensor:
        """The words of these tokens: int64[...] to float[..., hidden]."""
        total: torch.Tensor | None = None
        for number, weight in enumerate(self.part):
            place = tokens - number * len(weight)
            here = (place >= 0) & (place < len(weight))
            words = functional.embedding(place * here, weight) * here[..., None]
            total = words if total is None else total + words
        assert total is not None
        return total

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits of all words."""
        return torch.cat([functional.linear(hidden, weight) for weight in self.part], dim=-1)


class _MT5(nn.Module):
    """mT5 that looks up the tokens of encoder and decoder at once, as optimum-graphcore has it."""

    def __init__(self, model: nn.Module, words: _Words) -> None:
        super().__init__()
        self.model, self.words = model, words

    def forward(
        self, source: torch.Tensor, target: torch.Tensor, return_dict: bool
    ) -> tuple[torch.Tensor, ...]:
        with poptorch.Block("embedding"):
            words = self.words.looked_up(torch.cat([source, target], dim=1))
            into, behind = words.split([source.shape[1], target.shape[1]], dim=1)
        given: tuple[torch.Tensor, ...] = self.model(
            inputs_embeds=into, decoder_inputs_embeds=behind, return_dict=return_dict
        )
        return given


def mt5_small(tied: bool, tiny: bool = False) -> Example:
    """mT5 small: 8 + 8 layers, 128 tokens each way; its 250,112 words in eight parts."""
    t = library()
    vocabulary, length = (96, 16) if tiny else (250_112, 128)
    small: dict[str, Any] = {"vocab_size": 8}  # of what _Words stands for
    if tiny:
        small |= {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2}
    config = t.MT5Config(use_cache=False, tie_word_embeddings=tied, **small)
    model = t.MT5ForConditionalGeneration(config)
    words = _Words(vocabulary, config.d_model, 8)
    model.lm_head = words if tied else _Words(vocabulary, config.d_model, 8)
    model.shared = model.encoder.embed_tokens = model.decoder.embed_tokens = nn.Identity()
    first = layer_blocks(model.encoder.block, "encoder")
    second = layer_blocks(model.decoder.block, "decoder")
    poptorch.BeginBlock(model.lm_head, "head")

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        source, target = (integers(vocabulary, batch, length, seed=k) for k in (0, 1))
        return source, target, integers(vocabulary, batch, length, seed=2)

    return Example(
        "mT5",
        WithLoss(_MT5(model, words), ("source", "target"), _classes),
        ("embedding", *first, *second, "head"),
        inputs,
    )


MAKERS: dict[str, Callable[[bool], Example]] = {
    "whisper-small": whisper_small,
    "wav2vec2-base with CTC": wav2vec2_ctc,
    "perceiver-conv": perceiver,
    "mt5-small, tied": lambda tiny: mt5_small(True, tiny),
    "mt5-small, untied": lambda tiny: mt5_small(False, tiny),
}
