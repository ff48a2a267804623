"""Looking up and updating rows, compared with arithmetic done by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ipu_exec.lowering import lower
from ipu_exec.lowering.durations import plan_cycles
from ipu_exec.lowering.layouts import linear_layout
from tests.ipu_exec.lowering.test_plans import check
from tests.operands import MK2, computes, exchanges, op, tensor

FULL = 1472 * 32  # fp32: 32 elements, 128 bytes, on each tile; 6 elements a worker at most


def test_lookups_in_a_small_table_are_shared_by_copies_of_it() -> None:
    """The 2 rows of 768 halves of token types lie on 24 tiles.

    So there is room for 1,472 // 24 = 61 copies, which share 4,096 lookups.
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
    """The cases are those of its own tests [PL, tests/popops/DynamicSlicePlanningTest.cpp]."""
    table, out = tensor(rows, width, dtype="float16"), tensor(lookups, width, dtype="float16")
    spec = op("aten.embedding.default", (table, tensor(lookups, dtype="int64")), out)
    plan = lower(spec, MK2)
    check(plan, spec)
    assert ("copies" in plan.note) == several


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


def test_a_row_under_a_mask_is_a_select() -> None:
    """As in wav2vec2, whose masked frames [batch, time] are set to one learned vector."""
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
    """As in T5's relative positions, which look up 32 rows of 8 for each pair of 512 tokens."""
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


def test_a_search_halves_the_edges() -> None:
    for edges, halves in ((1, 1), (3, 2), (7, 3), (8, 4)):
        spec = op(
            "aten.bucketize.Tensor", (tensor(FULL), tensor(edges)), tensor(FULL, dtype="int64")
        )
        plan = lower(spec, MK2)
        check(plan, spec)
        assert list(computes(plan)) == [f"halve {turn}" for turn in range(halves)]
        assert (exchanges(plan)["edges"].bytes_in == edges * 4).all()
