"""The profile in a page.

The machine, the run, the speed, where the cycles go, how full the memory is, what is odd.

Speed and cycles are predictions of the machine model, not measurements. 'Samples a second' counts
the IPUs' time only: a host that cannot keep up is not in it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ipuscope.reports.cli import common, memory, stages

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler import Report
    from ipuscope.reports.tables import Fact, Line, Page

HELP = "the profile on one page: machine, speed, cycles, memory, warnings"
EXAMPLES = """  ipu-report summary demo/training
  ipu-report summary demo                              training, then inference
  ipu-report summary --csv 'runs/*/training'           one row a profile, to compare runs
  ipu-report summary --json demo/training | jq '.[0].summary.samples_per_second'
"""

BAR = 44  # characters
_WAITS = ("longest_wait", "second_wait", "third_wait")
# How a kind of records.KINDS is drawn in the bar, and what it is called beneath; in the order of
# the legend.
_KINDS = {
    "compute": ("#", "black on bright_blue"),
    "exchange": ("+", "black on bright_magenta"),
    "sync": ("s", "black on cyan"),
    "external sync": ("e", "black on cyan"),
    "global exchange": ("x", "black on magenta"),  # as `ipu-report timeline` has it
    "host I/O": ("h", "black on red"),
    "idle": (".", "dim"),
}
_CALLED = {"global exchange": "exchange between IPUs", "idle": "waiting"}
_WITH_STREAMS = {"host I/O": "host I/O, streaming memory"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_profiles(parser)
    common.add_each(parser)
    common.add_form(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    return common.each_profile(args, lambda report: _page(report, args.each))


def _page(report: Report, each: bool = False) -> Page:
    from ipuscope.profiler import confidence
    from ipuscope.profiler.analysis.host_transfers import streaming_steps
    from ipuscope.reports.tables import Facts, Lines, Page, Table

    parts: list[Any] = [Facts("summary", (*_about(report), *_speed(report)))]
    if len(report.runs):
        proportions = report.cycle_proportions(0)
        parts += [
            Lines(_bars(proportions, bool(len(streaming_steps(report))), each)),
            Table("cycles", proportions, ()),
        ]  # no columns: people have the bars
    parts.append(memory.by_ipu(report, each=each))
    if len(errors := confidence.by_class(report)):
        parts.append(Table("cycle_error", errors, ()))  # people have the fact
    parts += common.mark(report)
    if report.meta["warnings"]:
        parts.append(Lines(_warnings(report)))
    return Page(str(report.path), tuple(parts))


def _about(report: Report) -> tuple[Fact, ...]:
    from ipuscope.profiler.analysis.instances import shared
    from ipuscope.profiler.file import records
    from ipuscope.profiler.report import number
    from ipuscope.profiler.units import count
    from ipuscope.reports.tables import Fact

    meta, target = report.meta, report.target
    replicas = (
        f" as {target.num_replicas} replicas of {target.ipus_per_replica}"
        if target.num_replicas > 1
        else ""
    )
    shards = int(number(meta, "tensor_sharding", 1)) or 1
    if shards > 1:
        replicas = (
            f" as {shards} x {target.ipus_per_replica} x {target.num_replicas}: {shards} share the"
            f" tensors of a stage and are shown as one, {target.ipus_per_replica} are a pipeline,"
            f" and there {'are' if target.num_replicas > 1 else 'is'}"
            f" {count(target.num_replicas, 'replica')}"
        )
    who = shared(report)
    if who.instances > 1:
        replicas += f" ({who})"
    state = meta["state"] if meta["complete"] else f"{meta['state']}, not finished"
    parts = {
        "stage": len(report.stages),
        "Block": len(report.blocks),
        "operator": report.columns_of(records.Op).rows,
        "program step": report.columns_of(records.Step).rows,
    }
    accumulation = report.options.get("Training.gradientAccumulation", 1)
    return (
        Fact("model", meta["model"], "model", f"{meta['model'] or 'unnamed'}, {meta['kind']}"),
        Fact("kind", meta["kind"]),
        Fact("state", meta["state"], "state", state),
        Fact("predicted", report.predicted),
        Fact("complete", meta["complete"]),
        Fact("created", meta["created"], "written", f"{meta['created']} by {meta['writer']}"),
        Fact(
            "target",
            target.name,
            "machine",
            f"{count(target.num_ipus * shards, 'IPU')}{replicas}, {target.name}:"
            f" {target.tiles_per_ipu:,} tiles with "
            f"{target.bytes_per_tile / 1024:,.0f} KiB each, {target.clock_hz / 1e9:.2f} GHz",
        ),
        Fact("ipus", target.num_ipus * shards),
        Fact("tensor_sharding", shards),
        Fact("replicas", target.num_replicas),
        Fact("instances", who.instances),
        Fact("hosts", who.hosts),
        Fact("tiles_per_ipu", target.tiles_per_ipu),
        Fact("clock_hz", target.clock_hz),
        Fact("strategy", meta.get("strategy", report.options.get("executionStrategy", ""))),
        Fact(
            "stages",
            len(report.stages),
            "model on it",
            ", ".join(count(number, noun) for noun, number in parts.items()),
        ),
        Fact("micro_batch", meta["micro_batch"], "batch", _batch(report)),
        Fact("gradient_accumulation", accumulation),
    )


def _batch(report: Report) -> str:
    said = f"micro-batch {_micro_batch(report)}"
    if report.meta["kind"] == "training":
        said += f" x gradient accumulation {report.options.get('Training.gradientAccumulation', 1)}"
    said += f" x device iterations {report.options.get('deviceIterations', 1)}"
    return said + (
        f" x replicas {report.target.num_replicas}" if report.target.num_replicas > 1 else ""
    )


def _micro_batch(report: Report) -> int:
    from ipuscope.profiler.report import number

    return int(number(report.meta, "micro_batch", 0))


def _speed(report: Report) -> tuple[Fact, ...]:
    from ipuscope.profiler import units
    from ipuscope.reports.tables import Fact

    runs = report.runs
    if not len(runs):
        return (Fact("runs", 0, "runs", "none, and no schedule: the compile did not get so far"),)
    first = runs.iloc[0]
    iterations, hertz = max(1, int(first["iterations"])), report.target.clock_hz
    cycles = int(first["cycles"]) // iterations
    micro_batches = _micro_batches(report)
    samples = _micro_batch(report) * micro_batches * report.target.num_replicas
    seconds = cycles / hertz
    proportions = report.cycle_proportions(0)
    idle = float(proportions["idle"].sum() / max(1, proportions["total"].sum()))
    per_second = samples / seconds if seconds else 0.0
    training = report.meta["kind"] == "training"
    each = units.count(iterations, "device iteration")
    profiled = 0 if report.predicted else len(runs)
    predicted = f"not run; predicted {int(first['cycles']):,} cycles for a call of {each}"
    said = f"{profiled} profiled, {each} each" if profiled else predicted
    return (
        Fact(
            "runs",
            profiled,
            "runs",
            said,
        ),
        Fact(
            "iteration_cycles",
            cycles,
            "a weight update" if training else "a device iteration",
            f"{cycles:,} cycles, {units.seconds(seconds)}, with"
            f" {units.count(micro_batches, 'micro-batch')}",
        ),
        *_confidence(report),
        Fact(
            "samples_per_second",
            per_second,
            "speed",
            f"{units.per_second(per_second)} samples a second (predicted)",
        ),
        Fact("idle_share", idle, "waiting", f"{idle:.1%} of the cycles of all IPUs"),
        Fact(
            "slowest_stage",
            _slowest(report),
            "slowest",
            stages.slowest_stage(report) if len(report.stages) > 1 else "",
        ),
        *_waits(report),
    )


def _waits(report: Report) -> tuple[Fact, ...]:
    """What the critical path spends most on: the slowest stage need not be on it."""
    from ipuscope.profiler import units
    from ipuscope.profiler.analysis import waits_in_short
    from ipuscope.reports.tables import Fact

    longest = waits_in_short.of(report).longest.head(len(_WAITS))
    both = zip(longest["share"].tolist(), longest["what"].tolist(), strict=True)
    said = [f"{units.percent(share)} {what}" for share, what in both]
    said += [""] * (len(_WAITS) - len(said))  # with --csv all profiles have the same columns
    labels = ["waits for", *[""] * len(_WAITS)]
    rows = zip(_WAITS, said, labels, strict=False)
    return tuple(Fact(key, words, label, words) for key, words, label in rows)


def _confidence(report: Report) -> tuple[Fact, ...]:
    """The likely error of the cycles; nothing if the profile does not say."""
    from ipuscope.profiler import confidence
    from ipuscope.reports.tables import Fact

    error = confidence.likely_error(report)
    if error is None:
        return ()
    said = confidence.likely(report)
    if share := confidence.unmeasured(report):
        said += f"; {share:.0%} are of operators that nobody measured, judged by likeness"
    return (Fact("likely_error", round(error, 4), "cycles are", said),)


def _slowest(report: Report) -> int:
    """The longest stage of the IPU that computes longest; -1 without stages."""
    rows = report.stages
    if not len(rows):
        return -1
    of_ipu = rows["cycles"].groupby(rows["ipu"]).transform("sum")
    ranked = rows.assign(of_ipu=of_ipu).sort_values(
        ["of_ipu", "cycles"], ascending=False, kind="stable"
    )
    return int(ranked["stage"].iloc[0])


def _micro_batches(report: Report) -> int:
    """The number of micro-batches in one device iteration."""
    tasks = report.tasks(0, iteration=0)
    return int(tasks["micro_batch"].max()) + 1 if len(tasks) else 0


def _bars(proportions: pd.DataFrame, streams: bool, each: bool) -> tuple[Line, ...]:
    """The cycles of IPUs by kind, a line each; of many, one line for all whose bars are alike."""
    import numpy as np

    from ipuscope.reports import alike
    from ipuscope.reports.text_timeline import stacked_bar

    lines: list[Line] = [(("where the cycles of a device iteration go", "bold"),)]
    present = [kind for kind in _KINDS if proportions[kind].any()]
    rows = proportions[proportions["total"] > 0]  # the first replica's: others do the same
    bars: list[Line] = []
    for row in rows.to_dict("records"):
        total = row["total"]
        shares = [(*_KINDS[kind], row[kind] / total) for kind in present]
        busy = 1 - row["idle"] / total
        bars.append((*stacked_bar(shares, BAR), (f" {busy:6.1%} busy", "")))
    ipus, few = rows["ipu"].to_numpy(), each or len(rows) <= alike.FEW
    together = [[at] for at in range(len(bars))] if few else alike.groups(bars)
    idlest = np.argsort([rows["idle"].iloc[one[0]] for one in together], kind="stable")
    shown = np.arange(len(together)) if few else alike.at_most(idlest)
    names = ["IPU " + alike.spans(ipus[together[at]].tolist()) for at in shown]
    indent = max(8, *(len(name) + 2 for name in names)) if names else 8
    lines += [
        ((name.ljust(indent), ""), *bars[together[at][0]])
        for name, at in zip(names, shown.tolist(), strict=True)
    ]
    if not few:
        left = len(rows) - sum(len(together[at]) for at in shown)
        between = f", {left} between these are left out" if left else ""
        lines.append(((f"Equal bars are one{between}: --each prints all {len(rows)}.", "dim"),))
    return (*lines, *_legend(proportions, present, streams))


def _legend(proportions: pd.DataFrame, present: list[str], streams: bool) -> list[Line]:
    """What the letters of the bars mean, and the share of all cycles."""
    called = {**_CALLED, **(_WITH_STREAMS if streams else {})}
    everything = max(1, proportions["total"].sum())
    legend: list[list[tuple[str, str]]] = [[(" " * 8, "")]]
    used = 8
    for kind in present:
        letter, style = _KINDS[kind]
        entry = f" {called.get(kind, kind)} {proportions[kind].sum() / everything:.0%}  "
        if used + 1 + len(entry) > 79:
            legend.append([(" " * 8, "")])
            used = 8
        legend[-1] += [(letter, style), (entry, "")]
        used += 1 + len(entry)
    return [(*line[:-1], (line[-1][0].rstrip(), "")) for line in legend]


def _warnings(report: Report) -> tuple[Line, ...]:
    from ipuscope.reports.tables import clean

    return tuple(
        (("warning: ", "bold yellow"), (clean(str(words)), "")) for words in report.meta["warnings"]
    )
