"""The page of many runs: its table, its lines, and what a click opens."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ipuscope.profiler.analysis.runs import settings_of
from ipuscope.viewer.app import app_of
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.figures.bars import coordinates
from ipuscope.viewer.pages import dialogs
from ipuscope.viewer.pages.runs import of_runs, opened
from ipuscope.viewer.profiles import Profiles, recent, remember
from tests.synthetic import synthetic_profile
from tests.viewer.browser import tab
from tools.screenshots import serving

SETTING = "Training.gradientAccumulation"


@pytest.fixture
def runs() -> pd.DataFrame:
    """Three runs, of which one does not fit."""
    rows = [
        {
            "profile": f"/out/turns={turns}/training/profile.pop",
            "levers": f"half,{SETTING}={turns}" if turns < 64 else f"{SETTING}={turns}",
            "place": f"turns={turns}/training",
            "model": "Mlp",
            "ipus": 4,
            "replicas": 1,
            "micro_batch": 2,
            "samples": 2 * turns,
            "cycles": 1_000_000 * turns,
            "samples_per_second": speed,
            "fullest_bytes": 1024 * turns,
            "fits": bool(speed),
        }
        for turns, speed in ((16, 10.0), (32, 20.0), (64, 0.0))
    ]
    return pd.DataFrame(rows)


def test_settings_are_what_differs_between_runs(runs: pd.DataFrame) -> None:
    settings = settings_of(runs)
    assert list(settings) == ["half", SETTING, "samples"]
    assert settings["half"].tolist() == ["half", "half", ""]
    assert settings[SETTING].tolist() == [16, 32, 64]


def test_every_run_that_fits_is_a_line_the_quickest_on_top(runs: pd.DataFrame) -> None:
    figure = coordinates(runs, settings_of(runs)[[SETTING]], themes.theme("dark"))
    assert [line.customdata[0] for line in figure.data] == [0, 1]
    slow, fast = (list(line.y) for line in figure.data)
    assert slow == [0.0] * 4 and fast == [1.0] * 4
    assert f"{SETTING} 32" in figure.data[1].text[0]


def test_a_click_on_a_run_leads_to_its_profile_and_to_a_comparison(runs: pd.DataFrame) -> None:
    keys = {path: str(at) for at, path in enumerate(runs["profile"])}
    words = str(opened(runs.iloc[1], keys))
    assert "/?profile=1" in words and "/compare?with=1" in words and "ipu-report view /out" in words


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Profiles of a directory of runs, and one from elsewhere."""
    names = ("runs/a", "runs/b", "runs/c", "elsewhere")
    return [synthetic_profile(tmp_path / name / "profile.pop", tiles=16) for name in names]


def test_profiles_are_opened_when_asked_for_and_no_others(paths: list[Path]) -> None:
    told: list[Path] = []
    *named, other = paths
    profiles = Profiles(named=named, more=[other, named[0]], opened=told.append)
    key = next(iter(profiles.more))
    assert [*profiles.more.values()] == [other] and told == []
    assert [profiles.get(one).path for one in (key, "1", str(other), "../x")] == [
        other,
        named[1],
        named[0],
        named[0],
    ]
    assert told == [other, named[1], named[0]]
    assert [one.path for one in profiles.pair(key, "2")] == [other, named[2]]
    assert [one.path for one in profiles.pair("2", "0")] == [named[2], named[0]]
    two = Profiles(named=named[:2])  # the choice calls them A and B
    assert [one.path for one in two.pair("1", "0")] == named[:2]
    assert profiles.beside("0", "0") == "1" and profiles.beside("0", None) == ""


def test_recent_profiles_are_the_users_own_and_still_there(
    paths: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert recent() == []
    for path in (paths[0], paths[1], paths[0]):
        remember(path)
    assert recent() == [paths[0], paths[1]]
    file = tmp_path / "state" / "ipuscope" / "recent.json"
    assert file.stat().st_mode & 0o077 == 0
    os.remove(paths[0])
    assert recent() == [paths[1]]
    for wrong in ("no json", "{}", json.dumps(["relative", 3, None])):
        file.write_text(wrong)
        assert recent() == []


def _no_space(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_views_are_saved_beside_a_profile_and_are_of_it_only(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Profiles(named=paths).get("1")
    file = paths[1].with_name("views.json")
    view = ("a note", "/timeline?marks=5")
    assert dialogs.saved(report) == [] and dialogs.save(report, [view]) == ""
    assert dialogs.saved(report) == [view]
    file.write_text(
        json.dumps({"views": [{"note": "<b>", "address": one} for one in ("//x", "http:", "/a")]})
    )
    assert dialogs.saved(report) == [("<b>", "/a")]
    assert "characters" in dialogs.save(report, [("", "https://elsewhere")])
    with monkeypatch.context() as full:
        full.setattr(os, "replace", _no_space)
        assert "No space left" in dialogs.save(report, [view])
    assert {one.name for one in file.parent.iterdir()} == {"profile.pop", "views.json"}
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    assert "is not yours" in dialogs.save(report, [view]) and dialogs.saved(report) == [
        ("<b>", "/a")
    ]


@pytest.mark.browser
def test_another_profile_is_opened_and_compared_from_any_page(
    context: Any, paths: list[Path]
) -> None:
    """From the page of runs, from the choice above a page, by the palette and by a saved view."""
    profiles = Profiles(named=paths[:3], more=paths[3:])
    assert of_runs(profiles).note == "3 runs; nothing differs"
    with serving(app_of(profiles)) as address, tab(context, address) as view:
        page = view.open("/runs")
        page.locator("#runs-table .ag-row [col-id=place]", has_text="b").click()
        page.get_by_role("link", name="Open b").click()
        page.wait_for_selector("#head >> text=runs/b")
        page.keyboard.press("Control+k")
        page.locator("#palette input").fill("compare with elsewhere")
        page.locator("#palette-found button").first.click()
        page.wait_for_selector("#compare-grid .ag-row")
        differences = page.locator("#compare-grid .ag-row [col-id=difference]").all_inner_texts()
        assert set(differences) == {"0"}, "no +0 where nothing differs"
        assert view.query()["profile"] == "1" and view.query()["with"] in profiles.more
        assert str(paths[3]) in page.inner_text("#page")
        page.locator("main .controls button.dash-dropdown").first.click()
        page.get_by_role("option", name="c", exact=True).click()
        page.wait_for_selector("#head >> text=runs/c")
        view.wait("document.querySelector('nav.side').innerHTML.includes('profile=2')")
        page = view.open("/timeline?profile=2&marks=7&tracks=IPU+1")
        assert view.plot("timeline-rows", "plot.layout.meta.lanes.map((one) => one[0])") == [1]
        page.click("#views")
        page.locator("#views-field input").fill("a note")
        page.click("#views-save")
        page.locator("#views-list a", has_text="a note").wait_for()
        view.open("/?profile=2")
        page.keyboard.press("v")
        page.locator("#views-list a", has_text="a note").wait_for()
        assert page.input_value("#views-field input") == ""
        page.locator("#views-list a", has_text="a note").click()
        view.wait("document.querySelector('#timeline-rows .main-svg')")
        asked = {name: view.query().get(name) for name in ("profile", "marks", "tracks")}
        assert asked == {"profile": "2", "marks": "7", "tracks": "IPU 1"}
        assert view.complaints == []
