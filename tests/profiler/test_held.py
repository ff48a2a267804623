"""Columns that a file holds as answers: they come back as they were, or not at all."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import ipu_exec
from ipuscope.planner import worked_out
from ipuscope.planner.advice import advise, advise_on, basis_of, search
from ipuscope.planner.costs import known_memory, known_ties
from ipuscope.planner.costs.block_memory import BlockMemory
from ipuscope.planner.costs.cuts import Ties
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict import profiled_split
from ipuscope.planner.predict.what_if import memory_of
from ipuscope.profiler import Report, analysis, held, held_memory, kept, open_report
from ipuscope.profiler import report as reports
from ipuscope.profiler.analysis import critical_path, hierarchy, kinds, program
from ipuscope.profiler.analysis.critical_path import path_on_ipus
from ipuscope.profiler.analysis.kinds import spent_by_kind
from ipuscope.profiler.analysis.pod import LINKS, LOADS
from ipuscope.profiler.analysis.program import TOP, nodes, top_nodes
from ipuscope.profiler.file import records
from ipuscope.profiler.file.writer import store_answers
from ipuscope.profiler.held import FLOAT, INT, TEXT
from ipuscope.profiler.held_memory import FULLEST_AT, KINDS, LIVE, MAP, VARIABLES
from ipuscope.profiler.timeline import liveness
from ipuscope.viewer.figures.rebalance import predicted_lanes
from tests.models import Mlp

MIXED = {"number": INT, "share": FLOAT, "word": TEXT}


def mixed() -> dict[str, Any]:
    return {
        "number": np.array([3, -1, 1 << 40]),
        "share": np.array([0.1, -2.5, 1e300]),
        "word": pd.Series(["a", "b\x1f", "a"], dtype="str"),
    }


def test_columns_come_back_as_they_were() -> None:
    said = kept.from_json(kept.as_json(held.plain(mixed())))
    columns, same = held.read(said, MIXED), held.normal(mixed(), MIXED)
    assert columns is not None and list(columns) == list(MIXED)
    for name, values in same.items():
        assert columns[name].dtype == values.dtype
        assert columns[name].tolist() == values.tolist()


@pytest.mark.parametrize("cells", [[], [1], list(range(300))])
def test_columns_of_any_length(cells: list[int]) -> None:
    columns = held.read(held.plain({"a": np.array(cells, dtype=np.int64)}), {"a": INT})
    assert columns is not None and columns["a"].tolist() == cells


WRONG: list[Callable[[dict[str, Any]], Any]] = [
    lambda said: None,
    lambda said: [said],
    lambda said: {**said, "more": said["number"]},
    lambda said: {**said, "number": said["share"]},
    lambda said: {**said, "number": said["word"]},
    lambda said: {**said, "number": 1},
    lambda said: {**said, "number": {**said["number"], "length": 2}},
    lambda said: {**said, "number": {**said["number"], "length": 1 << 40}},
    lambda said: {**said, "number": {**said["number"], "dtype": "<f8"}},
    lambda said: {**said, "number": {**said["number"], "data": "=!"}},
    lambda said: {**said, "number": {**said["number"], "data": 1}},
    lambda said: {**said, "number": {"kind": INT}},
    lambda said: {**said, "number": held.plain({"a": np.array([1, 2])})["a"]},
    lambda said: {**said, "number": held.plain({"a": np.array([1, 2, 1 << 62])})["a"]},
    lambda said: {**said, "share": held.plain({"a": np.array([1, 2, np.nan])})["a"]},
    lambda said: {**said, "share": held.plain({"a": np.array([1, 2, np.inf])})["a"]},
    lambda said: {**said, "word": {**said["word"], "words": ["a"]}},
    lambda said: {**said, "word": {**said["word"], "words": ["a", 1]}},
    lambda said: {**said, "word": {**said["word"], "words": "ab"}},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_are_no_such_columns_is_none(wrong: Callable[[dict[str, Any]], Any]) -> None:
    assert held.read(held.plain(mixed()), MIXED) is not None
    assert held.read(wrong(held.plain(mixed())), MIXED) is None


def test_no_more_rows_are_read_than_there_can_be() -> None:
    assert held.read(held.plain(mixed()), MIXED, most=2) is None


# -- what a profile holds ---


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline's profile, written by the engine as if it were large."""
    directory = tmp_path_factory.mktemp("held")
    options = ipu_exec.Options(autoreport=True, autoreport_dir=directory)
    options.Training.gradientAccumulation(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worked_out, "LEAST_STEPS", 1)
        model = Mlp([64, 256, 64])
        ipu_exec.BeginBlock(model.layers[-1], "last", ipu_id=1)
        training = ipu_exec.trainingModel(model, options)
        training(torch.zeros(4, 64), torch.zeros(4, 64))
        training.destroy()
    return directory / "training" / "profile.pop"


