"""Convolutions against measurements on GC2 [JIA], and invariants of their plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipu_exec.lowering import costs, lower
from ipu_exec.lowering.durations import plan_cycles
from ipu_exec.lowering.layouts import spread_of
from ipu_exec.lowering.plan import Compute, OpSpec
from ipu_exec.lowering.products import amp, conv, product_search
from ipu_exec.lowering.products.conv import Geometry, forward_problem, weight_gradient_problem
from ipu_exec.lowering.products.product_search import search
from ipu_exec.lowering.products.product_shares import share_out
from ipu_exec.machine import TARGETS, Machine
from tests.operands import MK2, op, tensor
from tests.paths import DATA

JIA = [
    [float(v) for v in line.split(",")]
    for line in (DATA / "jia_conv.csv").read_text().splitlines()
    if line and line[0].isdigit()
]


def convolution(
    batch: int,
    channels: int,
    field: int,
    outs: int,
    kernel: int,
    stride: int,
    padding: int,
    groups: int,
    dtype: str,
) -> OpSpec:
    size = (field + 2 * padding - kernel) // stride + 1
    data = tensor(batch, channels, field, field, dtype=dtype)
    weight = tensor(outs, channels // groups, kernel, kernel, dtype=dtype, role="weight")
    args = (data, weight, None, (stride, stride), (padding, padding), (1, 1), False, (0, 0), groups)
    return op("aten.convolution.default", args, tensor(batch, outs, size, size, dtype=dtype))


def test_convolutions_land_near_published_measurements() -> None:
    machine = Machine(TARGETS["mk1"], 1216)
    ratios = []
    for kernel, field, ins, outs, batch, published in JIA:
        k, f = int(kernel), int(field)
        spec = convolution(int(batch), int(ins), f, int(outs), k, 1, k // 2, 1, "float16")
        seconds = machine.target.seconds(plan_cycles(lower(spec, machine), machine))
        flops = 2 * batch * ins * outs * k * k * f * f
        ratios.append(np.log(flops / seconds / 1e12 / published))
    print(
        f"JIA convolutions: median {np.exp(np.median(ratios)):.3f}, worst"
        f" {np.exp(np.max(np.abs(ratios))):.3f}"
    )
    assert len(ratios) == 32
    assert np.median(np.abs(ratios)) < np.log(1.25)
    assert np.max(np.abs(ratios)) < np.log(1.6)


@given(
    st.integers(1, 8),
    st.integers(1, 40),
    st.integers(4, 20),
    st.integers(1, 40),
    st.integers(1, 4),
    st.integers(1, 2),
    st.sampled_from(["float16", "float32"]),
    st.sampled_from(["nx1", "vmac", "1x1"]),
)
@settings(max_examples=40, deadline=None)
def test_tiles_share_exactly_the_work(
    batch: int, ins: int, field: int, outs: int, kernel: int, stride: int, dtype: str, method: str
) -> None:
    size = (field - kernel) // stride + 1
    shape = conv.geometry(
        (batch, ins, field, field),
        (outs, ins, kernel, kernel),
        (batch, outs, size, size),
        (stride,) * 2,
        (1, 1),
        1,
    )
    problem = conv.forward_problem(shape)
    if method == "1x1":
        problem = conv.expanded(problem, batch * ins * field * field)
    splits = search(problem, MK2, dtype, (method,))
    share = share_out(problem, MK2, amp.unit_for(MK2, dtype), splits)
    assert int(share.macs(problem).sum()) == batch * size * size * ins * outs * kernel * kernel
    assert splits.tiles <= MK2.tiles


@pytest.mark.parametrize("groups", [1, 4, 32])
def test_gradients_of_all_three_are_lowered(groups: int) -> None:
    grad = tensor(4, 32, 14, 14)
    data, weight = tensor(4, 32, 28, 28), tensor(32, 32 // groups, 3, 3, role="weight")
    args = (
        grad,
        data,
        weight,
        (32,),
        (2, 2),
        (1, 1),
        (1, 1),
        False,
        (0, 0),
        groups,
        (True, True, True),
    )
    plan = lower(
        op("aten.convolution_backward.default", args, tensor(4, 32, 28, 28), weight, tensor(32)),
        MK2,
    )
    flops = {step.name: step.flops for step in plan.steps if isinstance(step, Compute)}
    macs = 4 * 14 * 14 * 32 * (32 // groups) * 9
    assert flops["grad input/convolve"] == 2 * macs
    assert flops["grad weight/convolve"] == 2 * macs
    assert [int(layout.bytes.sum()) for layout in plan.output_layouts if layout] == [
        4 * 32 * 28 * 28 * 4,
        32 * (32 // groups) * 9 * 4,
        32 * 4,
    ]


def test_gradients_not_asked_for_cost_nothing() -> None:
    grad, data, weight = tensor(4, 8, 8, 8), tensor(4, 3, 8, 8), tensor(8, 3, 1, 1, role="weight")
    args = (
        grad,
        data,
        weight,
        None,
        (1, 1),
        (0, 0),
        (1, 1),
        False,
        (0, 0),
        1,
        (False, True, False),
    )
    plan = lower(op("aten.convolution_backward.default", args, None, weight, None), MK2)
    assert all(step.name.startswith("grad weight") for step in plan.steps)


def test_depthwise_convolution_does_not_pay_for_empty_channels() -> None:
    depthwise = lower(convolution(4, 64, 28, 64, 3, 1, 1, 64, "float16"), MK2)
    dense = lower(convolution(4, 64, 28, 64, 3, 1, 1, 1, "float16"), MK2)
    assert plan_cycles(depthwise, MK2) < plan_cycles(dense, MK2)
    steps = [step for step in depthwise.steps if step.name.startswith("conv/convolve")]
    assert sum(step.flops for step in steps) == 2 * 4 * 64 * 28 * 28 * 9


def test_tiles_that_share_a_kernel_have_all_its_rows_between_them() -> None:
    """As poplibs' gradients of weights, whose kernel is the outgoing gradient's field."""
    shape = Geometry(4, 1, 64, 64, (56, 56), (56, 56), (3, 3), (1, 1), (1, 1))
    problem = weight_gradient_problem(shape)
    best = search(problem, MK2, "float16", ("nx1",))
    assert best.kernel > 1
    for parts in (best.kernel, 5):  # of 56 rows: alike, and not
        share = share_out(
            problem, MK2, amp.unit_for(MK2, "float16"), replace(best, kernel=parts, ins=1)
        )
        assert share.macs(problem).sum() == problem.macs
        one = (share.field_index == 0) & (share.out_index == 0)
        assert share.taps[one].sum() == problem.taps


def test_transposed_convolution_has_the_work_of_the_one_it_transposes() -> None:
    data, weight = tensor(2, 16, 8, 8), tensor(16, 8, 2, 2, role="weight")
    args = (data, weight, None, (2, 2), (0, 0), (1, 1), True, (0, 0), 1)
    plan = lower(op("aten.convolution.default", args, tensor(2, 8, 16, 16)), MK2)
    assert plan.flops >= 2 * 2 * 64 * 16 * 8 * 4
    assert plan.output_layouts[0] is not None
    assert int(plan.output_layouts[0].bytes.sum()) == 2 * 8 * 256 * 4


def test_a_bias_is_added_where_the_outputs_lie() -> None:
    data, weight, bias = (
        tensor(2, 16, 8, 8),
        tensor(8, 16, 3, 3, role="weight"),
        tensor(8, role="weight"),
    )
    args = (data, weight, bias, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    plan = lower(op("aten.convolution.default", args, tensor(2, 8, 8, 8)), MK2)
    assert plan.steps[-1].name == "conv/add bias"
    assert set(dict(plan.input_layouts)) == {0, 1, 2}
    # popops writes it out for fp32 ([PL, lib/popops/ElementWise.cpp]): as large as the result
    written = next(one for one in plan.temporaries if one.name == "conv/broadcast bias")
    assert int(written.bytes.sum()) == 2 * 8 * 64 * 4
    half = [replace(one, dtype="float16") for one in (data, weight, bias)]
    args = (*half, *args[3:])
    plan = lower(op("aten.convolution.default", args, tensor(2, 8, 8, 8, dtype="float16")), MK2)
    assert not any("broadcast bias" in one.name for one in plan.temporaries)


def test_fp32_partials_of_fp16_operands_have_half_the_outputs() -> None:
    """Only fp16 partials or fp32 operands have sixteen units.

    See hasAssembly in [PL, lib/poplin/codelets/ConvPartial1x1Out.cpp].
    """
    outputs = {
        p: amp.unit_for(Machine(TARGETS["bow"], 1472, partials=p), "float16").out_group
        for p in ("", "float16")
    }
    assert outputs == {"": 8, "float16": 16}
    assert amp.unit_for(Machine(TARGETS["bow"], 1472), "float32").out_group == 16
    assert amp.unit_for(Machine(TARGETS["mk1"], 1216, partials="float32"), "float16").out_group == 8


def backward(
    data: tuple[int, ...],
    weight: tuple[int, ...],
    out: tuple[int, ...],
    stride: int,
    mask: tuple[bool, ...],
    groups: int = 1,
) -> OpSpec:
    """The gradients of a convolution without padding, in fp16."""
    grad, x, w = (tensor(*shape, dtype="float16") for shape in (out, data, weight))
    arguments = (None, (stride, stride), (0, 0), (1, 1), False, (0, 0), groups, mask)
    gradients = tuple(
        o if m else None for o, m in zip((x, w, tensor(weight[0])), mask, strict=True)
    )
    return op("aten.convolution_backward.default", (grad, x, w, *arguments), *gradients)


def test_the_gradient_of_a_kernel_as_wide_as_the_field_multiplies_no_padding() -> None:
    """A 5 x 200 kernel over 15 x 200 has 11 outputs: 1.58 G multiply-accumulates.

    1,472 tiles do these in 34,000 cycles at 32 per cycle. Poplibs' benchmark
    conv_5x200_1_in_100_out_bs1440 takes 277,606 for this and the two other passes.
    """
    spec = backward(
        (1440, 1, 15, 200), (100, 1, 5, 200), (1440, 100, 11, 1), 1, (True, False, False)
    )
    plan = lower(spec, MK2)
    convolve = next(step for step in plan.steps if step.name.endswith("convolve"))
    assert isinstance(convolve, Compute) and 33_000 < convolve.cycles.max() < 120_000
    assert plan_cycles(plan, MK2) < 200_000


def test_the_gradient_of_a_strided_kernel_of_one_element_is_spread_out_afterwards() -> None:
    """It costs as much as the same outputs without a stride, plus the zeros between them."""
    strided = lower(
        backward((4, 512, 28, 28), (256, 512, 1, 1), (4, 256, 14, 14), 2, (True, False, False)), MK2
    )
    dense = lower(
        backward((4, 512, 14, 14), (256, 512, 1, 1), (4, 256, 14, 14), 1, (True, False, False)), MK2
    )
    last = strided.steps[-1]
    assert isinstance(last, Compute) and last.name.endswith("dilate")
    assert [step.name for step in strided.steps[:-1]] == [step.name for step in dense.steps]
    assert plan_cycles(strided, MK2) == plan_cycles(dense, MK2) + last.cycles.max()
    layout = strided.output_layouts[0]
    assert (
        layout is not None
        and spread_of(tensor(4, 512, 28, 28, dtype="float16", layout=layout), 1472).elements.sum()
        == 4 * 512 * 28 * 28
    )


def test_the_weight_gradient_of_groups_shares_out_the_rows_of_the_field() -> None:
    """A depthwise gradient has few outputs, each a sum over 56 x 56.

    Unless the rows were shared out, one tile would add up all of them.
    """
    spec = backward(
        (4, 128, 58, 58), (128, 1, 3, 3), (4, 128, 56, 56), 1, (False, True, False), 128
    )
    convolve = next(step for step in lower(spec, MK2).steps if step.name.endswith("convolve"))
    assert isinstance(convolve, Compute) and "VerticalMac" in convolve.vertices[0].type
    assert (convolve.cycles > 0).sum() > 1_000


def test_vertical_mac_as_poplibs_estimates_it() -> None:
    """With 9 outputs of a 2 x 112 kernel and fp32 partials, the cycles are Poplibs' estimate.

    A worker has 168 of the 1,008 products of a row, in two pieces.
    """
    unit = amp.unit_for(Machine(TARGETS["mk2"], 1472, partials="float32"), "float16")
    worker = 19 + 2 * (13 * 2 + 2 * 168)
    assert amp.vmac_cycles(unit, 9, 2, 112, 1, 1) == 101 + (4 + 18) + 32 + (24 + 6 * worker) + (
        9 + 19 * 2
    )


def test_slic_takes_four_channels_at_once() -> None:
    """There are 3 rows of 20 outputs, and 3 windows of 1 x 3.

    Each worker takes a row, going over the input twice with fp32 partials and once with fp16 ones.
    """
    for partials, row in (("float32", 11 + 3 + 2 * 29), ("float16", 11 + 30)):
        unit = amp.unit_for(Machine(TARGETS["mk2"], 1472, partials=partials), "float16")
        assert amp.slic_cycles(unit, 3, 20, 3, 3, 2) == 28 + 2 * (21 + 3 * (122 + 6 * (17 + row)))


def test_groups_are_put_together_to_fill_the_unit() -> None:
    """SLIC is for fp16: AMP does a depthwise convolution of fp32, with zeros between groups."""
    for name in ("mk1", "mk2"):
        on = Machine(TARGETS[name], 1216)
        assert "slic" in lower(convolution(4, 32, 112, 32, 3, 1, 1, 32, "float16"), on).note
        depthwise = lower(convolution(4, 32, 112, 32, 3, 1, 1, 32, "float32"), on)
        assert "nx1" in depthwise.note
        assert depthwise.flops == 2 * 4 * 32 * 112 * 112 * 9
    assert [p.groups for p in conv.combined(conv.Problem(6, 10, 10, 4, 4, (3, 3)), "float16")] == [
        3
    ]


@pytest.mark.parametrize(
    ("dtype", "field", "proportion", "within"),
    [
        ("float16", (302, 499), 0.1, True),
        ("float32", (302, 499), 0.1, True),
        ("float16", (1024, 768), 0.1, False),
        ("float16", (1024, 768), 0.2, True),
        ("float32", (1024, 768), 0.1, False),
        ("float32", (1024, 768), 0.2, True),
    ],
)
def test_a_plan_keeps_the_memory_proportion_where_it_was_published_to(
    dtype: str, field: tuple[int, int], proportion: float, within: bool
) -> None:
    """Four channels, 3 x 3, on GC2 [LBM]: below some proportion the vendor's plan no longer fitted.

    The planner of then took the split with the least memory, 27 times slower; since June 2020 it
    doubles the bound instead ([PL, lib/poplin/ConvPlan.cpp], minimizeMemory), as ours does.
    """
    problem = forward_problem(Geometry(1, 1, 4, 4, field, field, (3, 3), (1, 1), (1, 1)))
    usual = Machine(TARGETS["mk1"], 1216)
    less = replace(usual, proportion=proportion)
    best = product_search.search(problem, usual, dtype, ("nx1",))
    bound = proportion * usual.target.bytes_per_tile
    fitting = product_search._best(problem, less, dtype, "nx1", 1, bound)
    assert (best.cycles in [splits.cycles for splits in fitting]) == within
    assert product_search.search(problem, less, dtype, ("nx1",)).cycles == best.cycles


def test_a_field_of_one_row_is_cut_into_as_many_columns_as_fit() -> None:
    """wav2vec 2.0's second convolution: 8 x 3,199 outputs in one row each, and 512 channels."""
    field = (1, 6399)
    shape = Geometry(8, 1, 512, 512, field, (1, 3199), (1, 3), (1, 2), (1, 1))
    machine = Machine(TARGETS["mk2"], 1472, 0.2)
    best = product_search.search(forward_problem(shape), machine, "float16", ("nx1",))
    assert best.cols > 16
    bound = 0.2 * TARGETS["mk2"].bytes_per_tile
    fitting = product_search._best(
        forward_problem(shape), machine, "float16", "nx1", best.serial, bound
    )
    assert best in fitting


