"""`ipu-report query`: no statement can block it, whoever wrote the statement or the file."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import struct
import time
from contextlib import closing
from pathlib import Path

import pytest

from ipuscope.reports.cli import main
from tests.synthetic import synthetic_profile

ENDLESS = "with recursive n(x) as (select 1 union all select x + 1 from n) "
# What costs time in one function call, which SQLite's progress handler never sees.
ONE_CALL = "select instr(hex(zeroblob(40000000)), hex(zeroblob(20000000)) || 'x')"


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_profile(tmp_path_factory.mktemp("query") / "profile.pop", tiles=4)


@pytest.fixture
def copy(profile: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(profile, tmp_path / "profile.pop"))


def ask(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> tuple[int, str, str]:
    code = main(["query", *words, str(path)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("sql", [ENDLESS + "select max(x) from n", ONE_CALL])
def test_a_statement_ends_with_its_time(
    profile: Path, capsys: pytest.CaptureFixture[str], sql: str
) -> None:
    start = time.monotonic()
    code, out, said = ask(capsys, profile, sql, "--timeout", "1")
    assert (code, out) == (1, "")
    assert "longer than 1 s (--timeout)" in said
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("sql", "word"),
    [
        ("select zeroblob(1000000000) || zeroblob(1000000000)", "MiB"),
        (ENDLESS + "select hex(zeroblob(5000000)) || x y from n order by y", "memory"),
        (ENDLESS + "select x, hex(zeroblob(1000)) from n", "64 MiB"),
    ],
)
def test_a_statement_ends_with_its_memory(
    profile: Path, capsys: pytest.CaptureFixture[str], sql: str, word: str
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code, out, said = ask(capsys, profile, sql, "--timeout", "60")
    assert (code, out) == (1, "")
    assert word in said and said.count("\n") == 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400 * 1024  # KiB: the answer of 64 MiB passes through, no more


def test_a_files_own_views_do_not_answer_for_ours(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under a documented name is the documented view, even if the file defines another."""
    with closing(sqlite3.connect(copy)) as base:
        base.execute("drop view stage_cycles")
        base.execute(f"create view stage_cycles as {ENDLESS} select x from n")
        base.execute("create view mine as select 'mine' as whose")
        base.commit()
    code, out, _ = ask(capsys, copy, "select count(*) n from stage_cycles", "--csv")
    assert (code, out.splitlines()[1].split(",")[1]) == (0, "4")
    code, out, _ = ask(capsys, copy, "select whose from mine", "--csv")
    assert code == 0 and "mine" in out
    code, _, said = ask(capsys, copy, "select * from main.stage_cycles", "--timeout", "1")
    assert code == 1 and ("64 MiB" in said or "--timeout" in said)


def test_nothing_is_left_beside_the_file(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(copy)) as base:
        base.execute("pragma journal_mode = wal")
        base.execute("update blocks set name = 'kept'")
        base.commit()
    partial = copy.with_name("profile.pop.partial")
    shutil.copy(copy, partial)
    assert struct.unpack_from("BB", copy.read_bytes(), 18) == (2, 2)
    for path in (copy, partial):
        for command in (["query", "select name from blocks"], ["stages"], ["doctor"]):
            main([*command, str(path)])
    capsys.readouterr()
    left = sorted(path.name for path in copy.parent.iterdir())
    assert left == ["profile.pop", "profile.pop.partial"]


def test_an_unfinished_profile_answers(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partial = copy.rename(copy.with_name("profile.pop.partial"))
    code, out, _ = ask(capsys, partial, "select count(*) n from blocks", "--csv")
    assert (code, out.splitlines()[1].split(",")[1]) == (0, "4")


def test_a_profile_before_its_statement_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = synthetic_profile(tmp_path / "profile.pop", tiles=8)
    assert main(["query", str(path), "SELECT 1"]) == 2
    assert "the statement comes before the profile" in capsys.readouterr().err


def test_one_error_of_many_profiles_is_said_once(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two", "three"):
        (copy.parent / name).mkdir()
        shutil.copy(copy, copy.parent / name / "profile.pop")
    shutil.copy(copy, copy.parent / "two" / "profile.pop").write_bytes(b"")
    assert main(["query", "select nope from ops", *map(str, copy.parent.glob("[ot]*/"))]) == 3
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and sum("1 more of these" in line for line in said) == 1
