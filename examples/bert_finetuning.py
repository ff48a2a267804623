"""BERT fine-tuning: a classifier of sentences on pretrained layers, trained and then validated with
the same weights.

The sentences are made: of two classes, told apart by which half of the vocabulary most of their
words are from.

  python -m examples.bert_finetuning --tiny                      from random weights
  python -m examples.bert_finetuning --tiny --weights bert.pt    from pretrained weights

``examples.bert_pretraining`` saves such weights.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

if not __package__:  # run as a file, not by -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ipu_exec as poptorch
from examples import common
from examples.models import bert


class Sentences(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Words and class: three in four words of a sentence are from its class's half of the
    vocabulary.
    """

    def __init__(self, count: int, config: bert.BertConfig, seed: int) -> None:
        self._count, self._config, self._seed = count, config, seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        label = torch.randint(2, (), generator=generator)
        words = torch.randint(
            self._config.vocabulary // 2, (self._config.sequence,), generator=generator
        )
        own = torch.rand(self._config.sequence, generator=generator) < 0.75
        half = torch.where(own, label, 1 - label)
        return words + half * (self._config.vocabulary // 2), label


class Classifier(nn.Module):
    """BERT's embeddings and layers, begun as Blocks from outside, under a head of two classes."""

    def __init__(self, pretrained: bert.Bert) -> None:
        super().__init__()
        self.embedding, self.layers = pretrained.embedding, pretrained.layer
        self.classify = nn.Linear(pretrained.config.hidden, 2)

    def forward(self, words: torch.Tensor, labels: torch.Tensor | None = None) -> object:
        x = self.embedding(words, torch.zeros_like(words))
        mask = torch.zeros(1, 1, 1, words.shape[1])
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.classify(x.mean(1))
        if labels is None:
            return logits
        return logits, nn.functional.cross_entropy(logits, labels)


def annotate(model: Classifier, stages: int) -> None:
    """Say which IPU each part is on.

    The layers evenly, the embedding with the first, the head with the last.
    """
    poptorch.BeginBlock(model.embedding, "embedding", ipu_id=0)
    for number, layer in enumerate(model.layers):
        poptorch.BeginBlock(layer, f"layer{number}", ipu_id=number * stages // len(model.layers))
    poptorch.BeginBlock(model.classify, "classifier", ipu_id=stages - 1)


def main(argv: Sequence[str] | None = None) -> float:
    """Fine-tune, and return the accuracy on held-out sentences (0 where nothing is computed)."""
    parser = common.parser(__doc__, stages=8, accumulation=16, steps=20)
    parser.add_argument(
        "--micro-batch", type=int, default=1, help="sentences a micro-batch (default: %(default)s)"
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="weights that examples.bert_pretraining saved"
    )
    args = parser.parse_args(argv)

    torch.manual_seed(0)
    config = bert.TINY if args.tiny else bert.BASE
    pretrained = bert.Bert(config)
    if args.weights is not None:
        pretrained.load_state_dict(torch.load(args.weights, weights_only=True))
    model = Classifier(pretrained)
    model.embedding.requires_grad_(
        False
    )  # stays as pretrained: its optimiser states would fill an IPU
    annotate(model, args.stages)

    options = common.options(args)
    samples = args.micro_batch * options.batch_factor
    loader = poptorch.DataLoader(
        options, Sentences(args.steps * samples, config, 0), args.micro_batch, shuffle=True
    )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = poptorch.optim.AdamW(trained, lr=2e-3 if args.tiny else 5e-5, weight_decay=0.01)
    training = poptorch.trainingModel(model.train(), options, optimizer)
    if args.compile_only:
        training.compile(*next(iter(loader)))
        common.say_speed(training, samples)
        training.destroy()
        return 0.0
    for number, (words, labels) in enumerate(loader):
        _, loss = training(words, labels)
        print(f"call {number}: loss {float(loss.mean()):.4f}")
    common.say_speed(training, samples)
    training.destroy()

    options = common.options(args, training=False)
    loader = poptorch.DataLoader(
        options, Sentences(64 * args.accumulation, config, 1), args.micro_batch
    )
    validating = poptorch.inferenceModel(model.eval(), options)
    right = [(validating(words).argmax(1) == labels).float().mean() for words, labels in loader]
    accuracy = float(torch.stack(right).mean())
    least, most, mean = validating.getLatency()
    print(
        f"accuracy {accuracy:.1%}; latency {1e6 * mean:.0f} us a micro-batch ({1e6 * least:.0f} to"
        f" {1e6 * most:.0f})"
    )
    validating.destroy()
    return accuracy


if __name__ == "__main__":
    main()
