"""PopTorch's ``_utils`` that libraries use: joining batches, taking structures apart."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ipu_exec import _utils


class Batch(NamedTuple):
    """A batch of a user's own type."""

    x: torch.Tensor
    rest: dict[str, object]


def batch(number: int) -> Batch:
    x = torch.full((2, 3), float(number))
    return Batch(x, {"label": x[:, 0], "name": "digits"})


def test_batches_are_joined_and_keep_their_structure() -> None:
    joined = list(_utils.combined_batch_generator(map(batch, range(5)), 2))
    assert [type(one) for one in joined] == [Batch, Batch]
    assert joined[1].rest["label"].tolist() == [2, 2, 3, 3]
    assert joined[0].rest["name"] == "digits"
    last = list(_utils.combined_batch_generator(map(batch, range(5)), 2, drop_last=False))[-1]
    assert last.x.shape == (2, 3)


def test_a_structure_is_taken_apart_and_put_together() -> None:
    one = batch(1)
    tensors = _utils.flattenTensorStructure(one)
    assert [tensor.dim() for tensor in tensors] == [2, 1]
    doubled = _utils.reconstructTensorStructure(one, (tensor * 2 for tensor in tensors))
    assert float(doubled.x.sum()) == 12 and doubled.rest["name"] == "digits"
    only = _utils.reconstructTensorStructure(
        one, [torch.zeros(1)], lambda tensor: tensor.dim() == 2
    )
    assert only.x.shape == (1,) and only.rest["label"] is one.rest["label"]
