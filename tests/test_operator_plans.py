"""Plans of single operators against arithmetic done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ipu_exec.lowering import lower
from ipu_exec.lowering.distance import pair_cycles
from ipu_exec.lowering.layouts import linear_layout
from ipu_exec.lowering.loss import ctc_cycles
from ipu_exec.lowering.plan import Compute, Exchange, Plan
from ipu_exec.lowering.resample import taps_of
from tests.operands import MK2, op, tensor
from tests.test_lowering import check

FULL = 1472 * 32  # fp32: 32 elements, 128 bytes, on each tile; 6 elements a worker at most


def computes(plan: Plan) -> dict[str, Compute]:
    return {step.name: step for step in plan.steps if isinstance(step, Compute)}


def exchanges(plan: Plan) -> dict[str, Exchange]:
    return {step.name: step for step in plan.steps if isinstance(step, Exchange)}


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
def test_inverse_and_hyperbolic_functions_are_exponentials_logarithms_and_roots(name: str, loops: list) -> None:
    x = tensor(FULL, layout=linear_layout(tensor(FULL), 1472))
    spec = op(f"aten.{name}.default", (x,), tensor(FULL))
    plan = lower(spec, MK2)
    check(plan, spec)
    steps = [step for step in plan.steps if isinstance(step, Compute)]
    assert len(steps) == len(plan.steps) == len(loops)
    for step, worker in zip(steps, loops, strict=True):
        expected = 58 + 6 * 3 * 3 if worker is None else 20 + 6 * worker  # in place: 58 + 6 * 3 a vector
        assert (step.cycles == expected).all(), step.name
        assert "OpType::" in step.vertices[0].type and step.vertices[0].type.endswith(",float>"), step.name


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
    back = op(f"aten.{name}_backward.default", (tensor(*result), result[2:], source, None), tensor(*source))
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
    assert "root" not in computes(lower(op("aten._cdist_forward.default", (a, b, 1.0, None), tensor(40, 50)), MK2))
    # 2,000 distances are 62 parts of 128 bytes: 33 at most a tile, hence rows of at most 33 / 50 + 1 of the first
    rows = exchanges(plan)["rows 0"].bytes_in
    assert np.count_nonzero(rows) == 62
    assert rows.max() == 2 * 6 * 4
    back = op("aten._cdist_backward.default", (tensor(40, 50), a, b, 2.0, tensor(40, 50)), tensor(40, 6))
    plan = lower(back, MK2)
    check(plan, back)
    assert computes(plan)["_cdist_backward"].flops == 4 * 50 * 40 * 6


def test_a_bag_is_a_lookup_and_a_sum_where_the_bag_lies() -> None:
    table, bags = tensor(500, 32, role="weight"), tensor(10, 32)
    rest = (tensor(80, dtype="int64"), tensor(10, dtype="int64"), tensor(10, dtype="int64"))
    indices, offsets = tensor(80, dtype="int64"), tensor(10, dtype="int64")
    spec = op("aten._embedding_bag.default", (table, indices, offsets, False, 1, False, None, False, -1), bags, *rest)
    plan = lower(spec, MK2)
    check(plan, spec)
    assert list(computes(plan)) == ["slice", "reduce", "mean"]
    assert int(exchanges(plan)["collect"].bytes_in.sum()) == 80 * 32 * 4
    assert computes(plan)["reduce"].flops == 80 * 32
    args = (bags, indices, tensor(80, dtype="int64"), tensor(10, dtype="int64"), tensor(0, dtype="int64"), 500, False)
    back = op("aten._embedding_bag_dense_backward.default", (*args, 0, None, -1), table)
    plan = lower(back, MK2)
    check(plan, back)
    # a bag's row goes to each of its indices' places: 80 rows arrive, 10 are sent
    assert int(exchanges(plan)["values"].bytes_in.sum()) == 80 * 32 * 4
    assert int(exchanges(plan)["values"].bytes_out.sum()) == 10 * 32 * 4


def test_many_lookups_of_a_small_table_are_shared_by_groups_of_tiles() -> None:
    """T5's relative positions: 32 rows of 8 for each pair of 512 tokens. popops splits the lookups of such a table."""
    table, rows = tensor(32, 8, dtype="float16", role="weight"), tensor(512, 512, 8, dtype="float16")
    indices = tensor(512, 512, dtype="int64")
    gradient = ("aten.embedding_dense_backward.default", (rows, indices, 32, -1, False))
    into = ("aten.index_put_.default", (table, (indices,), rows, True))  # PopART's SparseAccumulate
    for name, args, out in (
        ("aten.embedding.default", (table, indices), rows),
        (*gradient, table),
        (*into, table),
    ):
        spec = op(name, args, out)
        plan = lower(spec, MK2)
        check(plan, spec)
        # 512 bytes are on 4 tiles, hence 262,144 / 1,024 groups: each tile has 1,024 of the indices, 4 bytes each
        received = exchanges(plan)["indices"].bytes_in
        assert np.count_nonzero(received) == 256 * 4
        assert received.max() == 1024 * 4
    sums = exchanges(lower(op(*gradient, table), MK2))["embedding_dense_backward/partial sums"]
    assert sums.bytes_out.sum() == 256 * 32 * 8 * 2
    assert sums.bytes_in.max() == 256 * 64 * 2
    # what is written over cannot be shared
    spec = op("aten.index_put_.default", (table, (indices,), rows, False), table)
    assert exchanges(lower(spec, MK2))["indices"].bytes_in.max() == 512 * 512 * 4


