"""The rebalancer: predictions against a second compile, the best split against brute force."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ipu_exec
from ipu_exec import PipelinedExecution, ShardedExecution, Stage
from ipuscope.planner.advice import advise
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.mappings.mapping import Key
from ipuscope.planner.mappings.priced import Priced
from ipuscope.planner.predict.memory_verdict import Answer
from ipuscope.planner.predict.what_if import Assignment, placement_file, what_if
from ipuscope.planner.search.split_search import best_split
from ipuscope.profiler import Report, open_report
from ipuscope.reports.cli.rebalance import best
from tests.models import Mnist, mnist_batch
from tests.planner.rebalance.cases import deep
from tests.synthetic import synthetic_profile


def profiled(
    folder: Path,
    starts: tuple[int, ...],
    accumulation: int = 10,
    strategy: type = PipelinedExecution,
    choice: Choice = Choice(True, False),  # noqa: B008
    ipus: tuple[int, ...] | None = None,
    max_grad_norm: float = float("inf"),
    replicas: int = 1,
) -> Report:
    """Split the example's network as given, compile it and run it once."""
    names = ["B1", "B2", "B3", "B4"]
    bounds = [*starts, 4]
    stages = [
        Stage(*names[a:b]).ipu(k)
        for k, (a, b) in zip(ipus or range(len(starts)), itertools.pairwise(bounds), strict=True)
    ]
    options = ipu_exec.Options(autoreport=True, autoreport_dir=folder).showCompilationProgressBar(
        False
    )
    options.deviceIterations(1).Training.gradientAccumulation(accumulation)
    options.setExecutionStrategy(strategy(*stages)).autoRoundNumIPUs(True)
    options.replicationFactor(replicas)
    options._Popart.set("autoRecomputation", 3 if choice.recompute else 0)
    if choice.offload:
        off_chip = ipu_exec.TensorLocationSettings().useOnChipStorage(False)
        off_chip.useReplicatedTensorSharding(replicas > 1)
        options.TensorLocations.setOptimizerLocation(off_chip)
    model = Mnist()
    optimizer = ipu_exec.optim.AdamW(model.parameters(), max_grad_norm=max_grad_norm)
    training = ipu_exec.trainingModel(model, options, optimizer)
    training(*mnist_batch(8 * accumulation * replicas))
    return open_report(folder)


def cycles(report: Report) -> int:
    return int(report.runs["cycles"].iloc[0] // report.runs["iterations"].iloc[0])


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return profiled(tmp_path_factory.mktemp("four"), (0, 1, 2, 3))


def test_what_is_there_is_predicted_as_it_is(four: Report) -> None:
    costs = Costs.from_report(four)
    prediction = what_if(costs, Assignment.of(costs.stage.tolist()))
    assert prediction.total == cycles(four)  # to the cycle, stash included
    assert prediction.problems == ()
    for ipu, size in enumerate(prediction.fullest):
        assert size == four.tiles(ipu)["total"].max()
    assert all(one.exact and one.answer is Answer.FITS for one in prediction.memory)
    stages = four.stages
    assert prediction.stage_cycles == pytest.approx(stages["cycles"].to_numpy(), rel=0.005)


class Late(torch.nn.Module):
    """The first Block begins behind an operator on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(64, 512), torch.nn.Linear(512, 64)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = torch.cos(x)
        with ipu_exec.Block("one"):
            x = torch.relu(self.one(x))
        with ipu_exec.Block("two"):
            return torch.nn.functional.mse_loss(self.two(x), target)


def test_one_stage_that_sends_activations_off_the_chip_is_not_priced(
    four: Report,
) -> None:
    """A pipeline keeps them there, whatever the options say; one stage took ten times as long."""
    place = "TensorLocations.locationActivation.onChipStorage"
    again = open_report(four.path)
    again.options[place] = False
    costs = Costs.from_report(again)
    assert "its cycles are unknown" in "".join(what_if(costs, Assignment((0,), (0,))).problems)
    assert not what_if(costs, Assignment((0, 2), (0, 1))).problems
    splits = [one.levers.split for one in advise(again).every if one.levers.split]
    assert splits and all(len(split.starts) > 1 for split in splits)
    of_a_plan = Priced.from_report(again, Key(1, 4)).costs  # what leads there is compiled
    assert not what_if(of_a_plan, Assignment((0,), (0,))).problems


def test_what_is_in_no_block_is_predicted_too(tmp_path: Path) -> None:
    """A last stage that shall recompute, but has nothing to run again, is as the others."""
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    options.showCompilationProgressBar(False).Training.gradientAccumulation(8)
    options.setExecutionStrategy(PipelinedExecution(Stage("one").ipu(0), Stage("two").ipu(1)))
    options._Popart.set("autoRecomputation", 0)
    model = Late()
    training = ipu_exec.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    training.compile(torch.randn(8 * 16, 64), torch.randn(8 * 16, 64))
    report = open_report(tmp_path)
    apart = report.ops[(report.ops["block"] < 0) & (report.ops["direction"] == "forward")]
    assert apart["cycles"].sum() > 0.01 * cycles(report) / 8
    costs = Costs.from_report(report)
    assert what_if(costs, Assignment((0, 1), (0, 1))).total == cycles(report)
    report.meta["choices"] = [[False, False], [True, False]]
    mixed = Costs._read(report)
    assert not mixed.choices and not mixed.recompute
    assert best_split(mixed, 2).prediction.total <= cycles(report)


class Marked(torch.nn.Module):
    """Blocks with a checkpoint in each but the last, which has nothing to run again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(4))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for number in range(2):
            with ipu_exec.Block(f"B{number}"):
                x = torch.cos(torch.tanh(self.layers[2 * number](x)))
                x = ipu_exec.recomputationCheckpoint(torch.cos(self.layers[2 * number + 1](x)))
        with ipu_exec.Block("loss"):
            return torch.nn.functional.mse_loss(x, target)


