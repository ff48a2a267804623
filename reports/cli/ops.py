"""The operators of the model, the most expensive first. Cycles are of one execution.

A name is the module's path and what it does. "balance": the mean over the slowest tile while it
computes. "of peak": its FLOPs against what the matrix units of all tiles could do in its cycles.
"bound": what would limit it if all went perfectly, its FLOPs (compute) or the bytes its tiles
receive (exchange). '*' marks cycles that a generic guess stood in for: nobody has lowered that
operator (CONTRIBUTING.md says how to).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    from ipuscope.profiler import Report
    from ipuscope.reports.tables import Page

HELP = "the operators, most expensive first"
EXAMPLES = """  ipu-report ops demo/training
  ipu-report ops --stage 2 --top 5 demo/training
  ipu-report ops --name conv --sort flops demo/training
  ipu-report ops --csv demo/training > ops.csv         with source lines, plans and all
"""

_SORT = ("cycles", "flops", "name")

# Of ipuscope.profiler.enums.Direction, which would load numpy for --help.
DIRECTIONS = ("forward", "backward", "recompute", "update")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_profiles(parser)
    parser.add_argument(
        "--sort", choices=_SORT, default="cycles", help="column to sort by (default: cycles)"
    )
    parser.add_argument("--name", metavar="WORDS", help="only operators whose name contains this")
    parser.add_argument("--stage", type=common.count, metavar="N", help="only this stage")
    parser.add_argument(
        "--direction",
        choices=DIRECTIONS,
        help="only this direction",
    )
    common.add_top(parser, 20)
    common.add_form(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""

    def page(report: Report) -> Page:
        from ipuscope.profiler import analysis
        from ipuscope.profiler.units import percent
        from ipuscope.reports.tables import Column, Page, Table, identity, text

        frame = common.filtered(analysis.operators(report), "name", args.name)
        if args.stage is not None:
            frame = frame[frame["stage"] == args.stage]
        if args.direction is not None:
            frame = frame[frame["direction"] == args.direction]
        if frame.empty:
            asked = ", ".join(
                f"--{key} {getattr(args, key)}"
                for key in ("name", "stage", "direction")
                if getattr(args, key) is not None
            )
            raise common.CommandError(
                f"{report.path}: no operator with {asked or 'any name'}. It has {len(report.ops):,}"
            )
        frame = frame.sort_values(args.sort, ascending=args.sort == "name", kind="stable")
        frame = frame.rename_axis("op").reset_index()
        shown = frame.assign(
            said=[
                n + (" *" if e else "")
                for n, e in zip(frame["name"], frame["estimated"], strict=True)
            ]
        )
        columns = (
            Column("said", "operator", text),
            Column("direction", "for", text),
            Column("stage", "stage", identity),
            Column("cycles", "cycles"),
            Column("balance", "balance", percent),
            Column("utilisation", "of peak", percent),
            Column("bound", "bound", text),
        )
        form = shown if args.form == "text" else frame
        return Page(str(report.path), (Table("ops", form, columns, most=common.top(args)),))

    return common.each_profile(args, page)