def test_a_gather_in_rows_sends_a_row_of_the_index_to_one_tile() -> None:
    data, index = tensor(12, 368, 512, dtype="float16"), tensor(12, 368, 368, dtype="int32")
    out = tensor(12, 368, 368, dtype="float16")
    spec = op("ipu_custom.poptorch_custom_ops_FastGatherLastDim.default", ((data, index), "{}"), out)
    plan = lower(spec, MK2)
    check(plan, spec)
    # 4,416 rows are 3 a tile: 3 x 368 elements, 184 a worker, 10 cycles each
    assert (exchanges(plan)["data"].bytes_in == 3 * 512 * 2).all()
    assert (exchanges(plan)["index"].bytes_in == 3 * 368 * 4).all()
    assert (computes(plan)["gather"].cycles == 6 * (30 + 184 * 10)).all()
    back = op("ipu_custom.poptorch_custom_ops_FastGatherLastDim_backward.default", ((data, index), (out,), "{}"), data)
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
        tiles = np.count_nonzero(linear_layout(table, 1472).bytes)
        moved.append(int(exchanges(plan)["indices"].bytes_in.sum()) // tiles)
        step = "slice" if name == "gather" else "update"
        slowest.append(int(computes(plan)[f"{name}/{step}"].cycles.max()))
    assert moved == [4 * 10 * 64 * 4, 4 * 10 * 4]
    assert slowest[1] < slowest[0] / 8


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
        assert int(computes(plan)["dropout"].cycles.max()) == 6 + 6 * (24 + 2 * math.ceil(worker / 2))


def test_a_search_halves_the_edges() -> None:
    for edges, halves in ((1, 1), (3, 2), (7, 3), (8, 4)):
        spec = op("aten.bucketize.Tensor", (tensor(FULL), tensor(edges)), tensor(FULL, dtype="int64"))
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
    back = op("aten.grid_sampler_2d_backward.default", (out, source, grid, 0, 0, False, (True, True)), source, grid)
    plan = lower(back, MK2)
    check(plan, back)
    assert computes(plan)["add"].flops == out.elements * 4


def test_the_table_of_a_ctc_loss_is_filled_step_by_step() -> None:
    # 12 steps of 9 states: two a worker, each two log-additions and an addition
    assert ctc_cycles(np.array([0, 1, 2]), 12, 9, 2).tolist() == [0, *(n * 12 * 6 * (20 + 2 * 52) for n in (1, 2))]
    scores, table = tensor(12, 2, 6), tensor(2, 12, 9)
    lengths = tensor(2, dtype="int64")
    spec = op("aten._ctc_loss.Tensor", (scores, tensor(2, 4, dtype="int64"), lengths, lengths, 0, False),
              tensor(2), table)  # fmt: skip
    plan = lower(spec, MK2)
    check(plan, spec)
    assert np.count_nonzero(computes(plan)["alpha"].cycles) == 2
    assert int(exchanges(plan)["operand 0"].bytes_in.sum()) == scores.nbytes
    there = tensor(2, 12, 9, layout=plan.output_layouts[1])
    back = op("aten._ctc_loss_backward.Tensor", (tensor(2), scores, tensor(2, 4, dtype="int64"), lengths, lengths,
              tensor(2), there, 0, False), scores)  # fmt: skip
    plan = lower(back, MK2)
    check(plan, back)
    assert "operand 6" not in exchanges(plan)  # the table lies there already
    assert list(computes(plan)) == ["beta", "gradient", "exp"]
