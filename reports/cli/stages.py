"""What each pipeline stage costs a micro-batch, and which one the others wait for.

A pipeline cycle lasts as long as its slowest stage: 'of slowest' at 50% means that the IPU of that
stage waits half of each pipeline cycle. Cycles are of one micro-batch, 'update' of one weight
update. The stash is what a stage keeps of micro-batches that went forward and have not come back.

'of peak' is what a stage's operators do in an update over what its IPU could do meanwhile: the mean
over IPUs is MFU. A weight that stages share counts once, where it is; their copies are left out.
"""

from __future__ import annotations

import argparse

from ipuscope.reports.cli import common

HELP = "what each pipeline stage costs, and which one is slowest"
EXAMPLES = """  ipu-report stages demo/training
  ipu-report stages --by block demo/training           the same by Block of the model
  ipu-report stages --json demo/training | jq '.[0].stages | max_by(.cycles).blocks'
  ipu-report stages --csv 'runs/*/training' > stages.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument(
        "--by", choices=("stage", "block"), default="stage", help="rows (default: stage)"
    )
    common.add_each(parser)


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    return _by_block(report) if args.by == "block" else _by_stage(report, args.each)


def _by_stage(report: common.Report, each: bool = False) -> common.Page:
    import numpy as np

    from ipuscope.profiler.analysis import facts, peak
    from ipuscope.profiler.report.query import Answer
    from ipuscope.profiler.units import percent
    from ipuscope.reports import alike
    from ipuscope.reports.tables import Column, Table, identity, say, text, whole_kibibytes

    stages = report.stage_columns
    training = bool(stages["backward_cycles"].any())
    columns = [
        Column("stage", "stage", identity),
        Column("ipu", "IPU", identity),
        Column("blocks", "Blocks", text),
        Column("forward_cycles", "forward"),
    ]
    if training:
        columns += [Column("backward_cycles", "backward"), Column("update_cycles", "update")]
    if shares := peak.of_stages(report):
        mfu = np.array([shares.get(stage, 0.0) for stage in stages["stage"].tolist()])
        stages = {**stages, "mfu": mfu}
        columns.append(Column("mfu", "of\npeak", percent))
    columns.append(Column("share", "of\nslowest", percent))
    if training:
        columns.append(Column("stash_bytes", "stash\nKiB", whole_kibibytes))
    columns.append(Column("weight_bytes", "weights\nKiB", whole_kibibytes))
    every, printed, note = Answer.of(stages), None, ""
    if not each and len(every) > alike.FEW:
        rows = Answer.of(alike.stages_alike(stages))
        printed = rows if len(rows) < len(every) else None
    if printed is not None:
        note = (
            "Stages of equal work are one row, with IPU and Blocks of the first and the largest"
            f" stash: --each prints all {len(every)}."
        )
    table = Table("stages", every, tuple(columns), printed=printed, note=note)
    if len(every) < 2:
        return common.page(report, table)
    slowest = facts.slowest_of(report)
    words = f"The slowest is {facts.slowest_words(slowest)}." if slowest else ""
    of_peak = [say(f"Together {top.words}.")] if (top := peak.peak(report)) else []
    return common.page(report, table, say(words), *of_peak)


def _by_block(report: common.Report) -> common.Page:
    from ipuscope.reports.tables import Column, Table, identity, text, whole_kibibytes

    columns = (
        Column("name", "Block", text),
        Column("stage", "stage", identity),
        Column("ipu", "IPU", identity),
        Column("forward_cycles", "forward"),
        Column("backward_cycles", "backward"),
        Column("update_cycles", "update"),
        Column("weight_bytes", "weights\nKiB", whole_kibibytes),
    )
    return common.page(report, Table("blocks", report.blocks, columns))
