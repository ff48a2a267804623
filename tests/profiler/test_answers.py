"""Answers about a profile: equal whether computed or read back, and never another profile's."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from ipuscope.planner import insights
from ipuscope.profiler import ProfileError, Report, analysis, answers, open_report
from ipuscope.profiler.analysis import hierarchy, kinds, operators, program, waits
from ipuscope.profiler.answers import STORED, Store, pack, stored, unpack
from tests.synthetic import synthetic_profile

MODULES = (insights, analysis, hierarchy, kinds, operators, program, waits)


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    path: tuple[str, ...]
    value: int


@dataclass(frozen=True)
class Everything:
    flag: bool
    number: int
    share: float
    text: str
    colour: Colour
    maybe: int | None
    pairs: list[Pair]
    two: tuple[int, str]
    by_name: dict[str, int | str | list[int]]
    names: frozenset[str]
    table: np.ndarray
    texts: np.ndarray
    frame: pd.DataFrame


WHOLE = Everything(
    flag=True,
    number=-3,
    share=0.25,
    text="a\0ü",
    colour=Colour.RED,
    maybe=None,
    pairs=[Pair((), 1), Pair(("a", "b"), 2)],
    two=(1, "x"),
    by_name={"a": 1, "b": "c", "d": [1, 2]},
    names=frozenset("a"),
    table=np.arange(6).reshape(2, 3),
    texts=np.array(["b", "a", "b"], dtype=object),
    frame=pd.DataFrame({"n": [1, 2], "share": [0.5, 1.0], "word": pd.array(["x", ""], "str")}),
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile, and a cache of its own in which everything is stored."""
    monkeypatch.setattr(answers, "LEAST_SECONDS", 0.0)
    monkeypatch.setenv("IPUSCOPE_CACHE", str(tmp_path / "cache"))
    for forget in (answers.code, answers._content, answers._make_room_once):
        forget.cache_clear()
    return synthetic_profile(tmp_path / "profile.pop", tiles=16)


@pytest.fixture
def steps() -> Iterator[Any]:
    """A stored function of a report, and how often it ran."""
    ran: list[Path] = []

    @stored
    def steps(report: Report) -> dict[str, int]:
        ran.append(report.path)
        return {"steps": len(report.program_steps())}

    yield steps, ran
    STORED.pop(f"{steps.__module__}.{steps.__qualname__}")


def same(one: Any, other: Any) -> bool:
    """Whether two answers are equal, arrays and frames in them too."""
    if isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other)
        return True
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, name), getattr(other, name)) for name in vars(one))
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


