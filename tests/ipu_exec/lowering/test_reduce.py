"""Reductions, compared with arithmetic done by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ipu_exec.lowering import lower
from ipu_exec.lowering.operators.reduce import Blocks, reduce_cycles
from ipu_exec.lowering.operators.reduce_vertices import (
    Kind,
    OnTile,
    following,
    side_by_side,
    strided,
)
from ipu_exec.lowering.plan import Compute
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, computes, op, tensor


def test_a_batch_that_is_summed_is_one_product() -> None:
    a, b, out = tensor(4, 32, 16), tensor(4, 16, 48), tensor(32, 48)
    plan = lower(op("aten.addbmm.default", (tensor(32, 48), a, b), out), MK2)
    assert plan.output_layouts[0] is not None
    assert plan.output_layouts[0].bytes.sum() == out.nbytes
    multiplied = [
        s.flops for s in plan.steps if isinstance(s, Compute) and s.name.endswith("/convolve")
    ]
    assert multiplied == [2 * 4 * 32 * 16 * 48]


@pytest.mark.parametrize("name", ["sum.dim_IntList", "var.correction", "amax.default"])
def test_a_reduction_of_nothing_fills_its_outputs_and_one_of_single_elements_copies(
    name: str,
) -> None:
    nothing = op(f"aten.{name}", (tensor(0, 40), (0,)), tensor(40))
    filled = lower(nothing, MK2)
    check(filled, nothing)
    assert [step.vertices[0].type for step in filled.steps][:1] == ["popops::Fill<float>"]
    if name != "var.correction":
        copied = lower(op(f"aten.{name}", (tensor(1, 40), (0,)), tensor(40)), MK2)
        assert [step.name.split("/")[1] for step in copied.steps] == ["copy"]


def test_outputs_that_lie_side_by_side_are_reduced_8_bytes_at_a_time() -> None:
    """As in the gradient of a layer norm's scale: 2 rows of 768 on a tile are reduced to one."""
    cycles = reduce_cycles(np.array([2 * 768]), np.array([768]), 4, True)
    # 128 outputs a worker, 64 pairs: 3 to begin, 2 rows of which one is loaded before (3 + 1), 5 to
    # add the accumulators up and to store
    assert cycles == 6 * (16 + 64 * (3 + 3 + 1 + 5))
    # neighbours are reduced: a worker has one of the two outputs, 192 pairs of elements
    assert reduce_cycles(np.array([768]), np.array([2]), 4, False) == 6 * (17 + 12 + 192)


def test_workers_without_columns_share_rows_where_that_pays() -> None:
    """82 halves in each of 8 columns: cut in two, three ... six they are expected to take less.

    One loop of 4 halves adds a row; six results of 8 floats are added by one worker.
    """
    sums = Kind("ADD", 2, 4)
    first, second, *vertices, between = side_by_side(82 * 8, 8, sums)
    assert vertices == [6, 1] and between == 6 * 8
    assert first == 6 * (16 + 2 * (3 + 3 + 13 + 7)) and second == 6 * (16 + 4 * (3 + 3 + 5 + 5))
    # 10 rows: 30 for a call and 20 to load, against 60 and 10
    assert side_by_side(10 * 8, 8, sums) == OnTile(6 * (16 + 2 * (3 + 3 + 9 + 7)))
    # four columns of four neighbours each: as 16 columns, then by neighbours
    first, second, *vertices, between = following(4 * 4 * 5, 4, 4, sums)
    assert vertices == [4, 4] and between == 4 * 4
    assert first == 6 * strided(5, 4, sums) and second == 6 * (17 + 12 + 2)


def test_what_workers_leave_to_the_second_stage_is_held_between_the_two() -> None:
    """256 halves a tile, 32 rows of 8: six workers have some rows, and leave 8 floats each."""
    shape = (16, 4, 16, 32, 8)
    operand = tensor(*shape, dtype="float16")
    plan = lower(
        op("aten.sum.dim_IntList", (operand, (1, 3)), tensor(16, 16, 8)), replace(MK2, tiles=1024)
    )
    names = [step.name for step in plan.steps]
    held = next(t for t in plan.temporaries if t.name.endswith("worker partials"))
    assert names[held.first : held.last + 1] == ["sum/on tile", "sum/on tile/of workers"]
    assert set(held.bytes) == {6 * 8 * 4}
    few = lower(op("aten.amax.default", (operand, (1, 3)), tensor(16, 16, 8)), MK2)
    assert not any("worker" in t.name for t in few.temporaries)  # nothing is gained by rows there


def test_stages_and_tiles_are_those_of_popops() -> None:
    """4 x 12,544 x 8 halves summed over the middle, on 1,472 tiles of an MK2.

    Each tile has 8 of 32 sums: 368 sources an output, more than 64, so that 4 columns go to
    blocks of 16 sources; 23 of these an output are added on 4 tiles of 8 outputs.
    """
    spec = op("aten.sum.dim_IntList", (tensor(4, 12544, 8, dtype="float16"), (1,)), tensor(4, 8))
    plan = lower(spec, MK2)
    blocks = Blocks.of(1472 * 8, 32, 8, Kind("ADD", 4, 4), 1472)
    assert (blocks.rows, blocks.columns, blocks.wide, blocks.high) == (16, 4, 8, 23)
    used = {name: int((step.cycles > 0).sum()) for name, step in computes(plan).items()}
    assert used["sum/stage 1"] == 8 * 23 and used["sum/stage 2"] == 4


@pytest.mark.parametrize("shape", [(0, 8, 16), (4, 0, 16), (4, 8, 0)])
def test_a_product_of_nothing_is_zero(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    spec = op("aten.addmm.default", (tensor(n), tensor(m, k), tensor(k, n)), tensor(m, n))
    plan = lower(spec, MK2)
    check(plan, spec)
    assert (plan.flops > 0) == (m * n > 0)  # the bias is added to zeros
