"""Quantities in readable form, for the terminal, the HTML report and the viewer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

_NAMED = 9  # stages whose Blocks are listed one by one
_PREFIXES = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))
_TIMES = ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs"), (1e-9, " ns"))


def count(number: float, noun: str) -> str:
    """A number of things: 1 IPU, 4 IPUs, 1 micro-batch, 64 micro-batches."""
    ending = "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{number:,.0f} {noun}{'' if number == 1 else ending}"


def cycles(number: float) -> str:
    """Cycles in few characters: 950, 31.2 k, 2.00 M."""
    if abs(number) < 1000:
        return f"{number:,.0f}"
    return _in_three_digits(number, _PREFIXES)


def in_three_digits(number: float) -> str:
    """An estimate whose further digits would say more than it knows: 557,000,000."""
    return f"{rounded(number):,.0f}"


def rounded(number: float) -> float:
    """The number in three digits."""
    return float(f"{number:.3g}")


def seconds(time: float) -> str:
    """A time with the unit that suits it: 483 ms, 1.20 µs."""
    return _in_three_digits(time, _TIMES)


def per_second(number: float) -> str:
    """A number in three digits or more, zeros too: 1.08, 42.0, 756, 18,442."""
    whole = not number or abs(rounded(number)) >= 100
    return f"{number:,.0f}" if whole else f"{number:#.3g}"


def size(number: float) -> str:
    """Bytes in B, KiB, MiB or GiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(number) >= unit:
            return f"{number / unit:,.1f} {name}"
    return f"{number:,.0f} B"


def shortened(words: str, most: int = 60) -> str:
    """At most ``most`` characters, cut in the middle: the ends of a module path matter most."""
    if len(words) <= most:
        return words
    tail = (most - 1) * 2 // 3
    return words[: most - 1 - tail] + "…" + (words[-tail:] if tail else "")


def listed(words: Sequence[str], most: int, noun: str = "") -> str:
    """The first few: "a, b, c and 5 more"; with a noun, "and 5 more Blocks"."""
    text, more = ", ".join(words[:most]), len(words) - most
    if more <= 0:
        return text
    return f"{text} and {count(more, f'more {noun}') if noun else f'{more:,} more'}"


def ipus(numbers: Sequence[int]) -> str:
    """IPUs by their numbers: IPU 3; IPUs 2 and 4; IPUs 2, 3 and 4."""
    words = [str(number) for number in numbers]
    if len(words) == 1:
        return f"IPU {words[0]}"
    return f"IPUs {', '.join(words[:-1])} and {words[-1]}"


def ends_of(names: Sequence[str], most: int = 60) -> str:
    """Names in a row with commas; the first and the last if all take more than ``most``."""
    words = ", ".join(names)
    if len(words) <= most or len(names) < 2:
        return shortened(words, most)
    half = max(1, (most - 3) // 2)
    return f"{shortened(names[0], half)} … {shortened(names[-1], half)}"


def folded(split: str) -> str:
    """A split with many stages, equal neighbours once: ``1-9x2-7x1 on 0-15,0``."""
    counts, *where = split.split(" ", 1)
    blocks = counts.split("-")
    if len(blocks) <= _NAMED:
        return split
    runs = [(one, len(list(some))) for one, some in groupby(blocks)]
    text = "-".join(f"{many}x{one}" if many > 1 else one for one, many in runs)
    return " ".join([text, *where])


def percent(share: float) -> str:
    """A share of 1: 24.1%, and <0.1% of what would round to nothing."""
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _in_three_digits(value: float, units: Sequence[tuple[float, str]]) -> str:
    """In the largest unit in which it is 1 or more after rounding; else in the smallest."""
    smallest = units[-1]
    fits = [one for one in units if abs(rounded(value / one[0])) >= 1]
    unit, name = fits[0] if fits else smallest
    return per_second(value / unit) + name


class Fact(NamedTuple):
    """A fact: ``value`` for programs, ``words`` for people (empty: not shown to people)."""

    key: str
    value: Any
    label: str = ""
    words: str = ""


_OF_CODE = "./(=_"  # in a first word: it is code, or an operator's name


def sentence(words: str) -> str:
    """The text with a capital letter, except code: "Move it", "Ramp-up takes", "model.half()"."""
    first = words.split(maxsplit=1)[0].rstrip(".,:;") if words.strip() else ""
    return words if any(sign in first for sign in _OF_CODE) else words[:1].upper() + words[1:]
