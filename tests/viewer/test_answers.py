"""Cached answers, and the requests that a browser makes first."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import Any

import pytest

from ipuscope.profiler import Report, open_report
from ipuscope.viewer import answers
from ipuscope.viewer.app import PAGES, create_app
from ipuscope.viewer.first_answers import FirstAnswers
from ipuscope.viewer.pages import rebalance, summary
from ipuscope.viewer.process import settle
from tests.synthetic import synthetic_profile

WHERE = {"theme": "light", "width": 1000}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_profile(tmp_path_factory.mktemp("answers") / "profile.pop", tiles=16)


@pytest.fixture(autouse=True)
def all_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(answers, "LEAST_SECONDS", 0.0)
    monkeypatch.setenv("IPUSCOPE_CACHE", str(tmp_path / "cache"))


def all_answers(report: Report) -> dict[tuple[str, str], str]:
    first = FirstAnswers(create_app(report))
    return {
        (page.name, what): first.ask(request)
        for page in PAGES
        for what, request in first.of_page(page, WHERE)
    }


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("it is known")


def test_a_second_opening_gives_the_same_answers_without_asking_the_report(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = all_answers(open_report(path))
    for page in PAGES:
        assert (page.name, "layout") in before
    assert len(before) > 2 * len(PAGES)
    assert all(text.startswith("{") for text in before.values() if text)
    monkeypatch.setattr(summary, "known_insights", refuse)
    for name in ("_slices", "_over_tiles", "_tasks"):
        monkeypatch.setattr(Report, name, refuse)
    assert all_answers(open_report(path)) == before


def test_a_viewer_with_a_script_has_the_check_that_one_without_it_had_not(path: Path) -> None:
    def layout(script: tuple[str, ...]) -> str:
        first = FirstAnswers(create_app(open_report(path), script=script))
        return first.ask(dict(first.of_page(rebalance.PAGE, WHERE))["layout"])

    assert "rebalance-check" not in layout(())
    assert "train.py" in layout(("train.py",))
    assert "rebalance-check" not in layout(())


def test_a_profile_that_is_written_anew_has_other_answers(path: Path, tmp_path: Path) -> None:
    copied = tmp_path / "profile.pop"
    shutil.copyfile(path, copied)
    app = create_app(open_report(copied))
    first = FirstAnswers(app)
    request = next(asked for what, asked in first.of_page(PAGES[0], WHERE) if what == "layout")
    before = first.ask(request)
    synthetic_profile(copied, tiles=32)
    assert first.ask(request) != before


def test_a_failure_is_no_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("not today")

    first = FirstAnswers(create_app(open_report(path)))
    asked = dict(first.of_page(PAGES[0], WHERE))["summary-insights"]
    with monkeypatch.context() as broken:
        broken.setattr(summary, "known_insights", fail)
        assert "not today" in first.ask(asked)
    assert "not today" not in first.ask(asked)


def test_a_broken_cache_is_worked_out_again(path: Path, tmp_path: Path) -> None:
    before = all_answers(open_report(path))
    files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert files
    for file in files:
        file.write_bytes(b"nonsense")
    assert all_answers(open_report(path)) == before


def test_pages_are_prepared_once_and_how_far_is_said() -> None:
    asked: list[int] = []
    preparation = answers.Preparation(3, lambda at, where: asked.append(at))
    assert preparation.words == "Preparing pages: 0 of 3, once for this profile"
    preparation.begin({})
    preparation.begin({})
    assert preparation._thread is not None
    preparation._thread.join()
    assert asked == [0, 1, 2]
    assert preparation.words == ""


def test_a_page_that_cannot_be_prepared_keeps_none_from_being() -> None:
    def prepare(at: int, where: dict[str, Any]) -> None:
        if at == 0:
            raise ValueError("not this one")

    preparation = answers.Preparation(2, prepare)
    preparation.begin({})
    assert preparation._thread is not None
    preparation._thread.join()
    assert preparation.words == ""


def test_what_is_loaded_is_left_alone_by_the_collector() -> None:
    try:
        settle()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
