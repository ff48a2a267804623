"""The interactive viewer. `create_app` gives a Dash app; `figures` are its plots, without Dash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipuscope.profiler import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash import Dash

    from ipuscope.viewer.guard import Guard
    from ipuscope.viewer.inline import Shown

__all__ = ["create_app", "show"]


def _drawn(report: Report) -> Any:
    """``report.figures``."""
    from ipuscope.viewer.figures.of_report import Figures

    return Figures(report)


Report.drawn = _drawn


def create_app(
    report: Report,
    other: Report | None = None,
    guard: Guard | None = None,
    script: Sequence[str] = (),
) -> Dash:
    """Return the app over one profile, or over two to compare.

    ``create_app(report).run()`` serves it to this machine only, unless ``guard`` says otherwise.
    Rebalance compiles splits with ``script``, which wrote the profile, and its arguments. Dash is
    imported here, not with the package: the HTML report draws the same figures without it.
    """
    from ipuscope.viewer.app import create_app

    return create_app(report, other, guard, script)


def show(report: Report, other: Report | None = None, height: int = 800) -> Shown:
    """The viewer in a notebook, on a free port of this machine (`ipuscope.viewer.inline`)."""
    from ipuscope.viewer.inline import show

    return show(report, other, height)
