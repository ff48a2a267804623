"""Site pages made when it is built: the commands, the Python reference, and the root's pages.

mkdocs calls `on_files` (mkdocs.yml, hooks).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ipuscope.poprun import poprun_parser
from ipuscope.reports.cli import make_parser
from ipuscope.run_arguments import run_parser

ROOT = Path(__file__).parent.parent

# Modules whose docstrings make the reference, with what the page says of each.
REFERENCE = {
    "profiler": (
        "Open a profile; [what it answers](../architecture.md#report-what-a-profile-answers)."
    ),
    "ipuscope.profiler.analysis": "What a profile comes to.",
    "ipuscope.planner.insights": "What limits a run, and what to change.",
    "ipuscope.planner.advice": "What to change, all levers together; what frees memory.",
    "ipuscope.planner.rebalance": "Costs of Blocks, what another split would give, the best split.",
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
    """Point links that leave docs/ to the site's pages made from those files."""
    return (
        markdown.replace("](../CONTRIBUTING.md", "](contributing.md")
        .replace("](../CHANGELOG.md", "](changelog.md")
        .replace("](../README.md", "](index.md")
    )


def moved(name: str) -> str:
    """A page from the repository's root, with its links rewritten as from docs/."""
    words = (ROOT / name).read_text().replace("](docs/", "](")
    return re.sub(r"\[([^]]+)\]\((?:LICENSE|README\.md)\)", r"\1", words)


# -- commands ---


def commands_page() -> str:
    """The page of all commands and options, read from their parsers."""
    lines = ["# Commands", "", "Made from the parsers: what `--help` says, on one page.", ""]
    report = make_parser()
    lines += ["## ipu-report", "", *described(report)]
    for name, parser in subcommands(report).items():
        lines += [f"### ipu-report {name}", "", *described(parser)]
    lines += ["## ipu-run", "", *described(run_parser("ipu-run"))]
    lines += ["## poprun", "", *described(poprun_parser())]
    return "\n".join(lines) + "\n"


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a command's subcommands, by name."""
    (action,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(action.choices)


def described(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Describe a command: its purpose, usage, table of options, and examples."""
    yield from (plain(parser.description or ""), "")
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    yield from ("```text", re.sub(r"\s+", " ", usage), "```", "")
    rows = [row(action) for action in parser._actions if shown(action)]
    if rows:
        yield from ("| argument | |", "| --- | --- |", *rows, "")
    if parser.epilog:
        yield from ("```text", parser.epilog.rstrip(), "```", "")


def shown(action: argparse.Action) -> bool:
    """Whether --help lists the argument, apart from --help itself and the subcommands."""
    hidden = action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction)
    return not hidden and not isinstance(action, argparse._SubParsersAction)


def row(action: argparse.Action) -> str:
    """A row of the options table: how the argument is written, and what it does."""
    value = ""
    if action.nargs != 0:
        value = str(action.metavar or "{" + ",".join(map(str, action.choices or ())) + "}")
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    if action.option_strings and value != "{}":
        name = f"{name} {value}".rstrip()
    help = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%")
    return f"| `{name}` | {plain(help)} |".replace("`|", "` |")


def plain(words: str) -> str:
    """Escape words for Markdown, so that nothing is markup and a bar does not end a cell."""
    return re.sub(r"([<>*_|])", r"\\\1", words)


# -- Python ---


def python_page() -> str:
    """The page of the Python reference: a mkdocstrings directive for each module."""
    promise = "[What is not here may change](../contributing.md#what-is-promised)."
    lines = ["# Python", "", f"Made from the docstrings. {promise}"]
    for module, words in REFERENCE.items():
        lines += ["", f"## {module}", "", words, "", f"::: {module}", "    options:"]
        lines += ["      show_root_heading: false", "      heading_level: 3"]
    return "\n".join(lines) + "\n"
