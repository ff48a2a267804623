"""Help that fits the terminal: descriptions are filled, examples keep their lines."""

from __future__ import annotations

import argparse
import itertools
import re
import textwrap
from collections.abc import Iterator

_REMARK = re.compile(r"(?<=\S) {2,}(?=\S)")  # what an example is for stands behind it
_ASIDE, _GOES_ON = " " * 8, " " * 6
_WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|\S)+")


class HelpText(argparse.HelpFormatter):
    """Fills paragraphs; a line that begins with two spaces is an example, or belongs to one."""

    def add_argument(self, action: argparse.Action) -> None:
        """Leave room for subcommand names, whose indentation argparse forgets."""
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            longest = max(map(len, action.choices)) + 2 * self._indent_increment
            self._action_max_length = max(self._action_max_length, self._current_indent + longest)

    def _split_lines(self, text: str, width: int) -> list[str]:
        # names of options are whole: --profile-dir, state=on-chip
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = (_paragraph(one, width - len(indent)) for one in text.split("\n\n"))
        return "\n\n".join("\n".join(indent + line for line in lines) for lines in paragraphs)


def _paragraph(text: str, width: int) -> Iterator[str]:
    for example, lines in itertools.groupby(text.splitlines(), lambda line: line.startswith("  ")):
        if example:
            for line in lines:
                yield from _example(line, width)
        else:
            yield from textwrap.wrap(" ".join(lines), width, break_on_hyphens=False)


def _example(line: str, width: int) -> Iterator[str]:
    if len(line) <= width:
        yield line
        return
    command, *remark = _REMARK.split(line.rstrip(), maxsplit=1)
    if command.startswith(_ASIDE):  # the remark of the line above
        command, remark = "", [command.lstrip()]
    if command:
        yield from _command(command, width)
    yield from textwrap.wrap(
        "".join(remark),
        width,
        initial_indent=_ASIDE,
        subsequent_indent=_ASIDE,
        break_on_hyphens=False,
    )


def _command(line: str, width: int) -> Iterator[str]:
    """A command, over several lines as a shell takes them."""
    row = line[: len(line) - len(line.lstrip())]
    for at, word in enumerate(_WORD.findall(line)):
        if at and len(row) + len(word) + 3 > width:
            yield f"{row} \\"
            row = _GOES_ON + word
        else:
            row += f"{' ' * bool(at)}{word}"
    yield row
