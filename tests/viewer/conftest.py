"""One server and one tab for all tests that leave the example's profiles as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ipuscope.profiler import Report, open_report
from ipuscope.viewer.app import create_app
from tests.viewer.browser import Tab, tab
from tools.screenshots import serving

Open = Callable[..., Tab]


@pytest.fixture(scope="session")
def training(demo: Path) -> Report:
    """The example's training profile."""
    return open_report(demo / "training")


@pytest.fixture(scope="session")
def inference(demo: Path) -> Report:
    """The example's inference profile."""
    return open_report(demo / "inference")


@pytest.fixture(scope="session")
def address(training: Report) -> Iterator[str]:
    """A viewer of the training profile."""
    with serving(create_app(training)) as served:
        yield served


@pytest.fixture(scope="session")
def context(chromium: Any, address: str) -> Iterator[Any]:
    """A context of the browser with one page, which stays open, for all tabs to be opened from."""
    opened = chromium.new_context()
    opened.new_page().goto(f"{address}/assets/style.css")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def _tabs(context: Any, address: str, demo: Path) -> Iterator[Open]:
    """Opens a tab of a viewer and a theme, once."""
    with contextlib.ExitStack() as stack:
        opened: dict[tuple[str, str], Tab] = {}
        addresses = {"one": address}

        def open_tab(viewer: str, theme: str) -> Tab:
            if viewer not in addresses:
                both = [open_report(demo / name) for name in ("training", "inference")]
                addresses[viewer] = stack.enter_context(serving(create_app(*both)))
            if (viewer, theme) not in opened:
                opened[viewer, theme] = stack.enter_context(tab(context, addresses[viewer], theme))
            opened[viewer, theme].anew()
            return opened[viewer, theme]

        yield open_tab


@pytest.fixture
def view(_tabs: Open) -> Iterator[Tab]:
    """A tab of a viewer of the training profile, which logs neither error nor warning."""
    shown = _tabs("one", "light")
    yield shown
    assert shown.complaints == []


@pytest.fixture
def dark(_tabs: Open) -> Iterator[Tab]:
    """The same in dark colours."""
    shown = _tabs("one", "dark")
    yield shown
    assert shown.complaints == []


@pytest.fixture
def both(_tabs: Open) -> Iterator[Tab]:
    """A tab of a viewer of the training and the inference profile."""
    shown = _tabs("both", "light")
    yield shown
    assert shown.complaints == []
