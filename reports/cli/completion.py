"""A script that makes the shell complete ipu-report.

Subcommands, options and their choices, and profiles.

It is made from the subcommands themselves, needs nothing else installed, and starts no Python when
you press Tab.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ipuscope.reports.cli import common

HELP = "a shell script that completes ipu-report in bash, zsh or fish"
EXAMPLES = """  ipu-report completion bash >> ~/.bashrc
  ipu-report completion zsh > ~/.zfunc/_ipu-report    with ~/.zfunc in your fpath, before compinit
  ipu-report completion fish > ~/.config/fish/completions/ipu-report.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    parser.add_argument("shell", choices=sorted(_SHELLS), help="which one")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    print(_SHELLS[args.shell](commands_of(args.whole_parser)), end="")
    return common.OK


@dataclass(frozen=True)
class Option:
    """One option: its spellings, its help, and what may follow (``takes`` False: nothing does)."""

    flags: tuple[str, ...]
    help: str
    takes: bool
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A subcommand: ``words`` are the choices of its first argument, where it has any."""

    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


def commands_of(parser: argparse.ArgumentParser) -> list[Command]:
    """The possible completions, read from a parser with subcommands."""
    commands = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            commands += [
                _command(name, helps.get(name, ""), sub) for name, sub in action.choices.items()
            ]
    return commands


def _command(name: str, help: str, parser: argparse.ArgumentParser) -> Command:
    options, words = [], tuple[str, ...]()
    for action in parser._actions:
        if action.help is argparse.SUPPRESS:
            continue
        choices = tuple(str(choice) for choice in action.choices or ())
        if action.option_strings:
            said = (action.help or "").replace("%%", "%")
            options.append(Option(tuple(action.option_strings), said, action.nargs != 0, choices))
        elif not words:
            words = choices
    return Command(name, help, tuple(options), words)


def bash(commands: list[Command]) -> str:
    """For bash 4 and later."""
    cases, values = [], []
    for command in commands:
        flags = " ".join(flag for option in command.options for flag in option.flags)
        cases.append(
            f"    {command.name}) options={_quoted(flags)};"
            f" words={_quoted(' '.join(command.words))} ;;"
        )
        for option in command.options:
            if option.takes:
                pattern = "|".join(f"{command.name}:{flag}" for flag in option.flags)
                reply = (
                    f"compgen -W {_quoted(' '.join(option.choices))}"
                    if option.choices
                    else "compgen -f"
                )
                values.append(
                    f'    {pattern}) mapfile -t COMPREPLY < <({reply} -- "$here"); return ;;'
                )
    names = " ".join(command.name for command in commands)
    return "\n".join(
        [
            "# Completion of ipu-report for bash; made by: ipu-report completion bash",
            "_ipu_report() {",
            (
                '  local here="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"'
                ' options="" words=""'
            ),
            "  COMPREPLY=()",
            "  if (( COMP_CWORD == 1 )); then",
            (
                f'    mapfile -t COMPREPLY < <(compgen -W {_quoted(names + " --help")} -- "$here");'
                " return"
            ),
            "  fi",
            '  case "${COMP_WORDS[1]}:$before" in',
            *values,
            "  esac",
            '  case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac",
            (
                '  if [[ "$here" == -* ]]; then mapfile -t COMPREPLY < <(compgen -W "$options" --'
                ' "$here")'
            ),
            (
                '  elif [[ -n "$words" ]]; then mapfile -t COMPREPLY < <(compgen -W "$words" --'
                ' "$here")'
            ),
            '  else mapfile -t COMPREPLY < <(compgen -f -- "$here"); fi',
            "}",
            "complete -o filenames -F _ipu_report ipu-report",
            "",
        ]
    )


def zsh(commands: list[Command]) -> str:
    """For zsh with compinit."""
    names = [f"    {_quoted(f'{command.name}:{command.help}')}" for command in commands]
    cases = []
    for command in commands:
        arguments = []
        for option in command.options:
            said = option.help.replace("[", "(").replace("]", ")").replace(":", " -")
            after = (
                f":value:({' '.join(option.choices)})"
                if option.choices
                else ":value:_files"
                if option.takes
                else ""
            )
            arguments += [_quoted(f"{flag}[{said}]{after}") for flag in option.flags]
        rest = f"*:word:({' '.join(command.words)})" if command.words else "*:profile:_files"
        cases.append(f"    {command.name}) _arguments {' '.join(arguments)} {_quoted(rest)} ;;")
    return "\n".join(
        [
            "#compdef ipu-report",
            "# Completion of ipu-report for zsh; made by: ipu-report completion zsh",
            "_ipu_report() {",
            "  local -a subcommands=(",
            *names,
            "  )",
            "  if (( CURRENT == 2 )); then _describe subcommand subcommands; return; fi",
            '  local chosen="${words[2]}"',
            "  shift words; (( CURRENT-- ))",
            '  case "$chosen" in',
            *cases,
            "  esac",
            "}",
            '_ipu_report "$@"',
            "",
        ]
    )


def fish(commands: list[Command]) -> str:
    """For fish 3 and later."""
    lines = [
        "# Completion of ipu-report for fish; made by: ipu-report completion fish",
        "complete -c ipu-report -n __fish_use_subcommand -f",
    ]
    for command in commands:
        lines.append(
            f"complete -c ipu-report -n __fish_use_subcommand -a {command.name} -d"
            f" {_quoted(command.help, fish=True)}"
        )
        here = f"complete -c ipu-report -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            lines.append(f"{here} -f -a {_quoted(' '.join(command.words), fish=True)}")
        for option in command.options:
            spelt = " ".join(
                f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in option.flags
            )
            value = (
                f" -x -a {_quoted(' '.join(option.choices), fish=True)}"
                if option.choices
                else " -r" * option.takes
            )
            lines.append(f"{here} {spelt}{value} -d {_quoted(option.help, fish=True)}")
    return "\n".join(lines) + "\n"


def _quoted(words: str, fish: bool = False) -> str:
    """Quote text in single quotes for the shell."""
    return (
        "'"
        + (words.replace("\\", "\\\\").replace("'", "\\'") if fish else words.replace("'", "'\\''"))
        + "'"
    )


_SHELLS = {"bash": bash, "fish": fish, "zsh": zsh}
