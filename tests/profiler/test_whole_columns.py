"""Packed columns of large tables: they read as the rows do, and never outlive them."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from ipuscope.profiler import open_report
from ipuscope.profiler.file import records, schema
from ipuscope.profiler.file.reader import Reader
from ipuscope.reports.cli import main
from tests.synthetic import synthetic_profile

REST = ", ".join(column.name for column in schema.columns(records.Step)[1:] if column.stored)


@pytest.fixture(scope="module", autouse=True)
def packed_from_few_rows_on():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "LEAST_PACKED", 50)
        yield


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Path:
    return synthetic_profile(
        tmp_path_factory.mktemp("packed") / "profile.pop", ipus=2, tiles=4, steps_per_body=20
    )


@pytest.fixture
def copy(profile, tmp_path) -> Path:
    return Path(shutil.copy(profile, tmp_path / "profile.pop"))


def packed_names(path: Path, record: type) -> set[str]:
    with Reader(path) as reader:
        return set(reader.packed(record, schema.columns(record), reader.count(record)))


def alter(path: Path, sql: str, *values: object) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(sql, values)
    connection.close()


def test_packed_columns_read_as_the_rows_do(profile):
    large = []
    with Reader(profile) as reader:
        for record in records.STORED:
            rows = reader.count(record)
            packed = reader.packed(record, schema.columns(record), rows)
            assert bool(packed) == (rows >= schema.LEAST_PACKED), record
            by_row = reader.columns(record)  # never from what is packed
            for name, values in packed.items():
                assert values.dtype == by_row[name].dtype
                np.testing.assert_array_equal(values, by_row[name])
            large += [record] if packed else []
    assert records.Step in large and records.Program in large


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE program_step_rows SET cycles = cycles + 1 WHERE id = 7",
        "DELETE FROM program_step_rows WHERE id = (SELECT max(id) FROM program_steps)",
        f"INSERT INTO program_step_rows (id, {REST}) SELECT id + 1000000, {REST}"
        " FROM program_steps LIMIT 1",
    ],
)
def test_a_changed_row_takes_its_tables_packed_columns_with_it(copy, change):
    alter(copy, change)
    assert not packed_names(copy, records.Step)
    assert packed_names(copy, records.Program)
    with Reader(copy) as reader:
        rows = reader.count(records.Step)
        cycles = reader.some(records.Step, ["cycles"], rows)["cycles"]
        np.testing.assert_array_equal(cycles, reader.columns(records.Step)["cycles"])


def test_a_changed_program_takes_what_is_packed_of_its_steps_too(copy):
    alter(copy, "UPDATE program_tree SET name = name || ' again'")
    assert not packed_names(copy, records.Step) and not packed_names(copy, records.Program)
    with open_report(copy) as report:
        assert report.program_steps()["name"].str.endswith(" again").all()


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ("UPDATE packed_columns SET data = ? WHERE name = 'cycles'", (b"nothing",)),
        ("UPDATE packed_columns SET length = length - 1 WHERE name = 'cycles'", ()),
        ("UPDATE packed_columns SET dtype = 'x' WHERE name = 'cycles'", ()),
        ("UPDATE packed_columns SET words = data WHERE name = 'cycles'", ()),
        ("UPDATE packed_columns SET words = ? WHERE name = 'type'", (b"nothing",)),
        ("UPDATE packed_columns SET words = NULL WHERE name = 'type'", ()),
        ("DROP TABLE packed_columns", ()),
    ],
)
def test_what_is_packed_wrong_is_read_from_the_rows(profile, copy, change, values):
    alter(copy, change, *values)
    with open_report(profile) as whole, open_report(copy) as report:
        left, right = (r.file.table(records.Step) for r in (whole, report))
        for name in ("cycles", "type"):
            np.testing.assert_array_equal(left[name], right[name])


def test_doctor_says_where_packed_columns_are_not_what_the_rows_say(copy, capsys):
    main(["doctor", str(copy)])
    assert "packed with other values" not in capsys.readouterr().out
    # what triggers would have removed, put back: packed cycles of another table's column
    alter(
        copy,
        "UPDATE packed_columns SET (dtype, data) = (SELECT dtype, data FROM packed_columns"
        " WHERE of = 'program_steps' AND name = 'position') WHERE of = 'program_steps' AND"
        " name = 'cycles'",
    )
    main(["doctor", str(copy)])
    assert "program_steps.cycles is packed with other values" in " ".join(
        capsys.readouterr().out.split()
    )
