"""Wav2Vec2 as it is pretrained, and Whisper as it transcribes: models of transformers in Blocks.

Random weights. Blocks begin at the modules at which optimum-graphcore begins its own, and what that
library changes for IPUs is changed here too: only frames that may be masked are quantised, a
product picks code vectors, and caches of keys and values are buffers that each step adds to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import ipu_exec as poptorch
from benchmarks.rebalance.hugging_face import (
    TINY_WAV2VEC2,
    layer_blocks,
    library,
    never_drops_a_layer,
)
from examples.models import Example, floats, integers, numbered

_TINY: dict[str, Any] = {
    **TINY_WAV2VEC2,
    "num_codevectors_per_group": 8,
    "codevector_dim": 16,
    "proj_codevector_dim": 16,
    "num_negatives": 5,
}
_MASKED = 0.65  # of the frames may be
_EPSILON = 1e-4  # of norms in float16, and of probabilities


class _Quantizer(nn.Module):
    """Code vectors by straight-through Gumbel softmax, and how evenly they are used."""

    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.scores = quantizer.weight_proj
        self.vectors = quantizer.codevectors
        self.groups = quantizer.num_groups

    def forward(
        self, frames: torch.Tensor, temperature: torch.Tensor, masked: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length, _ = frames.shape
        scores = self.scores(frames).float().view(batch * length, self.groups, -1)
        weight = masked.float().view(-1, 1, 1)
        share = (torch.softmax(scores, dim=-1) * weight).sum(dim=0) / weight.sum()
        perplexity = torch.exp(-(share * torch.log(share + 1e-7)).sum(dim=-1)).sum()
        noise = -torch.log(-torch.log(torch.rand_like(scores) + _EPSILON) + _EPSILON)
        soft = torch.softmax((scores + noise) / temperature, dim=-1)
        hard = functional.one_hot(soft.argmax(dim=-1), soft.shape[-1])
        picked = (hard - soft.detach() + soft).to(frames.dtype)
        codebook = self.vectors[0].view(self.groups, soft.shape[-1], -1)
        vectors = torch.bmm(picked.permute(1, 0, 2), codebook).permute(1, 0, 2)
        return vectors.reshape(batch, length, -1), perplexity


class Wav2Vec2Pretraining(nn.Module):
    """The contrastive loss of masked frames, and the loss of code vectors that are not used.

    Inputs: sound; which frames are masked, bool[batch, frame]; those that are kept, of which the
    masked come first, and whether each of them is masked; the distractors of each kept frame.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.config = model.config
        self.wav2vec2, self.project_hid = model.wav2vec2, model.project_hid
        self.quantizer, self.project_q = _Quantizer(model.quantizer), model.project_q
        self.wav2vec2._mask_hidden_states = self._masked

    def _masked(
        self, hidden: torch.Tensor, mask_time_indices: torch.Tensor, attention_mask: None
    ) -> torch.Tensor:
        instead = self.wav2vec2.masked_spec_embed.to(hidden.dtype)
        return torch.where(mask_time_indices[..., None], instead, hidden)

    def forward(
        self,
        sound: torch.Tensor,
        masked: torch.Tensor,
        temperature: torch.Tensor,
        kept: torch.Tensor,
        kept_masked: torch.Tensor,
        distractors: torch.Tensor,
    ) -> torch.Tensor:
        hidden, frames = self.wav2vec2(sound, mask_time_indices=masked, return_dict=False)[:2]
        hidden, frames = (
            one.flatten(0, 1)[kept.flatten()].unflatten(0, kept.shape) for one in (hidden, frames)
        )
        guess = self.project_hid(hidden)
        vectors, perplexity = self.quantizer(frames, temperature.mean(), kept_masked)
        truth = self.project_q(vectors)
        others = truth.flatten(0, 1)[distractors.flatten()].unflatten(0, distractors.shape)
        loss = self._contrastive(guess, truth, others.permute(2, 0, 1, 3), kept_masked)
        codes = self.config.num_codevectors_per_group * self.config.num_codevector_groups
        unused = (codes - perplexity) / codes * kept_masked.sum()
        whole = loss + self.config.diversity_loss_weight * unused
        return poptorch.identity_loss(whole, reduction="none")

    def _contrastive(
        self,
        guess: torch.Tensor,
        truth: torch.Tensor,
        others: torch.Tensor,
        masked: torch.Tensor,
    ) -> torch.Tensor:
        """Of which code vector is a frame's own: the first of those that it is compared with."""
        each = torch.cat([truth[None], others])
        alike = functional.cosine_similarity(guess.float(), each.float(), dim=-1)
        logits = alike / self.config.contrastive_logits_temperature
        same = (truth[None] == others).all(dim=-1)
        logits = logits.masked_fill(functional.pad(same, (0, 0, 0, 0, 1, 0)), -1e3)
        logits = logits.permute(1, 2, 0).flatten(0, 1)
        wanted = (1 - masked.long()).flatten() * -100
        return functional.cross_entropy(logits, wanted, reduction="sum")


