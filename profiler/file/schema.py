"""The tables of ``profile.pop``, made from the dataclasses of `ipuscope.profiler.file.records`.

A profile is a SQLite database. ``application_id`` marks it as ours, ``user_version`` is the version
of the schema. ``python -m tools.pop_format > docs/pop-format.md`` writes the documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import Bound

APPLICATION_ID = 0x49505553  # "IPUS"
VERSION, OLDEST = 4, 3  # written, and still read

PACKED_TABLE = "packed_columns"
LEAST_PACKED = 4096  # rows of a table whose columns are packed: fewer are read as quickly
PACKED = f"""CREATE TABLE {PACKED_TABLE} (
  of TEXT NOT NULL,
  name TEXT NOT NULL,
  dtype TEXT NOT NULL,
  length INTEGER NOT NULL,
  data BLOB NOT NULL,
  words BLOB,
  UNIQUE (of, name)
)"""

PARTIAL_SUFFIX = ".partial"  # of a file that is being written

META = """CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value TEXT NOT NULL
)"""
VECTORS = """CREATE TABLE vectors (
  id INTEGER PRIMARY KEY,
  hash BLOB NOT NULL UNIQUE,
  dtype TEXT NOT NULL,
  length INTEGER NOT NULL,
  data BLOB NOT NULL
)"""

SQL_TYPES = {"int": "INTEGER", "float": "REAL", "str": "TEXT", "vector": "INTEGER"}
_KINDS: dict[type, str] = {int: "int", float: "float", str: "str", np.ndarray: "vector"}


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a record. ``kind`` is "int", "float", "str" or "vector".

    ``bound``: its valid values; None of texts that may be anything. ``stored``: it is a column of
    the record's table, and not only of its view.
    """

    name: str
    kind: str
    optional: bool
    bound: Bound | None
    stored: bool

    @property
    def sql(self) -> str:
        """The statement that creates it."""
        reference = " REFERENCES vectors(id)" if self.kind == "vector" else ""
        null = "" if self.optional else " NOT NULL"
        return f"{self.name} {SQL_TYPES[self.kind]}{null}{reference}"


def columns(record: Any) -> tuple[Column, ...]:
    """The columns of a record's table, in order."""
    return _columns(record)  # `cache` hides the type, and mypy takes type[Any] for not hashable


@cache
def _columns(record: Any) -> tuple[Column, ...]:
    return tuple(_column(record, item.name, item.type) for item in fields(record))


def _column(record: type[Any], name: str, hint: Any) -> Column:
    optional = NoneType in get_args(hint)
    if optional:
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    kind, bound = get_args(hint) if hasattr(hint, "__metadata__") else (hint, None)
    if kind not in _KINDS:
        raise TypeError(f"{record.__name__}.{name}: a table has no column for {hint!r}")
    return Column(
        name, _KINDS[kind], optional, bound, name not in getattr(record, "of_program", ())
    )


def stored_in(record: type[Any]) -> str:
    """The table that a record's rows are written to."""
    return getattr(record, "stored", record.table)


def create_table(record: type[Any]) -> str:
    """The DDL of a record's table; its key: a first column ``id``, an option's name, or ``key``."""
    lines = [column.sql for column in columns(record) if column.stored]
    if lines[0].startswith("id ") or record is records.Option:
        name, kind, *_ = lines[0].split()
        lines[0] = f"{name} {kind} PRIMARY KEY" + ("" if kind == "INTEGER" else " NOT NULL")
    key = getattr(record, "key", "")
    if key:
        lines.append(f"PRIMARY KEY ({key})")
    return (
        f"CREATE TABLE {stored_in(record)} (\n  "
        + ",\n  ".join(lines)
        + "\n)"
        + (" WITHOUT ROWID" if key else "")
    )


def order(record: type[Any]) -> str:
    """The order in which a record's rows are read."""
    return getattr(record, "key", "id" if columns(record)[0].name == "id" else "rowid")


def triggers(record: type[Any]) -> Iterator[str]:
    """The DDL that removes the packed columns of a table whose rows change."""
    also = records.Step.table if record is records.Program else record.table
    for change in ("INSERT", "UPDATE", "DELETE"):
        yield (
            f"CREATE TRIGGER packed_{record.table}_{change.lower()} AFTER {change} ON"
            f" {stored_in(record)} BEGIN DELETE FROM {PACKED_TABLE}"
            f" WHERE of IN ('{record.table}', '{also}'); END"
        )


@dataclass(frozen=True, slots=True)
class View:
    """A view with plain names over the tables.

    ``vendor``: named as in the vendor's files (docs/libpva.md#files-of-a-run).
    """

    name: str
    columns: str
    select: str
    purpose: str
    vendor: bool = False

    @property
    def sql(self) -> str:
        """The statement that creates it."""
        return f"CREATE VIEW {self.name}({self.columns}) AS {self.select}"


_CATEGORY_ROWS = (f"SELECT {i}, '{name}'" for i, name in enumerate(records.CATEGORIES))
_CATEGORIES = " UNION ALL ".join(_CATEGORY_ROWS)


def _written_views() -> Iterator[View]:
    """The views of ``views.sql``."""
    text = Path(__file__).with_name("views.sql").read_text(encoding="utf-8")
    one = r"^((?:-- .*\n)+)CREATE VIEW (\w+)\(([^)]*)\) AS\n([^;]*);"
    for found in re.findall(one, text, re.MULTILINE):
        note, name, columns, select = (" ".join(part.replace("-- ", "").split()) for part in found)
        purpose = note.removeprefix("(vendor) ")
        yield View(name, columns, select, purpose, vendor=purpose != note)


VIEWS = (
    *_written_views(),
    View("var_categories", "id, name", _CATEGORIES, "storage categories", vendor=True),
)
SELECTS = {view.name: view.select for view in VIEWS}


def statements() -> list[str]:
    """Everything that makes an empty profile, in order."""
    return [
        f"PRAGMA application_id = {APPLICATION_ID}",
        f"PRAGMA user_version = {VERSION}",
        META,
        VECTORS,
        *(create_table(record) for record in records.TABLES),
        *(view.sql for view in VIEWS),
    ]
