"""Plans of single operators against arithmetic done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ipu_exec.lowering import lower
from ipu_exec.lowering.distance import pair_cycles
from ipu_exec.lowering.layouts import linear_layout
from ipu_exec.lowering.loss import ctc_cycles
from ipu_exec.lowering.plan import Compute, Exchange, Plan
from ipu_exec.lowering.reduce import reduce_cycles
from ipu_exec.lowering.resample import taps_of
from ipu_exec.lowering.shape import bitonic_steps
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, op, plan_cycles, tensor

FULL = 1472 * 32  # fp32: 32 elements, 128 bytes, on each tile; 6 elements a worker at most


def computes(plan: Plan) -> dict[str, Compute]:
    return {step.name: step for step in plan.steps if isinstance(step, Compute)}


def exchanges(plan: Plan) -> dict[str, Exchange]:
    return {step.name: step for step in plan.steps if isinstance(step, Exchange)}


def test_an_expanded_gradient_is_written_out_over_all_tiles_before_it_is_multiplied() -> None:
    """The gradient of a sum is one element on one tile.

    Each tile gets it (4 bytes) and copies it to its share.
    """
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
    assert plan_cycles(plan, MK2) < 10_000


def test_lookups_in_a_small_table_are_shared_by_copies_of_it() -> None:
    """Token types: 2 rows of 768 halves lie on 24 tiles.

    1,472 // 24 = 61 copies take 4,096 lookups.
    """
    table, indices, out = (
        tensor(2, 768, dtype="float16"),
        tensor(4096, dtype="int64"),
        tensor(4096, 768, dtype="float16"),
    )
    spec = op("aten.embedding.default", (table, indices), out)
    plan = lower(spec, MK2)
    check(plan, spec)
    assert plan.note == "61 copies"
    sent = exchanges(plan)
    assert sent["copies of the table"].bytes_in.sum() == 60 * 2 * 768 * 2  # all but the first
    assert sent["indices"].bytes_in.max() == math.ceil(4096 / 61) * 4
    # a tile has 64 halves (128 bytes) of a row, and finds 4096 * 768 / 1464 / 64 = 33.6 of them
    assert computes(plan)["embedding/slice"].cycles.max() == 6 * (30 + 6 * (19 + 2 * 16) + 8 * 6)


@pytest.mark.parametrize(
    ("rows", "width", "lookups", "several"),
    [
        (1000, 200, 18000, True),
        (1000, 200, 40000, True),
        (100000, 200, 1440, False),
        (100000, 200, 11520, False),
        (1000, 1000, 1000, False),
    ],
)
def test_tables_are_copied_where_the_vendors_planner_copies_them(
    rows: int, width: int, lookups: int, several: bool
) -> None:
    """Its own tests of the lookup split [PL, tests/popops/DynamicSlicePlanningTest.cpp]."""
    table, out = tensor(rows, width, dtype="float16"), tensor(lookups, width, dtype="float16")
    spec = op("aten.embedding.default", (table, tensor(lookups, dtype="int64")), out)
    plan = lower(spec, MK2)
    check(plan, spec)
    assert ("copies" in plan.note) == several


def test_the_gradient_of_a_sort_does_not_send_every_index_to_every_tile() -> None:
    x, where = tensor(16, 4096), tensor(16, 4096, dtype="int64")
    spec = op("aten.scatter.src", (x, 1, where, x), x)
    plan = lower(spec, MK2)
    check(plan, spec)
    assert exchanges(plan)["indices"].bytes_in.max() < 16 * 4096 * 4 / 10
    assert computes(plan)["scatter/take marked"].cycles.max() > 0  # what no copy wrote stays


def test_gradients_of_a_small_table_are_added_up_from_copies() -> None:
    gradient, indices, table = tensor(4096, 768), tensor(4096, dtype="int64"), tensor(2, 768)
    spec = op("aten.embedding_dense_backward.default", (gradient, indices, 2, -1, False), table)
    plan = lower(spec, MK2)
    check(plan, spec)
    copies = int(plan.note.split()[0])
    assert copies > 1
    assert (
        exchanges(plan)["embedding_dense_backward/partials"].bytes_in.sum() == copies * table.nbytes
    )
    assert (
        plan_cycles(plan, MK2) < 40_000
    )  # 4096 * 768 / 48 elements a tile, 4 bytes a cycle, would be 65,536 alone
    written = op("aten.index_put.default", (table, (indices,), gradient), table)
    assert lower(written, MK2).note == ""  # what is written has one place


def test_the_steps_of_a_bitonic_sort() -> None:
    """Batcher's network has log n (log n + 1) / 2 steps.

    For the best 5 of 100 sequences of 8 are sorted and merged.
    """
    assert len(bitonic_steps(1024, 1024)) == 10 * 11 // 2
    assert bitonic_steps(4, 4) == [(4, 1), (4, 2), (4, 1)]
    assert bitonic_steps(1, 1) == []
    best = bitonic_steps(100, 5)
    assert len(best) == 6 + 4 * 4  # log2 8 = 3: 1 + 2 + 3, then 4 merges that sort again
    assert [present for present, _ in best[6::4]] == [
        100,
        52,
        28,
        16,
    ]  # 12 pairs of 8 and a rest of 4, 3 and 4, ...
    assert best[-1] == (8, 1)


@pytest.mark.parametrize(("dim", "steps"), [(0, 6 * 7 // 2), (1, 10 * 11 // 2)])
def test_sorting_goes_by_the_dimension_and_over_all_tiles(dim: int, steps: int) -> None:
    x, where = tensor(64, 1000), tensor(64, 1000, dtype="int64")
    spec = op("aten.sort.default", (x, dim, False), x, where)
    plan = lower(spec, MK2)
    check(plan, spec)
    compared = [s for s in plan.steps if isinstance(s, Compute) and s.name.endswith("/compare")]
    assert len(compared) == steps
    # 32,000 pairs on 1,472 tiles: 22 a tile at the most, 4 a worker
    assert all(s.cycles.max() == 6 * (17 + 20 * 4) for s in compared)


def test_a_cumulative_sum_is_a_product_with_a_triangle() -> None:
    x = tensor(64, 96)
    spec = op("aten.cumsum.default", (x, 1), x)
    plan = lower(spec, MK2)
    check(plan, spec)
    assert computes(plan)["cumsum/convolve"].flops == 2 * 64 * 96 * 96
    assert plan.constants is not None and plan.constants.sum() >= 96 * 96 * 4
    for long in (tensor(2, 100_000), tensor(64, 96, dtype="int64")):
        scanned = op("aten.cumsum.default", (long, 1), long)
        check(lower(scanned, MK2), scanned)
        assert "scan on tile" in computes(lower(scanned, MK2))


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


def test_a_row_under_a_mask_is_a_select() -> None:
    """wav2vec2's masked frames: one learned vector where the mask [batch, time] says so."""
    x, mask, row = tensor(32, 46, 32), tensor(32, 46, dtype="bool"), tensor(32)
    x = replace(x, layout=linear_layout(x, 1472))
    spec = op("aten.index_put_.default", (x, (mask,), row), x)
    plan = lower(spec, MK2)
    check(plan, spec)
    selected = computes(plan)
    assert list(selected) == ["index_put_/select"]
    assert selected["index_put_/select"].cycles.max() == 20 + 6 * (17 + 5 * 6)
    assert (
        exchanges(plan)["broadcast operand 1"].bytes_in.max() <= 2
    )  # of the mask what a tile's elements need
    one_each = op("aten.index_put_.default", (x, (mask,), tensor(700, 32)), x)
    assert "index_put_/update" in computes(lower(one_each, MK2))


