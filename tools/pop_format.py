"""The page docs/pop-format.md: ``python -m tools.pop_format > docs/pop-format.md`` writes it.

Tables and columns come from `ipuscope.profiler.file.records`, their meaning from its comments.
"""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from typing import Any

from ipuscope.profiler.file import records, schema
from ipuscope.profiler.file.bounds import OneOf

_HEAD = f"""# The format of profile.pop

<!-- Written by `python -m tools.pop_format > docs/pop-format.md`. -->

A `profile.pop` is a SQLite database (`application_id` 0x{schema.APPLICATION_ID:08X}, `user_version`
{schema.VERSION}): any tool that reads SQLite reads it, `ipuscope.profiler.open_report` gives it as
pandas frames. One table per dataclass of `profiler/file/records.py`, one column per field. Cycles
are tile clock cycles, bytes are bytes, times on the host are microseconds since the epoch.
References to other tables are ids, -1 where there is none.

The plain tables at the end hold again, as rows, what SQL cannot see in compressed vectors: the
views need them, `profiler` does not. Bodies, steps and variables are found by their task, their
purpose, the tensor and the step that they belong to. Names are for display and may be anything.

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
measured `rows` and vendor's `estimates` behind them (docs/fidelity.md#error-bars); `operators`
has the position in `classes` of each operator's, -1 without cycles. `byte_error`:
`low` and `high` of the bytes of the fullest tile, likewise.
`rules`: digest of the compiler's sources and of PyTorch's version; `ipu-report compare` and the
viewer's Compare say where it differs.

## Beside the tables: `{schema.PACKED_TABLE}`

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
    for column in schema.columns(record):
        kind = "vector" if column.kind == "vector" else schema.SQL_TYPES[column.kind]
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
    for view in schema.VIEWS:
        note = view.purpose + (" (as in the vendor's files)" if view.vendor else "")
        lines.append(f"| `{view.name}` | {view.columns} | {note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(documentation(), end="")
