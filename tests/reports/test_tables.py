"""Terminal tables: names are shortened, numbers never; programs get what they ask for."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from ipuscope import __version__
from ipuscope.profiler import open_report
from ipuscope.profiler.file import records
from ipuscope.reports.cli import main
from ipuscope.reports.tables import Column, Page, Table, narrowed, print_pages, text
from tests.paths import ROOT
from tests.synthetic import synthetic_profile

# What has a table of numbers, with arguments that make long ones.
TABLES = (
    ("tile", "--ipu", "2"),
    ("variables",),
    ("liveness",),
    ("program",),
    ("stages",),
    ("memory",),
    ("memory", "--by", "tile"),
    ("pipeline",),
    ("whatif", "--assign", "0,0,1,2"),
    ("rebalance",),
    ("insights",),
)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile with names of 90 characters and the numbers of a large model."""
    path = synthetic_profile(tmp_path_factory.mktemp("wide") / "profile.pop", runs=1)
    with sqlite3.connect(path) as connection:
        for record in (records.Op, records.Variable, records.Program):
            connection.execute(f"UPDATE {record.table} SET name = name || ?", ("/deep" * 18,))
    connection.close()
    return path


def printed(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([str(word) for word in argv]) == 0
    return capsys.readouterr().out


def numbers(words: str) -> list[str]:
    return re.findall(r"(?<![\w/.…])-?[\d,]+(?:\.\d+)?%?(?![\w/…])", words)


@pytest.mark.parametrize("argv", TABLES, ids=" ".join)
def test_narrow_terminals_have_every_number(
    profile: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    argv: tuple[str, ...],
) -> None:
    def in_columns(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        said = printed(capsys, *command, profile)
        if argv[0] == "program":  # names have numbers too ("stage 0"), which go with the name
            said = re.sub(r"(?m)^.*?(?= {2,}\d+ )", "", said)
        return numbers(said)

    command = [*argv, "--no-drawing"] if argv[0] == "pipeline" else [*argv]
    wide = in_columns(1000)
    assert in_columns(40) == in_columns(80) == wide
    assert len(wide) > 5


def test_operators_are_told_apart_in_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"layer.*/{of}/gradient/mm_1" for of in ("intermediate", "attention/qkv")]
    frame = pd.DataFrame(
        {"name": names, "bytes": [1 << 40] * 2, "times": [1] * 2, "again": 1 << 60}
    )
    columns = [Column("name", "operator", text), Column("bytes", "bytes")]
    columns += [Column(key, key, spare=True) for key in ("times", "again")]
    print_pages([Page("p", (Table("t", frame, (*columns, columns[1])),))])
    head, _, *rows, said = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == names and max(map(len, rows)) <= 80
    assert head.split() == ["operator", "bytes", "times", "bytes"]
    assert said == "Left out, too wide: again. --json has all."


@pytest.mark.parametrize("name", ["variables", "ops"])
def test_without_a_terminal_nothing_is_cut(profile: Path, name: str) -> None:
    """Neither a pipe nor a file has a width to fit."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    command = [sys.executable, "-m", "ipuscope.reports.cli", name, "--top", "5", str(profile)]
    process = subprocess.run(
        command,
        env={**environment, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=60,
    )
    assert "…" not in process.stdout
    assert process.stdout.count("/deep" * 18) == 5


def test_lines_of_a_summary_end_with_a_word(
    profile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = printed(capsys, "summary", profile).splitlines()
    facts = said[: said.index("")]
    assert len(facts) > 8 and max(map(len, facts)) <= 60
    assert [line for line in facts if line != line.rstrip()] == []
    assert any(line.startswith(" " * 17) for line in facts)  # what is long goes on below


def test_names_are_narrowed_the_longest_first() -> None:
    assert narrowed([30, 20, 9], [12, 12, None], 59) == [30, 20, 9]
    assert narrowed([30, 20, 9], [12, 12, None], 45) == [18, 18, 9]
    assert narrowed([30, 20, 9], [12, 12, None], 10) == [12, 12, 9]
    assert narrowed([5, 9], [12, None], 3) == [5, 9]


def test_a_name_keeps_both_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    frame = pd.DataFrame({"name": ["encoder.layer.11.attention.self.query"], "bytes": [1 << 40]})
    columns = (Column("name", "variable", text), Column("bytes", "bytes"))
    print_pages([Page("p", (Table("t", frame, columns),))])
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"encode\S*…\S*self\.query +1,099,511,627,776", line.strip())
    assert len(line) <= 40


def test_columns_move_together_where_names_cannot_make_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    large = 10**10 - 1  # of 13 characters
    columns = tuple(Column(f"c{k}", f"c{k}") for k in range(6))

    def row_of(count: int) -> str:
        shown = columns[:count]
        frame = pd.DataFrame({one.key: [large] for one in shown})
        print_pages([Page("p", (Table("t", frame, shown),))])
        return capsys.readouterr().out.splitlines()[-1].rstrip()

    assert row_of(5) == "  ".join([f"{large:,}"] * 5)
    assert row_of(6) == " ".join([f"{large:,}"] * 6)  # more than 80: no number is cut


@pytest.mark.parametrize("name", ["ops", "variables", "liveness", "tile", "program"])
def test_csv_and_json_have_as_many_rows_as_asked(
    profile: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    every = pd.read_csv(io.StringIO(printed(capsys, name, "--csv", profile)))
    all_of_them = pd.read_csv(io.StringIO(printed(capsys, name, "--csv", "--top", 0, profile)))
    some = pd.read_csv(io.StringIO(printed(capsys, name, "--csv", "--top", 3, profile)))
    (page,) = json.loads(printed(capsys, name, "--json", "--top", 3, profile))
    rows = next(value for key, value in page.items() if key != "profile")
    assert len(every) == len(all_of_them) > 3
    assert len(some) == len(rows) == 3


def test_the_fullest_steps_come_first_in_every_form(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_report(profile) as report:
        total = report.liveness(0)["total"]
    some = pd.read_csv(io.StringIO(printed(capsys, "liveness", "--csv", "--top", 4, profile)))
    assert some["total"].tolist() == sorted(total, reverse=True)[:4]
    every = pd.read_csv(io.StringIO(printed(capsys, "liveness", "--csv", profile)))
    assert every["total"].tolist() == total.tolist()


def test_numbers_of_a_query_with_null_are_numbers(
    profile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    sql = "select name, 123456789012 as n, name as again from ops union all select 'x', null, 'y'"
    out = printed(capsys, "query", "--top", 0, sql, profile)
    assert out.count("123,456,789,012") == len(open_report(profile).ops)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ipu-report {__version__}\n"
