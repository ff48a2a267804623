"""Outcomes of PopTorch's tests: a file of JSON lines, and what the lines add up to."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """Of one test: "passed", "failed", "skipped", or "cut" where it ended with its process.

    Of a file that imports what is not there: "not collected".
    """

    test: str
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Reason:
    """Tests that need what IPUscope cannot have, as a regular expression of their names."""

    tests: re.Pattern[str]
    why: str


def read(path: Path) -> dict[str, Outcome]:
    """The last outcome of each test, by its name."""
    outcomes: dict[str, Outcome] = {}
    if not path.exists():
        return outcomes
    for line in path.read_text().splitlines():
        row = json.loads(line)
        test = row["id"].removeprefix("tests/")
        if row["when"] == "start":
            outcomes[test] = Outcome(test, "cut")
        elif row["when"] == "collect":
            outcomes[test] = Outcome(test, "not collected", row.get("text", ""))
        elif outcomes[test].kind in ("cut", "passed"):  # a failing teardown fails the test
            outcomes[test] = Outcome(test, row["outcome"], row.get("text", ""))
    return outcomes


def reasons(path: Path) -> list[Reason]:
    """Parse ``tests/poptorch/internals.txt``, whose lines are ``expression # reason``."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    parts = [line.split("  # ", 1) for line in lines]
    return [Reason(re.compile(expression.strip()), why.strip()) for expression, why in parts]


def excused(outcome: Outcome, known: Iterable[Reason]) -> str:
    """Why the test cannot pass, "" where it should."""
    return next((reason.why for reason in known if reason.tests.search(outcome.test)), "")


def cause(text: str) -> str:
    """The last message of a failing test: its error, in one line."""
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return (errors[0] if errors else text.strip().splitlines()[-1] if text.strip() else "")[:140]


def by_file(outcomes: Mapping[str, Outcome], known: Iterable[Reason]) -> dict[str, Counter[str]]:
    """How many tests of each file have each outcome; failures that are excused as "internals"."""
    known = list(known)
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes.values():
        kind = outcome.kind
        if kind in ("failed", "cut"):
            kind = "internals" if excused(outcome, known) else "failed"
        counts.setdefault(outcome.test.split("::")[0], Counter())[kind] += 1
    return counts
