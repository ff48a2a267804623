"""Peak bytes of tiles and what does not fit, of variables written by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ipu_exec.compiler.memory.overflow import block_bytes, find_overflow, tile_bytes, tile_rows
from ipu_exec.machine import TARGETS
from ipuscope.profiler.file import records, schema

SMALL = replace(TARGETS["mk2"], tiles=2, bytes_per_tile=100, region0_bytes=40)
STEPS = 10


def variable(
    name: str,
    tiles: tuple[int, int],
    life: tuple[int, int] | None = None,
    *,
    ipu: int = 0,
    category: str = "variable",
    block: int = -1,
    interleaved: bool = False,
) -> records.Variable:
    """Live at ``life[0] <= step < life[1]``; always where it is None."""
    start, stop = life or (0, STEPS)
    always, nbytes = int(life is None), np.array(tiles, np.int64)
    role, place = ("activation", (-1, block, 0))
    return records.Variable(
        *(0, name, ipu, category, role, *place, "", "", sum(tiles), nbytes),
        *(int(interleaved), always, start, stop),
    )


def test_the_peak_of_a_tile_is_the_most_that_is_live_at_one_step() -> None:
    here = [
        variable("weight", (10, 0)),
        variable("a", (5, 1), (0, 3)),
        variable("b", (7, 2), (3, 6)),  # a is dead then
        variable("c", (1, 4), (5, 9)),
    ]
    (one,) = tile_bytes(here, SMALL)
    assert one.ipu == 0
    assert one.used.tolist() == [18, 6]  # 10 + 7 + 1; 2 + 4
    assert one.used_at.tolist() == [5, 5]
    assert one.total.tolist() == [18, 6]  # all fits below region 1


def test_of_equal_peaks_the_first_step_counts() -> None:
    here = [variable("a", (5, 5), (1, 2)), variable("b", (5, 5), (4, 6)), variable("c", (1, 0))]
    (one,) = tile_bytes(here, SMALL)
    assert (one.used.tolist(), one.used_at.tolist()) == ([6, 5], [1, 1])


def test_rows_of_tiles_have_extent_use_always_live_and_overflow() -> None:
    here = [
        variable("weight", (10, 20)),
        variable("a", (0, 30), (2, 4)),
        variable("partials", (70, 30), (1, 3), interleaved=True),
        variable("of IPU 2", (3, 120), ipu=2),
    ]
    rows = tile_rows(tile_bytes(here, SMALL), SMALL)
    assert [*rows.columns] == [column.name for column in schema.columns(rows.of)]
    assert list(zip(*rows.columns.values(), strict=True)) == [
        (0, 0, 110, 80, 10, 10),  # region 1 begins at 40: 40 + 70
        (0, 1, 80, 80, 20, 0),  # 50 in region 0, of which 10 lie beyond; 40 + 30 + 10
        (2, 0, 3, 3, 3, 0),
        (2, 1, 120, 120, 120, 20),
    ]


def test_what_fits_to_the_last_byte_is_no_overflow() -> None:
    assert find_overflow(tile_bytes([variable("a", (100, 0))], SMALL), SMALL) is None
    over = find_overflow(tile_bytes([variable("a", (101, 0))], SMALL), SMALL)
    assert over is not None
    assert (over.ipu, over.tile, over.bytes_over, over.limit) == (0, 0, 1, 100)


def test_the_worst_tile_is_named_with_what_is_live_there() -> None:
    here = [
        variable("of IPU 0", (0, 105)),
        variable("weight", (30, 30), ipu=1),
        variable("early", (60, 0), (0, 4), ipu=1),
        variable("late", (90, 90), (4, 8), ipu=1),
        variable("later", (1, 0), (7, 8), ipu=1),
    ]
    over = find_overflow(tile_bytes(here, SMALL), SMALL)
    assert over is not None
    assert (over.ipu, over.tile, over.position, over.bytes_over) == (1, 0, 7, 21)
    assert (over.what, over.limit) == ("tile memory", 100)
    assert over.contents.always_live == 30
    assert over.contents.largest == (("late", 90), ("weight", 30), ("later", 1))


def test_code_beyond_region_0_does_not_fit_though_the_tile_is_not_full() -> None:
    code = [
        variable("vertices", (30, 0), category="vertexCode"),
        variable("exchange", (12, 0), (2, 5), category="internalExchangeCode"),
        variable("weight", (9, 0)),
    ]
    over = find_overflow(tile_bytes(code, SMALL), SMALL)
    assert over is not None
    assert (over.tile, over.position, over.limit, over.bytes_over) == (0, 2, 40, 2)
    assert over.contents.largest == (("vertices", 30), ("exchange", 12))  # code alone


def test_the_block_that_needs_most_by_itself() -> None:
    here = [
        variable("w0", (10, 10), block=0),
        variable("a0", (5, 0), (0, 4), block=0),
        variable("b0", (6, 0), (4, 6), block=0),  # a0 is dead: 20 + 6
        variable("w1", (0, 5), block=1),
        variable("a1", (11, 0), (0, 4), block=1),
        variable("b1", (11, 0), (3, 6), block=1),  # 5 + 22
        variable("elsewhere", (99, 0), ipu=1, block=0),
        variable("of no Block", (99, 0)),
        variable("of another list", (99, 0), block=2),
    ]
    assert block_bytes(here, ["first", "second"], ipu=0)[0] == ("second", 27)
    assert block_bytes(here, ["first", "second"], ipu=1)[0] == ("first", 99)
    assert block_bytes(here, [], ipu=0) == []