def test_the_memory_bound_doubles_until_it_is_twice_a_tile() -> None:
    bounds = list(product_search.memory_bounds(Machine(TARGETS["mk2"], 1472, 0.1)))
    tile = TARGETS["mk2"].bytes_per_tile
    assert bounds[:-1] == pytest.approx([tile * 0.1 * 2**k for k in range(6)])
    assert bounds[-1] == float("inf")


@pytest.mark.parametrize(("atom", "cycles"), [(32, 1038), (4, 3787), (2, 5408), (6, 5408)])
def test_putting_in_order_takes_poplibs_regression(atom: int, cycles: int) -> None:
    """1,024 bytes: 587 and 451, 3,200 or 5,271 cycles; nothing for nothing."""
    nbytes = np.array([1024, 0])
    assert costs.transform_cycles(nbytes, atom).tolist() == [cycles, 0]


def gradient_of_depthwise(stride: int) -> int:
    """Cycles of the gradient of an input of 256 channels, 28 x 28, that SLIC computes."""
    outs = 28 // stride
    grad, data = (
        tensor(4, 256, outs, outs, dtype="float16"),
        tensor(4, 256, 28, 28, dtype="float16"),
    )
    weight = tensor(256, 1, 3, 3, dtype="float16", role="weight")
    args = (grad, data, weight, None, (stride,) * 2, (1, 1), (1, 1), False, (0, 0), 256)
    mask = (True, False, False)
    plan = lower(op("aten.convolution_backward.default", (*args, mask), data, None, None), MK2)
    assert "slic" in plan.note
    steps = [step for step in plan.steps if step.name.endswith("/convolve")]
    return int(sum(step.cycles.max() for step in steps if isinstance(step, Compute)))


def test_slic_multiplies_the_zeros_that_a_stride_leaves() -> None:
    """Its inputs are padded out, so that a stride saves it nothing."""
    assert gradient_of_depthwise(2) == gradient_of_depthwise(1)


@pytest.mark.parametrize(("executed", "worker"), [(True, 113), (False, 105)])
def test_a_row_in_which_a_share_begins_is_two_pieces(executed: bool, worker: int) -> None:
    """Of 5 x 16 outputs the third worker has 26 to 39: 6 of one row and 8 of the next."""
    unit = replace(amp.unit_for(MK2, "float16"), executed=executed)
    # 9 + (36 + 4 x 3) + (36 + 4 x 5); 17 + (3 + 34 + 4 x 3 - 9) + (3 + 34 + 4 x 5 - 9)
    cycles = amp.conv_nx1_cycles(unit, 5, 16, 1, 3, 1, 1)
    zeroing = 80 * 8 * 4 // 8
    assert cycles == 109 + 16 + 14 + 14 + 14 + 3 * (12 + 32 + 15 + 3 + 6 * worker) + zeroing
