"""Columns that are read on demand, compared cell by cell with the whole table."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipuscope.profiler import ProfileError, ProfileWriter, open_report
from ipuscope.profiler.file import records, schema
from ipuscope.profiler.file.columns import Columns
from ipuscope.profiler.file.reader import Reader
from tests.profiler.test_file import row_strategy, with_programs


def names_of(record):
    return [column.name for column in schema.columns(record)]


@pytest.mark.parametrize("record", records.TABLES, ids=lambda record: record.__name__)
@given(data=st.data())
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_packed_columns_are_what_the_cells_are(record, data, tmp_path):
    rows = data.draw(row_strategy(record, 2))
    with ProfileWriter(tmp_path / "some.pop") as writer:
        writer.add(with_programs(rows))
        path = writer.publish()
    with Reader(path) as reader:
        whole = reader.columns(record)
        some = reader.some(record, names_of(record), reader.count(record))
    for name, values in whole.items():
        assert some[name].dtype == values.dtype
        assert some[name].tolist() == values.tolist()


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, 2**53 + 1])
@pytest.mark.parametrize("text", ["", "\x1f", "a\x1fb", "a\x00b", ",", "ä\n", "1"])
def test_extreme_cells_come_back(tmp_path, value, text):
    nodes = [records.Program(at, value, at, text, text + str(at), 1) for at in range(3)]
    with ProfileWriter(tmp_path / "some.pop") as writer:
        writer.add(nodes)
        reader = Reader(writer.publish())
    some = reader.some(records.Program, names_of(records.Program), 3)
    assert some["parent"].tolist() == [value] * 3
    assert some["type"].tolist() == [text] * 3
    assert some["name"].tolist() == [text + str(at) for at in range(3)]


@pytest.mark.parametrize("cell", ["1.5", "x'31'", "'one'", "'1'"])
def test_a_cell_of_another_type_is_found_whichever_way_it_is_read(tmp_path, cell):
    with ProfileWriter(tmp_path / "some.pop") as writer:
        writer.add([records.MovedTensor(0, at, "w", 0, 1, 4) for at in range(3)])
        path = writer.publish()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("ALTER TABLE moved_tensors RENAME TO old")
        connection.execute(
            "CREATE TABLE moved_tensors (step, tensor, name TEXT, source, target, bytes)"
        )
        connection.execute("INSERT INTO moved_tensors SELECT * FROM old")
        connection.execute(f"UPDATE moved_tensors SET bytes = {cell} WHERE tensor = 1")
    with Reader(path) as reader:
        for read in (
            lambda: reader.columns(records.MovedTensor),
            lambda: reader.some(records.MovedTensor, ["bytes"], 3),
        ):
            with pytest.raises(ProfileError, match=r"moved_tensors\.bytes holds"):
                read()
        assert reader.some(records.MovedTensor, ["tensor"], 3)["tensor"].tolist() == [0, 1, 2]


def test_what_is_wrong_with_a_column_is_said_when_it_is_read_and_each_time(tmp_path):
    with ProfileWriter(tmp_path / "some.pop") as writer:
        writer.add([records.Target("mk2", "ipu2", 1, 1, 1, 4, 100, 50, 1e9, 6)])
        writer.add([records.ComputeSet(0, "a", 0, -1, 5), records.ComputeSet(1, "b", 0, 7, 5)])
        report = open_report(writer.publish())
    columns = report.file.table(records.ComputeSet)
    assert columns["flops"].tolist() == [5, 5]
    for _ in range(2):
        with pytest.raises(ProfileError, match=r"compute_set_info\.op is 7"):
            columns["op"]
    with pytest.raises(KeyError):
        columns["no such column"]


def test_columns_are_of_the_rows_that_were_there_when_the_table_was_first_asked_for(tmp_path):
    with ProfileWriter(tmp_path / "some.pop") as writer:
        writer.add([records.Option("a", "1")])
        with Reader(writer.partial) as reader:
            columns = Columns(reader, records.Option, lambda *_: None)
            writer.add([records.Option("b", "2")])
            assert columns["value"].tolist() == ["1"]
            assert columns["name"].tolist() == ["a"]
            assert {name: len(values) for name, values in columns.items()} == {
                "name": 1,
                "value": 1,
            }
            assert np.array_equal(
                Columns(reader, records.Option, lambda *_: None)["name"], ["a", "b"]
            )
