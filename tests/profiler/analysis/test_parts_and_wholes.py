"""What is read or summed up in part says what the whole says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import predicted_path, profiled_split
from ipuscope.profiler import Report, analysis, open_report
from ipuscope.profiler.analysis import program
from ipuscope.profiler.analysis.kinds import spent_by_kind
from ipuscope.profiler.file import records
from ipuscope.profiler.report import tables
from ipuscope.viewer.figures.rebalance import predicted_lanes
from tests.synthetic import synthetic_profile


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_profile(tmp_path_factory.mktemp("parts") / "profile.pop", tiles=16)


@pytest.fixture
def report(path: Path) -> Iterator[Report]:
    with open_report(path) as report:
        yield report


def test_the_profiled_splits_path_is_that_of_its_lanes(report: Report) -> None:
    path, lanes = (
        predicted_path(report),
        predicted_lanes(Costs.from_report(report), profiled_split(report)),
    )
    for ours, theirs in zip(path, (lanes.path.ipu, lanes.path.start, lanes.path.end), strict=True):
        assert ours.tolist() == theirs.tolist()


def test_windows_that_cut_a_run_are_summed_up_from_its_steps(report: Report) -> None:
    first, last = report.trace.extent(0, [0, 1], 0)
    for window in ((first + 100, last), (first, last - 100)):
        short = spent_by_kind(report, 0, [0, 1], 0, window)
        assert sorted(short.by_kind()) == sorted(report.trace.spent(0, [0, 1], 0, window).by_kind())
    for ipus in ([0], [1], [0, 1], []):
        whole = spent_by_kind(report, 0, ipus, 0, (first, last))
        assert sorted(whole.by_kind()) == sorted(report.trace.spent(0, ipus, 0).by_kind())


def test_the_top_of_the_program_is_what_is_seen_first(report: Report) -> None:
    every, top = program.nodes(report), program.top_nodes(report)
    assert 0 < len(top.id) <= every.count == len(report.program)
    assert top.id.tolist() == every.id[every.depth <= program.OPENED].tolist()


def test_names_are_read_alone_while_they_are_few(path: Path, report: Report) -> None:
    with open_report(path) as other:
        rows = np.array([3, 0, 3, 2])
        names = report.file.names_at(records.Variable, rows).tolist()
        assert not report.file.table(records.Variable).has("name")
        assert names == other.file.table(records.Variable)["name"][rows].tolist()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "_FEW_NAMES", 6)
            patch.setattr(tables, "_FEW_OF_NAMES", 1 << 30)
            assert report.file.names_at(records.Variable, rows).tolist() == names
        assert report.file.table(records.Variable).has("name")
        ops = report.file.op_names(np.array([-1, 1, 0, 1 << 40])).tolist()
        assert ops == ["", *other.ops["name"][[1, 0]].tolist(), ""]


@pytest.mark.parametrize("tile", [None, 0, 5, -1])
def test_bytes_of_an_ipus_variables(path: Path, report: Report, tile: int | None) -> None:
    with open_report(path) as other:
        for ipu in range(2):
            on = analysis.fullest(other, ipu) if tile == -1 else tile
            size, ids = (
                report.usage.bytes_of_variables(ipu, on),
                report.usage.variables_of(ipu)["id"],
            )
            of = [other.usage.variable_tiles(id) for id in ids.tolist()]
            assert size.tolist() == [int(one.sum() if on is None else one[on]) for one in of]
            assert (other.variables.loc[ids, "ipu"] == ipu).all()
            assert len(ids) == (other.variables["ipu"] == ipu).sum()