def test_a_last_stage_runs_again_what_the_profiles_had_not(tmp_path: Path) -> None:
    """As in what a plan compiles for costs, whose last stage may be a head without checkpoints."""

    def compiled(name: str, *stages: tuple[str, ...]) -> Report:
        file = tmp_path / f"{name}.json"
        again = [k == len(stages) - 1 for k in range(len(stages))]
        written = [
            {"ipu": k, "blocks": blocks, "recompute": again[k]} for k, blocks in enumerate(stages)
        ]
        file.write_text(
            json.dumps({"format": "ipuscope placement", "version": 2, "stages": written})
        )
        options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path / name)
        options.showCompilationProgressBar(False).Training.gradientAccumulation(8)
        model = Marked()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        training = ipu_exec.trainingModel(model, options.loadPlacement(file), sgd)
        training.compile(torch.randn(8 * 16, 256), torch.randn(8 * 16, 256))
        return open_report(tmp_path / name)

    costs = Costs.from_report(compiled("three", ("B0",), ("B1",), ("loss",)))
    two = compiled("two", ("B0",), ("B1", "loss"))
    assert (two.stages["recompute_cycles"] > 0).tolist() == [False, True]
    ways = Choice(False, False), Choice(True, False)
    assert what_if(costs, Assignment((0, 1), (0, 1), ways)).total == pytest.approx(
        cycles(two), rel=0.005
    )


@pytest.mark.parametrize("starts", [(0, 1, 3), (0, 3), (0,)])
def test_another_split_is_what_a_second_compile_gives(
    four: Report, tmp_path: Path, starts: tuple[int, ...]
) -> None:
    prediction = what_if(Costs.from_report(four), Assignment(starts, tuple(range(len(starts)))))
    obtained = profiled(tmp_path, starts)
    assert prediction.total == cycles(obtained)  # with (0,) inputs of two Blocks come in one copy
    phases = obtained.pipeline_cycles(0, 0)
    assert list(prediction.schedule.phases) == phases["phase"].tolist()


def test_clipping_by_the_norm_of_all_gradients_is_what_a_second_compile_gives(
    tmp_path: Path,
) -> None:
    splits: tuple[tuple[int, ...], ...] = ((0,), (0, 2))
    one, two = (profiled(tmp_path / str(len(s)), s, max_grad_norm=1.0) for s in splits)
    for before, after, starts in ((one, two, splits[1]), (two, one, splits[0]), (two, two, (0, 2))):
        costs = Costs.from_report(before)
        prediction = what_if(costs, Assignment(starts, tuple(range(len(starts)))))
        assert prediction.total == pytest.approx(cycles(after), rel=0.02)
        said = any("norm of all gradients" in note for note in prediction.notes)
        assert said == (before is one)
    costs = Costs.from_report(two)
    exactly = what_if(costs, Assignment(splits[1], (0, 1))).total
    assert exactly == pytest.approx(cycles(two), rel=0.001)
    # the exchanges are a part of no Block: on one IPU they are gone
    exchanged = 2 * (costs.machine.sync + costs.machine.link_latency)
    assert costs.meeting is not None and costs.meeting >= exchanged
    assert Costs.from_report(one).meeting == exchanged
    whole = Costs.from_report(one).cycles.update.sum()
    assert costs.cycles.update.sum() == pytest.approx(whole, rel=0.001)


