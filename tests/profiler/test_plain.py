"""Plain SQL on a profile, compared with what `profiler` reads from vectors, and older formats."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import numpy as np
import pandas as pd
import pytest

from ipuscope.profiler import open_report
from ipuscope.profiler.file import records, sql_rows
from ipuscope.profiler.file.trace import waits_as_syncs
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return synthetic_profile(tmp_path_factory.mktemp("plain") / "profile.pop", runs=2)


@pytest.fixture(scope="module")
def report(path):
    return open_report(path)


def ask(path, sql):
    with closing(sqlite3.connect(path)) as connection:
        return pd.read_sql_query(sql, connection)


def test_executed_steps_are_the_reports(path, report):
    every = ask(path, "SELECT * FROM execution_steps ORDER BY run, ipu, start, id")
    assert sorted(every["id"]) == list(range(len(every)))
    busy = every[every["cycles"] > every["waited"]].copy()
    busy["start"] += busy["waited"]
    busy["cycles"] -= busy["waited"]
    busy = busy.sort_values(["run", "ipu", "start"], kind="stable")
    parts = [report.steps(run).assign(run=run) for run in report.runs["run"]]
    wanted = pd.concat(parts)
    wanted = wanted[wanted["step"] >= 0].sort_values(["run", "ipu", "start"], kind="stable")
    assert len(busy) == len(wanted) > 1000
    assert busy["id"].is_unique
    for name in ("run", "iteration", "ipu", "micro_batch", "pipeline_cycle", "step", "start"):
        assert busy[name].tolist() == wanted[name].tolist(), name
    assert busy["cycles"].tolist() == (wanted["end"] - wanted["start"]).tolist()
    spent = every.groupby(["run", "ipu"])["cycles"].sum().unstack()
    assert spent.to_numpy().tolist() == [
        [cycles] * report.target.num_ipus for cycles in report.runs["cycles"]
    ]


def test_micro_batches_are_the_reports_tasks(path, report):
    micro_batches = ask(path, "SELECT * FROM stage_micro_batches WHERE run = 1 ORDER BY ipu, start")
    tasks = report.tasks(1)
    wanted = tasks[tasks["stage"] >= 0].sort_values(["ipu", "start"])
    for name in ("stage", "micro_batch", "start", "end"):
        assert micro_batches[name].tolist() == wanted[name].tolist(), name


def test_bytes_on_tiles_are_the_reports(path, report):
    for ipu in range(report.target.num_ipus):
        first = ipu * report.target.tiles_per_ipu
        by_tile = ask(path, f"SELECT * FROM memory_by_tile WHERE ipu = {ipu} ORDER BY tile")
        tiles = report.tiles(ipu)
        assert by_tile["tile"].tolist() == (first + tiles["tile"]).tolist()
        for name in ("total", "total_excluding_gaps", "always_live", "overflow"):
            assert by_tile[name].tolist() == tiles[name].tolist(), name
    room = ask(path, "SELECT * FROM tile_headroom").set_index("ipu")
    tiles = report.tiles(1)
    tile = room.loc[1, "fullest_tile"]
    assert room.loc[1, "bytes"] == tiles["peak"].max() == tiles["peak"][tile]
    assert room.loc[1, "free_bytes"] == report.target.bytes_per_tile - tiles["peak"].max()


def test_variables_on_tiles_are_the_reports(path, report):
    pieces = ask(
        path,
        "SELECT v.id, tile, size_bytes, string, c.name AS category FROM vars_info v "
        "JOIN var_categories c ON c.id = v.category JOIN vars_string_table n ON n.id = v.name",
    )
    for id, of in pieces.groupby("id"):
        variable = report.variables.loc[id]
        held = np.zeros(report.target.tiles_per_ipu, dtype=np.int64)
        held[of["tile"] - variable["ipu"] * report.target.tiles_per_ipu] = of["size_bytes"]
        assert held.tolist() == report.usage.variable_tiles(id).tolist()
        assert set(of["string"]) == {variable["name"]} and set(of["category"]) == {
            variable["category"]
        }
    assert set(pieces["id"]) == set(report.variables.index[report.variables["bytes"] > 0])


def test_sql_written_for_the_vendors_file_runs(path, report):
    """The columns that docs/libpva.md#files-of-a-run lists; step ids go through all runs."""
    of_type = ask(
        path,
        "SELECT type, sum(cycles) AS cycles FROM steps JOIN steps_by_ipu ON step_id = id GROUP BY"
        " type",
    )
    steps = pd.concat([report.steps(run) for run in report.runs["run"]])
    type_of = report.program_steps().set_index("step")["type"]
    steps = steps[steps["step"] >= 0]
    wanted = (steps["end"] - steps["start"]).groupby(steps["step"].map(type_of)).sum()
    idle = sum(report.cycle_proportions(run)["idle"].sum() for run in report.runs["run"])
    wanted["Sync"] += idle  # an external sync lasts as long as its IPU waits
    assert dict(of_type.itertuples(index=False)) == wanted.to_dict()
    busy = ask(
        path,
        "SELECT step_id, active_tiles, cycles, cycles_base, active_cycles_from_min,"
        " active_cycles_to_max, tile_balance, program, compute_set FROM steps JOIN steps_by_ipu ON"
        " step_id = id WHERE type = 'OnTileExecute'",
    )
    assert (busy["active_cycles_from_min"] == 0).all() and busy["tile_balance"].between(0, 1).all()
    assert (busy["active_cycles_to_max"] <= busy["cycles"]).all()
    assert busy["active_tiles"].between(1, report.target.tiles_per_ipu).all()
    names = ask(
        path,
        "SELECT p.name, c.name AS vertex_set FROM steps s JOIN programs p ON p.id = s.program "
        "JOIN compute_sets c USING (compute_set)",
    )
    ops, steps = report.ops, report.program_steps().query("type == 'OnTileExecute'")
    own, theirs = ops["name"].to_dict(), ops["popart_name"].to_dict()
    pairs = zip(steps["op"], steps["name"], strict=True)
    wanted = {theirs.get(op, "") + name.removeprefix(own.get(op, "")) for op, name in pairs}
    assert set(names["vertex_set"]) == wanted
    total = ask(path, "SELECT total FROM execution_cycle_totals")["total"]
    assert total.tolist() == report.runs["cycles"].tolist()


