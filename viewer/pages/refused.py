"""Sentences that refuse a request: what was asked for, what there is, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ipuscope.profiler import Report
from ipuscope.profiler.units import shortened

_LONGEST = 40  # characters of what was asked for
_MOST = 8  # names of what there is
Check = Callable[[str], str]  # the sentence about a parameter's value; "" where it is fine


def refused(what: str, asked: object, there: str, then: str) -> str:
    """The sentence: what does not exist, what does (``there``), and what is shown or helps.

    ``what``: a noun, or one with places for what was asked for: "window from {} to {}" takes two.
    """
    parts = asked if isinstance(asked, tuple) else (asked,)
    place = what if "{}" in what else f"{what} {{}}"
    return f"There is no {place.format(*map(quoted, parts))}: {there}. {then}"


def quoted(asked: object) -> str:
    """Numbers as they are, everything else in quotation marks, short."""
    words = shortened(str(asked), _LONGEST)
    if not words:
        return "nowhere"
    return words if words.lstrip("-").isdecimal() else f"“{words}”"


def numbers(low: int, high: int, noun: str = "") -> str:
    """What there is of something numbered: there are tiles 0 to 1,471."""
    named = f"{noun} " if noun else ""
    if high < low:
        return "there is none"
    return (
        f"there is {named}{low:,} only" if low == high else f"there are {named}{low:,} to {high:,}"
    )


def names(words: Sequence[str]) -> str:
    """A list of names; of consecutive numbers, from the first to the last."""
    digits = [int(one) for one in words if one.isdecimal()]
    others = [one for one in words if not one.isdecimal()]
    if len(digits) > 2 and digits == list(range(digits[0], digits[-1] + 1)):
        others.append(f"{digits[0]:,} to {digits[-1]:,}")
    else:
        others = list(words)
    if len(others) > _MOST:
        others = [*others[:_MOST], f"{len(others) - _MOST:,} more"]
    if len(words) < 2:
        return f"there is {words[0]} only" if words else "there is none"
    if len(others) < 2:
        return f"there are {others[0]}"
    return f"there are {', '.join(others[:-1])} and {others[-1]}"


def no_row(report: Report, record: type, noun: str, then: str) -> Check:
    """Checks the id of a row of a table; "" is none."""

    def check(value: str) -> str:
        ids = report.file.table(record)["id"]
        if value.isdecimal() and report.file.rows_of(record, np.array([int(value[:18])]))[0] >= 0:
            return ""
        least, most = (int(ids.min()), int(ids.max())) if len(ids) else (0, -1)
        return refused(noun, value, numbers(least, most), then)

    return check
