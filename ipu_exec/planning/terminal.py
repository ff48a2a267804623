"""A plan on the terminal: its progress, its table, its sentences."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ipuscope.planner.levers.script_lines import in_lightning, overlap_lines
from ipuscope.planner.mappings import Candidate, Plan
from ipuscope.planner.mappings.plan import SHARES
from ipuscope.planner.mappings.plan_file import content
from ipuscope.planner.mappings.plan_words import asked, kib, latency, table
from ipuscope.planner.mappings.search_state import News
from ipuscope.profiler.provenance import LIGHTNING
from ipuscope.profiler.units import count, folded, per_second
from ipuscope.waiting import waiting

SHOWN = 10  # rows
_LINE = 100  # columns of a sentence, wherever it goes
_COLUMNS = (
    *("phases", "t", "p", "r", "split", "micro-\nbatch", "accumu-\nlation"),
    *("recom-\npute", "state", "prop.", "samples\n/s", "extent,\nKiB"),
)
_OFTEN_ALIKE = {"recom-\npute": "recomputation", "state": "state", "prop.": "memory proportion"}
_OF_WORDS = ("", "split", *_OFTEN_ALIKE)


@contextmanager
def progress() -> Iterator[Callable[[News], None]]:
    """The compiles with the best so far on stderr; it yields a function that receives the news."""
    with waiting("Planning") as show_text:
        show_text("capture")

        def show_news(news: News) -> None:
            best = news.best
            what = news.what
            if best is not None:
                how = "predicted" if best.off is None else "compiled"
                rate = f"best so far {per_second(best.rate)} samples/s {how}: {best.mapping}"
                # once all compiles are done, what the search does with them
                what = f"{what}; {rate}" if news.done == news.wanted else rate
            part = news.done / news.wanted if news.wanted else None
            show_text(f"{news.done} of {news.wanted} {what}", part)

        yield show_news


def show(plan: Plan, console: Console, rows: int = SHOWN) -> None:
    """The best mappings, where the time of each goes, and why the first is the best."""
    where = f"[bold]{plan.model or 'The model'} on {count(plan.question.ipus, 'IPU')}[/]"
    console.print(f"{where}, {asked(plan)}")
    shown = plan.candidates[:rows]
    verified = [one for one in plan.candidates if one.obtained is not None]
    tables = [_mappings(shown), _times(shown)]
    if verified:
        tables.append(_verified(plan, verified))
    for one in tables:
        console.print()
        console.print(one)
    console.print()
    notes = [*plan.why, *plan.notes]
    if any(one.obtained is None and one.memory != "fits" for one in shown):
        notes.insert(0, "? marks an extent that only a compile can confirm: --verify N compiles N")
    for line in notes:
        _print_wrapped(line, "- ", "  ", console)
    if plan.left_out:
        console.print("not tried:")
    for line in plan.left_out:
        _print_wrapped(line, "  ", "    ", console)
    cached = f", {plan.cached} from the disk" if plan.cached else ""
    console.print(f"{count(plan.compiles, 'compile')}{cached}, {plan.seconds:.1f} s", style="dim")


def _print_wrapped(words: str, first: str, rest: str, console: Console) -> None:
    """Print lines that begin so, no wider than the terminal but for words that are."""
    lines = textwrap.wrap(
        words,
        min(console.width, _LINE),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


def _table(*heads: str) -> Table:
    """A table that fits 80 columns: words are folded, not cut, and numbers neither."""
    look: Any = {"box": box.SIMPLE_HEAD, "header_style": "bold", "padding": (0, 1, 0, 0)}
    shown = Table(pad_edge=False, show_edge=False, **look)
    for head in heads:
        shown.add_column(head, overflow="fold", no_wrap=head not in _OF_WORDS)
    return shown


def _mappings(candidates: tuple[Candidate, ...]) -> Table:
    rows = [dict(zip(_COLUMNS, _cells(one), strict=True)) for one in candidates]
    same = [head for head in _OFTEN_ALIKE if len({row[head] for row in rows}) == 1 < len(rows)]
    unused = [] if any(one.mapping.in_phases for one in candidates) else ["phases"]
    heads = [head for head in _COLUMNS if head not in (*same, *unused)]
    shown = _table("", *heads)
    for number, (candidate, row) in enumerate(zip(candidates, rows, strict=True), 1):
        style = "" if candidate.runs else "dim strike"
        shown.add_row(str(number), *(row[head] for head in heads), style=style)
    if same:
        shown.caption = (
            f"all: {', '.join(f'{_OFTEN_ALIKE[head]} {rows[0][head]}' for head in same)}"
        )
        shown.caption_justify = "left"
    return shown


def _cells(candidate: Candidate) -> Iterator[str]:
    one = candidate.mapping
    split = one.phases, one.shards, one.pipeline, one.replicas, folded(one.split)
    memory = one.recomputation, one.state, one.memory_proportion
    came = per_second(candidate.rate), _extent(candidate)
    return map(str, (*split, one.micro_batch, one.accumulation, *memory, *came))


def _extent(candidate: Candidate) -> str:
    """As compiled, else as predicted; '?': only a compile knows whether it fits."""
    if candidate.obtained is not None and candidate.obtained.fullest:
        return f"{candidate.obtained.fullest / 1024:,.0f}"
    return f"{candidate.fullest / 1024:,.0f}{'' if candidate.memory == 'fits' else ' ?'}"


def _times(candidates: tuple[Candidate, ...]) -> Table:
    shown = _table("", "cycles", *SHARES, "latency")
    for number, candidate in enumerate(candidates, 1):
        shares = [f"{candidate.shares[name]:.1%}" for name in SHARES]
        shown.add_row(str(number), f"{candidate.cycles:,}", *shares, latency(candidate.latency))
    return shown


def _verified(plan: Plan, candidates: list[Candidate]) -> Table:
    shown = _table(
        *("", "cycles\npredicted", "obtained", "off", "extent\npredicted", "obtained", "off", "")
    )
    for candidate in candidates:
        came, off = candidate.obtained, candidate.off
        assert came is not None
        where, problem = str(plan.candidates.index(candidate) + 1), escape(came.problem)
        if off is None:
            shown.add_row(where, f"{candidate.cycles:,}", *[""] * 5, problem)
            continue
        shown.add_row(
            *(where, f"{candidate.cycles:,}", f"{came.cycles:,}", f"{off[0]:+.2%}"),
            *(kib(candidate.fullest), kib(came.fullest), f"{off[1]:+.2%}", problem),
        )
    return shown


_LINES = {  # that put what --allow changed into a script
    "half": "model.half()  # and inputs.half() where they are floats",
    "outputs=loss": "return loss  # alone, in forward, with OutputMode.Final",
}


def tuned(plans: Sequence[Plan], commands: Sequence[str], none: str = "") -> Iterator[str]:
    """The best of each plan: what was predicted, what its compile gave, and how to have it.

    ``none``: why there is no plan with what ``--allow`` changes, or "".
    """
    own = plans[0].own
    if own is not None:
        yield f"The script's own mapping: {_rates(own)}."
    for plan, command in zip(plans, commands, strict=True):
        changed = plan.levers.replace(",", ", ")
        kind = "Training" if plan.question.training else "Inference"
        yield f"{f'With {changed}' if changed else f'{kind} as the script has it'}:"
        yield f"  {plan.best.mapping}: {_rates(plan.best)}"
        yield f"  {command}"
        lines = {**_LINES, "overlap": overlap_lines(plan.question.training)}
        if "overlap" in plan.levers:  # returns all outputs
            lines["outputs=loss"] = "return loss  # alone, in forward"
        written: Sequence[str] = [lines[word] for word in plan.levers.split(",") if word in lines]
        for one in in_lightning(written) if plan.trainer == LIGHTNING else written:
            yield "  write: " + one.replace("\n", "\n         ")
    if none:
        yield none
    elif not any(plan.levers for plan in plans):
        names, more = ",overlap", ", the loss as the only output and host I/O beside compute, too."
        if plans[0].overlaps:
            names, more = "", " and the loss as the only output, too."
        yield f"The precision and the outputs stay as they are: --allow half,outputs{names} plans"
        yield f"with half precision{more}"


def _rates(candidate: Candidate) -> str:
    predicted = f"{per_second(candidate.samples_per_second)} samples/s predicted"
    if candidate.obtained is None:
        return f"{predicted}, not compiled"
    came = candidate.obtained.problem or f"{per_second(candidate.rate)} compiled"
    fullest = candidate.obtained.fullest or candidate.fullest
    return f"{predicted}, {came}; largest extent {kib(fullest)}"


def as_json(plan: Plan) -> str:
    """The whole plan, as in the file of ``--write``."""
    return json.dumps(content(plan), indent=1)


def as_csv(plan: Plan) -> str:
    """One row a mapping."""
    rows: Any = table(plan)
    return str(rows.to_csv(index=False))
