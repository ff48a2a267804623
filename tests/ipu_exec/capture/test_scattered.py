"""torch_scatter's reductions, made of PyTorch's: the library itself is not needed to check them."""

from __future__ import annotations

import pytest
import torch

from ipu_exec.capture.rewrites.torch_scatter import _extreme, scatter_mul

SRC = torch.tensor([[1.0, 3, 2, 4, 5, 5], [6, 1, 1, 0, 2, 1]])
INDEX = torch.tensor([0, 1, 0, 1, 3, 3])


def test_products_of_each_index() -> None:
    assert scatter_mul(SRC, INDEX, dim_size=4).tolist() == [[2, 12, 1, 25], [6, 0, 1, 2]]
    out = torch.full((2, 4), 2.0)
    assert scatter_mul(SRC, INDEX, -1, out) is out
    assert out[0].tolist() == [4, 24, 2, 50]


@pytest.mark.parametrize(
    ("reduction", "values", "places"),
    [
        ("amax", [[2, 4, 0, 5], [6, 1, 0, 2]], [[2, 3, 6, 4], [0, 1, 6, 4]]),
        ("amin", [[1, 3, 0, 5], [1, 0, 0, 1]], [[0, 1, 6, 4], [2, 3, 6, 5]]),
    ],
)
def test_extremes_say_where_they_first_stand(
    reduction: str, values: list[list[int]], places: list[list[int]]
) -> None:
    extremes, where = _extreme(reduction, SRC, INDEX, dim_size=4)
    assert extremes.tolist() == values and where.tolist() == places
    turned, across = _extreme(reduction, SRC.T, INDEX, 0, dim_size=4)
    assert turned.T.tolist() == values and across.T.tolist() == places


def test_without_a_size_the_largest_index_says_it() -> None:
    assert scatter_mul(SRC, INDEX).shape == (2, 4)
    out = torch.full((2, 4), 4.0)
    extremes, where = _extreme("amax", SRC, INDEX, -1, out)
    assert extremes is out and out[0].tolist() == [4, 4, 4, 5] and int(where[0, 0]) == 6
