"""Cached insights equal computed ones, and are computed again if they cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipuscope.planner.insights import Insight, insights, kept_insights
from ipuscope.planner.insights.kept_insights import known_insights
from ipuscope.profiler import Report, open_report
from ipuscope.profiler.kept import Kept
from tests.synthetic import synthetic_profile


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IPUSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_insights, "LEAST_SECONDS", 0.0)
    return synthetic_profile(tmp_path / "profile.pop", tiles=8)


def refuse(report: Report) -> list[Insight]:
    raise AssertionError("it is known")


def test_they_come_back_as_they_were(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = insights(open_report(path))
    assert any(one.waits for one in computed) and any(one.change for one in computed)
    assert known_insights(open_report(path)) == computed
    monkeypatch.setattr(kept_insights, "insights", refuse)
    assert known_insights(open_report(path)) == computed


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'[{"title": "a"}]'])
def test_what_is_not_whole_is_made_again(path: Path, data: bytes) -> None:
    report = open_report(path)
    Kept([path]).put("insights", data)
    assert known_insights(report) == insights(report)


def test_what_was_quick_is_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_insights, "LEAST_SECONDS", 1e9)
    known_insights(open_report(path))
    assert Kept([path]).get("insights") is None
