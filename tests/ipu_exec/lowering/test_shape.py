"""Sorting, cumulative sums, padding and joining, compared with arithmetic done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipu_exec.lowering import lower
from ipu_exec.lowering.layouts import linear_layout
from ipu_exec.lowering.operators.shape import bitonic_steps
from ipu_exec.lowering.plan import Compute
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, computes, exchanges, op, tensor

FULL = 1472 * 32  # fp32: 32 elements, 128 bytes, on each tile; 6 elements a worker at most


def test_the_gradient_of_a_sort_does_not_send_every_index_to_every_tile() -> None:
    x, where = tensor(16, 4096), tensor(16, 4096, dtype="int64")
    spec = op("aten.scatter.src", (x, 1, where, x), x)
    plan = lower(spec, MK2)
    check(plan, spec)
    assert exchanges(plan)["indices"].bytes_in.max() < 16 * 4096 * 4 / 10
    assert computes(plan)["scatter/take marked"].cycles.max() > 0  # what no copy wrote stays


def test_the_steps_of_a_bitonic_sort() -> None:
    """Batcher's network has log n (log n + 1) / 2 steps.

    The best 5 of 100 are obtained by sorting sequences of 8 and merging them.
    """
    assert len(bitonic_steps(1024, 1024)) == 10 * 11 // 2
    assert bitonic_steps(4, 4) == [(4, 1), (4, 2), (4, 1)]
    assert bitonic_steps(1, 1) == []
    best = bitonic_steps(100, 5)
    assert len(best) == 6 + 4 * 4  # log2 8 = 3: 1 + 2 + 3, then 4 merges that sort again
    assert [present for present, _ in best[6::4]] == [
        100,
        52,
        28,
        16,
    ]  # 12 pairs of 8 and a rest of 4, 3 and 4, ...
    assert best[-1] == (8, 1)


@pytest.mark.parametrize(("dim", "steps"), [(0, 6 * 7 // 2), (1, 10 * 11 // 2)])
def test_sorting_goes_by_the_dimension_and_over_all_tiles(dim: int, steps: int) -> None:
    x, where = tensor(64, 1000), tensor(64, 1000, dtype="int64")
    spec = op("aten.sort.default", (x, dim, False), x, where)
    plan = lower(spec, MK2)
    check(plan, spec)
    compared = [s for s in plan.steps if isinstance(s, Compute) and s.name.endswith("/compare")]
    assert len(compared) == steps
    # 32,000 pairs on 1,472 tiles: 22 a tile at the most, 4 a worker
    assert all(s.cycles.max() == 6 * (17 + 20 * 4) for s in compared)


def test_a_cumulative_sum_is_a_product_with_a_triangle() -> None:
    x = tensor(64, 96)
    spec = op("aten.cumsum.default", (x, 1), x)
    plan = lower(spec, MK2)
    check(plan, spec)
    assert computes(plan)["cumsum/convolve"].flops == 2 * 64 * 96 * 96
    assert plan.constants is not None and plan.constants.sum() >= 96 * 96 * 4
    for long in (tensor(2, 100_000), tensor(64, 96, dtype="int64")):
        scanned = op("aten.cumsum.default", (long, 1), long)
        check(lower(scanned, MK2), scanned)
        assert "scan on tile" in computes(lower(scanned, MK2))


def test_booleans_are_counted_as_numbers_and_joined_one_by_one() -> None:
    x = tensor(FULL, dtype="bool")
    x = replace(x, layout=linear_layout(tensor(FULL, dtype="float32"), 1472))
    x = replace(x, layout=type(x.layout)(x.layout.key, x.layout.bytes // 4))
    counted = computes(lower(op("aten.sum.default", (x,), tensor(dtype="int64")), MK2))
    assert counted["sum/cast"].cycles.max() == 12 + 6 * (37 + 6)
    # 32 numbers of 4 bytes are 16 of 8 bytes, after 17 cycles and 12 for the output: too few for a
    # second worker, whose partial would have to be added
    assert counted["sum/on tile"].cycles.max() == 6 * (17 + 12 + 16)
    joined = computes(lower(op("aten.any.default", (x,), tensor(dtype="bool")), MK2))
    # poplibs weighs a worker more or less as if the operation were a number's
    assert joined["any/on tile"].cycles.max() == 6 * (17 + 25 * 32)


def test_the_border_of_a_padding_is_added_to_what_it_mirrors() -> None:
    grad, source = tensor(4, 8, 10, 10), tensor(4, 8, 8, 8)
    spec = op("aten.reflection_pad2d_backward.default", (grad, source, (1, 1, 1, 1)), source)
    plan = lower(spec, MK2)
    check(plan, spec)
    border = 4 * 8 * (100 - 64)
    moved = exchanges(plan)["gradient"]
    assert int(moved.bytes_in.sum()) == (4 * 8 * 64 + border) * 4 == grad.nbytes
    assert computes(plan)["add border"].flops == border
