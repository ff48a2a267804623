"""Shared fixtures: a profile of the example, and the viewer in a real browser."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipuscope.waiting import EVERY_VARIABLE
from tests import forked

ROOT = Path(__file__).parent.parent

# Tests run side by side, so a thread each; and the sums of one run have the order of another (MKL
# takes as many threads as it likes). Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Thousands of tests are collected, and stay: to look through them at every 700 objects takes long.
gc.set_threshold(20_000, 20, 20)

# A busy machine adds no lines of progress to what a command prints.
os.environ.setdefault(EVERY_VARIABLE, "600")


@pytest.fixture(scope="session", autouse=True)
def kept_in_a_directory_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Cached data of profiles (`profiler.answers`) neither comes from an earlier run nor stays."""
    os.environ["IPUSCOPE_CACHE"] = str(tmp_path_factory.mktemp("kept"))
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


def pytest_collection_finish() -> None:
    """What was collected is no garbage from here on."""
    gc.freeze()


NO_BROWSER = "no chromium: make browser"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line at the end where tests were skipped for want of a browser."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum(NO_BROWSER in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(
            f"{count} test{'s' * (count > 1)} of the viewer skipped: there is no chromium."
            " Install one: make browser",
            yellow=True,
        )


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``training`` and ``inference`` of the example, after two epochs."""
    folder = tmp_path_factory.mktemp("demo")
    command = [
        sys.executable,
        "examples/mnist_pipeline.py",
        "--epochs",
        "2",
        "--profile-dir",
        str(folder),
    ]
    forked.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser.

    The tests that need one are skipped where there is none; `.ci/run` sees that there is.
    """
    api = pytest.importorskip("playwright.sync_api")
    from tools.screenshots import FLAGS, find_browser

    path = find_browser()
    if path is None:
        pytest.skip(NO_BROWSER)
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()
