"""The CTC loss, compared with arithmetic done by hand."""

from __future__ import annotations

import numpy as np

from ipu_exec.lowering import lower
from ipu_exec.lowering.loss import ctc_cycles
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, computes, exchanges, op, tensor


def test_the_table_of_a_ctc_loss_is_filled_step_by_step() -> None:
    # 12 steps of 9 states: two a worker, each two log-additions and an addition
    assert ctc_cycles(np.array([0, 1, 2]), 12, 9, 2).tolist() == [
        0,
        *(n * 12 * 6 * (20 + 2 * 52) for n in (1, 2)),
    ]
    scores, table = tensor(12, 2, 6), tensor(2, 12, 9)
    lengths = tensor(2, dtype="int64")
    spec = op(
        "aten._ctc_loss.Tensor",
        (scores, tensor(2, 4, dtype="int64"), lengths, lengths, 0, False),
        tensor(2),
        table,
    )
    plan = lower(spec, MK2)
    check(plan, spec)
    assert np.count_nonzero(computes(plan)["alpha"].cycles) == 2
    assert int(exchanges(plan)["operand 0"].bytes_in.sum()) == scores.nbytes
    there = tensor(2, 12, 9, layout=plan.output_layouts[1])
    back = op(
        "aten._ctc_loss_backward.Tensor",
        (
            tensor(2),
            scores,
            tensor(2, 4, dtype="int64"),
            lengths,
            lengths,
            tensor(2),
            there,
            0,
            False,
        ),
        scores,
    )
    plan = lower(back, MK2)
    check(plan, back)
    assert "operand 6" not in exchanges(plan)  # the table lies there already
    assert list(computes(plan)) == ["beta", "gradient", "exp"]
