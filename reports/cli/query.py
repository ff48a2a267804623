"""Read-only SQL on the profile, which is a SQLite database.

Tables are those of docs/architecture.md (profiler/records.py has every column with its meaning).
Nothing can be written, attached or loaded. A statement that takes longer than --timeout, over a
GiB of memory, or gives over 64 MiB is ended. Columns over tiles and over time are numbers of
compressed vectors: `ipu-report tile`, `timeline` and `profiler.open_report` unpack them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from reports.cli import common

if TYPE_CHECKING:
    from profiler import Report
    from reports.tables import Page

HELP = "read-only SQL on the profile"
EXAMPLES = """  ipu-report query 'select name from sqlite_master' demo/training
  ipu-report query 'select type, sum(cycles) from program_steps group by type' demo/training
  ipu-report query --csv 'select * from blocks' 'runs/*/training' > blocks.csv
"""

MEMORY_BYTES = 1 << 30
ANSWER_BYTES = 1 << 26


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("sql", metavar="SQL", help="one SELECT")
    common.add_profiles(parser)
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=30,
        metavar="SECONDS",
        help="of each profile; a statement that takes longer is ended (default: 30)",
    )
    common.add_top(parser, 100)
    common.add_form(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""

    def page(report: Report) -> Page:
        import pandas as pd

        from reports.tables import Column, Page, Table, clean, text

        names, rows = _select(report, args.sql, args.timeout)
        # SQL may name two columns alike, a frame may not.
        unique = [
            name if names.index(name) == at else f"{name}:{at}" for at, name in enumerate(names)
        ]
        frame = pd.DataFrame(rows, columns=pd.Index(unique), dtype=object)
        columns = tuple(
            Column(
                name,
                clean(name),
                _number if _is_number(frame[name].tolist()) else text,
            )
            for name in unique
        )
        return Page(str(report.path), (Table("rows", frame, columns, most=common.top(args)),))

    return common.each_profile(args, page)


def _is_number(values: list[object]) -> bool:
    """Whether a column has numbers, and nothing else but NULL."""
    return all(value is None or isinstance(value, (int, float)) for value in values)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _seconds(words: str) -> int:
    number = common.count(words)
    if not 1 <= number <= 86_400:
        raise argparse.ArgumentTypeError(f"{number} is no time limit: 1 to 86400 seconds")
    return number


def _select(report: Report, sql: str, seconds: int) -> tuple[list[str], list[tuple[object, ...]]]:
    """Names and rows. The profile was opened before, so its header is known to be good."""
    asked = {
        "uri": report.uri,
        "sql": sql,
        "views": _own_views(),
        "memory": MEMORY_BYTES,
        "answer": ANSWER_BYTES,
        "seconds": seconds,
    }
    answer = _in_a_process(asked, seconds)
    if "error" in answer:
        known = "its tables: ipu-report query 'select name from sqlite_master'"
        raise common.CommandError(
            f"{report.path}: {answer['error']}. Give one SELECT; {known}", common.NOT_SO
        )
    if not answer["names"]:
        raise common.CommandError(f"{report.path}: this SQL selects nothing. Give one SELECT")
    return answer["names"], [tuple(row) for row in answer["rows"]]


def _in_a_process(asked: dict[str, Any], seconds: int) -> dict[str, Any]:
    """What `reports.cli.sql` answers, or why it did not."""
    from reports.cli import sql

    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(sql.__file__)],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    except subprocess.TimeoutExpired:
        return {"error": f"it took longer than {seconds} s (--timeout)"}
    except ValueError:  # it was ended, and printed nothing
        return {"error": "it needs more time or memory than a statement may have"}


def _own_views() -> list[str]:
    """The documented views, put before any that the file brings under their names."""
    from profiler import schema

    return [view.sql.replace("CREATE VIEW", "CREATE TEMP VIEW", 1) for view in schema.VIEWS]
