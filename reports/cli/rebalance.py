"""The best split of the model's Blocks into stages, why it cannot be better, and a file that makes it so.

Costs are those of the profile; the schedule is the engine's own. ipu-run --placement runs the unchanged script with
the file, and --verify then says what was predicted and what came of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from reports.cli import common

if TYPE_CHECKING:
    from profiler import Report
    from profiler.rebalance import Costs, Split
    from reports.tables import Page

HELP = "the best split into stages, and a placement file of it"
EXAMPLES = """  ipu-report rebalance demo/training                      the best number of stages, up to as many as now
  ipu-report rebalance --stages 2 demo/training -o placement.json
  ipu-run --placement placement.json --autoreport after train.py
  ipu-report rebalance --verify demo/training after/training      predicted and obtained
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_profiles(parser)
    parser.add_argument("--stages", type=common.count, metavar="N", help="so many (default: what is quickest)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the placement here")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="of two profiles, hold the second against what the first predicts for its split",
    )
    common.add_form(parser)


def run(args: argparse.Namespace) -> int:
    if args.verify:
        if len(args.profiles) != 2:
            raise common.CommandError("--verify takes two profiles: --verify BEFORE AFTER", common.USAGE)
        *args.profiles, args.after = [str(common.find_one(word)) for word in args.profiles]
    elif args.output is not None:
        if len(args.profiles) != 1:
            raise common.CommandError("-o takes the placement of one profile", common.USAGE)
        args.profiles = [str(common.find_one(args.profiles[0]))]
    return common.each_profile(args, lambda report: _verify(report, args) if args.verify else _propose(report, args))


def _costs(report: Report) -> Costs:
    from profiler.rebalance import Costs

    try:
        return Costs.from_report(report)
    except ValueError as error:
        raise common.CommandError(str(error)) from error


def best(costs: Costs, stages: int | None = None) -> Split:
    """The best split into so many stages; or of all numbers of stages up to the profiled one, the quickest."""
    from profiler.rebalance import best_split

    if stages is not None:
        return best_split(costs, stages)
    found: list[Split] = []
    problem = "there is none"
    for count in range(1, len(costs.ipus) + 1):
        try:
            split = best_split(costs, count)
        except ValueError as error:
            problem = str(error)
            continue
        if not split.prediction.problems:
            found.append(split)
    if not found:
        raise ValueError(f"no split can run: {problem}")
    return min(found, key=lambda split: split.prediction.total)


def _propose(report: Report, args: argparse.Namespace) -> Page:
    import pandas as pd

    from profiler.rebalance import Assignment, placement_file, what_if
    from reports.tables import Column, Page, Table, identity, kibibytes, say, text

    costs = _costs(report)
    try:
        split = best(costs, args.stages)
        now = what_if(costs, Assignment.of(costs.stage.tolist(), costs.ipus))
    except ValueError as error:
        raise common.CommandError(f"{report.path}: {error}") from error
    wanted = split.prediction
    ipus, spans = wanted.assignment.ipus, wanted.assignment.spans(len(costs))
    backward = wanted.backward or (0,) * len(spans)
    rows = [
        (
            k,
            ipus[k],
            ", ".join(costs.names[first : last + 1]),
            wanted.forward[k],
            backward[k],
            cycles,
            wanted.fullest[ipus[k]],
        )
        for k, ((first, last), cycles) in enumerate(zip(spans, wanted.stage_cycles.tolist(), strict=True))
    ]
    names = ["stage", "ipu", "blocks", "forward", "backward", "cycles", "fullest_tile"]
    columns = (
        Column("stage", "stage", identity),
        Column("ipu", "IPU", identity),
        Column("blocks", "Blocks", text),
        Column("forward", "forward"),
        Column("backward", "backward"),
        Column("cycles", "cycles"),
        Column("fullest_tile", "fullest\ntile KiB", kibibytes),
    )
    change = wanted.total / now.total - 1 if now.total else 0.0
    lines = [say(f"Predicted: {wanted.total:,} cycles a weight update instead of {now.total:,} ({change:+.1%}).")]
    lines += [say(words[0].upper() + words[1:] + ".") for words in (*split.why, *wanted.problems, *wanted.notes)]
    if args.output is not None:
        try:
            args.output.write_text(json.dumps(placement_file(costs, wanted.assignment), indent=2) + "\n")
        except OSError as error:
            raise common.CommandError(f"{args.output}: cannot be written: {error.strerror}") from error
        lines.append(say(f"{args.output}: run it with ipu-run --placement {args.output} SCRIPT."))
    table = Table("rebalance", pd.DataFrame(rows, columns=pd.Index(names)), columns)
    return Page(str(report.path), (table, *lines))


def _verify(report: Report, args: argparse.Namespace) -> Page:
    import pandas as pd

    from profiler import analysis, open_report
    from profiler.rebalance import Assignment, what_if
    from reports.tables import Column, Page, Table, text

    costs = _costs(report)
    with open_report(args.after) as after:
        obtained = _costs(after)
        if obtained.names != costs.names:
            raise common.CommandError(f"{args.after} has other Blocks than {report.path}: not the same model")
        try:
            predicted = what_if(costs, Assignment.of(obtained.stage.tolist(), obtained.ipus))
        except ValueError as error:
            raise common.CommandError(f"{args.after}: {error}") from error
        pace = analysis.pace(after)
        cycles = after.pipeline_cycles(0, 0) if len(after.runs) else None
        rows = [("a weight update" if costs.training else "a device iteration", predicted.total, pace.cycles)]
        if cycles is not None and (cycles["phase"] == "steady").any():
            steady = int(cycles.loc[cycles["phase"] == "steady", "cycles"].max())
            rows.append(("a pipeline cycle, steady", predicted.pipeline_cycle, steady))
        rows += [
            (f"stage {k}", int(predicted.stage_cycles[k]), int(cycles))
            for k, cycles in enumerate(after.stages["cycles"].tolist())
        ]
        rows += [
            (f"the fullest tile of IPU {ipu}, bytes", size, int(after.tiles(ipu)["total"].max()))
            for ipu, size in enumerate(predicted.fullest)
        ]
    frame = pd.DataFrame(rows, columns=pd.Index(["what", "predicted", "obtained"]))
    frame["off"] = [
        f"{p / o - 1:+.2%}" if o else "" for p, o in zip(frame["predicted"], frame["obtained"], strict=True)
    ]
    columns = (
        Column("what", "cycles of; bytes of", text),
        Column("predicted", "predicted"),
        Column("obtained", "obtained"),
        Column("off", "off by", text),
    )
    return Page(str(report.path), (Table("verify", frame, columns),))
