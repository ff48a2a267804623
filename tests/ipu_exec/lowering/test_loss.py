"""Losses, compared with PopART's steps."""

from __future__ import annotations

import numpy as np

from ipu_exec.lowering import lower
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, computes, op, tensor


def test_a_loss_encodes_its_targets_as_popart_does() -> None:
    """40 targets of 10 classes in fp32: two a vector, 20 groups.

    Eight of ten classes are on one tile, two on another.
    100 worker cycles a target; then a product, the rows' sums, masks and the mean.
    """
    scores, target = tensor(40, 10), tensor(40, dtype="int64")
    args = (scores, target, None, 1, -100)
    forward = op("aten.nll_loss_forward.default", args, tensor(), tensor())
    plan = lower(forward, MK2)
    check(plan, forward)
    encode = computes(plan)["encode"].cycles
    assert np.count_nonzero(encode) == 40 and set(encode[encode > 0]) == {6 * 100 * 2}
    assert {"select", "mask/compare", "count/div", "mean"} <= set(computes(plan))
    back = op("aten.nll_loss_backward.default", (tensor(), *args, tensor()), tensor(40, 10))
    backward = lower(back, MK2)
    check(backward, back)
    assert {"encode", "negate", "mask/mul_", "mean"} <= set(computes(backward))
