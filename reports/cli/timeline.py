"""The pipeline as text: a row an IPU, a cell a pipeline cycle, from ramp-up to ramp-down.

Within a cell, each character is an equal part of that pipeline cycle's time and shows what the IPU
did longest in it: dots are waiting. Where a character stands for several pipeline cycles, it shows
what most of the busy time goes to, or a dot where the IPU waits for more than half. Numbers after a
letter are micro-batches, where they fit; a wider terminal (or --width) fits more. 'slowest' is the
IPU that the others waited for.
"""

from __future__ import annotations

import argparse
import textwrap
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler import Report
    from ipuscope.reports.tables import Lines, Page

HELP = "the pipeline as text, from ramp-up to ramp-down"
EXAMPLES = """  ipu-report timeline demo/training
  ipu-report timeline --width 200 demo/training        with micro-batch numbers
  ipu-report timeline --run 1 --iteration 3 demo/training
  ipu-report timeline --csv demo/training > tasks.csv  every task with start and end, in cycles
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_run(parser)
    common.add_iteration(parser)
    common.add_drawing(parser)
    common.add_each(parser)


def page(report: Report, args: argparse.Namespace) -> Page:
    """The page of a profile."""
    from ipuscope.reports.tables import Column, Page, Table, integer, text

    common.check_not_imported(report)
    common.check_iteration(report, args.which_run, args.iteration)
    tasks = report.tasks(args.which_run, iteration=args.iteration)
    cycles = report.pipeline_cycles(args.which_run, args.iteration)
    phases = (
        cycles.groupby("phase", sort=False)
        .agg(pipeline_cycles=("cycles", "size"), cycles=("cycles", "sum"))
        .reset_index()
    )
    columns = (
        Column("phase", "phase", text),
        Column("pipeline_cycles", "pipeline cycles", integer),
        Column("cycles", "cycles", integer),
    )
    # First, for --csv: people see it as the drawing.
    parts = (
        Table("tasks", tasks, ()),
        drawing(report, args, tasks, cycles),
        Table("pipeline_cycles", cycles, ()),
    )
    marked = common.mark(report)
    return Page(str(report.path), (*parts, *marked, Table("phases", phases, columns)))


def drawing(
    report: Report, args: argparse.Namespace, tasks: pd.DataFrame, cycles: pd.DataFrame
) -> Lines:
    """The timeline as wide as the terminal, and which IPUs it stands for."""
    from ipuscope.profiler.analysis.pod import shards_of
    from ipuscope.reports.tables import Lines, drawing_width, speaks_unicode
    from ipuscope.reports.text_timeline import timeline

    replicas, shards = report.target.num_replicas, shards_of(report)
    unicode = speaks_unicode() and not args.ascii
    width = args.width or drawing_width()
    lines = timeline(tasks, cycles, width, unicode, shards, args.each)
    same = [
        *([f"A lane is {shards} IPUs that share the tensors of a stage."] * (shards > 1)),
        *([f"Drawn is one of {replicas} replicas, which do the same."] * (replicas > 1)),
    ]
    if same:
        same.append("ipu-report pod has every IPU.")
    lines += [((words, "dim"),) for words in textwrap.wrap(" ".join(same), width)]
    return Lines(tuple(lines), as_drawn=True)
