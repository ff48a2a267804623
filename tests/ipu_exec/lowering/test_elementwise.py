"""Elementwise operators, compared with arithmetic done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ipu_exec.base.sources import compiling
from ipu_exec.lowering import lower
from ipu_exec.lowering.durations import plan_cycles
from ipu_exec.lowering.layouts import linear_layout
from ipu_exec.lowering.plan import Compute
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, computes, exchanges, op, tensor

FULL = 1472 * 32  # fp32: 32 elements, 128 bytes, on each tile; 6 elements a worker at most


def test_an_expanded_gradient_is_written_out_over_all_tiles_before_it_is_multiplied() -> None:
    """A sum's gradient is one element on one tile: each tile gets its 4 bytes and copies them."""
    one, dense, weight = tensor(1), tensor(512, 512), tensor(512, 512)
    grad = replace(dense, strides=(0, 0), storage_elements=1, layout=linear_layout(one, 1472))
    weight = replace(weight, layout=linear_layout(weight, 1472))
    plan = lower(op("aten.mm.default", (grad, weight), dense), MK2)
    whole = lower(
        op("aten.mm.default", (replace(dense, layout=linear_layout(dense, 1472)), weight), dense),
        MK2,
    )
    sent, written = exchanges(plan)["operand 0"], computes(plan)["write out operand 0"]
    assert sent.bytes_in.max() == sent.bytes_out.sum() == 4
    # 178 or 179 elements a tile, 30 a worker, 2 a cycle
    assert written.cycles.max() == 22 + 6 * 15
    product = [step.name for step in plan.steps if step is not sent and step is not written]
    assert product == [step.name for step in whole.steps]
    assert plan_cycles(plan, MK2) < plan_cycles(whole, MK2) + 600


@pytest.mark.parametrize(
    "name", ["sum.dim_IntList", "convolution_backward", "avg_pool2d_backward", "slice_backward"]
)
def test_no_tile_does_the_work_of_all_on_an_expanded_gradient(name: str) -> None:
    x = tensor(8, 16, 32, 32)
    x = replace(x, layout=linear_layout(x, 1472))
    grad = replace(
        x, strides=(0, 0, 0, 0), storage_elements=1, layout=linear_layout(tensor(1), 1472)
    )
    pooled = replace(
        tensor(8, 16, 16, 16), strides=(0, 0, 0, 0), storage_elements=1, layout=grad.layout
    )
    weight = tensor(16, 16, 1, 1, layout=linear_layout(tensor(16, 16, 1, 1), 1472))
    mask = (True, True, True)
    calls = {
        "sum.dim_IntList": ((grad, (0, 2, 3)), (tensor(16),)),
        "convolution_backward": (
            (grad, x, weight, (16,), (1, 1), (0, 0), (1, 1), False, (0, 0), 1, mask),
            (tensor(8, 16, 32, 32), tensor(16, 16, 1, 1), tensor(16)),
        ),
        "avg_pool2d_backward": ((pooled, x, (2, 2), (2, 2), (0, 0)), (tensor(8, 16, 32, 32),)),
        "slice_backward": ((pooled, (8, 16, 32, 32), 3, 0, 16, 1), (tensor(8, 16, 32, 32),)),
    }
    name = name if "." in name else f"{name}.default"
    args, outputs = calls[name.removesuffix(".default")]
    spec = op(f"aten.{name}", args, *outputs)
    plan = lower(spec, MK2)
    check(plan, spec)
    # 131,072 elements on one tile would take it over 10,000 cycles to read
    assert max(step.cycles.max() for step in computes(plan).values()) < 10_000


@pytest.mark.parametrize(
    ("name", "loops"),
    [
        # cycles a worker beyond the call for 6 elements: 3 vectors of 2, or 6 single elements
        ("asin", [17 + 106 * 6]),
        ("acos", [17 + 106 * 6, 17 + 2 * 3]),
        ("atan", [17 + 2 * 3, 17 + 2 * 3, 17 + 8 * 3, None, 17 + 106 * 6]),
        ("sinh", [33 + 6 * 3, 17 + 6 * 3, None, 17 + 2 * 3]),
        ("cosh", [33 + 6 * 3, 17 + 6 * 3, None, 17 + 2 * 3]),
        ("asinh", [17 + 2 * 3, 17 + 2 * 3, 17 + 10 * 3, None, 17 + 12 * 3]),
        ("acosh", [17 + 2 * 3, 17 + 2 * 3, 17 + 10 * 3, None, 17 + 12 * 3]),
        ("atanh", [17 + 2 * 3, 17 + 2 * 3, 17 + 6 * 3, None, 17 + 12 * 3, 17 + 2 * 3]),
    ],
)
def test_inverse_and_hyperbolic_functions_are_exponentials_logarithms_and_roots(
    name: str, loops: list
) -> None:
    x = tensor(FULL, layout=linear_layout(tensor(FULL), 1472))
    spec = op(f"aten.{name}.default", (x,), tensor(FULL))
    plan = lower(spec, MK2)
    check(plan, spec)
    steps = [step for step in plan.steps if isinstance(step, Compute)]
    assert len(steps) == len(plan.steps) == len(loops)
    for step, worker in zip(steps, loops, strict=True):
        expected = (
            58 + 6 * 3 * 3 if worker is None else 20 + 6 * worker
        )  # in place: 58 + 6 * 3 a vector
        assert (step.cycles == expected).all(), step.name
        assert "OpType::" in step.vertices[0].type and step.vertices[0].type.endswith(",float>"), (
            step.name
        )


