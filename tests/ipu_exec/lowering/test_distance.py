"""Distances between pairs of rows, compared with arithmetic done by hand."""

from __future__ import annotations

import numpy as np

from ipu_exec.lowering import lower
from ipu_exec.lowering.operators.distance import pair_cycles
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, computes, exchanges, op, tensor


def test_distances_of_all_pairs_keep_both_rows_on_the_tile() -> None:
    # 10 pairs of rows of 6: 2 a worker, each 10 + 3 * 3 vectors of two
    assert pair_cycles(np.array([0, 10]), 6, 4, 2.0).tolist() == [0, 20 + 6 * (17 + 2 * 19)]
    assert pair_cycles(np.array([10]), 6, 4, 3.0).tolist() == [20 + 6 * (17 + 2 * (19 + 6 * 312))]
    a, b = tensor(40, 6), tensor(50, 6)
    spec = op("aten._cdist_forward.default", (a, b, 2.0, None), tensor(40, 50))
    plan = lower(spec, MK2)
    check(plan, spec)
    assert computes(plan)["_cdist_forward"].flops == 3 * 40 * 50 * 6
    assert list(computes(plan)) == ["_cdist_forward", "root"]
    assert "root" not in computes(
        lower(op("aten._cdist_forward.default", (a, b, 1.0, None), tensor(40, 50)), MK2)
    )
    # 2,000 distances are 62 parts of 128 bytes: 33 at most a tile, hence rows of at most 33 / 50 +
    # 1 of the first
    rows = exchanges(plan)["rows 0"].bytes_in
    assert np.count_nonzero(rows) == 62
    assert rows.max() == 2 * 6 * 4
    back = op(
        "aten._cdist_backward.default", (tensor(40, 50), a, b, 2.0, tensor(40, 50)), tensor(40, 6)
    )
    plan = lower(back, MK2)
    check(plan, back)
    assert computes(plan)["_cdist_backward"].flops == 4 * 50 * 40 * 6
