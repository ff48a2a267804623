"""Other schedules for ``ipu-report whatif --schedule``: the table, and the picture of one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    from ipuscope.planner.costs.profile_costs import Costs
    from ipuscope.planner.predict.what_if import Assignment
    from ipuscope.planner.schedules.compared import Outcome
    from ipuscope.profiler.timeline.schedule_types import Schedule

_SLICES = 16  # cells of a picture of free IPUs, a dozen characters each


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that ask for schedules."""
    words = "another schedule: its name, 'all', or a CSV file (may be repeated)"
    parser.add_argument("--schedule", action="append", metavar="NAME", help=words)
    words = "stages on each IPU, for interleaved schedules (default: 2)"
    common.add_number(parser, "--chunks", words, default=2)
    words = "write the schedule for torch.distributed.pipelining; takes a single --schedule"
    parser.add_argument("--schedule-csv", metavar="FILE", help=words)


def page(
    report: common.Report, costs: Costs, assignment: Assignment, args: argparse.Namespace
) -> common.Page:
    """The schedules asked for; of a single one, also its pictures. ValueError as in `whatif`."""
    from ipuscope.planner.schedules.actions import write_csv
    from ipuscope.planner.schedules.compared import ASSUMES, compared
    from ipuscope.planner.schedules.generators import KINDS
    from ipuscope.profiler import confidence
    from ipuscope.reports.tables import (
        Column,
        Table,
        change,
        say,
        sentence,
        whole_kibibytes,
        whole_text,
    )

    asked = [name for one in args.schedule for name in (KINDS if one == "all" else [one])]
    rows, results = compared(report, costs, assignment, asked, args.chunks)
    if not results:
        raise ValueError("; ".join(rows["note"]))
    if args.schedule_csv:
        if len(asked) != 1:
            raise ValueError("--schedule-csv writes one schedule: name one with --schedule")
        write_csv(results[asked[0]].schedule, args.schedule_csv)
    columns = (  # those that fit 80 characters; --json and --csv have the others
        Column("schedule", "schedule", whole_text),
        Column("cycles", "cycles\nin steps"),
        Column("change", "", change),
        Column("free", "cycles\nfree"),
        Column("free_change", "", change),
        Column("stash", "stash\nKiB", whole_kibibytes),
        Column("memory", "memory", sentence),
    )
    notes = [say(f"{row.schedule}: {row.note}.") for row in rows[rows["note"] != ""].itertuples()]
    answered = rows[rows["note"] == ""]
    whole = ("stages", "cycles", "free", "ramps", "stash", "fullest_tile")
    shown = Table("schedules", answered.astype(dict.fromkeys(whole, "int64")), columns)
    today = ", ".join(answered.loc[answered["runs"] == "yes", "schedule"])
    notes.append(say(f"PopTorch can run {today or 'none of these'}."))
    drawn = _pictures(results[asked[0]]) if len(asked) == 1 else []
    notes += [say(words) for words in confidence.of_two(report, "schedules")]
    return common.page(report, shown, *drawn, *notes, say(ASSUMES, "dim"))


def _pictures(outcome: Outcome) -> list[common.Lines]:
    from ipuscope.planner.schedules.simulation import sliced
    from ipuscope.reports.tables import say

    return [
        say("All IPUs meet after every step:"),
        _picture(outcome.in_steps),
        say("Each waits only for what it reads:"),
        _picture(sliced(outcome.free, _SLICES)),
    ]


def _picture(schedule: Schedule) -> common.Lines:
    from ipuscope.reports.tables import Lines, drawing_width, speaks_unicode
    from ipuscope.reports.text_timeline import WEIGHTS, timeline
    from ipuscope.viewer.figures.rebalance import frames_of

    tasks, cycles = frames_of(schedule)
    if schedule.part is not None:
        tasks["direction"] = tasks["direction"].where(schedule.part == 0, WEIGHTS)
    return Lines(tuple(timeline(tasks, cycles, drawing_width(), speaks_unicode())), as_drawn=True)
