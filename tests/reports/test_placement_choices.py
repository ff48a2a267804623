"""Placement files say how stages save memory; runs follow them and match the prediction."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ipu_exec
from examples.models import bert
from ipu_exec.placement_file import StageChoice, load
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.split_text import parse_assignment, profiled
from ipuscope.planner.predict.what_if import Assignment, placement_file, what_if
from ipuscope.planner.search.split_search import best_split
from ipuscope.profiler import open_report
from tests.reports.test_cli import say
from tests.reports.test_rebalance import script

WAYS = ((True, True), (False, False), (True, False), (True, True))


@pytest.fixture(scope="module")
def mixed(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, each of its stages saving memory in its own way, beside its placement file."""
    folder = tmp_path_factory.mktemp("mixed")
    stages = [
        {"ipu": k, "blocks": [f"B{k + 1}"], "recompute": again, "state_off_chip": off}
        for k, (again, off) in enumerate(WAYS)
    ]
    file = {"format": "ipuscope placement", "version": 2, "stages": stages}
    (folder / "mixed.json").write_text(json.dumps(file))
    process = script("--compile-only", "--placement", folder / "mixed.json", "--autoreport", folder)
    assert process.returncode == 0, process.stderr
    return folder


def test_each_stage_does_as_the_file_says(mixed: Path) -> None:
    with open_report(mixed / "training") as report:
        again = report.stages["recompute_cycles"] > 0
        assert again.tolist() == [True, False, True, False]  # the last one has no checkpoint
        states = report.variables[report.variables["role"] == "optimiser state"]
        assert len(states)
        states = states[states["bytes"] > 16]  # a counter of steps never leaves
        stays = states.groupby("ipu")["always_live"].agg(["min", "max"])
        assert stays["min"].tolist() == stays["max"].tolist() == [int(not off) for _, off in WAYS]
        costs = Costs.from_report(report)
        assert costs.choices == tuple(Choice(*way) for way in WAYS)
        there = what_if(costs, profiled(costs))
        run = report.runs.iloc[0]
        assert there.total == pytest.approx(int(run["cycles"] // run["iterations"]), rel=0.005)
        assert all(one.exact for one in there.memory)


def test_the_file_goes_before_the_options_where_all_stages_are_alike(demo: Path) -> None:
    with open_report(demo / "training") as report:
        assert not Costs.from_report(report).offload
    with open_report(demo / "training") as report:
        report.meta["choices"] = [[True, True]] * len(report.stages)  # as a placement said
        costs = Costs.from_report(report)
        assert costs.offload and costs.recompute and not costs.choices


def test_what_if_predicts_what_the_file_gives(demo: Path, mixed: Path) -> None:
    with open_report(demo / "training") as before, open_report(mixed / "training") as after:
        costs = Costs.from_report(before)
        assignment = parse_assignment(costs.names, str(mixed / "mixed.json"), costs=costs)
        assert assignment.choices == tuple(Choice(*way) for way in WAYS)
        run = after.runs.iloc[0]
        obtained = int(run["cycles"] // run["iterations"])
        assert what_if(costs, assignment).total == pytest.approx(obtained, rel=0.005)


def test_a_chosen_promise_is_beside_what_was_compiled(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chosen.json"
    say(
        capsys,
        "rebalance",
        "--recompute",
        "choose",
        "--offload",
        "choose",
        "-o",
        path,
        demo / "training",
    )
    content = json.loads(path.read_text())
    assert any(stage["recompute"] is False for stage in content["stages"][:-1])
    process = script("--compile-only", "--placement", path, "--autoreport", tmp_path)
    assert process.returncode == 0, process.stderr

    (row,) = json.loads(say(capsys, "runs", "--json", tmp_path / "training"))[0]["runs"]
    assert row["predicted_cycles"] == content["promise"]["cycles"]
    assert row["predicted_cycles"] == pytest.approx(row["cycles"], rel=0.005)


def test_another_split_of_mixed_stages_gives_each_what_suits_it(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixed.json"
    said = say(capsys, "rebalance", "-o", path, mixed / "training")
    content = json.loads(path.read_text())
    assert "saves memory by" in said and "all in one" not in said
    with open_report(mixed / "training") as report:
        costs = Costs.from_report(report)
    alike = best_split(costs, choices=(costs.own_choice,)).prediction.total
    assert content["promise"]["cycles"] < min(alike, what_if(costs, profiled(costs)).total)
    process = script("--compile-only", "--placement", path, "--autoreport", tmp_path)
    assert process.returncode == 0, process.stderr
    (row,) = json.loads(say(capsys, "runs", "--json", tmp_path / "training"))[0]["runs"]
    assert content["promise"]["cycles"] == pytest.approx(row["cycles"], rel=0.005)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"recompute": "yes"}, "stage 0 has 'yes'"),
        ({"state_off_chip": 1}, "stage 0 has 1"),
    ],
)
def test_what_a_stage_cannot_say(tmp_path: Path, more: dict[str, object], says: str) -> None:
    path = tmp_path / "placement.json"
    stages = [{"ipu": 0, "blocks": ["A"], **more}]
    path.write_text(json.dumps({"format": "ipuscope placement", "version": 2, "stages": stages}))
    with pytest.raises(ipu_exec.Error, match=says):
        ipu_exec.Options().loadPlacement(path)


def test_proportions_of_the_file_go_before_the_scripts(tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    file = {
        "format": "ipuscope placement",
        "version": 2,
        "stages": [{"ipu": 0, "blocks": ["A"]}],
        "memory_proportion": {"0": 0.1},
    }
    path.write_text(json.dumps(file))
    assert load(path).proportions == {0: 0.1}
    assert load(path).choices == (StageChoice(),)
    file["memory_proportion"] = {"0": 2}
    path.write_text(json.dumps(file))
    with pytest.raises(ipu_exec.Error, match="between 0 and 1"):
        load(path)


def test_the_files_accumulation_goes_before_the_scripts(tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    file: dict[str, object] = {
        "format": "ipuscope placement",
        "version": 2,
        "stages": [{"ipu": 0, "blocks": ["A"]}],
        "accumulation": 24,
    }
    path.write_text(json.dumps(file))
    options = ipu_exec.Options().loadPlacement(path)
    options.Training.gradientAccumulation(8)
    assert options.Training.gradient_accumulation == 24
    file["accumulation"] = 0
    path.write_text(json.dumps(file))
    with pytest.raises(ipu_exec.Error, match="'accumulation' is a number"):
        load(path)


def test_blocks_that_move_keep_their_memory_proportion(tmp_path: Path) -> None:
    """Blocks move between IPUs with 2 % and 60 %: cycles and tiles are those of the old plans."""
    torch.manual_seed(0)
    example = bert.example(replace(bert.TINY, hidden=256, intermediate=1024))

    def compiled(options: ipu_exec.Options, folder: Path) -> Path:
        options.setAvailableMemoryProportion({"IPU0": 0.02, "IPU1": 0.6})
        options.showCompilationProgressBar(False).enableProfiling(folder)
        options.Training.gradientAccumulation(8)
        adam = ipu_exec.optim.AdamW(example.module.parameters(), lr=1e-3)
        model = ipu_exec.trainingModel(example.module, options, adam)
        model.compile(*example.inputs(8 * 8))
        model.destroy()
        return folder / "training"

    blocks = example.blocks
    strategy = ipu_exec.PipelinedExecution(
        ipu_exec.Stage(*blocks[:3]).ipu(0), ipu_exec.Stage(*blocks[3:]).ipu(1)
    )
    before = compiled(ipu_exec.Options().setExecutionStrategy(strategy), tmp_path / "before")
    file = tmp_path / "placement.json"
    with open_report(before) as report:
        costs = Costs.from_report(report)
        moved = Assignment((0, 2), (0, 1))
        content = placement_file(costs, moved)
        promised = what_if(costs, moved)
    assert content["stages"][1]["memory_proportions"] == {blocks[2]: 0.02}
    assert any(blocks[2] in note and "0.02" in note for note in promised.notes)
    file.write_text(json.dumps(content))
    after = compiled(ipu_exec.Options().loadPlacement(file), tmp_path / "after")
    with open_report(after) as report:
        obtained = Costs.from_report(report)
        assert what_if(obtained, profiled(obtained)).total == pytest.approx(
            promised.total, rel=0.005
        )
        for one in promised.memory:
            fullest = int(report.tiles(one.ipu)["total"].max())
            assert abs(one.nbytes - fullest) <= 0.03 * one.limit
        # and what comes of that profile keeps it too
        assert obtained.block_proportion(2) == 0.02