def everything(report: Report) -> dict[str, Any]:
    """What views and reports take from the answers that are columns."""
    top, look = top_nodes(report), hierarchy.first_look(report)
    memory = Costs.from_report(report).memory
    by_kind = spent_by_kind(report, 0, [0, 1], 0, (-np.inf, np.inf))
    split = profiled_split.profiled_split(report)
    ipus = range(report.target.ipus_per_replica)
    return {
        **{f"tiles {ipu}": report.tiles(ipu) for ipu in ipus},
        **{f"live {ipu}": pd.Series(report.live_bytes(ipu)) for ipu in ipus},
        **{f"liveness {ipu}": report.liveness(ipu) for ipu in ipus},
        "memory": report.memory(),
        **{f"variables {ipu}": pd.DataFrame(report.variables_of(ipu)) for ipu in ipus},
        "verdicts": pd.DataFrame(profiled_split.plain(split.memory)),
        "ties": pd.DataFrame(asdict(Costs.from_report(report).cuts.ties)),
        "tied gradients": pd.DataFrame(vars(Costs.from_report(report).tied_gradients)),
        "predicted path": pd.DataFrame(dict(enumerate(profiled_split.predicted_path(report)))),
        "on the fullest tile": analysis.memory.held_at_peak(report, 0),
        "map": pd.DataFrame(report.liveness_map(0, shape=held_memory.FIRST_SHAPE)),
        "loads": analysis.loads(report),
        "pod": analysis.pod(report),
        "links": analysis.link_loads(report),
        "nodes": pd.DataFrame({name: getattr(top, name) for name in program._OF_NODES}),
        "count": pd.Series([top.count]),
        "path": pd.DataFrame(dict(enumerate(path_on_ipus(report)))),
        "by kind": pd.DataFrame(sorted(by_kind.by_kind())),
        "shown": pd.DataFrame(look.shown),
        "inside": pd.DataFrame(look.inside),
        "opens": pd.Series(sorted(look.opens), dtype=object),
        **{
            f"Blocks' {name}": pd.Series(getattr(of, name).ravel())
            for of in (memory, memory.carried)
            for name in known_memory._OF_MEMORY + known_memory._OF_CARRIED
            if hasattr(of, name)
        },
    }


def same(these: dict[str, Any], those: dict[str, Any]) -> None:
    assert these.keys() == those.keys()
    for name, frame in these.items():
        equal = pd.testing.assert_series_equal if frame.ndim == 1 else pd.testing.assert_frame_equal
        equal(frame, those[name])


def refuse(*_: object, **__: object) -> Any:
    raise AssertionError("the file has it")


