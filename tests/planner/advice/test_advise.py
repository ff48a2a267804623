"""Predicted gains of levers, compared with a compile that applies `ipu-run --with`'s changes."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ipu_exec
from examples.models import build, split
from ipu_exec.option_groups.engine_options import LEVERS_VARIABLE
from ipuscope.planner.advice import (
    Advice,
    Allowed,
    Basis,
    Levers,
    advise,
    advise_on,
    anything,
    basis_of,
)
from ipuscope.planner.advice.search import predicted
from ipuscope.planner.insights import insights
from ipuscope.planner.insights.lever_gains import gain
from ipuscope.planner.levers import phased
from ipuscope.planner.levers.phased import PhasedBasis
from ipuscope.planner.predict.memory_verdict import ABOVE, Verdict
from ipuscope.profiler import Report, analysis, open_report
from ipuscope.profiler.enums import Role
from tests.models import WithLoss
from tests.planner.rebalance.cases import deep

# What an estimate's compile may be of it; docs/advice.md#estimates has what they are.
LEAST, MOST, BYTES = 0.75, 1.5, 0.25


class Wide(nn.Module):
    """Two wide layers that return a large output."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(512, 1024), nn.Linear(1024, 512)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with ipu_exec.Block("one"):
            x = torch.relu(self.one(x))
        with ipu_exec.Block("two"):
            x = self.two(x)
            return x, nn.functional.mse_loss(x, target)


def wide(folder: Path) -> Report:
    model = Wide()
    options = _options(folder).replicationFactor(2)
    options.setExecutionStrategy(
        ipu_exec.PipelinedExecution(ipu_exec.Stage("one").ipu(0), ipu_exec.Stage("two").ipu(1))
    )
    return _compiled(model, options, (torch.zeros(8 * 4 * 2, 512), torch.zeros(8 * 4 * 2, 512)))


def gpt(folder: Path) -> Report:
    example = build("gpt2-small", tiny=True)
    options = _options(folder).setExecutionStrategy(split(example, 2))
    return _compiled(example.module, options, example.inputs(4))


def _options(folder: Path) -> ipu_exec.Options:
    options = ipu_exec.Options(autoreport=True, autoreport_dir=folder)
    options.showCompilationProgressBar(False).outputMode(ipu_exec.OutputMode.All)
    options.Training.gradientAccumulation(4)
    return options


def _compiled(
    model: nn.Module, options: ipu_exec.Options, inputs: tuple[torch.Tensor, ...]
) -> Report:
    optimizer = ipu_exec.optim.AdamW(model.parameters(), lr=0.1)
    ipu_exec.trainingModel(model, options, optimizer).compile(*inputs)
    return open_report(options.profiling().directory / "training")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The profile of `wide`, unchanged."""
    return wide(tmp_path_factory.mktemp("wide"))


def held(one: Advice, report: Report) -> None:
    """Check a compile against its prediction: within a hundredth, or within an estimate's error."""
    obtained = analysis.pace(report).samples_per_second
    fullest = max(int(report.tiles(ipu)["total"].max()) for ipu in range(2))
    if one.estimate:
        assert LEAST < obtained / one.samples_per_second < MOST, one
        assert fullest == pytest.approx(one.fullest, rel=BYTES), one
    else:
        assert obtained == pytest.approx(one.samples_per_second, rel=0.01), one
        assert fullest == pytest.approx(one.fullest, rel=0.1), one


