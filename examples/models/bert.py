"""BERT for pretraining (Devlin et al. 2018): embeddings, encoder layers, masked-LM head with tied
weights, NSP head.

Attention is written out as matmul, scale, mask, softmax, dropout, matmul, as PopTorch's example has
it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import ipu_exec as poptorch
from examples.models import Example, integers


@dataclass(frozen=True)
class BertConfig:
    """Sizes of the model and of a micro-batch."""

    hidden: int = 768
    layers: int = 12
    heads: int = 12
    intermediate: int = 3072
    vocabulary: int = 30522
    positions: int = 512
    sequence: int = 128
    masked: int = 20  # tokens a sequence that the head predicts
    micro_batch: int = 1
    dropout: float = 0.1
    attention_dropout: float | None = None  # of the attention's weights; None: as the others
    # a layer's attention and its feed-forward network are Blocks of their own
    halves: bool = False
    head_parts: int = 1  # of the vocabulary, in which the head's product is computed
    packed: int = 1  # sequences to a pack, which are one after the other in its tokens
    next_sentence: bool = True  # whether a second head says if a sentence follows the other


BASE = BertConfig()
LARGE = BertConfig(hidden=1024, layers=24, heads=16, intermediate=4096)
TINY = BertConfig(
    hidden=32,
    layers=4,
    heads=2,
    intermediate=64,
    vocabulary=96,
    positions=32,
    sequence=16,
    masked=4,
)


class Embeddings(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.positions, config.hidden)
        self.token_type = nn.Embedding(2, config.hidden)
        self.norm = nn.LayerNorm(config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("order", torch.arange(config.sequence))

    def forward(
        self, tokens: torch.Tensor, types: torch.Tensor, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``places``: of the tokens in their sequence, where they are packed."""
        position = self.position(self.order if places is None else places)
        return self.dropout(self.norm(self.word(tokens) + position + self.token_type(types)))


class Attention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        share = config.dropout if config.attention_dropout is None else config.attention_dropout
        self.dropout = nn.Dropout(share) if share else nn.Identity()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            part.reshape(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-1, -2) * (hidden // self.heads) ** -0.5 + mask
        mixed = self.dropout(torch.softmax(scores, dim=-1)) @ v
        return self.output(mixed.transpose(1, 2).reshape(batch, length, hidden))


class Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.intermediate = nn.Linear(config.hidden, config.intermediate)
        self.output = nn.Linear(config.intermediate, config.hidden)
        self.output_norm = nn.LayerNorm(config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.feed_forward(self.attend(x, mask))

    def attend(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attention_norm(x + self.dropout(self.attention(x, mask)))

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.gelu(self.intermediate(x))
        return self.output_norm(x + self.dropout(self.output(inner)))


class Bert(nn.Module):
    """Blocks: ``embedding``, ``layer0`` ..., ``head``; with halves, ``attention0``,
    ``feed_forward0`` ... in place of the layers.

    Packed sequences (Krell et al. 2021) attend each to its own tokens, are told apart by the
    numbers in ``visible``, and have their first tokens at the end of the pack.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embeddings(config)
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.transform = nn.Linear(config.hidden, config.hidden)
        self.transform_norm = nn.LayerNorm(config.hidden)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary))
        if config.next_sentence:
            self.pooler = nn.Linear(config.hidden, config.hidden)
            self.next = nn.Linear(config.hidden, 2)

    def blocks(self) -> tuple[str, ...]:
        names = ("attention", "feed_forward") if self.config.halves else ("layer",)
        layers = (f"{name}{k}" for k in range(len(self.layer)) for name in names)
        return ("embedding", *layers, "head")

    def forward(
        self,
        tokens: torch.Tensor,
        types: torch.Tensor,
        visible: torch.Tensor,
        where: torch.Tensor,
        masked: torch.Tensor,
        follows: torch.Tensor,
        places: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("embedding"):
            x = self.embedding(tokens, types, places)
            mask = (1.0 - self._attended(visible).to(x.dtype)) * -10000.0
        for number in range(len(self.layer)):
            x = self._encoded(number, x, mask)
        with poptorch.Block("head"):
            hidden = torch.gather(x, 1, where[:, :, None].expand(-1, -1, self.config.hidden))
            hidden = self.transform_norm(functional.gelu(self.transform(hidden)))
            scores = self._scores(hidden)
            loss = functional.cross_entropy(scores.flatten(0, 1).float(), masked.flatten())
            if self.config.next_sentence:
                second = [
                    self.next(torch.tanh(self.pooler(x[:, at]))) for at in self._first_tokens()
                ]
                loss = loss + functional.cross_entropy(torch.cat(second).float(), follows.flatten())
            return scores, poptorch.identity_loss(loss, reduction="none")

    def _attended(self, visible: torch.Tensor) -> torch.Tensor:
        """Which tokens each one attends to, alike for all heads."""
        if self.config.packed == 1:
            return visible[:, None, None, :]
        return visible[:, None, None, :] == visible[:, None, :, None]

    def _first_tokens(self) -> range:
        """Where the first tokens of the sequences are."""
        packed = self.config.packed
        return range(-packed, 0) if packed > 1 else range(1)

    def _encoded(self, number: int, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        layer = self.layer[number]
        if not self.config.halves:
            with poptorch.Block(f"layer{number}"):
                return poptorch.recomputationCheckpoint(layer(x, mask))
        with poptorch.Block(f"attention{number}"):
            x = layer.attend(x, mask)
        with poptorch.Block(f"feed_forward{number}"):
            return poptorch.recomputationCheckpoint(layer.feed_forward(x))

    def _scores(self, hidden: torch.Tensor) -> torch.Tensor:
        weight, parts = self.embedding.word.weight, self.config.head_parts
        if parts == 1:
            return functional.linear(hidden, weight, self.bias)
        by_output = poptorch.MatMulSerializationMode.OutputChannels
        return poptorch.serializedMatMul(hidden, weight.t(), by_output, parts) + self.bias


def inputs(config: BertConfig, batch: int) -> tuple[torch.Tensor, ...]:
    """Random sentences: what ``Bert.forward`` takes."""
    several = config.packed > 1
    sequence = (
        integers(config.vocabulary, batch, config.sequence),
        integers(2, batch, config.sequence, seed=1),
        sequence_numbers(config, batch) if several else torch.ones(batch, config.sequence),
        integers(config.sequence, batch, config.masked, seed=2),
        integers(config.vocabulary, batch, config.masked, seed=3),
        integers(2, *((config.packed, batch) if several else (batch,)), seed=4),
    )
    return (
        (*sequence, integers(config.sequence, batch, config.sequence, seed=5))
        if several
        else (sequence)
    )


def sequence_numbers(config: BertConfig, batch: int) -> torch.Tensor:
    """Of each token of packs whose sequences are equally long."""
    numbers = torch.arange(config.sequence) * config.packed // config.sequence
    return numbers.to(torch.int32).expand(batch, -1).contiguous()


def example(config: BertConfig) -> Example:
    """The model and its sentences."""
    model = Bert(config)
    return Example(
        "BERT", model, model.blocks(), lambda batch: inputs(config, batch), config.micro_batch
    )