# the start, and cycles a worker for 6 elements (11 in half): popopsCycleEstimators.hpp
@pytest.mark.parametrize(
    ("name", "args", "dtype", "start", "loops"),
    [
        ("sin", (), "float32", 122, 6 * 2300),
        ("sin", (), "float16", 122, 11 * 25),
        ("tan", (), "float16", 122, 11 * 5700),
        ("pow", (1.7,), "float32", 173, 6 * 312),
        ("pow", (1.0,), "float32", 22, 3),  # the gradient of a square: a copy
        ("pow", (2.0,), "float32", 122, 3 * 2),
        ("div", (3.0,), "float32", 122, 3 * 6),  # no product by an inverse
        ("div", (3.0,), "float16", 122, 6 * 8),
        ("mul", (3.0,), "float16", 122, 3 * 2),
        ("mul", (3,), "int32", 122, 6 * 6),
        ("gt", (3.0,), "float32", 122, 2 * 12),
        ("gt", (3,), "int32", 122, 2 * 16),
        ("abs", (), "float32", 122, 6 * 5),
        ("expm1", (), "float16", 122, 3 * 9),
    ],
)
def test_a_function_takes_what_popops_says(
    name: str, args: tuple, dtype: str, start: int, loops: int
) -> None:
    size = 1472 * 64 if dtype == "float16" else FULL
    x = tensor(size, dtype=dtype)
    x = replace(x, layout=linear_layout(x, 1472))
    result = tensor(size, dtype="bool" if name == "gt" else dtype)
    plan = lower(op(f"aten.{name}.Scalar", (x, *args), result), MK2)
    (step,) = (step for step in plan.steps if isinstance(step, Compute))
    assert (step.cycles == start + 6 * loops).all()


def test_the_gradient_of_dropout_draws_again_where_the_mask_was_made() -> None:
    mask = tensor(FULL, dtype="bool", layout=linear_layout(tensor(FULL, dtype="bool"), 1472))
    there = linear_layout(tensor(FULL, dtype="bool"), 1472)
    near = tensor(FULL, layout=type(there)(there.key, there.bytes * 4))
    far = tensor(FULL, layout=linear_layout(tensor(FULL), 1472))
    for grad, moved in ((near, 0), (far, FULL * 4)):
        spec = op("aten.native_dropout_backward.default", (grad, mask, 1.1), tensor(FULL))
        plan = lower(spec, MK2)
        check(plan, spec)
        assert sum(int(step.bytes_in.sum()) for step in exchanges(plan).values()) == moved
        # 6 + 6 (24 + 2 a vector of two)
        worker = math.ceil(int(there.bytes.max()) / 6)
        assert int(computes(plan)["dropout"].cycles.max()) == 6 + 6 * (
            24 + 2 * math.ceil(worker / 2)
        )


def test_a_gradient_that_a_call_reads_twice_is_rearranged_once() -> None:
    """Adam's second moment takes grad * grad; its state lies as the weight does."""
    state = tensor(256, 512, role="optimiser state")
    state = replace(state, layout=linear_layout(state, 1472))
    other = tensor(256, 512, strides=(1, 256), layout=linear_layout(tensor(512, 256), 1472))
    name = "aten.addcmul_.default"
    twice = lower(op(name, (state, other, replace(other, again=True)), state), MK2)
    both = lower(op(name, (state, other, other), state), MK2)  # two tensors that lie alike
    moves = ["regroup operand 1", "operand 1"]
    assert list(exchanges(twice)) == moves
    assert list(exchanges(both)) == [*moves, "regroup operand 2", "operand 2"]
    assert plan_cycles(twice, MK2) < plan_cycles(both, MK2)


def test_tables_of_vertices_are_sources_of_what_is_compiled() -> None:
    names = {source.name for source in compiling()}
    assert {"vertex_costs.csv", "vertex_code.csv", "measured.csv", "elementwise.py"} <= names
