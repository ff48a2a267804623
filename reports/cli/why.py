"""Why an update takes as long as it does: every cycle by what the run waited for.

The cycles are those of the critical path, the chain of work without a pause that ends the update;
they add up to the update exactly. Only work on that path is worth shortening.
"""

from __future__ import annotations

import argparse

from ipuscope.reports.cli import common

HELP = "what an update waits for, cycle by cycle"
EXAMPLES = """  ipu-report why demo/training
  ipu-report why --top 0 --csv demo/training > path.csv   all entries
  ipu-report why --json demo/training | jq '.[0].waterfall'
"""
TOP = 12  # rows for people


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    from ipuscope.profiler import analysis
    from ipuscope.profiler.analysis.critical_path import path_columns, waterfall_columns
    from ipuscope.profiler.analysis.waits import longest_columns
    from ipuscope.profiler.file.records import PHASES
    from ipuscope.profiler.report.query import Answer
    from ipuscope.profiler.units import cycles, percent
    from ipuscope.reports.tables import Column, Table, identity, sentence, text

    common.check_run(report, 0)
    path = path_columns(report)
    table, total = waterfall_columns(path), int(path["cycles"].sum())
    phases = [phase for phase in PHASES if phase in table]
    by_phase = Table(
        "waterfall",
        Answer.of(table),
        (
            Column("cause", "waits for", text),
            *(Column(phase, phase, cycles) for phase in phases),
            Column("cycles", "cycles"),
            Column("share", "share", percent),
        ),
        title=f"{total:,} cycles {analysis.turn(report)}, by what it waits for",
    )
    longest = Table(
        "path",
        Answer.of(longest_columns(report)),
        (
            Column("share", "share", percent),
            Column("cycles", "cycles"),
            Column("ipu", "IPU", identity),
            Column("what", "what it waits for", sentence),
        ),
        title="The longest waits",
        most=common.top(args),
    )
    return common.page(report, longest, by_phase)
