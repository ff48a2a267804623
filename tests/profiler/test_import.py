"""Profiles through the vendor's object model: ours through our own, and others by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import profiled_split
from ipuscope.planner.search.split_search import Split, quickest
from ipuscope.profiler import Report, analysis, open_report, pva
from ipuscope.profiler.analysis.critical_path import critical_path
from ipuscope.profiler.errors import ProfileError
from ipuscope.profiler.file import records
from ipuscope.profiler.pva.import_blocks import Links, name_blocks
from ipuscope.profiler.pva.import_profile import import_profile
from ipuscope.reports.cli import COMMANDS, main
from tests.synthetic import synthetic_profile
from tools.round_trip import compiled, round_trip


def through(path: Path, folder: Path) -> tuple[Report, Report]:
    import_profile(pva, path, folder / "imported.pop")
    return open_report(path), open_report(folder / "imported.pop")


def kinds(report: Report) -> np.ndarray:
    """Cycles by kind of every run and IPU; libpva counts a wait as time of an external sync."""
    both = []
    for run in range(len(report.runs)):
        frame = report.cycle_proportions(run)
        frame["external sync"] += frame.pop("idle")
        both.append(frame.to_numpy())
    return np.stack(both)


def test_a_profile_of_one_ipu_comes_back_step_by_step(tmp_path: Path) -> None:
    own, other = through(synthetic_profile(tmp_path / "one.pop", ipus=1), tmp_path)
    assert own.target == other.target
    named = pva.openReport(own.path).compilation.livenessProgramSteps
    steps = other.program_steps().sort_values("step")
    assert steps["name"].tolist() == [step.program.name for step in named]
    assert steps["type"].tolist() == [step.program.type.name for step in named]
    compute = ["step", "tile_balance", "active_tiles"]
    keys = own.program_steps()["type"] == "OnTileExecute"
    again = other.program_steps()["type"] == "OnTileExecute"
    assert np.array_equal(
        own.program_steps()[keys][compute[1:]], other.program_steps()[again][compute[1:]]
    )
    assert np.array_equal(own.liveness_map(0), other.liveness_map(0))
    assert np.array_equal(kinds(own), kinds(other))


def test_a_pipelines_memory_operators_and_time_come_back(tmp_path: Path) -> None:
    own, other = through(synthetic_profile(tmp_path / "four.pop"), tmp_path)
    assert own.target == other.target
    for ipu in range(4):
        columns = ["total_excluding_gaps", "always_live", "not_always_live_peak"]
        assert np.array_equal(own.tiles(ipu)[columns], other.tiles(ipu)[columns])
    first, second = (one.ops.set_index("popart_name").sort_index() for one in (own, other))
    for column in ("direction", "module", "file", "line", "ipu", "cycles"):
        assert first[column].to_dict() == second[column].to_dict(), column
    assert own.runs["cycles"].tolist() == other.runs["cycles"].tolist()
    assert np.array_equal(kinds(own), kinds(other))


def test_the_engines_profile_comes_back(demo: Path, tmp_path: Path) -> None:
    assert not round_trip(demo / "inference" / "profile.pop", tmp_path)


# a convolution, a gather over a graph: the others by ``python -m tools.round_trip``
@pytest.mark.parametrize(("name", "training"), [("gnn", True), ("resnet-18", False)])
def test_a_model_of_the_zoo_comes_back(name: str, training: bool, tmp_path: Path) -> None:
    assert not round_trip(compiled(name, training, tmp_path), tmp_path)


class Thing(SimpleNamespace):
    """An object that is compared by identity, as the vendor's."""

    __hash__ = object.__hash__


def by_hand(**more: Any) -> SimpleNamespace:
    """A module as the vendor's, of two IPUs with two tiles each, with what is asked for."""
    add = Thing(
        type=SimpleNamespace(name="OnTileExecute"),
        name="add/Op/Add",
        computeSet=SimpleNamespace(estimatedCyclesByTile=[3, 5, 0, 7]),
    )
    sync = Thing(type=SimpleNamespace(name="SyncAns"), name="External")
    target = SimpleNamespace(numIPUs=2, numReplicas=1, tilesPerIpu=2, bytesPerTile=1024)
    compilation = SimpleNamespace(
        target=target,
        livenessProgramSteps=[SimpleNamespace(program=add), SimpleNamespace(program=sync)],
        **more,
    )
    return SimpleNamespace(
        __name__="pva", openReport=lambda *_: SimpleNamespace(compilation=compilation)
    )


