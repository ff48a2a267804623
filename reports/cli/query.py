"""Read-only SQL on the profile, which is a SQLite database.

docs/pop-format.md has the tables and what each column means. Nothing can be written, attached or
loaded. A statement that takes longer than --timeout, over a GiB of memory, or gives over 64 MiB is
ended. Columns over tiles and over time are numbers of compressed vectors: `ipu-report tile`,
`liveness` and `ipuscope.profiler.open_report` unpack them.
"""

from __future__ import annotations

import argparse

from ipuscope.reports.cli import common

HELP = "read-only SQL on the profile"
EXAMPLES = """  ipu-report query 'select name from sqlite_master' demo/training
  ipu-report query 'select type, sum(cycles) from program_steps group by type' demo/training
  ipu-report query --csv 'select * from blocks' 'runs/*/training' > blocks.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("sql", metavar="SQL", help="one SELECT")
    common.add_profiles(parser)
    words = "of each profile; a statement that takes longer is ended (default: 30)"
    parser.add_argument("--timeout", type=_seconds, default=30, metavar="SECONDS", help=words)
    common.add_top(parser, 100)
    common.add_form(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    if not _is_statement(args.sql) and any(map(_is_statement, args.profiles)):
        words = "the statement comes before the profile: ipu-report query 'select ...' PROFILE"
        raise common.CommandError(words, common.USAGE)

    def page(report: common.Report) -> common.Page:
        from ipuscope.profiler.report import query
        from ipuscope.reports.tables import Column, Table, clean, text

        try:
            answer = query.select(report, args.sql, args.timeout)
        except query.QueryError as error:
            names = "'select name from sqlite_master'"
            hint = f"its tables: ipu-report query {names} {report.argument}"
            option = " (--timeout)" if isinstance(error, query.QueryTimeout) else ""
            what = f"{report.path}: {str(error).rstrip('.')}{option}. Give one SELECT; {hint}"
            raise common.CommandError(what, common.NOT_SO) from None
        columns = tuple(
            Column(name, clean(name), _number if query.is_numeric(answer[name]) else text)
            for name in answer.columns
        )
        return common.page(report, Table("rows", answer, columns, most=common.top(args)))

    return common.each_profile(args, page)


def _is_statement(words: str) -> bool:
    return words.lower().lstrip().startswith(("select ", "with "))


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _seconds(words: str) -> int:
    number = common.not_negative(words)
    if not 1 <= number <= 86_400:
        raise argparse.ArgumentTypeError(f"{number} is not a time limit: 1 to 86400 seconds")
    return number
