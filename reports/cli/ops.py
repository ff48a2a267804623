"""The operators of the model, the most expensive in a weight update first.

"cycles" are of one execution, "times" says how many executions a weight update (or a device
iteration) has, "total" is both together and "share" its part of all operators' totals. "again":
what the update spends to recompute it for the backward pass, beside its total. "likely": by how
much the cycles of operators of its kind may differ on hardware (docs/fidelity.md#error-bars); it is
not in older profiles.

A name is the module's path and what it does. Numbered layers whose operators cost the same share a
row, with * for their number; "alike" says how many they are. "of its ceiling": its FLOPs against
what the AMP (or vector) units of all tiles could do in its cycles, or the exchange could feed;
--why gives the main reason it is below. --json has every operator with that, its balance over
tiles, its peak and more. A '*' after a name marks a generic estimate: that operator has no lowering
yet (CONTRIBUTING.md says how to write one).

--alike compares what is repeated instead: Blocks, stages, source lines or micro-batches that are
built alike, what each group takes, and why some take longer than the median of their group.
"""

from __future__ import annotations

import argparse

from ipuscope.reports.cli import common

HELP = "the operators, most expensive first"
EXAMPLES = """  ipu-report ops demo/training
  ipu-report ops --stage 2 --top 5 demo/training
  ipu-report ops --name conv --sort flops demo/training
  ipu-report ops --why demo/training                   what keeps each from its ceiling
  ipu-report ops --alike stage demo/training           equal stages: which take longer, and why
  ipu-report ops --csv demo/training > ops.csv         with source lines, plans and all
"""
TOP = 20  # rows for people

_SORT = {"total": "total_cycles", "cycles": "cycles", "flops": "flops", "name": "name"}

# As ipuscope.profiler.enums.Direction has them, which would load numpy for --help.
DIRECTIONS = ("forward", "backward", "update")


_ALIKE = (
    "block",
    "stage",
    "module",
    "line",
    "micro-batch",
)  # of ipuscope.profiler.analysis.regions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument(
        "--sort", choices=[*_SORT], default="total", help="column to sort by (default: total)"
    )
    parser.add_argument("--name", metavar="WORDS", help="only operators whose name contains this")
    common.add_number(parser, "--stage", "only this stage", type=common.not_negative)
    parser.add_argument("--direction", choices=DIRECTIONS, help="only this direction")
    common.add_flag(parser, "--why", "what keeps each most from its ceiling, in words")
    common.add_flag(parser, "--each", "every operator, not one for layers that cost the same")
    parser.add_argument(
        "--alike", choices=_ALIKE, help="compare what is repeated, and nothing else"
    )


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    if args.alike:
        return _alike(report, args)
    from ipuscope.profiler import analysis
    from ipuscope.profiler.confidence import span
    from ipuscope.profiler.units import percent
    from ipuscope.reports.alike import operators_alike
    from ipuscope.reports.tables import Column, Table, identity, sentence, text, whole_text

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
    by = _SORT[args.sort]
    frame = frame.sort_values(by, ascending=by == "name", kind="stable")
    frame = frame.rename_axis("op").reset_index()
    rows = frame if args.each or args.form != "text" else operators_alike(frame)
    rows = rows.sort_values(by, ascending=by == "name", kind="stable")
    errors = [span(*of) for of in zip(rows["low"], rows["high"], strict=True)]
    names = zip(rows["name"], rows["estimated"], strict=True)
    printed = rows.assign(likely=errors, name=[n + (" *" if e else "") for n, e in names])
    columns = (
        Column("name", "operator", text),
        Column("direction", "for", text),
        Column("stage", "stage", identity),
        Column("cycles", "cycles", spare=True),
        Column("executions", "times", spare=True),
        *([Column("alike", "alike", spare=True)] if len(rows) < len(frame) else []),
        Column("total_cycles", "total"),
        Column("share", "share", percent),
        *([] if args.why else [Column("recompute_cycles", "again", spare=True)]),
        *([Column("likely", "likely", whole_text, spare=True)] if any(errors) else []),
        Column("of_roof", "of its\nceiling", percent),
        *([Column("why", "most of the rest", sentence)] if args.why else []),
    )
    most, note = common.top(args), ""
    if len(rows) < len(frame):
        note = f"{len(frame):,} operators in {len(rows):,} rows: --each prints them one by one."
    return common.page(report, Table("ops", frame, columns, most=most, printed=printed, note=note))


def _alike(report: common.Report, args: argparse.Namespace) -> common.Page:
    """What is repeated: what each group takes, and which members exceed its median."""
    from ipuscope.profiler.analysis.regions import regions
    from ipuscope.profiler.units import percent
    from ipuscope.reports.tables import Column, Table, say, sentence, text

    repeats = regions(report, args.alike)
    groups = (
        Column("group", "built alike", text),
        *(Column(name, name) for name in ("count", "least", "median", "most")),
    )
    slower = (
        Column("name", "takes longer", text),
        Column("ratio", "of the\nmedian", percent),
        Column("why", "why", sentence),
    )
    rows = Table("slower", repeats.slow, slower if len(repeats.slow) else (), most=common.top(args))
    each = Table("groups", repeats.groups, groups if len(repeats.groups) else ())
    return common.page(report, say(repeats.words), each, rows)
