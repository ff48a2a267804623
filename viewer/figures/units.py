"""Numbers as people read them, and names from a profile as text, never markup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def plain(words: object) -> str:
    """A name as plotly must get it to show it as it is: plotly takes ``<`` and ``&`` for markup."""
    return str(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shortened(words: str, most: int = 60) -> str:
    """At most ``most`` characters, cut in the middle: the ends of a module path say most."""
    if len(words) <= most:
        return words
    tail = (most - 1) * 2 // 3
    return words[: most - 1 - tail] + "…" + words[-tail:]


def cycles(count: float) -> str:
    """Cycles in few characters: 950, 31.2 k, 1.15 M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:,.0f}"


def seconds(time: float) -> str:
    """A time with the unit that suits it."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(time) >= unit:
            return f"{time / unit:.3g} {name}"
    return f"{time * 1e9:.3g} ns"


def size(count: float) -> str:
    """Bytes in B, KiB, MiB or GiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(count) >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count:,.0f} B"


def percent(share: float) -> str:
    """A share of 1, in per cent."""
    return f"{100 * share:.1f} %"


@dataclass(frozen=True, slots=True)
class Clock:
    """How a page shows time: ``unit`` is "cycles" or "µs"."""

    hz: float
    unit: str = "cycles"

    @property
    def scale(self) -> float:
        """Shown units a cycle."""
        return 1e6 / self.hz if self.unit == "µs" else 1.0

    @property
    def title(self) -> str:
        """The title of a time axis, with its unit."""
        return "time (µs)" if self.unit == "µs" else "time (cycles)"

    def both(self, count: float) -> str:
        """Cycles, and the time they take."""
        return f"{count:,.0f} cycles, {seconds(count / self.hz)}"

    def short(self, count: float) -> str:
        """One of the two, as the page is set."""
        return seconds(count / self.hz) if self.unit == "µs" else cycles(count)


def text_of(pieces: list[str]) -> str:
    """Lines of a hover label."""
    return "<br>".join(piece for piece in pieces if piece)


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of a small frame, columns as attributes."""
    return iter(frame.itertuples())
