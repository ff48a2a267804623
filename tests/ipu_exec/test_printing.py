"""How tensors are laid out, as Poplar's print does."""

from __future__ import annotations

import numpy as np
import pytest

from ipu_exec.base.tensor_text import Layout, laid_out

VALUES = np.float32([[1.4962566, 1.7682219], [1.0884774, 1.1320305]])


def test_rows_are_set_in_and_only_their_elements_separated() -> None:
    curly = Layout(digits=8, separator=" ", brackets=("{", "}"))
    assert laid_out(VALUES, curly) == "{\n {1.4962566 1.7682219}\n {1.0884774 1.1320305}\n}"
    cube = laid_out(np.arange(4).reshape(2, 1, 2), Layout())
    assert cube == "(\n (\n  (0, 1)\n )\n (\n  (2, 3)\n )\n)"


def test_a_row_beyond_the_width_is_broken_behind_a_separator() -> None:
    layout = Layout(width=15, digits=8, float_format="scientific", brackets=("[", "]"))
    rows = laid_out(VALUES, layout).splitlines()
    assert rows[1:3] == [" [1.4962566e+00,", "   1.7682219e+00]"]
    assert len(laid_out(np.arange(100), Layout(width=0)).splitlines()) == 1


def test_columns_line_up_and_digits_count_both_sides_of_the_point() -> None:
    assert laid_out(np.float64([2.25, 100]), Layout(digits=4)) == "(  2.2, 100.0)"
    assert laid_out(np.array([3, -10]), Layout()) == "(  3, -10)"
    assert laid_out(np.array([True, False]), Layout()) == "( True, False)"


def test_a_long_tensor_is_summarised_to_its_ends() -> None:
    few = Layout(threshold=5, edge_items=1)
    assert laid_out(np.arange(6), few) == "(0, ..., 5)"
    assert laid_out(np.arange(6).reshape(6, 1), few) == "(\n (0)\n ...\n (5)\n)"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1e-4, 10.0], "(1.000e-04, 1.000e+01)"),
        ([1e9], "(1.000e+09)"),
        ([np.nan, 1], "(  nan, 1.000)"),
    ],
)
def test_numbers_far_apart_have_exponents(values: list[float], text: str) -> None:
    assert laid_out(np.array(values), Layout()) == text


def test_what_has_no_dimension_or_no_elements() -> None:
    assert laid_out(np.float32(0.5), Layout()) == "0.500"
    assert laid_out(np.zeros(0), Layout()) == "()"