def test_an_object_model_that_lacks_parts_leaves_them_empty(tmp_path: Path) -> None:
    tiles = [
        SimpleNamespace(memory=SimpleNamespace(alwaysLiveBytes=a, notAlwaysLiveBytes=b))
        for a, b in ((10, 1), (20, 2), (30, 3), (40, 4))
    ]
    met = import_profile(by_hand(tiles=tiles), "theirs.pop", tmp_path / "own.pop")
    with open_report(tmp_path / "own.pop") as report:
        assert report.target.ipus_per_replica == 2
        steps = report.program_steps()
        assert steps["type"].tolist() == ["OnTileExecute", "Sync"] * 2
        assert steps["cycles"].tolist() == [5, 0, 7, 0]
        assert report.tiles(1)["total_excluding_gaps"].tolist() == [33, 44]
        assert len(report.ops) == 0
        warned = " ".join(report.meta["warnings"])
        for part in ("ipusPerReplica", "execution", "loweredVariables", "OperationAnalysis"):
            assert part in warned
    assert "not there: OperationAnalysis.operations (1 times)" in met.words


def test_older_and_newer_attributes_are_both_read(tmp_path: Path) -> None:
    """Calls and copies of older profiles; ``computeset``, cycles of a step by IPU and options."""

    def part(begin: int, cycles: int) -> SimpleNamespace:
        first = SimpleNamespace(cyclesFrom=SimpleNamespace(min=begin, max=begin))
        return SimpleNamespace(cycles=cycles, activeCycles=first)

    asked = {"debug.instrument": "true", "autoReport.directory": "/home/me/secret"}
    vendor = by_hand(engineOptions=asked, tiles=[])
    compilation = vendor.openReport().compilation
    (add, sync) = (one.program for one in compilation.livenessProgramSteps)
    add.computeset = add.__dict__.pop("computeSet")
    call = Thing(type=SimpleNamespace(name="Call"), name="call/sub")
    copy = Thing(type=SimpleNamespace(name="DoExchange"), name="copy")  # without estimates
    compilation.livenessProgramSteps += [
        SimpleNamespace(program=call),
        SimpleNamespace(program=copy),
    ]
    compilation.target.ipusPerReplica, compilation.target.tilesPerReplica = 2, 4
    steps = [
        SimpleNamespace(program=add, ipus=[part(100, 6), part(100, 9)]),
        SimpleNamespace(program=sync, ipus=[part(106, 5), part(109, 2)]),
        SimpleNamespace(
            program=Thing(type=None, name="unheard of"), ipus=[part(111, 1), part(111, 1)]
        ),
        SimpleNamespace(program=call, ipus=[part(111, 4), part(111, 0)]),
    ]
    run = SimpleNamespace(steps=steps)  # without name and microseconds
    report = SimpleNamespace(compilation=compilation, execution=SimpleNamespace(runs=[run]))
    vendor.openReport = lambda *_: report
    met = import_profile(vendor, "theirs.pop", tmp_path / "own.pop")
    with open_report(tmp_path / "own.pop") as imported:
        assert imported.options["compilation.engineOptions.debug.instrument"] == "true"
        assert imported.runs["cycles"].tolist() == [15]
        spent = imported.cycle_proportions(0).set_index("ipu")
        # IPU 0 waits for 3 cycles until IPU 1 arrives, then both synchronise for 2
        assert spent[["compute", "external sync", "idle"]].to_numpy().tolist() == [
            [10, 2, 3],
            [9, 2, 4],
        ]
        path = critical_path(imported)
        assert path.groupby(["ipu", "name"], sort=False)["cycles"].sum().to_dict() == {
            (1, "add/Op/Add"): 9,
            (0, "call/sub"): 4,
            (0, "External"): 2,
        }
    import_profile(vendor, "theirs.pop", tmp_path / "sent.pop", anonymise=True)
    with open_report(tmp_path / "sent.pop") as sent:
        named = {name.rpartition(".")[2]: value for name, value in sent.options.items()}
        assert named == {"instrument": "true", "directory": "a text"}
    assert met.missing["an executed program among livenessProgramSteps"] == 2
    assert met.types["Call"] == 1


def test_variables_are_live_in_each_of_their_intervals(tmp_path: Path) -> None:
    lives = [SimpleNamespace(start=0, end=1), SimpleNamespace(start=1, end=2)]
    piece = SimpleNamespace(name="x", bytes=8, equivalenceClass=SimpleNamespace(steps=lives))
    always = SimpleNamespace(name="w", bytes=4, alwaysLive=True)
    held = {0: [piece], 1: [piece, always], 2: [], 3: [always]}
    lowered = SimpleNamespace(forTile=lambda tile: held[tile])
    import_profile(by_hand(loweredVariables=lowered), "theirs.pop", tmp_path / "own.pop")
    with open_report(tmp_path / "own.pop") as report:
        assert report.liveness_map(0).tolist() == [[8, 12], [8, 12]]
        assert report.liveness_map(1).tolist() == [[0, 4], [0, 4]]


