"""Pages of the site that are made when it is built: commands, Python's reference, house pages.

mkdocs calls `on_files` (mkdocs.yml, hooks).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipu_exec.poprun import _parser as poprun_parser
from ipu_exec.run import _parser as run_parser
from reports.cli import make_parser

ROOT = Path(__file__).parent.parent

# Modules whose docstrings make the reference, with what the page says of each.
REFERENCE = {
    "profiler": (
        "Open a profile; [what it answers](../architecture.md#report-what-a-profile-answers)."
    ),
    "profiler.analysis": "What a profile comes to.",
    "profiler.insights": "What limits a run, and what to change.",
    "profiler.advise": "What to change, all levers together; what frees memory.",
    "profiler.rebalance": "Costs of Blocks, what another split would give, the best split.",
    "viewer": "The viewer as a Dash app.",
    "ipu_exec": "PopTorch's names: [each, and what becomes of it](../compatibility.md).",
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    from mkdocs.structure.files import File

    pages = {
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "contributing.md": moved("CONTRIBUTING.md"),
        "changelog.md": moved("CHANGELOG.md"),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that leave docs/ lead to the pages that are made of their files."""
    return (
        markdown.replace("](../CONTRIBUTING.md", "](contributing.md")
        .replace("](../CHANGELOG.md", "](changelog.md")
        .replace("](../README.md", "](index.md")
    )


def moved(name: str) -> str:
    """A page of the repository's root, with links as from docs/."""
    words = (ROOT / name).read_text().replace("](docs/", "](")
    return re.sub(r"\[([^]]+)\]\((?:LICENSE|README\.md)\)", r"\1", words)


# -- commands ---


def commands_page() -> str:
    """Every command and option, read off the parsers."""
    lines = ["# Commands", "", "Made from the parsers: what `--help` says, on one page.", ""]
    report = make_parser()
    lines += ["## ipu-report", "", *described(report)]
    for name, parser in subcommands(report).items():
        lines += [f"### ipu-report {name}", "", *described(parser)]
    lines += ["## ipu-run", "", *described(run_parser("ipu-run"))]
    lines += ["## poprun", "", *described(poprun_parser())]
    return "\n".join(lines) + "\n"


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of its subcommands, by name."""
    (action,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(action.choices)


def described(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What the command is for, its usage, a table of its options, its examples."""
    yield from (plain(parser.description or ""), "")
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    yield from ("```text", re.sub(r"\s+", " ", usage), "```", "")
    rows = [row(action) for action in parser._actions if shown(action)]
    if rows:
        yield from ("| argument | |", "| --- | --- |", *rows, "")
    if parser.epilog:
        yield from ("```text", parser.epilog.rstrip(), "```", "")


def shown(action: argparse.Action) -> bool:
    """Whether --help has it, and it says more than that there is a --help."""
    hidden = action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction)
    return not hidden and not isinstance(action, argparse._SubParsersAction)


def row(action: argparse.Action) -> str:
    """A row of the table: how it is written, and what it does."""
    value = ""
    if action.nargs != 0:
        value = str(action.metavar or "{" + ",".join(map(str, action.choices or ())) + "}")
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.option_strings and value != "{}":
        name = f"{name} {value}".rstrip()
    help = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    return f"| `{name}` | {plain(help)} |".replace("`|", "` |")


def plain(words: str) -> str:
    """Words as Markdown: nothing in them is markup, and a bar ends no cell."""
    return re.sub(r"([<>*_|])", r"\\\1", words)


# -- Python ---


def python_page() -> str:
    """Directives for mkdocstrings, a module each."""
    promise = "[What is not here may change](../contributing.md#what-is-promised)."
    lines = ["# Python", "", f"Made from the docstrings. {promise}"]
    for module, words in REFERENCE.items():
        lines += ["", f"## {module}", "", words, "", f"::: {module}", "    options:"]
        lines += ["      show_root_heading: false", "      heading_level: 3"]
    return "\n".join(lines) + "\n"
