"""The cache of profiles in the user's cache directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ipuscope.profiler import kept


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("IPUSCOPE_CACHE", str(folder))
    return folder


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "profile.pop"
    path.parent.mkdir()
    path.write_bytes(b"some content")
    return path


def test_what_was_kept_comes_back_for_the_same_content_only(where: Path, profile: Path) -> None:
    kept.Kept([profile]).put("a", b"an answer")
    elsewhere = profile.with_name("copy.pop")
    elsewhere.write_bytes(profile.read_bytes())
    assert kept.Kept([elsewhere]).get("a") == b"an answer"
    assert kept.Kept([profile]).get("b") is None
    profile.write_bytes(b"other content")
    assert kept.Kept([profile]).get("a") is None
    assert kept.Kept([elsewhere, profile]).get("a") is None


def test_nothing_is_written_beside_the_profile_nor_for_others_to_read(
    where: Path, profile: Path
) -> None:
    kept.Kept([profile]).put("a", b"an answer")
    assert list(profile.parent.iterdir()) == [profile]
    (folder,) = where.iterdir()
    assert folder.stat().st_mode & 0o077 == 0


def test_other_code_makes_it_anew(
    where: Path, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.Kept([profile]).put("a", b"an answer")
    monkeypatch.setattr(kept, "code", lambda: "another")
    assert kept.Kept([profile]).get("a") is None


@pytest.mark.parametrize("cut", [0, 5, 16, 20, -1])
def test_what_is_broken_is_not_there(where: Path, profile: Path, cut: int) -> None:
    cache = kept.Kept([profile])
    cache.put("a", b"an answer" * 100)
    file = cache.folder / "a"
    file.write_bytes(file.read_bytes()[:cut])
    assert cache.get("a") is None
    cache.put("a", b"made again")
    assert cache.get("a") == b"made again"


def test_a_directory_that_cannot_be_made_is_done_without(where: Path, profile: Path) -> None:
    where.write_text("a file where the directory would be")
    cache = kept.Kept([profile])
    cache.put("a", b"an answer")
    assert cache.get("a") is None


def test_what_was_not_asked_for_longest_goes_first(where: Path, profile: Path) -> None:
    cache = kept.Kept([profile])
    for at, name in enumerate("abc"):
        cache.put(name, os.urandom(1000))
        os.utime(cache.folder / name, (at, at))
    cache.get("a")
    kept.make_room(2500)
    assert cache.get("b") is None
    assert cache.get("a") is not None
    assert cache.get("c") is not None
    kept.make_room(0)
    assert list(where.iterdir()) == []
