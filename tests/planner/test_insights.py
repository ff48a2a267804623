"""The gains that insights promise, compared with a second compile of the changed model."""

from __future__ import annotations

import random
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import ipu_exec
from examples.models import build, split
from ipu_exec import OutputMode, PipelinedExecution, ShardedExecution, Stage
from ipu_exec.option_groups.engine_options import LEVERS_VARIABLE
from ipuscope.planner.advice import Advice, Basis, Levers, advise, predicted
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights import Insight, Waits, insights, lever_gains, share_accounted
from ipuscope.planner.insights.finding import accounted, fewer
from ipuscope.planner.insights.rest import rest
from ipuscope.planner.search.split_search import quickest
from ipuscope.profiler import Report, analysis, open_report, units
from ipuscope.profiler.analysis.critical_path import WAITING, critical_path, entries, path_columns
from ipuscope.profiler.enums import PipelinePhase, Role
from ipuscope.reports.cli import main
from tests.models import Mlp, Mnist, TiedWords, model_of

OFF_CHIP = ipu_exec.TensorLocationSettings().useOnChipStorage(False)
IN_PARTS = ipu_exec.TensorLocationSettings().useReplicatedTensorSharding(True)


@dataclass(frozen=True)
class Case:
    """A model and how it is compiled; an insight's ``change`` replaces some of it."""

    model: Callable[[], nn.Module]
    inputs: tuple[tuple[int, ...], ...]  # shapes of a sample; the last are labels where it trains
    names: tuple[str, ...]  # of its Blocks
    training: bool = True
    batch: int = 8
    gradientAccumulation: int = 1
    deviceIterations: int = 1
    replicas: int = 1
    strategy: type = PipelinedExecution
    starts: tuple[int, ...] = ()
    ipus: tuple[int, ...] = ()
    outputMode: str = ""
    adam: bool = True
    optimiser: str = ""

    def changed(self, change: dict[str, Any]) -> Case:
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in change.items()}
        values.pop("with", None)  # which the compile reads for itself
        if values.get("strategy") == "pipelined":
            values["strategy"] = PipelinedExecution
        return replace(self, **values)

    def compiled(self, folder: Path) -> Report:
        model = self.model()
        options = self._options(folder)
        samples = self.batch * options.batch_factor
        batch = tuple(
            torch.zeros(samples, *shape) if shape else torch.zeros(samples, dtype=torch.int64)
            for shape in self.inputs
        )
        if self.training:
            kind = ipu_exec.optim.AdamW if self.adam else ipu_exec.optim.SGD
            executor = ipu_exec.trainingModel(model, options, kind(model.parameters(), lr=0.1))
        else:
            executor = ipu_exec.inferenceModel(model, options)
        executor.compile(*batch)
        return open_report(folder / ("training" if self.training else "inference"))

    def _options(self, folder: Path) -> ipu_exec.Options:
        options = ipu_exec.Options(autoreport=True, autoreport_dir=folder)
        options.showCompilationProgressBar(False).deviceIterations(self.deviceIterations)
        options.replicationFactor(self.replicas).autoRoundNumIPUs(True)
        starts = self.starts or tuple(range(len(self.names)))
        ipus = self.ipus or tuple(range(len(starts)))
        bounds = [*starts, len(self.names)]
        stages = [
            Stage(*self.names[a:b]).ipu(ipu)
            for ipu, (a, b) in zip(ipus, pairwise(bounds), strict=True)
        ]
        options.setExecutionStrategy(self.strategy(*stages))
        if self.training:
            options.Training.gradientAccumulation(self.gradientAccumulation)
        if self.outputMode:
            options.outputMode(OutputMode[self.outputMode])
        if self.optimiser:
            settings = {"off chip": OFF_CHIP, "in parts": IN_PARTS}[self.optimiser]
            options.TensorLocations.setOptimizerLocation(settings)
        return options


