"""Two profiles: what changed from A to B, in sum and by operator (matched by name).

--fail-if makes it a check for scripts: 'cycles>+3%' fails where a weight update takes over 3 %
longer in B.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from reports.cli import common

if TYPE_CHECKING:
    import pandas as pd

    from profiler import Report
    from reports.tables import Page

HELP = "what changed between two profiles; a check for CI"
EXAMPLES = """  ipu-report compare before/training after/training
  ipu-report compare before/training after/training --fail-if 'cycles>+3%' --fail-if 'memory>+10%'
  ipu-report compare --csv before/training after/training > operators.csv
"""
_MEASURES = {"cycles": "a weight update", "memory": "fullest tile", "stage": "slowest stage"}
_RULE = re.compile(r"(cycles|memory|stage)\s*>\s*([+-]?\d+(?:\.\d+)?)\s*%")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_profile(parser)
    parser.add_argument("other", metavar="OTHER", help="the second profile")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="RULE",
        type=_rule,
        help=(
            "exit 1 where so; RULE is cycles>+N%%, memory>+N%% or stage>+N%% (may be given more"
            " than once)"
        ),
    )
    common.add_top(parser, 15)
    common.add_form(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    broken: list[str] = []
    other_path = common.find_one(args.other)

    def page(report: Report) -> Page:
        from profiler import analysis, open_report
        from reports.tables import Column, Page, Table, say, text

        with open_report(other_path) as other:
            sums, ops = analysis.compare(report, other), analysis.compare_ops(report, other)
        broken.extend(_broken(sums, args.fail_if))
        shown = sums.assign(
            a=sums["a"].map("{:,.6g}".format),
            b=sums["b"].map("{:,.6g}".format),
            change=[
                f"{ratio - 1:+.1%}" if ratio is not None and ratio == ratio else ""
                for ratio in sums["ratio"]
            ],
        )
        measures = Table(
            "compare",
            shown,
            (
                Column("what", "", text),
                Column("unit", "unit", text),
                Column("a", "A", text),
                Column("b", "B", text),
                Column("change", "change", text),
            ),
        )
        operators = Table(
            "operators",
            ops,
            (
                Column("name", "operator", text),
                Column("direction", "for", text),
                Column("cycles_a", "cycles A"),
                Column("cycles_b", "cycles B"),
                Column("difference", "B - A"),
            ),
            "operators, the largest differences first",
            most=common.top(args),
        )
        tables = (operators, measures) if args.form == "csv" else (measures, operators)
        return Page(str(report.path), (*tables, *(say(words) for words in broken)))

    code = common.each_profile(args, page)
    return max(code, common.NOT_SO) if broken else code


def _rule(words: str) -> tuple[str, float]:
    found = _RULE.fullmatch(words.strip())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{words!r} is no rule; say cycles>+3%, memory>+3% or stage>+3%"
        )
    return found[1], float(found[2]) / 100


def _broken(sums: pd.DataFrame, rules: list[tuple[str, float]]) -> list[str]:
    """What is worse than a rule allows."""
    found = []
    for name, most in rules:
        row = sums[sums["what"] == _MEASURES[name]].iloc[0]
        change = row["b"] / row["a"] - 1 if row["a"] else 0.0
        if change > most:
            found.append(
                f"{name} {change:+.1%}, more than {most:+.1%}: {row['a']:,.0f} to {row['b']:,.0f}"
                f" {row['unit']}."
            )
    return found
