"""Columns of numbers and texts as JSON has them, for answers that a file holds.

Numbers are coded as the file's vectors are (`ipuscope.profiler.file.codec`), which is small, and
quick to read back; a text is the distinct ones and the position of each row's among them. What is
read back may be a stranger's: columns are of their kinds and equally long, but what the numbers say
is for the reader to check.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode, b64encode
from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np

from ipuscope.profiler.file import codec

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
    """Arrays of integers or bools, of any shape, as JSON can hold them.

    Rows along the last axis that are equal, as those of equal layers, are held once: ``rows`` says
    which each is.
    """
    return {name: _plain_table(table) for name, table in tables.items()}


def read_tables(
    said: Any, names: Iterable[str], negative: Container[str] | None = None
) -> dict[str, np.ndarray] | None:
    """The arrays of these names, int64 or bool. None where it is not what `plain_tables` gives.

    ``negative``: names of those that may have numbers below 0 (None: all). Callers must not modify
    the arrays.
    """
    if not isinstance(said, dict) or set(said) != {*names}:
        return None
    try:
        return {
            name: _read_table(said[name], negative is None or name in negative) for name in names
        }
    except (ValueError, TypeError, LookupError, binascii.Error):
        return None


def _plain_table(table: np.ndarray) -> dict[str, Any]:
    said = {"shape": list(table.shape), "bool": table.dtype == bool}
    if table.ndim < 2 or not table.size:
        return {**said, **_coded(table.ravel())}
    rows = np.ascontiguousarray(table).reshape(-1, table.shape[-1])
    places: dict[bytes, int] = {}
    which = np.array([places.setdefault(row.tobytes(), len(places)) for row in rows])
    distinct = rows[np.unique(which, return_index=True)[1]]
    return {**said, **_coded(distinct.ravel()), "rows": _coded(which)}


def _read_table(said: Any, negative: bool) -> np.ndarray:
    """ValueError, TypeError or LookupError where it is no array."""
    shape, is_bool = said["shape"], said["bool"]
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise TypeError("a shape that is none")
    if math.prod(shape) > codec.MAX_LENGTH or type(is_bool) is not bool or len(shape) > _MOST_AXES:
        raise ValueError("a shape of something else")
    numbers = _decoded(said)
    least = -MOST_NUMBER if negative else -1
    if len(numbers) and not least < numbers.min() <= numbers.max() < MOST_NUMBER:
        raise ValueError("a number that is too large, or too small")
    if is_bool and len(numbers) and not 0 <= numbers.min() <= numbers.max() <= 1:
        raise ValueError("neither true nor false")
    numbers = numbers != 0 if is_bool else numbers
    if "rows" in said:
        which = _decoded(said["rows"])
        distinct = numbers.reshape(-1, shape[-1])
        if len(which) and not 0 <= which.min() <= which.max() < len(distinct):
            raise LookupError("a row that is not there")
        if len(distinct) == 1 and len(which) == math.prod(shape[:-1]):
            return np.broadcast_to(distinct[0], shape)
        numbers = distinct[which]
    return numbers.reshape(shape)


def _decoded(said: Any) -> np.ndarray:
    return codec.decode(said["dtype"], said["length"], b64decode(said["data"], validate=True))


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
