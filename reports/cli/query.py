"""Read-only SQL on the profile, which is a SQLite database.

Tables are those of docs/architecture.md (profiler/records.py has every column with its meaning).
Nothing can be written, attached or loaded. Columns over tiles and over time are numbers of
compressed vectors: `ipu-report tile`, `timeline` and `profiler.open_report` unpack them.
"""

from __future__ import annotations

import argparse
import sqlite3
from typing import TYPE_CHECKING
from urllib.parse import quote

from reports.cli import common

if TYPE_CHECKING:
    from profiler import Report
    from reports.tables import Page

HELP = "read-only SQL on the profile"
EXAMPLES = """  ipu-report query 'select name from sqlite_master' demo/training
  ipu-report query 'select type, sum(cycles) from program_steps group by type' demo/training
  ipu-report query --csv 'select * from blocks' 'runs/*/training' > blocks.csv
"""

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("sql", metavar="SQL", help="one SELECT")
    common.add_profiles(parser)
    common.add_top(parser, 100)
    common.add_form(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""

    def page(report: Report) -> Page:
        import pandas as pd

        from reports.tables import Column, Page, Table, clean, text

        names, rows = _select(report, args.sql)
        # SQL may name two columns alike, a frame may not.
        unique = [
            name if names.index(name) == at else f"{name}:{at}" for at, name in enumerate(names)
        ]
        frame = pd.DataFrame(rows, columns=pd.Index(unique), dtype=object)
        columns = tuple(
            Column(
                name,
                clean(name),
                _number if all(isinstance(v, (int, float)) for v in frame[name]) else text,
            )
            for name in unique
        )
        return Page(str(report.path), (Table("rows", frame, columns, most=common.top(args)),))

    return common.each_profile(args, page)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _select(report: Report, sql: str) -> tuple[list[str], list[tuple[object, ...]]]:
    """Names and rows. The profile was opened before, so its header is known to be good."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(report.path))}?mode=ro", uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
            connection.set_authorizer(_only_reading)
            cursor = connection.execute(sql)
            names = [entry[0] for entry in cursor.description or ()]
            rows = [tuple(v.hex() if isinstance(v, bytes) else v for v in row) for row in cursor]
        finally:
            connection.close()
    except (sqlite3.Error, sqlite3.Warning) as error:
        known = "its tables: ipu-report query 'select name from sqlite_master'"
        raise common.CommandError(
            f"{report.path}: {error}. Give one SELECT; {known}", common.NOT_SO
        ) from error
    if not names:
        raise common.CommandError(f"{report.path}: this SQL selects nothing. Give one SELECT")
    return names, rows


def _only_reading(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
