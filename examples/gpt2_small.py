"""GPT-2 small: learns a text character by character (its own source, or a file) and goes on with
it.

Its layers are those of GPT-2 small; its vocabulary is that of the text, at most 256 characters.

python -m examples.gpt2_small --compile-only --profile-dir out      the whole model over eight IPUs
python -m examples.gpt2_small --tiny --steps 60                     a toy that learns
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

if not __package__:  # run as a file, not by -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ipu_exec as poptorch
from examples import common
from examples.models import gpt2, numbered, split


class Text(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of a text, and the same pieces one character on."""

    def __init__(self, text: str, length: int, count: int) -> None:
        self.letters = sorted(set(text))
        ids = {letter: number for number, letter in enumerate(self.letters)}
        self.ids = torch.tensor([ids[letter] for letter in text])
        self._length, self._count = length, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * 7919 % (len(self.ids) - self._length - 1)
        return (
            self.ids[start : start + self._length],
            self.ids[start + 1 : start + self._length + 1],
        )


class Next(torch.nn.Module):
    """The likeliest character after the first ``count`` of a piece."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        scores, _ = self.model(tokens, tokens)
        with poptorch.Block("head"):
            return poptorch.dynamic_slice(scores, 1, count - 1, 1, 1).argmax(-1)


def go_on(model: gpt2.Gpt2, text: Text, begin: torch.Tensor, length: int, letters: int) -> str:
    """``letters`` characters after ``begin``, one call each."""
    options = poptorch.Options().showCompilationProgressBar(False)
    options.setExecutionStrategy(
        poptorch.ShardedExecution(
            poptorch.Stage("embedding", *numbered("layer", model.layer), "head")
        )
    )
    following = poptorch.inferenceModel(Next(model.eval()), options)
    ids = begin.tolist()
    for _ in range(letters):
        seen = ids[-length:]
        piece = torch.tensor([seen + [0] * (length - len(seen))])
        ids.append(int(following(piece, torch.tensor([len(seen)]))))
    following.destroy()
    return "".join(text.letters[number] for number in ids if number < len(text.letters))


def main(argv: Sequence[str] | None = None) -> list[float]:
    """Train; the losses of the calls."""
    parser = common.parser(__doc__, stages=8, accumulation=32)
    parser.add_argument(
        "--micro-batch", type=int, default=1, help="pieces a micro-batch (default: %(default)s)"
    )
    parser.add_argument(
        "--text", type=Path, default=Path(__file__), help="what to learn (default: this script)"
    )
    parser.add_argument(
        "--letters", type=int, default=40, help="characters to go on with (default: %(default)s)"
    )
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    config = (
        replace(gpt2.TINY, vocabulary=128) if args.tiny else replace(gpt2.SMALL, vocabulary=256)
    )
    example = gpt2.example(config)
    network = example.module
    assert isinstance(network, gpt2.Gpt2)
    options = common.options(args).setExecutionStrategy(split(example, args.stages))
    samples = args.micro_batch * options.batch_factor
    text = Text(args.text.read_text(), config.sequence, args.steps * samples)
    if len(text.letters) > config.vocabulary:
        raise SystemExit(
            f"error: {args.text} has {len(text.letters)} different characters of"
            f" {config.vocabulary}"
        )
    loader = poptorch.DataLoader(options, text, args.micro_batch)
    optimizer = poptorch.optim.AdamW(network.parameters(), lr=3e-3 if args.tiny else 3e-4)
    model = poptorch.trainingModel(network, options, optimizer)
    if args.compile_only:
        model.compile(*next(iter(loader)))
        common.say_speed(model, samples)
        model.destroy()
        return []
    losses: list[float] = []
    for number, (tokens, following) in enumerate(loader):
        _, loss = model(tokens, following)
        losses.append(float(loss.mean()))
        if number % 10 == 0 or number == args.steps - 1:
            print(f"call {number}: loss {losses[-1]:.4f}")
    common.say_speed(model, samples)
    model.destroy()
    print(repr(go_on(network, text, text.ids[:8], config.sequence, args.letters)))
    return losses


if __name__ == "__main__":
    main()
