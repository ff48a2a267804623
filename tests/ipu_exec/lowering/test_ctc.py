"""The CTC loss, compared with arithmetic done by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_exec.lowering import lower
from ipu_exec.lowering.operators.ctc import Table, best_partition, partition_of
from ipu_exec.machine import SYNC_CYCLES, exchange_latency
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, computes, exchanges, op, tensor


def test_a_step_of_time_is_a_compute_set_a_sync_and_an_exchange() -> None:
    # 12 steps in two halves of 6; a label is 8 of reading and writing, 2 and 2 x 17 of logarithms
    part = partition_of(Table(1, 12, 4, 6), (1, 2, 4, 1), 4)
    assert part.steps == 6 and part.alpha.expected == 6 * 44 + 190 + 2
    # the gradient is made beside it: 6 of reading and writing and 2 x 17 more, from 6 elements
    assert part.gradient.expected == 6 * (44 + 40) + 190 + 6
    assert part.expected == 6 * (part.alpha.expected + part.gradient.expected)
    # it runs with the machine's own sync and exchange
    arriving = exchange_latency(MK2.target) + 6
    assert part.gradient.taken(MK2.target) == 6 * 84 + SYNC_CYCLES + arriving
    assert part.tiles == 1 * 2 * 5 and part.scores == 6 * 6
    # as many labels on each tile, and no tile for the last blank: one has a blank more
    assert partition_of(Table(1, 12, 4, 6), (1, 2, 4, 0), 4).alpha.cycles == 6 * (44 + 17)


def test_the_partition_uses_the_chip_and_keeps_the_proportion() -> None:
    table = Table(4, 375, 200, 36)
    part = best_partition(table, MK2, 4)
    assert part.tiles <= MK2.tiles and part.parts_of_labels > 100
    whole = partition_of(table, (1, 1, 1, 0), 4)
    assert 20 * part.expected < whole.expected
    assert part.temporary <= MK2.proportion * MK2.target.bytes_per_tile


@pytest.mark.parametrize("labels", [1, 4])
def test_a_loss_and_its_gradient_are_on_the_tiles_of_the_table(labels: int) -> None:
    states = 2 * labels + 1
    scores, table, targets = (
        tensor(12, 2, 6),
        tensor(2, 12, states),
        tensor(2, labels, dtype="int64"),
    )
    lengths = tensor(2, dtype="int64")
    spec = op(
        "aten._ctc_loss.Tensor", (scores, targets, lengths, lengths, 0, False), tensor(2), table
    )
    plan = lower(spec, MK2)
    check(plan, spec)
    part = best_partition(Table(2, 12, labels, 6), MK2, 4)
    assert np.count_nonzero(computes(plan)["alpha and beta"].cycles) == part.tiles
    assert int(exchanges(plan)["operand 0"].bytes_in.max()) == 4 * part.scores
    there = tensor(2, 12, states, layout=plan.output_layouts[1])
    args = (tensor(2), scores, targets, lengths, lengths, tensor(2), there, 0, False)
    back = op("aten._ctc_loss_backward.Tensor", args, scores)
    plan = lower(back, MK2)
    check(plan, back)
    assert "operand 6" not in exchanges(plan)  # the table lies there already
    assert ("add gradients/stage 1" in computes(plan)) == (part.parts_of_labels > 1)


def test_gradients_of_parts_are_added_in_stages_where_the_input_lies() -> None:
    """201 parts of a step's labels are more than 64: blocks of some sources first.

    The input lies by steps of time, all classes of one together: 375 tiles of 36.
    """
    scores, table = tensor(375, 1, 36), tensor(1, 375, 401)
    lengths, targets = tensor(1, dtype="int64"), tensor(1, 200, dtype="int64")
    args = (tensor(1), scores, targets, lengths, lengths, tensor(1), table, 0, False)
    plan = lower(op("aten._ctc_loss_backward.Tensor", args, scores), MK2)
    stages = {name: step for name, step in computes(plan).items() if "add gradients" in name}
    assert len(stages) == 2
    last = stages["add gradients/stage 2"].cycles
    assert np.count_nonzero(last) == 375
    assert plan.output_layouts[0] is not None
    assert set(plan.output_layouts[0].bytes) == {0, 36 * 4}
