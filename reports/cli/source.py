"""The lines of the user's code by what their operators cost, the hottest first.

Cycles are of all executions in a weight update; "again": of recomputation, beside the others. KiB
is the sum of what the line's operators made that is live at an IPU's fullest step. --file prints a
file with these in its margin. The text is what the compile read (ipu-run --no-source leaves it out
of the profile); operators without a line, such as an optimiser's, are in the line 'none'.
"""

from __future__ import annotations

import argparse
from typing import Any

from ipuscope.reports.cli import common

HELP = "the lines of your code by their cycles and bytes"
EXAMPLES = """  ipu-report source demo/training
  ipu-report source --file digits.py demo/training     the file, with costs in its margin
  ipu-report source --json demo/training | jq '.[0].source[0]'
"""
TOP = 20  # rows for people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument(
        "--file", metavar="WORDS", help="print the file whose path contains this, with its costs"
    )


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    from ipuscope.profiler.analysis.source import line_of, lines
    from ipuscope.profiler.units import percent
    from ipuscope.reports.tables import Column, Table, text, whole_kibibytes

    table = lines(report)
    if args.file is not None:
        table = common.filtered(table, "file", args.file)
        if table.empty:
            raise common.CommandError(f"{report.path}: no operator is of a file like {args.file!r}")
    if args.file is not None and args.form == "text":
        return common.page(report, _listed(report, str(table["file"].iloc[0])))
    places = zip(table["file"].tolist(), table["line"].tolist(), strict=True)
    table["text"] = [line_of(report, file, line) for file, line in places]
    names = [file.replace("\\", "/").rpartition("/")[2] for file in table["file"]]
    table["place"] = [
        f"{name}:{line}" if name else "none"
        for name, line in zip(names, table["line"], strict=True)
    ]
    columns = (
        Column("place", "line", text),
        Column("forward_cycles", "forward"),
        Column("backward_cycles", "backward"),
        *([Column("update_cycles", "update")] if table["update_cycles"].any() else []),
        *(
            [Column("recompute_cycles", "again", spare=True)]
            if table["recompute_cycles"].any()
            else []
        ),
        Column("share", "share", percent),
        Column("bytes", "KiB", whole_kibibytes),
        Column("text", "text", text),
    )
    return common.page(report, Table("source", table, columns, most=common.top(args)))


def _listed(report: common.Report, file: str) -> common.Lines:
    """The file with cycles, share and IPUs in the margin of each line."""
    from ipuscope.profiler.analysis.source import listing
    from ipuscope.profiler.units import cycles, percent
    from ipuscope.reports.tables import Lines, clean

    printed: list[Any] = [
        ((clean(file), "bold"),),
        ((f"{'forward':>8} {'backward':>8} {'update':>8} {'share':>6} {'IPU':>7}", "dim"),),
    ]
    for number, text, costs in listing(report, file):
        row: Any = costs
        margin = " " * 41
        if row is not None:
            each = (row.forward_cycles, row.backward_cycles, row.update_cycles)
            words = " ".join(f"{cycles(one) if one else '':>8}" for one in each)
            margin = f"{words} {percent(row.share):>6} {row.ipus:>7}"
        printed.append(((margin, ""), (f" {number:4} ", "dim"), (clean(text).expandtabs(4), "")))
    return Lines(tuple(printed), as_drawn=True)
