"""A profile for other tools.

A trace that Perfetto and chrome://tracing open, or a frame as CSV or Parquet.

The trace has a process for each IPU with a thread for its tasks and one for their program steps,
and a process for the pipeline cycles; times are microseconds at the machine's clock, cycles are in
each event's arguments. The file's suffix says the form: .json (or .json.gz) is the trace, .csv and
.parquet a frame of --table.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.cli import common

if TYPE_CHECKING:
    import pandas as pd

    from profiler import Report

HELP = "a trace for Perfetto, or a table as CSV or Parquet"
EXAMPLES = """  ipu-report export demo/training -o trace.json            open it at https://ui.perfetto.dev
  ipu-report export demo/training --level tasks -o trace.json.gz
  ipu-report export demo/training --table ops -o ops.csv
  ipu-report export demo/training --table steps -o steps.parquet   needs pyarrow
"""
_FORMS = ("json", "csv", "parquet")
_OF_RUN = ("steps", "tasks", "pipeline_cycles")
_TABLES = (*_OF_RUN, "ops", "stages", "blocks", "program_steps", "variables", "memory", "runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_profile(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="where to write it"
    )
    parser.add_argument(
        "--level",
        choices=("steps", "tasks"),
        default="steps",
        help="of the trace's detail (default: steps)",
    )
    parser.add_argument(
        "--table",
        choices=_TABLES,
        default="steps",
        help="what .csv and .parquet hold (default: steps)",
    )
    common.add_run(parser)
    parser.add_argument(
        "--iteration",
        type=common.count,
        metavar="N",
        help="only this device iteration of the run (default: all)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    form = _form(args.output)
    with common.open_one(args) as report:
        if form == "json" or args.table in _OF_RUN:
            common.check_iteration(report, args.which_run, args.iteration or 0)
        try:
            rows = _write(report, args, form)
        except OSError as error:
            raise common.CommandError(
                f"{args.output}: cannot be written: {error.strerror or error}"
            ) from error
        except ValueError as error:  # too many rows for a frame
            raise common.CommandError(f"{report.path}: {error}: --iteration 0 takes one") from error
    print(f"{args.output}: {rows:,} {'events' if form == 'json' else 'rows'}")
    return common.OK


def _form(path: Path) -> str:
    form = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if form not in _FORMS or (form == "parquet" and path.suffix == ".gz"):
        raise common.CommandError(
            f"{path}: name it .json (a trace), .csv or .parquet (a table)", common.USAGE
        )
    if form == "parquet" and not any(map(importlib.util.find_spec, ("pyarrow", "fastparquet"))):
        raise common.CommandError(
            "Parquet needs pyarrow, which is not installed: pip install pyarrow, or take .csv"
        )
    return form


def _write(report: Report, args: argparse.Namespace, form: str) -> int:
    if form == "json":
        from reports.trace import write_trace

        return write_trace(
            report, args.output, args.which_run, args.iteration, steps=args.level == "steps"
        )
    frame = _frame(report, args)
    if form == "csv":
        frame.to_csv(args.output, index=frame.index.name is not None)
    else:
        frame.to_parquet(args.output, index=frame.index.name is not None)
    return len(frame)


def _frame(report: Report, args: argparse.Namespace) -> pd.DataFrame:
    if args.table == "pipeline_cycles":
        return report.pipeline_cycles(args.which_run, args.iteration or 0)
    found: Any = getattr(report, args.table)
    if args.table in ("steps", "tasks"):
        found = found(args.which_run, iteration=args.iteration)
    elif callable(found):
        found = found()
    frame: pd.DataFrame = found
    return frame