def test_host_events_come_with_those_inside_them(tmp_path: Path) -> None:
    inner = SimpleNamespace(label="load", timestamp=12, duration=3, children=list)
    outer = SimpleNamespace(label="step", timestamp=10, duration=9, children=lambda: [inner])
    process = SimpleNamespace(pid=7, threads=[SimpleNamespace(tid=8, events=[outer])])
    vendor = by_hand(tiles=[])
    vendor.openTrace = lambda path: SimpleNamespace(processes=[process])
    import_profile(vendor, "theirs.pop", tmp_path / "own.pop", trace="host.pvti")
    with open_report(tmp_path / "own.pop") as report:
        events = report.host_events[["label", "parent", "start_us", "end_us"]]
        assert events.to_numpy().tolist() == [["step", -1, 10, 19], ["load", 0, 12, 15]]


def test_what_the_vendors_reader_refuses_is_a_clear_error(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("unsupported version")

    vendor = SimpleNamespace(__name__="pva", openReport=refuse)
    with pytest.raises(ProfileError, match="pva cannot open it: unsupported version"):
        import_profile(vendor, "theirs.pop", tmp_path / "own.pop")
    assert not (tmp_path / "own.pop").exists()


def endless() -> Any:
    while True:
        yield SimpleNamespace()


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        ("target.numIPUs", "two", "pva reads what was not expected: .* .import_profile.py:"),
        ("target.numIPUs", None, "pva reads what was not expected"),
        ("target.tilesPerIpu", 10**9, "target.tiles_per_ipu has 1000000000, which is not within"),
        ("target.ipusPerReplica", 10**12, "target.ipus_per_replica has 1000000000000"),
        ("target.bytesPerTile", 1 << 70, "pva reads what was not expected: Python int too large"),
        ("livenessProgramSteps", [3], "'int' object has no attribute 'program'"),
        (
            "tiles",
            [SimpleNamespace(memory=SimpleNamespace(alwaysLiveBytes=-1))],
            "variables.bytes has -1",
        ),
    ],
)
def test_what_is_not_as_expected_is_one_line_and_no_file(
    where: str, value: object, words: str, tmp_path: Path
) -> None:
    theirs = by_hand()
    compilation = theirs.openReport().compilation
    *path, name = where.split(".")
    owner = compilation
    for one in path:
        owner = getattr(owner, one)
    setattr(owner, name, value)
    with pytest.raises(ProfileError, match=words) as raised:
        import_profile(theirs, "theirs.pop", tmp_path / "own.pop")
    assert raised.value.path == "theirs.pop"
    assert "docs/how-to/real-profiles.md" in raised.value.remedy
    assert [*tmp_path.glob("own.pop*.p*")] == [] and not (tmp_path / "own.pop").exists()
    assert not (tmp_path / "own.pop.partial").exists()


def test_lists_without_an_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipuscope.profiler.pva.import_profile.MOST_OBJECTS", 1000)
    theirs = by_hand()
    theirs.openReport().compilation.livenessProgramSteps = (
        SimpleNamespace(program=one) for one in endless()
    )
    with pytest.raises(ProfileError, match="more than 1,000 livenessProgramSteps"):
        import_profile(theirs, "theirs.pop", tmp_path / "own.pop")


