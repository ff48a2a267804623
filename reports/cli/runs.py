"""All profiles below a directory in one table: what each was made with, its speed and its memory.

Fastest first. 'predicted': how far the cycles that a profile's placement promised are from those of
its compile.
"""

from __future__ import annotations

import argparse

from ipuscope.reports.cli import common

HELP = "all profiles below a directory as a table: settings, speed, memory"
EXAMPLES = """  ipu-report runs tried
  ipu-report runs --csv tried > runs.csv
  ipu-report runs --json 'runs/*' | jq '.[0].runs[] | select(.fits) | .profile'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_profiles(parser)
    common.add_form(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    import os

    from ipuscope.profiler.analysis.runs import runs
    from ipuscope.profiler.units import per_second, percent
    from ipuscope.reports.tables import (
        Column,
        Page,
        Table,
        identity,
        kibibytes,
        print_pages,
        say,
        sentence,
        text,
    )

    table, problems = runs(common.find_profiles(args.profiles))
    if not table.empty:
        table = table.sort_values(["samples_per_second", "profile"], ascending=[False, True])
        above = os.path.commonpath([os.path.dirname(path) for path in table["profile"]])
        table["answer"] = ["fits" if fits else "out of memory" for fits in table["fits"]]
        off = table["predicted_cycles"] / table["cycles"].clip(lower=1) - 1
        table["off"] = off.where(table["predicted_cycles"] > 0)
        columns = (
            Column("place", "profile", text),
            *[Column("model", "model", text)] * (table["model"].nunique() > 1),
            Column("ipus", "IPUs", identity),
            Column("replicas", "rep-\nlicas", identity),
            Column("micro_batch", "micro-\nbatch", "{:.0f}".format),
            Column("samples", "samples/\nupdate"),
            Column("levers", "--with", text),
            Column("samples_per_second", "samples/s", per_second),
            Column("mfu", "MFU", percent),
            Column("off", "pre-\ndicted", lambda share: f"{round(share, 3) + 0.0:+.1%}"),
            Column("fullest_bytes", "extent\nKiB", kibibytes),
            Column("answer", "memory", sentence),
        )
        lines = [say(problem) for problem in problems]
        print_pages([Page(above, (Table("runs", table, columns), *lines))], args.form)
        return common.OK
    raise common.CommandError("; ".join(problems) or "there is no profile", 3)
