"""A weight that two Blocks read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ipu_exec
from ipu_exec import PipelinedExecution, Stage
from ipuscope.planner.costs.estimates import Sizes, estimated, variables_alike
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import passing_through
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.planner.search.split_search import best_split
from ipuscope.profiler import Report, open_report
from ipuscope.reports.cli import main as ipu_report
from tests.models import TiedWords
from tests.synthetic import synthetic_profile


def tied(folder: Path, words: int = 64, head: int = 1) -> Report:
    model = TiedWords(words, 32, (0, 1, 1, head))
    options = ipu_exec.Options(
        autoreport=True, autoreport_dir=str(folder)
    ).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    names = (
        [("words",), ("layer0", "layer1", "head")]
        if head
        else [("words",), ("layer0", "layer1"), ("head",)]
    )
    stages = [Stage(*blocks).ipu(k % 2) for k, blocks in enumerate(names)]
    options.setExecutionStrategy(PipelinedExecution(*stages))
    executor = ipu_exec.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    executor(*(torch.randint(0, words, (8 * 4, 8)) for _ in range(2)))
    return open_report(folder / "training")


def test_a_tied_weight_travels_only_to_another_ipu(tmp_path: Path) -> None:
    apart, home = tied(tmp_path / "apart", 4096, 1), tied(tmp_path / "home", 4096, 0)
    splits = Assignment((0, 1), (0, 1)), Assignment((0, 1, 3), (0, 1, 0))
    for profiled in (apart, home):
        costs = Costs.from_report(profiled)
        assert costs.cuts.ties.nbytes == (4096 * 32 * 4,)
        for split, obtained in zip(splits, (apart, home), strict=True):
            assert what_if(costs, split).total == pytest.approx(
                int(obtained.runs["cycles"].iloc[0]), rel=0.01
            )
        spared = costs.cuts.crossing((0, 1, 3), (0, 1, 0))
        assert [int(way[1]) for way in spared] == [
            4 * 8 * 32 * 4
        ] * 2  # the activation and its gradient


def test_a_layer_that_runs_thrice_on_its_ipu_does_not_travel(tmp_path: Path) -> None:
    class Repeated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.even, self.odd = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for number in range(6):
                with ipu_exec.Block(f"pass{number}"):
                    x = torch.relu((self.odd if number % 2 else self.even)(x))
                    loss = (x**2).sum()
            return ipu_exec.identity_loss(loss, reduction="none")

    options = ipu_exec.Options(autoreport=True, autoreport_dir=str(tmp_path))
    options.showCompilationProgressBar(False).Training.gradientAccumulation(16)
    stages = [Stage(f"pass{number}").ipu(number % 2) for number in range(6)]
    options.setExecutionStrategy(PipelinedExecution(*stages))
    model = Repeated()
    executor = ipu_exec.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    executor(torch.rand(16 * 4, 64))
    with open_report(tmp_path / "training") as report:
        costs = Costs.from_report(report)
        obtained = int(report.runs["cycles"].iloc[0])
    assert set(costs.cuts.ties.blocks) == {(0, 2, 4), (1, 3, 5)}
    present = Assignment(tuple(range(6)), (0, 1) * 3)
    crossed = [ways[:5].tolist() for ways in costs.cuts.crossing(present.starts, present.ipus)]
    assert crossed == [[4 * 64 * 4] * 5] * 2  # activations and their gradients, no weight
    assert what_if(costs, present).total == pytest.approx(obtained, rel=1e-3)
    # Onto other IPUs a weight travels over each cut once, however many read it there.
    ahead, _ = costs.cuts.crossing((0, 1, 3), (0, 1, 2))
    assert ahead[2] == 4 * 64 * 4 + sum(costs.cuts.ties.nbytes)


@pytest.mark.parametrize("both", [False, True])
def test_an_activation_does_not_travel_back_to_the_ipu_that_made_it(
    tmp_path: Path, both: bool
) -> None:
    """It travels to an IPU between that reads it as well, and to another one over every cut."""

    class Skipping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with ipu_exec.Block("first"):
                first = self.layers[0](x)
                handed = first if both else torch.tanh(first)
            with ipu_exec.Block("second"):
                second = torch.tanh(self.layers[1](handed))
            with ipu_exec.Block("third"):
                loss = (self.layers[2](second) * first).sum()
                return ipu_exec.identity_loss(loss, reduction="none")

    def compiled(name: str, ipus: tuple[int, ...]) -> Report:
        options = ipu_exec.Options(autoreport=True, autoreport_dir=str(tmp_path / name))
        options.showCompilationProgressBar(False).Training.gradientAccumulation(16)
        stages = zip(("first", "second", "third"), ipus, strict=True)
        options.setExecutionStrategy(PipelinedExecution(*(Stage(b).ipu(i) for b, i in stages)))
        model = Skipping()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        ipu_exec.trainingModel(model, options.autoRoundNumIPUs(True), sgd)(torch.rand(16 * 4, 64))
        return open_report(tmp_path / name / "training")

    splits = {name: (0, 1, ipu) for name, ipu in (("home", 0), ("away", 2))}
    reports = {name: compiled(name, ipus) for name, ipus in splits.items()}
    for profiled in reports.values():
        costs = Costs.from_report(profiled)
        whole, without = (costs.cuts.crossing((0, 1, 2), ipus) for ipus in ((0, 1, 2), (0, 1, 0)))
        spared = [(one - other)[:2].tolist() for one, other in zip(whole, without, strict=True)]
        # the gradients for an activation that both read are added up on the IPU between
        assert spared == ([[0, 1024], [0, 0]] if both else [[1024, 1024]] * 2)
        for name, ipus in splits.items():
            obtained = int(reports[name].runs["cycles"].iloc[0])
            predicted = what_if(costs, Assignment((0, 1, 2), ipus)).total
            assert predicted == pytest.approx(obtained, rel=0.003)


SPLITS = {
    "home": Assignment((0, 1, 3), (0, 1, 0)),
    "away": Assignment((0, 1), (0, 1)),
    "through": Assignment((0, 1, 3), (0, 1, 2)),
}


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    """A tied head in parts, compiled in each of `SPLITS`."""
    reports = {}
    for name, split in SPLITS.items():
        folder = tmp_path_factory.mktemp(name)
        options = ipu_exec.Options().showCompilationProgressBar(False).autoRoundNumIPUs(True)
        options.enableProfiling(folder)
        options.Training.gradientAccumulation(16)
        options._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True})
        blocks = ("words", "layer0", "layer1", "head")
        stages = [Stage(*blocks[a : b + 1]) for a, b in split.spans(len(blocks))]
        for stage, ipu in zip(stages, split.ipus, strict=True):
            stage.ipu(ipu)
        options.setExecutionStrategy(PipelinedExecution(*stages))
        model = TiedWords(20_000, 64)
        model.parts = 4
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        executor = ipu_exec.trainingModel(model, options, optimiser)
        executor.compile(*(torch.randint(0, 20_000, (16 * 4, 8)) for _ in range(2)))
        reports[name] = open_report(folder / "training")
    return reports


@pytest.mark.parametrize("profiled", SPLITS)
def test_a_tied_gradient_is_added_where_the_split_has_it(
    in_parts: dict[str, Report], profiled: str
) -> None:
    """On its weight's IPU at once, and else behind its way there; whichever was profiled."""
    costs = Costs.from_report(in_parts[profiled])
    assert len(costs.tied_gradients) == 4 and costs.tied_gradients.cycles.min() > 0
    for name, split in SPLITS.items():
        cycles = int(in_parts[name].runs["cycles"].iloc[0])
        rel = 0 if name == profiled else 2e-3
        assert what_if(costs, split).total == pytest.approx(cycles, rel=rel)


