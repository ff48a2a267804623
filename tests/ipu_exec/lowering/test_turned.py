"""Weights transposed for the pass back where the forward pass has them."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_exec.lowering.costs import transform_cycles, transpose_cycles
from ipu_exec.lowering.products import transposed_weights
from ipu_exec.lowering.products.matmul import Pass, cheapest
from ipu_exec.lowering.products.product_problem import Problem, Splits
from ipu_exec.lowering.products.product_search import search
from tests.operands import MK2

Planned = tuple[Problem, Splits]


def plans(batch: int, inputs: int, outputs: int, dtype: str) -> tuple[Planned, Planned]:
    """The plans of the passes forward and back."""
    found = []
    for which, shape in (
        (Pass.FORWARD, (1, batch, inputs, outputs)),
        (Pass.BACKWARD, (1, batch, outputs, inputs)),
    ):
        way = cheapest(MK2, dtype, shape, which)
        found.append((way.problem, search(way.problem, MK2, dtype, (way.method,))))
    return found[0], found[1]


def test_blocks_are_what_both_passes_take_together() -> None:
    found = transposed_weights.find(MK2, "float16", *plans(1024, 1024, 4096, "float16"))
    assert found is not None
    assert (found.outputs, found.inputs) == (16, 16)
    assert int(found.count.sum()) == 1024 * 4096 // 256


def test_blocks_divide_the_extents() -> None:
    found = transposed_weights.find(MK2, "float16", *plans(8, 1000, 1000, "float16"))
    assert found is not None
    assert (found.outputs, found.inputs) == (8, 8)


def test_a_block_is_where_its_first_element_is() -> None:
    """167 parts of 6 columns, whose blocks of 8 begin in 125 of them, of 500 inputs each."""
    forward, back = plans(4, 1000, 1000, "float16")
    assert forward[1].method == "hmac"
    found = transposed_weights.find(MK2, "float16", forward, back)
    assert found is not None
    assert (found.outputs, found.inputs) == (8, 500)
    assert np.count_nonzero(found.count) == 250


def test_odd_extents_are_copied_element_by_element() -> None:
    assert transposed_weights.find(MK2, "float16", *plans(256, 197, 197, "float16")) is None


@pytest.mark.parametrize(
    ("blocks", "rows", "columns", "item", "worker"),
    [
        (12, 16, 16, 2, 29 + 2 * (18 + 4 * (12 + 4 * 2))),  # two a worker
        (1, 16, 16, 2, 27 + 1 * (12 + 4 * 2)),  # all workers share it
        (6, 6, 6, 2, 15 + 8 + 6 * (5 + 15)),
        (6, 8, 8, 4, 27 + 11 + 4 * (6 + 9)),
        (6, 40, 40, 4, 13 + 8 + 40 * (5 + 80)),
    ],
)
def test_cycles_of_a_transposition(
    blocks: int, rows: int, columns: int, item: int, worker: int
) -> None:
    cycles = transpose_cycles(np.array([0, blocks]), rows, columns, item)
    assert cycles.tolist() == [0, 6 * worker]


def test_a_tiny_copy_takes_no_longer_than_its_elements_one_by_one() -> None:
    cycles = transform_cycles(np.array([0, 8, 1024]), 8)
    assert cycles.tolist() == [0, 288 + 10 * 4, 587 + 451]
