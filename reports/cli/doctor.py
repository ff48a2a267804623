"""Check a profile for damage: that it is whole, and its tables agree. Exit code 1 if not.

Reads everything in it: every table, the memory of every IPU, the execution of every run. Large
tables are there as rows, for SQL, and packed, for our own commands: both are compared unless the
checksum says that the file is as it was written. A stranger can write any checksum: --rows compares
them always.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from ipuscope.reports.cli import common

HELP = "check a profile for damage"
EXAMPLES = """  ipu-report doctor demo/training
  ipu-report doctor 'runs/*/training' && echo all are well
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    words = "compare all rows with what is packed, as for a file from a stranger"
    common.add_flag(parser, "--rows", words)


def page(report: common.Report, args: argparse.Namespace) -> common.Page:
    """The page of a profile."""
    from ipuscope.profiler.report.query import Answer
    from ipuscope.reports.tables import Column, Table, say, sentence, text

    fine = "ok" if args.form == "text" else "well"  # which programs know
    rows = [(check, found or fine, not found) for check, found in _checks(report, args.rows)]
    shown = Answer(("check", "found", "ok"), tuple(rows), cut=False)
    columns = (Column("check", "check", text), Column("found", "found", sentence))
    notes = [say(f"note: {words}") for words in report.meta["warnings"]]
    well = all(ok for *_, ok in rows)
    return common.page(report, Table("checks", shown, columns), *notes, holds=well)


def _checks(report: common.Report, every_row: bool) -> Iterator[tuple[str, str]]:
    """The name of each check with what is wrong, "" if nothing is.

    ``every_row``: compare packed columns with the rows whatever the file's checksum says.
    """
    from ipuscope.profiler import ProfileError

    checks: tuple[tuple[str, Callable[[common.Report], str]], ...] = (
        (
            "the run finished",
            lambda r: "" if r.meta["complete"] else "the profile was not finished",
        ),
        ("no byte has changed since it was written", _bytes),
        ("every table can be read", _tables),
        ("packed columns match their rows", lambda r: _packed(r, every_row)),
        ("rows refer to rows that exist", _rows),
        ("costs of stages match their bodies", _stages),
        ("memory of every IPU can be read", _memory),
        ("no tile is too full", _overflow),
        ("IPUs' time has no gaps or overlaps", _time),
        ("pipeline cycles follow each other", _cycles),
    )
    for name, check in checks:
        try:
            yield name, check(report)
        except ProfileError as error:
            yield name, error.problem


def _tables(report: common.Report) -> str:
    from ipuscope.profiler.file import records

    for name in ("Body", "Program", "Variable", "Option", "Block", "Op", "Run"):
        report.file.check(getattr(records, name))
    program = report.file.table(records.Program)
    parents_first = (program["parent"] < program["id"]).all()  # then it is a tree, as ours are
    rows = {
        "program": program.rows if parents_first else len(report.sequence.tree),
        "bodies": len(report.sequence.body_vectors[0]),
        "variables": report.file.table(records.Variable).rows,
    }
    empty = [name for name, number in rows.items() if not number]
    return f"nothing in {', '.join(empty)}" if empty else ""


def _bytes(report: common.Report) -> str:
    damaged = report.file.damaged
    return "bytes have changed since, and not by an edit with SQLite" if damaged else ""


def _packed(report: common.Report, every_row: bool) -> str:
    from ipuscope.profiler.file import records
    from ipuscope.profiler.file.seal import State

    if report.file.as_written is State.INTACT and not every_row:
        return ""
    for record in records.STORED:
        amiss = report.file.reader.packed_amiss(record)
        if amiss:
            return f"{record.table}.{amiss[0]} is packed with other values than its rows have"
    return ""


