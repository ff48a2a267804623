"""The likely error of a profile's speed and bytes, from its header.

The compiler takes bars from published measurements (docs/fidelity.md#error-bars): four in five of
those like the profiled model lie inside. Older profiles have none.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ipuscope.profiler import units
from ipuscope.profiler.answers import CALIBRATION

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler.report import Report

COLUMNS = ("class", "share", "likely", "low", "high", "rows", "estimates")


@dataclass(frozen=True, slots=True)
class Confidence:
    """The factors of the predicted speed between which the true one likely is; time is the inverse.

    ``unmeasured``: the share of cycles of operators that nobody measured on hardware. ``models``:
    published measurements of whole models behind it; ``own``: by the user's calibration.
    """

    low: float
    high: float
    unmeasured: float = 0.0
    models: int = 0
    own: bool = False

    @property
    def likely(self) -> float:
        """The share by which cycles are off at most."""
        return round(max(1 / self.low, self.high) - 1, 4)

    @property
    def words(self) -> str:
        """The error of the cycles, ``likely within 8%`` or ``likely 2% fewer to 35% more``."""
        fewer, more = 1 - 1 / self.high, 1 / self.low - 1
        whose = ", measured on your machine" * self.own
        if abs(1 / self.low - self.high) < 0.005:
            return f"likely within {more:.0%}{whose}"
        if fewer < 0.005:
            least = "up to" if fewer > -0.005 else f"{-fewer:.0%} to"
            return f"likely {least} {more:.0%} more{whose}"
        if more < 0.005:
            least = "up to" if more > -0.005 else f"{-more:.0%} to"
            return f"likely {least} {fewer:.0%} fewer{whose}"
        return f"likely {fewer:.0%} fewer to {more:.0%} more{whose}"

    @property
    def spread(self) -> float:
        """The share, below 1, by which parts may differ from the common error of all.

        It is half of the bar: parts of one model share the middle of it.
        """
        return min(0.95, round(math.sqrt(self.high / self.low) - 1, 4))

    def rates(self, per_second: float) -> tuple[float, float]:
        """The lowest and the highest likely rate for a predicted one."""
        return per_second * self.low, per_second * self.high

    def in_words(self, per_second: float) -> str:
        """A predicted rate as a range, ``380 to 520``."""
        low, high = self.rates(per_second)
        return f"{units.per_second(low)} to {units.per_second(high)}"


def confidence(report: Report, of_costs: bool = False) -> Confidence | None:
    """The range of the profile's speed; None if the profile does not say.

    ``of_costs``: of what is predicted with costs of Blocks, in which a calibration's factors are.
    """
    error, own = _header(report), None
    if os.environ.get(CALIBRATION):
        from ipuscope.profiler import calibration  # msgspec takes longer than a small report

        own = calibration.of(report)
    if error is None:
        return None
    likely = float(error["likely"])
    low, high = error.get("low", 1 / (1 + likely)), error.get("high", 1 + likely)
    if own is not None:  # of cycles, the inverse of speed
        factor, least, most = calibration.likely(report, own, 1 / high, 1 / low)
        factor = 1.0 if of_costs else factor
        low, high = 1 / (factor * most), 1 / (factor * least)
    about = float(error["unmeasured"]), int(error.get("models", 0)), own is not None
    return Confidence(low, high, *about)


class Fits(StrEnum):
    """Whether bytes fit a tile, with the doubt of their bar."""

    YES = "fits"
    LIKELY = "fits, uncertain"
    UNLIKELY = "does not fit, uncertain"
    NO = "does not fit"


def byte_range(report: Report) -> tuple[float, float]:
    """Factors of the fullest tile's bytes between which the truth likely is; (1, 1) if unknown."""
    error = report.meta.get("byte_error") or {"low": 1.0, "high": 1.0}
    return float(error["low"]), float(error["high"])


def fits(nbytes: int, limit: int, byte_range: tuple[float, float] = (1.0, 1.0)) -> Fits:
    """Whether a tile with a predicted ``nbytes`` has room, by its `byte_range`."""
    low, high = byte_range
    if nbytes <= limit:
        return Fits.YES if nbytes * high <= limit else Fits.LIKELY
    return Fits.NO if nbytes * low > limit else Fits.UNLIKELY


def unmeasured(report: Report) -> float:
    """The share of cycles of operators that nobody measured: estimated by similarity."""
    error = confidence(report)
    return 0.0 if error is None else error.unmeasured


def by_class(report: Report) -> pd.DataFrame:
    """A row a class of operators, the largest first; none if the profile does not say.

    Columns: ``class``, ``share`` of the tiles' cycles, ``likely`` (share by which they are off at
    most), ``low`` and ``high`` (factors of their speed), ``rows`` (measurements on hardware behind
    that; 0 if judged by likeness) and ``estimates`` (by the vendor's own estimators).
    """
    import pandas as pd

    return pd.DataFrame(class_rows(report), columns=list(COLUMNS))


def class_rows(report: Report) -> list[dict[str, Any]]:
    """The rows of `by_class`."""
    return (_header(report) or {}).get("classes", [])


def of_operators(report: Report) -> pd.DataFrame:
    """``class``, ``low`` and ``high`` (as in `by_class`) of each operator, by id.

    "" and NaN of one without cycles, and of all where the profile does not say.
    """
    classes, ids = by_class(report)[["class", "low", "high"]], report.ops.index
    at = (_header(report) or {}).get("operators", [])
    rows = classes.reindex(at if len(at) == len(ids) else [-1] * len(ids)).set_axis(ids)
    return rows.assign(**{"class": rows["class"].fillna("")})


def span(low: float, high: float) -> str:
    """By how much cycles may differ, for factors of their speed: "-12 to +26%"; "" for NaN."""
    return "" if math.isnan(low) else f"{100 / high - 100:+.0f} to {100 / low - 100:+.0f}%"


def likely(report: Report, of_costs: bool = True) -> str:
    """``likely within 8%``, or ``likely 2% fewer to 35% more``; empty if unknown.

    ``of_costs``: as for `confidence`.
    """
    error = confidence(report, of_costs)
    return "" if error is None else error.words


def of_two(report: Report, things: str) -> list[str]:
    """A sentence on the error of predictions that are compared; none if it is unknown.

    ``things``: what is compared, "splits" or "schedules".
    """
    if not (within := likely(report)):
        return []
    return [
        f"Cycles on hardware are {within}. Two {things} share most of that error, so which of them"
        " is quicker is more certain than by how much."
    ]


def _header(report: Report) -> dict[str, Any] | None:
    error = report.meta.get("cycle_error")
    return error if isinstance(error, dict) else None