def test_waits_become_syncs_by_hand():
    """Two waits before a sync become part of it; one before work stays, as does one at the end."""
    ipu = np.array([0, 0, 0, 0, 0, 1, 1])
    start = np.array([0, 10, 15, 40, 46, 0, 46])
    end = np.array([10, 15, 40, 46, 60, 46, 50])
    wait = np.array([False, True, True, False, True, True, False])
    sync = np.array([False, False, False, True, False, False, False])
    syncs = waits_as_syncs(ipu, start, end, wait, sync)
    assert syncs.stays.tolist() == [True, False, False, True, True, True, True]
    assert syncs.start.tolist() == [0, 10, 15, 10, 46, 0, 46]
    assert syncs.waited.tolist() == [0, 0, 0, 30, 14, 46, 0]


def test_activity_of_a_step_by_hand():
    def one(tile_cycles=None, bytes_in=None, bytes_out=None):
        return sql_rows.activity(0, tile_cycles, bytes_in, bytes_out)

    assert one(tile_cycles=[0, 40, 80, 0]) == (2, 40, 80, 30 / 80, 60 / 80, 0, 0)
    assert one(tile_cycles=[0, 0]) == (0, 0, 0, 1.0, 1.0, 0, 0)
    assert one(bytes_in=[8, 0, 4], bytes_out=[0, 0, 12]) == (2, -1, -1, 1.0, 1.0, 12, 12)
    with pytest.raises(ValueError, match="step 0: bytes in and out"):
        one(bytes_in=[8, 0, 4], bytes_out=[0])


def test_runs_of_equal_bytes_by_hand():
    vectors = [(4, np.array([4, 4, 0])), (2, np.zeros(0)), (3, np.array([0, 4, 4, 0, 0, 8, 4]))]
    runs = [records.TileRun(*row) for row in sql_rows.tile_runs(vectors)]
    assert [run.vector for run in runs] == [3, 3, 3, 4]
    places = [(run.first_tile, run.last_tile, run.bytes) for run in runs]
    assert places == [(1, 2, 4), (5, 5, 8), (6, 6, 4), (0, 1, 4)]
    assert list(sql_rows.tile_runs([(2, np.zeros(0))])) == []


def test_runs_of_many_vectors_come_in_order() -> None:
    vectors = [(id, np.array([id % 3, 0, id])) for id in range(600, 0, -1)]  # more than at once
    expected = [
        (id, tile, tile, nbytes)
        for id in range(1, 601)
        for tile, nbytes in ((0, id % 3), (2, id))
        if nbytes
    ]
    assert list(sql_rows.tile_runs(vectors)) == expected
