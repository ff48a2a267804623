"""Reading a profile's tables and vectors with numpy only, trusting nothing in the file.

The file is opened strictly read-only. Its header is checked byte by byte before SQLite sees it;
views and generated columns in it are never read; lengths are checked before anything is allocated.
Any problem is a `ProfileError` with the path, the problem and the way out.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import struct
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import numpy as np

from ipuscope.profiler.answers import state_of
from ipuscope.profiler.errors import ProfileError
from ipuscope.profiler.file import codec, from_json, packed_columns, records, schema

# Where a run leaves its profile in a directory, in search order (docs/libpva.md#files-of-a-run).
NAMES = ("profile.pop", "training/profile.pop", "inference/profile.pop")

MAX_VALUE_BYTES = 1 << 28  # of one text or blob in the file
MAX_ELEMENTS = 1 << 26  # of all vectors requested at once without a given length
_NO_VECTOR = -1
VECTOR_CACHE_BYTES = 1 << 28
_TOGETHER = 512  # vectors decoded at once
_HEADER_BYTES = 100
_WAL = 2  # read and write version in the header of a database that keeps a write-ahead log
_MAGIC = b"SQLite format 3\0"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_FOREIGN = "Give a profile.pop that IPUscope wrote, or the directory of one"
_DAMAGED = "Run the model again to get a new profile"

# For each kind of column: the types that SQLite may give for it, and its dtype.
_TYPES: dict[str, tuple[set[type], type]] = {
    "int": ({int}, np.int64),
    "vector": ({int}, np.int64),
    "float": ({int, float}, np.float64),
    "str": ({str}, object),
}


def find_profile(path: str | os.PathLike[str]) -> Path:
    """The profile at ``path``, a file or a directory. ProfileError if there is none."""
    place = Path(path)
    if place.is_dir():
        for name in NAMES:
            if (place / name).is_file():
                return place / name
        named = list(place.glob("*/profile.pop"))
        if len(named) == 1:  # Options.modelName
            return named[0]
        partial = [place / (name + schema.PARTIAL_SUFFIX) for name in NAMES]
        problem = f"the directory has none of {', '.join(NAMES)}"
    elif place.exists():
        return place
    else:
        partial = [place.with_name(place.name + schema.PARTIAL_SUFFIX)]
        problem = "there is no such file"
    unfinished = [str(file) for file in partial if file.is_file()]
    if unfinished:
        raise ProfileError(
            place, problem, f"A run that did not finish left {unfinished[0]}: open that"
        )
    raise ProfileError(place, problem, "To get a profile: ipu-run --profile-dir out script.py")


class Reader:
    """Columns and vectors of one profile. Threads may share it.

    ``uri``: how SQLite opens the file, strictly read-only, without a file made beside it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = find_profile(path)
        with suppress(OSError):  # opening reports what is wrong
            self.state = state_of(self.path)
        self.uri = ""
        self._lock = threading.RLock()
        self._closed = False
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._vectors: dict[int, np.ndarray] = {}
        self._vector_bytes = 0
        self._counts: dict[str, int] = {}
        self._keeps_log = _check_header(self.path)
        self.partial = self.path.name.endswith(schema.PARTIAL_SUFFIX)
        try:
            self._connection = self._open()
            self._tables = self._check_tables()
            self.meta = self._read_meta()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; closing it again does nothing.

        Queries of other threads end first: one whose connection is gone crashes the interpreter.
        """
        with self._lock:
            self._closed = True
            if hasattr(self, "_connection"):
                self._connection.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- tables ---

    def columns(self, record: type[Any]) -> dict[str, np.ndarray]:
        """A table's columns: int64, float64 or object (str), vectors as ids, NULL as -1."""
        return self._read_columns(record, schema.columns(record))

    def some(self, record: type[Any], names: Iterable[str], rows: int) -> dict[str, np.ndarray]:
        """Some columns of a table, of its first ``rows`` rows."""
        by_name = {column.name: column for column in schema.columns(record)}
        wanted = [by_name[name] for name in names]
        columns = self.packed(record, wanted, rows)
        by_row = [column for column in wanted if column.name not in columns]
        if by_row:
            columns |= self._read_columns(record, by_row, rows)
        if any(len(values) != rows for values in columns.values()):
            raise self.damaged(f"{record.table} no longer has {rows} rows")
        return columns

    def packed(
        self, record: type[Any], columns: Sequence[schema.Column], rows: int
    ) -> dict[str, np.ndarray]:
        """Those of these columns that a table of ``rows`` rows has packed (`packed_columns`)."""
        cells = self._packed_cells(record, [column.name for column in columns], rows)
        answers = {}
        for column in columns:
            if column.name not in cells:
                continue
            values = packed_columns.unpack(column, cells[column.name], rows, MAX_VALUE_BYTES)
            if values is not None:
                self._check_vectors(record, column, values)
                answers[column.name] = values
        return answers

    def packed_texts(
        self, record: type[Any], name: str, rows: int
    ) -> tuple[np.ndarray, bytes] | None:
        """A packed column of texts (`packed_columns.unpack_texts`); None if it is not packed."""
        cells = self._packed_cells(record, [name], rows).get(name)
        if cells is None:
            return None
        return packed_columns.unpack_texts(cells, rows, MAX_VALUE_BYTES)

    def _packed_cells(
        self, record: type[Any], names: Sequence[str], rows: int
    ) -> dict[str, list[Any]]:
        """dtype, length, data and words of those of these columns that a table has packed."""
        if rows < schema.LEAST_PACKED or schema.PACKED_TABLE not in self._tables:
            return {}
        self._rows_of(record)
        marks = ",".join("?" * len(names))
        stored = self._query(
            f"SELECT name, dtype, length, data, words FROM main.{schema.PACKED_TABLE}"
            f" WHERE of = ? AND name IN ({marks})",
            [record.table, *names],
        )
        return {name: others for name, *others in stored}

    def packed_amiss(self, record: type[Any]) -> list[str]:
        """Packed columns of a table that differ from its rows."""
        stored = {record.table, schema.stored_in(record)} & self._tables
        if schema.PACKED_TABLE not in self._tables or not stored:
            return []
        columns, rows = schema.columns(record), self.count(record)
        packed = self.packed(record, columns, rows)
        both = [column for column in columns if column.name in packed]
        by_row = self._read_columns(record, both, rows) if both else {}
        return [name for name, values in by_row.items() if not np.array_equal(values, packed[name])]

    def _read_columns(
        self, record: type[Any], columns: Sequence[schema.Column], most: int = -1
    ) -> dict[str, np.ndarray]:
        """These columns of the first ``most`` rows (-1: of all)."""
        names = ", ".join(column.name for column in columns)
        rows = self._query(
            f"SELECT {names} FROM {self._rows_of(record)} ORDER BY {schema.order(record)} LIMIT ?",
            [most],
        )
        values: Iterable[tuple[Any, ...]] = (
            zip(*rows, strict=True) if rows else ((),) * len(columns)
        )
        return {
            column.name: self._column(record, column, cells)
            for column, cells in zip(columns, values, strict=True)
        }

    def count(self, record: type[Any]) -> int:
        """The number of rows of a table."""
        source = self._rows_of(record)
        if self.partial or source not in self._counts:  # a published file stays as it is
            self._counts[source] = int(self._query(f"SELECT count(*) FROM {source}")[0][0])
        return self._counts[source]

    def _column(
        self, record: type[Any], column: schema.Column, cells: tuple[Any, ...]
    ) -> np.ndarray:
        types = set(map(type, cells))
        if column.optional and type(None) in types:
            cells = tuple(_NO_VECTOR if cell is None else cell for cell in cells)
            types.discard(type(None))
        wanted, dtype = _TYPES[column.kind]
        if not types <= wanted:
            wrong = ", ".join(sorted(kind.__name__ for kind in types - wanted))
            raise self.damaged(
                f"{record.table}.{column.name} holds {wrong} where {column.kind} belongs"
            )
        values: np.ndarray = np.array(cells, dtype=dtype)
        self._check_vectors(record, column, values)
        return values

    def _check_vectors(self, record: type[Any], column: schema.Column, values: np.ndarray) -> None:
        least = _NO_VECTOR if column.optional else 0
        if column.kind == "vector" and values.min(initial=0) < least:
            raise self.damaged(f"{record.table}.{column.name} refers to the vector {values.min()}")

    def _rows_of(self, record: type[Any]) -> str:
        """What a record's rows are selected from: its table, or what our view of it selects.

        Tables must be plain ones with our columns: views and generated columns never run.
        """
        stored = schema.stored_in(record)
        if record.table in (stored, *self._tables):  # before format 4 every record has its table
            self._check_columns(record.table, record)
            return f"main.{record.table}"
        self._check_columns(stored, record)
        self._check_columns(records.Program.table, records.Program)
        return f"({schema.SELECTS[record.table]})"

    def _check_columns(self, table: str, record: type[Any]) -> None:
        if table not in self._tables:
            raise self.damaged(f"the table {table} is missing")
        present = {row[1]: row[6] for row in self._query(f"PRAGMA main.table_xinfo({table})")}
        for column in schema.columns(record):
            if present.get(column.name) != 0 and (column.stored or table == record.table):
                raise self.damaged(f"the column {table}.{column.name} is missing")

    def texts(self, record: type[Any], column: str, ids: list[int]) -> list[str]:
        """A text of each of these rows, with ascending ids; ProfileError if one is not there."""
        rows: list[tuple[Any, Any]] = []
        source = self._rows_of(record)
        for at in range(0, len(ids), _TOGETHER):
            some = ids[at : at + _TOGETHER]
            marks = ",".join("?" * len(some))
            rows += self._query(
                f"SELECT id, {column} FROM {source} WHERE id IN ({marks}) ORDER BY id", some
            )
        if [id for id, _ in rows] != ids or any(type(text) is not str for _, text in rows):
            raise self.damaged(f"{record.table}.{column} of some rows is not text")
        return [text for _, text in rows]

    # -- vectors ---

    def vector(self, id: int, length: int | None = None) -> np.ndarray:
        """The vector with that id, int64; ProfileError unless it has ``length`` entries."""
        return self.vectors([id], length)[id]

    def vectors(self, ids: Iterable[int], length: int | None = None) -> dict[int, np.ndarray]:
        """Vectors by id, each once; negative ids are left out. They are shared, so read-only."""
        wanted = sorted({int(id) for id in ids if id >= 0})
        with self._lock:
            answers = {id: self._vectors[id] for id in wanted if id in self._vectors}
            missing = [id for id in wanted if id not in answers]
            rows = self._select("id, dtype, length, data", missing)
            sizes = [row[2] for row in rows if length is None and isinstance(row[2], int)]
            if sum(sizes) > MAX_ELEMENTS:
                raise self.damaged(
                    f"{len(rows)} vectors together may have {MAX_ELEMENTS} entries, and have more"
                )
            decoded = self._decoded(rows, length)
            self._cache(decoded)
            answers |= decoded
        for id in wanted:
            if id not in answers:
                raise self.damaged(f"the vector {id} is missing")
            if length is not None and len(answers[id]) != length:
                raise self.damaged(
                    f"the vector {id} has {len(answers[id])} entries instead of {length}"
                )
        return answers

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        """The number of entries of each of these vectors, as stored: int64."""
        wanted = np.unique(ids)
        stored = dict(self._select("id, length", wanted.tolist()))
        lengths = [stored.get(id) for id in wanted.tolist()]
        if any(type(length) is not int or length < 0 for length in lengths):
            raise self.damaged("the length of a vector is missing")
        of_each: np.ndarray = np.array([*lengths, 0], dtype=np.int64)[np.searchsorted(wanted, ids)]
        return of_each

    def matrix(self, ids: list[int], length: int) -> np.ndarray:
        """Vectors of ``length`` entries, a row each: int64[id, entry]; not cached.

        ``ids``: ascending, each once.
        """
        rows = self._select("id, dtype, length, data", ids)
        rows.sort()
        if [row[0] for row in rows] != ids or any(row[2] != length for row in rows):
            vectors = self.vectors(ids, length)  # raises if something is wrong
            return np.array([vectors[id] for id in ids], dtype=np.int64).reshape(-1, length)
        whole = np.empty((len(ids), length), dtype=np.int64)
        for at in range(0, len(rows), _TOGETHER):
            some = rows[at : at + _TOGETHER]
            try:
                codec.decode_into(whole[at : at + _TOGETHER], [(row[1], row[3]) for row in some])
            except ValueError:
                for row in some:
                    self._decode(row, length)
                raise
        return whole

    def _cache(self, arrays: dict[int, np.ndarray]) -> None:
        """Cache vectors, if they are not too large."""
        size = sum(array.nbytes for array in arrays.values())
        if self._vector_bytes + size > VECTOR_CACHE_BYTES:
            self._vectors.clear()
            self._vector_bytes = 0
        if size <= VECTOR_CACHE_BYTES:
            self._vectors |= arrays
            self._vector_bytes += size

    def _select(self, names: str, ids: list[int]) -> list[tuple[Any, ...]]:
        """Columns of the vectors' table, for some ids."""
        rows = []
        for at in range(0, len(ids), 500):
            some = ids[at : at + 500]
            marks = ",".join("?" * len(some))
            rows += self._query(f"SELECT {names} FROM main.vectors WHERE id IN ({marks})", some)
        return rows

    def _decoded(self, rows: list[tuple[Any, ...]], length: int | None) -> dict[int, np.ndarray]:
        """Rows of the vectors' table as arrays by id."""
        most = codec.MAX_LENGTH if length is None else length
        arrays: dict[int, np.ndarray] = {}
        for at in range(0, len(rows), _TOGETHER):
            some = rows[at : at + _TOGETHER]
            try:
                decoded = codec.decode_all([row[1:] for row in some], most)
            except ValueError:
                decoded = [self._decode(row, most) for row in some]  # tells which one is wrong
            for (id, *_), array in zip(some, decoded, strict=True):
                array.flags.writeable = False
                arrays[id] = array
        return arrays

    def _decode(self, row: tuple[Any, ...], most: int) -> np.ndarray:
        id, dtype, size, data = row
        try:
            return codec.decode(dtype, size, data, most)
        except ValueError as error:
            raise self.damaged(f"the vector {id} is {error}") from error

    # -- errors ---

    def damaged(self, problem: str) -> ProfileError:
        """The error for impossible content."""
        return ProfileError(self.path, problem, _DAMAGED)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, OSError, UnicodeError, OverflowError) as error:
            raise self.damaged(f"the profile cannot be read ({error})") from error

    # -- opening ---

    def _query(self, sql: str, values: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._errors():
            if self._closed:
                raise ProfileError(self.path, "the profile was closed", "Open it again")
            return self._connection.execute(sql, tuple(values)).fetchall()

    def _open(self) -> sqlite3.Connection:
        with self._errors():
            if not self.partial or self._keeps_log:
                # A published profile never changes in place, and our partial files never have a
                # log: immutable keeps SQLite from looking for journals, and from making any.
                return self._connect(self.path, "mode=ro&immutable=1")
            try:
                connection = self._connect(self.path, "mode=ro")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
                return connection
            except sqlite3.Error:
                return self._recover()

    def _connect(self, path: Path, mode: str) -> sqlite3.Connection:
        self.uri = f"file:{quote(os.fsencode(path.absolute()))}?{mode}"
        return _connect(self.uri)

    def _recover(self) -> sqlite3.Connection:
        """Open a copy of a partial file whose writer died in a commit, and roll it back there."""
        self._scratch = tempfile.TemporaryDirectory(prefix="ipuscope-")
        copy = Path(self._scratch.name) / self.path.name
        shutil.copyfile(self.path, copy)
        journal = self.path.with_name(self.path.name + "-journal")
        # A journal that names another file (in its last 8 bytes) is not ours; SQLite would delete
        # that file.
        if journal.is_file() and not journal.read_bytes().endswith(_JOURNAL_MAGIC):
            shutil.copyfile(journal, copy.with_name(journal.name))
        return self._connect(copy, "mode=rw")

    def _check_tables(self) -> set[str]:
        rows = self._query(
            "SELECT name FROM main.sqlite_master WHERE type = 'table' AND rootpage > 0"
        )
        tables = {row[0] for row in rows}
        for name in ("meta", "vectors"):
            if name not in tables:
                raise self.damaged(f"the table {name} is missing")
        for name in tables & {"meta", "vectors", schema.PACKED_TABLE}:
            if any(row[6] for row in self._query(f"PRAGMA main.table_xinfo({name})")):
                raise self.damaged(f"the table {name} has columns that do not belong there")
        return tables

    def _read_meta(self) -> dict[str, Any]:
        meta = {}
        for key, value in self._query("SELECT key, value FROM main.meta LIMIT 1000"):
            try:
                meta[str(key)] = from_json.loads(value)
            except (ValueError, TypeError) as error:
                raise self.damaged(f"the header entry {key!r} is not JSON ({error})") from error
        return meta


def _connect(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    ):
        connection.setlimit(limit, value)
    for pragma in (
        "query_only = ON",
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "mmap_size = 0",
    ):
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _check_header(path: Path) -> bool:
    """Whether the file keeps a log beside it, after checks of its first 100 bytes.

    They cover magic, application id, version and size. Source: SQLite's file format, section 1.3.
    """
    try:
        # reading a pipe would wait, and a device has no end
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError("it is not a regular file")
        with open(path, "rb") as file:
            header = file.read(_HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ProfileError(
            path, f"the file cannot be read ({error.strerror or error})", _FOREIGN
        ) from error
    if not header:
        raise ProfileError(path, "the file is empty", _DAMAGED)
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise ProfileError(
            path, "this is not a profile (it does not begin like a SQLite database)", _FOREIGN
        )
    page_size, pages = struct.unpack_from(">H10xI", header, 16)
    version, application = struct.unpack_from(">I4xI", header, 60)
    if application != schema.APPLICATION_ID:
        raise ProfileError(
            path, "this is a SQLite database, but not one that IPUscope wrote", _FOREIGN
        )
    if version > schema.VERSION:
        raise ProfileError(
            path,
            f"the profile has format {version}, and this IPUscope reads up to {schema.VERSION}",
            "Update IPUscope: git pull in its clone, and install that again",
        )
    if version < schema.OLDEST:
        raise ProfileError(
            path,
            f"the profile has format {version}; this IPUscope reads from format {schema.OLDEST} on",
            "Run the model again: ipu-run --compile-only SCRIPT writes a new profile",
        )
    expected = (65536 if page_size == 1 else page_size) * pages
    if size < expected and not path.name.endswith(schema.PARTIAL_SUFFIX):
        raise ProfileError(path, f"the file is cut off: {size} bytes of {expected}", _DAMAGED)
    return _WAL in header[18:20]
