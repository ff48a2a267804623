"""The pipeline as text, a row an IPU, and each pipeline cycle: what set its length.

In the drawing, each character is an equal part of its pipeline cycle's time and shows what the IPU
did longest in it: dots are waiting. Where a character stands for several pipeline cycles, it shows
what most of the busy time goes to, or a dot where the IPU waits for more than half. Numbers after a
letter are micro-batches, where they fit; a wider terminal (or --width) fits more. 'slowest' is the
IPU that the others waited for.

A pipeline cycle is the slowest IPU's work, then copies between IPUs, syncs and 'host': host I/O
and, in phases, streaming memory. 'work' is that IPU's: F forward, B backward, R recomputation, U
weight update, with the stage. The time bubble is the share of the IPUs' cycles without work for a
micro-batch; the slot bubble the share of stages' pipeline cycles without one.
"""

from __future__ import annotations

import argparse
import math
import textwrap
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler.analysis.pipeline import Bubble
    from ipuscope.profiler.units import Fact
    from ipuscope.reports.tables import Lines, Page

HELP = "the pipeline as text, and each pipeline cycle: the slowest stage and why, bubbles"
EXAMPLES = """  ipu-report pipeline demo/training
  ipu-report pipeline --width 200 demo/training              with micro-batch numbers
  ipu-report pipeline --run 1 --iteration 3 demo/training
  ipu-report pipeline --no-drawing demo/training             the tables only
  ipu-report pipeline --json demo/training | jq '.[0].bubble.time_measured'
  ipu-report pipeline --csv 'runs/*/training' > cycles.csv   a row a pipeline cycle
"""
TOP = 20  # rows for people
_LETTERS: dict[str, str] = {"forward": "F", "backward": "B", "recompute": "R"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_run(parser)
    common.add_iteration(parser)
    common.add_flag(parser, "--no-drawing", "without the timeline")
    common.add_drawing(parser)
    common.add_each(parser)


def page(report: common.Report, args: argparse.Namespace) -> Page:
    """The page of a profile."""
    common.check_not_imported(report)
    from ipuscope.profiler.analysis import pipeline
    from ipuscope.profiler.units import percent
    from ipuscope.reports.tables import Column, Facts, Table, identity, say, whole_text
    from ipuscope.reports.tables import text as words

    common.check_iteration(report, args.which_run, args.iteration)
    table = pipeline.cycle_table(report, args.which_run, args.iteration)
    tasks = report.tasks(args.which_run, iteration=args.iteration)
    bubble = pipeline.bubble(report, args.which_run, args.iteration)
    people = pipeline.repeated(table)
    people = people.assign(
        position=[
            str(a) if a == b else f"{a}-{b}"
            for a, b in zip(people["first"], people["last"], strict=True)
        ],
        work=people["work"].map(_short),
        between=people["copy_cycles"] + people["sync_cycles"],
    )
    columns = (
        Column("position", "cycle", str),
        Column("phase", "phase", words),
        Column("cycles", "cycles"),
        Column("slowest_ipu", "slow\nIPU", identity),
        Column("work", "work", whole_text),
        Column("work_cycles", "cycles"),
        Column("host_cycles", "host"),
        Column("between", "copies\n+syncs"),
        Column("busy", "busy", percent),
    )
    phases = (
        table.groupby("phase", sort=False)
        .agg(pipeline_cycles=("cycles", "size"), cycles=("cycles", "sum"), busy=("busy", "mean"))
        .reset_index()
    )
    shown = (
        Column("phase", "phase", words),
        Column("pipeline_cycles", "pipeline cycles"),
        Column("cycles", "cycles"),
    )
    parts: list[Table | Facts | Lines] = [
        Table("pipeline", table, (), most=args.top or None),  # first: --csv prints this one
        *([] if args.no_drawing else [_drawing(report, args, tasks, table)]),
        Table(
            "cycles", people, columns, "pipeline cycles, equal ones grouped", most=common.top(args)
        ),
        Table("phases", phases, shown),
        Facts("bubble", _facts(bubble)),
        say(_why(table)),
        *common.mark(report),
    ]
    return common.page(report, *parts)


def _drawing(
    report: common.Report, args: argparse.Namespace, tasks: pd.DataFrame, cycles: pd.DataFrame
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
        *([f"This is one of {replicas} replicas, which do the same."] * (replicas > 1)),
    ]
    if same:
        same.append("ipu-report pod shows every IPU.")
    lines += [((words, "dim"),) for words in textwrap.wrap(" ".join(same), width)]
    return Lines(tuple(lines), as_drawn=True)


def _short(work: str) -> str:
    """Abbreviate "backward of stage 1, forward of stage 1" to "B:1 F:1"."""
    parts = [part.split(" of stage ") for part in work.split(", ") if part]
    return " ".join(
        _LETTERS.get(part[0], "U") + (f":{part[1]}" if len(part) > 1 else "") for part in parts
    )


def _facts(bubble: Bubble) -> tuple[Fact, ...]:
    from ipuscope.profiler.units import Fact

    time = f"{bubble.time_measured:.1%} in this profile"
    if not bubble.slot_closed_form:  # one stage, or stages that take turns
        return (Fact("time_measured", bubble.time_measured, "time bubble", time),)
    if not math.isnan(bubble.time_of_stages):
        time += f"; {bubble.time_of_stages:.1%} from these stages and ramps alone"
    time += f"{',' if ';' in time else ';'} {bubble.time_balanced:.1%} if stages were equal"
    slot = f"{bubble.slot_measured:.1%} in this profile, {bubble.slot_closed_form:.1%} by the"
    return (
        Fact("stages", bubble.stages),
        Fact("micro_batches", bubble.micro_batches),
        Fact("time_measured", bubble.time_measured, "time bubble", time),
        Fact("time_of_stages", bubble.time_of_stages),
        Fact("time_balanced", bubble.time_balanced),
        Fact("slot_measured", bubble.slot_measured, "slot bubble", f"{slot} closed form"),
        Fact("slot_closed_form", bubble.slot_closed_form),
    )


def _why(table: pd.DataFrame) -> str:
    """A sentence about the most frequent pipeline cycle."""
    from ipuscope.profiler.enums import PipelinePhase

    work = table[table["phase"] != PipelinePhase.UPDATE]
    if work.empty:
        return "No pipeline cycle runs a micro-batch."
    steady = work[work["phase"] == PipelinePhase.STEADY]
    some = steady if len(steady) else work
    typical = some[some["cycles"] == some.groupby("cycles", sort=False).size().idxmax()].iloc[0]
    largest = {name: int(typical[f"{name}_cycles"]) for name in ("work", "host", "copy", "sync")}
    most = max(largest, key=lambda name: largest[name])
    named = {
        "work": "the work",
        "host": "host I/O",
        "copy": "copies between IPUs",
        "sync": "syncs between IPUs",
    }[most]
    operator = (
        f"; in its longest task, {typical['operator']} takes {typical['operator_cycles']:,}"
        if typical["operator"]
        else ""
    )
    return (
        f"In steady state IPU {typical['slowest_ipu']} makes the others wait: {typical['work']},"
        f" {typical['work_cycles']:,} cycles{operator}. Most of the {typical['cycles']:,} cycles"
        f" are {named} ({largest[most] / max(1, typical['cycles']):.0%})."
    )
