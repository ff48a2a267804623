"""What the server answers to the requests that a browser makes first."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ipuscope.profiler import answers, open_report
from ipuscope.viewer.app import PAGES, create_app, settle
from ipuscope.viewer.pages import causes, common, rebalance
from tests.synthetic import synthetic_profile
from tests.viewer.page_requests import PageRequests

WHERE = {"theme": "light", "width": 1000}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_profile(tmp_path_factory.mktemp("answers") / "profile.pop", tiles=16)


def test_every_page_and_each_of_its_callbacks_answers_without_a_failure(path: Path) -> None:
    first = PageRequests(create_app(open_report(path)))
    answers = {
        (page.name, what): first.ask(request)
        for page in PAGES
        for what, request in first.of_page(page, WHERE)
    }
    for page in PAGES:
        assert (page.name, "layout") in answers
    assert len(answers) > 2 * len(PAGES)
    for text in filter(None, answers.values()):
        assert "sideUpdate" not in json.loads(text)  # a failure's message


def test_a_viewer_with_a_script_has_the_check_that_one_without_it_has_not(path: Path) -> None:
    def layout(script: tuple[str, ...]) -> str:
        first = PageRequests(create_app(open_report(path), script=script))
        return first.ask(dict(first.of_page(rebalance.PAGE, WHERE))["layout"])

    assert "rebalance-check" not in layout(())
    assert "train.py" in layout(("train.py",))


def test_costs_of_many_operators_come_by_direction_first(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then whole, with the same sum; the whole is at once there where it is stored."""
    monkeypatch.setattr(common, "MANY_OPERATORS", 0)
    monkeypatch.setattr(answers, "LEAST_SECONDS", 0)
    copied = tmp_path / "profile.pop"
    shutil.copyfile(path, copied)
    page = next(one for one in PAGES if one.name == "Costs")
    drawn = []
    for _ in range(2):
        first = PageRequests(create_app(open_report(copied)))
        for what, request in first.of_page(page, WHERE):
            answer = first.ask(request) if what.startswith("flame-graph") else ""
            parts = json.loads(answer or "{}").get("response", {})
            drawn += [one["figure"]["data"][0] for one in parts.values() if "figure" in one]
    quick, whole, stored = drawn
    assert quick["values"][0] == whole["values"][0] > 0
    assert "forward" in quick["labels"] and len(quick["ids"]) < len(whole["ids"])
    assert stored == whole


def test_a_rewritten_profile_has_other_answers_and_a_vanished_one_a_message(
    path: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "profile.pop"
    shutil.copyfile(path, copied)
    first = PageRequests(create_app(open_report(copied)))
    request = next(asked for what, asked in first.of_page(PAGES[0], WHERE) if what == "layout")
    before = first.ask(request)
    synthetic_profile(copied, tiles=32)
    assert first.ask(request) != before
    copied.unlink()
    assert "gone" in first.ask(request)


def test_a_failure_is_shown_and_the_next_request_asks_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("not today")

    first = PageRequests(create_app(open_report(path)))
    asked = dict(first.of_page(PAGES[0], WHERE))["summary-insights"]
    with monkeypatch.context() as broken:
        broken.setattr(causes, "insights", fail)
        assert "not today" in first.ask(asked)
    assert "not today" not in first.ask(asked)


def test_what_is_loaded_is_left_alone_by_the_collector() -> None:
    try:
        settle()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
