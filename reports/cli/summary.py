"""The profile in a page: machine, run, speed, where cycles go, how full memory is, what is odd.

Speed and cycles are predictions of the machine model, not measurements. 'Samples a second' counts
the IPUs' time only: a host that cannot keep up is not in it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ipuscope.reports.cli import common, memory

if TYPE_CHECKING:
    import numpy as np

HELP = "the profile on one page: machine, speed, cycles, memory, warnings"
EXAMPLES = """  ipu-report summary demo/training
  ipu-report summary demo                              training, then inference
  ipu-report summary --csv 'runs/*/training'           one row a profile, to compare runs
  ipu-report summary --json demo/training | jq '.[0].summary.samples_per_second'
"""

BAR = 44  # characters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_each(parser)


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    import numpy as np

    from ipuscope.profiler import confidence
    from ipuscope.profiler.analysis import facts
    from ipuscope.profiler.analysis.movement import streaming_steps
    from ipuscope.profiler.report.query import Answer
    from ipuscope.reports.tables import Facts, Lines, Table, clean

    of, tile = facts.facts(report), facts.fullest(report)
    rows = (*facts.about(of), *facts.speed(of), *facts.memory(tile))
    parts: list[Any] = [Facts("summary", rows)]
    if of.runs:
        proportions = report.proportion_columns(0)
        parts += [
            Lines(_bars(proportions, bool(len(streaming_steps(report))), args.each)),
            Table("cycles", Answer.of(proportions), ()),
        ]  # no columns: people see the bars
    if of.peak:
        shares = Answer(("part", "share"), tuple(of.peak.rows), cut=False)
        parts.append(Table("peak", shares, ()))  # people see the facts
    parts.append(memory.by_ipu(report, each=args.each))
    if errors := confidence.class_rows(report):
        of_class = {name: np.array([one[name] for one in errors]) for name in confidence.COLUMNS}
        parts.append(Table("cycle_error", Answer.of(of_class), ()))  # people see the fact
    parts += common.mark(report)
    if of.warnings:
        mark = ("warning: ", "bold yellow")
        parts.append(Lines(tuple((mark, (clean(words), "")) for words in of.warnings)))
    return common.page(report, *parts)


def _bars(proportions: dict[str, np.ndarray], streams: bool, each: bool) -> tuple[common.Line, ...]:
    """The cycles of each IPU by kind, one line each; IPUs with like bars share a line."""
    import numpy as np

    from ipuscope.profiler.file import records
    from ipuscope.reports import alike
    from ipuscope.reports.text_timeline import stacked_bar

    lines: list[common.Line] = [(("where the cycles of a device iteration go", "bold"),)]
    present = [kind for kind in records.KINDS if proportions[kind].any()]
    own = proportions["total"] > 0  # the first replica's: others do the same
    rows = {name: values[own] for name, values in proportions.items()}
    bars: list[common.Line] = []
    for at, total in enumerate(rows["total"].tolist()):
        shares = [(*_letter(kind), rows[kind][at] / total) for kind in present]
        busy = 1 - rows["idle"][at] / total
        bars.append((*stacked_bar(shares, BAR), (f" {busy:6.1%} busy", "")))
    ipus, few = rows["ipu"], each or len(bars) <= alike.FEW
    together = [[at] for at in range(len(bars))] if few else alike.groups(bars)
    idlest = np.argsort(rows["idle"][[one[0] for one in together]], kind="stable")
    shown = np.arange(len(together)) if few else alike.at_most(idlest)
    names = ["IPU " + alike.spans(ipus[together[at]].tolist()) for at in shown]
    indent = max(8, *(len(name) + 2 for name in names)) if names else 8
    lines += [
        ((name.ljust(indent), ""), *bars[together[at][0]])
        for name, at in zip(names, shown.tolist(), strict=True)
    ]
    if not few:
        left = len(bars) - sum(len(together[at]) for at in shown)
        between = f", {left} between these are left out" if left else ""
        lines.append(((f"Equal bars are merged{between}: --each prints all {len(bars)}.", "dim"),))
    return (*lines, *_legend(proportions, present, streams))


def _legend(
    proportions: dict[str, np.ndarray], present: list[str], streams: bool
) -> list[common.Line]:
    """What the letters of the bars mean, and the share of all cycles."""
    from ipuscope.reports.text_timeline import legend
    from ipuscope.viewer.figures.theme import BY_KIND, NAMES

    called = {kind: NAMES[BY_KIND[kind]] for kind in present}
    if streams and "host I/O" in called:
        called["host I/O"] += ", streaming memory"
    everything = max(1, proportions["total"].sum())
    words = (f" {called[kind]} {proportions[kind].sum() / everything:.0%}  " for kind in present)
    entries = ((*_letter(kind), one) for kind, one in zip(present, words, strict=True))
    return [*legend(entries, 77, indent=8)]


def _letter(kind: str) -> tuple[str, str]:
    """How a kind is drawn in the bar: its letter and style."""
    from ipuscope.viewer.figures.theme import ACTIVITIES, BY_KIND

    activity = ACTIVITIES[BY_KIND[kind]]
    return activity.letter.replace("\N{MIDDLE DOT}", "."), activity.style