def mlp(*widths: int, training: bool = True, **more: Any) -> Case:
    names = tuple(f"L{k}" for k in range(len(widths) - 1))
    labels = ((widths[-1],),) if training else ()
    return Case(lambda: Mlp([*widths]), ((widths[0],), *labels), names, training, **more)


MNIST = Case(Mnist, ((1, 28, 28), ()), ("B1", "B2", "B3", "B4"), gradientAccumulation=10)
CASES = {
    "digits, all outputs of two replicas": replace(MNIST, batch=40, outputMode="All", replicas=2),
    "digits, last outputs": replace(MNIST, batch=16, gradientAccumulation=7),
    "digits, sharded": replace(MNIST, strategy=ShardedExecution, outputMode="All"),
    "uneven layers": mlp(512, 512, 512, 512, 1024, starts=(0, 3), gradientAccumulation=8),
    "inference": mlp(256, 1024, 1024, 256, training=False, deviceIterations=16, batch=16),
    "one stage, many outputs": mlp(
        64, 64, 4096, starts=(0,), gradientAccumulation=4, outputMode="All", adam=False
    ),
    "large outputs once": mlp(64, 256, 8192, gradientAccumulation=4, batch=32, adam=False),
    "a tied weight": Case(
        lambda: TiedWords(8192, 64),
        ((), ()),
        ("words", "layer0", "layer1", "head"),
        gradientAccumulation=10,
    ),
    "much state": mlp(2048, 4096, 2048, starts=(0,), gradientAccumulation=64, batch=16),
}

ELSEWHERE = ("digits, last outputs", "digits, sharded")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Report]:
    """The profile of a case, compiled once."""

    @cache
    def of(name: str) -> Report:
        return CASES[name].compiled(tmp_path_factory.mktemp("case"))

    return of


def a_sample(report: Report) -> float:
    """Cycles per micro-batch of a weight update, or of a device iteration, over all replicas."""
    pace = analysis.pace(report)
    return pace.cycles / pace.micro_batches / report.target.num_replicas


def split_by_cause(report: Report) -> tuple[float, float]:
    """Cycles per micro-batch before the weight update, and in it."""
    cycles = report.pipeline_cycles(0, 0)
    update = int(cycles.loc[cycles["phase"] == "update", "cycles"].sum())
    pace = analysis.pace(report)
    return (pace.cycles - update) / pace.micro_batches, update / pace.micro_batches


def obtained(one: Insight, before: Report, after: Report) -> float:
    """Cycles saved in a weight update of as many samples, by the cause that the insight names."""
    batches = analysis.pace(before).micro_batches
    if "gradientAccumulation" in one.change:
        cause = 1 if one.title.startswith("the update phase") else 0
        return batches * (split_by_cause(before)[cause] - split_by_cause(after)[cause])
    return batches * before.target.num_replicas * (a_sample(before) - a_sample(after))


