"""Live bytes over the program steps of an IPU.

The fullest steps, or (--top 0; --json and --csv without --top) all of them in order.
"""

from __future__ import annotations

import argparse

from ipuscope.reports.cli import common

HELP = "live bytes by program step, largest first"
EXAMPLES = """  ipu-report liveness demo/training                    the fullest steps of IPU 0
  ipu-report liveness --ipu 2 --top 5 demo/training
  ipu-report liveness --ipu 2 --csv demo/training > liveness.csv
"""
TOP = 10  # rows for people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_ipu(parser, 0)


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    from ipuscope.reports.tables import Column, Table, kibibytes, text, whole_kibibytes

    common.check_ipu(report, args.ipu)
    frame = report.liveness(args.ipu)
    if common.top(args):
        frame = frame.sort_values("total", ascending=False, kind="stable")
    columns = (
        Column("position", "step"),
        Column("name", "name", text),
        Column("direction", "direction", text),
        Column("always_live", "always\nKiB", whole_kibibytes),
        Column("not_always_live", "besides\nKiB", whole_kibibytes),
        Column("max_tile", "fullest\ntile"),
        Column("max_tile_bytes", "its KiB", kibibytes),
    )
    return common.page(report, Table("liveness", frame, columns, most=common.top(args)))
