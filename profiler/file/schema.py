"""The tables of ``profile.pop``, made from the dataclasses of `ipuscope.profiler.file.records`.

A profile is a SQLite database. ``application_id`` marks it as ours, ``user_version`` is the version
of the schema. ``python -m tools.pop_format > docs/pop-format.md`` writes the documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import Bound

APPLICATION_ID = 0x49505553  # "IPUS"
VERSION = 3

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

    ``bound``: its valid values; None of texts that may be anything.
    """

    name: str
    kind: str
    optional: bool
    bound: Bound | None

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
    hints = get_type_hints(record, include_extras=True)
    return tuple(_column(record, item.name, hints[item.name]) for item in fields(record))


def _column(record: type[Any], name: str, hint: Any) -> Column:
    optional = NoneType in get_args(hint)
    if optional:
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    kind, bound = get_args(hint) if hasattr(hint, "__metadata__") else (hint, None)
    if kind not in _KINDS:
        raise TypeError(f"{record.__name__}.{name}: a table has no column for {hint!r}")
    return Column(name, _KINDS[kind], optional, bound)


def create_table(record: type[Any]) -> str:
    """The DDL of a record's table; its key: a first column ``id``, an option's name, or ``key``."""
    lines = [column.sql for column in columns(record)]
    if lines[0].startswith("id ") or record is records.Option:
        name, kind, *_ = lines[0].split()
        lines[0] = f"{name} {kind} PRIMARY KEY" + ("" if kind == "INTEGER" else " NOT NULL")
    key = getattr(record, "key", "")
    if key:
        lines.append(f"PRIMARY KEY ({key})")
    return (
        f"CREATE TABLE {record.table} (\n  "
        + ",\n  ".join(lines)
        + "\n)"
        + (" WITHOUT ROWID" if key else "")
    )


def order(record: type[Any]) -> str:
    """The order in which a record's rows are read."""
    key: str = getattr(record, "key", "rowid")
    return key


