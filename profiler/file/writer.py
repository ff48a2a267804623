"""Writing a profile: rows go to ``path + ".partial"``, then one rename to ``path``.

The run is worth more than its profile: whatever goes wrong with the file (a full disk, an
unwritable directory) is a `ProfileError` that names the path, and nothing else. The engine catches
it, warns once and continues without a profile; the earlier profile at ``path`` stays as it was. One
process at a time writes to a path (`ipuscope.profiler.file.lock`); the leftovers of a dead one are
cleared.
"""

from __future__ import annotations

import json
import operator
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from zstandard import ZstdCompressor

from ipuscope.profiler.errors import ProfileError, ProfileTaken
from ipuscope.profiler.file import codec, lock, packed_columns, records, schema, seal, sql_rows

_MOST_VALUES = 999  # of a statement, in SQLite before 3.32
_REMEDY = "Free some space or choose another directory for the profile; the run itself needs none"
_GONE = (
    "its directory was removed, replaced or made read-only while it was being written",
    "Leave the directory alone until the run ends; the run itself does not need it",
)
_REPLACED = (
    "another model of this process began a profile there",
    "Give each model a directory, or a name with Options.modelName",
)
_OF_PARENT = (
    "the process that this one was forked from writes it",
    "Make the model in the process that runs it",
)