def _rows(report: common.Report) -> str:
    """Read everything with `ipuscope.profiler.file.integrity`: reading is the check."""
    from ipuscope.profiler.file import integrity, records
    from ipuscope.profiler.report.program import VECTORS_OF_STEPS

    if report.meta["complete"]:
        for record in records.STORED:
            report.file.check(record)
    for name in VECTORS_OF_STEPS:
        sums, _, _ = report.sequence.sums_of_steps(report.sequence.steps_in_order(name))
        report.file.sound(integrity.of_sums("program_steps", sums))
    bodies = report.sequence.bodies_in_row
    last = bodies.start[bodies.first + bodies.count - 1]
    for run in range(len(report.trace.columns["id"])):
        tasks = report.trace.tasks(run, None, 0)
        if (tasks.end - tasks.start < last[tasks.body]).any():
            return "a task ends before its last step begins"
    return ""


def _stages(report: common.Report) -> str:
    from ipuscope.profiler.enums import Direction
    from ipuscope.profiler.file import records

    if report.imported:  # its runs may differ: several bodies of a stage and direction
        return ""
    bodies, stages = report.file.table(records.Body), report.stage_columns
    cycles_of = dict[tuple[int, str], int]()
    columns = (bodies[name].tolist() for name in ("kind", "stage", "direction", "cycles"))
    for kind, *of_what, cycles in zip(*columns, strict=True):
        if kind == records.TASK:
            stage, direction = of_what
            cycles_of[stage, direction] = cycles_of.get((stage, direction), 0) + cycles
    # A stage's backward includes its recomputed forward (profiler/file/records.py).
    for stage, direction in cycles_of:
        if direction == Direction.BACKWARD:
            cycles_of[stage, direction] += cycles_of.get((stage, Direction.RECOMPUTE), 0)
    for direction in (Direction.FORWARD, Direction.RECOMPUTE, Direction.BACKWARD):
        for stage, cycles in zip(stages["stage"], stages[f"{direction}_cycles"], strict=True):
            cost = cycles_of.get((stage, direction), cycles)
            if cost != cycles:
                return f"stage {stage} {direction}: {cycles:,} cycles, but its bodies have {cost:,}"
    return ""


def _memory(report: common.Report) -> str:
    import numpy as np

    for ipu in common.ipus(report):
        report.usage.tile_columns(ipu)
        every = np.ones(len(report.usage.ipu_variables(ipu).id), dtype=bool)
        if (report.usage.peaks_of(ipu, every).step_total < 0).any():
            return f"IPU {ipu} has fewer than 0 bytes live"
    return ""


def _overflow(report: common.Report) -> str:
    overflow = {ipu: report.usage.tile_columns(ipu)["overflow"] for ipu in common.ipus(report)}
    over = {ipu: int((beyond > 0).sum()) for ipu, beyond in overflow.items()}
    return ", ".join(f"IPU {ipu}: {tiles:,} tiles" for ipu, tiles in over.items() if tiles)


def _time(report: common.Report) -> str:
    from ipuscope.profiler.file import records

    beside = report.file.table(records.Body).equals("kind", records.BESIDE)
    for run in range(len(report.trace.columns["id"])):
        every = report.trace.tasks(run, None, 0)  # the others repeat it
        own = ~beside[every.body]
        ipu, start, end = (values[own] for values in (every.ipu, every.start, every.end))
        wrong = ipu[1:][(start[1:] != end[:-1]) & (ipu[1:] == ipu[:-1])]
        if len(wrong):
            return f"run {run}, IPU {wrong[0]}: {(wrong == wrong[0]).sum()} gaps or overlaps"
    return ""


def _cycles(report: common.Report) -> str:
    from ipuscope.profiler.file import records

    cycles = report.file.table(records.PipelineCycle)
    for run in range(len(report.trace.columns["id"])):
        rows = report.trace.pipeline_rows(run)
        if not len(rows):
            return f"run {run} has none"
        if (cycles["start"][rows[1:]] != cycles["end"][rows[:-1]]).any():
            return f"run {run}: they have gaps or overlap"
    return ""
