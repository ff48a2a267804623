"""The profile as one HTML file: the main figures, interactive, without a server or a network."""

from __future__ import annotations

import argparse
from pathlib import Path

from ipuscope.reports.cli import common

HELP = "the profile as one self-contained HTML file"
EXAMPLES = """  ipu-report html demo/training -o report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_profile(parser)
    words = "where to write it (default: report.html)"
    common.add_output(parser, words, default=Path("report.html"))


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    with common.open_one(args) as report:
        from ipuscope.reports.html import write_html

        try:
            with common.waiting(f"drawing {args.output}"):
                write_html(report, args.output)
        except OSError as error:
            raise common.CommandError(
                f"{args.output}: cannot be written: {error.strerror or error}. Give another place:"
                " -o FILE"
            ) from error
    print(
        f"{args.output}: {args.output.stat().st_size / 1024:,.0f} KiB, opens in any browser,"
        " offline too"
    )
    return common.OK
