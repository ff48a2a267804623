"""Answers of the commands to words that they do not recognise."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from ipuscope import __version__

_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_VALUE = re.compile(r"argument (\S+): ignored explicit argument '(.*)'")


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """``: did you mean 'summary'?`` for the nearest candidate, or nothing."""
    near = nearest(word, candidates)
    return f": did you mean {near!r}?" if near else ""


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like the word, ignoring case; None if none is close."""
    by_lower = {name.lower().lstrip("-"): name for name in candidates}
    matches = difflib.get_close_matches(word.lower().lstrip("-"), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def one_line(words: str) -> str:
    """The text on one line, without control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(words.split()))


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and name the word that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and a one-line error."""
        text = one_line(_with_suggestion(message))
        self.exit(2, f"{self.prog}: error: {text} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but a word too many is an error of the subcommand."""
        parsed, unknown = super().parse_known_args(args, namespace)
        options = [word for word in unknown if word.startswith("-")]
        if options:
            flag = options[0].split("=")[0]
            self.error(f"unknown option {flag}{did_you_mean(flag, self._option_string_actions)}")
        if unknown:
            names = " and ".join(str(x.metavar or x.dest) for x in self._get_positional_actions())
            self.error(f"{unknown[0]!r} is too many: it takes {names or 'options only'}")
        return parsed, unknown


def _with_suggestion(message: str) -> str:
    """The message of argparse, with the choice that was probably meant instead of all of them."""
    message = _VALUE.sub(r"\1 takes no value, but has '\2'", message)
    message = message.replace("the following arguments are required:", "give it")
    match = _CHOICE.search(message)
    if match is None:
        return message
    word, listed = match.groups()
    near = nearest(word, re.findall(r"[\w-]+", listed))
    if near is None:
        return message
    return message.replace(match.group(), f"there is no {word!r}: did you mean {near!r}?")


def positive(words: str) -> int:
    """An argparse type: a whole number of at least 1."""
    if not words.isdecimal() or not int(words):
        raise argparse.ArgumentTypeError(f"{words!r} is not a whole number of at least 1")
    return int(words)


def not_negative(words: str) -> int:
    """An argparse type: a whole number that is not negative."""
    if not words.isdecimal():
        raise argparse.ArgumentTypeError(f"{words!r} is not a whole number of at least 0")
    return int(words)


def add_number(
    parser: argparse._ActionsContainer, name: str, help: str, letter: str = "N", **more: Any
) -> None:
    """An option that takes a whole number, at least 1 without another ``type``."""
    parser.add_argument(name, metavar=letter, help=help, **{"type": positive, **more})


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add ``--version``."""
    version, words = f"%(prog)s {__version__}", "print the version and end"
    parser.add_argument("--version", action="version", version=version, help=words)


def add_flag(parser: argparse._ActionsContainer, name: str, help: str) -> None:
    """An option without a value."""
    parser.add_argument(name, action="store_true", help=help)
