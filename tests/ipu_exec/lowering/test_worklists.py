"""What a product's vertex holds for good: worklists and pointers."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_exec.lowering.worklists import pieces, pointer_bytes, worklist_bytes


def shared_out(rows: int, length: int) -> int:
    """Pieces of rows that six workers get, counted element by element."""
    elements = rows * length
    worker = [next(w for w in range(6) if e < (w + 1) * elements // 6) for e in range(elements)]
    return len({(worker[e], e // length) for e in range(elements)})


@pytest.mark.parametrize(("rows", "length"), [(24, 6), (12, 17), (1, 100), (7, 5), (1, 4), (3, 1)])
def test_pieces_are_those_of_six_workers(rows, length):
    assert pieces(np.array([rows]), np.array([length]))[0] == shared_out(rows, length)


def test_no_rows_have_no_pieces():
    assert not pieces(np.array([0, 4]), np.array([5, 0])).any()


def test_a_list_for_each_worker_and_kernel_element():
    """24 rows of 6 outputs, kernel 7 x 1: 24 pieces of 6 bytes and 6 lists of 4, seven times."""
    rows, length = np.array([24]), np.array([6])
    assert worklist_bytes("nx1", rows, length, (7, 1), (1, 1))[0] == 7 * (24 * 6 + 6 * 4)
    assert worklist_bytes("nx1", rows, length, (7, 1), (4, 1))[0] == 2 * (24 * 6 + 6 * 4)
    assert worklist_bytes("slic", rows, length, (3, 5), (1, 4))[0] == 6 * (24 * 6 + 6 * 4)


def test_a_product_has_one_piece_a_worker():
    """36 bytes a tile that is used, as [TUT4] shows."""
    rows = np.array([96, 0])
    assert list(worklist_bytes("1x1", rows, np.array([1, 1]), (1, 1), (1, 1))) == [36, 0]


def test_vertical_products_list_each_output_for_each_kernel_row():
    lists = worklist_bytes("vmac", np.array([4]), np.array([3]), (3, 3), (1, 1))
    assert lists[0] == 3 * 12 * 8 + 6 * 4


def test_pointers_to_inputs_weights_and_outputs():
    nine, one = np.array([9]), np.array([1])
    assert pointer_bytes(nine, one, one, compact=False)[0] == (9 + 1 + 9) * 4
    assert pointer_bytes(nine, one, one, compact=True)[0] == (9 + 1 + 9) * 2
