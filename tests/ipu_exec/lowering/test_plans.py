"""Invariants of every plan: bytes, shapes, memory, and one object for equal operators."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_exec.errors import LoweringError
from ipu_exec.lowering import Builder, generic, is_view, lower, lowering, vertex_info
from ipu_exec.lowering.durations import plan_cycles
from ipu_exec.lowering.layouts import (
    apportion,
    blocks,
    linear,
    linear_layout,
    split_evenly,
    touched,
)
from ipu_exec.lowering.plan import Compute, Exchange, Operand, OpSpec, Plan
from ipu_exec.machine import TARGETS, Machine
from tests.operands import MK2, op, tensor

DTYPES = st.sampled_from(["float32", "float16"])
SHAPES = st.lists(st.integers(1, 48), min_size=1, max_size=4).map(tuple)


def check(plan: Plan, spec: OpSpec, machine: Machine = MK2) -> None:
    """Check the invariants of a plan."""
    for step in plan.steps:
        vectors = (
            [step.cycles, *(v.count for v in step.vertices)]
            if isinstance(step, Compute)
            else [step.bytes_in, step.bytes_out, step.fragments]
        )
        for vector in vectors:
            assert vector.shape == (machine.tiles,)
            assert vector.dtype == np.int64
            assert vector.min() >= 0
        if isinstance(step, Exchange):
            # what arrives was sent: once, though many may receive it
            assert 0 < step.bytes_out.sum() <= step.bytes_in.sum(), step.name
        elif step.cycles.any():
            assert ((step.vertices[0].count > 0) == (step.cycles > 0)).all(), step.name
    for held in plan.temporaries:
        assert held.bytes.shape == (machine.tiles,)
        assert held.bytes.min() >= 0
        assert 0 <= held.first <= held.last < len(plan.steps)
    assert len(plan.output_layouts) == len(spec.outputs)
    for out, layout in zip(spec.outputs, plan.output_layouts, strict=True):
        if out is not None and out.layout is None:
            assert layout is not None
            assert int(layout.bytes.sum()) == out.nbytes
            assert layout.bytes.min() >= 0
    for index, layout in plan.input_layouts:
        operand = spec.operands[index]
        assert operand.layout is None
        assert int(layout.bytes.sum()) == operand.storage_elements * operand.item_bytes


UNARY = ["relu", "gelu", "tanh", "sigmoid", "exp", "sqrt", "silu", "neg", "log", "erf", "abs"]
BINARY = ["add.Tensor", "mul.Tensor", "div.Tensor", "sub.Tensor", "maximum.default", "gt.Tensor"]


@given(SHAPES, DTYPES, st.sampled_from(UNARY))
@settings(max_examples=30, deadline=None)
def test_unary_operators_keep_the_layout_of_their_input(
    shape: tuple[int, ...], dtype: str, name: str
) -> None:
    x = tensor(*shape, dtype=dtype)
    x = tensor(*shape, dtype=dtype, layout=linear_layout(x, MK2.tiles))
    spec = op(f"aten.{name}.default", (x,), tensor(*shape, dtype=dtype))
    plan = lower(spec, MK2)
    check(plan, spec)
    assert plan.output_layouts == (x.layout,)
    assert not any(isinstance(step, Exchange) for step in plan.steps)


@given(SHAPES, st.integers(0, 15), DTYPES, st.sampled_from(BINARY))
@settings(max_examples=40, deadline=None)
def test_broadcast_operands_come_to_the_other(
    shape: tuple[int, ...], ones: int, dtype: str, name: str
) -> None:
    small = tuple(1 if ones >> d & 1 else n for d, n in enumerate(shape))
    x = tensor(*shape, dtype=dtype, layout=linear_layout(tensor(*shape, dtype=dtype), MK2.tiles))
    spec = op(f"aten.{name}", (x, tensor(*small, dtype=dtype)), tensor(*shape, dtype=dtype))
    plan = lower(spec, MK2)
    check(plan, spec)
    received = sum(int(step.bytes_in.sum()) for step in plan.steps if isinstance(step, Exchange))
    if small != shape:
        assert received >= tensor(*small, dtype=dtype).nbytes


def test_an_operand_that_lies_elsewhere_is_exchanged_and_one_that_lies_there_is_not() -> None:
    layout = linear_layout(tensor(64, 64), MK2.tiles)
    elsewhere = lower(
        op("aten.relu.default", (tensor(64, 64),), tensor(64, 64)), Machine(TARGETS["mk2"], 100)
    )
    assert elsewhere.output_layouts[0] is not None
    x, same, turned = (
        tensor(64, 64, layout=layout),
        tensor(64, 64, layout=layout),
        tensor(64, 64, strides=(1, 64), layout=layout),
    )
    near = lower(op("aten.add.Tensor", (x, same), tensor(64, 64)), MK2)
    far = lower(op("aten.add.Tensor", (x, turned), tensor(64, 64)), MK2)
    assert [type(step) for step in near.steps] == [Compute]
    assert [type(step) for step in far.steps] == [Exchange, Compute] * 2
    assert plan_cycles(far, MK2) > plan_cycles(near, MK2)


def test_in_place_update_leaves_the_layout_to_its_storage() -> None:
    layout = linear_layout(tensor(300), MK2.tiles)
    weight, grad = tensor(300, role="weight", layout=layout), tensor(300, layout=layout)
    spec = op("aten.addcdiv_.default", (weight, grad, grad), weight, value=-0.1)
    plan = lower(spec, MK2)
    assert plan.output_layouts == (None,)
    assert [step.name.split("/")[1] for step in plan.steps] == ["div", "scaled_add"]


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 90), DTYPES, st.floats(0.05, 0.6))
@settings(max_examples=40, deadline=None)
def test_products_conserve_bytes_and_stay_within_their_memory(
    m: int, k: int, n: int, dtype: str, proportion: float
) -> None:
    machine = Machine(TARGETS["mk2"], 1472, proportion=proportion)
    x, w = tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype, role="weight")
    spec = op(
        "aten.addmm.default",
        (tensor(n, dtype=dtype, role="weight"), x, w),
        tensor(m, n, dtype=dtype),
    )
    plan = lower(spec, machine)
    check(plan, spec, machine)
    live = [
        sum(t.bytes for t in plan.temporaries if t.first <= position <= t.last)
        for position in range(len(plan.steps))
    ]
    assert max(int(np.max(held)) for held in live) <= proportion * machine.target.bytes_per_tile


@given(
    SHAPES,
    st.data(),
    DTYPES,
    st.sampled_from(["sum.dim_IntList", "mean.dim", "amax.default", "argmax.default"]),
)
@settings(max_examples=60, deadline=None)
def test_reductions_over_any_dimensions(
    shape: tuple[int, ...], data: st.DataObject, dtype: str, name: str
) -> None:
    dims = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    out = tensor(*(n for d, n in enumerate(shape) if d not in dims), dtype=dtype)
    x = tensor(*shape, dtype=dtype)
    spec = op(f"aten.{name}", (x, dims), out)
    plan = lower(spec, MK2)
    check(plan, spec)
    if x.elements > 4 * out.elements:
        assert plan.flops >= x.elements - out.elements


NETWORK = {
    "softmax": lambda d: op(
        "aten._softmax.default", (tensor(30, 50, dtype=d), -1, False), tensor(30, 50, dtype=d)
    ),
    "log_softmax backward": lambda d: op(
        "aten._log_softmax_backward_data.default",
        (tensor(30, 50, dtype=d), tensor(30, 50, dtype=d), 1, d),
        tensor(30, 50, dtype=d),
    ),
    "max pool": lambda d: op(
        "aten.max_pool2d_with_indices.default",
        (tensor(4, 10, 24, 24, dtype=d), (2, 2), (2, 2)),
        tensor(4, 10, 12, 12, dtype=d),
        tensor(4, 10, 12, 12, dtype="int64"),
    ),
    "max pool backward": lambda d: op(
        "aten.max_pool2d_with_indices_backward.default",
        (
            tensor(4, 10, 12, 12, dtype=d),
            tensor(4, 10, 24, 24, dtype=d),
            (2, 2),
            (2, 2),
            (0, 0),
            (1, 1),
            False,
            tensor(4, 10, 12, 12, dtype="int64"),
        ),
        tensor(4, 10, 24, 24, dtype=d),
    ),
    "nll": lambda d: op(
        "aten.nll_loss_forward.default",
        (tensor(40, 10, dtype=d), tensor(40, dtype="int64"), None, 1, -100),
        tensor(dtype=d),
        tensor(dtype=d),
    ),
    "mse": lambda d: op(
        "aten.mse_loss.default", (tensor(40, 10, dtype=d), tensor(40, 10, dtype=d)), tensor(dtype=d)
    ),
    "layer norm": lambda d: op(
        "aten.native_layer_norm.default",
        (
            tensor(8, 16, 64, dtype=d),
            (64,),
            tensor(64, role="weight"),
            tensor(64, role="weight"),
            1e-5,
        ),
        tensor(8, 16, 64, dtype=d),
        tensor(8, 16, 1),
        tensor(8, 16, 1),
    ),
    "layer norm backward": lambda d: op(
        "aten.native_layer_norm_backward.default",
        (
            tensor(8, 16, 64, dtype=d),
            tensor(8, 16, 64, dtype=d),
            (64,),
            tensor(8, 16, 1),
            tensor(8, 16, 1),
            tensor(64, role="weight"),
            tensor(64, role="weight"),
            (True, True, True),
        ),
        tensor(8, 16, 64, dtype=d),
        tensor(64),
        tensor(64),
    ),
    "group norm": lambda d: op(
        "aten.native_group_norm.default",
        (
            tensor(4, 16, 8, 8, dtype=d),
            tensor(16, role="weight"),
            tensor(16, role="weight"),
            4,
            16,
            64,
            4,
            1e-5,
        ),
        tensor(4, 16, 8, 8, dtype=d),
        tensor(4, 4),
        tensor(4, 4),
    ),
    "batch norm": lambda d: op(
        "aten.native_batch_norm.default",
        (
            tensor(4, 16, 8, 8, dtype=d),
            *(tensor(16, role="weight") for _ in range(4)),
            True,
            0.1,
            1e-5,
        ),
        tensor(4, 16, 8, 8, dtype=d),
        tensor(16),
        tensor(16),
    ),
    "embedding": lambda d: op(
        "aten.embedding.default",
        (tensor(500, 32, dtype=d, role="weight"), tensor(4, 20, dtype="int64")),
        tensor(4, 20, 32, dtype=d),
    ),
    "embedding backward": lambda d: op(
        "aten.embedding_dense_backward.default",
        (tensor(4, 20, 32, dtype=d), tensor(4, 20, dtype="int64"), 500, -1, False),
        tensor(500, 32, dtype=d),
    ),
    "attention": lambda d: op(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        (
            tensor(2, 4, 32, 16, dtype=d),
            tensor(2, 4, 32, 16, dtype=d),
            tensor(2, 4, 32, 16, dtype=d),
            0.0,
            True,
        ),
        tensor(2, 4, 32, 16, dtype=d),
        tensor(2, 4, 32),
    ),
    "attention backward": lambda d: op(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        (*(tensor(2, 4, 32, 16, dtype=d) for _ in range(5)), tensor(2, 4, 32), 0.0, True),
        *(tensor(2, 4, 32, 16, dtype=d) for _ in range(3)),
    ),
    "lstm": lambda d: op(
        "aten.mkldnn_rnn_layer.default",
        (
            tensor(8, 2, 32, dtype=d),
            tensor(256, 32, dtype=d, role="weight"),
            tensor(256, 64, dtype=d, role="weight"),
            tensor(256, dtype=d, role="weight"),
            tensor(256, dtype=d, role="weight"),
            tensor(1, 2, 64, dtype=d),
            tensor(1, 2, 64, dtype=d),
            False,
            (),
            2,
            64,
            1,
            True,
            False,
            False,
            True,
        ),
        tensor(8, 2, 64, dtype=d),
        tensor(1, 2, 64, dtype=d),
        tensor(1, 2, 64, dtype=d),
        tensor(0, dtype=d),
    ),
    "prelu backward": lambda d: op(
        "aten._prelu_kernel_backward.default",
        (tensor(8, 8, dtype=d), tensor(8, 8, dtype=d), tensor(1, 8, role="weight", dtype=d)),
        tensor(8, 8, dtype=d),
        tensor(8, 8, dtype=d),
    ),
    "cat": lambda d: op(
        "aten.cat.default",
        ((tensor(8, 9, dtype=d), tensor(8, 7, dtype=d)), 1),
        tensor(8, 16, dtype=d),
    ),
    "pad": lambda d: op(
        "aten.constant_pad_nd.default", (tensor(8, 9, dtype=d), (1, 1)), tensor(8, 11, dtype=d)
    ),
    "repeat": lambda d: op(
        "aten.repeat.default", (tensor(8, 9, dtype=d), (3, 1)), tensor(24, 9, dtype=d)
    ),
    "dropout": lambda d: op(
        "aten.native_dropout.default",
        (tensor(64, 64, dtype=d), 0.1, True),
        tensor(64, 64, dtype=d),
        tensor(64, 64, dtype="bool"),
    ),
    "cast": lambda d: op(
        "aten._to_copy.default", (tensor(64, 64, dtype=d),), tensor(64, 64, dtype="float16")
    ),
    "zeros": lambda d: op("aten.zeros.default", ((64, 64),), tensor(64, 64, dtype=d)),
    "bmm": lambda d: op(
        "aten.bmm.default",
        (tensor(12, 20, 16, dtype=d), tensor(12, 16, 20, dtype=d)),
        tensor(12, 20, 20, dtype=d),
    ),
    "scatter add": lambda d: op(
        "aten.scatter_add.default",
        (tensor(50, 8, dtype=d), 0, tensor(90, 8, dtype="int64"), tensor(90, 8, dtype=d)),
        tensor(50, 8, dtype=d),
    ),
    "sort": lambda d: op(
        "aten.topk.default",
        (tensor(8, 100, dtype=d), 5),
        tensor(8, 5, dtype=d),
        tensor(8, 5, dtype="int64"),
    ),
    "cumsum": lambda d: op(
        "aten.cumsum.default", (tensor(8, 100, dtype=d), 1), tensor(8, 100, dtype=d)
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", NETWORK)
def test_operators_of_networks_keep_the_invariants(name: str, dtype: str) -> None:
    spec = NETWORK[name](dtype)
    plan = lower(spec, MK2)
    check(plan, spec)
    assert plan.steps
    assert not plan.estimated


def test_compound_operators_are_several_compute_sets() -> None:
    for name in ("softmax", "layer norm", "batch norm", "layer norm backward"):
        plan = lower(NETWORK[name]("float32"), MK2)
        assert sum(isinstance(step, Compute) for step in plan.steps) >= 5, name


def test_a_recurrent_layer_takes_its_time_steps_one_after_another() -> None:
    plan = lower(NETWORK["lstm"]("float32"), MK2)
    names = [step.name for step in plan.steps]
    # of an LSTM one product of inputs and state a step, as popnn without preCalcWeights
    assert names.count("units/convolve") == names.count("write output") == 8


def test_a_recurrent_layer_keeps_what_its_backward_needs_at_each_step() -> None:
    """A GRU of 8 steps keeps its gates and the candidate's recurrent part.

    These are 4 x 64 elements for each of 2 samples.
    """
    x, h = tensor(8, 2, 32), tensor(2, 64)
    weights = (
        tensor(192, 32, role="weight"),
        tensor(192, 64, role="weight"),
        tensor(192),
        tensor(192),
    )
    outputs = (tensor(8, 2, 64), tensor(2, 64), tensor(0), tensor(8, 2, 256))
    trained = lower(op("ipu_rnn.gru.default", (x, *weights, h, None, True), *outputs), MK2)
    assert sum(step.name == "keep" for step in trained.steps) == 8
    assert trained.output_layouts[3] is not None
    assert trained.output_layouts[3].bytes.sum() == 8 * 2 * 256 * 4
    only = lower(
        op("ipu_rnn.gru.default", (x, *weights, h, None, False), *outputs[:3], tensor(8, 2, 0)), MK2
    )
    assert [step.name for step in only.steps] == [
        step.name for step in trained.steps if step.name != "keep"
    ]


def test_a_recurrent_layer_transposes_its_weights_once() -> None:
    """The backward needs them transposed at all 8 time steps, and keeps them until the last."""
    state = tensor(1, 2, 64)
    operands = (
        tensor(8, 2, 32),
        tensor(256, 32, role="weight"),
        tensor(256, 64, role="weight"),
        tensor(256),
        tensor(256),
        state,
        state,
        tensor(8, 2, 64),
        state,
        state,
        tensor(8, 2, 64),
        state,
        state,
    )
    outputs = (operands[0], *operands[1:5], state, state)
    plan = lower(op("aten.mkldnn_rnn_layer_backward.default", operands, *outputs), MK2)
    names = [step.name for step in plan.steps]
    turned = [k for k, name in enumerate(names) if name == "grad recurrent/transpose inputs"]
    last = max(k for k, name in enumerate(names) if name == "grad recurrent/convolve")
    assert names.count("grad recurrent/convolve") == 8 and turned == [0]
    assert any(
        t.first == 0 and t.last >= last
        for t in plan.temporaries
        if t.name == "grad recurrent/transpose inputs"
    )


def test_an_expanded_operand_is_sent_once() -> None:
    x = tensor(64, 100, layout=linear_layout(tensor(64, 100), MK2.tiles))
    row = tensor(100, layout=linear_layout(tensor(100), MK2.tiles))
    wide = Operand((64, 100), "float32", (0, 1), 0, 100, row.layout)
    plan = lower(op("aten.mul.Tensor", (x, wide), tensor(64, 100)), MK2)
    sent = [int(step.bytes_out.sum()) for step in plan.steps if isinstance(step, Exchange)]
    assert sent == [row.nbytes]


@pytest.mark.parametrize("name", ["_foreach_mul_.Scalar", "_fused_adamw_.default"])
def test_updates_of_lists_run_each_tensor_where_it_lies(name: str) -> None:
    sizes = (300, 5000, 7)
    placed = tuple(tensor(n, layout=linear_layout(tensor(n), MK2.tiles)) for n in sizes)
    lists = (placed,) * (1 if "foreach" in name else 4)
    plan = lower(op(f"aten.{name}", (*lists, 0.5)), MK2)
    assert all(isinstance(step, Compute) for step in plan.steps)
    assert plan.flops >= sum(sizes)


def test_equal_operators_share_one_plan() -> None:
    def spec() -> OpSpec:
        return op("aten.relu.default", (tensor(7, 11),), tensor(7, 11))

    assert lower(spec(), MK2) is lower(spec(), MK2)
    assert lower(spec(), MK2) is not lower(spec(), Machine(TARGETS["mk2"], 1440))


def test_an_unknown_operator_says_how_to_register_one() -> None:
    with pytest.raises(LoweringError, match=r"mylib\.shuffle\.default.*lowering\("):
        lower(op("mylib.shuffle.default", (tensor(4),), tensor(4)), MK2)


def test_the_fallback_is_marked_as_estimated() -> None:
    spec = op("mylib.shuffle.default", (tensor(400),), tensor(400))
    plan = generic(spec, MK2)
    check(plan, spec)
    assert plan.estimated


def test_a_user_can_register_an_operator() -> None:
    @lowering("mylib.scale")
    def scale(spec: OpSpec, machine: Machine) -> Plan:
        build = Builder(spec, machine)
        spread = build.spread(0)
        build.map("scale", "mul_scalar", spread.elements, "float32")
        return build.plan((spread.layout("float32"),))

    spec = op("mylib.scale.default", (tensor(400),), tensor(400))
    check(lower(spec, MK2), spec)


def test_views_are_free() -> None:
    assert is_view("aten.t.default")
    assert is_view("aten.slice.Tensor")
    assert not is_view("aten.clone.default")
    plan = lower(op("aten.view.default", (tensor(4, 4), (16,)), tensor(16)), MK2)
    assert plan.steps == ()
    assert plan.output_layouts == (None,)


@given(st.integers(0, 10**7), st.lists(st.integers(0, 50), min_size=1, max_size=60))
def test_apportioning_sums_exactly_and_leaves_out_those_without_share(
    total: int, shares: list[int]
) -> None:
    share = np.array(shares)
    got = apportion(total, share)
    assert got.min() >= 0
    assert int(got.sum()) == (total if share.any() else 0)
    assert (got[share == 0] == 0).all()


@given(st.integers(1, 10**6), st.integers(1, 200), st.sampled_from([1, 2, 8, 16]))
def test_splits_are_ragged_only_at_the_end(extent: int, parts: int, grain: int) -> None:
    for split in (blocks(extent, parts, grain), split_evenly(extent, parts, grain)):
        assert int(split.sum()) == extent
        assert split.min() >= 0
        assert np.count_nonzero(split % grain) <= 1


@given(st.integers(1, 10**6), st.sampled_from([1, 2, 4]), st.integers(1, 1472))
def test_linear_mapping_keeps_every_element(elements: int, item_bytes: int, tiles: int) -> None:
    share = linear(elements, item_bytes, tiles).elements
    assert int(share.sum()) == elements
    used = np.count_nonzero(share)
    assert used == 1 or elements * item_bytes // used >= 100


def test_a_tile_touches_as_many_outputs_as_its_box_is_wide() -> None:
    held = np.array([0, 10, 100, 160])
    rows, columns = (True, False), (False, True)
    x = tensor(50, 10)
    assert touched(x, rows, held, 0).tolist() == [0, 1, 10, 16]
    assert touched(x, columns, held, 0).tolist() == [0, 10, 10, 10]
    assert touched(x, columns, held, 5).tolist() == [0, 5, 5, 5]


def test_every_vertex_type_has_code_and_state() -> None:
    plan = lower(NETWORK["bmm"]("float16"), MK2)
    types = [v.type for step in plan.steps if isinstance(step, Compute) for v in step.vertices]
    assert any(t.startswith("poplin::ConvPartial1x1Out<half,half") for t in types)
    for vertex_type in types:
        code, state = vertex_info(vertex_type)
        assert code > 0
        assert state > 0


@pytest.mark.parametrize(
    "name", ["aten.div.Scalar", "aten.clone.default", "aten.ones_like.default"]
)
def test_a_result_that_repeats_one_element_lies_on_all_tiles(name: str) -> None:
    """A mean's gradient is an expanded scalar.

    What is computed from it must not stay on the scalar's tile.
    """
    scalar = linear(1, 4, 1472).layout("float32")
    repeated = Operand((1472, 64), "float32", (0, 0), 0, 1, scalar)
    args = (repeated, 2.0) if "div" in name else (repeated,)
    layout = lower(op(name, args, tensor(1472, 64)), MK2).output_layouts[0]
    assert layout is not None
    assert layout.bytes.tolist() == [64 * 4] * 1472


def test_a_gru_adds_its_weights_gradients_at_each_step() -> None:
    """Two products a step back and two for the weights, as popnn; an LSTM makes one of the first.

    What the forward kept of a step is cut out of its sequence first.
    """
    x, h = tensor(8, 2, 32), tensor(2, 64)

    def back(gates: int) -> list[str]:
        weights = (
            tensor(gates * 64, 32, role="weight"),
            tensor(gates * 64, 64, role="weight"),
            tensor(gates * 64),
            tensor(gates * 64),
        )
        name = {3: "ipu_rnn.gru_backward", 4: "ipu_rnn.lstm_backward"}[gates]
        operands = (x, *weights, h, h, tensor(8, 2, 64), h, h, tensor(8, 2, 64), h, h)
        spec = op(f"{name}.default", operands, x, *weights, h, h)
        plan = lower(spec, MK2)
        return [step.name for step in plan.steps]

    gru, lstm = back(3), back(4)
    assert gru.count("slice what the forward kept") == lstm.count("write gradients") == 8
    assert gru.count("grad input/convolve") == gru.count("grad input weights/convolve") == 8
    assert gru.count("add recurrent weights") == 8
    assert not lstm.count("grad input/convolve") and lstm.count("grad recurrent/convolve") == 8
    assert lstm.count("grad input weights/convolve") == 1
