"""The output of a subcommand about a profile, in three forms: terminal, JSON and CSV.

A `Page` is the output for one profile: facts, tables and styled lines; `print_pages` writes pages
to standard output. Tables fit the terminal; elsewhere (a pipe, a file, a CI log) they are as wide
as they need. Only names are shortened, in the middle, never numbers: on a terminal too narrow for
them, lines run over. Names come from a file and may hold anything: they are printed as plain text,
and control sequences are replaced.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.units import Fact, shortened

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from ipuscope.profiler.report.query import Answer

DEFAULT_WIDTH = 80  # of a drawing where standard output is not a terminal
FORMULA_SIGNS = "=+-@"  # a spreadsheet takes a cell that begins with one for a formula
_ENDLESS = 1 << 20  # columns: no limit
_SHORTEST = 12  # columns: names are not cut further
_TOLD_APART = 32  # columns: names cut further read alike; where others can go, they do
_BETWEEN = 2  # columns between those of a table
_LEAST_FACT = 20  # columns of a fact's text, however narrow the terminal

Segment = tuple[str, str]  # text and rich style
Line = Sequence[Segment]


def integer(value: Any) -> str:
    """A whole number with thousands separators."""
    return f"{value:,.0f}"


def kibibytes(value: Any) -> str:
    """Bytes of a tile in KiB; the column's title gives the unit."""
    return f"{value / 1024:,.1f}"


def whole_kibibytes(value: Any) -> str:
    """Bytes of an IPU in whole KiB, since tenths would say nothing."""
    return f"{value / 1024:,.0f}"


def identity(value: Any) -> str:
    """An id, or a range of them; -1 stands for none."""
    return "-" if value == -1 else str(value)


def change(share: Any) -> str:
    """How much more or less: +1.2%; empty where it is as much."""
    return f"{share:+.1%}" if share else ""


def text(value: Any) -> str:
    """A name, shortened if there is no room."""
    return clean(str(value))


def whole_text(value: Any) -> str:
    """Text with numbers in it, which is never shortened."""
    return clean(str(value))


def sentence(value: Any) -> str:
    """Text that wraps if there is no room."""
    return clean(str(value))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a terminal table: name in the frame, title of one or two lines, format.

    ``spare``: a narrow terminal does without it.
    """

    key: str
    title: str
    write: Callable[[Any], str] = integer
    spare: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the column holds text."""
        return self.write in (text, whole_text, sentence)

    @property
    def least_width(self) -> int | None:
        """The width it may be narrowed to; None if it may not."""
        if self.write not in (text, sentence):
            return None
        return max(_SHORTEST, *map(width_of, self.title.split("\n")))


@dataclass(frozen=True, slots=True)
class Table:
    """A named frame, of which the first ``most`` rows are printed.

    JSON and CSV have all its columns, the terminal only ``columns`` (none: no table) and, where
    many rows are alike, the rows of ``printed``.
    """

    name: str
    frame: pd.DataFrame | Answer
    columns: tuple[Column, ...]
    title: str = ""
    most: int | None = None
    printed: pd.DataFrame | Answer | None = None  # in place of ``frame`` on the terminal
    note: str = ""  # below it there

    @property
    def shown(self) -> pd.DataFrame | Answer:
        """The rows that are printed."""
        return self.frame if self.most is None else self.frame.head(self.most)


@dataclass(frozen=True, slots=True)
class Facts:
    """A list of names and values."""

    name: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Styled text, for people only: sentences, which wrap between words, or a drawing."""

    lines: tuple[Line, ...]
    as_drawn: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """All output about one profile, in order; CSV gets its first table or list of facts.

    ``holds``: what was asked for does (exit code 0).
    """

    profile: str
    parts: tuple[Table | Facts | Lines, ...] = field(default=())
    holds: bool = True


def say(words: str, style: str = "") -> Lines:
    """One plain line."""
    return Lines((((clean(words), style),),))


def clean(words: str) -> str:
    """Text with escape sequences, line breaks and changes of writing direction removed."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in words
    )


def with_code(words: str, statements: Sequence[str]) -> Lines:
    """Words, and below them the lines to write."""
    below = [f"     {line}" for statement in statements for line in statement.splitlines()]
    return Lines(tuple(((clean(line), ""),) for line in (words, *below)))


def terminal_width() -> int | None:
    """Columns of the terminal on standard output; None without one. ``COLUMNS`` overrides it."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return max(40, int(columns))
    try:
        return max(40, os.get_terminal_size(sys.stdout.fileno()).columns)
    except (OSError, ValueError):  # ValueError: standard output was replaced by something else
        return None


def drawing_width() -> int:
    """Columns for a drawing: the terminal's, or 80 without one."""
    return terminal_width() or DEFAULT_WIDTH


