"""The profiles that a viewer shows in a real browser: another, a new one, one that is gone."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ipuscope.profiler import Report, open_report
from ipuscope.profiler.file import lock
from ipuscope.viewer.app import create_app, following_app
from ipuscope.viewer.profiles import FollowedProfiles
from tests.synthetic import synthetic_profile
from tests.viewer.browser import tab
from tools.screenshots import serving, settled

pytestmark = pytest.mark.browser


def test_another_profile_is_another_page(context: Any, demo: Path, tmp_path: Path) -> None:
    """Head, numbers and choices are the chosen profile's, not a mixture."""
    other = open_report(synthetic_profile(tmp_path / "profile.pop", ipus=2))
    with (
        open_report(demo / "training") as report,
        serving(create_app(report, other)) as both,
        tab(context, both) as view,
    ):
        page = view.open("/memory?ipu=1&tile=3")
        assert "4 IPUs" in page.inner_text("#head")
        page.locator("main .controls button.dash-dropdown").first.click()
        page.get_by_role("option").nth(1).click()
        view.wait("document.querySelector('#head').innerText.includes('2 IPUs')")
        assert (view.query()["profile"], view.query()["ipu"]) == ("1", "1")
        settled(page)
        page.locator("main .controls button.dash-dropdown").nth(2).click()
        assert page.get_by_role("option").count() == 2
        assert view.complaints == []


def test_a_link_within_a_page_stays_with_what_is_shown(context: Any, demo: Path) -> None:
    """The profile, and on pages of time the unit and the iteration, as the pages' names do."""
    with (
        open_report(demo / "inference") as one,
        open_report(demo / "training") as other,
        serving(create_app(one, other)) as both,
        tab(context, both) as view,
    ):
        page = view.open("/timeline?profile=1&iteration=3&unit=%C2%B5s&at=100000,0")
        link = page.get_by_role("link", name="its steps").first
        with context.expect_page() as opened:
            link.click(modifiers=["Control"])
        assert "profile=1" in opened.value.url, "in a tab of its own"
        opened.value.close()
        link.click()
        view.wait("location.search.includes('ipu=0') && location.search.includes('span=')")
        settled(page)
        asked = {name: view.query().get(name) for name in ("profile", "iteration", "unit", "ipu")}
        assert asked == {"profile": "1", "iteration": "3", "unit": "µs", "ipu": "0"}
        assert "training" in page.inner_text("#head")
        page.go_back()
        view.wait("location.search.includes('at=')")
        assert view.query()["profile"] == "1"


def test_nothing_but_the_given_profile_is_reachable(training: Report) -> None:
    client = create_app(training).server.test_client()
    for path in ("/assets/../app.py", "/assets/%2e%2e/app.py", "/assets//etc/passwd"):
        response = client.get(path)
        assert b"create_app" not in response.data
        assert b"root:" not in response.data
    assert response.headers["X-Frame-Options"] == "SAMEORIGIN"


def test_a_directory_is_followed_from_one_profile_to_the_next(
    context: Any, demo: Path, tmp_path: Path
) -> None:
    """The newest profile is announced and, by a click, shown, with the previous one to compare."""
    profiles = FollowedProfiles(tmp_path)
    assert profiles.refresh() == ""
    _appear(demo / "training", tmp_path / "first" / "training")
    assert "first" in profiles.refresh()
    with serving(following_app(profiles)) as address, tab(context, address) as view:
        page = view.open("/")
        assert "training, executed" in page.inner_text("#head")
        _appear(demo / "inference", tmp_path / "second" / "inference")
        page.wait_for_selector("#toast >> text=A new profile: second/inference", timeout=20_000)
        assert "training, executed" in page.inner_text("#head"), "what is read stays"
        page.get_by_role("button", name="Show it").click()
        page.wait_for_selector("#head >> text=inference, executed", timeout=20_000)
        page.wait_for_function("() => !document.querySelector('#toast').innerText")
        assert len(profiles) == 2
        assert profiles.get(1).meta["kind"] == "training"
        assert view.complaints == []


def test_a_followed_directory_may_be_empty(context: Any, demo: Path, tmp_path: Path) -> None:
    """Before the first run, and after its profile was removed, the page waits and says for what."""
    out = tmp_path / "out"
    with (
        serving(following_app(FollowedProfiles(out))) as address,
        tab(context, address) as view,
    ):
        page = view.open("/timeline")
        words = page.inner_text("#page")
        assert "Waiting for a profile" in words
        assert "does not exist yet" in words
        assert f"ipu-run --profile-dir {out} train.py" in words
        _appear(demo / "training", out / "training")
        page.wait_for_selector("#timeline-rows .js-plotly-plot", timeout=20_000)
        shutil.rmtree(out / "training")
        page.wait_for_selector("#page >> text=Waiting for a profile", timeout=20_000)
        assert "does not exist" not in page.inner_text("#page")
        assert view.complaints == []


def test_a_run_that_goes_on_is_told_from_one_that_was_ended(
    context: Any, demo: Path, tmp_path: Path
) -> None:
    """By the lock of who writes the partial file, which ends with its process."""
    partial = tmp_path / "profile.pop.partial"
    shutil.copyfile(demo / "training" / "profile.pop", partial)
    with contextlib.closing(sqlite3.connect(partial)) as file, file:
        file.execute("UPDATE meta SET value = 'false' WHERE key = 'complete'")
    assert lock.acquire(tmp_path / "profile.pop")
    with (
        serving(following_app(FollowedProfiles(tmp_path))) as address,
        tab(context, address) as view,
    ):
        page = view.open("/")
        page.wait_for_selector("#notes >> text=A run is writing this profile now")
        lock.release(tmp_path / "profile.pop")
        page.wait_for_selector("#notes >> text=This profile was not finished", timeout=20_000)
        assert view.complaints == []


def _appear(profile: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copyfile(profile / "profile.pop", folder / "profile.pop")
