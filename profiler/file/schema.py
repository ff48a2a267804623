"""The tables of ``profile.pop``, made from the dataclasses of `ipuscope.profiler.file.records`.

A profile is a SQLite database. ``application_id`` says that it is one of ours, ``user_version``
which version of the schema it has. ``python -m ipuscope.profiler.file.schema > docs/pop-format.md``
writes the documentation.
"""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import Bound, OneOf

APPLICATION_ID = 0x49505553  # "IPUS"
# 2: the plain tables (`ipuscope.profiler.file.sql_rows`) and the views on them; 3: what bodies,
# steps and variables are for, as columns (`ipuscope.profiler.enums`)
VERSION = 3

PACKED_TABLE = "packed_columns"
LEAST_PACKED = 4096  # rows of a table whose columns are packed: below, rows are read as quickly
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

_SQL_TYPES = {"int": "INTEGER", "float": "REAL", "str": "TEXT", "vector": "INTEGER"}
_KINDS: dict[type, str] = {int: "int", float: "float", str: "str", np.ndarray: "vector"}


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a record. ``kind`` is "int", "float", "str" or "vector".

    ``bound``: what it may hold; None of texts that may be anything.
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
        return f"{self.name} {_SQL_TYPES[self.kind]}{null}{reference}"


def columns(record: Any) -> tuple[Column, ...]:
    """The columns of a record's table, in order."""
    return _columns(record)


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
    """The DDL of a record's table.

    A first column ``id``, an option's name, or what ``key`` says is its key.
    """
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
    """What a record's rows are sorted by when they are read."""
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
    # LIMIT -1 keeps SQLite from dissolving the view into a query that joins it, which would then
    # compare every pair
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


# -- documentation ---

_HEAD = f"""# The format of profile.pop

<!-- Written by `python -m ipuscope.profiler.file.schema > docs/pop-format.md`. -->

A `profile.pop` is a SQLite database (`application_id` 0x{APPLICATION_ID:08X}, `user_version`
{VERSION}): any tool that reads SQLite reads it, `ipuscope.profiler.open_report` gives it as pandas
frames. One table per dataclass of `profiler/file/records.py`, one column per field. Cycles are
tile clock cycles, bytes are bytes, times on the host are microseconds since the epoch. References
to other tables are ids, -1 where there is none.

Format 2 added the plain tables at the end, which hold again, as rows, what SQL cannot see in
compressed vectors: the views need them, `profiler` does not. Format 3 added columns by which
bodies, steps and variables are found: their task, their purpose, the tensor and the step that they
belong to. Names are for display and may be anything. `ipu-report doctor --upgrade PROFILE` brings
an older profile up to date.

While a run lasts, rows go to `profile.pop.partial`; `publish()` renames a finished copy to
`profile.pop`.

```sql
SELECT * FROM stage_cycles;          -- which stage do the others wait for?
SELECT * FROM op_cycles LIMIT 10;    -- the ten most expensive operators
SELECT * FROM tile_headroom;         -- how much memory is left, and where it is least
```

## Header: `meta`

`key TEXT, value TEXT`; values are JSON. `format` (schema version), `writer`, `created` (ISO 8601,
UTC), `kind` ("training" or "inference"), `model`, `state` ("compiled", "executed", "out of
memory"), `complete` (false in a partial file), `micro_batch`, `tensor_sharding` (IPUs that share a
stage's tensors; the profile has one of them), `warnings` (list of text), `checksum` (of the file's
bytes, with zeros in its own place: `ipuscope.profiler.file.seal`). Of the
machine, in cycles, and bytes a cycle one way: `external_sync`, `stream_step` (begin of a stream
copy, and its end), `host_latency`, `link_latency`, `link_hop_latency` (each further rung),
`link_bytes_per_cycle`, `link_bytes_per_cycle_between_boards`, `ipus_per_board`,
`link_bytes_per_cycle_between_racks`, `gateway_latency` (each border between racks),
`ipus_per_rack`, `streaming_bytes_per_cycle`, `slice_cycles` and
`slice_bytes_per_cycle` (a tile copies into one slot of a larger tensor). `cycle_error`: four in
five published measurements of what is like it lie between the factors `low` and `high` of the
predicted speed of an update; `likely` is the fraction by which its time is off at most, by
`models` whole ones; `unmeasured` is the share of cycles of operators that nobody measured on
hardware. Its `classes` of operators each have their `share`, `low`, `high`, `likely`, and the
measured `rows` and vendor's `estimates` behind them (docs/fidelity.md#error-bars). `byte_error`:
`low` and `high` of the bytes of the fullest tile, likewise.
`rules`: digest of the compiler's sources, which says whether two profiles come of the same ones.

## Beside the tables: `{PACKED_TABLE}`

A large profile has columns of its tables once more, packed
(`ipuscope.profiler.file.packed_columns`). Triggers remove them once a row of the table changes.
`ipu-report doctor` compares them with the rows where the file is not as it was written, or with
`--rows`. A table `worked_out`, which earlier versions wrote, is ignored.

## Beside the profile: `debug.cbor`

Where the engine's options ask for it (`autoReport.outputDebugInfo`, or `autoReport.all`), and in
`autoReport.directory` itself that of the last model: a CBOR map of `contexts` and `stringTable`. A
context has `id`, `parentId` (0: none), `name`, `layer` and the layer's own fields; children come
before their parents. Of each operator there are two: `popart` (`opid`, `inputs`, `outputs`,
`attributes`) and its parent `poptorch` (`torch_schema`, `op_type`, `op_name`, `module`, `block`,
`stage`, `direction`). `location` has `fileName`, `functionName` and `lineNumber` of the user's
source. `name`, `fileName` and `functionName` are positions in `stringTable`.
`ipuscope.profiler.pva.OperationAnalysis` gives the same from the profile alone.

## Arrays: `vectors`

`id INTEGER, hash BLOB, dtype TEXT, length INTEGER, data BLOB`. Columns marked *vector* below hold
an id of this table; equal content is stored once (`hash` is BLAKE2b-128 of the plain bytes,
personalised with `dtype`). To unpack: zstd-decompress `data` to `length` times the item size of
`dtype` ("<i1", "<i2", "<i4", "<i8": little-endian and signed); the result holds the first byte of
every element, then every second byte, and so on; put the elements together again and sum them up
from the first on, wrapping at the width of the type. Vectors "over tiles" have an entry per tile of
one IPU.
"""


