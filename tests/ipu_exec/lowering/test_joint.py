"""One plan of a layer's three passes, whose weights stay where they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ipu_exec.lowering import lower
from ipu_exec.lowering.plan import Compute, Exchange, Layout, Operand, Plan
from ipu_exec.lowering.products.matmul import Pass, cheapest, layer_grid
from ipu_exec.lowering.products.product_costs import vertex_cycles
from ipu_exec.lowering.products.product_problem import unit_for
from ipu_exec.lowering.products.product_search import search
from ipu_exec.machine import INFERENCE, TARGETS, Machine
from tests.operands import MK2, op, tensor

MK1 = Machine(TARGETS["mk1"], 1216)
INPUTS, OUTPUTS = 1000, 1000


def turned(operand: Operand) -> Operand:
    """The operand's transposed view."""
    return replace(operand, shape=operand.shape[::-1], strides=operand.strides[::-1])


def multiplied(left: Operand, right: Operand, machine: Machine) -> Plan:
    out = tensor(left.shape[0], right.shape[1])
    return lower(op("aten.mm.default", (left, right), out), machine)


def wish(plan: Plan, index: int) -> Layout:
    return dict(plan.input_layouts)[index]


def passes(batch: int, machine: Machine) -> tuple[Layout, Plan, Plan]:
    """(how the weights lie, the pass back, the weights' gradient) of a layer in fp32."""
    data, weight = tensor(batch, INPUTS), tensor(INPUTS, OUTPUTS, role="weight")
    gradient = tensor(batch, OUTPUTS)
    forward = multiplied(data, weight, machine)
    data = replace(data, layout=wish(forward, 0))
    weight = replace(weight, layout=wish(forward, 1))
    back = multiplied(gradient, turned(weight), machine)
    gradient = replace(gradient, layout=wish(back, 0))
    assert weight.layout is not None
    return weight.layout, back, multiplied(turned(data), gradient, machine)


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_few_rows_leave_the_weights_where_they_are(batch: int) -> None:
    weights, back, update = passes(batch, MK1)
    moved = [step for step in back.steps if isinstance(step, Exchange) and "inputs" in step.name]
    assert not moved and not any("transpose inputs" in step.name for step in back.steps)
    (gradient,) = update.output_layouts
    assert gradient is not None and gradient.key == weights.key
    assert np.array_equal(gradient.bytes, weights.bytes)
    assert int(weights.bytes.sum()) == 4 * INPUTS * OUTPUTS


def test_many_rows_are_planned_pass_by_pass() -> None:
    weights, back, update = passes(1024, MK2)
    assert any("transpose weights" in step.name for step in back.steps)
    assert update.output_layouts[0] is not None
    assert update.output_layouts[0].key != weights.key


def test_the_three_passes_agree_whether_they_are_planned_together() -> None:
    shape = {
        Pass.FORWARD: (1, 8, INPUTS, OUTPUTS),
        Pass.BACKWARD: (1, 8, OUTPUTS, INPUTS),
        Pass.UPDATE: (1, INPUTS, 8, OUTPUTS),
    }
    grids = {layer_grid(MK2, "float32", shape[which], which) for which in shape}
    (grid,) = grids
    assert grid is not None
    apart = 0
    for which, extents in shape.items():
        way = cheapest(MK2, "float32", extents, which)
        apart += search(way.problem, MK2, "float32", (way.method,)).cycles
    assert grid.cycles <= apart
    inference = replace(MK2, fully_connected=INFERENCE)
    assert layer_grid(inference, "float32", shape[Pass.FORWARD], Pass.FORWARD) is None


def test_dot_products_of_a_shared_plan_take_the_channels_that_the_update_writes() -> None:
    """40 together, not 8: each group of channels of a tile is a call of its own."""
    grid = layer_grid(MK1, "float32", (1, 1, INPUTS, OUTPUTS), Pass.FORWARD)
    assert grid is not None
    problem, splits = grid.forward
    assert splits.method == "hmac"
    assert problem.in_chunk == 40
    unit = unit_for(problem, MK1, "float32")
    one, three = (
        vertex_cycles(problem, unit, "hmac", 1, *(np.array([n]) for n in (1, 40, ins, 1, 1)))
        for ins in (40, 120)
    )
    assert 2.5 * one < three <= 3 * one


def test_the_pass_back_transposes_the_weights_where_they_are() -> None:
    """A block of 40 x 40 words a tile, whose stride is too large for the short loop."""
    weights, back, _ = passes(1, MK1)
    (step,) = (s for s in back.steps if "transpose weights" in s.name)
    assert isinstance(step, Compute)
    blocks = -(-weights.bytes // 4 // 1600)
    assert blocks.max() == 1
    assert np.array_equal(step.cycles, blocks * 6 * (13 + 8 + 40 * (5 + 80)))


def test_weights_that_are_stored_by_outputs_are_transposed_once() -> None:
    """torch.nn.Linear's: rows of the storage are outputs, which the pass back adds up."""
    weight = tensor(OUTPUTS, INPUTS, role="weight")
    forward = multiplied(tensor(256, INPUTS), turned(weight), MK2)
    back = multiplied(tensor(256, OUTPUTS), replace(weight, layout=wish(forward, 1)), MK2)
    transposed = [s.name for s in back.steps if isinstance(s, Compute) and "transpose" in s.name]
    assert transposed == ["mm/transpose weights"]