def test_a_profile_without_a_run_has_no_path_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose steps were not recorded is none, too."""
    theirs = by_hand()
    report = theirs.openReport()
    report.execution = SimpleNamespace(runs=[SimpleNamespace(steps=[]), SimpleNamespace()])
    theirs.openReport = lambda *_: report
    path = str(tmp_path / "own.pop")
    import_profile(theirs, "theirs.pop", path)
    assert main(["summary", path]) == main(["pod", "--by", "memory", path]) == 0
    capsys.readouterr()
    for command in ("why", "pod"):
        assert main([command, path]) == 1
        assert "neither a run nor a schedule" in capsys.readouterr().err


def test_measured_operators_stand_beside_modelled_ones_by_class(tmp_path: Path) -> None:
    own, measured = through(synthetic_profile(tmp_path / "a.pop", ipus=2), tmp_path)
    same = analysis.compare_classes(measured, own)
    assert (same["error"] == 0).all() and len(same) > 1
    with open_report(synthetic_profile(tmp_path / "b.pop", ipus=2, seed=1)) as modelled:
        rows = analysis.compare_classes(measured, modelled).set_index("kind")
        alike = modelled.ops["aten"].str.startswith("aten.addmm.")
        assert rows.loc["aten.addmm", "modelled"] == modelled.ops["cycles"][alike].sum()
        assert rows.loc["aten.addmm", "measured"] == own.ops["cycles"][alike].sum()
    whole = rows.loc["all"]
    assert whole["operators"] == rows["operators"].drop("all").sum()
    assert whole["error"] == whole["modelled"] / whole["measured"] - 1 != 0


def test_an_imported_run_is_not_compared_with_an_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net" / "training").mkdir(parents=True)
    own, other = through(synthetic_profile(tmp_path / "net/training/profile.pop"), tmp_path)
    assert other.meta["model"] == "net"
    ops = analysis.compare_ops(other, own)
    assert len(ops) == len(own.ops) and not ops["difference"].any()
    assert not len(analysis.compare_waits(other, own))
    sums = analysis.compare(other, own).set_index("what")
    assert sums.loc["a run", "a"] > 0 and np.isnan(sums.loc["a run", "b"])
    reasons = analysis.not_comparable(other, own)
    assert "imported" in reasons["a run"] and "fullest tile" not in reasons
    imported = str(tmp_path / "imported.pop")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pva", pva)
        assert main(["import", imported, "-o", imported]) == 1
    assert "is the profile itself" in capsys.readouterr().err


# what the vendor's model lacks is said by these; the others answer
_REFUSE = ("insights", "advise", "pipeline")


def test_every_subcommand_answers_for_an_imported_profile_or_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = synthetic_profile(tmp_path / "own.pop")
    import_profile(pva, own, tmp_path / "imported.pop")
    path, out = str(tmp_path / "imported.pop"), ["-o", str(tmp_path / "page.html")]
    more = {"compare": [str(own)], "html": out, "export": ["--format", "perfetto", *out]}
    for name in set(COMMANDS) - {"import", "view", "completion", "query"}:
        code = main([name, path, *more.get(name, [])])
        said = capsys.readouterr()
        assert code == (1 if name in _REFUSE else 0), (name, said.err)
        assert ("not in this profile" in said.err) == (name in _REFUSE), name
        assert "0 micro-batches" not in said.out + said.err, name


def split_of(report: Report) -> tuple[Costs, Split]:
    costs = Costs.from_report(report)
    return costs, quickest(costs)


def test_an_imported_profile_proposes_the_split_of_its_original(demo: Path, tmp_path: Path) -> None:
    own, other = through(demo / "training" / "profile.pop", tmp_path)
    (costs, split), (again, proposed) = split_of(own), split_of(other)
    assert again.names == costs.names
    assert again.memory.saved_tensors.any() and again.memory.state.any()
    assert proposed.prediction.assignment == split.prediction.assignment
    assert proposed.prediction.total == split.prediction.total
    measured = profiled_split(other).total * int(other.options["deviceIterations"])
    assert measured == other.runs["cycles"].iloc[0]


def test_blocks_that_nothing_states_are_found_by_module_paths(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_links = Links.of
    monkeypatch.setattr(Links, "of", lambda fields: replace(own_links(fields), block=""))
    own, other = through(demo / "training" / "profile.pop", tmp_path)
    costs, again = Costs.from_report(own), Costs.from_report(other)
    assert again.names == ("layer1", "layer2", "layer3", "layer4", "after layer4")  # the loss
    assert again.stage.tolist() == [0, 1, 2, 3, 3]
    for name in ("forward", "backward", "update"):
        of_blocks = getattr(again.cycles, name)
        assert [*of_blocks[:3], of_blocks[3:].sum()] == getattr(costs.cycles, name).tolist(), name
    assert profiled_split(other).total == profiled_split(own).total


def test_blocks_are_the_numbered_parts_of_module_paths() -> None:
    def op(number: int, module: str, direction: str = "forward") -> records.Op:
        return records.Op(
            *(number, f"{module}/op", "", direction, -1, -1, 0, module, "", 0, -1, 0, 0, 0, "")
        )

    modules = ["embed", "encoder.layer.0.query", "", "encoder.layer.1.query", "pooler.dense"]
    ops = [op(at, module) for at, module in enumerate(modules)]
    ops.append(op(5, "", "backward"))
    links = [Links(outputs=(f"t{at}",)) for at in range(5)]
    links.append(Links(inputs=("gradient", "t3", "encoder.layer.1.query.weight")))
    names = ["before encoder.layer.0", "encoder.layer.0", "encoder.layer.1"]
    assert name_blocks(ops, links) == [*names, "after encoder.layer.1"]
    assert [op.block for op in ops] == [0, 1, 1, 2, 3, 2]
    assert name_blocks([op(0, "net.7.conv"), op(1, "head")], links) == []


def test_rebalance_says_why_an_imported_profile_has_no_blocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_profile(by_hand(tiles=[]), "theirs.pop", tmp_path / "own.pop")
    assert main(["rebalance", str(tmp_path / "own.pop")]) == 1
    assert "no Blocks: debug.cbor states none" in capsys.readouterr().err