class ProfileWriter:
    """Writes one profile. Usable as a context manager, which closes it.

    Every `add` is one transaction, so that a killed run leaves a partial file with all rows of
    every finished `add`. Every method raises `ProfileError` when the file cannot be written, and
    only then (`ProfileTaken` if another process is writing it); TypeError and ValueError mean that
    a row itself is wrong.

    ``path`` is absolute, so that a script may change its working directory. A writer belongs to the
    process that made it: in a forked child, `close` leaves the file to the parent.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, writer: str = "IPUscope", plain_rows: bool = True
    ) -> None:
        """``plain_rows`` False: without the tables that only SQL reads, in half the time."""
        try:
            self.path = Path(os.path.abspath(path))
        except FileNotFoundError as error:
            raise ProfileError(path, "the working directory was removed", _REMEDY) from error
        self._process = os.getpid()
        self._inode = -1
        self._plain_rows = plain_rows
        self.partial = self.path.with_name(self.path.name + schema.PARTIAL_SUFFIX)
        self._vectors: dict[bytes, int] = {}
        self._compressor = codec.compressor()
        self._runs_of: set[int] = set()  # vectors whose runs are stored
        self._earlier = sql_rows.Earlier()
        self._whole = packed_columns.WholeColumns()
        self._published = False
        self._locked = False
        self._take()
        try:
            self._begin(writer)
        except BaseException:
            self._let_go()
            raise

    def _begin(self, writer: str) -> None:
        """Begin an empty profile in the partial file, where a dead process may have left one."""
        with self._errors():
            _remove(self.partial)
            _remove(self._copy)
            self._connection = sqlite3.connect(
                self.partial, isolation_level=None, check_same_thread=False
            )
            # The partial file has to survive a killed process, not a power cut: no fsync until
            # `publish`.
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.execute("PRAGMA cache_spill = OFF")
            with self._transaction():
                for statement in schema.statements():
                    self._connection.execute(statement)
            self._inode = os.stat(self.partial).st_ino
        created = datetime.now(UTC).isoformat(timespec="seconds")
        self.meta(
            format=schema.VERSION,
            writer=writer,
            created=created,
            complete=False,
            state="compiled",
            warnings=[],
        )

    def _take(self) -> None:
        if "\0" in str(self.path):
            raise ProfileError(
                self.path, "a path cannot have a NUL in it", "Give another directory"
            )
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._locked = lock.acquire(self.path)
        if not self._locked:
            raise ProfileTaken(
                self.path,
                "another process is writing this profile",
                "Give each of several runs at a time a directory of its own",
            )

    @property
    def is_own(self) -> bool:
        """Whether this process made the writer; a forked child did not."""
        return self._process == os.getpid()

    def _is_own_partial(self) -> bool:
        """Whether no other writer of this process has begun a newer partial file."""
        try:
            return os.stat(self.partial).st_ino == self._inode
        except OSError:
            return False

    def _let_go(self) -> None:
        if self._locked:
            self._locked = False
            lock.release(self.path)

    @property
    def _copy(self) -> Path:
        return self.path.with_name(self.path.name + ".publishing")

    def meta(self, **values: Any) -> None:
        """Set entries of the header, anything JSON can express; an earlier entry is replaced."""
        rows = [(key, json.dumps(value)) for key, value in values.items()]
        with self._errors(), self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def add(self, rows: Iterable[Any]) -> None:
        """Store records of any kinds, or `records.Rows`, as one transaction: or none."""
        by_type: dict[type[Any], list[Any]] = {}
        for row in rows:
            by_type.setdefault(type(row), []).append(row)
        tables = [table for kind, group in by_type.items() for table in _tables(kind, group)]
        cells, earlier = dict(tables), self._earlier.copy()
        if len(cells) < len(tables):
            raise ValueError("rows of one record come in several records.Rows")
        _check_steps(cells)
        vectors = _VectorBatch(self._vectors, self._compressor)
        columns = {kind: _prepare(kind, of_record, vectors) for kind, of_record in cells.items()}
        on_tiles = (of.get(records.Variable, {}).get("tile_bytes", ()) for of in (columns, cells))
        runs = dict(zip(*on_tiles, strict=True))
        tuples: dict[type[Any], Iterable[sql_rows.Row]] = {}
        if self._plain_rows:
            tuples |= sql_rows.derived(by_type, cells, columns, earlier)
            fresh = [(id, values) for id, values in runs.items() if id not in self._runs_of]
            tuples[records.TileRun] = sql_rows.tile_runs(fresh)
        with self._errors(), self._transaction():
            self._connection.executemany("INSERT INTO vectors VALUES (?, ?, ?, ?, ?)", vectors.rows)
            for kind, named in columns.items():
                stored = [named[one.name] for one in schema.columns(kind) if one.stored]
                self._insert(kind, zip(*stored, strict=True))
            for kind, rows_of_kind in tuples.items():
                self._insert(kind, rows_of_kind)
        self._vectors.update(vectors.new)
        self._runs_of.update(runs)
        self._earlier = earlier
        for kind in columns.keys() & set(records.STORED):
            self._whole.add(kind, columns[kind].values())

    def _insert(self, kind: type[Any], rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows, many by each statement: SQLite takes a lock for every one."""
        columns = sum(column.stored for column in schema.columns(kind))
        most, left = _MOST_VALUES // columns * columns, chain.from_iterable(rows)
        row = f"({', '.join('?' * columns)})"
        for count, values in groupby(iter(lambda: tuple(islice(left, most)), ()), key=len):
            insert = f"INSERT INTO {schema.stored_in(kind)} VALUES "
            self._connection.executemany(insert + ", ".join([row] * (count // columns)), values)

    def publish(self) -> Path:
        """Put what was added so far at ``path``, complete, in one rename; more rows may follow.

        The copy is on the disk before it replaces the old profile, so that even a power cut leaves
        one of the two. What is there already is not written again.
        """
        if self._published and self.path.is_file():
            return self.path
        copy = self._copy
        with self._errors():
            try:
                _remove(copy)
                if not self._is_own_partial():
                    raise FileNotFoundError(self.partial)
                shutil.copyfile(self.partial, copy)
                target = sqlite3.connect(copy, isolation_level=None)
                try:
                    target.execute("PRAGMA synchronous = OFF")
                    target.execute("BEGIN")
                    self._whole.store(target)
                    target.execute("UPDATE meta SET value = 'true' WHERE key = 'complete'")
                    target.execute(
                        "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                        (seal.ENTRY, json.dumps(seal.BLANK)),
                    )
                    target.execute("COMMIT")
                finally:
                    target.close()
                seal.seal(copy)
                _fsync(copy)
                os.replace(copy, self.path)
            except BaseException:
                _remove(copy)
                raise
        with suppress(OSError):  # the profile exists even where no directory can be synchronised
            _fsync(self.path.parent)
        self._published = True
        return self.path

    def close(self) -> None:
        """End writing. The partial file goes if all of it was published, and stays otherwise."""
        if not self.is_own:
            return
        with suppress(sqlite3.Error):
            self._connection.close()
        try:
            if self._published and self._is_own_partial():
                with self._errors():
                    _remove(self.partial)
        finally:
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if not self.is_own:
            raise ProfileError(self.path, *_OF_PARENT)
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise ProfileError(self.path, *self._cause(error)) from error

    def _cause(self, error: Exception) -> tuple[str, str]:
        """The problem and the way out: SQLite only says that the database is read-only."""
        if self._inode >= 0 and not os.access(self.path.parent, os.W_OK | os.X_OK):
            return _GONE
        if self._inode >= 0 and not self._is_own_partial():
            return _REPLACED if self.partial.is_file() else _GONE
        return f"the profile cannot be written ({error})", _REMEDY

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._published = False


class _VectorBatch:
    """Assigns ids to vectors, one id per distinct content, and collects the rows of new ones."""

    def __init__(self, stored: dict[bytes, int], compressor: ZstdCompressor) -> None:
        self.stored, self._compressor = stored, compressor
        self.new: dict[bytes, int] = {}
        self.rows: list[tuple[int, bytes, str, int, bytes]] = []
        # Within one `add` the rows keep their arrays alive and unchanged: the same object is the
        # same content.
        self._by_object: dict[int, int] = {}

    def ids(self, values: Sequence[Any], optional: bool = False) -> list[Any]:
        """The ids of several vectors; ``optional``: None stays None."""
        objects = list(map(id, values))
        for key, one in dict(zip(objects, values, strict=True)).items():
            if key not in self._by_object and not (optional and one is None):
                self._by_object[key] = self._by_content(one)
        return list(map(self._by_object.get, objects))

    def _by_content(self, values: Any) -> int:
        array = codec.narrow(np.asarray(values))
        hashed = blake2b(
            array.tobytes(), digest_size=16, person=f"<i{array.itemsize}".encode()
        ).digest()
        number = self.stored.get(hashed, self.new.get(hashed))
        if number is None:
            number = self.new[hashed] = len(self.stored) + len(self.new)
            coded = codec.encode_narrow(array, self._compressor)
            self.rows.append((number, hashed, coded.dtype, coded.length, coded.data))
        return number


def _tables(kind: type[Any], rows: Sequence[Any]) -> list[tuple[type[Any], sql_rows.Columns]]:
    """Rows of one type as the columns of their record's table."""
    if kind is records.Rows:
        return [(one.of, one.columns) for one in rows]
    if kind not in records.TABLES:
        raise TypeError(f"{kind.__name__} is not a record of ipuscope.profiler.file.records")
    names = [column.name for column in schema.columns(kind)]
    return [(kind, {name: list(map(operator.attrgetter(name), rows)) for name in names})]


def _check_steps(cells: Mapping[type[Any], sql_rows.Columns]) -> None:
    """Raise ValueError unless each step is like its program, where alone its texts are stored."""
    programs, steps = cells.get(records.Program, {}), cells.get(records.Step)
    if steps is not None:
        of_programs = zip(*(programs.get(name, ()) for name in ("type", "name")), strict=True)
        texts = dict(zip(programs.get("id", ()), of_programs, strict=True))
        own = zip(steps["type"], steps["name"], strict=True)
        for id, program, of_step in zip(steps["id"], steps["program"], own, strict=True):
            if texts.get(program) != of_step:
                raise ValueError(
                    f"step {id}: add it with its program, which has the same type and name"
                )


def _prepare(record: type[Any], cells: sql_rows.Columns, vectors: _VectorBatch) -> sql_rows.Columns:
    """Columns for SQLite, by name: numpy scalars as plain numbers, vectors as ids."""
    converters: dict[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
        "int": partial(_numbers, int, operator.index),
        "float": partial(_numbers, float, float),
        "str": _texts,
    }
    named = {}
    for column in schema.columns(record):
        convert = converters.get(column.kind) or partial(vectors.ids, optional=column.optional)
        try:
            named[column.name] = convert(cells[column.name])
        except (TypeError, ValueError) as error:
            raise type(error)(f"{record.__name__}.{column.name}: {error}") from error
    return named


def _numbers(kind: type, convert: Callable[[Any], float], values: Sequence[Any]) -> Sequence[float]:
    return values if set(map(type, values)) <= {kind} else list(map(convert, values))


def _texts(values: Sequence[Any]) -> Sequence[str]:
    kinds = set(map(type, values))
    if kinds <= {str}:
        return values
    words = {id(value): value for value in values}  # of an enum few
    for value in words.values():
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not text")
    words = {key: str(value) for key, value in words.items()}
    return list(map(words.__getitem__, map(id, values)))


def _remove(path: Path) -> None:
    for name in (path, path.with_name(path.name + "-journal")):
        name.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
