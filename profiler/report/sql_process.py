"""One SELECT in a process of its own: `query` starts this file and reads its output.

Run by its path (``python -I -S sql_process.py``), so it imports nothing of ours. SQLite's own
limits do not reach into a single function call (``instr`` on two long texts takes hours): only
ending the process ends every statement, and it also bounds the memory. Standard input has the
request as JSON: ``uri``, ``sql``, ``views`` (by name, statements that put the documented views
before those in the file), ``memory`` and ``answer`` (bytes), ``rows`` (maximum; None: all),
``seconds``. Standard output gets ``names``, ``rows`` and ``cut`` (whether there were more), or
``error``.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
from typing import Any

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_MIB = 1 << 20


class _TooLarge(Exception):
    """The answer has more bytes than allowed."""


def _connect(uri: str, views: dict[str, str]) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    for pragma in (
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "mmap_size = 0",
        "temp_store = MEMORY",  # nothing that a statement sorts goes to a disk
    ):
        connection.execute(f"PRAGMA {pragma}")
    tables = connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")
    for name in views.keys() - {name for (name,) in tables}:  # a view of today may be a table there
        connection.execute(views[name])
    connection.execute("PRAGMA query_only = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.set_authorizer(
        lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
    )
    return connection


def select(asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to print. SQLite's errors are answers too."""
    try:
        cursor = _connect(asked["uri"], asked["views"]).execute(asked["sql"])
        names = [entry[0] for entry in cursor.description or ()]
        rows: list[list[Any]] = []
        size = 0
        for row in cursor:
            if len(rows) == asked["rows"]:
                return {"names": names, "rows": rows, "cut": True}
            cells = [value.hex() if isinstance(value, bytes) else value for value in row]
            size += len(json.dumps(cells))
            if size > asked["answer"]:
                raise _TooLarge
            rows.append(cells)
        return {"names": names, "rows": rows, "cut": False}
    except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": f"it needs more than {asked['memory'] // _MIB} MiB of memory"}
    except _TooLarge:
        return {"error": f"its answer has more than {asked['answer'] // _MIB} MiB"}


def main() -> None:
    """Answer the question on standard input, within its limits of memory and time."""
    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (asked["memory"],) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"] + 1,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps(select(asked)))


if __name__ == "__main__":
    main()
