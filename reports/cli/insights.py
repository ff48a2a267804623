"""What limits the run, what acting on it would gain, and what to change: most cycles first.

Changes that need other samples a weight update ('another batch') come after those that do not;
causes without a known change come last.

Gains are in cycles a weight update (in inference, a device iteration), from the engine's schedule
after the change; '<=' marks a bound, '~' an estimate. They do not add up, except for those of one
change. Together the findings cover at least nine tenths of the critical path.
"""

from __future__ import annotations

import argparse

from ipuscope.reports.cli import common

HELP = "what limits the run, and what to change, with the gain"
EXAMPLES = """  ipu-report insights demo/training
  ipu-report insights --json demo/training | jq '.[0].insights[0].action'
"""
TOP = 8  # rows for people


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    from dataclasses import asdict

    import pandas as pd

    from ipuscope.planner.insights import Insight, insights
    from ipuscope.profiler import units
    from ipuscope.reports.tables import Column, Table, sentence, with_code

    common.check_not_imported(report)
    findings = insights(report)
    names = list(Insight.__dataclass_fields__)
    frame = pd.DataFrame([asdict(one) for one in findings], columns=pd.Index(names))
    gains = [one.gain_in_words for one in findings]
    columns = (Column("gain", "gain,\ncycles", str), Column("title", "finding", sentence))
    titles = [one.headline for one in findings]
    shown = frame.assign(gain=gains, title=titles) if args.form == "text" else frame
    table = Table("insights", shown, columns, most=common.top(args))
    lines = [
        with_code(
            f"{at}. {units.sentence(one.headline)}. {one.why} {one.change_in_words}", one.code
        )
        for at, one in enumerate(findings[: common.top(args)], 1)
    ]
    return common.page(report, table, *lines)
