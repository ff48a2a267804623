"""The interactive viewer of a profile.

`create_app` gives a Dash app; `viewer.figures` are its plots, without Dash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dash import Dash

    from profiler import Report
    from viewer.guard import Guard
    from viewer.inline import Shown

__all__ = ["create_app", "show"]


def create_app(
    report: Report,
    other: Report | None = None,
    guard: Guard | None = None,
    prepare: bool = False,
    script: Sequence[str] = (),
) -> Dash:
    """The app over one profile, or over two that are compared.

    ``create_app(report).run()`` serves it, to this machine unless ``guard`` says otherwise.

    ``prepare``: what every page shows first is worked out while the first one is read. ``script``:
    what made the profile, with its arguments: Rebalance compiles splits with it.

    Dash is imported here, not with the package: the HTML report draws the same figures without it.
    """
    from viewer.app import create_app

    return create_app(report, other, guard, prepare, script)


def show(report: Report, other: Report | None = None, height: int = 800) -> Shown:
    """The viewer inside a notebook, on a free port of this machine (`viewer.inline`)."""
    from viewer.inline import show

    return show(report, other, height)
