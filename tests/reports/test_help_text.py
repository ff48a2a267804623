"""The help of every command fits the terminal, and its examples stay commands."""

from __future__ import annotations

import shlex

import pytest

from reports.cli import COMMANDS, make_parser
from reports.cli.help_text import HelpText


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_is_no_wider_than_the_terminal(
    command: str | None,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        make_parser().parse_args([*([command] if command else []), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    module = COMMANDS.get(command or "")
    words = " ".join((module.__doc__ or "").split()) if module else "Ask a profile.pop"
    assert words in " ".join(" ".join(lines).split())


def test_an_example_that_is_too_long_is_still_one_command() -> None:
    example = "  run one --what 'a b c' --where here --when now --why \"for this\"   and it is why"
    formatter = HelpText("run", width=40)
    text = formatter._fill_text(f"examples:\n{example}", 40, "")
    *command, remark = text.splitlines()[1:]
    assert max(map(len, text.splitlines())) <= 40
    assert remark.strip() == "and it is why"
    assert shlex.split("\n".join(command).replace("\\\n", " ")) == shlex.split(
        example.split("   ")[0]
    )
    assert all(line.endswith(" \\") for line in command[:-1])


def test_paragraphs_are_filled() -> None:
    text = HelpText("run", width=30)._fill_text("One.\n\n" + "two\nthree " * 9, 30, "")
    first, second = text.split("\n\n")
    assert first == "One."
    assert second.split() == ("two three " * 9).split()
    assert len(second.splitlines()) == 3