def test_answers_are_the_same_whichever_way_they_come(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worked_out._RowsAlone(written) as rows:
        from_rows = everything(rows)
        assert worked_out.otherwise(rows) == []
    pod, of_operators = (
        import_module(f"ipuscope.profiler.analysis.{name}") for name in ("pod", "operators")
    )
    monkeypatch.setattr(pod, "_loads", refuse)
    monkeypatch.setattr(pod, "_link_loads", refuse)
    monkeypatch.setattr(program, "nodes", refuse)
    monkeypatch.setattr(hierarchy, "_leaves_of_cycles", refuse)
    monkeypatch.setattr(hierarchy, "tree", refuse)
    monkeypatch.setattr(BlockMemory, "from_report", refuse)
    monkeypatch.setattr(Costs, "_with_residual", refuse)
    monkeypatch.setattr(Report, "spent", refuse)
    monkeypatch.setattr(critical_path, "chain_through", refuse)
    monkeypatch.setattr(profiled_split, "chain", refuse)
    monkeypatch.setattr(profiled_split, "memory_of", refuse)
    monkeypatch.setattr(known_ties.Ties, "from_report", refuse)
    monkeypatch.setattr(known_ties.TiedGradients, "from_report", refuse)
    monkeypatch.setattr(of_operators, "operators", refuse)
    monkeypatch.setattr(Report, "_load_ipu", first_refused(Report._load_ipu))
    monkeypatch.setattr(Report, "_vectors_of", refuse)
    monkeypatch.setattr(liveness, "_tile_peaks", refuse)
    with open_report(written) as report:
        same(everything(report), from_rows)


def first_refused(load: Callable[[Report, int], Any]) -> Callable[[Report, int], Any]:
    """The variables of the first IPU are not read: all that is shown of it is held."""
    return lambda report, ipu: load(report, ipu) if ipu else refuse()


NAMES = (
    *(LIVE, KINDS, FULLEST_AT, MAP, VARIABLES, LOADS, LINKS, TOP, "tiles of IPU 0"),
    *(hierarchy.LOOK, critical_path.ON_IPUS, kinds.NAME, profiled_split.PATH, known_ties.GRADIENTS),
)


def changed(path: Path, folder: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """A copy of a profile in which an answer is another."""
    copy = Path(shutil.copy(path, folder / "profile.pop"))
    with open_report(copy) as report:
        said = report.worked_out(name)
    assert said is not None
    connection = sqlite3.connect(copy)
    with connection:
        connection.execute(
            "UPDATE worked_out SET said = ? WHERE name = ?", (kept.as_json(change(said)), name)
        )
    connection.close()
    return copy


def negative(said: Any) -> Any:
    """All numbers below what they can be."""
    return {
        name: held.plain({"a": np.full(column["length"], -2)})["a"]
        if column["kind"] == INT
        else column
        for name, column in said.items()
    }


def huge(said: Any) -> Any:
    return {
        name: held.plain({"a": np.full(column["length"], 1 << 61)})["a"]
        if column["kind"] == INT and name in ("ipu", "max_tile", "depth", "peak_step", "parent")
        else column
        for name, column in said.items()
    }


def shorter(said: Any) -> Any:
    return {
        name: {**column, **held._coded(np.zeros(max(0, column["length"] - 1), dtype=np.int64))}
        for name, column in said.items()
    }


def refused(written: Path, tmp_path: Path, name: str, change: Callable[[Any], Any]) -> None:
    """What a changed answer would say is worked out from the rows."""
    with (
        worked_out._RowsAlone(written) as rows,
        open_report(changed(written, tmp_path, name, change)) as report,
    ):
        same(everything(report), everything(rows))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [negative, lambda said: 1, lambda said: {}, lambda said: None])
def test_what_cannot_be_is_worked_out_from_the_rows(
    written: Path, tmp_path: Path, name: str, change: Callable[[Any], Any]
) -> None:
    refused(written, tmp_path, name, change)


@pytest.mark.parametrize("name", [LIVE, FULLEST_AT, MAP, "tiles of IPU 0"])
def test_columns_have_an_entry_for_each_step_or_tile(
    written: Path, tmp_path: Path, name: str
) -> None:
    refused(written, tmp_path, name, shorter)


@pytest.mark.parametrize(
    "name", [KINDS, FULLEST_AT, LOADS, TOP, "tiles of IPU 0", hierarchy.LOOK, critical_path.ON_IPUS]
)
def test_an_ipu_a_tile_or_a_step_that_is_not_there(
    written: Path, tmp_path: Path, name: str
) -> None:
    refused(written, tmp_path, name, huge)


def table(said: dict[str, Any], name: str, values: np.ndarray) -> dict[str, Any]:
    return {**said, name: held.plain_tables({name: values})[name]}


MEMORY: list[Callable[[Any], Any]] = [
    lambda said: None,
    lambda said: {**said, "more": said["peak"]},
    lambda said: table(said, "peak", np.zeros((4, 2, 3), dtype=np.int64)),
    lambda said: table(said, "always", np.zeros(2 * 1472, dtype=np.int64)),
    lambda said: table(said, "always", np.full((2, 1472), -1)),
    lambda said: table(said, "always", np.ones((2, 1472), dtype=bool)),
    lambda said: table(said, "ran_again", np.zeros(2, dtype=np.int64)),
    lambda said: table(said, "residual_of", np.array([0, 2])),
    lambda said: table(said, "residual_of", np.array([-1, 0])),
    lambda said: table(said, "carried maker", np.full(said["carried maker"]["length"], 2)),
    lambda said: {**said, "peak": {**said["peak"], "shape": [1 << 40]}},
    lambda said: {**said, "peak": {**said["peak"], "shape": [-4, -2, 1472]}},
    lambda said: {**said, "peak": {**said["peak"], "shape": "4"}},
    lambda said: {**said, "peak": {**said["peak"], "rows": held._coded(np.arange(8) + 8)}},
    lambda said: {**said, "peak": {**said["peak"], "rows": held._coded(np.arange(2))}},
    lambda said: {**said, "peak": {**said["peak"], "rows": held._coded(np.arange(8) - 9)}},
    lambda said: {**said, "peak": {**said["peak"], "rows": 3}},
    lambda said: {**said, "peak": {**said["peak"], "bool": True}},
    lambda said: {**said, "peak": {**said["peak"], "data": 1}},
]


@pytest.mark.parametrize("change", MEMORY)
def test_memory_of_blocks_that_cannot_be(
    written: Path, tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    stage = np.array([0, 1])
    with open_report(written) as report:
        assert known_memory.read(report, stage, 0) is not None
    with open_report(changed(written, tmp_path, known_memory.NAME, change)) as report:
        assert known_memory.read(report, stage, 0) is None
        assert Costs.from_report(report).measured


@pytest.mark.parametrize(
    "change",
    [
        lambda said: None,
        lambda said: said[:1],
        lambda said: said[::-1],
        lambda said: {"0": said[0]},
        lambda said: [{**said[0], "tile": 1472}, *said[1:]],
        lambda said: [{**said[0], "limit": 1}, *said[1:]],
        lambda said: [{**said[0], "nbytes": -1}, *said[1:]],
        lambda said: [{**said[0], "largest": 1}, *said[1:]],
        lambda said: [{**said[0], "largest_bytes": 1 << 63}, *said[1:]],
    ],
)
def test_verdicts_that_cannot_be(
    written: Path, tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    refused(written, tmp_path, profiled_split.NAME, change)


TIED = {"names": ["w"], "blocks": [[0, 1]], "nbytes": [8], "tensors": [3]}


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {**TIED, "more": 1},
        {**TIED, "names": "w"},
        {**TIED, "names": [1]},
        {**TIED, "names": ["w", "v"]},
        {**TIED, "blocks": [[0]]},
        {**TIED, "blocks": [[1, 0]]},
        {**TIED, "blocks": [[0, 2]]},
        {**TIED, "blocks": [[-1, 1]]},
        {**TIED, "nbytes": [-8]},
        {**TIED, "nbytes": [0.5]},
        {**TIED, "tensors": [1 << 63]},
    ],
)
def test_ties_that_cannot_be(said: Any) -> None:
    assert known_ties._ties(2, said) is None
    assert known_ties._ties(2, TIED) == Ties(("w",), ((0, 1),), (8,), (3,))


def test_the_profiled_splits_path_is_that_of_its_lanes(written: Path) -> None:
    with open_report(written) as report:
        split, path = profiled_split.profiled_split(report), profiled_split.predicted_path(report)
        lanes = predicted_lanes(Costs.from_report(report), split)
        for ours, theirs in zip(
            path, (lanes.path.ipu, lanes.path.start, lanes.path.end), strict=True
        ):
            assert ours.tolist() == theirs.tolist()
        assert split.memory == memory_of(Costs.from_report(report), split.assignment)


def test_advice_is_held_whatever_it_is_asked_by(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with worked_out._RowsAlone(written) as rows:
        fresh, few = advise(rows), advise(rows, samples=16)
    with open_report(written) as report:
        assert advise(report, samples=16) == few
        monkeypatch.setattr(search, "_advise_on", refuse)
        assert advise(report) == fresh
        assert advise_on(basis_of(report)) == fresh


def test_windows_that_cut_a_run_are_summed_up_from_its_steps(written: Path) -> None:
    with open_report(written) as report:
        first, last = report.extent(0, [0, 1], 0)
        for window in ((first + 100, last), (first, last - 100)):
            short = spent_by_kind(report, 0, [0, 1], 0, window)
            assert sorted(short.by_kind()) == sorted(report.spent(0, [0, 1], 0, window).by_kind())
        for ipus in ([0], [1], [0, 1], []):
            whole = spent_by_kind(report, 0, ipus, 0, (first, last))
            assert sorted(whole.by_kind()) == sorted(report.spent(0, ipus, 0).by_kind())


def test_doctor_compares_columns(written: Path, tmp_path: Path) -> None:
    with open_report(changed(written, tmp_path, LOADS, negative)) as report:
        assert worked_out.otherwise(report) == [LOADS]


def test_a_profile_without_answers_gives_the_same(written: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(written, tmp_path / "profile.pop"))
    connection = sqlite3.connect(copy)
    with connection:
        connection.execute("DROP TABLE worked_out")
    connection.close()
    with open_report(written) as report, open_report(copy) as other:
        assert not other.holds_worked_out
        same(everything(report), everything(other))


def test_the_top_of_the_program_is_what_is_seen_first(written: Path) -> None:
    with open_report(written) as report:
        every, top = nodes(report), top_nodes(report)
        assert 0 < len(top.id) < every.count == len(report.program)
        assert top.id.tolist() == every.id[every.depth <= program.OPENED].tolist()


def test_names_are_read_alone_while_they_are_few(written: Path) -> None:
    with open_report(written) as report, open_report(written) as other:
        rows = np.array([3, 0, 3, 2])
        names = report.names_at(records.Variable, rows).tolist()
        assert not report.columns_of(records.Variable).has("name")
        assert names == other.columns_of(records.Variable)["name"][rows].tolist()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reports, "_FEW_NAMES", 6)
            patch.setattr(reports, "_FEW_OF_NAMES", 1 << 30)
            assert report.names_at(records.Variable, rows).tolist() == names
        assert report.columns_of(records.Variable).has("name")
        ops = report.op_names(np.array([-1, 1, 0, 1 << 40])).tolist()
        assert ops == ["", *other.ops["name"][[1, 0]].tolist(), ""]


@pytest.mark.parametrize("tile", [None, 0, 5, -1])
def test_bytes_of_an_ipus_variables(written: Path, tile: int | None) -> None:
    with open_report(written) as report, open_report(written) as other:
        for ipu in range(2):
            on = analysis.fullest(other, ipu) if tile == -1 else tile
            size, ids = report.bytes_of_variables(ipu, on), report.variables_of(ipu)["id"]
            of = [other.variable_tiles(id) for id in ids.tolist()]
            assert size.tolist() == [int(one.sum() if on is None else one[on]) for one in of]
            assert (other.variables.loc[ids, "ipu"] == ipu).all()
            assert len(ids) == (other.variables["ipu"] == ipu).sum()


def test_answers_are_stored_and_found(written: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(written, tmp_path / "profile.pop"))
    with open_report(copy) as report:
        names = {*worked_out.worked_out(report)}
    assert {*NAMES} <= names
    store_answers(copy, {})
    with open_report(copy) as report:
        assert all(report.worked_out(name) is not None for name in names)


@pytest.mark.parametrize("shape", [(0, 3), (5, 0), (4,), (6, 40), (2, 3, 40)])
def test_tables_come_back_with_their_equal_rows(shape: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(1).integers(-9, 1 << 40, shape)
    numbers[-1:] = numbers[:1]
    tables = {"a": numbers, "b": numbers % 2 > 0}
    said = kept.from_json(kept.as_json(held.plain_tables(tables)))
    found = held.read_tables(said, tables)
    assert found is not None
    for name, table in tables.items():
        assert found[name].dtype == table.dtype and np.array_equal(found[name], table)
    if len(shape) > 1 and numbers.size:
        assert said["a"]["length"] < numbers.size
