"""What lies in tile memory, the largest first: weights, activations, stash, code and the rest.

A variable is live at the steps from 'start' up to 'stop' of its IPU, or 'always': the whole run.
"""

from __future__ import annotations

import argparse

from ipuscope.reports.cli import common

HELP = "the variables in tile memory, largest first"
EXAMPLES = """  ipu-report variables demo/training
  ipu-report variables --role stash demo/training      what pipelining keeps
  ipu-report variables --name conv --ipu 0 --csv demo/training > variables.csv
"""
TOP = 20  # rows for people


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_ipu(parser)
    parser.add_argument("--name", metavar="WORDS", help="only variables whose name contains this")
    parser.add_argument(
        "--role", metavar="ROLE", help="only this role: weight, activation, stash, program, ..."
    )


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    from ipuscope.reports.tables import Column, Table, identity, integer, text

    frame = common.filtered(report.variables, "name", args.name)
    if args.ipu is not None:
        common.check_ipu(report, args.ipu)
        frame = frame[frame["ipu"] == args.ipu]
    if args.role is not None:
        roles = sorted(set(report.variables["role"]))
        if args.role not in roles:
            raise common.CommandError(
                f"{report.path}: nothing has the role {args.role!r}. There are: {', '.join(roles)}"
            )
        frame = frame[frame["role"] == args.role]
    if frame.empty:
        raise common.CommandError(
            f"{report.path}: no such variable. It has {len(report.variables):,}"
        )
    frame = (
        frame.sort_values("bytes", ascending=False, kind="stable")
        .rename_axis("variable")
        .reset_index()
    )
    life = [
        "always" if always else f"{start:,}-{stop:,}"
        for always, start, stop in zip(
            frame["always_live"], frame["start"], frame["stop"], strict=True
        )
    ]
    columns = (
        Column("name", "variable", text),
        Column("ipu", "IPU", identity),
        Column("role", "role", text),
        Column("dtype", "dtype", text),
        Column("bytes", "bytes", integer),
        Column("life", "steps", str),
    )
    shown = frame.assign(life=life) if args.form == "text" else frame
    return common.page(report, Table("variables", shown, columns, most=common.top(args)))
