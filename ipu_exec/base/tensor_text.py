"""Text layout of `ipu_print_tensor`, the same as Poplar's own print.

The outermost brackets and each row of the last dimension are on lines of their own, indented by
depth, and only the elements of a row are separated [POPTORCH, docs of ``ipu_print_tensor``;
tests/ipu_print_tensor_test.py shows the layout].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

FLOAT_FORMATS = ("auto", "fixed", "scientific", "none")
_ELLIPSIS = "..."
_LARGEST_FIXED, _LARGEST_RATIO = 1e8, 1e3  # beyond them numpy's printing turns to exponents too
_CONTINUED = 2  # columns that a broken row is set in, besides its depth


@dataclass(frozen=True)
class Layout:
    """``threshold`` elements and above are summarised to ``edge_items`` at each end.

    ``width`` in characters; ``digits`` before and after the decimal point. 0: no limit.
    """

    threshold: int = 1000
    edge_items: int = 3
    width: int = 80
    digits: int = 4
    float_format: str = "auto"
    separator: str = ", "
    brackets: tuple[str, str] = ("(", ")")


def laid_out(values: np.ndarray, layout: Layout) -> str:
    """The text of an array of numbers or truth values, without a title."""
    words = _words(values, layout)
    if values.ndim == 0:
        return words(values[()])
    summarised = 0 < layout.threshold < values.size
    edge = layout.edge_items if summarised else values.size
    return "\n".join(_lines(values, words, layout, edge, depth=0))


def _lines(
    values: np.ndarray, words: Callable[[object], str], layout: Layout, edge: int, depth: int
) -> list[str]:
    """The lines of one dimension: a row of elements, or brackets around the lines of each part."""
    opening, closing = layout.brackets
    indent = " " * depth
    shown = _shown(len(values), edge)
    if values.ndim == 1:
        elements = [_ELLIPSIS if at is None else words(values[at]) for at in shown]
        return _row(elements, layout, depth)
    lines = [indent + opening]
    for at in shown:
        if at is None:
            lines.append(f"{indent} {_ELLIPSIS}")
        else:
            lines += _lines(values[at], words, layout, edge, depth + 1)
    return [*lines, indent + closing]


def _shown(length: int, edge: int) -> list[int | None]:
    """Positions that are printed; None for those omitted between them."""
    if length <= 2 * edge:
        return list(range(length))
    return [*range(edge), None, *range(length - edge, length)]


def _row(elements: list[str], layout: Layout, depth: int) -> list[str]:
    """Elements in brackets, broken before a line would exceed the width."""
    opening, closing = layout.brackets
    separator = layout.separator
    lines = [" " * depth + opening]
    begun = False  # whether the line has an element
    for place, element in enumerate(elements):
        ending = closing if place == len(elements) - 1 else separator
        length = len(lines[-1]) + len(element) + len(ending.rstrip())
        if begun and 0 < layout.width < length:
            lines.append(" " * (depth + _CONTINUED))
        lines[-1] += element + ending
        begun = True
    if not elements:
        lines[-1] += closing
    return [line.rstrip() for line in lines]


def _words(values: np.ndarray, layout: Layout) -> Callable[[object], str]:
    """A function that formats one element, as wide as the widest, so that columns line up."""
    word = _number(values, layout)
    if not layout.digits or values.ndim == 0 or not values.size:
        return word
    widest = max(len(word(value)) for value in values.flat)
    return lambda value: word(value).rjust(widest)


def _number(values: np.ndarray, layout: Layout) -> Callable[[object], str]:
    if values.dtype.kind != "f":
        return lambda value: str(value)
    style = layout.float_format if layout.digits else "none"
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    largest = float(finite.max(initial=0.0))
    if style == "auto":
        style = "scientific" if _spread(finite, largest) else "fixed"
    if style == "none":
        return lambda value: f"{value:g}"
    if style == "scientific":
        return lambda value: f"{value:.{max(0, layout.digits - 1)}e}"
    before_point = len(str(int(largest)))
    decimals = max(0, layout.digits - before_point)
    return lambda value: f"{value:.{decimals}f}"


def _spread(sizes: np.ndarray, largest: float) -> bool:
    """Whether a fixed number of digits would show too little of the smallest, or too much."""
    smallest = float(sizes[sizes > 0].min(initial=np.inf))
    far_apart = largest > _LARGEST_RATIO * smallest
    return largest >= _LARGEST_FIXED or far_apart
