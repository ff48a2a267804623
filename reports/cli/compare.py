"""Two profiles: what changed from A to B, in sum, on the critical path and by operator.

The differences in what each waits for add up to the whole difference; operators are matched by
name.

--fail-if makes it a check for scripts: 'cycles>+3%' fails where a weight update takes over 3%
longer in B. Times of a model that was only compiled are those of its schedule. A rule that cannot
be checked fails and says why, as does any rule where only A fits.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from typing import TYPE_CHECKING, Any

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    import pandas as pd


HELP = "what changed between two profiles; a check for CI"
EXAMPLES = """  ipu-report compare before/training after/training
  ipu-report compare before/training after/training --fail-if 'cycles>+3%' --fail-if 'memory>+10%'
  ipu-report compare --csv before/training after/training > operators.csv
"""
_MEASURES = {  # of `analysis.compare`, whose first measure is that of "cycles"
    "sample": "a sample",
    "memory": "fullest tile",
    "stage": "slowest stage",
}
_RULE = re.compile(r"(cycles|sample|memory|stage)\s*>\s*([+-]?\d+(?:\.\d+)?)\s*%")


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
            "exit 1 if RULE holds: cycles>+N%% (of a weight update), sample>+N%% (cycles of a"
            " sample), stage>+N%% (of the slowest) or memory>+N%% (may be given more than once)"
        ),
    )
    parser.add_argument(
        "--calibrate",
        metavar="FILE",
        help=(
            "write the measured over the modelled cycles by class of operator; PROFILE is imported,"
            " OTHER modelled. Predictions use them where IPUSCOPE_CALIBRATION names FILE"
        ),
    )
    common.add_top(parser, 15)
    common.add_form(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    broken: list[str] = []
    other_path = common.find_one(args.other)

    def page(report: common.Report) -> common.Page:
        from ipuscope.profiler import analysis, open_report
        from ipuscope.profiler.units import count, percent
        from ipuscope.reports.tables import Column, Table, say, text

        with open_report(other_path) as other:
            common.say_damage(other)
            if args.calibrate:
                _calibrate(report, other, args.calibrate)
            sums, ops = analysis.compare(report, other), analysis.compare_ops(report, other)
            waits = analysis.compare_waits(report, other)
            each, classes = analysis.basis(report, other), []
            if report.imported != other.imported:
                classes = [_measured(analysis.compare_classes(report, other))]
            if args.fail_if:
                reasons = analysis.not_comparable(report, other)
                broken.extend(_broken(sums, args.fail_if, reasons))
                broken.extend(_does_not_fit(report, other))
            marks = [*common.mark(report, "A. "), *common.mark(other, "B. ")]
            caveats = [say(words) for words in analysis.caveats(report, other)]
        people, rows = args.form == "text", sums.to_dict("records")
        shown = sums.assign(
            **{side: [_amount(row[side], row["unit"]) for row in rows] for side in "ab"},
            change=[_change(row) for row in rows],
        )
        columns = (
            Column("what", "", text),
            Column("unit", "unit", text),
            Column("a", "A", str),
            Column("b", "B", str),
            Column("change", "change", str),
        )
        measures = Table("compare", shown if people else sums, columns)
        differ = ops[ops["difference"] != 0] if people else ops
        operators = Table(
            "operators",
            differ,
            (
                Column("name", "operator", text),
                Column("direction", "for", text),
                Column("total_cycles_a", "cycles A", _cycles),
                Column("total_cycles_b", "cycles B", _cycles),
                Column("difference", "B - A"),
            ),
            f"operators: cycles of {each}, the largest differences first",
            most=common.top(args),
        )
        came_from = Table(
            "waits",
            waits[waits["difference"] != 0] if people else waits,
            (
                Column("cause", "waits for", text),
                Column("where", "where", text),
                Column("cycles_a", "cycles A"),
                Column("cycles_b", "cycles B"),
                Column("difference", "B - A"),
                Column("share", "share", percent),
            ),
            f"what {each} waits for on the critical path: the differences add up",
            most=common.top(args),
        )
        rest = [one for one in (came_from, operators) if len(one.frame) or not people]
        tables = [*classes, measures, *rest]
        if args.form == "csv":
            tables = [operators, measures, came_from]
        alike = len(ops) - len(differ)
        same = f"{count(alike, 'operator')} {'takes' if alike == 1 else 'take'} as long in both."
        as_long = len(waits) > 0 and not waits["difference"].any()
        notes = [say("On the critical path nothing differs.")] if as_long else []
        notes += [say(same)] if alike else []
        return common.page(report, *tables, *notes, *caveats, *marks)

    code = common.each_profile(args, page)
    for words in broken:
        print(f"ipu-report: error: {common.one_line(words)}", file=sys.stderr)
    return max(code, common.NOT_SO) if broken else code


def _calibrate(measured: common.Report, modelled: common.Report, path: str) -> None:
    """Write the calibration."""
    from ipuscope.profiler import analysis, answers, calibration

    if not measured.imported or modelled.imported:
        raise common.CommandError("--calibrate takes an imported profile, then a modelled one")
    try:
        one = calibration.made(measured, modelled, analysis.paired_ops(measured, modelled))
        calibration.write(one, path)
    except (ValueError, OSError) as error:
        raise common.CommandError(f"{path} cannot be written: {error}") from error
    print(
        f"{path}: {len(one.classes)} classes; export {answers.CALIBRATION}={path}", file=sys.stderr
    )


def _measured(classes: pd.DataFrame) -> common.Table:
    """How far predicted cycles are from measured ones, if one of the profiles was imported."""
    from ipuscope.reports.tables import Column, Table, integer, text

    columns = (
        Column("kind", "operators", text),
        Column("operators", "number", integer),
        Column("measured", "cycles A"),
        Column("modelled", "cycles B"),
        Column("error", "B to A", lambda error: f"{error:+.1%}"),
    )
    return Table(
        "classes",
        classes,
        columns,
        "one execution of each operator that both have, by PopART's name",
    )


def _cycles(value: float | None) -> str:
    return "none" if value is None else f"{value:,.0f}"


def _amount(value: float, unit: str) -> str:
    from ipuscope.profiler import units

    if not math.isfinite(value):
        return "none"
    if unit == "share":
        return units.percent(value)
    return units.per_second(value) if unit == "1/s" else f"{value:,.0f}"


def _change(row: dict[Any, Any]) -> str:
    """By how much a measure differs: points of a share, else per cent of A."""
    if row["unit"] == "share" and math.isfinite(row["difference"]):
        return f"{100 * row['difference']:+.1f} points"
    ratio = row["ratio"]
    return f"{ratio - 1:+.1%}" if ratio is not None and math.isfinite(ratio) else ""


def _rule(words: str) -> tuple[str, float]:
    match = _RULE.fullmatch(words.strip())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{words!r} is not a rule; write cycles>+3%, sample>+3%, memory>+3% or stage>+3%"
        )
    return match[1], float(match[2]) / 100


def _broken(
    sums: pd.DataFrame, rules: list[tuple[str, float]], reasons: dict[str, str]
) -> list[str]:
    """What is worse than a rule allows, or cannot be compared by it."""
    broken = []
    for name, most in rules:
        what = _MEASURES.get(name, sums["what"].iloc[0])
        row = sums[sums["what"] == what].iloc[0]
        if what in reasons:
            broken.append(f"{name} cannot be compared: {reasons[what]}")
        elif row["ratio"] - 1 > most:
            broken.append(
                f"{name} {row['ratio'] - 1:+.1%}, more than {most:+.1%}: {row['a']:,.0f} to"
                f" {row['b']:,.0f} {row['unit']}"
            )
    return broken


def _does_not_fit(a: common.Report, b: common.Report) -> list[str]:
    """A message if A can run but B cannot: fewer cycles do not make it better."""
    from ipuscope.profiler import analysis

    fullest = [int(analysis.fullest_tiles(report).max(initial=0)) for report in (a, b)]
    over = [
        size - report.target.bytes_per_tile for size, report in zip(fullest, (a, b), strict=True)
    ]
    if over[0] > 0 or over[1] <= 0:
        return []
    return [f"B does not fit: its fullest tile holds {over[1]:,} bytes more than it has"]
