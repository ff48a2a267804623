"""mini-DALL-E for training: an image's codes and a caption, over 16 layers of sparse attention.

A frozen VQGAN encoder (Esser et al. 2021; 16 x 16 codes of 1,024) makes the codes on the device.
Layers attend to the caption and, causally, to the image's row or column, or to all before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import ipu_exec as poptorch
from examples.models import Example, floats, integers, numbered

_KINDS = "rrcrrrcrrrcfrrcf"  # row, column, full: by layer


@dataclass(frozen=True)
class Config:
    """Sizes of the model; the published ones by default."""

    hidden: int = 512
    heads: int = 16
    head: int = 64
    text: int = 80
    words: int = 49_408
    codes: int = 1_024
    image: int = 256
    channels: int = 128  # of the VQGAN
    parts: int = 8  # of the logits
    kinds: str = _KINDS
    sandwich: bool = True  # a norm behind attention and feed-forward as well
    micro_batch: int = 1

    @property
    def side(self) -> int:
        """Codes a row of the image."""
        return self.image // 16


TINY = Config(
    hidden=64, heads=2, head=32, text=15, words=81, codes=32, image=64, channels=32, parts=4,
    kinds="rcf",
)  # fmt: skip


# the first configuration that was published: words of its own, two images at a time
OWN_WORDS = Config(words=8_192, parts=4, sandwich=False, micro_batch=2)


class _Residual(nn.Module):
    """Two convolutions of a VQGAN with what they are added to."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(32, ins), nn.SiLU(), nn.Conv2d(ins, outs, 3, padding=1)
        )
        self.second = nn.Sequential(
            nn.GroupNorm(32, outs), nn.SiLU(), nn.Conv2d(outs, outs, 3, padding=1)
        )
        self.short = nn.Conv2d(ins, outs, 1) if ins != outs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.short(x) + self.second(self.first(x))


