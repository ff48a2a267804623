"""A plan on the terminal: its progress, its table, its sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from planner import Candidate, Plan
from planner.plan import SHARES
from planner.plan_file import content
from planner.planning import News
from planner.words import kib, latency, table
from profiler.units import per_second

SHOWN = 10  # rows
_COLUMNS = (
    *("t", "p", "r", "split", "micro-batch", "accumulation", "recompute", "state", "prop."),
    *("samples/s", "largest extent"),
)


@contextmanager
def progress(console: Console) -> Iterator[Callable[[News], None]]:
    """A bar of compiles with the best so far; it yields a function that receives the news."""
    columns = (
        TextColumn("Planning"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("capture", total=None)

        def told(news: News) -> None:
            best = news.best
            said = news.what
            if best is not None:
                said = f"best so far {per_second(best.rate)} samples/s: {best.mapping}"
            bar.update(task, completed=news.done, total=news.wanted, description=said)

        yield told


def show(plan: Plan, console: Console, rows: int = SHOWN) -> None:
    """The best mappings, where the time of each goes, and why the first is the best."""
    question = plan.question
    console.print(
        f"[bold]{plan.model or 'The model'} on {question.ipus} IPUs[/], {question.global_batch:,}"
        f" samples a {question.turn}, for {question.objective}"
    )
    console.print(_mappings(plan, plan.candidates[:rows]))
    console.print(_times(plan.candidates[:rows]))
    verified = [one for one in plan.candidates if one.obtained is not None]
    if verified:
        console.print(_verified(plan, verified))
    for line in (*plan.why, *plan.notes):
        console.print(f"- {line}", soft_wrap=True, highlight=False, markup=False)
    if plan.left_out:
        lines = ("not compiled:", *(f"  {line}" for line in plan.left_out))
        console.print("\n".join(lines), markup=False, highlight=False)
    cached = f", {plan.cached} from the disk" if plan.cached else ""
    console.print(f"{plan.compiles} compiles{cached}, {plan.seconds:.1f} s", style="dim")


def _mappings(plan: Plan, candidates: tuple[Candidate, ...]) -> Table:
    in_phases = any(one.mapping.in_phases for one in candidates)
    columns = ("phases",) if in_phases else ()
    shown = Table("", *columns, *_COLUMNS, title=None, header_style="bold")
    for number, one in enumerate(candidates, 1):
        mapping = one.mapping
        cells = (
            *(mapping.shards, mapping.pipeline, mapping.replicas, mapping.split),
            *(mapping.micro_batch, mapping.accumulation, mapping.recomputation, mapping.state),
            mapping.memory_proportion,
            per_second(one.rate),
            f"{kib(one.fullest)}{'' if one.memory == 'fits' else ' ?'}",
        )
        phases = (mapping.phases,) if in_phases else ()
        shown.add_row(
            str(number), *map(str, (*phases, *cells)), style="" if one.runs else "dim strike"
        )
    return shown


def _times(candidates: tuple[Candidate, ...]) -> Table:
    shown = Table("", "cycles", *SHARES, "latency", header_style="bold")
    for number, one in enumerate(candidates, 1):
        shares = [f"{one.shares[name]:.1%}" for name in SHARES]
        shown.add_row(str(number), f"{one.cycles:,}", *shares, latency(one.latency))
    return shown


def _verified(plan: Plan, candidates: list[Candidate]) -> Table:
    shown = Table(
        *("", "cycles predicted", "obtained", "off", "tile predicted", "obtained", "off", ""),
        header_style="bold",
    )
    for one in candidates:
        came, off = one.obtained, one.off
        assert came is not None
        where = str(plan.candidates.index(one) + 1)
        if off is None:
            shown.add_row(where, f"{one.cycles:,}", *[""] * 5, came.problem)
            continue
        shown.add_row(
            *(where, f"{one.cycles:,}", f"{came.cycles:,}", f"{off[0]:+.2%}"),
            *(kib(one.fullest), kib(came.fullest), f"{off[1]:+.2%}", came.problem),
        )
    return shown


def as_json(plan: Plan) -> str:
    """The whole plan, as in the file of ``--write``."""
    return json.dumps(content(plan), indent=1)


def as_csv(plan: Plan) -> str:
    """One row a mapping."""
    rows: Any = table(plan)
    return str(rows.to_csv(index=False))