def files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("name", STORED)
def test_an_answer_is_the_same_from_a_cold_and_a_warm_cache(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = STORED[name](open_report(path))
    monkeypatch.setattr(answers, "pack", None)  # whatever is computed now cannot be stored
    report = open_report(path)
    of_facets = (report.trace, "spent"), (report.usage, "tile_columns")
    for place, read in ((report, "program_steps"), (report, "tasks"), *of_facets):
        monkeypatch.setattr(place, read, None)  # ... and is not computed
    assert same(STORED[name](report), cold)


def test_every_kind_of_value_comes_back_as_it_was() -> None:
    assert same(unpack(Everything, pack(WHOLE)), WHOLE)


def test_no_damaged_byte_of_an_answer_gives_anything_but_a_value_of_its_type() -> None:
    data = pack(WHOLE)
    generator = np.random.default_rng(5)
    for _ in range(2000):
        changed = bytearray(data)
        changed[generator.integers(len(data))] = generator.integers(256)
        try:
            value = unpack(Everything, bytes(changed))
        except ValueError:
            continue
        pack(value)
    for length in range(len(data)):
        with pytest.raises(ValueError):
            unpack(Everything, data[:length])
    with pytest.raises(ValueError):
        unpack(Everything, data + b"\0")


@pytest.mark.parametrize(
    "wrong",
    [
        {"number": "3"},
        {"number": True},
        {"maybe": "text"},
        {"colour": "tan"},
        {"pairs": [("a", 1)]},
        {"two": (1, "x", 2)},
        {"by_name": {"a": 1.5}},
        {"table": ["|O8", [1], b"12345678"]},
        {"table": ["<i8", [3], b"12345678"]},
        {"texts": ["<i8", [1], b"\7" + bytes(7), ["a"]]},
        {"frame": [{"n": ["<i8", [1], bytes(8)], "m": ["<i8", [0], b""]}, ["int64", "int64"]]},
    ],
)
def test_what_no_answer_of_the_type_has_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        unpack(Everything, pack(replace(WHOLE, **wrong)))


def test_an_answer_is_computed_once_for_a_profile_and_its_copies(path: Path, steps: Any) -> None:
    asked, ran = steps
    elsewhere = Path(shutil.copy(path, path.with_name("copy.pop")))
    answer = asked(open_report(path))
    assert asked(open_report(path)) == asked(open_report(elsewhere)) == answer
    assert ran == [path]


def test_a_rewritten_profile_is_asked_anew(path: Path, steps: Any) -> None:
    asked, ran = steps
    before = open_report(path)
    other = synthetic_profile(path.with_name("other.pop"), tiles=8, iterations=2)
    os.replace(other, path)
    for report in (before, open_report(path), open_report(path)):
        asked(report)
    # the first reads a file that is at its path no more: its answer is not the new file's
    assert len(ran) == 2


def test_an_edit_in_place_is_another_content(path: Path, steps: Any) -> None:
    asked, ran = steps
    asked(open_report(path))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE stages SET forward_cycles = forward_cycles + 1")
    connection.close()
    asked(open_report(path))
    assert len(ran) == 2


def test_other_code_asks_anew(path: Path, steps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ran = steps
    asked(open_report(path))
    monkeypatch.setattr(answers, "code", lambda: "of another version")
    answers._content.cache_clear()
    asked(open_report(path))
    assert len(ran) == 2


@pytest.mark.parametrize("content", [b"", b"nonsense", "cut", "other"])
def test_a_hostile_cache_is_computed_again(path: Path, steps: Any, content: Any) -> None:
    asked, ran = steps
    answer = asked(open_report(path))
    answers._content.cache_clear()
    for file in files(path.with_name("cache")):
        data = file.read_bytes()
        file.write_bytes(data[:-1] if content == "cut" else content if content != "other" else b"")
        if content == "other":  # whole, but of another type
            Store.put(_at(file), file.name, pack([1, 2, 3]))
    assert asked(open_report(path)) == answer
    assert len(ran) == 2


def _at(file: Path) -> Store:
    store = object.__new__(Store)
    store.folder = file.parent
    return store


def test_a_directory_that_cannot_be_written_is_ignored(
    path: Path, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ran = steps
    path.with_name("a file").write_text("")
    monkeypatch.setenv("IPUSCOPE_CACHE", str(path.with_name("a file") / "cache"))
    assert asked(open_report(path)) == asked(open_report(path))
    assert len(ran) == 2


def test_an_answer_about_a_growing_profile_is_not_stored(path: Path, steps: Any) -> None:
    asked, _ = steps
    growing = Path(shutil.copy(path, path.with_name("profile.pop.partial")))
    report = open_report(growing)
    assert asked(report) is asked(report)
    assert not files(path.with_name("cache"))


def test_a_failure_is_no_answer(path: Path) -> None:
    @stored
    def fails(report: Report) -> int:
        raise ProfileError(report.path, "not today", "")

    report = open_report(path)
    for _ in range(2):
        with pytest.raises(ProfileError):
            fails(report)
    STORED.pop(f"{fails.__module__}.{fails.__qualname__}")


def test_stored_files_are_this_users_alone_and_quick_answers_are_not_stored(
    path: Path, steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, _ = steps
    asked(open_report(path))
    for file in (written := files(path.with_name("cache"))):
        assert not file.stat().st_mode & 0o077 and not file.parent.stat().st_mode & 0o077
    monkeypatch.setattr(answers, "LEAST_SECONDS", 60.0)
    kinds.spent_by_kind(open_report(path), 0, [0], 0, (0, 1 << 60))
    assert files(path.with_name("cache")) == written


def test_the_least_recently_used_results_go_first(path: Path) -> None:
    store = Store("one")
    for number, name in enumerate("abc"):
        store.put(name, os.urandom(1000))
        os.utime(store.folder / name, (number, number))
    store.get("a")
    answers.make_room(2500)
    assert [store.get(name) is not None for name in "abc"] == [True, False, True]


def test_answers_that_an_older_version_wrote_into_a_profile_are_ignored(path: Path) -> None:
    kinds_of = STORED["ipuscope.profiler.analysis.kinds._by_kind"]
    before = kinds_of(open_report(path))
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE worked_out (name TEXT, code TEXT, said BLOB)")
        connection.execute("INSERT INTO worked_out VALUES ('kinds', '', x'00')")
    connection.close()
    with open_report(path) as report:
        assert same(kinds_of(report), before)
        assert len(report.program_steps())