def _comments(record: type[Any]) -> dict[str, str]:
    """The comment beside each field, or in the lines above it, from the source."""
    source = inspect.getsource(record)
    lines = [*source.splitlines(), ""]  # the last token is behind the last line
    comments: dict[str, str] = {}
    above: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = re.match(r"\s+(\w+):", lines[token.start[0] - 1])
        if token.type == tokenize.COMMENT:
            words = token.string.lstrip("# ")
            if name is None:
                above.append(words)
            else:
                comments[name[1]] = words
        elif token.type == tokenize.NEWLINE:
            if name is not None and above:
                comments.setdefault(name[1], " ".join(above))
            above = []
    return comments


def _table_lines(record: type[Any]) -> Iterator[str]:
    doc = (
        ""
        if (record.__doc__ or "").startswith(record.__name__ + "(")
        else inspect.getdoc(record) or ""
    )
    yield f"\n### `{record.table}`\n"
    if doc:
        yield doc.replace("``", "`") + "\n"
    yield "| column | type | |"
    yield "| --- | --- | --- |"
    comments = _comments(record)
    for column in columns(record):
        kind = "vector" if column.kind == "vector" else _SQL_TYPES[column.kind]
        note = comments.get(column.name, "").replace("|", "\\|")
        if isinstance(column.bound, OneOf):
            words = ", ".join(word or '""' for word in column.bound.words)
            note = f"{note}; {words}".lstrip("; ")
        if column.optional:
            note = f"{note} (may be NULL)".lstrip()
        yield f"| `{column.name}` | {kind} | {note} |".replace("|  |", "| |")


def documentation() -> str:
    """The text of ``docs/pop-format.md``."""
    lines = [_HEAD, "## Tables"]
    for record in records.TABLES:
        lines.extend(_table_lines(record))
    lines.append("\n## Views\n")
    lines.append("| view | columns | |")
    lines.append("| --- | --- | --- |")
    for view in VIEWS:
        note = view.purpose + (" (as in the vendor's files)" if view.vendor else "")
        lines.append(f"| `{view.name}` | {view.columns} | {note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(documentation(), end="")
