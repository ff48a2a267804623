"""SQL on a profile within limits (tests/reports/test_query.py tries to break them)."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import pytest

from ipuscope.profiler import Report, open_report
from ipuscope.profiler.report import query
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return open_report(synthetic_profile(tmp_path_factory.mktemp("sql") / "profile.pop", tiles=4))


def test_rows_are_limited_and_said_to_be(report: Report) -> None:
    every = query.select(report, "SELECT id FROM ops ORDER BY id")
    some = query.select(report, "SELECT id FROM ops ORDER BY id", most_rows=3)
    assert [row[0] for row in every.rows] == report.ops.index.tolist()
    assert (some.rows, some.cut, every.cut) == (every.rows[:3], True, False)
    assert not query.select(report, "SELECT 1", most_rows=1).cut


def test_columns_of_one_name_stay_apart(report: Report) -> None:
    answer = query.select(report, "SELECT 1 AS a, 2 AS a, NULL AS b")
    assert answer.columns == ("a", "a:1", "b")
    assert [answer[name].tolist() for name in answer.columns] == [[1], [2], [None]]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM ops",
        "ATTACH '/tmp/other.db' AS other",
        "PRAGMA journal_mode = wal",
        "SELECT load_extension('x')",
        "SELECT 1; SELECT 2",
        "no SQL at all",
        "",
    ],
)
def test_what_only_reads_is_all_that_is_done(report: Report, sql: str) -> None:
    with pytest.raises(query.QueryError):
        query.select(report, sql)


def test_a_file_in_which_a_view_is_a_table_is_asked_as_it_is(report: Report, tmp_path) -> None:
    """Profiles had ``body_steps`` as rows before bodies shared patterns."""
    asked = "SELECT * FROM body_steps ORDER BY body, position"
    rows = query.select(report, asked).rows
    older = shutil.copy(report.path, tmp_path)
    with closing(sqlite3.connect(older)) as connection:
        connection.executescript(
            f"CREATE TABLE rows AS {asked}; DROP VIEW body_steps;"
            " CREATE TABLE body_steps AS SELECT * FROM rows; DROP TABLE body_patterns;"
        )
    with open_report(older) as opened:
        assert query.select(opened, asked).rows == rows