def triggers(record: type[Any]) -> Iterator[str]:
    """The DDL that removes the packed columns of a table whose rows change."""
    for change in ("INSERT", "UPDATE", "DELETE"):
        yield (
            f"CREATE TRIGGER packed_{record.table}_{change.lower()} AFTER {change} ON"
            f" {record.table} BEGIN DELETE FROM {PACKED_TABLE} WHERE of = '{record.table}'; END"
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


def _category_rows() -> str:
    return " UNION ALL ".join(f"SELECT {i}, '{name}'" for i, name in enumerate(records.CATEGORIES))


VIEWS = (
    View(
        "stage_cycles",
        "stage, ipu, cycles, forward_cycles, backward_cycles",
        "SELECT id, ipu, forward_cycles + backward_cycles, forward_cycles, backward_cycles FROM"
        " stages ORDER BY id",
        "what one micro-batch costs on each stage",
    ),
    View(
        "block_cycles",
        "block, name, stage, ipu, cycles, forward_cycles, backward_cycles",
        "SELECT id, name, stage, ipu, forward_cycles + backward_cycles, forward_cycles,"
        " backward_cycles FROM blocks ORDER BY id",
        "what one micro-batch costs in each Block",
    ),
    View(
        "op_cycles",
        "op, name, aten, block, direction, cycles, flops",
        "SELECT ops.id, ops.name, aten, blocks.name, direction, cycles, flops "
        "FROM ops LEFT JOIN blocks ON blocks.id = ops.block ORDER BY cycles DESC",
        "operators, the most expensive first",
    ),
    View(
        "step_activity",
        "step, active_tiles, first_cycles, last_cycles, tile_balance, active_tile_balance,"
        " bytes_in, bytes_out",
        "SELECT s.id, active_tiles, iif(first_cycles < 0, s.cycles, first_cycles),"
        " iif(last_cycles < 0, s.cycles, last_cycles), tile_balance, active_tile_balance,"
        " received, sent FROM program_steps s JOIN activities a"
        " ON a.tile_cycles = coalesce(s.tile_cycles, -1)"
        " AND a.bytes_in = coalesce(s.bytes_in, -1) AND a.bytes_out = coalesce(s.bytes_out, -1)",
        "what the tiles do in a program step; bytes are sums over tiles",
    ),
    View(
        "body_steps",
        "body, position, step, start, stop",
        "SELECT b.body, p.position, b.first_step + p.offset, p.start, p.stop FROM body_patterns b"
        " JOIN pattern_steps p ON p.pattern = b.pattern",
        "the steps of each body in order; cycles relative to its start, stop of the last is -1",
    ),
    View(
        "program_step_cycles",
        "step, ipu, body, op, name, times, cycles",
        "SELECT s.id, s.ipu, s.body, s.op, s.name, b.times, b.times * s.cycles FROM program_steps s"
        " JOIN (SELECT body, step, count(*) AS times FROM body_steps GROUP BY body, step) b"
        " ON b.body = s.body AND b.step = s.id",
        "the steps of each body, those of loops as often as they run: what to sum, where"
        " sum(cycles) of program_steps counts each once",
    ),
    View(
        "run_cycles",
        "run, name, iterations, start, cycles",
        "SELECT runs.id, name, iterations, cycle_start, iterations * iteration_cycles "
        "FROM runs JOIN traces ON traces.id = runs.trace ORDER BY runs.id",
        "how long each profiled run took",
    ),
    View(
        "always_live_bytes",
        "ipu, category, role, bytes",
        "SELECT ipu, category, role, sum(bytes) FROM variables WHERE always_live GROUP BY ipu,"
        " category, role",
        "what fills the memory all the time",
    ),
    # LIMIT -1 keeps SQLite from flattening the view into a query that joins it, which would compare
    # every pair
    View(
        "execution_steps",
        "id, run, iteration, ipu, micro_batch, pipeline_cycle, step, start, cycles, waited",
        "SELECT i.first_step + t.first_step + b.position, i.run, i.iteration, t.ipu, t.micro_batch,"
        " t.pipeline_cycle, b.step, i.start + t.start + b.start, iif(b.stop < 0, t.end - t.start,"
        " b.stop) - b.start, t.waited FROM iterations i JOIN tasks t ON t.trace = i.trace"
        " JOIN body_steps b ON b.body = t.body LIMIT -1",
        "every step of every run; external syncs last as long as their IPU waits, waited of it",
    ),
    View(
        "stage_micro_batches",
        "run, iteration, stage, direction, micro_batch, ipu, start, end",
        "SELECT i.run, i.iteration, b.stage, b.direction, t.micro_batch, t.ipu, i.start + t.start,"
        " i.start + t.end FROM iterations i JOIN tasks t ON t.trace = i.trace JOIN bodies b ON b.id"
        " = t.body WHERE b.stage >= 0",
        "when each stage worked on which micro-batch",
    ),
    View(
        "tile_headroom",
        "ipu, fullest_tile, bytes, free_bytes",
        "SELECT ipu, tile, iif(overflow > 0, total, total_excluding_gaps), bytes_per_tile -"
        " iif(overflow > 0, total, total_excluding_gaps) FROM (SELECT *, row_number() OVER"
        " (PARTITION BY ipu ORDER BY overflow DESC, total_excluding_gaps DESC, tile) AS place"
        " FROM tile_memory) JOIN target WHERE place = 1",
        "the fullest tile of each IPU, what it uses; free_bytes below 0: its extent does not fit",
    ),
    View(
        "steps",
        "id, type, program, compute_set",
        "SELECT e.id, p.type, coalesce(c.program, p.program), p.compute_set FROM execution_steps e"
        " JOIN program_steps p ON p.id = e.step LEFT JOIN program_steps c ON c.id = p.code",
        "executed steps, numbered through all runs",
        vendor=True,
    ),
    View(
        "steps_by_ipu",
        "step_id, ipu, cycles, active_tiles, cycles_base, active_cycles_from_min,"
        " active_cycles_from_max, active_cycles_to_min, active_cycles_to_max, data_in, data_out,"
        " tile_balance, active_tile_balance",
        "SELECT e.id, e.ipu, e.cycles, a.active_tiles, e.start, 0, 0,"
        " min(a.first_cycles + e.waited, e.cycles), min(a.last_cycles + e.waited, e.cycles),"
        " a.bytes_in, a.bytes_out, a.tile_balance, a.active_tile_balance"
        " FROM execution_steps e JOIN step_activity a ON a.step = e.step",
        "executed steps: a step is of one IPU; active times are relative to cycles_base",
        vendor=True,
    ),
    View(
        "execution_cycle_totals",
        "run, total",
        "SELECT runs.id, iterations * iteration_cycles FROM runs JOIN traces ON traces.id ="
        " runs.trace",
        "cycles of each run",
        vendor=True,
    ),
    View(
        "vars_info",
        "id, tile, size_bytes, category, name, always_live",
        "SELECT v.id, v.ipu * target.tiles_per_ipu + m.tile, r.bytes, c.id, v.id, v.always_live "
        "FROM target JOIN variables v JOIN var_categories c ON c.name = v.category "
        "JOIN tile_runs r ON r.vector = v.tile_bytes "
        "JOIN tile_memory m ON m.ipu = v.ipu AND m.tile BETWEEN r.first_tile AND r.last_tile",
        "variables on each tile (counted over all IPUs); category and name are ids",
        vendor=True,
    ),
    View(
        "vars_string_table",
        "id, string",
        "SELECT id, name FROM variables",
        "names of variables",
        vendor=True,
    ),
    View(
        "memory_by_tile",
        "tile, ipu, total, total_excluding_gaps, always_live, not_always_live, overflow",
        "SELECT ipu * tiles_per_ipu + tile, ipu, total, total_excluding_gaps, always_live, "
        "total_excluding_gaps - always_live, overflow FROM tile_memory JOIN target",
        "bytes on each tile (counted over all IPUs); total, its extent, includes gaps",
        vendor=True,
    ),
    View(
        "programs",
        "id, name",
        "SELECT p.id, CASE WHEN p.type = 'Sync' THEN CASE s.purpose WHEN 'external sync' THEN"
        " 'External' ELSE 'Internal' END WHEN o.id IS NOT NULL THEN o.popart_name || substr(p.name,"
        " length(o.name) + 1) ELSE coalesce(w.popart_name, p.name) END FROM program_tree p"
        " LEFT JOIN program_steps s ON s.program = p.id"
        " LEFT JOIN ops o ON o.id = s.op AND substr(p.name, 1, length(o.name)) = o.name"
        " LEFT JOIN (SELECT name, popart_name, min(id) FROM ops GROUP BY name) w"
        " ON w.name = p.name AND p.type = 'Sequence'"
        " WHERE s.id IS NULL OR s.code < 0 OR s.code = s.id",
        "programs, operators in them as PopART names them; those that are the same code once",
        vendor=True,
    ),
    View(
        "compute_sets",
        "compute_set, name",
        "SELECT c.id, CASE WHEN o.id IS NOT NULL THEN o.popart_name || substr(c.name,"
        " length(o.name) + 1) ELSE c.name END FROM compute_set_info c LEFT JOIN ops o"
        " ON o.id = c.op AND substr(c.name, 1, length(o.name)) = o.name",
        "compute sets, operators in them as PopART names them",
        vendor=True,
    ),
    View("var_categories", "id, name", _category_rows(), "storage categories", vendor=True),
)


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
