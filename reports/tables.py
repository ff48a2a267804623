"""What a subcommand says about a profile, and its three forms: terminal, JSON and CSV.

A `Page` is what is said of one profile: facts, tables and styled lines. `print_pages` writes pages
to standard output. Tables fit the terminal, or 80 columns where there is none; only names are ever
cut. Names come out of a file and may hold anything: they are printed as plain text, and what a
terminal would obey is replaced.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

DEFAULT_WIDTH = 80

Segment = tuple[str, str]  # text and rich style
Line = Sequence[Segment]


def integer(value: Any) -> str:
    """A whole number with thousands separators."""
    return f"{value:,.0f}"


def kibibytes(value: Any) -> str:
    """Bytes of a tile as KiB; the column's title says the unit."""
    return f"{value / 1024:,.1f}"


def whole_kibibytes(value: Any) -> str:
    """Bytes of an IPU as KiB, of which a tenth says nothing."""
    return f"{value / 1024:,.0f}"


def percent(value: Any) -> str:
    """A share (0..1) in percent."""
    return f"{value:.1%}"


def identity(value: Any) -> str:
    """An id of something, -1 for none."""
    return str(value) if value >= 0 else "-"


def text(value: Any) -> str:
    """Any value as text; empty where there is none."""
    return clean(str(value))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a terminal table.

    Which of the frame's, under what title (of one or two lines), written how.
    """

    key: str
    title: str
    write: Callable[[Any], str] = integer

    @property
    def is_text(self) -> bool:
        """Whether the column holds text."""
        return self.write is text


@dataclass(frozen=True, slots=True)
class Table:
    """A frame by name.

    JSON and CSV have all of it, the terminal only ``columns`` (none: not at all), and of rows the
    first ``most``.
    """

    name: str
    frame: pd.DataFrame
    columns: tuple[Column, ...]
    title: str = ""
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A thing to know: ``value`` for programs, ``said`` for people (nothing: not for people)."""

    key: str
    value: Any
    label: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """A list of names and values."""

    name: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Styled text, for people only.

    Sentences, which wrap between words, or a drawing, which never does.
    """

    lines: tuple[Line, ...]
    as_drawn: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """All that is said about one profile, in order; CSV gets its first table or list of facts."""

    profile: str
    parts: tuple[Table | Facts | Lines, ...] = field(default=())


def say(words: str, style: str = "") -> Lines:
    """One plain line."""
    return Lines((((clean(words), style),),))


def clean(words: str) -> str:
    """Text without escape sequences, line breaks and changes of writing direction."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words
    )


def terminal_width() -> int:
    """Columns of the terminal; 80 where standard output is none. ``COLUMNS`` overrides both."""
    return max(40, shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns)


def speaks_unicode() -> bool:
    """Whether standard output can write the blocks and dots of a timeline."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "").startswith("utf")


def print_pages(pages: Sequence[Page], form: str = "text") -> None:
    """Write pages to standard output; ``form`` is "text", "json" or "csv"."""
    {"text": _print_text, "json": _print_json, "csv": _print_csv}[form](pages)


# -- for people ---


def _print_text(pages: Sequence[Page]) -> None:
    console = Console(
        width=terminal_width(), highlight=False, markup=False, emoji=False, soft_wrap=False
    )
    for number, page in enumerate(pages):
        if len(pages) > 1:
            console.print(
                *([""] if number else []), Text(clean(page.profile), style="bold"), sep="\n"
            )
        parts = [part for part in page.parts if _for_people(part)]
        for index, part in enumerate(parts):
            if index:
                console.print()
            if isinstance(part, Table):
                _print_table(console, part)
            elif isinstance(part, Facts):
                _print_facts(console, part)
            else:
                for line in part.lines:
                    console.print(Text.assemble(*line), soft_wrap=part.as_drawn)


def _for_people(part: Table | Facts | Lines) -> bool:
    if isinstance(part, Table):
        return bool(part.columns)
    return not isinstance(part, Facts) or any(fact.said for fact in part.facts)


def _print_table(console: Console, table: Table) -> None:
    if table.title:
        console.print(Text(table.title, style="bold"))
    made = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in table.columns:
        made.add_column(
            Text(column.title),
            justify="left" if column.is_text else "right",
            no_wrap=True,
            overflow="ellipsis",
            # Numbers keep their width: rich shrinks only what may shrink.
            min_width=None if column.is_text else _number_width(table, column),
        )
    shown = table.frame.head(table.most) if table.most is not None else table.frame
    values = [shown[column.key].tolist() for column in table.columns]
    for row in zip(*values, strict=True):
        made.add_row(
            *(Text(_cell(column, value)) for column, value in zip(table.columns, row, strict=True))
        )
    console.print(made)
    if len(shown) < len(table.frame):
        rest = len(table.frame) - len(shown)
        console.print(Text(f"... and {rest:,} more: --top 0 prints all", style="dim"))


def _number_width(table: Table, column: Column) -> int:
    shown = (
        table.frame[column.key].head(table.most)
        if table.most is not None
        else table.frame[column.key]
    )
    return max(
        map(len, [*column.title.split("\n"), *(_cell(column, value) for value in shown.tolist())])
    )


def _cell(column: Column, value: Any) -> str:
    return "" if _missing(value) else column.write(value)


def _print_facts(console: Console, facts: Facts) -> None:
    shown = [fact for fact in facts.facts if fact.said]
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for fact in shown:
        grid.add_row(Text(fact.label), Text(clean(fact.said)))
    console.print(grid)


# -- for programs ---


def _print_json(pages: Sequence[Page]) -> None:
    said: list[dict[str, Any]] = []
    for page in pages:
        entry: dict[str, Any] = {"profile": page.profile}
        for part in page.parts:
            if isinstance(part, Table):
                entry[part.name] = list(_records(part.frame))
            elif isinstance(part, Facts):
                entry[part.name] = {fact.key: plain(fact.value) for fact in part.facts}
        said.append(entry)
    print(json.dumps(said, indent=2, allow_nan=False))


def _print_csv(pages: Sequence[Page]) -> None:
    writer, header = csv.writer(sys.stdout, lineterminator="\n"), None
    for page in pages:
        rows = next((list(_rows(part)) for part in page.parts if not isinstance(part, Lines)), [])
        names = next((_names(part) for part in page.parts if not isinstance(part, Lines)), [])
        if (
            names != header
        ):  # the same subcommand gives the same columns, but for SQL of the user's own
            writer.writerow(["profile", *names])
            header = names
        writer.writerows([page.profile, *row] for row in rows)


def _names(part: Table | Facts) -> list[str]:
    return (
        [str(name) for name in part.frame.columns]
        if isinstance(part, Table)
        else [f.key for f in part.facts]
    )


def _rows(part: Table | Facts) -> Iterable[list[Any]]:
    if isinstance(part, Table):
        return (list(record.values()) for record in _records(part.frame))
    flat = (plain(fact.value) for fact in part.facts)
    return [[json.dumps(value) if isinstance(value, (list, dict)) else value for value in flat]]


def _records(frame: pd.DataFrame) -> Iterable[dict[str, Any]]:
    names = [str(name) for name in frame.columns]
    columns = [[plain(value) for value in frame[name].tolist()] for name in frame.columns]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def plain(value: Any) -> Any:
    """As JSON has it: numbers that are none become null, numpy's become Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if _missing(value) else value


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))