@pytest.mark.parametrize("profiled", SPLITS)
def test_an_ipu_holds_what_passes_it_while_ipus_exchange(
    in_parts: dict[str, Report], profiled: str
) -> None:
    costs, compiled = Costs.from_report(in_parts[profiled]), in_parts["through"]
    table, gradients = costs.tied_bytes[0], costs.memory.carried
    variables = compiled.variables
    alone = (variables["ipu"] == 1) & variables["role"].isin(["weight", "gradient"])
    passing = variables[
        alone & variables["tensor"].isin([*costs.cuts.ties.tensors, *tied_to(costs)])
    ]
    held = sum(compiled.usage.variable_tiles(int(one)) for one in passing.index)
    assert len(passing) == 1 + 4 and (passing["stop"] - passing["start"] == 1).all()
    for name, split in SPLITS.items():
        through = passing_through(costs, split.parts(costs), split.ipus)
        assert through[1].tolist() == (held.tolist() if name == "through" else [0] * len(held))
    assert (held >= table + gradients.nbytes[gradients.tied].sum(axis=0)).all()
    # more than it holds while its own Blocks run: what-if says it to the byte
    fullest = what_if(costs, SPLITS["through"]).fullest[1]
    assert fullest == pytest.approx(int(compiled.tiles(1)["total"].max()), rel=0.03)


