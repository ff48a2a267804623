"""The program tree: sequences, repeats (with how many times), and the steps in them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    import pandas as pd


HELP = "the program tree and its steps"
EXAMPLES = """  ipu-report program --depth 3 demo/training           the outline
  ipu-report program --name conv --top 0 demo/training
  ipu-report program --json demo/training | jq '.[0].program | length'
"""
TOP = 60  # rows for people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_number(parser, "--depth", "levels to show (default: all)")
    parser.add_argument("--name", metavar="WORDS", help="only nodes whose name contains this")


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    from ipuscope.reports.tables import Column, Table, text

    frame = _with_depth(report)
    if args.depth is not None:
        frame = frame[frame["depth"] < args.depth]
    frame = common.filtered(frame, "name", args.name)
    if frame.empty:
        raise common.CommandError(f"{report.path}: no such node. It has {len(report.program):,}")
    names = ["  " * depth + name for depth, name in zip(frame["depth"], frame["name"], strict=True)]
    columns = (
        Column("said", "program", text),
        Column("repeat", "times"),
        Column("type", "type", text),
        Column("cycles", "cycles a call"),
    )
    shown = frame.assign(said=names) if args.form == "text" else frame
    return common.page(report, Table("program", shown, columns, most=common.top(args)))


def _with_depth(report: common.Report) -> pd.DataFrame:
    """The tree, depth-first, with ``depth`` (0: roots) and ``cycles`` of a call."""
    from ipuscope.profiler.analysis import program_cycles

    tree = report.program
    depth: dict[int, int] = {-1: -1}
    for node, parent in zip(tree["id"].tolist(), tree["parent"].tolist(), strict=True):
        depth[node] = depth[parent] + 1  # parents come before their children
    levels = [depth[node] for node in tree["id"].tolist()]
    return tree.assign(depth=levels, cycles=program_cycles(report))
