"""Formats numbers for people, and names from a profile as text, never as markup."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.units import (
    count,
    cycles,
    ends_of,
    per_second,
    percent,
    seconds,
    shortened,
    size,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Clock",
    "as_array",
    "count",
    "cycles",
    "ends_of",
    "minus",
    "per_second",
    "percent",
    "plain",
    "rows_of",
    "seconds",
    "shortened",
    "size",
    "text_of",
]


def plain(words: object) -> str:
    """A name escaped for plotly, which would take ``<`` and ``&`` for markup."""
    return str(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def as_array(values: Sequence[Any]) -> np.ndarray:
    """Texts and the like for plotly, which looks at each entry of a list, and copies it."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def minus(number: str) -> str:
    """A number's text with the minus sign that plotly's figures and the grids write."""
    return number.replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True, slots=True)
class Clock:
    """The unit in which a page shows time: ``unit`` is "cycles" or "µs"."""

    hz: float
    unit: str = "cycles"

    @property
    def scale(self) -> float:
        """Shown units per cycle."""
        return 1e6 / self.hz if self.unit == "µs" else 1.0

    @property
    def title(self) -> str:
        """The title of a time axis, with its unit."""
        return "time (µs)" if self.unit == "µs" else "time (cycles)"

    def both(self, number: float) -> str:
        """Cycles, and the time they take."""
        return f"{number:,.0f} cycles, {seconds(number / self.hz)}"

    def short(self, number: float) -> str:
        """One of the two, as the page is set."""
        return seconds(number / self.hz) if self.unit == "µs" else cycles(number)


def text_of(pieces: list[str]) -> str:
    """Format the lines of a hover label."""
    return "<br>".join(piece for piece in pieces if piece)


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of a small frame, with columns as attributes, and its index as ``Index``."""
    columns = (frame[name].tolist() for name in frame.columns)
    return map(_row_type(tuple(frame.columns))._make, zip(frame.index, *columns, strict=True))


@lru_cache(maxsize=256)
def _row_type(names: tuple[str, ...]) -> Any:
    """A class for rows with these columns, which takes longer to make than the rows."""
    return namedtuple("Row", ("Index", *names), rename=True)
