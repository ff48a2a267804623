"""A 50 M-parameter GPT as people first write it, for ``ipu-report advise``: a PopTorch script.

In single precision, a sequence at a time, little accumulation, and the scores of all words returned
with the loss.

ipu-run --compile-only --profile-dir out benchmarks/advise/gpt.py
"""

from __future__ import annotations

import argparse

import poptorch
import torch
from torch import nn
from torch.nn import functional

WORDS, HIDDEN, LAYERS, HEADS, LENGTH = 12288, 512, 12, 8, 128


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.expand, self.contract = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            part.reshape(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.contract(functional.gelu(self.expand(self.mlp_norm(x))))


class Gpt(nn.Module):
    def __init__(self, words: int, hidden: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, hidden)
        self.positions = nn.Parameter(torch.zeros(length, hidden))
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, words, bias=False)

    def forward(
        self, tokens: torch.Tensor, following: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with poptorch.Block("embedding"):
            x = self.words(tokens) + self.positions
        for number, layer in enumerate(self.layers):
            with poptorch.Block(f"layer{number}"):
                x = layer(x)
        with poptorch.Block("head"):
            scores = self.head(self.norm(x))
            return scores, functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="two layers of little, for tests")
    parser.add_argument("--accumulation", type=int, default=8)
    args = parser.parse_args()
    words, hidden, layers, heads, length = WORDS, HIDDEN, LAYERS, HEADS, LENGTH
    if args.tiny:
        words, hidden, layers, heads, length = 256, 64, 2, 2, 32
    torch.manual_seed(0)
    blocks = ["embedding", *(f"layer{number}" for number in range(layers)), "head"]
    ipus = 2 if args.tiny else 4
    bounds = [round(k * len(blocks) / ipus) for k in range(ipus + 1)]
    stages = [poptorch.Stage(*blocks[bounds[k] : bounds[k + 1]]).ipu(k) for k in range(ipus)]
    options = poptorch.Options()
    options.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
    options.Training.gradientAccumulation(args.accumulation)
    options.outputMode(poptorch.OutputMode.All)
    gpt = Gpt(words, hidden, layers, heads, length)
    optimizer = poptorch.optim.AdamW(gpt.parameters(), lr=3e-4)
    model = poptorch.trainingModel(gpt, options, optimizer)
    tokens = torch.randint(words, (options.batch_factor, length + 1))
    _, loss = model(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    print(f"loss {float(loss.mean()):.3f}")


if __name__ == "__main__":
    main()