def test_clipping_is_counted_where_replicas_update_their_parts_and_a_stage_comes_back(
    tmp_path: Path,
) -> None:
    off_chip = Choice(True, True)
    report = profiled(
        tmp_path, (0, 1, 2), choice=off_chip, ipus=(0, 1, 0), max_grad_norm=1.0, replicas=2
    )
    prediction = what_if(Costs.from_report(report), Assignment((0, 1, 2), (0, 1, 0)))
    assert prediction.total == cycles(report)


@pytest.mark.parametrize("choice", [Choice(False, False), Choice(True, True), Choice(False, True)])
def test_another_way_to_save_memory_is_what_a_second_compile_gives(
    four: Report, tmp_path: Path, choice: Choice
) -> None:
    prediction = what_if(Costs.from_report(four), Assignment((0, 2), (0, 1), (choice,) * 2))
    obtained = profiled(tmp_path, (0, 2), choice=choice)
    assert prediction.total == pytest.approx(cycles(obtained), rel=0.005)
    for ipu, size in enumerate(prediction.fullest):
        assert size == pytest.approx(obtained.tiles(ipu)["total"].max(), rel=0.03)
    # And the other way round, from a profile that has it.
    there = what_if(Costs.from_report(obtained), Assignment((0, 2), (0, 1)))
    assert there.total == cycles(obtained)


@pytest.mark.parametrize(
    ("starts", "ipus"),
    [((0, 1, 2, 3), (0, 1, 0, 1)), ((0, 1, 3), (0, 1, 0))],
)
def test_a_list_that_comes_back_to_an_ipu_is_what_a_second_compile_gives(
    four: Report, tmp_path: Path, starts: tuple[int, ...], ipus: tuple[int, ...]
) -> None:
    prediction = what_if(Costs.from_report(four), Assignment(starts, ipus))
    obtained = profiled(tmp_path, starts, ipus=ipus)
    assert prediction.total == pytest.approx(cycles(obtained), rel=0.005)
    for ipu, size in enumerate(prediction.fullest):
        assert size == pytest.approx(obtained.tiles(ipu)["total"].max(), rel=0.03)
    there = best(Costs.from_report(obtained))
    assert set(there.prediction.assignment.ipus) <= set(ipus)


def test_a_stage_of_which_nothing_trains_stashes_nothing_and_runs_nothing_again(
    tmp_path: Path,
) -> None:
    """Beside a Block that trains, the frozen ones run again; alone they have no backward."""
    sizes = dict.fromkeys("ABCDE", 1)
    mixed, alone = (
        deep(tmp_path / name, sizes, stages, frozen=2)
        for name, stages in {
            "mixed": [("A", "B", "C"), ("D", "E")],
            "alone": [("A", "B"), ("C",), ("D",), ("E",)],
        }.items()
    )
    costs = Costs.from_report(mixed)
    split = Assignment((0, 2, 3, 4), (0, 1, 2, 3))
    prediction = what_if(costs, split)
    assert costs.recompute and costs.again_cycles(0, 2) > costs.cycles.again[:2].sum() > 0
    assert prediction.backward[0] == costs.stash_bytes(0, 1, True) == 0
    assert prediction.total == pytest.approx(cycles(alone), rel=0.003)
    assert what_if(Costs.from_report(alone), split).total == cycles(alone)


def test_a_model_of_one_stage_predicts_a_pipeline(
    two: Report, four: Report, tmp_path: Path
) -> None:
    """Without a pipeline a profile has no stash or sync: they are the machine's constants."""
    costs = Costs.from_report(profiled(tmp_path, (0,)))
    assert costs.pipelined and costs.recompute
    for starts, obtained in (((0, 2), two), ((0, 1, 2, 3), four)):
        prediction = what_if(costs, Assignment(starts, tuple(range(len(starts)))))
        assert prediction.total == pytest.approx(cycles(obtained), rel=0.01)


