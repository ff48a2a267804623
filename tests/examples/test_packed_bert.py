"""BERT on packs: several sequences one after the other, which do not see each other."""

from __future__ import annotations

from dataclasses import replace

import torch

import ipu_exec
from examples.models import bert
from ipu_exec.session.compilation import compile_step

PACKS = replace(bert.TINY, packed=3, masked=6)


def test_a_sequence_of_a_pack_sees_its_own_tokens_only() -> None:
    model = bert.Bert(PACKS).eval()
    tokens, types, numbers, where, *rest = bert.inputs(PACKS, 2)
    where = torch.arange(PACKS.masked).expand(2, -1).contiguous()  # of the first sequence
    other = tokens.clone()
    first = numbers == 0
    other[~first] = (tokens[~first] + 1) % PACKS.vocabulary
    with torch.no_grad():
        scores, loss = model(tokens, types, numbers, where, *rest)
        same, changed = model(other, types, numbers, where, *rest)
        seen = model(other, types, torch.zeros_like(numbers), where, *rest)[0]
    assert first[0].sum() >= PACKS.masked
    assert torch.allclose(scores, same, atol=1e-5)
    assert not torch.allclose(scores, seen, atol=1e-3)
    assert loss != changed  # the others' successors are told by their own tokens


def test_a_pack_of_equal_work_takes_little_longer() -> None:
    """Its mask is for pairs of tokens, and each sequence has a successor to tell."""

    def cycles(config: bert.BertConfig) -> int:
        options = ipu_exec.Options().showCompilationProgressBar(False)
        model = bert.Bert(config)
        optimiser = torch.optim.AdamW(model.parameters())
        inputs = bert.inputs(config, 2)
        return compile_step(model, inputs, {}, options, optimiser, True).cycles_per_call

    one_layer = replace(PACKS, layers=1)
    alone, packed = cycles(replace(one_layer, packed=1)), cycles(one_layer)
    assert alone < packed < 1.3 * alone


def test_without_a_next_sentence_only_masked_tokens_are_told() -> None:
    torch.manual_seed(0)
    model = bert.Bert(replace(PACKS, next_sentence=False, dropout=0.0))
    tokens, types, numbers, where, masked, follows, places = bert.inputs(PACKS, 2)
    scores, loss = model(tokens, types, numbers, where, masked, follows, places)
    of_masked = torch.nn.functional.cross_entropy(scores.flatten(0, 1), masked.flatten())
    assert loss == of_masked
    assert not [name for name, _ in model.named_parameters() if name.startswith(("pooler", "next"))]
