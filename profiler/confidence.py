"""How far a profile's cycles likely are from the truth, as its header says.

The compiler weighs the errors of each class of operator against published measurements by the
cycles of the tiles (docs/fidelity.md). Older profiles do not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from profiler.report import Report


def likely_error(report: Report) -> float | None:
    """The share by which cycles likely are off, as four in five measured ones are; or None."""
    said = report.meta.get("cycle_error")
    return float(said["likely"]) if isinstance(said, dict) else None


def unmeasured(report: Report) -> float:
    """The share of cycles of operators that no published row measures: estimates by likeness."""
    said = report.meta.get("cycle_error")
    return float(said["unmeasured"]) if isinstance(said, dict) else 0.0


def likely(report: Report) -> str:
    """``likely within 8 %``; nothing where the profile does not say."""
    error = likely_error(report)
    return "" if error is None else f"likely within {100 * error:.0f} %"
