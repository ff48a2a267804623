"""Read-only SQL on a profile, within limits: a stranger's file and a stranger's SQL are data.

A statement runs in a process of its own (`ipuscope.profiler.report.sql_process`), which may only
read and is ended when its time or memory is used up.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuscope.profiler.file import schema
from ipuscope.profiler.report import Report, sql_process

SECONDS = 30
MEMORY_BYTES = 1 << 30
ANSWER_BYTES = 1 << 26


class QueryError(ValueError):
    """The reason why a statement gave no answer, in one line."""


class QueryTimeout(QueryError):
    """The statement exceeded its time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a SELECT, and whether there were more than requested.

    It prints as a frame does: to import pandas takes longer than most statements. Columns with the
    same name get their position, from the second on.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    cut: bool

    @classmethod
    def of(cls, columns: Mapping[str, np.ndarray]) -> Answer:
        """The same of arrays."""
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        return cls(tuple(columns), tuple(rows), False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> np.ndarray:
        """A column, object[row]."""
        at = self.columns.index(name)
        return np.fromiter((row[at] for row in self.rows), object, len(self.rows))

    def head(self, most: int) -> Answer:
        """The first rows."""
        return replace(self, rows=self.rows[:most])


def is_numeric(column: Iterable[object]) -> bool:
    """Whether a column has numbers and NULLs only, and at least one number."""
    values = [value for value in column if value is not None]
    return bool(values) and all(isinstance(value, (int, float)) for value in values)


def select(
    report: Report,
    sql: str,
    seconds: int = SECONDS,
    most_rows: int | None = None,
    answer_bytes: int = ANSWER_BYTES,
) -> Answer:
    """The answer to one SELECT; the header was checked when the profile was opened.

    ``seconds``: the time it may take; ``most_rows``: maximum number of rows; ``answer_bytes``: of
    the rows as JSON. QueryError if it fails, is stopped or selects nothing.
    """
    create = "CREATE VIEW", "CREATE TEMP VIEW", 1
    asked = {
        "uri": report.file.uri,
        "sql": sql,
        # the documented ones, put before any in the file with the same names
        "views": {view.name: view.sql.replace(*create) for view in schema.VIEWS},
        "memory": MEMORY_BYTES,
        "answer": answer_bytes,
        "rows": most_rows,
        "seconds": seconds,
    }
    answer = _in_a_process(asked, seconds)
    if "error" in answer:
        raise QueryError(answer["error"])
    if not answer["names"]:
        raise QueryError("this SQL selects nothing")
    names = answer["names"]
    unique = (name if names.index(name) == at else f"{name}:{at}" for at, name in enumerate(names))
    return Answer(tuple(unique), tuple(map(tuple, answer["rows"])), bool(answer["cut"]))


def _in_a_process(asked: dict[str, Any], seconds: int) -> dict[str, Any]:
    """The answer of `ipuscope.profiler.report.sql_process`, or the reason why there is none."""
    import subprocess

    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(sql_process.__file__)],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise QueryTimeout(f"it took longer than {seconds} s") from None
    except ValueError:  # it was ended, and printed nothing
        return {"error": "it needs more time or memory than a statement may have"}
