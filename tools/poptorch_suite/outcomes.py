"""Outcomes of PopTorch's tests: reading the file of JSON lines, and its totals."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ON_PURPOSE = "on purpose: "  # begins a reason where IPUscope is to differ


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test: "passed", "failed", "skipped", or "cut" if its process died.

    A file that cannot be imported has the outcome "not collected".
    """

    test: str
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Reason:
    """Why tests cannot pass on IPUscope, with a regular expression for their names."""

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
    """Why the test cannot pass, or "" if it should."""
    return next((reason.why for reason in known if reason.tests.search(outcome.test)), "")


def cause(text: str) -> str:
    """The error of a failing test, in one line."""
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return (errors[0] if errors else text.strip().splitlines()[-1] if text.strip() else "")[:140]


def by_file(outcomes: Mapping[str, Outcome], known: Iterable[Reason]) -> dict[str, Counter[str]]:
    """Count the outcomes in each file; excused failures count as "internals"."""
    known = list(known)
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes.values():
        kind = outcome.kind
        if kind in ("failed", "cut"):
            kind = "internals" if excused(outcome, known) else "failed"
        counts.setdefault(outcome.test.split("::")[0], Counter())[kind] += 1
    return counts
