"""A script that makes the shell complete subcommands, options, their choices, and profiles.

shtab makes it from the subcommands themselves; no Python starts when you press Tab.
"""

from __future__ import annotations

import argparse

from ipuscope.reports.cli import common

HELP = "a shell script that completes ipu-report in bash, zsh or fish"
EXAMPLES = """  ipu-report completion bash >> ~/.bashrc
  ipu-report completion zsh > ~/.zfunc/_ipu-report    with ~/.zfunc in your fpath, before compinit
  ipu-report completion fish > ~/.config/fish/completions/ipu-report.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("shell", choices=("bash", "fish", "zsh"), help="which one")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    import shtab

    parser = args.whole_parser()
    _complete_files(parser)
    print(shtab.complete(parser, args.shell))
    return common.OK


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Complete file names for every option that takes a value without choices."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command)
        elif action.choices is None and action.nargs != 0:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
