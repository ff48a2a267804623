"""Reductions, compared with arithmetic done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_exec.lowering import lower
from ipu_exec.lowering.plan import Compute
from ipu_exec.lowering.reduce import reduce_cycles
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, op, tensor


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
    assert cycles == 6 * (
        15 + 10 * 64 + 128
    )  # 384 pairs of outputs, 64 a worker; 768 pairs of elements, 128 a worker
    assert reduce_cycles(np.array([768]), np.array([2]), 4, False) == 6 * (
        17 + 12 + 64 + 15 + 10 + 6 + 16
    )


@pytest.mark.parametrize("shape", [(0, 8, 16), (4, 0, 16), (4, 8, 0)])
def test_a_product_of_nothing_is_zero(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    spec = op("aten.addmm.default", (tensor(n), tensor(m, k), tensor(k, n)), tensor(m, n))
    plan = lower(spec, MK2)
    check(plan, spec)
    assert (plan.flops > 0) == (m * n > 0)  # the bias is added to zeros
