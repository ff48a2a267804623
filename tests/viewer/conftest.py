"""One server and one browser for all tests that leave the example's profiles as they are."""

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
def both_served(training: Report, inference: Report) -> Iterator[str]:
    """A viewer of the training and the inference profile."""
    with serving(create_app(training, inference)) as served:
        yield served


@contextlib.contextmanager
def _shown(context: Any, address: str, theme: str = "light") -> Iterator[Tab]:
    """A tab of its own, which logs neither error nor warning."""
    with tab(context, address, theme) as shown:
        shown.forget()
        yield shown
        assert shown.complaints == []


@pytest.fixture
def view(context: Any, address: str) -> Iterator[Tab]:
    """A tab of a viewer of the training profile, which logs neither error nor warning."""
    with _shown(context, address) as shown:
        yield shown


@pytest.fixture
def dark(context: Any, address: str) -> Iterator[Tab]:
    """The same in dark colours."""
    with _shown(context, address, "dark") as shown:
        yield shown


@pytest.fixture
def both(context: Any, both_served: str) -> Iterator[Tab]:
    """A tab of a viewer of the training and the inference profile."""
    with _shown(context, both_served) as shown:
        yield shown
