"""Models of docs/plan.md's table that examples/models does not have: ViT-S, MLP-Mixer, T5-small."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from examples.models import Example, build, floats, integers, vit

WORDS, WIDTH, HEADS, LENGTH = 32128, 512, 8, 128


class Mix(nn.Sequential):
    """Two products along the last dimension."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class MixerLayer(nn.Module):
    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens, self.channels = Mix(patches, width // 2), Mix(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.other_norm(x))


class Mixer(nn.Module):
    """MLP-Mixer S/16 (Tolstikhin et al. 2021)."""

    def __init__(self, width: int = 512, layers: int = 8, patch: int = 16, classes: int = 1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.layers = nn.ModuleList(MixerLayer((224 // patch) ** 2, width) for _ in range(layers))
        self.norm, self.classify = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        scores = self.classify(self.norm(x).mean(1))
        return scores, functional.cross_entropy(scores, labels)


class Attention(nn.Module):
    """Attention without a scale, with a bias a head for each distance, as T5 has it."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.bias = nn.Embedding(2 * LENGTH, HEADS)
        places = torch.arange(LENGTH)
        self.register_buffer("distance", LENGTH + places[None] - places[:, None])
        self.register_buffer("hidden", torch.ones(LENGTH, LENGTH).triu(1).bool() & causal)

    def forward(self, x: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(of).view(len(x), LENGTH, HEADS, -1).transpose(1, 2)
            for part, of in ((self.query, x), (self.key, read), (self.value, read))
        )
        scores = q @ k.transpose(-1, -2) + self.bias(self.distance).permute(2, 0, 1)
        shares = scores.masked_fill(self.hidden, -1e9).softmax(-1)
        return self.output((shares @ v).transpose(1, 2).flatten(2))


class T5Layer(nn.Module):
    def __init__(self, decodes: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(3 if decodes else 2))
        self.own = Attention(decodes)
        self.across = Attention(False) if decodes else None
        self.expand = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.contract = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, read: torch.Tensor | None = None) -> torch.Tensor:
        y = self.norms[0](x)
        x = x + self.own(y, y)
        if self.across is not None:
            x = x + self.across(self.norms[2](x), read)
        return x + self.contract(torch.relu(self.expand(self.norms[1](x))))


class T5(nn.Module):
    """T5-small (Raffel et al. 2020), whose encoder, decoder and head share an embedding."""

    def __init__(self, layers: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.ModuleList(T5Layer(False) for _ in range(layers))
        self.decoder = nn.ModuleList(T5Layer(True) for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(
        self, source: torch.Tensor, before: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        read, x = self.words(source), self.words(before)
        for layer in self.encoder:
            read = layer(read)
        for layer in self.decoder:
            x = layer(x, read)
        scores = functional.linear(self.norm(x) * WIDTH**-0.5, self.words.weight)
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def any_model(name: str) -> Example:
    """The model of that name, here or in examples/models."""
    if name == "vit-s16":
        return vit.example_of(vit.Config(hidden=384, heads=6))
    if name == "mlp-mixer":
        images = lambda batch: (floats(batch, 3, 224, 224), integers(1000, batch))  # noqa: E731
        return Example("MLP-Mixer", Mixer(), (), images, 2)
    if name == "t5-small":
        words = lambda batch: tuple(integers(WORDS, batch, LENGTH, seed=s) for s in range(3))  # noqa: E731
        return Example("T5-small", T5(), (), words)
    return build(name)