def wav2vec2_pretraining(tiny: bool = False) -> Example:
    """Wav2Vec2 base for pretraining: 15.6 s of sound, 779 frames of which 507 may be masked."""
    t = library()
    samples = 3_200 if tiny else 249_600
    config = t.Wav2Vec2Config(
        do_stable_layer_norm=True,
        feat_extract_norm="layer",
        layer_norm_eps=_EPSILON,
        apply_spec_augment=False,
        attn_implementation="eager",
        **(_TINY if tiny else {}),
    )
    model = t.Wav2Vec2ForPreTraining(config)
    frames = int(model._get_feat_extract_output_lengths(samples))
    kept = int(frames * _MASKED) + 1
    never_drops_a_layer(model.wav2vec2.encoder)
    extractor, encoder = model.wav2vec2.feature_extractor, model.wav2vec2.encoder
    convolutions = numbered("convolution", extractor.conv_layers)
    for name, layer in zip(convolutions, extractor.conv_layers, strict=True):
        layer.layer_norm.eps = _EPSILON
        poptorch.BeginBlock(layer, name)
    poptorch.BeginBlock(encoder.pos_conv_embed, "positions")
    layers = layer_blocks(encoder.layers, "layer")
    module = Wav2Vec2Pretraining(model)
    poptorch.BeginBlock(module.project_hid, "project hidden")
    poptorch.BeginBlock(module.quantizer, "quantizer")
    poptorch.BeginBlock(module.project_q, "project quantized")

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        masked = integers(2, batch, frames).bool()
        kept_masked = (torch.arange(kept) < kept // 2).expand(batch, kept)
        distractors = integers(kept, batch, kept, config.num_negatives)
        temperature = torch.full((batch,), 2.0)
        kept_ones = integers(frames, batch, kept)
        return floats(batch, samples), masked, temperature, kept_ones, kept_masked, distractors

    ends = ("project hidden", "quantizer", "project quantized")
    return Example("Wav2Vec2", module, (*convolutions, "positions", *layers, *ends), inputs)


class _Cached(nn.Module):
    """Attention of one token to all before it, whose keys and values are kept on the device."""

    def __init__(self, attention: nn.Module, most: int) -> None:
        super().__init__()
        self.inner = attention
        self.heads, self.scaling = attention.num_heads, attention.scaling
        width = attention.head_dim
        self.register_buffer("keys", torch.zeros(1, self.heads, most, width))
        self.register_buffer("values", torch.zeros(1, self.heads, most, width))
        self.step = torch.zeros(1)  # the number of the token, set by each call

    def forward(self, hidden_states: torch.Tensor, **other: Any) -> tuple[torch.Tensor, None]:
        query, key, value = (
            of(hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for of in (self.inner.q_proj, self.inner.k_proj, self.inner.v_proj)
        )
        place = torch.arange(self.keys.shape[2])
        here = (place == self.step).to(key.dtype)[:, None]
        goes_on = (self.step != 0).to(key.dtype)
        self.keys.copy_(self.keys * goes_on + here @ key)
        self.values.copy_(self.values * goes_on + here @ value)
        later = -1e4 * (place > self.step).to(key.dtype)
        scores = query * self.scaling @ self.keys.transpose(-1, -2) + later
        mixed = torch.softmax(scores, dim=-1) @ self.values
        return self.inner.out_proj(mixed.transpose(1, 2).flatten(2)), None


class WhisperStep(nn.Module):
    """The scores of the next token, by those so far and by what the encoder heard."""

    def __init__(self, model: nn.Module, most: int) -> None:
        super().__init__()
        self.decoder, self.proj_out = model.model.decoder, model.proj_out
        for layer in self.decoder.layers:
            layer.self_attn = _Cached(layer.self_attn, most)

    def forward(self, token: torch.Tensor, step: torch.Tensor, heard: torch.Tensor) -> torch.Tensor:
        place = self.decoder.embed_positions.weight.index_select(0, step.flatten())
        hidden = self.decoder.embed_tokens(token) + place
        for layer in self.decoder.layers:
            layer.self_attn.step = step.flatten()
            given = layer(hidden, encoder_hidden_states=heard, use_cache=False)
            hidden = given[0] if isinstance(given, tuple) else given
        scores: torch.Tensor = self.proj_out(self.decoder.layer_norm(hidden))
        return scores


class _Heard(nn.Module):
    """The encoder's last states alone."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        heard: torch.Tensor = self.encoder(features, return_dict=False)[0]
        return heard


def _whisper_medium(tiny: bool) -> nn.Module:
    t = library()
    width, depth, heads, inner = (64, 2, 4, 128) if tiny else (1024, 24, 16, 4096)
    config = t.WhisperConfig(
        vocab_size=100 if tiny else 51_864,
        num_mel_bins=80,
        d_model=width,
        encoder_layers=depth,
        decoder_layers=depth,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        max_source_positions=32 if tiny else 1500,
        max_target_positions=16 if tiny else 448,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        attn_implementation="eager",
    )
    model: nn.Module = t.WhisperForConditionalGeneration(config)
    return model.eval()


def whisper_encoder(tiny: bool = False) -> Example:
    """Whisper medium's encoder: 24 layers over 30 s of audio."""
    model = _whisper_medium(tiny)
    encoder = model.model.encoder
    poptorch.BeginBlock(encoder.conv1, "convolutions")
    names = numbered("encoder", encoder.layers)
    for name, layer in zip(names, encoder.layers, strict=True):
        poptorch.BeginBlock(layer, name)
    poptorch.BeginBlock(encoder.layer_norm, "norm")

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return (floats(batch, 80, 2 * model.config.max_source_positions),)

    return Example("Whisper", _Heard(encoder), ("convolutions", *names, "norm"), inputs)


def whisper_decoder(tiny: bool = False) -> Example:
    """A step of Whisper medium's decoder: 24 layers, a token, the 448 before it in caches."""
    model = _whisper_medium(tiny)
    decoder, config = model.model.decoder, model.config
    poptorch.BeginBlock(decoder.embed_tokens, "embedding")
    names = numbered("decoder", decoder.layers)
    for name, layer in zip(names, decoder.layers, strict=True):
        poptorch.BeginBlock(layer, name)
    poptorch.BeginBlock(decoder.layer_norm, "norm")
    poptorch.BeginBlock(model.proj_out, "head")

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        token, step = integers(config.vocab_size, batch, 1), integers(4, batch, 1)
        return token, step, floats(batch, config.max_source_positions, config.d_model)

    module = WhisperStep(model, config.max_target_positions)
    return Example("Whisper", module, ("embedding", *names, "norm", "head"), inputs)


MAKERS: dict[str, Callable[[bool], Example]] = {
    "wav2vec2-base": wav2vec2_pretraining,
    "whisper-medium's encoder": whisper_encoder,
    "whisper-medium's decoder": whisper_decoder,
}
