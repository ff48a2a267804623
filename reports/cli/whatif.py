"""What any split into stages would give: cycles, throughput, memory, and whether it compiles.

Nothing is compiled: the engine's own schedule is laid out over the costs of the profile's Blocks.
An assignment is one of: a stage for each Block (0,0,1,2); how many Blocks each stage has (2-1-1);
Blocks by name, stages separated by a slash, with an IPU where it is not the next (B1,B2/B3/B4@0); a
placement file. Without one: the split as profiled.

--schedule asks for another order of the same work: a name, 'all', or a CSV file of
torch.distributed.pipelining. Its cycles are those with all IPUs meeting after every step, as
PopART's programs do, and 'free', with each waiting only for what it reads.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common, whatif_schedules

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.planner.costs.profile_costs import Costs
    from ipuscope.planner.predict.what_if import Assignment, Prediction
    from ipuscope.reports.tables import Column, Page

HELP = "what a given split would cost: cycles, speed, memory, legality"
EXAMPLES = """  ipu-report whatif demo/training --assign 0,0,1,2
  ipu-report whatif demo/training --assign 2-1-1 --assign 1-1-2       which of the two
  ipu-report whatif demo/training --assign B1/B2/B3/B4@0       a stage list that comes back to IPU 0
  ipu-report whatif demo/training --assign placement.json --json
  ipu-report whatif demo/training --schedule all       what other schedules would give
  ipu-report whatif demo/training --schedule zb-h1     one of them, drawn
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    words = "which Block in which stage (may be repeated)"
    parser.add_argument("--assign", action="append", default=[], metavar="SPLIT", help=words)
    common.add_stage_ipus(parser, "the IPU of each stage (default: 0, 1, 2 ...)")
    words = "gradient accumulation (default: as profiled)"
    common.add_number(parser, "--micro-batches", words)
    whatif_schedules.add_arguments(parser)


def page(report: common.Report, args: argparse.Namespace) -> Page:
    """The page of a profile."""
    import pandas as pd

    from ipuscope.planner.predict.split_text import parse_assignment, profiled
    from ipuscope.planner.predict.what_if import what_if
    from ipuscope.profiler import confidence, units
    from ipuscope.profiler.units import per_second
    from ipuscope.reports.tables import Column, Table, change, identity, kibibytes, say, sentence
    from ipuscope.reports.tables import text as words

    costs = profiled_costs = costs_of(report)
    try:
        if args.micro_batches:
            costs = costs.of_micro_batches(args.micro_batches)
        now = what_if(costs, profiled(costs))
        ipus = common.stage_ipus(args)
        asked = [(text, parse_assignment(costs.names, text, ipus, costs)) for text in args.assign]
        asked = asked or [("as profiled", profiled(costs))]
        if args.schedule:
            return whatif_schedules.page(report, costs, asked[0][1], args)
        predictions = [(text, what_if(costs, assignment)) for text, assignment in asked]
    except ValueError as error:
        raise common.CommandError(f"{report.path}: {error}") from error
    summary = pd.DataFrame([_row(text, prediction, now) for text, prediction in predictions])
    stages = pd.concat(
        [stage_rows(costs, prediction).assign(split=text) for text, prediction in predictions]
    )
    several = len(predictions) > 1
    columns = (
        Column("split", "split", sentence),
        Column("cycles", "cycles"),
        Column("change", "change", change),
        Column("pipeline_cycle", "pipeline\ncycle"),
        *((Column("samples_per_second", "samples/s", per_second),) if costs.samples else ()),
        Column("ipus", "IPUs", identity),
        Column("fullest_tile", "extent\nKiB", kibibytes),
        Column("legal", "com-\npiles", words),
        Column("memory", "memory", sentence),
    )
    shown = (*((Column("split", "split", sentence),) if several else ()), *stage_columns())
    lines = [
        say(f"{text}: {problem}." if several else f"{units.sentence(problem)}.")
        for text, prediction in predictions
        for problem in (*prediction.problems, *prediction.notes)
    ]
    if costs.accumulating is not profiled_costs.accumulating:
        lines.append(say("What accumulators take is an estimate: one micro-batch has none."))
    lines += [say(words) for words in confidence.of_two(report, "splits")]
    lines += common.mark(report) if report.imported else ()
    return common.page(
        report,
        Table("whatif", summary, columns),
        Table("stages", stages, shown),
        *lines,
        holds=not any(prediction.problems for _, prediction in predictions),
    )


def costs_of(report: common.Report) -> Costs:
    """The costs of a profile's Blocks. CommandError if it has none."""
    from ipuscope.planner.costs.profile_costs import Costs

    try:
        return Costs.from_report(report)
    except ValueError as error:  # which names the profile
        raise common.CommandError(str(error)) from error


def _row(text: str, prediction: Prediction, now: Prediction) -> dict[str, object]:
    from ipuscope.planner.predict.memory_verdict import summary

    runs = prediction.costs.samples > 0 and not prediction.problems
    return {
        "split": text,
        "cycles": prediction.total,
        "change": prediction.total / now.total - 1 if now.total else 0.0,
        "pipeline_cycle": prediction.pipeline_cycle,
        "samples_per_second": prediction.samples_per_second if runs else None,
        "stages": len(prediction.assignment.starts),
        "ipus": len(prediction.fullest),
        "attached_ipus": prediction.attached,
        "fullest_tile": max(prediction.fullest),
        "legal": "no" if prediction.problems else "yes",
        "memory": summary(prediction.memory),
        "problems": "; ".join(prediction.problems),
        "notes": "; ".join(prediction.notes),
    }


def stage_columns() -> tuple[Column, ...]:
    """How `stage_rows` are printed."""
    from ipuscope.reports.tables import Column, identity, kibibytes, text

    return (
        Column("stage", "stage", identity),
        Column("ipu", "IPU", identity),
        Column("blocks", "Blocks", text),
        Column("forward", "forward"),
        Column("backward", "backward"),
        Column("cycles", "cycles"),
        Column("fullest_tile", "extent\nKiB", kibibytes),
    )


def stage_rows(costs: Costs, prediction: Prediction) -> pd.DataFrame:
    """One row per stage: its Blocks, cycles and the fullest tile of its IPU in bytes.

    Columns: ``stage, ipu, blocks, forward, backward, cycles, fullest_tile, memory``.
    """
    import pandas as pd

    assignment: Assignment = prediction.assignment
    spans = assignment.spans(len(costs))
    return pd.DataFrame(
        {
            "stage": range(len(spans)),
            "ipu": assignment.ipus,
            "blocks": [", ".join(costs.names[first : last + 1]) for first, last in spans],
            "forward": prediction.forward,
            "backward": prediction.backward or (0,) * len(spans),
            "cycles": prediction.stage_cycles,
            "fullest_tile": [prediction.fullest[ipu] for ipu in assignment.ipus],
            "memory": [str(prediction.memory[ipu]) for ipu in assignment.ipus],
        }
    )
