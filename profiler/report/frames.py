"""Frames and columns: small functions that the parts of a report share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.file.bounds import MOST_MICRO_BATCHES, MOST_ROWS, rows_of

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler.file.columns import Columns


def number(entries: Mapping[str, Any], key: str, default: float) -> float:
    """An entry of a profile's header or options if it is a valid number; files are untrusted."""
    value = entries.get(key, default)
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if numeric and 0 <= value <= MOST_MICRO_BATCHES else default


def frame_of(
    columns: Mapping[str, Any] = MappingProxyType({}),
    index: np.ndarray | None = None,
    copy: bool = True,
    **more: Any,
) -> pd.DataFrame:
    """A frame; ``copy=False`` is twice as fast for a large one if nobody else holds the arrays."""
    import pandas as pd

    return pd.DataFrame(
        {name: series_of(values) for name, values in {**columns, **more}.items()},
        index=None if index is None else pd.Index(index, name="id"),
        copy=copy,
    )


def series_of(values: Any) -> Any:
    """Values in pandas' form; texts without pandas' own search for their type."""
    import pandas as pd

    if isinstance(values, np.ndarray) and values.dtype == object:
        return pd.array(values, dtype="str")
    return getattr(values, "array", values)


def texts_of(names: np.ndarray, which: np.ndarray) -> Any:
    """``names[which]`` as text, checked once per name instead of once per row."""
    import pandas as pd

    array = pd.array(names, dtype="str")
    return array.take(which) if len(names) else array


def frame_columns(columns: Columns, names: Collection[str]) -> dict[str, Any]:
    """These columns of a table for a frame, each of its distinct texts made once."""
    columns.read("id", *(name for name in names if not columns.is_text(name)))
    return {
        name: texts_of(*columns.coded(name)[::-1]) if columns.is_text(name) else columns[name]
        for name in names
    }


def frame_of_rows(rows: list[tuple[Any, ...]], **columns: type) -> pd.DataFrame:
    """A frame of rows, with the columns' types."""
    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return frame_of(
        {
            name: np.array(cells, dtype=object if kind is str else np.int64)
            for (name, kind), cells in zip(columns.items(), values, strict=True)
        }
    )


def first_ones(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each group of equal rows, in their order, and the group of each row."""
    group = np.zeros(len(columns[0]), dtype=np.int64)
    for values in columns:
        if values.dtype == object:
            places: dict[Any, int] = {}
            code = np.array([places.setdefault(one, len(places)) for one in values.tolist()], int)
        else:
            code = values.astype(np.int64) - int(values.min(initial=0))
            if code.max(initial=0) > MOST_ROWS:  # pairs of them would not fit
                code = np.unique(values, return_inverse=True)[1]
        pairs = group * (int(code.max(initial=0)) + 1) + code
        _, first, group = np.unique(pairs, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return first[order], place[group]


def first_of_each(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`first_ones` of a column of small numbers, 0 or more, without sorting it."""
    first = np.full(int(values.max(initial=-1)) + 1, -1)
    first[values[::-1]] = np.arange(len(values))[::-1]  # the last that is written stays
    rows = np.sort(first[first >= 0])
    rank = np.zeros(len(first), dtype=np.int64)
    rank[values[rows]] = np.arange(len(rows))
    return rows, rank[values]


def summed(values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """The sum of the values of each group: int64[group], exact."""
    sums = np.zeros(groups, dtype=np.int64)
    np.add.at(sums, group, values)
    return sums


def columns_without(columns: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The columns without these."""
    return {name: values for name, values in columns.items() if name not in names}


def some_columns(columns: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """These columns, in this order."""
    return {name: columns[name] for name in names}


def order_of(major: np.ndarray, minor: np.ndarray) -> np.ndarray | None:
    """Rows by two columns; None if they have that order, as in our files."""
    later, same = major[1:] > major[:-1], major[1:] == major[:-1]
    if (later | (same & (minor[1:] >= minor[:-1]))).all():
        return None
    return np.lexsort((minor, major))


def position_in(ids: np.ndarray, id: int) -> int | None:
    """The position of an id; None if it is missing."""
    at = np.flatnonzero(ids == id)
    return int(at[0]) if len(at) else None


def looked_up(ids: np.ndarray, keys: np.ndarray, values: np.ndarray, default: Any) -> np.ndarray:
    """``values`` at the ids that ``keys`` contains, ``default`` elsewhere."""
    row, values_of = rows_of(ids, keys), np.full(len(ids), default, dtype=values.dtype)
    values_of[row >= 0] = values[row[row >= 0]]
    return values_of


def bounds_of(part: slice | None, size: int, name: str) -> tuple[int, int]:
    """First and end of a slice of ``size`` entries; ValueError if it has a step."""
    first, last, step = (part or slice(None)).indices(size)
    if step != 1:
        raise ValueError(f"{name} must be a slice without a step; use shape to see less detail")
    return first, max(first, last)


def depth_first(ids: np.ndarray, parents: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
    """Rows of a tree, parents before children, siblings by position; None if it is not a tree."""
    row = rows_of(parents, ids)
    above = np.where((row < 0) & (parents != -1), -2, row)
    siblings = np.lexsort((ids, positions, above))
    sorted_above = above[siblings]
    levels = [siblings[sorted_above == -1]]
    reached = len(levels[0])
    # A node has one parent, so each is reached once; those of a cycle never are.
    while len(levels[-1]):
        first, last = (
            np.searchsorted(sorted_above, levels[-1], side) for side in ("left", "right")
        )
        levels.append(siblings[ranges_of(first, last - first)])
        reached += len(levels[-1])
    if reached < len(ids):
        return None
    size = np.ones(len(ids), dtype=np.int64)
    for level in reversed(levels[1:]):
        np.add.at(size, above[level], size[level])
    before = np.cumsum(size[siblings]) - size[siblings]
    first_born = np.searchsorted(sorted_above, sorted_above)
    place = np.empty_like(size)  # behind the parent, then in all
    place[siblings] = before - before[first_born]
    for level in levels[1:]:
        place[level] += place[above[level]] + 1
    order = np.empty_like(place)
    order[place] = np.arange(len(ids))
    return order


def ranges_of(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``first[i], first[i] + 1, ...``, ``count[i]`` numbers for each i."""
    behind = np.cumsum(count)
    return np.arange(int(count.sum())) + np.repeat(first - (behind - count), count)