# the others have tests of their own below
@pytest.mark.parametrize("name", [name for name in CASES if name not in ELSEWHERE])
def test_a_gain_is_what_a_second_compile_obtains(
    name: str,
    compiled: Callable[[str], Report],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cycles gained are within a tenth of it, or half a per cent of the update.

    The bytes freed on the fullest tile are within a tenth of it.
    """
    case, before = CASES[name], compiled(name)
    all_insights = insights(before)
    cycles = analysis.pace(before).cycles
    assert all_insights
    checked = 0
    for number, one in enumerate(all_insights):
        assert bool(one.change) == (not one.at_most and one.gain_cycles + one.gain_bytes > 0), one
        if not one.change or one.estimate:  # tests/planner/advice holds estimates
            continue
        monkeypatch.setenv(LEVERS_VARIABLE, one.change.get("with", ""))
        after = case.changed(one.change).compiled(tmp_path / str(number))
        checked += 1
        if one.gain_cycles:
            assert obtained(one, before, after) == pytest.approx(
                one.gain_cycles, rel=0.1, abs=0.005 * cycles
            ), one
        if one.gain_bytes:
            full = [int(analysis.fullest_tiles(report).max()) for report in (before, after)]
            assert 0.9 * one.gain_bytes < full[0] - full[1] < 1.1 * one.gain_bytes, one
    assert checked


def test_channels_that_are_copied_with_their_padding_are_named(tmp_path: Path) -> None:
    """A second compile with whole groups takes less, at most as much as is stated."""
    odd, whole = (
        mlp(256, width, 1024, training=False, batch=64, deviceIterations=8).compiled(
            tmp_path / f"{width}"
        )
        for width in (1001, 1008)
    )
    (one,) = (one for one in insights(odd) if "with their padding" in one.title)
    assert one.title.startswith("layers.1/addmm") and one.at_most
    assert 0 < analysis.pace(odd).cycles - analysis.pace(whole).cycles <= one.gain_cycles
    assert not [one for one in insights(whole) if "with their padding" in one.title]


def test_state_in_parts_frees_at_most_what_is_stated(tmp_path: Path) -> None:
    """State shrinks by what is stated; what the update works on takes some of that room."""
    case = mlp(2048, 4096, 2048, starts=(0,), replicas=2, batch=16)
    before = case.compiled(tmp_path / "before")
    (one,) = (one for one in insights(before) if "keeps the same optimiser state" in one.title)
    after = case.changed({"optimiser": "in parts"}).compiled(tmp_path / "after")
    full, state = [], []
    for report in (before, after):
        full.append(int(analysis.fullest_tiles(report).max()))
        memory = report.memory(0)
        is_state = memory["role"] == Role.OPTIMISER_STATE
        state.append(int(memory["max_tile_bytes"][is_state].sum()))
    assert one.at_most
    assert state[0] - state[1] == pytest.approx(one.gain_bytes, rel=0.01)
    assert 0 < full[0] - full[1] <= one.gain_bytes
    foreseen, rate = predicted(Basis.of(before), Levers(state="in-parts")), analysis.pace(after)
    assert abs(rate.samples_per_second - foreseen.samples_per_second) <= foreseen.doubt


def test_more_micro_batches_gain_by_two_causes(
    compiled: Callable[[str], Report], tmp_path: Path
) -> None:
    """The gains from ramps and from the shared update add up to what the change gains."""
    case, before = CASES["digits, last outputs"], compiled("digits, last outputs")
    by_accumulation = [
        one for one in insights(before) if one.change == {"gradientAccumulation": 28}
    ]
    assert [one.title.split(" take")[0] for one in by_accumulation] == [
        "ramp-up and ramp-down",
        "the update phase",
    ]
    after = case.changed(by_accumulation[0].change).compiled(tmp_path / "after")
    whole = 7 * (a_sample(before) - a_sample(after))
    assert sum(one.gain_cycles for one in by_accumulation) == pytest.approx(whole, rel=0.02)


def test_sharded_execution_is_not_judged_by_its_slowest_stage(
    compiled: Callable[[str], Report], tmp_path: Path
) -> None:
    """IPUs take turns: what counts is all stages' work and their copies, and a pipeline's gain."""
    before = compiled("digits, sharded")
    found = insights(before)
    words = " ".join(f"{one.title} {one.detail} {one.action}" for one in found)
    for wrong in ("the mean stage", "slowest stage", "wait for it", "pipeline cycle"):
        assert wrong not in words
    (turns,) = (one for one in found if one.change.get("strategy") == "pipelined")
    assert turns.title.startswith("IPUs take turns: they wait 6")
    assert "PipelinedExecution" in turns.code[0]
    after = CASES["digits, sharded"].changed(turns.change).compiled(tmp_path / "after")
    assert turns.gain_cycles == pytest.approx(obtained(turns, before, after), rel=0.01)
    (split,) = (one for one in found if set(one.change) == {"starts", "ipus"})
    assert "IPUs take turns: the work of all stages counts" in split.detail


def test_where_few_micro_batches_are_a_pipeline_is_promised_with_more(tmp_path: Path) -> None:
    case = replace(CASES["digits, sharded"], gradientAccumulation=2)
    before = case.compiled(tmp_path / "before")
    (turns,) = (one for one in insights(before) if one.change.get("strategy") == "pipelined")
    assert turns.change["gradientAccumulation"] == 7
    assert turns.code[1] == "options.Training.gradientAccumulation(7)"
    after = case.changed(turns.change).compiled(tmp_path / "after")
    gained = 2 * (a_sample(before) - a_sample(after))
    assert turns.gain_cycles == pytest.approx(gained, rel=0.01)


def test_what_is_so_already_is_not_advised(compiled: Callable[[str], Report]) -> None:
    """If only the last outputs are returned, advice is to return the loss alone."""
    report = compiled("large outputs once")
    (fewer,) = (one for one in insights(report) if one.change.get("with") == "outputs=loss")
    assert "OutputMode.Final" not in fewer.code[0]
    (insight,) = (one for one in insights(report) if one.title.startswith("host I/O"))
    tensors = analysis.host_tensors(report)
    logits = tensors[tensors["way"] == "out"].iloc[0]
    assert logits["bytes"] == 32 * 8192 * 4
    assert f"{logits['share']:.0%} of what goes back is {logits['name']} (1.0 MiB" in insight.detail


def test_state_that_is_dear_off_the_chip_is_left_there(tmp_path: Path) -> None:
    """The cost stated is what a second compile takes longer; moving is advised only if small."""
    for name, accumulation in (("dear", 1), ("cheap", 5000)):
        case = replace(CASES["much state"], gradientAccumulation=accumulation)
        before = case.compiled(tmp_path / name)
        (insight,) = (one for one in insights(before) if one.title.startswith("optimiser state"))
        after = case.changed({"optimiser": "off chip"}).compiled(tmp_path / f"{name} off")
        cycles = [analysis.pace(report).cycles for report in (before, after)]
        share = cycles[1] / cycles[0] - 1
        said = float(insight.detail.split("% of one")[0].rpartition(" ")[2]) / 100
        assert said == pytest.approx(share, rel=0.1)
        if name == "dear":
            assert share > 1
            assert insight.action == "Leave it on the chip while the model fits"
        else:
            assert share < 0.1
            assert insight.change == {"optimiser": "off chip"}


def advice(memory: str = "fits", is_estimate: bool = False) -> Advice:
    """One of a rate of 1,000 samples a second; estimates are off by 8 % of that."""
    return Advice(
        title="",
        levers=Levers(),
        cycles=1,
        samples_per_second=1000.0,
        gain=1.0,
        samples=1,
        fullest=641_229,
        ipu=0,
        memory=memory,
        surely=memory == "fits",
        estimate=is_estimate,
        doubt=80.0 * is_estimate,
        quicker=80.0 * is_estimate,
        code=(),
        argument="",
        problems=(),
    )


def test_room_is_promised_only_where_it_is_known() -> None:
    told = {
        memory: lever_gains._room(advice(memory), "for it")
        for memory in ("fits", "IPU 0: too close to call: compile to know")
    }
    assert told["fits"] == "There is room for it: the largest extent would be 626.2 KiB."
    assert all("626.2 KiB" in words for words in told.values())
    assert told["IPU 0: too close to call: compile to know"].startswith(
        "There may be no room for it"
    )


def test_the_error_and_the_insights_say_the_same_of_a_tile(tmp_path: Path) -> None:
    model = Mlp([8192, 8192, 8192], [0, 0])
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    options.showCompilationProgressBar(False)
    executor = ipu_exec.trainingModel(model, options, torch.optim.AdamW(model.parameters()))
    with pytest.raises(ipu_exec.OutOfMemoryError) as caught:
        executor.compile(torch.zeros(4, 8192), torch.zeros(4, 8192))
    report = open_report(tmp_path / "training")
    (over,) = analysis.overflows(report)
    first = insights(report)[0]
    assert f"IPU 0, tile {over.tile}, at step {over.position} " in caught.value.message
    needed = over.limit + over.bytes_over
    needs = f"{needed / 1024:,.1f}".removesuffix(".0")
    assert first.detail.startswith(f"Tile {over.tile} needs {needs} of 624 KiB")
    held = report.live_variables(0, over.position, over.tile)
    assert [size for _, size in over.contents.largest] == held["bytes"].tolist()[:5]
    always = report.variables.loc[held["variable"], "always_live"].to_numpy() != 0
    assert over.contents.always_live == held["bytes"].to_numpy()[always].sum()
    always_live = f"{over.contents.always_live / 1024:,.1f}"
    assert f"{always_live} KiB are always live" in caught.value.message
    assert f"{always_live.removesuffix('.0')} KiB are always live" in first.detail
    for name, size in over.contents.largest:
        assert re.search(rf"{re.escape(units.size(size))} +{re.escape(name)}", caught.value.message)


def test_a_tied_weight_that_travels_is_named_with_its_ends(
    compiled: Callable[[str], Report], tmp_path: Path
) -> None:
    before = compiled("a tied weight")
    title = "the tied weight words.weight travels between IPU 0 and IPU 3"
    (one,) = [insight for insight in insights(before) if insight.title == title]
    assert "2.0 MiB" in one.detail and one.change["ipus"] == [0, 1, 2, 0]
    best = quickest(Costs.from_report(before)).prediction
    assert best.assignment.ipus == (0, 1, 2, 0)  # so the split is said once
    assert analysis.pace(before).cycles - best.total == one.gain_cycles
    assert not [one for one in insights(before) if "another split takes" in one.title]
    # where both ends are on one IPU there is nothing to say
    after = CASES["a tied weight"].changed(one.change).compiled(tmp_path / "after")
    assert not [one for one in insights(after) if "tied" in one.title]


def test_a_split_that_ends_a_tied_weights_travels_says_what_of_its_gain_is_that(
    tmp_path: Path,
) -> None:
    """Most of it, so that the slowest stage is not blamed."""
    case = replace(CASES["a tied weight"], starts=(0, 2, 3), ipus=(0, 1, 2))
    report = case.compiled(tmp_path)
    found = insights(report)
    (tied,) = [one for one in found if one.title.startswith("the tied weight")]
    (split,) = [one for one in found if one.title.startswith("another split takes")]
    assert split.gain_cycles / 2 < tied.gain_cycles < split.gain_cycles
    assert f"{tied.gain_cycles:,} of these {split.gain_cycles:,}" in split.detail
    assert "the mean" not in split.title


def test_an_estimate_has_no_more_digits_than_it_knows() -> None:
    said = fewer(557_000_044, True, advice(is_estimate=True).error)
    assert said == "about 557,000,000 cycles less (an estimate: the rate ±8%)"
    assert fewer(557_000_044, False) == "557,000,044 cycles less"
    rough = replace(advice(is_estimate=True), samples_per_second=2_450_066.0)
    assert (advice().rate, rough.rate) == ("1,000", "~2,450,000 ±0.0%")
    assert replace(rough, doubt=8_000.0, quicker=8_000.0).rate == "~2,450,000 ±0.3%"
    assert replace(rough, doubt=8_000.0, quicker=514_500.0).rate == "~2,450,000 -0.3% +21%"
    assert replace(rough, doubt=0.0, quicker=0.0).rate == "~2,450,000"
    present = replace(advice(), samples_per_second=930.0)
    assert (
        lever_gains._error(advice(is_estimate=True), present) == "±8%, so that it may gain nothing"
    )
    present = replace(present, samples_per_second=910.0)
    assert lever_gains._error(advice(is_estimate=True), present) == "±8%"
    one = Insight("", "", "", "", 557_000_044, estimate=True)
    assert one.gain_in_words == "~557,000,000"
    assert replace(one, estimate=False).gain_in_words == "557,000,044"


@pytest.mark.parametrize("name", ["a tied weight", "uneven layers"])
def test_the_advice_is_the_advisors(name: str, compiled: Callable[[str], Report]) -> None:
    """One question, one answer: all levers together, the split among them."""
    report = compiled(name)
    advised = advise(report).together
    (one,) = [one for one in insights(report) if "levers together" in one.title]
    assert advised is not None and advised.levers.split is not None
    assert one.code == advised.code and f"{advised.gain:.2f} times" in one.title
    assert f"ipu-report advise {report.argument} --check SCRIPT compiles it." in one.detail
    assert ("It may not fit (" in one.detail) == (not advised.surely)


def test_commands_name_the_profile_that_was_asked(
    compiled: Callable[[str], Report], tmp_path: Path
) -> None:
    """They are run as they are, also for a copy, which has the stored answers of the first."""
    first = compiled("uneven layers")
    copy = open_report(shutil.copy(first.path, tmp_path / "its copy.pop"))
    for report, place in ((first, first.path.parent), (copy, copy.path)):
        said = "\n".join(f"{one.detail}\n{one.change_in_words}" for one in insights(report))
        commands = dict(re.findall(r"ipu-report (\w+) (.+)", said))
        assert {"advise", "rebalance"} <= set(commands)
        assert {shlex.split(rest)[0] for rest in commands.values()} == {str(place)}
        new = tmp_path / "new.json"
        words = commands["rebalance"].partition(" writes")[0].replace("new.json", "{0}")
        assert main(["rebalance", *shlex.split(words.format(shlex.quote(str(new))))]) == 0
        assert new.is_file()


def adds_up_and_is_spoken_of(report: Report) -> None:
    """Check that the critical path is the device iteration, and that insights cover most of it."""
    path, run = critical_path(report), report.runs.iloc[0]
    assert path["cycles"].sum() == run["cycles"] // run["iterations"]
    assert (path["cycles"] > 0).all()
    assert WAITING not in set(path["cause"])
    rows = entries(columns := path_columns(report), columns["name"])
    assert rows["cycles"].sum() == path["cycles"].sum()
    all_insights = insights(report)
    assert share_accounted(report, all_insights) >= 0.9
    assert all(one.action for one in all_insights)
    assert all(one.gain_cycles > 0 for one in all_insights if one.waits)
    with_cycles = [one for one in all_insights if one.gain_cycles]
    order = [(one.remainder, one.changes_batch, -one.gain_cycles) for one in with_cycles]
    assert order == sorted(order)


def test_a_cause_has_the_share_that_why_says() -> None:
    """Though another insight speaks of a part of it."""
    rows = [("steady", 600, 0), ("update", 300, 1)]
    path = pd.DataFrame(
        {
            "cause": "streaming memory",
            "phase": [phase for phase, *_ in rows],
            "direction": "",
            "stage": 0,
            "op": -1,
            "ipu": [ipu for *_, ipu in rows],
            "name": "load/mid",
            "cycles": [cycles for _, cycles, _ in rows],
        }
    )
    path = pd.concat([path, path.assign(cause="compute", cycles=50)], ignore_index=True)
    spoken = [Waits(phases=(PipelinePhase.UPDATE,))]
    (streams,) = [one for one in rest(path, spoken, "an update") if "streaming" in one.title]
    assert streams.title == "streaming memory takes 90.0% of an update"
    assert streams.gain_cycles == 600
    assert "900 cycles of the critical path; other insights cover 300." in streams.detail
    assert "Of the rest, 100.0% are on IPU 0" in streams.detail


# a model of each kind: convolutions, a transformer, a recurrence, gathers
ZOO = ("efficientnet-b0", "bert-large", "lstm", "gnn")


@pytest.mark.parametrize("name", ZOO)
def test_every_cycle_of_a_model_of_the_zoo_is_accounted_for(name: str, tmp_path: Path) -> None:
    example = build(name, tiny=True)
    options = ipu_exec.Options(autoreport=True, autoreport_dir=tmp_path)
    options.showCompilationProgressBar(False).setExecutionStrategy(split(example, 2))
    options.Training.gradientAccumulation(8)
    optimizer = ipu_exec.optim.AdamW(example.module.parameters(), lr=0.1)
    model = ipu_exec.trainingModel(example.module, options, optimizer)
    model.compile(*example.inputs(8 * example.micro_batch))
    adds_up_and_is_spoken_of(open_report(tmp_path / "training"))


@pytest.mark.parametrize("seed", range(3))
def test_every_cycle_of_a_model_that_nobody_wrote_is_accounted_for(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    widths = [chance.choice([8, 64, 300, 1024]) for _ in range(chance.randint(2, 6))]
    layers = range(1, len(widths) - 1)
    cuts = sorted(chance.sample(layers, chance.randint(0, min(2, len(layers)))))
    training = chance.random() < 0.75
    case = mlp(
        *widths,
        training=training,
        starts=(0, *cuts),
        batch=chance.choice([1, 4, 32]),
        gradientAccumulation=chance.randint(8, 16) if training else 1,
        deviceIterations=1 if training else chance.randint(4, 16),
        replicas=chance.choice([1, 1, 2]),
        strategy=chance.choice([PipelinedExecution, PipelinedExecution, ShardedExecution]),
        outputMode=chance.choice(["", "All", "Final"]),
        optimiser=chance.choice(["", "off chip"]) if training else "",
    )
    adds_up_and_is_spoken_of(case.compiled(tmp_path))


def with_a_loss(self: Any, x: torch.Tensor, target: torch.Tensor) -> Any:
    x = self.layer(x)
    return x, nn.functional.mse_loss(x, target)


def test_a_model_without_blocks_has_the_advice_of_one_with_one(tmp_path: Path) -> None:
    """What a Block around all of it would change is in the profile's tables only."""
    advised, findings = {}, {}
    for begun in (False, True):
        model = model_of(with_a_loss, layer=nn.Linear(64, 64))
        if begun:
            ipu_exec.BeginBlock(model, "model", ipu_id=0)
        options = ipu_exec.Options(profile_dir=tmp_path / str(begun))
        options.showCompilationProgressBar(False).Training.gradientAccumulation(4)
        optimizer = ipu_exec.optim.AdamW(model.parameters(), lr=0.1)
        executor = ipu_exec.trainingModel(model, options, optimizer)
        executor.compile(torch.zeros(8, 64), torch.zeros(8, 64))
        report = open_report(tmp_path / str(begun))
        advised[begun], findings[begun] = advise(report), insights(report)
    assert advised[False] == advised[True] and advised[True].single
    by_title = [{one.title: one.gain_cycles for one in findings[begun]} for begun in (False, True)]
    assert by_title[0].pop("the model has no Blocks") == 0
    assert by_title[0] == by_title[1] and "the weights are float32" in by_title[1]


def test_what_speaks_of_nothing_accounts_for_nothing(tmp_path: Path) -> None:
    """Each cycle counts once, however many insights cover it."""
    path = critical_path(MNIST.compiled(tmp_path))
    host = Waits(causes=("host I/O",))
    share = path.loc[path["cause"] == "host I/O", "cycles"].sum() / path["cycles"].sum()
    assert accounted(path, []) == 0
    assert accounted(path, [host, host]) == pytest.approx(share)
    assert accounted(path, [Waits()]) == 1