def test_sharded_costs_are_predicted_too(tmp_path: Path) -> None:
    report = profiled(tmp_path / "a", (0, 1, 2, 3), 4, ShardedExecution)
    costs = Costs.from_report(report)
    assert not costs.pipelined
    assert what_if(costs, Assignment.of(costs.stage.tolist())).total == pytest.approx(
        cycles(report), rel=0.03
    )


def test_the_best_split_is_not_worse_than_any_other(four: Report) -> None:
    costs = Costs.from_report(four)
    for stages in (1, 2, 3, 4):
        split = best_split(costs, stages)
        others = [
            what_if(costs, Assignment((0, *cuts), tuple(range(stages)))).total
            for cuts in itertools.combinations(range(1, 4), stages - 1)
        ]
        assert split.prediction.total == min(others)
        assert split.lower_bound <= split.least_bottleneck <= split.bottleneck


def test_a_split_that_does_not_fit_is_not_proposed(four: Report) -> None:
    costs = Costs.from_report(four).with_tile_bytes(1000)
    with pytest.raises(ValueError, match="Block B"):
        best_split(costs, 2)
    assert any(
        "does not fit by" in words for words in what_if(costs, Assignment((0, 2), (0, 1))).problems
    )


def test_too_little_accumulation_is_said(tmp_path: Path) -> None:
    costs = Costs.from_report(
        open_report(synthetic_profile(tmp_path / "profile.pop", micro_batches=7))
    )
    short = replace(costs, micro_batches=6)
    prediction = what_if(short, Assignment.of(costs.stage.tolist()))
    assert prediction.samples_per_second == 0
    assert "at least 7" in prediction.problems[0]


@pytest.mark.parametrize("stage", [[0, 2, 2, 2], [1, 1, 1, 1], [0, 1, 0, 1]])
def test_a_wrong_assignment_is_an_error(stage: list[int]) -> None:
    with pytest.raises(ValueError, match="stages must count"):
        Assignment.of(stage)


def test_stages_and_blocks_of_a_placement_are_the_assignments(four: Report) -> None:
    costs = Costs.from_report(four)
    placement = placement_file(costs, Assignment((0, 1, 3), (0, 1, 2)))
    assert [stage["blocks"] for stage in placement["stages"]] == [["B1"], ["B2", "B3"], ["B4"]]
    assert [name for stage in placement["stages"] for name in stage["blocks"]] == list(costs.names)


def test_a_profile_without_blocks_says_so(tmp_path: Path) -> None:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path).showCompilationProgressBar(
        False
    )
    model = torch.nn.Linear(8, 4)
    ipu_exec.inferenceModel(model, options)(torch.randn(2, 8))
    with pytest.raises(ValueError, match="no Blocks"):
        Costs.from_report(open_report(tmp_path))


class _WithLogits(torch.nn.Module):
    """Large outputs, and a table whose update takes more room than anything before it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Embedding(400_000, 64)
        self.head = torch.nn.Linear(64, 30_000)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with ipu_exec.Block("body"):
            x = self.body(x)
        with ipu_exec.Block("head"):
            logits = self.head(x)
            loss = torch.nn.functional.cross_entropy(logits, labels)
        return logits, loss


def test_outputs_that_wait_for_the_host_take_room_while_the_backward_runs(tmp_path: Path) -> None:
    def compiled(*stages: Stage) -> Report:
        folder = tmp_path / str(len(stages))
        options = ipu_exec.Options(autoreport=True, autoreport_dir=folder)
        options.showCompilationProgressBar(False).Training.gradientAccumulation(4)
        options.setExecutionStrategy(PipelinedExecution(*stages))
        model = _WithLogits()
        adam = ipu_exec.optim.AdamW(model.parameters())
        training = ipu_exec.trainingModel(model, options, adam)
        training.compile(torch.randint(400_000, (2048,)), torch.randint(30_000, (2048,)))
        return open_report(folder)

    together = compiled(Stage("body", "head").ipu(0))
    prediction = what_if(Costs.from_report(together), Assignment((0, 1), (0, 1)))
    apart = compiled(Stage("body").ipu(0), Stage("head").ipu(1))
    obtained = apart.tiles(1)["total"].max()
    output = 512 * 30_000 * 4 // apart.target.tiles_per_ipu
    assert prediction.fullest[1] == pytest.approx(obtained, rel=0.03)
    assert output > 0.06 * obtained  # else the test would not see that one is missing
