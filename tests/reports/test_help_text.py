"""The help of every command fits the terminal, and its examples stay commands."""

from __future__ import annotations

import shlex

import pytest

from ipuscope.help_text import HelpText
from ipuscope.poprun import poprun_parser
from ipuscope.reports.cli import COMMANDS, file_of, make_parser
from ipuscope.run_arguments import run_parser


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
    assert not [line for line in lines if line.endswith("-")], "a name is broken at its hyphen"
    words = " ".join((file_of(command).__doc__ or "").split()) if command else "Ask a profile.pop"
    assert words in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", ["ipu-run", "poprun"])
def test_help_of_runs_is_no_wider_either(
    command: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    parser = run_parser() if command == "ipu-run" else poprun_parser()
    lines = parser.format_help().splitlines()
    assert max(map(len, lines)) <= columns
    assert parser.description is not None
    assert parser.description in " ".join(" ".join(lines).split())
    assert not [line for line in lines if line.endswith("-")], "a name is broken at its hyphen"
    assert "program's version number" not in " ".join(lines)


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


def test_prose_before_examples_is_filled_and_indented_with_its_group() -> None:
    text = HelpText("run", width=30)._fill_text("one two " * 9 + "\n  run it   so", 30, "  ")
    *prose, example = text.splitlines()
    assert " ".join(" ".join(prose).split()) == ("one two " * 9).strip()
    assert all(line.startswith("  ") and len(line) <= 30 for line in prose)
    assert example == "    run it   so"
