"""How far a profile's cycles likely are from the truth, as its header says.

The compiler weighs the errors of each class of operator against published measurements by the
cycles of the tiles (docs/fidelity.md). Older profiles do not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from ipuscope.profiler.report import Report


def likely_error(report: Report) -> float | None:
    """The share by which cycles are likely off, as for four in five measured operators; or None."""
    said = report.meta.get("cycle_error")
    return float(said["likely"]) if isinstance(said, dict) else None


def unmeasured(report: Report) -> float:
    """The share of cycles of operators that no published row measures: estimated by similarity."""
    said = report.meta.get("cycle_error")
    return float(said["unmeasured"]) if isinstance(said, dict) else 0.0


def by_class(report: Report) -> pd.DataFrame:
    """A row a class of operators, the largest first; none where the profile does not say.

    Columns: ``class``, ``share`` of the tiles' cycles, ``likely`` (share by which they are off),
    ``rows`` (published measurements behind that; 0 where it is judged by likeness).
    """
    said = report.meta.get("cycle_error")
    rows = said.get("classes", []) if isinstance(said, dict) else []
    return pd.DataFrame(rows, columns=["class", "share", "likely", "rows"])


def likely(report: Report) -> str:
    """``likely within 8%``; empty where the profile does not say."""
    error = likely_error(report)
    return "" if error is None else f"likely within {error:.0%}"
