"""A profile for other tools: a trace, stacks for flame graphs, or a frame as CSV or Parquet.

The trace, which Perfetto and chrome://tracing open, has a process for each IPU with a thread for
its tasks, one for their program steps, and counters (live bytes, busy tiles, bytes over links), and
a process for the calls and their pipeline cycles; all calls are in it, one after another. Times are
microseconds at the machine's clock, cycles are in each event's arguments. The file's suffix sets
the form, or --format does: .json (or .json.gz) is the trace, .csv and .parquet a frame of --table,
.folded collapsed stacks, .speedscope.json speedscope's form, .pb.gz pprof's (with bytes);
model-explorer is the model's graph for Model Explorer, with node data beside it
(NAME.total_cycles.json, NAME.bytes.json). Stacks are of one device iteration.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    import pandas as pd


HELP = "a trace for Perfetto, stacks for flame graphs, or a table as CSV or Parquet"
EXAMPLES = """  ipu-report export demo/training -o trace.json            open it at https://ui.perfetto.dev
  ipu-report export demo/training --level tasks -o trace.json.gz
  ipu-report export demo/training -o demo.speedscope.json  open it at https://www.speedscope.app
  ipu-report export demo/training --by source -o demo.folded
  ipu-report export demo/training --by source -o demo.pb.gz      go tool pprof -top demo.pb.gz
  ipu-report export demo/training --format model-explorer -o model.json
  ipu-report export demo/training --table ops -o ops.csv
  ipu-report export demo/training --table steps -o steps.parquet   needs pyarrow
"""
FORMATS = ("perfetto", "speedscope", "collapsed", "pprof", "model-explorer", "csv", "parquet")
_SUFFIXES = {
    ".speedscope.json": "speedscope",
    ".json": "perfetto",
    ".json.gz": "perfetto",
    ".folded": "collapsed",
    ".pb.gz": "pprof",
    ".collapsed": "collapsed",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".parquet": "parquet",
}
_OF_RUN = ("steps", "tasks", "pipeline_cycles")
_TABLES = (*_OF_RUN, "ops", "stages", "blocks", "program_steps", "variables", "memory", "runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_profile(parser)
    common.add_output(parser, "where to write it", required=True)
    words = f"{', '.join(FORMATS)} (default: what the file's suffix says)"
    parser.add_argument("--format", choices=FORMATS, metavar="FORM", help=words)
    words = "how detailed the trace is (default: steps)"
    parser.add_argument("--level", choices=("steps", "tasks"), default="steps", help=words)
    words = "what stacks are of: the path of modules, or the call stack (default: module)"
    parser.add_argument("--by", choices=("module", "source"), default="module", help=words)
    words = f"what to write as .csv or .parquet: {', '.join(_TABLES)} (default: steps)"
    parser.add_argument("--table", choices=_TABLES, default="steps", metavar="TABLE", help=words)
    call = "only this profiled call (default: all in a trace, else the first)"
    common.add_number(parser, "--run", call, type=common.not_negative, dest="which_run")
    one = "only this device iteration of the run (default: all; of stacks the first)"
    common.add_number(parser, "--iteration", one, type=common.not_negative)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    form = _form(args.output, args.format)
    with common.open_one(args) as report:
        if form not in ("csv", "parquet") or args.table in _OF_RUN:
            common.check_iteration(report, args.which_run or 0, args.iteration or 0)
        try:
            with common.waiting(f"writing {args.output}"):
                rows = _write(report, args, form)
        except OSError as error:
            raise common.CommandError(
                f"{args.output}: cannot be written: {error.strerror or error}"
            ) from error
        except ValueError as error:  # too many rows for a frame
            raise common.CommandError(f"{report.path}: {error}: --iteration 0 takes one") from error
        predicted = " (predicted: no call was profiled)" if report.predicted else ""
    what = {"model-explorer": "nodes", "perfetto": "events", "csv": "rows", "parquet": "rows"}
    print(f"{args.output}: {rows:,} {what.get(form, 'stacks')}{predicted}")
    return common.OK


def _form(path: Path, asked: str | None) -> str:
    """The output format, one of `FORMATS`."""
    name = path.name.lower()
    forms = [form for suffix, form in _SUFFIXES.items() if name.endswith(suffix)]
    form = asked or (forms[0] if forms else "")
    if not form:
        raise common.CommandError(
            f"{path}: name it .json (a trace), .speedscope.json, .folded or .pb.gz (stacks), .csv"
            " or .parquet (a table), or say --format",
            common.USAGE,
        )
    if form == "parquet" and not importlib.util.find_spec("pyarrow"):
        raise common.CommandError(
            "Parquet needs pyarrow, which is not installed: pip install pyarrow, or take .csv"
        )
    return form


def _write(report: common.Report, args: argparse.Namespace, form: str) -> int:
    first = args.which_run or 0
    if form == "perfetto":
        from ipuscope.reports.chrome_trace import write_trace

        steps = args.level == "steps"
        return write_trace(report, args.output, args.which_run, args.iteration, steps)
    if form == "model-explorer":
        from ipuscope.reports import model_explorer

        return model_explorer.write(report, args.output)
    if form in ("speedscope", "collapsed", "pprof"):
        from ipuscope.reports import stacks

        write = getattr(stacks, f"write_{form}")
        return int(write(report, args.output, first, args.iteration or 0, args.by))
    if form == "parquet" and args.table == "steps":
        return _stream(report, args)
    frame = _frame(report, args)
    if form == "csv":
        from ipuscope.reports.tables import cell_text

        texts = frame.select_dtypes(include=["object", "string"]).columns
        harmless = frame.assign(**{name: frame[name].map(cell_text) for name in texts})
        harmless.to_csv(args.output, index=frame.index.name is not None, errors="replace")
    else:
        frame.to_parquet(args.output, index=frame.index.name is not None)
    return len(frame)


def _stream(report: common.Report, args: argparse.Namespace) -> int:
    """Write executed steps batch by batch: no number of them is too many."""
    from pyarrow import parquet

    batches = report.iter_steps(args.which_run or 0, iteration=args.iteration)
    first = next(batches)
    rows = first.num_rows
    with parquet.ParquetWriter(args.output, first.schema) as file:
        file.write_batch(first)
        for batch in batches:
            file.write_batch(batch.cast(first.schema))
            rows += batch.num_rows
    return rows


def _frame(report: common.Report, args: argparse.Namespace) -> pd.DataFrame:
    if args.table == "pipeline_cycles":
        return report.pipeline_cycles(args.which_run or 0, args.iteration or 0)
    if args.table == "ops":
        from ipuscope.profiler.analysis import operators

        return operators(report).drop(columns="id").sort_index()
    member: Any = getattr(report, args.table)
    if args.table in ("steps", "tasks"):
        member = member(args.which_run or 0, iteration=args.iteration)
    elif callable(member):
        member = member()
    return member