def speaks_unicode() -> bool:
    """Whether standard output can write the blocks and dots of a timeline."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "").startswith("utf")


def print_pages(pages: Sequence[Page], form: str = "text", named: bool = False) -> None:
    """Write pages to standard output; ``form`` is "text", "json" or "csv".

    Text names the profile of each of several pages, and of a single one if ``named``.
    """
    if form == "text":
        _print_text(pages, named or len(pages) > 1)
    else:
        {"json": _print_json, "csv": _print_csv}[form](pages)


def _print_text(pages: Sequence[Page], named: bool) -> None:
    paper = _Paper(terminal_width() or _ENDLESS)
    for number, page in enumerate(pages):
        if named:
            if number:
                paper.write()
            paper.write((clean(page.profile), "bold"), runs_over=True)
        parts = [part for part in page.parts if _for_people(part)]
        for index, part in enumerate(parts):
            if index:
                paper.write()
            if isinstance(part, Table):
                _print_table(paper, part)
            elif isinstance(part, Facts):
                _print_facts(paper, part)
            else:
                for line in part.lines:
                    paper.write(*line, runs_over=part.as_drawn)


class _Paper:
    """Standard output, so many columns wide.

    rich writes what has colours or needs a wrap: to import it takes as long as a small report.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        terminal = width < _ENDLESS or os.environ.get("FORCE_COLOR")
        self._styled = bool(terminal) or os.environ.get("TTY_COMPATIBLE") == "1"

    def write(self, *line: Segment, runs_over: bool = False) -> None:
        """Write a line, wrapped between words unless it ``runs_over``."""
        if not self._styled:
            print("".join(words for words, _ in line))
            return
        from rich.text import Text

        with self._rich.capture() as written:  # rich would end the process where a pipe is closed
            self._rich.print(Text.assemble(*line), soft_wrap=runs_over)
        print(written.get(), end="")

    def wrapped(self, words: str, width: int) -> list[str]:
        """The lines of a text of at most this width."""
        if width_of(words) <= width:
            return [words.rstrip()]
        from rich.text import Text

        return [line.plain.rstrip() for line in Text(words).wrap(self._rich, width)]

    @cached_property
    def _rich(self) -> Console:
        from rich.console import Console

        return Console(
            width=self.width, highlight=False, markup=False, emoji=False, soft_wrap=False
        )


def width_of(words: str) -> int:
    """Columns of a terminal that a text takes."""
    if words.isascii():
        return len(words)
    from rich.cells import cell_len

    return cell_len(words)


def _for_people(part: Table | Facts | Lines) -> bool:
    if isinstance(part, Table):
        return bool(part.columns)
    return not isinstance(part, Facts) or any(fact.words for fact in part.facts)


def _print_table(paper: _Paper, table: Table) -> None:
    if table.title:
        paper.write((table.title, "bold"))
    rows = table.frame if table.printed is None else table.printed
    shown = rows if table.most is None else rows.head(table.most)
    cells_of = {
        one: ["" if _missing(value) else one.write(value) for value in shown[one.key].tolist()]
        for one in table.columns
    }
    columns, widths, between = _laid_out(table.columns, cells_of, paper.width)
    titles = [one.title.split("\n") for one in columns]

    def write(cells: Iterable[list[str]], style: str = "") -> None:
        """A row, each of its cells some lines."""
        for line in zip_longest(*cells, fillvalue=""):
            fitted = map(_fitted, columns, line, widths)
            paper.write(((" " * between).join(fitted), style), runs_over=True)

    most = max(map(len, titles))
    write(([""] * (most - len(title)) + title for title in titles), "bold")
    rule = "─" if speaks_unicode() else "-"
    paper.write((rule * (sum(widths) + between * (len(widths) - 1)), ""), runs_over=True)
    for row in zip(*(cells_of[one] for one in columns), strict=True):
        cells = zip(columns, row, widths, strict=True)
        write(
            paper.wrapped(words, width) if one.write is sentence else [words]
            for one, words, width in cells
        )
    if rest := len(rows) - len(shown):
        paper.write((f"... and {rest:,} more: --top 0 prints all", "dim"))
    if gone := [one.title.replace("\n", " ") for one in table.columns if one not in columns]:
        paper.write((f"Left out, too wide: {', '.join(gone)}. --json has all.", "dim"))
    if table.note:
        paper.write((table.note, "dim"))