def test_booleans_are_counted_as_numbers_and_joined_one_by_one() -> None:
    x = tensor(FULL, dtype="bool")
    x = replace(x, layout=linear_layout(tensor(FULL, dtype="float32"), 1472))
    x = replace(x, layout=type(x.layout)(x.layout.key, x.layout.bytes // 4))
    counted = computes(lower(op("aten.sum.default", (x,), tensor(dtype="int64")), MK2))
    assert counted["sum/cast"].cycles.max() == 12 + 6 * (37 + 6)
    # 32 numbers of 4 bytes are 16 of 8 bytes, 3 a worker, after 17 cycles and 12 for the output;
    # then six partials
    assert counted["sum/on tile"].cycles.max() == 6 * (17 + 12 + 3 + 15 + 10 + 6)
    joined = computes(lower(op("aten.any.default", (x,), tensor(dtype="bool")), MK2))
    assert joined["any/on tile"].cycles.max() == 6 * (17 + 12 + 25 * 6 + 15 + 10 + 6)


def test_outputs_that_lie_side_by_side_are_reduced_8_bytes_at_a_time() -> None:
    """A layer norm's gradient of its scale: 2 rows of 768 on a tile, of which one is left."""
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


@pytest.mark.parametrize(
    ("name", "loops"),
    [
        # cycles a worker beyond the call for 6 elements: 3 vectors of 2, or 6 single elements
        ("asin", [17 + 60 * 6]),
        ("acos", [17 + 60 * 6, 17 + 2 * 3]),
        ("atan", [17 + 2 * 3, 17 + 2 * 3, 17 + 8 * 3, None, 17 + 60 * 6]),
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


def test_the_border_of_a_padding_is_added_to_what_it_mirrors() -> None:
    grad, source = tensor(4, 8, 10, 10), tensor(4, 8, 8, 8)
    spec = op("aten.reflection_pad2d_backward.default", (grad, source, (1, 1, 1, 1)), source)
    plan = lower(spec, MK2)
    check(plan, spec)
    border = 4 * 8 * (100 - 64)
    moved = exchanges(plan)["gradient"]
    assert int(moved.bytes_in.sum()) == (4 * 8 * 64 + border) * 4 == grad.nbytes
    assert computes(plan)["add border"].flops == border


@pytest.mark.parametrize(
    ("name", "source", "result", "taps"),
    [
        ("upsample_nearest2d", (1, 2, 8, 8), (1, 2, 16, 16), [1, 1]),
        ("upsample_linear1d", (1, 2, 8), (1, 2, 16), [2]),
        ("upsample_bilinear2d", (1, 2, 8, 8), (1, 2, 16, 8), [2]),
        ("upsample_trilinear3d", (1, 2, 4, 4, 4), (1, 2, 8, 8, 8), [2, 2, 2]),
        ("upsample_bicubic2d", (1, 2, 8, 8), (1, 2, 16, 16), [4, 4]),
        ("_upsample_bilinear2d_aa", (1, 2, 16, 16), (1, 2, 4, 8), [8, 4]),
    ],
)
def test_interpolation_adds_up_its_neighbours_a_dimension_at_a_time(
    name: str, source: tuple[int, ...], result: tuple[int, ...], taps: list[int]
) -> None:
    assert taps_of(name, source, result) == taps
    spec = op(f"aten.{name}.default", (tensor(*source), result[2:], None), tensor(*result))
    plan = lower(spec, MK2)
    check(plan, spec)
    weighed = sum(step.flops for step in computes(plan).values())
    # a scaled addition is two flops; nearest only copies
    assert weighed == (2 * sum(taps) * math.prod(result) if max(taps) > 1 else 0)
    back = op(
        f"aten.{name}_backward.default",
        (tensor(*result), result[2:], source, None),
        tensor(*source),
    )
    plan = lower(back, MK2)
    check(plan, back)
    assert sum(step.flops for step in computes(plan).values()) == 2 * sum(taps) * math.prod(result)
    received = sum(int(step.bytes_in.sum()) for step in exchanges(plan).values())
    assert received >= math.prod(result) * 4  # every gradient reaches a neighbour


def test_distances_of_all_pairs_keep_both_rows_on_the_tile() -> None:
    # 10 pairs of rows of 6: 2 a worker, each 10 + 3 * 3 vectors of two
    assert pair_cycles(np.array([0, 10]), 6, 4, 2.0).tolist() == [0, 20 + 6 * (17 + 2 * 19)]
    assert pair_cycles(np.array([10]), 6, 4, 3.0).tolist() == [20 + 6 * (17 + 2 * (19 + 300))]
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


def test_a_bag_is_a_lookup_and_a_sum_where_the_bag_lies() -> None:
    table, bags = tensor(500, 32, role="weight"), tensor(10, 32)
    rest = (tensor(80, dtype="int64"), tensor(10, dtype="int64"), tensor(10, dtype="int64"))
    indices, offsets = tensor(80, dtype="int64"), tensor(10, dtype="int64")
    spec = op(
        "aten._embedding_bag.default",
        (table, indices, offsets, False, 1, False, None, False, -1),
        bags,
        *rest,
    )
    plan = lower(spec, MK2)
    check(plan, spec)
    assert list(computes(plan)) == ["slice", "reduce", "mean"]
    assert int(exchanges(plan)["collect"].bytes_in.sum()) == 80 * 32 * 4
    assert computes(plan)["reduce"].flops == 80 * 32
    args = (
        bags,
        indices,
        tensor(80, dtype="int64"),
        tensor(10, dtype="int64"),
        tensor(0, dtype="int64"),
        500,
        False,
    )
    back = op("aten._embedding_bag_dense_backward.default", (*args, 0, None, -1), table)
    plan = lower(back, MK2)
    check(plan, back)
    # a bag's row goes to each of its indices' places: 80 rows arrive, 10 are sent
    assert int(exchanges(plan)["values"].bytes_in.sum()) == 80 * 32 * 4
    assert int(exchanges(plan)["values"].bytes_out.sum()) == 10 * 32 * 4


def test_many_lookups_of_a_small_table_are_shared_by_its_copies_whatever_they_do() -> None:
    """T5's relative positions: 32 rows of 8 for each pair of 512 tokens."""
    table, rows = (
        tensor(32, 8, dtype="float16", role="weight"),
        tensor(512, 512, 8, dtype="float16"),
    )
    indices = tensor(512, 512, dtype="int64")
    for name, args, out in (
        ("aten.embedding.default", (table, indices), rows),
        ("aten.embedding_dense_backward.default", (rows, indices, 32, -1, False), table),
        (
            "aten.index_put_.default",
            (table, (indices,), rows, True),
            table,
        ),  # PopART's SparseAccumulate
    ):
        spec = op(name, args, out)
        plan = lower(spec, MK2)
        check(plan, spec)
        # 512 bytes are on 4 tiles: of c copies each takes 262,144 / c of the indices, 4 bytes each
        copies = int(plan.note.split()[0])
        received = exchanges(plan)["indices"].bytes_in
        assert copies > 16
        assert np.count_nonzero(received) == copies * 4
        assert received.max() == -(-512 * 512 // copies) * 4
    # what is written over cannot be shared
    spec = op("aten.index_put_.default", (table, (indices,), rows, False), table)
    assert exchanges(lower(spec, MK2))["indices"].bytes_in.max() == 512 * 512 * 4


def test_a_gather_in_rows_sends_a_row_of_the_index_to_one_tile() -> None:
    data, index = tensor(12, 368, 512, dtype="float16"), tensor(12, 368, 368, dtype="int32")
    out = tensor(12, 368, 368, dtype="float16")
    spec = op(
        "ipu_custom.poptorch_custom_ops_FastGatherLastDim.default", ((data, index), "{}"), out
    )
    plan = lower(spec, MK2)
    check(plan, spec)
    # 4,416 rows are 3 a tile: 3 x 368 elements, 184 a worker, 10 cycles each
    assert (exchanges(plan)["data"].bytes_in == 3 * 512 * 2).all()
    assert (exchanges(plan)["index"].bytes_in == 3 * 368 * 4).all()
    assert (computes(plan)["gather"].cycles == 6 * (30 + 184 * 10)).all()
    back = op(
        "ipu_custom.poptorch_custom_ops_FastGatherLastDim_backward.default",
        ((data, index), (out,), "{}"),
        data,
    )
    plan = lower(back, MK2)
    check(plan, back)
    assert (exchanges(plan)["gradient"].bytes_in == 3 * 368 * 2).all()
    assert (computes(plan)["gather gradient"].cycles == 6 * (30 + 184 * 15)).all()


@pytest.mark.parametrize("name", ["gather", "scatter_add"])
def test_an_index_that_repeats_itself_picks_rows_and_is_sent_once(name: str) -> None:
    table, values = tensor(4, 50, 64), tensor(4, 10, 64)
    whole = tensor(4, 10, 64, dtype="int64")
    expanded = tensor(4, 10, 64, dtype="int64", strides=(10, 1, 0))
    moved, slowest = [], []
    for index in (whole, expanded):
        args = (table, 1, index) if name == "gather" else (table, 1, index, values)
        spec = op(f"aten.{name}.default", args, values if name == "gather" else table)
        plan = lower(spec, MK2)
        check(plan, spec)
        copies = int(plan.note.split()[0]) if plan.note else 1
        moved.append(int(exchanges(plan)["indices"].bytes_in.max()) * copies)
        slowest.append(plan_cycles(plan, MK2))
    # a copy's part is rounded up to whole indices
    assert moved[0] == pytest.approx(4 * 10 * 64 * 4, rel=0.05)
    assert moved[1] == pytest.approx(4 * 10 * 4, rel=0.2)
    assert slowest[1] < slowest[0]


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


def test_a_search_halves_the_edges() -> None:
    for edges, halves in ((1, 1), (3, 2), (7, 3), (8, 4)):
        spec = op(
            "aten.bucketize.Tensor", (tensor(FULL), tensor(edges)), tensor(FULL, dtype="int64")
        )
        plan = lower(spec, MK2)
        check(plan, spec)
        assert list(computes(plan)) == [f"halve {turn}" for turn in range(halves)]
        assert (exchanges(plan)["edges"].bytes_in == edges * 4).all()


def test_a_sampled_grid_picks_four_corners_of_all_channels() -> None:
    source, grid, out = tensor(2, 4, 8, 8), tensor(2, 5, 5, 2), tensor(2, 4, 5, 5)
    for mode, corners in ((0, 4), (1, 1), (2, 16)):
        spec = op("aten.grid_sampler_2d.default", (source, grid, mode, 0, False), out)
        plan = lower(spec, MK2)
        check(plan, spec)
        assert int(exchanges(plan)["corners"].bytes_in.sum()) == out.nbytes * corners
        assert computes(plan)["weigh"].flops == 2 * out.elements * corners
    back = op(
        "aten.grid_sampler_2d_backward.default",
        (out, source, grid, 0, 0, False, (True, True)),
        source,
        grid,
    )
    plan = lower(back, MK2)
    check(plan, back)
    assert computes(plan)["add"].flops == out.elements * 4


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