class _SelfAttention(nn.Module):
    """A VQGAN's attention over all points of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, dim=1)
        weights = torch.softmax(q.transpose(1, 2) @ k * q.shape[1] ** -0.5, dim=-1)
        mixed: torch.Tensor = self.out((v @ weights.transpose(1, 2)).view(x.shape))
        return x + mixed


class Codes(nn.Module):
    """VQGAN's encoder and the nearest code of each of its points; it does not train."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.channels
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
        ins = width
        for level, times in enumerate((1, 1, 2, 2, 4)):
            outs = times * width
            for _ in range(2):
                layers.append(_Residual(ins, outs))
                ins = outs
                if level == 4:
                    layers.append(_SelfAttention(ins))
            if level < 4:
                layers += [nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(ins, ins, 3, stride=2)]
        layers += [_Residual(ins, ins), _SelfAttention(ins), _Residual(ins, ins)]
        layers += [nn.GroupNorm(32, ins), nn.SiLU(), nn.Conv2d(ins, 256, 3, padding=1)]
        self.encoder = nn.Sequential(*layers, nn.Conv2d(256, 256, 1))
        self.codebook = nn.Embedding(config.codes, 256)
        self.requires_grad_(False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            points = self.encoder(2 * image - 1).flatten(2).transpose(1, 2)
            codes = self.codebook.weight
            apart = (codes**2).sum(dim=1) - 2 * points @ codes.t()
            return apart.argmin(dim=-1)


class Attention(nn.Module):
    """Attention of a caption and an image; ``kind``: of the image to its row, its column, or all.

    Where it is sparse, the caption attends to itself, and each point to the caption and to what is
    before it in its row or column.
    """

    def __init__(self, config: Config, kind: str) -> None:
        super().__init__()
        self.config, self.kind = config, kind
        inner = config.heads * config.head
        self.qkv = nn.Linear(config.hidden, 3 * inner, bias=False)
        self.out = nn.Linear(inner, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        if self.kind != "f":
            x = functional.pad(x, (0, 0, 0, 1))
        q, k, v = (
            part.view(batch, x.shape[1], self.config.heads, self.config.head).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        q = q * self.config.head**-0.5
        mixed = _attend(q, k, v) if self.kind == "f" else self._sparse(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2)[:, :length])

    def _sparse(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        side, points = self.config.side, self.config.side**2
        text_q, text_k, text_v = (one[:, :, :-points] for one in (q, k, v))
        text = _attend(text_q, text_k, text_v)
        lines = [one[:, :, -points:].unflatten(2, (side, side)) for one in (q, k, v)]
        if self.kind == "c":
            lines = [one.transpose(2, 3) for one in lines]
        line_q, line_k, line_v = lines
        to_text = torch.einsum("bhxid,bhjd->bhxij", line_q, text_k)
        to_line = line_q @ line_k.transpose(-1, -2) + _causal(line_q)
        weights = torch.softmax(torch.cat([to_text, to_line], dim=-1), dim=-1)
        of_text, of_line = weights.split([text_k.shape[2], side], dim=-1)
        mixed = of_line @ line_v + torch.einsum("bhxij,bhjd->bhxid", of_text, text_v)
        if self.kind == "c":
            mixed = mixed.transpose(2, 3)
        return torch.cat([text, mixed.flatten(2, 3)], dim=2)


def _causal(queries: torch.Tensor) -> torch.Tensor:
    """What hides later ones: [queries, queries]."""
    length = queries.shape[-2]
    later = torch.ones(length, length).triu(1)
    return (-60_000.0 * later).to(queries.dtype)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) + _causal(q), dim=-1) @ v


class _Scaled(nn.Module):
    """A norm before, and one after where it is a sandwich; scaled and added."""

    def __init__(self, hidden: int, inner: nn.Module, sandwich: bool) -> None:
        super().__init__()
        self.before, self.inner = nn.LayerNorm(hidden), inner
        self.after = nn.LayerNorm(hidden) if sandwich else nn.Identity()
        self.scale = nn.Parameter(torch.full((1, 1, hidden), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.inner(self.before(x))) * self.scale + x


class _FeedForward(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.wide, self.out = nn.Linear(hidden, 8 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, gates = self.wide(x).chunk(2, dim=-1)
        return self.out(values * functional.gelu(gates))


class MiniDalle(nn.Module):
    """Blocks: ``codes``, ``embedding``, ``layer0`` ..., ``head``."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.words = config.words + config.text  # the padding of each place is a word of its own
        self.codes = Codes(config)
        self.text = nn.Embedding(self.words, config.hidden)
        self.text_place = nn.Embedding(config.text + 1, config.hidden)
        self.picture = nn.Embedding(config.codes, config.hidden)
        self.row = nn.Parameter(torch.randn(1, config.side, 1, config.hidden))
        self.column = nn.Parameter(torch.randn(1, 1, config.side, config.hidden))
        self.layer = nn.ModuleList(
            nn.Sequential(
                _Scaled(config.hidden, Attention(config, kind), config.sandwich),
                _Scaled(config.hidden, _FeedForward(config.hidden), config.sandwich),
            )
            for kind in config.kinds
        )
        self.norm = nn.LayerNorm(config.hidden)
        self.logits = nn.Linear(config.hidden, self.words + config.codes)

    def forward(
        self, caption: torch.Tensor, image: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("codes"):
            codes = self.codes(image)
        with poptorch.Block("embedding"):
            text = functional.pad(caption, (1, 0))
            words = self.text(text) + self.text_place(torch.arange(text.shape[1]))
            picture = self.picture(codes) + (self.row + self.column).flatten(1, 2)
            x = torch.cat([words, picture], dim=1)[:, :-1]
        for number, layer in enumerate(self.layer):
            with poptorch.Block(f"layer{number}"):
                x = poptorch.recomputationCheckpoint(layer(x))
        with poptorch.Block("head"):
            return self._head(x, torch.cat([caption, codes + self.words], dim=1))

    def _head(self, x: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mode = poptorch.MatMulSerializationMode.OutputChannels
        parts = self.config.parts
        scores = poptorch.serializedMatMul(self.norm(x), self.logits.weight.t(), mode, parts)
        scores = scores + self.logits.bias
        place = torch.arange(x.shape[1])[:, None] >= self.config.text
        code = torch.arange(scores.shape[-1])[None, :] >= self.words
        scores = scores.masked_fill(place != code, torch.finfo(scores.dtype).min)
        length = self.config.text
        text, picture = (
            functional.cross_entropy(scores[:, part].flatten(0, 1), wanted[:, part].flatten())
            for part in (slice(length), slice(length, None))
        )
        return scores, poptorch.identity_loss((text + 7 * picture) / 8, reduction="none")


def example(tiny: bool = False, config: Config | None = None) -> Example:
    """The model with captions and images; ``config``: of another than the usual one."""
    config = TINY if tiny else config or Config()

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        caption = 1 + integers(config.words - 1, batch, config.text)
        return caption, floats(batch, 3, config.image, config.image)

    model = MiniDalle(config)
    return Example(
        "mini-DALL-E",
        model,
        ("codes", "embedding", *numbered("layer", model.layer), "head"),
        inputs,
        config.micro_batch,
    )
