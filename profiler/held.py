"""Columns of numbers and texts as JSON has them, for answers that a file holds.

Numbers are coded as the file's vectors are (`profiler.codec`), which is small, and quick to read
back; a text is the distinct ones and the position of each row's among them. What is read back may
be a stranger's: columns are of their kinds and equally long, but what the numbers say is for the
reader to check.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from profiler import codec

ByName = Any  # columns by name: a mapping of arrays, or a frame
INT, FLOAT, TEXT = "int", "float", "text"  # kinds of columns
MOST_NUMBER = 1 << 62  # larger than any that is sound
_MOST_AXES = 4


def plain(columns: ByName) -> dict[str, Any]:
    """Columns (arrays or series of integers, floats or texts) as JSON can hold them."""
    return {name: _plain(np.asarray(values)) for name, values in columns.items()}


def read(
    said: Any, kinds: Mapping[str, str], most: int = codec.MAX_LENGTH
) -> dict[str, np.ndarray] | None:
    """The columns, of at most so many rows, in the order of ``kinds`` (their names: which kind).

    int64, float64 or object arrays, all equally long, the numbers finite. None where it is not what
    `plain` gives of such columns.
    """
    if not isinstance(said, dict) or set(said) != set(kinds):
        return None
    try:
        columns = {name: _read(said[name], kind, most) for name, kind in kinds.items()}
    except (ValueError, TypeError, LookupError, binascii.Error):
        return None
    return columns if len({len(values) for values in columns.values()}) <= 1 else None


def normal(columns: ByName, kinds: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Columns of the types that `read` gives them."""
    types: dict[str, Any] = {INT: np.int64, FLOAT: np.float64, TEXT: object}
    return {name: np.asarray(columns[name]).astype(types[kind]) for name, kind in kinds.items()}


def plain_tables(tables: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Arrays of integers or bools, of any shape, as JSON can hold them."""
    return {
        name: {"shape": list(table.shape), "bool": table.dtype == bool, **_coded(table.ravel())}
        for name, table in tables.items()
    }


def read_tables(said: Any, names: Iterable[str]) -> dict[str, np.ndarray] | None:
    """The arrays of these names, int64 or bool. None where it is not what `plain_tables` gives."""
    if not isinstance(said, dict) or set(said) != {*names}:
        return None
    try:
        return {name: _read_table(said[name]) for name in names}
    except (ValueError, TypeError, LookupError, binascii.Error):
        return None


def _read_table(said: Any) -> np.ndarray:
    """ValueError, TypeError or LookupError where it is no array."""
    shape, is_bool = said["shape"], said["bool"]
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise TypeError("a shape that is none")
    if math.prod(shape) != said["length"] or type(is_bool) is not bool or len(shape) > _MOST_AXES:
        raise ValueError("a shape of something else")
    data = b64decode(said["data"], validate=True)
    numbers = codec.decode(said["dtype"], said["length"], data)
    if len(numbers) and not -MOST_NUMBER < numbers.min() <= numbers.max() < MOST_NUMBER:
        raise ValueError("a number that is too large")
    if is_bool and len(numbers) and not 0 <= numbers.min() <= numbers.max() <= 1:
        raise ValueError("neither true nor false")
    return (numbers != 0 if is_bool else numbers).reshape(shape)


def _plain(values: np.ndarray) -> dict[str, Any]:
    if values.dtype.kind == "f":
        return {"kind": FLOAT, **_coded(values.astype("<f8").view("<i8"))}
    if values.dtype.kind in "iub":
        return {"kind": INT, **_coded(values)}
    texts = [str(value) for value in values.tolist()]
    places = {word: place for place, word in enumerate(dict.fromkeys(texts))}
    numbers = np.fromiter(map(places.__getitem__, texts), np.int64, len(texts))
    return {"kind": TEXT, "words": list(places), **_coded(numbers)}


def _coded(numbers: np.ndarray) -> dict[str, Any]:
    coded = codec.encode(numbers)
    data = b64encode(coded.data).decode("ascii")
    return {"dtype": coded.dtype, "length": coded.length, "data": data}


def _read(said: Any, kind: str, most: int) -> np.ndarray:
    """A column. ValueError, TypeError or LookupError where it is none of this kind."""
    if said["kind"] != kind:
        raise ValueError(f"a column of {said['kind']}, not of {kind}")
    data = b64decode(said["data"], validate=True)
    numbers = codec.decode(said["dtype"], said["length"], data, most)
    if kind == FLOAT:
        floats = numbers.view(np.float64)
        if not np.isfinite(floats).all():
            raise ValueError("a number that is none")
        return floats
    if kind == INT:
        if len(numbers) and not -MOST_NUMBER < numbers.min() <= numbers.max() < MOST_NUMBER:
            raise ValueError("a number that is too large")
        return numbers
    words = said["words"]
    if not isinstance(words, list) or not all(type(word) is str for word in words):
        raise TypeError("a text that is none")
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(words):
        raise LookupError("a text that is not there")
    return np.array([*words, None], dtype=object)[numbers]