def _laid_out(
    columns: Sequence[Column], cells_of: dict[Column, list[str]], width: int
) -> tuple[list[Column], list[int], int]:
    """The columns that there is room for, their widths and the blanks between them."""
    wanted = {one: max(map(width_of, [*one.title.split("\n"), *cells_of[one]])) for one in columns}

    def least(one: Column, shortest: int) -> int | None:
        most = one.least_width
        return most if most is None else min(wanted[one], max(most, shortest))

    shown = [*columns]
    spare = [one for one in shown if one.spare]
    while spare and sum(1 + (least(one, _TOLD_APART) or wanted[one]) for one in shown) - 1 > width:
        shown.remove(spare.pop())
    for between, shortest in ((_BETWEEN, _TOLD_APART), (1, _SHORTEST)):  # first, columns move
        room = width - between * (len(shown) - 1)
        shortest_of = [least(one, shortest) for one in shown]
        widths = narrowed([wanted[one] for one in shown], shortest_of, room)
        if sum(widths) <= room:
            break
    return shown, widths, between


def _fitted(column: Column, words: str, width: int) -> str:
    """A line of a cell in as many columns as it has."""
    if column.write is text and width_of(words) > width:
        cuts = (shortened(words, most) for most in range(width, 0, -1))
        words = next(cut for cut in cuts if width_of(cut) <= width)
    blanks = " " * (width - width_of(words))
    return words + blanks if column.is_text else blanks + words


def narrowed(wanted: Sequence[int], least: Sequence[int | None], room: int) -> list[int]:
    """Widths that add up to ``room``, longest narrowed first, but not below ``least`` (None)."""
    widths = list(wanted)
    while sum(widths) > room:
        able = [
            (width, at)
            for at, (width, most) in enumerate(zip(widths, least, strict=True))
            if most is not None and width > most
        ]
        if not able:
            break
        widths[max(able)[1]] -= 1
    return widths


def _print_facts(paper: _Paper, facts: Facts) -> None:
    """Labels and values side by side; no blanks at the ends of lines."""
    shown = [fact for fact in facts.facts if fact.words]
    indent = max((width_of(fact.label) for fact in shown), default=0) + _BETWEEN
    for fact in shown:
        label = fact.label.ljust(indent)
        for line in paper.wrapped(clean(fact.words), max(_LEAST_FACT, paper.width - indent)):
            paper.write((label, "bold"), (line, ""), runs_over=True)
            label = " " * indent


def _print_json(pages: Sequence[Page]) -> None:
    entries: list[dict[str, Any]] = []
    for page in pages:
        entry: dict[str, Any] = {"profile": page.profile}
        for part in page.parts:
            if isinstance(part, Table):
                entry[part.name] = list(_records(part.shown))
            elif isinstance(part, Facts):
                entry[part.name] = {fact.key: plain(fact.value) for fact in part.facts}
        entries.append(entry)
    print(json.dumps(entries, indent=2, allow_nan=False))


def _print_csv(pages: Sequence[Page]) -> None:
    writer, header = csv.writer(sys.stdout, lineterminator="\n"), None
    for page in pages:
        rows = next((list(_rows(part)) for part in page.parts if not isinstance(part, Lines)), [])
        names = next((_names(part) for part in page.parts if not isinstance(part, Lines)), [])
        of = [page.profile] * ("profile" not in names)  # `runs` has each row's own
        # the same subcommand gives the same columns, but for SQL of the user's own
        if names != header:
            writer.writerow(map(cell_text, ["profile"] * len(of) + names))
            header = names
        writer.writerows(map(cell_text, [*of, *row]) for row in rows)


def cell_text(value: Any) -> Any:
    """A CSV cell safe for terminals and spreadsheets: names like formulas get a quote in front."""
    if not isinstance(value, str):
        return value
    words = clean(value)
    return f"'{words}" if len(words) > 1 and words[0] in FORMULA_SIGNS else words


def _names(part: Table | Facts) -> list[str]:
    return (
        [str(name) for name in part.frame.columns]
        if isinstance(part, Table)
        else [f.key for f in part.facts]
    )


def _rows(part: Table | Facts) -> Iterable[list[Any]]:
    if isinstance(part, Table):
        return (list(record.values()) for record in _records(part.shown))
    flat = (plain(fact.value) for fact in part.facts)
    return [[json.dumps(value) if isinstance(value, (list, dict)) else value for value in flat]]


def _records(frame: pd.DataFrame | Answer) -> Iterable[dict[str, Any]]:
    names = [str(name) for name in frame.columns]
    columns = [[plain(value) for value in frame[name].tolist()] for name in frame.columns]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def plain(value: Any) -> Any:
    """A value for JSON: non-finite numbers become null, numpy values become Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if _missing(value) else value


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))