def test_a_tied_gradient_has_its_weights_size_whatever_the_micro_batch(
    in_parts: dict[str, Report],
) -> None:
    """Other tensors that Blocks hand on grow with the samples."""
    report = in_parts["away"]
    costs = Costs.from_report(report)
    before = costs.memory.carried
    sizes = Sizes(report, variables_alike(report))
    after = estimated(costs, sizes, False, 2.0).memory.carried
    assert (after.nbytes[before.tied] == before.nbytes[before.tied]).all()
    assert (after.nbytes[~before.tied] == 2 * before.nbytes[~before.tied]).all()
    assert 0 < before.tied.sum() < len(before)


def tied_to(costs: Costs) -> list[int]:
    return costs.tied_gradients.tensor.tolist()


def test_what_a_weight_takes_where_it_only_passes_is_said(tmp_path: Path) -> None:
    with tied(tmp_path, 4096, 0) as report:
        costs = Costs.from_report(report)
    through = what_if(costs, Assignment((0, 1, 3), (0, 1, 2))).notes
    nbytes = 2 * costs.tied_bytes.max() / 1024  # with its gradient
    assert any(f"words.weight travels through IPU 1: up to {nbytes:,.1f} KiB" in n for n in through)
    for there in (Assignment((0, 1, 3), (0, 1, 0)), Assignment((0, 1), (0, 1))):
        assert not any("travels" in note for note in what_if(costs, there).notes)


def test_a_weight_that_two_blocks_read_is_known_and_kept_together(tmp_path: Path, capsys) -> None:
    tied(tmp_path)
    costs = Costs.from_report(open_report(tmp_path / "training"))
    assert costs.names == ("words", "layer0", "layer1", "head")
    assert (costs.cuts.ties.names, costs.cuts.ties.blocks) == (("words.weight",), ((0, 3),))
    assert ipu_report(["rebalance", "--stages", "2", str(tmp_path / "training")]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "words.weight is read by words, head, which would be on different IPUs" in words
    assert (
        ipu_report(
            ["rebalance", "--stage-ipus", "0,1,0", "--together", "tied", str(tmp_path / "training")]
        )
        == 0
    )
    words = " ".join(capsys.readouterr().out.split())
    assert "different IPUs" not in words
    split = best_split(costs, ipus=(0, 1, 0), together=[[0, 3]])
    ipus = [split.prediction.assignment.ipus[k] for k in split.prediction.assignment.stage_of(4)]
    assert ipus[0] == ipus[3] == 0


def test_together_tied_needs_a_shared_weight(tmp_path: Path, capsys) -> None:
    path = synthetic_profile(tmp_path / "profile.pop")
    assert ipu_report(["rebalance", "--together", "tied", str(path)]) != 0
    assert "no weight is read by more than one Block" in capsys.readouterr().err


def test_two_weights_that_travel_are_counted_once_each(tmp_path: Path) -> None:
    class TwoTables(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = torch.nn.ModuleList(torch.nn.Embedding(12_000, 64) for _ in range(2))
            self.between = torch.nn.Linear(64, 64)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            with ipu_exec.Block("words"):
                hidden = self.tables[0](x) + self.tables[1](x)
            with ipu_exec.Block("between"):
                hidden = torch.relu(self.between(hidden)).flatten(0, -2)
            with ipu_exec.Block("head"):
                one, other = (hidden @ table.weight.t() for table in self.tables)
                loss = torch.nn.functional.cross_entropy(one + other, labels.flatten())
                return ipu_exec.identity_loss(loss, reduction="none")

    options = ipu_exec.Options().showCompilationProgressBar(False).enableProfiling(tmp_path)
    options.Training.gradientAccumulation(16)
    stages = [Stage(name).ipu(k) for k, name in enumerate(("words", "between", "head"))]
    options.autoRoundNumIPUs(True).setExecutionStrategy(PipelinedExecution(*stages))
    model = TwoTables()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = ipu_exec.trainingModel(model, options, sgd)
    executor.compile(*(torch.randint(0, 12_000, (16 * 4, 8)) for _ in range(2)))
    with open_report(tmp_path / "training") as report:
        costs = Costs.from_report(report)
    assert costs.cuts.ties.blocks == ((0, 2), (0, 2))
    # what the head's IPU really holds is nearer to the prediction than either weight's bytes
    assert abs(costs.memory.residual[2]).max() < costs.tied_bytes.max(axis=1).min()
