"""Columns of large tables as compressed arrays, beside the rows that SQL sees.

To read a column row by row, SQLite walks the whole table. The writer therefore stores the columns
of large tables once more in `schema.PACKED` when it publishes: numbers as the ``vectors`` are
stored, texts as the distinct ones and each row's position among them. Triggers remove a table's
packed columns as soon as its rows change, so that the rows stay the only truth; `ipu-report doctor`
compares both.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any

import numpy as np
import zstandard

from ipuscope.profiler.file import codec, records, schema

NO_VECTOR = -1
_BETWEEN = "\x1f"  # separates texts
_LEVEL = 3

Part = np.ndarray | Sequence[Any]  # of a column: numbers, or texts
Packed = tuple[str, str, str, int, bytes, bytes | None]  # a row of `schema.PACKED`


class WholeColumns:
    """The columns of a profile's rows as they were added, to be packed when it is published."""

    def __init__(self) -> None:
        self._parts: dict[type[Any], list[list[Part]]] = {}
        self._packed: dict[type[Any], tuple[int, list[Packed]]] = {}  # with the rows of then

    def add(self, record: type[Any], columns: Iterable[Sequence[Any]]) -> None:
        """Add rows, column by column; None for an empty cell."""
        parts = [*map(_part, schema.columns(record), columns)]
        self._parts.setdefault(record, []).append(parts)

    def store(self, connection: sqlite3.Connection) -> None:
        """Pack the columns of every large table of a finished profile."""
        rows = {
            record: sum(len(columns[0]) for columns in parts)
            for record, parts in self._parts.items()
        }
        large = [record for record in records.STORED if rows.get(record, 0) >= schema.LEAST_PACKED]
        if large:
            connection.execute(schema.PACKED)
        for record in large:
            # rows are only ever added: the same number means the same rows
            if self._packed.get(record, (0,))[0] != rows[record]:
                self._packed[record] = rows[record], list(self._pack(record))
            connection.executemany(
                f"INSERT INTO {schema.PACKED_TABLE} VALUES (?, ?, ?, ?, ?, ?)",
                self._packed[record][1],
            )
            for statement in schema.triggers(record):
                connection.execute(statement)

    def _pack(self, record: type[Any]) -> Iterator[Packed]:
        order = self._order(record)
        for number, column in enumerate(schema.columns(record)):
            parts = [columns[number] for columns in self._parts[record]]
            words = None
            if column.kind == "float":
                continue
            if column.kind == "str":
                places: dict[str, int] = defaultdict(count().__next__)
                texts = map(places.__getitem__, chain.from_iterable(parts))
                numbers = np.fromiter(texts, np.int64, sum(map(len, parts)))
                text = _BETWEEN.join(places)
                if text.count(_BETWEEN) != len(places) - 1:
                    continue  # a text has the separator in it
                compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
                words = compressor.compress(text.encode())
            else:
                numbers = np.concatenate(parts)
            coded = codec.encode(numbers if order is None else numbers[order])
            yield record.table, column.name, coded.dtype, coded.length, coded.data, words

    def _order(self, record: type[Any]) -> np.ndarray | None:
        """The order in which rows are read; None: that in which they were added."""
        names = [column.name for column in schema.columns(record)]
        keys = schema.order(record).split(", ")
        if keys == ["rowid"]:
            return None
        columns = [
            np.concatenate([part[names.index(key)] for part in self._parts[record]]) for key in keys
        ]
        return np.lexsort(columns[::-1])


def _part(column: schema.Column, cells: Sequence[Any]) -> Part:
    if column.kind in ("str", "float"):
        return cells
    if column.optional:
        cells = [NO_VECTOR if cell is None else cell for cell in cells]
    return np.array(cells, dtype=np.int64)


def unpack(
    column: schema.Column, cells: Sequence[Any], rows: int, most_bytes: int
) -> np.ndarray | None:
    """A column of ``rows`` rows; None if the cells are not one.

    ``cells``: dtype, length, data and words of its row in `schema.PACKED`; ``most_bytes``: of its
    words.
    """
    if column.kind == "str":
        coded = unpack_texts(cells, rows, most_bytes)
        return None if coded is None else split(coded[1])[coded[0]]
    dtype, length, data, words = cells
    if length != rows or words is not None:
        return None
    try:
        return codec.decode(dtype, length, data, rows)
    except ValueError:
        return None


def unpack_texts(
    cells: Sequence[Any], rows: int, most_bytes: int
) -> tuple[np.ndarray, bytes] | None:
    """A column of texts as the position of each row's among the distinct ones, which `split`s."""
    dtype, length, data, words = cells
    if length != rows or type(words) is not bytes:
        return None
    try:
        numbers = codec.decode(dtype, length, data, rows)
        if zstandard.frame_content_size(words) > most_bytes:
            return None
        text = zstandard.ZstdDecompressor().decompress(words, allow_extra_data=False)
        if not text.isascii():
            text.decode()
    except (ValueError, zstandard.ZstdError):  # UnicodeDecodeError is a ValueError
        return None
    last = np.count_nonzero(np.frombuffer(text, np.uint8) == ord(_BETWEEN))
    if numbers.min(initial=0) < 0 or numbers.max(initial=0) > last:
        return None
    return numbers, text


def split(text: bytes) -> np.ndarray:
    """The distinct texts of a column: object[text]."""
    return np.array(text.decode().split(_BETWEEN), dtype=object)