@pytest.mark.parametrize("compiled", [wide, gpt])
def test_an_advice_is_what_its_compile_obtains(
    compiled: Callable[[Path], Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = compiled(tmp_path / "before")
    advised = advise(report, anything(basis_of(report)))
    assert advised.together is not None
    assert len(advised.single) > 3
    now = advised.present.samples_per_second
    assert now == pytest.approx(
        analysis.pace(open_report(tmp_path / "before" / "training")).samples_per_second, rel=0.01
    )
    assert advised.together.samples_per_second >= advised.single[0].samples_per_second > now
    for number, one in enumerate((advised.together, *advised.single)):
        assert one.gain == pytest.approx(one.samples_per_second / now)
        assert len(one.code) == len(one.levers.pulled)
        if one.levers.split is None:
            monkeypatch.setenv(LEVERS_VARIABLE, one.argument)
            held(one, compiled(tmp_path / str(number)))


class Layers(nn.Module):
    """Four layers, each a Block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(4))

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for number, layer in enumerate(self.layers):
            with ipu_exec.Block(f"L{number}"):
                x = torch.relu(layer(x))
        with ipu_exec.Block("loss"):
            return x, nn.functional.mse_loss(x, target)


@pytest.mark.parametrize("location", ["setWeightLocation", "setAccumulatorLocation"])
def test_what_comes_for_each_micro_batch_is_as_large_whatever_the_samples(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = []
    for levers in ("", "micro-batch=16,micro-batches=2"):
        monkeypatch.setenv(LEVERS_VARIABLE, levers)
        options = _options(tmp_path / levers).setExecutionStrategy(ipu_exec.ShardedExecution())
        off_chip = ipu_exec.TensorLocationSettings().useOnChipStorage(False)
        getattr(options.TensorLocations, location)(off_chip)
        inputs = (torch.zeros(8 * 4, 512), torch.zeros(8 * 4, 512))
        reports.append(_compiled(Wide(), options, inputs))
    before, after = reports
    pulled = predicted(basis_of(before), Levers(micro_batch=16, micro_batches=2))
    obtained = analysis.pace(after).samples_per_second
    assert pulled.samples_per_second == pytest.approx(obtained, rel=0.01)


def test_host_io_beside_compute_begins_and_ends_alone_in_inference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = []
    for levers in ("", "overlap"):
        monkeypatch.setenv(LEVERS_VARIABLE, levers)
        options = _options(tmp_path / f"of {levers}").deviceIterations(3)
        options.setExecutionStrategy(ipu_exec.ShardedExecution())
        options.Training.gradientAccumulation(1)
        layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(16)))
        model = ipu_exec.inferenceModel(layers, options)
        model.compile(torch.zeros(3 * 32, 512))
        reports.append(open_report(options.profiling().directory / "inference"))
    before, after = reports
    advice = predicted(basis_of(before), Levers(overlap=True))
    assert abs(analysis.pace(after).samples_per_second - advice.samples_per_second) < advice.doubt


def _phases(kind: str) -> ipu_exec.IStrategy:
    names = [f"L{number}" for number in range(4)]
    if kind == "serial":
        everywhere = ipu_exec.SerialPhasedExecution(*names[:3], ipu_exec.Stage("L3", "loss"))
        return everywhere.setTensorsLiveness(ipu_exec.Liveness.OffChipAfterEachPhase)
    stages = [ipu_exec.Stage(name) for name in names[:3]] + [ipu_exec.Stage("L3", "loss")]
    if kind == "parallel":
        return ipu_exec.ParallelPhasedExecution(*(ipu_exec.Phase(stage) for stage in stages))
    pairs = [(stages[0].ipu(0), stages[1].ipu(1)), (stages[2].ipu(0), stages[3].ipu(1))]
    return ipu_exec.PipelinedExecution(*(ipu_exec.Phase(*pair) for pair in pairs))


@pytest.mark.parametrize("kind", ["serial", "parallel", "pipelined", "over I/O tiles"])
def test_phases_are_advised_on_and_obtain_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(folder: Path) -> Report:
        torch.manual_seed(0)
        options = _options(folder).setExecutionStrategy(_phases(kind))
        if kind == "over I/O tiles":
            over = ipu_exec.TensorLocationSettings().useIOTilesToLoad().useIOTilesToStore()
            locations = options.TensorLocations.numIOTiles(32).setActivationLocation(over)
            locations.setWeightLocation(over)
        return _compiled(Layers(), options, (torch.zeros(8 * 4, 128), torch.zeros(8 * 4, 128)))

    before = compiled(tmp_path / "before")
    basis = basis_of(before)
    assert basis.cycles_with(Levers()) == analysis.pace(before).cycles
    advised = advise(before, anything(basis))
    pulled = {one.levers.pulled for one in advised.single}
    assert {("half",), ("micro_batch",), ("micro_batches",)} <= pulled
    assert not {("split",), ("recompute",), ("state",)} & pulled
    assert advised.together is not None
    exact = next(one for one in advised.single if one.levers.pulled == ("micro_batches",))
    shown = {one.code: one.gain_cycles for one in insights(before)}
    keeping = advise(before).together
    for one in (*advised.single, *([keeping] if keeping else [])):
        assert shown[one.code] == gain(one, advised.present)
    for number, one in enumerate((advised.together, exact)):
        monkeypatch.setenv(LEVERS_VARIABLE, one.argument)
        obtained = analysis.pace(compiled(tmp_path / str(number))).samples_per_second
        if one.estimate:
            assert LEAST < obtained / one.samples_per_second < MOST
        else:
            assert obtained == pytest.approx(one.samples_per_second)


def test_the_insights_on_phases_name_what_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what would be quicker but does not fit, what lacks least room."""
    options = _options(tmp_path).setExecutionStrategy(_phases("serial"))
    report = _compiled(Layers(), options, (torch.zeros(8 * 4, 128), torch.zeros(8 * 4, 128)))
    held = PhasedBasis.memory_with

    def much_a_sample(basis: PhasedBasis, levers: Levers) -> tuple[Verdict, ...]:
        more = 100_000 * max(0, levers.micro_batch - basis.micro_batch)
        return tuple(replace(one, nbytes=one.nbytes + more) for one in held(basis, levers))

    monkeypatch.setattr(PhasedBasis, "memory_with", much_a_sample)
    assert not [one for one in advise(report).single if one.levers.micro_batch]
    (one,) = (one for one in insights(report) if "does not fit" in one.title)
    assert one.title == "micro-batch of 16 would be quicker, but does not fit"
    assert "IPU 0: does not fit by" in one.detail
    assert not one.gain_cycles


def test_code_of_phases_may_outgrow_the_tile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision there may be 1.3 times as much, whether or not region 0 has room for it."""
    options = _options(tmp_path).setExecutionStrategy(_phases("serial"))
    report = _compiled(Layers(), options, (torch.zeros(8 * 4, 128), torch.zeros(8 * 4, 128)))
    code = round(0.7 * report.target.region0_bytes)
    monkeypatch.setattr(phased, "most_code", lambda *_: code)
    ((tile, _, live),) = PhasedBasis.of_phases(report)._fullest_tiles
    none = live.assign(bytes=0, single=0)
    for free, is_open in ((0.4, False), (0.2, True)):
        extent = report.target.bytes_per_tile - round(free * code)
        monkeypatch.setattr(PhasedBasis, "_fullest_tiles", [(tile, extent, none)])
        (verdict,) = PhasedBasis.of_phases(report)._memory_of(half=True, ratio=1.0)
        assert verdict.open_code == is_open


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Four layers and a loss of which one IPU has all but the last."""
    folder = tmp_path_factory.mktemp("uneven")
    stages = ipu_exec.Stage("L0", "L1", "L2", "L3").ipu(0), ipu_exec.Stage("loss").ipu(1)
    options = _options(folder).setExecutionStrategy(ipu_exec.PipelinedExecution(*stages))
    return _compiled(Layers(), options, (torch.zeros(8 * 4, 128), torch.zeros(8 * 4, 128)))


@pytest.mark.parametrize("seed", [3, 15, 19, 28, 37, 39])
def test_together_is_never_slower_than_a_lever_alone(uneven: Report, seed: int) -> None:
    """Over random costs, on tiles so full that what helps one lever leaves no room for another."""
    random = np.random.default_rng(seed)
    basis = Basis.of(uneven)
    costs, cycles, memory = basis.costs, basis.costs.cycles, basis.costs.memory
    longer = 10 ** random.uniform(0, 2, len(costs))
    share = random.dirichlet(np.ones(len(costs))) * costs.machine.bytes_per_tile
    held = np.rint(share[:, None] * random.uniform(0.1, 0.9)).astype(np.int64)
    larger = 10 ** random.uniform(1.3, 2.8)

    def times(values: np.ndarray, factor: np.ndarray | float) -> np.ndarray:
        product: np.ndarray = np.rint(values * factor).astype(np.int64)
        return product

    changed = replace(
        costs,
        cycles=replace(
            cycles,
            forward=times(cycles.forward, longer),
            backward=times(cycles.backward, longer),
        ),
        memory=replace(
            memory,
            always=memory.always + held,
            peak=times(memory.peak, larger),
            peak_of_backward=times(memory.peak_of_backward, larger),
            saved=times(memory.saved, larger),
        ),
        measured=False,
    )
    advised = advise_on(Basis(basis.report, changed))
    assert advised.together is not None
    assert advised.together.samples_per_second >= advised.single[0].samples_per_second
    assert any(one.levers.split is not None for one in (advised.together, *advised.single))


def test_the_training_stays_as_it_is_unless_something_is_allowed(report: Report) -> None:
    free, kept = advise(report, anything(basis_of(report))), advise(report)
    now = kept.present.samples
    assert free.together is not None and kept.together is not None
    assert free.together.samples > now and free.together.levers.half
    for one in (kept.together, *kept.single):
        assert one.samples == now and not one.levers.half, one.title
    assert kept.together.samples_per_second < free.together.samples_per_second
    few = advise(report, Allowed(samples=2 * now))
    assert few.together is not None and now < few.together.samples <= 2 * now
    assert not any(one.levers.half for one in few.single)


def test_a_micro_batch_is_traded_against_accumulation(report: Report) -> None:
    basis = basis_of(report)
    many = Basis(basis.report, replace(basis.costs, micro_batches=16))
    samples = basis.micro_batch * 16
    cuts = [one.levers for one in advise_on(many).single if one.levers.micro_batch]
    assert cuts and all(one.micro_batch * one.micro_batches == samples for one in cuts)
    assert all(one.micro_batches >= 2 * len(basis.present.starts) - 1 for one in cuts)


def test_micro_batches_that_are_not_priced_are_named(report: Report) -> None:
    basis = basis_of(report)
    many = Basis(basis.report, replace(basis.costs, micro_batches=16))
    assert not advise(report).notes
    (note,) = advise_on(many).notes
    assert note.startswith(f"A micro-batch of {16 * basis.micro_batch:,} is ")


def test_batch_norms_keep_the_micro_batch(tmp_path: Path) -> None:
    """Also one of one sample; an instance norm, which PyTorch makes a batch norm, does not."""
    layers = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    options, inputs = _options(tmp_path), (torch.zeros(4 * 8, 64), torch.zeros(4 * 8, 64))
    advised = advise(_compiled(WithLoss(layers), options, inputs))
    assert advised.notes == ("The micro-batch stays: batch norms take their statistics over it.",)
    assert not any(one.levers.micro_batch for one in advised.every)
    inputs = (torch.zeros(4, 3, 64), torch.zeros(4, 3, 64))
    for norm, stays in ((nn.BatchNorm1d(3), True), (nn.InstanceNorm1d(3, affine=True), False)):
        options = _options(tmp_path / type(norm).__name__)
        alone = _compiled(WithLoss(nn.Sequential(nn.Conv1d(3, 3, 1), norm)), options, inputs)
        assert bool(basis_of(alone).one_size) is stays


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(2))
        self.register_buffer("past", torch.zeros(4, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            with ipu_exec.Block(str(number)):
                x = layer(x + self.past)
        self.past.copy_(x)  # type: ignore[operator]
        return x


def test_a_buffer_that_is_written_keeps_its_rows_and_its_replica(tmp_path: Path) -> None:
    for alone in (True, False):  # refused on replicas, unless they need not agree
        options = _options(tmp_path / str(alone)).deviceIterations(8).broadcastBuffers(alone)
        options.setExecutionStrategy(
            ipu_exec.PipelinedExecution(ipu_exec.Stage("0").ipu(0), ipu_exec.Stage("1").ipu(1))
        )
        options.Training.gradientAccumulation(1)
        ipu_exec.inferenceModel(Remembering(), options).compile(torch.zeros(8 * 4, 256))
        advised = advise(open_report(options.profiling().directory / "inference"))
        why = "The micro-batch stays: buffer past, which the model writes, has a row for each"
        assert advised.notes == (f"{why} sample.",)
        assert not any(one.levers.micro_batch for one in advised.every)
        assert any(one.levers.replicas for one in advised.every) is not alone


class Contrasted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = self.layer(x) @ self.layer(y).T
        return nn.functional.cross_entropy(scores, torch.arange(len(scores)))


@pytest.mark.parametrize(("size", "stays"), [(24, True), (64, False)])
def test_samples_that_meet_keep_the_micro_batch(size: int, stays: bool, tmp_path: Path) -> None:
    """Where a weight is as wide, a square of that size may be something else."""
    inputs = (torch.zeros(4 * size, 64), torch.zeros(4 * size, 64))
    advised = advise(_compiled(Contrasted(), _options(tmp_path), inputs))
    why = "The micro-batch stays: its samples meet in a tensor that grows with their square."
    assert (why in advised.notes) is stays


def test_as_many_groups_as_samples_are_no_reason_to_keep_the_micro_batch(tmp_path: Path) -> None:
    """A group norm's statistics are as many as samples times groups."""
    model = WithLoss(nn.Sequential(nn.Conv1d(16, 16, 1), nn.GroupNorm(8, 16)))
    inputs = (torch.zeros(4 * 8, 16, 12), torch.zeros(4 * 8, 16, 12))
    assert basis_of(_compiled(model, _options(tmp_path), inputs)).one_size == ""


def test_what_gains_nothing_is_not_advised(report: Report) -> None:
    advised = advise(report)
    now = advised.present.samples_per_second
    assert all(one.samples_per_second > now for one in advised.single)
    assert all(not one.problems for one in advised.single)
    named = [one.levers.pulled for one in advised.single]
    assert len(set(named)) == len(named)


def test_memory_decides_with_speed(report: Report) -> None:
    """A micro-batch that would be faster but does not fit is not advised."""
    basis = Basis.of(report)
    free = anything(basis)
    most = max(one.levers.micro_batch for one in advise_on(basis, free).single)
    assert most > 8
    memory, machine = basis.costs.memory, basis.costs.machine
    # so much that the present is too close to call, and any more does not fit
    filler = int((1 + ABOVE) * machine.bytes_per_tile) - 30_000
    full = replace(basis.costs, memory=replace(memory, always=memory.always + filler))
    tight = Basis(basis.report, replace(full, measured=False))
    assert max((one.levers.micro_batch for one in advise_on(tight, free).single), default=0) < most


def test_beside_a_setting_that_may_not_fit_stands_the_best_that_surely_does(report: Report) -> None:
    basis, free = Basis.of(report), Allowed(samples=anything(basis_of(report)).samples)
    best = advise_on(basis, free)
    largest = next(one for one in best.single if one.levers.pulled == ("micro_batch",))
    assert largest.surely and best.surely is None
    # just within the error of an estimate there, which is 12 % of a tile
    small = basis.costs.with_tile_bytes(int(largest.fullest / 0.88) - 8)
    advised = advise_on(Basis(basis.report, small), free)
    first, second = (one for one in advised.single if one.levers.pulled == ("micro_batch",))
    assert not first.surely and second.surely
    assert first.samples_per_second > second.samples_per_second
    assert advised.instead_of(first) is second
    assert advised.together is not None and not advised.together.surely
    assert advised.surely is not None and advised.surely.surely
    assert advised.every[:2] == [advised.together, advised.surely]


def test_replicas_keep_the_samples_of_an_update_where_no_cut_of_them_gains(tmp_path: Path) -> None:
    """Of 10 micro-batches of 1, two replicas have 5 each, and four none."""
    sizes = {"A": 1, "B": 4, "C": 4, "D": 1}
    stages: list[tuple[str, ...]] = [("A",), ("B",), ("C",), ("D",)]
    advised = advise(deep(tmp_path, sizes, stages, micro_batches=10, micro_batch=1))
    assert any(one.levers.replicas == 2 for one in advised.every)
    assert {one.samples for one in advised.every} == {advised.present.samples} == {10}


def test_the_best_combination_keeps_the_samples_of_an_update(demo: Path) -> None:
    """A larger micro-batch goes with fewer of them, or is not in it."""
    with open_report(demo / "training") as trained:
        advised = advise(trained)
    assert advised.together is not None
    assert advised.together.levers.micro_batch
    for one in (advised.together, *advised.single):
        assert one.samples == advised.present.samples


def test_half_precision_is_no_lever_of_a_model_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEVERS_VARIABLE, "half,outputs=loss")
    halved = wide(tmp_path)
    weights = halved.variables[halved.variables["role"] == Role.WEIGHT]
    assert set(weights["dtype"]) == {"float16"}
    advised = advise(halved, anything(basis_of(halved)))
    every = (*advised.single, *([advised.together] if advised.together else []))
    assert not any(one.levers.half or one.levers.outputs for one in every)


class Positioned(nn.Module):
    """Adds sines of positions, which come from whole numbers or from a buffer that is halved."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.layer, self.whole = nn.Linear(64, 64), whole
        self.register_buffer("rates", 1.0 / torch.arange(1, 65))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        places = torch.arange(16)
        rates = 1.0 / torch.arange(1, 65) if self.whole else self.rates
        angles = places.type_as(rates)[:, None] * rates
        for _ in range(4):
            angles = angles.sin()
        return nn.functional.mse_loss(self.layer(x) + angles.to(x.dtype), y)


class Timed(nn.Module):
    """Sines of a time before the first Block, as of a diffusion model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        ipu_exec.BeginBlock(self.layer, "layer")

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.layer(x + x[:, :1].sin()), y)


class Recurrent(nn.Module):
    """Between products of a few rows, an LSTM works element by element on few tiles."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(64, 64, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.layer(x)[0], y)


@pytest.mark.parametrize(
    ("model", "off"),
    [(Positioned(True), 0.02), (Positioned(False), 0.1), (Timed(), 0.05), (Recurrent(), 0.05)],
    ids=["whole", "buffer", "before", "recurrent"],
)
def test_half_precision_is_foreseen_of_small_tensors(
    model: nn.Module, off: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sines of whole numbers stay float32; in half those of a buffer take 25 cycles, not 2,300."""
    inputs = (torch.zeros(4, 16, 64), torch.zeros(4, 16, 64))
    basis = basis_of(_compiled(deepcopy(model), _options(tmp_path / "float"), inputs))
    predicted = basis.cycles_with(Levers(half=True))
    monkeypatch.setenv(LEVERS_VARIABLE, "half")
    halved = _compiled(deepcopy(model), _options(tmp_path / "half"), inputs)
    assert predicted == pytest.approx(analysis.pace(halved).cycles, rel=off)


class Depthwise(nn.Module):
    """A long convolution of each channel: the vertices that take groups together are of float16."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(128, 128, 65, padding=32, groups=128)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.layer(x), y)


def test_half_precision_of_grouped_convolutions_may_be_as_quick_as_other_vertices_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = (torch.zeros(4, 128, 128), torch.zeros(4, 128, 128))
    advice = predicted(
        basis_of(_compiled(Depthwise(), _options(tmp_path / "float"), inputs)), Levers(half=True)
    )
    monkeypatch.setenv(LEVERS_VARIABLE, "half")
    halved = _compiled(Depthwise(), _options(tmp_path / "half"), inputs)
    rate, error = analysis.pace(halved).samples_per_second, 0.12 * advice.samples_per_second
    assert rate > advice.samples_per_second + error  # what the least error says
    assert advice.doubt == pytest.approx(error, rel=0.5)
    assert rate <= advice.samples_per_second + advice.quicker
