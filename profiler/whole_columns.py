"""Columns of large tables as compressed arrays, beside the rows that SQL sees.

Reading a column row by row costs SQLite the walk over the whole table. Where a table has many rows,
the writer stores its columns once more in `schema.PACKED`, as it publishes: numbers as the
``vectors`` are stored, texts as the distinct ones and the position of each row's in them. Triggers
remove a table's packed columns as soon as its rows change, so that the rows stay the only truth;
`ipu-report doctor` compares both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import zstandard

from profiler import codec, records, schema

NO_VECTOR = -1
_BETWEEN = "\x1f"  # of texts
_LEVEL = 3

Packed = tuple[str, str, str, int, bytes, bytes | None]  # a row of `schema.PACKED`


def store(connection: sqlite3.Connection, known: dict[type[Any], tuple[int, list[Packed]]]) -> None:
    """Pack the columns of every large table of a finished profile.

    ``known``: what was packed before, by record, with the number of rows then. Rows are only ever
    added, so that as many rows are the same rows.
    """
    counts = {
        record: connection.execute(f"SELECT count(*) FROM {record.table}").fetchone()[0]
        for record in records.STORED
    }
    large = {record: rows for record, rows in counts.items() if rows >= schema.LEAST_PACKED}
    if large:
        connection.execute(schema.PACKED)
    for record, rows in large.items():
        if record not in known or known[record][0] != rows:
            known[record] = rows, list(_pack(connection, record))
        connection.executemany(
            f"INSERT INTO {schema.PACKED_TABLE} VALUES (?, ?, ?, ?, ?, ?)", known[record][1]
        )
        for statement in schema.triggers(record):
            connection.execute(statement)


def _pack(connection: sqlite3.Connection, record: type[Any]) -> Iterator[Packed]:
    order = schema.order(record)
    for column in schema.columns(record):
        rows = connection.execute(f"SELECT {column.name} FROM {record.table} ORDER BY {order}")
        cells = [NO_VECTOR if cell is None else cell for (cell,) in rows]
        if column.kind == "str":
            words = list(dict.fromkeys(map(str, cells)))
            text = _BETWEEN.join(words)
            if text.count(_BETWEEN) != len(words) - 1:
                continue  # a text has the separator in it
            place = {word: number for number, word in enumerate(words)}
            coded = codec.encode(np.array([place[str(cell)] for cell in cells], dtype=np.int64))
            compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
            packed_words = compressor.compress(text.encode())
        elif column.kind == "float":
            continue
        else:
            coded, packed_words = codec.encode(np.array(cells, dtype=np.int64)), None
        yield record.table, column.name, coded.dtype, coded.length, coded.data, packed_words


def unpack(
    column: schema.Column, cells: Sequence[Any], rows: int, most_bytes: int
) -> np.ndarray | None:
    """A column of ``rows`` rows; None where the cells do not hold one.

    ``cells``: dtype, length, data and words of its row in `schema.PACKED`; ``most_bytes``: of its
    words.
    """
    dtype, length, data, words = cells
    if length != rows or (words is not None) != (column.kind == "str"):
        return None
    try:
        numbers = codec.decode(dtype, length, data, rows)
        if column.kind != "str":
            return numbers
        if type(words) is not bytes or zstandard.frame_content_size(words) > most_bytes:
            return None
        text = zstandard.ZstdDecompressor().decompress(words, allow_extra_data=False).decode()
    except (ValueError, zstandard.ZstdError):  # UnicodeDecodeError is a ValueError
        return None
    distinct = np.array(text.split(_BETWEEN), dtype=object)
    if numbers.min(initial=0) < 0 or numbers.max(initial=0) >= len(distinct):
        return None
    chosen: np.ndarray = distinct[numbers]
    return chosen
